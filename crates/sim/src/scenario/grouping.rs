//! Pods of manifests that belong to no pod group get one each, as the pod grouper gives bare pods one in a cluster.

use api::{Pod, PriorityClasses};
use engine::model::{GangKey, GangSpec, Millis, PodSpec};

/// A pod that needs a gang of its own, until the priority classes are known.
#[derive(Clone, Debug)]
pub(super) struct BarePod {
    key: GangKey,
    /// Name of the pod.
    pub(super) name: String,
    created: Millis,
    /// Its queue.
    pub(super) queue: String,
    priority_classes: [Option<String>; 2],
    preemptible: Option<bool>,
}

impl BarePod {
    /// Makes the pod a member of a gang of its own.
    pub(super) fn new(pod: &Pod, spec: &mut PodSpec) -> BarePod {
        let key = GangKey {
            namespace: spec.namespace.clone(),
            name: format!("pg-{}", spec.name),
        };
        spec.gang = Some(key.clone());
        let own = pod.own_workload();
        BarePod {
            key,
            name: spec.name.clone(),
            created: spec.created,
            queue: own.queue.to_owned(),
            priority_classes: own.priority_classes.map(|name| name.map(str::to_owned)),
            preemptible: own.preemptible,
        }
    }

    /// Its namespace.
    pub(super) fn namespace(&self) -> &str {
        &self.key.namespace
    }

    /// The gang.
    pub(super) fn gang(self, classes: &PriorityClasses) -> GangSpec {
        let own = api::OwnWorkload {
            queue: &self.queue,
            priority_classes: [self.priority_classes[0].as_deref(), self.priority_classes[1].as_deref()],
            preemptible: self.preemptible,
        };
        let (priority, preemptible) = own.rank(classes);
        GangSpec {
            uid: self.key.to_string(),
            key: self.key,
            created: self.created,
            queue: self.queue,
            priority,
            preemptible,
            min_member: 1,
            min_sub_group: None,
            topology: None,
            sub_groups: Vec::new(),
            last_start: None,
            last_eviction: None,
            stale_since: None,
            preemption_delay: Millis(0),
            staleness_grace: None,
            schedulable: true,
        }
    }
}
