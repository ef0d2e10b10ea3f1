//! The writes that turn the desired state of a pod group into the actual one. Pure: `reconcile` sends them.

use kai_api::crd::{PodGroupSpec, Preemptibility};
use kai_api::{Pod, PodGroup, keys};
use serde_json::{Map, Value, json};

use super::desired_pod_group::{DesiredPodGroup, OwnerRef};
use super::workload::GroupingOptions;
use crate::admission::core_of_pod_group::{MinimumKind, RaisedMinimum, raised_minima};
use crate::merge_patch::difference;

/// The body of a new pod group.
pub fn pod_group_body(desired: &DesiredPodGroup) -> Value {
    json!({
        "metadata": {
            "name": desired.name,
            "labels": desired.labels,
            "annotations": desired.annotations,
            "ownerReferences": [reference(&desired.owner)],
        },
        "spec": desired.spec,
    })
}

/// The merge patch for an existing pod group; `None` if nothing changes. Queue, node pool, `markUnschedulable` and `schedulingBackoff`
/// belong to other components once the group exists, and so do all labels and annotations that the desired state does not name.
pub(super) fn pod_group_patch(
    desired: &DesiredPodGroup,
    present: &PodGroup,
    options: &GroupingOptions,
) -> Option<Value> {
    let mut change = Map::new();
    let mut metadata = Map::new();
    let labels = &present.metadata.labels;
    let is_kept =
        |key: &str| key == options.node_pool_label || (key == options.queue_label && labels.get(key).is_some());
    let new_labels = desired
        .labels
        .iter()
        .filter(|(key, value)| !is_kept(key) && labels.text(key) != Some(value.as_str()));
    set(&mut metadata, "labels", new_labels);
    let annotations = &present.metadata.annotations;
    let new_annotations = desired
        .annotations
        .iter()
        .filter(|(key, value)| annotations.text(key) != Some(value.as_str()));
    set(&mut metadata, "annotations", new_annotations);
    if !is_owned_by(present, &desired.owner) {
        metadata.insert("ownerReferences".to_owned(), json!([reference(&desired.owner)]));
    }
    if !metadata.is_empty() {
        change.insert("metadata".to_owned(), Value::Object(metadata));
    }

    let before = present.as_written();
    let mut spec = desired.spec.clone();
    spec.queue.clone_from(&before.queue);
    spec.mark_unschedulable = before.mark_unschedulable;
    spec.scheduling_backoff = before.scheduling_backoff;
    let names_topology = spec
        .topology_constraint
        .as_ref()
        .is_some_and(|new| new.topology.is_some());
    if !names_topology {
        spec.topology_constraint.clone_from(&before.topology_constraint);
    }
    if let Some(spec) = difference(&json!(before), &json!(spec)) {
        change.insert("spec".to_owned(), spec);
    }
    (!change.is_empty()).then_some(Value::Object(change))
}

/// The minima of a semi-preemptible pod group that the desired state would raise. Admission refuses that, because it would make pods
/// non-preemptible that run beyond the quota of their queue.
pub(super) fn raised_core(desired: &DesiredPodGroup, present: &PodGroup) -> Vec<RaisedMinimum> {
    let before = present.as_written();
    let is_semi = |spec: &PodGroupSpec| spec.preemptibility == Some(Preemptibility::SemiPreemptible);
    match is_semi(&before) && is_semi(&desired.spec) {
        true => raised_minima(&json!({ "spec": before }), &json!({ "spec": desired.spec })),
        false => Vec::new(),
    }
}

/// The desired state with the minima of before.
pub(super) fn with_old_core(mut desired: DesiredPodGroup, raised: &[RaisedMinimum]) -> DesiredPodGroup {
    let spec = &mut desired.spec;
    for minimum in raised {
        let sub_group = spec.sub_groups.iter_mut();
        let sub_group = sub_group
            .into_iter()
            .find(|group| Some(&group.name) == minimum.sub_group.as_ref());
        let field = match (sub_group, minimum.kind) {
            (Some(group), MinimumKind::Pods) => &mut group.min_member,
            (Some(group), MinimumKind::SubGroups) => &mut group.min_sub_group,
            (None, MinimumKind::Pods) => &mut spec.min_member,
            (None, MinimumKind::SubGroups) => &mut spec.min_sub_group,
        };
        *field = minimum.written.and_then(|written| i32::try_from(written).ok());
    }
    desired
}

/// The merge patch for the pod; `None` if nothing changes.
pub fn pod_patch(desired: &DesiredPodGroup, pod: &Pod) -> Option<Value> {
    let labels = &pod.metadata.labels;
    let sub_group = desired
        .sub_group
        .as_deref()
        .filter(|name| labels.text(keys::SUB_GROUP_NAME) != Some(name));
    let cleared = desired.clears_sub_group && desired.sub_group.is_none() && labels.get(keys::SUB_GROUP_NAME).is_some();
    if pod.pod_group() == Some(&desired.name) && sub_group.is_none() && !cleared {
        return None;
    }
    // The uid keeps the patch from changing a new pod of the same name.
    let mut metadata = json!({
        "uid": pod.metadata.uid.as_deref(),
        "annotations": { keys::POD_GROUP_NAME: desired.name },
    });
    if let Some(name) = sub_group {
        metadata["labels"] = json!({ keys::SUB_GROUP_NAME: name });
    } else if cleared {
        metadata["labels"] = json!({ keys::SUB_GROUP_NAME: null });
    }
    Some(json!({ "metadata": metadata }))
}

fn set<'a>(metadata: &mut Map<String, Value>, key: &str, entries: impl Iterator<Item = (&'a String, &'a String)>) {
    let entries: Map<String, Value> = entries
        .map(|(key, value)| (key.clone(), Value::from(value.as_str())))
        .collect();
    if !entries.is_empty() {
        metadata.insert(key.to_owned(), Value::Object(entries));
    }
}

fn reference(owner: &OwnerRef) -> Value {
    json!({ "apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid })
}

fn is_owned_by(group: &PodGroup, owner: &OwnerRef) -> bool {
    match group.metadata.owner_references.as_slice() {
        [only] => {
            *only.api_version == owner.api_version
                && *only.kind == owner.kind
                && *only.name == owner.name
                && *only.uid == owner.uid
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use kai_api::crd::TopologyConstraint;

    use super::super::desired_pod_group::leaf;
    use super::*;

    fn desired() -> DesiredPodGroup {
        DesiredPodGroup {
            namespace: "ns".to_owned(),
            name: "pg".to_owned(),
            owner: OwnerRef {
                api_version: "batch/v1".to_owned(),
                kind: "Job".to_owned(),
                name: "j".to_owned(),
                uid: "u".to_owned(),
            },
            labels: [
                ("kai.scheduler/queue", "b"),
                ("kai.scheduler/node-pool", "p"),
                ("team", "x"),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
            annotations: [("note".to_owned(), "n".to_owned())].into(),
            spec: PodGroupSpec {
                min_member: Some(2),
                queue: Some("b".to_owned()),
                priority_class_name: Some("train".to_owned()),
                ..PodGroupSpec::default()
            },
            sub_group: None,
            clears_sub_group: false,
            origins: super::super::Origins::default(),
        }
    }

    fn change_of(present: Value) -> Option<Value> {
        let present: PodGroup = serde_json::from_value(present).unwrap();
        pod_group_patch(&desired(), &present, &GroupingOptions::default())
    }

    #[test]
    fn a_group_as_planned_stays_untouched() {
        let mut present = pod_group_body(&desired());
        assert_eq!(change_of(present.clone()), None);
        present["metadata"]["annotations"]["kai.scheduler/last-start-timestamp"] = "2026-01-01T00:00:00Z".into();
        present["spec"]["topologyConstraint"] = json!({});
        assert_eq!(change_of(present), None);
    }

    #[test]
    fn what_others_decide_is_kept() {
        let present = json!({
            "metadata": {
                "labels": { "kai.scheduler/queue": "moved", "team": "x", "more": "y" },
                "annotations": { "note": "n" },
                "ownerReferences": [{ "apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true }],
            },
            "spec": {
                "minMember": 2, "queue": "moved", "priorityClassName": "train", "markUnschedulable": false,
                "schedulingBackoff": 1, "topologyConstraint": { "topology": "t", "requiredTopologyLevel": "rack" },
            },
        });
        assert_eq!(change_of(present), None);
    }

    #[test]
    fn the_rest_is_put_right() {
        let present = json!({
            "metadata": { "labels": { "team": "old" }, "annotations": { "note": "n" },
                          "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "v" }] },
            "spec": { "minSubGroup": 1, "queue": "moved", "priorityClassName": "train", "preemptionDelay": "1m",
                      "subGroups": [{ "name": "a", "minMember": 1 }] },
        });
        let expect = json!({
            "metadata": { "labels": { "team": "x", "kai.scheduler/queue": "b" },
                          "ownerReferences": [{ "apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u" }] },
            "spec": { "minMember": 2, "minSubGroup": null, "preemptionDelay": null, "subGroups": null },
        });
        assert_eq!(change_of(present), Some(expect));
    }

    #[test]
    fn a_named_topology_wins_over_the_present_one() {
        let mut desired = desired();
        desired.spec.topology_constraint = Some(TopologyConstraint {
            topology: Some("new".to_owned()),
            ..TopologyConstraint::default()
        });
        let mut present = pod_group_body(&desired);
        present["spec"]["topologyConstraint"] = json!({ "topology": "t", "requiredTopologyLevel": "rack" });
        let present: PodGroup = serde_json::from_value(present).unwrap();
        let expect = json!({ "spec": { "topologyConstraint": { "topology": "new", "requiredTopologyLevel": null } } });
        assert_eq!(
            pod_group_patch(&desired, &present, &GroupingOptions::default()),
            Some(expect)
        );
    }

    #[test]
    fn a_semi_preemptible_group_keeps_its_core() {
        let with = |preemptibility: Preemptibility, root: (Option<i32>, Option<i32>), leaves: &[(&str, i32)]| {
            let mut desired = desired();
            desired.spec.preemptibility = Some(preemptibility);
            (desired.spec.min_member, desired.spec.min_sub_group) = root;
            desired.spec.sub_groups = leaves.iter().map(|(name, min)| leaf(*name, *min)).collect();
            desired
        };
        let semi = |root, leaves: &[(&str, i32)]| with(Preemptibility::SemiPreemptible, root, leaves);
        // The raised fields, and the change that remains.
        let check = |before: DesiredPodGroup, after: DesiredPodGroup, raised: &[&str], change: Option<Value>| {
            let present: PodGroup = serde_json::from_value(pod_group_body(&before)).unwrap();
            let found = raised_core(&after, &present);
            let fields: Vec<String> = found.iter().map(RaisedMinimum::field).collect();
            assert_eq!(fields, raised);
            let kept = with_old_core(after, &found);
            assert_eq!(raised_core(&kept, &present), []);
            assert_eq!(pod_group_patch(&kept, &present, &GroupingOptions::default()), change);
        };
        let pods = |min| (Some(min), None);
        let of_sub_groups = |min| (None, min);
        check(semi(pods(2), &[]), semi(pods(3), &[]), &["spec.minMember"], None);
        check(semi((None, None), &[]), semi(pods(3), &[]), &["spec.minMember"], None);
        let lower = json!({ "spec": { "minMember": 1 } });
        check(semi(pods(2), &[]), semi(pods(1), &[]), &[], Some(lower));
        // What else changes is written: a new subgroup, and a lower minimum.
        check(
            semi(of_sub_groups(Some(1)), &[("a", 2), ("b", 2)]),
            semi(of_sub_groups(Some(3)), &[("a", 4), ("b", 1), ("c", 5)]),
            &["spec.minSubGroup", "spec.subGroups[a].minMember"],
            Some(json!({ "spec": { "subGroups": [
                { "name": "a", "minMember": 2 }, { "name": "b", "minMember": 1 }, { "name": "c", "minMember": 5 },
            ] } })),
        );
        let higher = json!({ "spec": { "minMember": 3 } });
        let preemptible = |min| with(Preemptibility::Preemptible, pods(min), &[]);
        check(preemptible(2), preemptible(3), &[], Some(higher));
    }

    #[test]
    fn a_pod_is_written_once() {
        let pod = |metadata: Value| -> Pod { serde_json::from_value(json!({ "metadata": metadata })).unwrap() };
        let mut desired = desired();
        desired.sub_group = Some("worker".to_owned());
        let expect = json!({ "metadata": {
            "uid": "u",
            "annotations": { "pod-group-name": "pg" },
            "labels": { "kai.scheduler/subgroup-name": "worker" },
        }});
        assert_eq!(pod_patch(&desired, &pod(json!({ "uid": "u" }))), Some(expect));
        let done =
            json!({ "annotations": { "pod-group-name": "pg" }, "labels": { "kai.scheduler/subgroup-name": "worker" } });
        assert_eq!(pod_patch(&desired, &pod(done.clone())), None);
        desired.sub_group = None;
        assert_eq!(pod_patch(&desired, &pod(done.clone())), None);
        desired.clears_sub_group = true;
        let cleared = json!({ "metadata": {
            "uid": null,
            "annotations": { "pod-group-name": "pg" },
            "labels": { "kai.scheduler/subgroup-name": null },
        }});
        assert_eq!(pod_patch(&desired, &pod(done)), Some(cleared));
        assert_eq!(
            pod_patch(&desired, &pod(json!({ "annotations": { "pod-group-name": "pg" } }))),
            None
        );
    }
}
