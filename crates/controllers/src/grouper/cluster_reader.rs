//! The grouping rules' read access to the cluster: the trait, and its implementation on the shared informers.

use std::sync::Arc;

use kai_api::{ObjectKey, Pod, PodGroup};
use kai_cluster::Informers;

/// What the grouping rules read of the cluster, beside the pod and its owners. The grouper reads it from the shared informers, `kai
/// simulate` from files.
pub trait ClusterReader: Sync {
    /// Whether the priority class exists.
    fn has_priority_class(&self, name: &str) -> bool;
    /// The pod group, if it exists.
    fn pod_group(&self, namespace: &str, name: &str) -> Option<Arc<PodGroup>>;
    /// Whether the namespace has a pod group that matches.
    fn has_pod_group(&self, namespace: &str, matches: &dyn Fn(&PodGroup) -> bool) -> bool;
    /// Whether the namespace has a pod group without subgroups whose name matches. Older versions created such groups.
    fn has_flat_pod_group(&self, namespace: &str, name_is: &dyn Fn(&str) -> bool) -> bool {
        self.has_pod_group(namespace, &|group| {
            group.metadata.name.as_deref().is_some_and(name_is) && group.as_written().sub_groups.is_empty()
        })
    }
    /// The pods of the namespace that have this label and have not ended.
    fn pods_labelled(&self, namespace: &str, label: &str, value: &str) -> Vec<Arc<Pod>>;
}

impl ClusterReader for Informers {
    fn has_priority_class(&self, name: &str) -> bool {
        !name.is_empty() && self.priority_classes().get(&ObjectKey::new("", name)).is_some()
    }

    fn pod_group(&self, namespace: &str, name: &str) -> Option<Arc<PodGroup>> {
        self.pod_groups().get(&ObjectKey::new(namespace, name))
    }

    fn has_pod_group(&self, namespace: &str, matches: &dyn Fn(&PodGroup) -> bool) -> bool {
        let groups = self.pod_groups().in_namespace(namespace);
        groups.iter().any(|group| matches(group))
    }

    fn pods_labelled(&self, namespace: &str, label: &str, value: &str) -> Vec<Arc<Pod>> {
        let mut pods = self.pods().in_namespace(namespace);
        pods.retain(|pod| pod.metadata.labels.text(label) == Some(value));
        pods
    }
}
