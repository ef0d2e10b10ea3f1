//! Now and then the watches are compared with fresh lists. They should never differ; if they do, the difference is put right and shown as
//! a metric, since it means that decisions were made on a cluster that was not there.

use std::time::Duration;

use kai_cluster::{Context, Error, Feed, Selection};

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
    let feeds = &context.feeds;
    one(context, feeds.nodes(), "Node", metrics).await?;
    one(context, feeds.queues(), "Queue", metrics).await?;
    one(context, feeds.pod_groups(), "PodGroup", metrics).await?;
    one(context, feeds.bind_requests(), "BindRequest", metrics).await?;
    one(context, feeds.pods(), "Pod", metrics).await
}

async fn one<T: kai_api::Object>(
    context: &Context,
    feed: &Feed<T>,
    kind: &'static str,
    metrics: &Metrics,
) -> Result<(), Error> {
    let differences = feed.audit(&context.client, &Selection::default(), SETTLE).await?;
    if differences > 0 {
        tracing::error!(
            kind,
            differences,
            "watched objects differed from the cluster; they were put right"
        );
    }
    metrics.drift(kind, feed.drift());
    Ok(())
}
