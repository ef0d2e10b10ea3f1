//! The scheduler's own view for the page of `kai ui --scheduler`. The page asks at most twice a second, and only while somebody looks.

use std::sync::Arc;

use kai_page::{BoxFuture, Source};
use kai_view::{ClusterView, ExplanationView};

use crate::inspect::remote::SchedulerEndpoints;

/// A scheduler whose debug endpoints answer.
pub(crate) struct SchedulerSource(pub(crate) SchedulerEndpoints);

impl Source for SchedulerSource {
    fn view(&self) -> BoxFuture<'_, Option<Arc<ClusterView>>> {
        Box::pin(async { self.0.view().await.ok().map(Arc::new) })
    }

    fn explain(&self, namespace: &str, pod: &str) -> BoxFuture<'_, Option<ExplanationView>> {
        let (namespace, pod) = (namespace.to_owned(), pod.to_owned());
        Box::pin(async move { self.0.explain(&namespace, &pod).await.ok() })
    }
}
