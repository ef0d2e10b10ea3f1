//! The HTTP handlers of the debug endpoints. The handlers never touch the engine: they send a [`DebugRequest`] to the driver, which owns it.
//! The program serves the router.

mod job_order;
mod pod_explanation;
mod remedies;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use kai_api::ObjectKey;
use kai_engine::model::{GangKey, Millis};
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};

pub(crate) use job_order::JobOrder;
pub(crate) use pod_explanation::PodExplanation;
pub(crate) use remedies::{EngineCopy, Workloads};

use crate::{Settings, snapshot};

/// A request to the driver, with the channel for its answer.
#[derive(Debug)]
pub(crate) enum DebugRequest {
    /// The state of this pod; `None` if the mirror does not have it.
    Explain(ObjectKey, oneshot::Sender<Option<PodExplanation>>),
    /// A copy of the engine, for trials beside the loop; with the uid of this pod.
    Copy(ObjectKey, oneshot::Sender<Option<EngineCopy>>),
    /// The workloads of these gangs.
    Workloads(Vec<Arc<GangKey>>, oneshot::Sender<Workloads>),
    /// The order in which the engine tries pending pod groups.
    JobOrder(oneshot::Sender<JobOrder>),
}

#[derive(Clone)]
struct Shared {
    client: kai_cluster::Client,
    clock: kai_cluster::Clock,
    settings: Arc<Settings>,
    debug_sender: mpsc::Sender<DebugRequest>,
    /// Held while an explanation is tried: each takes copies of the cluster, so there is one at a time.
    trials: Arc<tokio::sync::Semaphore>,
}

pub(crate) fn router(
    client: kai_cluster::Client,
    clock: kai_cluster::Clock,
    settings: Arc<Settings>,
    debug_sender: mpsc::Sender<DebugRequest>,
) -> Router {
    let shared = Shared {
        client,
        clock,
        settings,
        debug_sender,
        trials: Arc::new(tokio::sync::Semaphore::new(1)),
    };
    Router::new()
        .route("/get-snapshot", get(get_snapshot))
        .route("/get-job-order", get(get_job_order))
        .route("/explain", get(explain))
        .with_state(shared)
}

async fn get_snapshot(State(shared): State<Shared>) -> Response {
    match snapshot::take(
        &shared.client,
        &shared.settings,
        Millis(shared.clock.now().as_millisecond()),
    )
    .await
    {
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
struct ExplainQuery {
    pod: String,
    /// Whether to look for remedies as well.
    #[serde(default)]
    remedies: bool,
}

async fn explain(State(shared): State<Shared>, Query(query): Query<ExplainQuery>) -> Response {
    let Some((namespace, name)) = query.pod.split_once('/') else {
        return (StatusCode::BAD_REQUEST, "write the pod as namespace/name").into_response();
    };
    let pod = ObjectKey::new(namespace, name);
    match shared.ask(|reply| DebugRequest::Explain(pod, reply)).await {
        Some(Some(explanation)) if query.remedies => remedies::respond(&shared, explanation, namespace, name).await,
        Some(Some(explanation)) => axum::Json(explanation).into_response(),
        Some(None) => (StatusCode::NOT_FOUND, "there is no such pod, or it has ended").into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, BUSY).into_response(),
    }
}

async fn get_job_order(State(shared): State<Shared>) -> Response {
    match shared.ask(DebugRequest::JobOrder).await {
        Some(order) => axum::Json(order).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, BUSY).into_response(),
    }
}

impl Shared {
    /// The driver's answer; `None` if there is none in time.
    async fn ask<A>(&self, request: impl FnOnce(oneshot::Sender<A>) -> DebugRequest) -> Option<A> {
        let (reply, answer) = oneshot::channel();
        self.debug_sender.try_send(request(reply)).ok()?;
        tokio::time::timeout(ANSWER_TIMEOUT, answer).await.ok()?.ok()
    }
}

const BUSY: &str = "the scheduler is not leading or too busy to answer; ask again, or ask the replica that leads";

/// The driver answers at the end of the next cycle.
const ANSWER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
