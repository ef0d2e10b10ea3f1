//! Now and then the watches are compared with fresh lists. They should never differ; if they do, the difference is put right and shown as
//! a metric, since it means that decisions were made on a cluster that was not there.

use std::time::Duration;

use kai_cluster::{Context, Error, Informer, Selection};

use crate::metrics::Metrics;

/// How long a change may be on its way through a watch.
const SETTLE: Duration = Duration::from_secs(5);

/// Audits for ever. Ends only if our credentials are no longer good.
pub(crate) async fn run(context: &Context, period: Option<Duration>, metrics: &Metrics) -> Error {
    let Some(period) = period else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(period).await;
        if let Err(error) = all(context, metrics).await {
            if error.is_unauthorized() {
                return error;
            }
            tracing::warn!(%error, "an audit was not completed; it is tried again later");
        }
    }
}

async fn all(context: &Context, metrics: &Metrics) -> Result<(), Error> {
    let informers = &context.informers;
    one(context, informers.nodes(), "Node", metrics).await?;
    one(context, informers.queues(), "Queue", metrics).await?;
    one(context, informers.pod_groups(), "PodGroup", metrics).await?;
    one(context, informers.bind_requests(), "BindRequest", metrics).await?;
    one(context, informers.pods(), "Pod", metrics).await
}

async fn one<T: kai_api::Object>(
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
