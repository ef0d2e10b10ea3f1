//! What the scheduler answers over HTTP. Serving is the program's matter; handlers here never touch the engine, they ask its owner.

mod answer;
mod snapshot;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use cluster::Key;
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};

pub(crate) use answer::Answer;

use crate::Settings;

/// Why does this pod wait?
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) pod: Key,
    pub(crate) reply: oneshot::Sender<Option<Answer>>,
}

#[derive(Clone)]
struct Shared {
    client: cluster::Client,
    settings: Arc<Settings>,
    ask: mpsc::Sender<Question>,
}

pub(crate) fn router(client: cluster::Client, settings: Arc<Settings>, ask: mpsc::Sender<Question>) -> Router {
    let shared = Shared { client, settings, ask };
    Router::new()
        .route("/get-snapshot", get(get_snapshot))
        .route("/explain", get(explain))
        .with_state(shared)
}

async fn get_snapshot(State(shared): State<Shared>) -> Response {
    match snapshot::take(&shared.client, &shared.settings).await {
        Ok(zip) => {
            let headers = [
                (CONTENT_TYPE, "application/zip"),
                (CONTENT_DISPOSITION, "attachment; filename=snapshot.zip"),
            ];
            (headers, zip).into_response()
        }
        Err(message) => (StatusCode::INTERNAL_SERVER_ERROR, message).into_response(),
    }
}

#[derive(Deserialize)]
struct Which {
    pod: String,
}

async fn explain(State(shared): State<Shared>, Query(which): Query<Which>) -> Response {
    let Some((namespace, name)) = which.pod.split_once('/') else {
        return (StatusCode::BAD_REQUEST, "write the pod as namespace/name").into_response();
    };
    let (reply, answer) = oneshot::channel();
    let question = Question {
        pod: Key::new(namespace, name),
        reply,
    };
    let busy = "the scheduler is not leading or too busy to answer; ask again, or ask the replica that leads";
    if shared.ask.try_send(question).is_err() {
        return (StatusCode::SERVICE_UNAVAILABLE, busy).into_response();
    }
    match tokio::time::timeout(ANSWER_WITHIN, answer).await {
        Ok(Ok(Some(answer))) => axum::Json(answer).into_response(),
        Ok(Ok(None)) => (StatusCode::NOT_FOUND, "there is no such pod, or it has ended").into_response(),
        Ok(Err(_)) | Err(_) => (StatusCode::SERVICE_UNAVAILABLE, busy).into_response(),
    }
}

/// The next cycle answers; one that takes longer has other worries.
const ANSWER_WITHIN: std::time::Duration = std::time::Duration::from_secs(10);
