//! The HTTP handlers of the debug endpoints. The handlers never touch the engine: they send a [`DebugRequest`] to the driver, which owns it.
//! The program serves the router.

mod job_order;
mod pod_explanation;
mod remedies;
mod view_handle;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use kai_api::ObjectKey;
use kai_engine::model::{GangKey, Millis};
use kai_view::{ClusterView, Decision};
use serde::Deserialize;
use tokio::sync::oneshot;

pub(crate) use job_order::JobOrder;
pub(crate) use pod_explanation::PodExplanation;
pub(crate) use remedies::{EngineCopy, Workloads};
pub(crate) use view_handle::RunningFlag;
pub use view_handle::ViewHandle;

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
    /// The cluster after the last cycle.
    View(oneshot::Sender<Arc<ClusterView>>),
    /// The decisions with larger numbers, oldest first.
    Decisions {
        after: u64,
        reply: oneshot::Sender<Vec<Decision>>,
    },
}

#[derive(Clone)]
struct Shared {
    client: kai_cluster::Client,
    clock: kai_cluster::Clock,
    settings: Arc<Settings>,
    driver: ViewHandle,
}

pub(crate) fn router(
    client: kai_cluster::Client,
    clock: kai_cluster::Clock,
    settings: Arc<Settings>,
    driver: ViewHandle,
) -> Router {
    let shared = Shared {
        client,
        clock,
        settings,
        driver,
    };
    Router::new()
        .route("/get-snapshot", get(get_snapshot))
        .route("/get-job-order", get(get_job_order))
        .route("/explain", get(explain))
        .route("/view", get(get_view))
        .route("/decisions", get(get_decisions))
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
    match shared.driver.ask(|reply| DebugRequest::Explain(pod, reply)).await {
        Some(Some(explanation)) if query.remedies => remedies::respond(&shared, explanation, namespace, name).await,
        Some(Some(explanation)) => axum::Json(explanation).into_response(),
        Some(None) => (StatusCode::NOT_FOUND, "there is no such pod, or it has ended").into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, BUSY).into_response(),
    }
}

async fn get_job_order(State(shared): State<Shared>) -> Response {
    match shared.driver.ask(DebugRequest::JobOrder).await {
        Some(order) => axum::Json(order).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, BUSY).into_response(),
    }
}

async fn get_view(State(shared): State<Shared>) -> Response {
    let Some(view) = shared.driver.ask(DebugRequest::View).await else {
        return (StatusCode::SERVICE_UNAVAILABLE, BUSY).into_response();
    };
    // Megabytes on a large cluster: other tasks go on meanwhile.
    match tokio::task::spawn_blocking(move || serde_json::to_vec(&*view)).await {
        Ok(Ok(json)) => ([(CONTENT_TYPE, "application/json")], json).into_response(),
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[derive(Deserialize)]
struct DecisionsQuery {
    /// The number of the last decision that the caller has.
    #[serde(default)]
    after: u64,
}

async fn get_decisions(State(shared): State<Shared>, Query(query): Query<DecisionsQuery>) -> Response {
    let after = query.after;
    let request = |reply| DebugRequest::Decisions { after, reply };
    match shared.driver.ask(request).await {
        Some(decisions) => axum::Json(decisions).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, BUSY).into_response(),
    }
}

const BUSY: &str = "the scheduler is not leading or too busy to answer; ask again, or ask the replica that leads";
