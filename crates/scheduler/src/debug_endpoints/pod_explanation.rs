//! The answer of `/explain`: the state of one pod as JSON.

use kai_api::ObjectKey;
use kai_engine::Cluster;
use serde::Serialize;

use kai_mirror::{ClusterMirror, pod_group_key};

/// A pod's status, place and reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodExplanation {
    namespace: String,
    name: String,
    uid: String,
    pod_group: Option<String>,
    queue: Option<String>,
    /// `None` if this scheduler does not place the pod.
    status: Option<&'static str>,
    node: Option<String>,
    gpu_groups: Vec<String>,
    /// Why the pod is pending or was evicted, as text.
    reason: Option<String>,
}

impl PodExplanation {
    pub(crate) fn new(pod: &ObjectKey, engine: &Cluster, mirror: &ClusterMirror, uid: &str) -> PodExplanation {
        let mut explanation = PodExplanation {
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
        let Some(view) = views.first() else { return explanation };
        let gang = view.gang.map(pod_group_key);
        let pod_group = gang.as_ref().and_then(|gang| mirror.pod_group(gang));
        explanation.pod_group = view.gang.map(|gang| gang.name.clone());
        explanation.queue = pod_group.map(|pod_group| pod_group.queue().to_owned());
        explanation.status = Some(view.status.name());
        explanation.node = view.node.map(str::to_owned);
        explanation.gpu_groups.clone_from(&view.gpu_groups);
        explanation.reason = view.reason.as_ref().map(|reason| mirror.reason_text(view, reason));
        explanation
    }
}
