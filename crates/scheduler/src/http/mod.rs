//! What the scheduler answers over HTTP. Serving is the program's matter; handlers here never touch the engine, they ask its owner.

mod answer;
mod job_order;
mod snapshot;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use kai_api::ObjectKey;
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};

pub(crate) use answer::Answer;
pub(crate) use job_order::JobOrder;

use crate::Settings;

/// What is asked of the owner of the engine, and where the answer goes.
#[derive(Debug)]
pub(crate) enum Question {
    /// Why does this pod wait?
    Pod(ObjectKey, oneshot::Sender<Option<Answer>>),
    /// Who is served next?
    JobOrder(oneshot::Sender<JobOrder>),
}

#[derive(Clone)]
struct Shared {
    client: kai_cluster::Client,
    settings: Arc<Settings>,
    ask: mpsc::Sender<Question>,
}

pub(crate) fn router(client: kai_cluster::Client, settings: Arc<Settings>, ask: mpsc::Sender<Question>) -> Router {
    let shared = Shared { client, settings, ask };
    Router::new()
        .route("/get-snapshot", get(get_snapshot))
        .route("/get-job-order", get(get_job_order))
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
    let pod = ObjectKey::new(namespace, name);
    match shared.asked(|reply| Question::Pod(pod, reply)).await {
        Some(Some(answer)) => axum::Json(answer).into_response(),
        Some(None) => (StatusCode::NOT_FOUND, "there is no such pod, or it has ended").into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, BUSY).into_response(),
    }
}

async fn get_job_order(State(shared): State<Shared>) -> Response {
    match shared.asked(Question::JobOrder).await {
        Some(order) => axum::Json(order).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, BUSY).into_response(),
    }
}

impl Shared {
    /// The owner's answer; `None` if there is none in time.
    async fn asked<A>(&self, question: impl FnOnce(oneshot::Sender<A>) -> Question) -> Option<A> {
        let (reply, answer) = oneshot::channel();
        self.ask.try_send(question(reply)).ok()?;
        tokio::time::timeout(ANSWER_WITHIN, answer).await.ok()?.ok()
    }
}

const BUSY: &str = "the scheduler is not leading or too busy to answer; ask again, or ask the replica that leads";

/// The next cycle answers; one that takes longer has other worries.
const ANSWER_WITHIN: std::time::Duration = std::time::Duration::from_secs(10);
