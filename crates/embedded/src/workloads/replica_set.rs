//! ReplicaSets: which pods to create and to delete, and the status. Pure.

use std::time::Duration;

use jiff::Timestamp;
use kai_api::Object;
use serde_json::{Value, json};

use super::conditions::{self, Condition};
use super::objects::{ReplicaSet, Workload};
use super::pods::{Counts, OwnedPod};

/// The writes for a workload that creates and deletes its pods itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) create: Vec<Value>,
    pub(super) delete: Vec<String>,
    pub(super) status: Value,
    /// When the passing of time changes the status.
    pub(super) requeue_after: Option<Duration>,
}

pub(super) fn plan(set: &Workload, owned: &[OwnedPod], now: Timestamp) -> Plan {
    let mut active: Vec<&OwnedPod> = owned.iter().filter(|pod| pod.is_active()).collect();
    let wanted = usize::try_from(set.replicas()).unwrap_or(0);
    let create = (active.len()..wanted).map(|_| {
        let mut pod = set.pod(&ReplicaSet::RESOURCE);
        pod["metadata"]["generateName"] = format!("{}-", set.name()).into();
        pod
    });
    let create = create.collect();
    // The deletion order of the real controller: without a node, not running, not ready, low deletion cost, young.
    active.sort_by(|a, b| {
        let key = |pod: &OwnedPod| (pod.node.is_some(), pod.phase, pod.is_ready(), pod.deletion_cost);
        key(a)
            .cmp(&key(b))
            .then_with(|| b.created.cmp(&a.created))
            .then_with(|| a.name.cmp(&b.name))
    });
    let surplus = active.len().saturating_sub(wanted);
    let delete = active.iter().take(surplus).map(|pod| pod.name.clone()).collect();
    let counts = Counts::of(set, owned, now);
    Plan {
        create,
        delete,
        status: status(set, counts),
        requeue_after: counts.next_available_in,
    }
}

fn status(set: &Workload, counts: Counts) -> Value {
    json!({
        "replicas": counts.active,
        "fullyLabeledReplicas": counts.active,
        "readyReplicas": counts.ready,
        "availableReplicas": counts.available,
        "observedGeneration": set.generation,
    })
}

/// The condition `ReplicaFailure`, if the creation of pods failed.
pub(super) fn failure(set: &Workload, failed: Option<String>, now: &str) -> Value {
    let conditions: Vec<Condition> = failed
        .into_iter()
        .map(|message| Condition {
            kind: "ReplicaFailure",
            status: "True",
            reason: "FailedCreate",
            message,
        })
        .collect();
    conditions::list(&set.status, &conditions, now)
}

#[cfg(test)]
mod tests {
    use super::super::pods::Phase;
    use super::*;

    fn set(replicas: i64) -> Workload {
        Workload::of(json!({
            "metadata": { "name": "web", "uid": "u", "generation": 3 },
            "spec": { "replicas": replicas, "template": { "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [] } } },
        }))
        .unwrap()
    }

    fn pod(name: &str, phase: Phase) -> OwnedPod {
        OwnedPod {
            name: name.to_owned(),
            phase,
            ready_since: (phase == Phase::Running).then_some(Timestamp::UNIX_EPOCH),
            ..OwnedPod::default()
        }
    }

    fn check(replicas: i64, owned: &[OwnedPod], created: usize, deleted: &[&str]) {
        let plan = plan(&set(replicas), owned, Timestamp::UNIX_EPOCH);
        assert_eq!(
            (plan.create.len(), plan.delete.as_slice()),
            (
                created,
                &deleted.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()[..]
            )
        );
    }

    #[test]
    fn a_replica_set_keeps_its_number() {
        check(3, &[pod("a", Phase::Running)], 2, &[]);
        check(1, &[pod("a", Phase::Running), pod("b", Phase::Pending)], 0, &["b"]);
        let leaving = OwnedPod {
            terminating: true,
            ..pod("a", Phase::Running)
        };
        check(1, &[leaving], 1, &[]);
        check(1, &[pod("a", Phase::Failed)], 1, &[]);
    }

    #[test]
    fn the_status_counts_pods_and_names_the_generation() {
        let plan = plan(
            &set(2),
            &[pod("a", Phase::Running), pod("b", Phase::Pending)],
            Timestamp::UNIX_EPOCH,
        );
        assert_eq!(
            plan.status,
            json!({ "replicas": 2, "fullyLabeledReplicas": 2, "readyReplicas": 1, "availableReplicas": 1, "observedGeneration": 3 })
        );
    }
}
