//! Compares the watches with fresh lists, periodically. They should never differ. A difference means that the engine decided on wrong data;
//! the audit corrects it and shows it as a metric.

use std::time::Duration;

use kai_cluster::{Context, Error, Informer, Selection};

use crate::metrics::Metrics;

/// How long a watch may take to deliver a change.
const SETTLE: Duration = Duration::from_secs(5);

/// The audited kinds.
pub(crate) const KINDS: [&str; 5] = ["Node", "Queue", "PodGroup", "BindRequest", "Pod"];

/// Audits until the API server rejects our credentials.
pub(crate) async fn run(context: &Context, period: Option<Duration>, metrics: &Metrics) -> Error {
    let Some(period) = period else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(period).await;
        if let Err(error) = audit_all(context, metrics).await {
            if error.is_unauthorized() {
                return error;
            }
            tracing::warn!(%error, "an audit was not completed; it is tried again later");
        }
    }
}

async fn audit_all(context: &Context, metrics: &Metrics) -> Result<(), Error> {
    let informers = &context.informers;
    let [node, queue, pod_group, bind_request, pod] = KINDS;
    audit_kind(context, informers.nodes(), node, metrics).await?;
    audit_kind(context, informers.queues(), queue, metrics).await?;
    audit_kind(context, informers.pod_groups(), pod_group, metrics).await?;
    audit_kind(context, informers.bind_requests(), bind_request, metrics).await?;
    audit_kind(context, informers.pods(), pod, metrics).await
}

async fn audit_kind<T: kai_api::Object>(
    context: &Context,
    informer: &Informer<T>,
    kind: &'static str,
    metrics: &Metrics,
) -> Result<(), Error> {
    let differences = informer.audit(&context.client, &Selection::default(), SETTLE).await?;
    if differences > 0 {
        tracing::error!(
            kind,
            differences,
            "watched objects differed from the cluster; they were put right"
        );
    }
    metrics.drift(kind, informer.drift());
    Ok(())
}
