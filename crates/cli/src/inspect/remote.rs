//! The scheduler's own view, from its debug endpoints. They are on the loopback interface of its pod: a port-forward reaches them.

use std::sync::Arc;

use kai_cluster::{Client, ClientConfig, Error};
use kai_mirror::ExplanationView;
use kai_view::{ClusterView, Decision};
use serde::de::DeserializeOwned;

/// The address of a scheduler's debug endpoints.
#[derive(Clone, Debug)]
pub(crate) struct SchedulerUrl(String);

impl SchedulerUrl {
    pub(crate) fn new(url: &str) -> SchedulerUrl {
        SchedulerUrl(url.to_owned())
    }

    /// The view after its last cycle.
    pub(super) async fn view(&self) -> anyhow::Result<ClusterView> {
        self.ask("/view", &[]).await
    }

    /// Its decisions of the last hour with larger numbers, newest first.
    pub(super) async fn decisions(&self, after: u64) -> anyhow::Result<Vec<Arc<Decision>>> {
        let mut decisions: Vec<Arc<Decision>> = self.ask("/decisions", &[("after", &after.to_string())]).await?;
        decisions.reverse();
        Ok(decisions)
    }

    /// What would let the pod start.
    pub(super) async fn explain(&self, namespace: &str, pod: &str) -> anyhow::Result<ExplanationView> {
        let pod = format!("{namespace}/{pod}");
        self.ask("/explain", &[("pod", &pod), ("remedies", "true")]).await
    }

    async fn ask<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> anyhow::Result<T> {
        let answer = async {
            let client = Client::connect(&ClientConfig::Url(self.0.clone())).await?;
            client.get_text(path, query).await
        };
        let text = answer.await.map_err(|error| self.no_answer(&error))?;
        serde_json::from_str(&text).map_err(|error| {
            anyhow::anyhow!(
                "{}{path} does not answer as a scheduler of this version: {error}",
                self.0
            )
        })
    }

    fn no_answer(&self, error: &Error) -> anyhow::Error {
        let SchedulerUrl(url) = self;
        let (cause, answers) = match error {
            Error::Connect { message } => (message.clone(), false),
            Error::Call { message, code, .. } => (message.clone(), code.is_some()),
            Error::NotLeader { .. } => (error.to_string(), true),
        };
        match answers {
            true => anyhow::anyhow!("the scheduler at {url} can't tell: {}", cause.trim()),
            false => anyhow::anyhow!(
                "the scheduler at {url} does not answer: {cause}\n  \
                 its port is on the loopback interface of its pod; forward it first:\n  \
                 kubectl port-forward -n kai-scheduler deployment/kai-scheduler-default 8081"
            ),
        }
    }
}
