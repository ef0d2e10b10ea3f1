//! `/explain?remedies=true`: what would let a pod start. The driver only copies its engine and looks names up; the trials run beside it.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use kai_api::ObjectKey;
use kai_engine::Cluster;
use kai_engine::model::{Config, GangKey};
use kai_engine::remedies::ExplainBudget;
use kai_mirror::ExplanationView;
use serde::Serialize;

use super::{BUSY, DebugRequest, PodExplanation, Shared, ViewHandle};

/// A copy of the engine after a cycle.
#[derive(Debug)]
pub(crate) struct EngineCopy {
    pub(crate) engine: Box<Cluster>,
    pub(crate) config: Config,
    pub(crate) uid: String,
}

/// Names of workloads by gang.
pub(crate) type Workloads = BTreeMap<Arc<GangKey>, String>;

/// The state of a pod, and what would help.
#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    pod: PodExplanation,
    #[serde(flatten)]
    explanation: ExplanationView,
}

const ONE_AT_A_TIME: &str = "another request for remedies is being answered; ask again in a few seconds";

/// Adds remedies to an explanation.
pub(super) async fn respond(shared: &Shared, pod: PodExplanation, namespace: &str, name: &str) -> Response {
    let Ok(_permit) = shared.driver.trials.clone().try_acquire_owned() else {
        return (StatusCode::TOO_MANY_REQUESTS, ONE_AT_A_TIME).into_response();
    };
    match explain(&shared.driver, ObjectKey::new(namespace, name)).await {
        Some(explanation) => axum::Json(Answer { pod, explanation }).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, BUSY).into_response(),
    }
}

/// Tries what would let the pod start; `None` if it does not wait. The caller holds the permit for trials.
pub(super) async fn explain(driver: &ViewHandle, pod: ObjectKey) -> Option<ExplanationView> {
    let copy = driver.ask(|reply| DebugRequest::Copy(pod, reply)).await??;
    let trials = tokio::task::spawn_blocking(move || {
        let EngineCopy { engine, config, uid } = copy;
        engine.explain(&uid, &config, ExplainBudget::default())
    });
    let explanation = trials.await.ok()??;
    let gangs = explanation.gangs();
    let names = driver.ask(|reply| DebugRequest::Workloads(gangs, reply)).await?;
    let name = |gang: &GangKey| names.get(gang).cloned().unwrap_or_else(|| gang.to_string());
    Some(ExplanationView::new(&explanation, &name))
}
