//! What is said about one pod, for programs.

use kai_api::ObjectKey;
use kai_engine::Cluster;
use serde::Serialize;

use crate::explain::text;
use kai_mirror::{ClusterMirror, group_key};

/// How a pod stands and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Answer {
    namespace: String,
    name: String,
    uid: String,
    pod_group: Option<String>,
    queue: Option<String>,
    /// `None` if the scheduler does not place it.
    status: Option<&'static str>,
    node: Option<String>,
    gpu_groups: Vec<String>,
    /// Why it waits or was evicted, in words.
    reason: Option<String>,
}

impl Answer {
    pub(crate) fn about(pod: &ObjectKey, engine: &Cluster, index: &ClusterMirror, uid: &str) -> Answer {
        let mut answer = Answer {
            namespace: pod.namespace.to_string(),
            name: pod.name.to_string(),
            uid: uid.to_owned(),
            pod_group: None,
            queue: None,
            status: None,
            node: None,
            gpu_groups: Vec::new(),
            reason: None,
        };
        let views = engine.pods_of([uid]);
        let Some(view) = views.first() else { return answer };
        let gang = view.gang.map(group_key);
        let group = gang.as_ref().and_then(|gang| index.group(gang));
        answer.pod_group = view.gang.map(|gang| gang.name.clone());
        answer.queue = group.map(|group| group.queue().to_owned());
        answer.status = Some(view.status.name());
        answer.node = view.node.map(str::to_owned);
        answer.gpu_groups.clone_from(&view.gpu_groups);
        answer.reason = view.reason.as_ref().map(|reason| text(view, reason, index));
        answer
    }
}
