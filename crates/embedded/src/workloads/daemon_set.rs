//! DaemonSets: a pod on each matching node; rolling updates within `maxUnavailable`. Pure. `maxSurge` is not supported: the old pod goes
//! before the new pod comes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kai_api::Object;
use serde_json::{Value, json};

use super::node_matching::{daemon_tolerations, may_run_on};
use super::objects::{DaemonSet, Workload, int_or_percent};
use super::pods::{Counts, OwnedPod};
use super::replica_set::Plan;
use super::revisions::{HASH, Revisions};

pub(super) fn plan(set: &Workload, nodes: &[Value], owned: &[OwnedPod], revisions: &Revisions, now: Timestamp) -> Plan {
    let mut by_node: BTreeMap<&str, Vec<&OwnedPod>> = BTreeMap::new();
    for pod in owned {
        by_node
            .entry(pod.node.as_deref().unwrap_or_default())
            .or_default()
            .push(pod);
    }
    let spec = &set.spec["template"]["spec"];
    let names = nodes.iter().filter(|node| may_run_on(spec, node));
    let wanted: Vec<&str> = names.filter_map(|node| node["metadata"]["name"].as_str()).collect();
    let mut plan = Plan::default();
    // The pod that is kept on each node.
    let mut kept: Vec<&OwnedPod> = Vec::new();
    for node in &wanted {
        let mut pods = by_node.remove(node).unwrap_or_default();
        pods.sort_by_key(|pod| {
            (
                pod.has_ended(),
                pod.terminating,
                pod.created.as_str(),
                pod.name.as_str(),
            )
        });
        let first = pods.first().copied().filter(|pod| !pod.has_ended());
        match first {
            Some(pod) => kept.push(pod),
            // The new pod waits until the old one is gone.
            None if pods.is_empty() => plan.create.push(new_pod(set, revisions, node)),
            None => {}
        }
        let others = pods
            .iter()
            .skip(usize::from(first.is_some()))
            .filter(|pod| !pod.terminating);
        plan.delete.extend(others.map(|pod| pod.name.clone()));
    }
    let misplaced: Vec<&OwnedPod> = by_node.into_values().flatten().filter(|pod| !pod.terminating).collect();
    plan.delete.extend(misplaced.iter().map(|pod| pod.name.clone()));
    plan.delete.extend(outdated(set, &kept, wanted.len(), revisions, now));
    let counts = Counts::of(set, kept.iter().copied(), now);
    let updated = kept
        .iter()
        .filter(|pod| pod.is_active() && pod.revision == revisions.update);
    plan.requeue_after = counts.next_available_in;
    plan.status = json!({
        "observedGeneration": set.generation,
        "desiredNumberScheduled": wanted.len(),
        "currentNumberScheduled": kept.len(),
        "numberMisscheduled": misplaced.iter().filter(|pod| !pod.has_ended()).count(),
        "numberReady": counts.ready,
        "numberAvailable": counts.available,
        "numberUnavailable": i64::try_from(wanted.len()).unwrap_or(i64::MAX) - counts.available,
        "updatedNumberScheduled": updated.count(),
    });
    plan
}

/// Pods of old templates that may be deleted now.
fn outdated(set: &Workload, kept: &[&OwnedPod], wanted: usize, revisions: &Revisions, now: Timestamp) -> Vec<String> {
    let strategy = &set.spec["updateStrategy"];
    if strategy["type"] == "OnDelete" {
        return Vec::new();
    }
    let wanted = i64::try_from(wanted).unwrap_or(i64::MAX);
    let bound = int_or_percent(&strategy["rollingUpdate"]["maxUnavailable"], wanted, true).unwrap_or(1);
    let available = |pod: &OwnedPod| {
        let rest = pod.available_in(set.min_ready_seconds(), now);
        pod.is_active() && rest.is_some_and(|rest| rest.is_zero())
    };
    let old = |pod: &&&OwnedPod| pod.is_active() && pod.revision != revisions.update;
    // Deleting an unavailable pod does not reduce the availability.
    let broken = kept.iter().filter(old).filter(|pod| !available(pod));
    let mut gone: Vec<String> = broken.map(|pod| pod.name.clone()).collect();
    let count = kept.iter().filter(|pod| available(pod)).count();
    let unavailable = wanted - i64::try_from(count).unwrap_or(i64::MAX);
    let room = usize::try_from(bound.max(1) - unavailable).unwrap_or(0);
    let healthy = kept.iter().filter(old).filter(|pod| available(pod));
    gone.extend(healthy.take(room).map(|pod| pod.name.clone()));
    gone
}

fn new_pod(set: &Workload, revisions: &Revisions, node: &str) -> Value {
    let mut pod = set.pod(&DaemonSet::RESOURCE);
    pod["metadata"]["generateName"] = format!("{}-", set.name()).into();
    pod["metadata"]["labels"][HASH] = revisions.update.as_str().into();
    let only = json!({ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [node] }] });
    pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
        json!({ "nodeSelectorTerms": [only] });
    let mut tolerations = pod["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    tolerations.extend(daemon_tolerations());
    pod["spec"]["tolerations"] = tolerations.into();
    pod
}

#[cfg(test)]
mod tests {
    use super::super::pods::Phase;
    use super::*;

    fn set(spec: Value) -> Workload {
        let mut set = json!({ "metadata": { "name": "agent", "uid": "u" }, "spec": {
            "template": { "metadata": { "labels": { "app": "agent" } }, "spec": { "nodeSelector": { "gpu": "yes" } } },
        } });
        set["spec"]
            .as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        Workload::of(set).unwrap()
    }

    fn node(name: &str, gpu: &str) -> Value {
        json!({ "metadata": { "name": name, "labels": { "gpu": gpu } } })
    }

    fn pod(name: &str, node: &str, revision: &str) -> OwnedPod {
        OwnedPod {
            name: name.to_owned(),
            node: Some(node.to_owned()),
            phase: Phase::Running,
            revision: revision.to_owned(),
            ready_since: Some(Timestamp::UNIX_EPOCH),
            ..OwnedPod::default()
        }
    }

    fn plan_of(spec: Value, nodes: &[Value], owned: &[OwnedPod]) -> Plan {
        let revisions = Revisions {
            update: "new".to_owned(),
            ..Revisions::default()
        };
        plan(&set(spec), nodes, owned, &revisions, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn each_node_that_takes_it_gets_a_pod() {
        let nodes = [node("a", "yes"), node("b", "yes"), node("c", "no")];
        let plan = plan_of(json!({}), &nodes, &[pod("on-a", "a", "new"), pod("on-c", "c", "new")]);
        assert_eq!(plan.create.len(), 1);
        let terms = &plan.create[0]["spec"]["affinity"]["nodeAffinity"];
        let wanted = &terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0];
        assert_eq!(wanted["matchFields"][0]["values"], json!(["b"]));
        assert_eq!(plan.delete, ["on-c"]);
        assert_eq!(plan.status["desiredNumberScheduled"], 2);
        assert_eq!(plan.status["numberMisscheduled"], 1);
        assert_eq!(plan.status["numberUnavailable"], 1);
    }

    #[test]
    fn an_update_keeps_within_its_bound() {
        let nodes = [node("a", "yes"), node("b", "yes"), node("c", "yes")];
        let pods = [
            pod("on-a", "a", "old"),
            pod("on-b", "b", "old"),
            pod("on-c", "c", "old"),
        ];
        assert_eq!(plan_of(json!({}), &nodes, &pods).delete, ["on-a"]);
        let two = json!({ "updateStrategy": { "rollingUpdate": { "maxUnavailable": 2 } } });
        assert_eq!(plan_of(two, &nodes, &pods).delete, ["on-a", "on-b"]);
        let starting = OwnedPod {
            ready_since: None,
            ..pod("on-a", "a", "new")
        };
        let waits = [starting, pod("on-b", "b", "old"), pod("on-c", "c", "old")];
        assert_eq!(plan_of(json!({}), &nodes, &waits).delete.len(), 0);
        let by_hand = json!({ "updateStrategy": { "type": "OnDelete" } });
        assert_eq!(plan_of(by_hand, &nodes, &pods).delete.len(), 0);
    }
}
