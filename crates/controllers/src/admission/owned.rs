//! The labels and annotations that only the scheduler writes, and the pods that only it makes. One table serves both the webhook and
//! the policies that hold while the webhook is away. Architecture invariant: what stands here decides where a pod runs and what it may
//! use, so no tenant writes it; a change of somebody else's object that leaves these keys alone is none of our business.

use kai_api::keys;
use serde_json::Value;

use super::review::{Finding, Operation, Request};
use super::share;
use super::trust::KUBELETS;
use super::view::{self, Place};

/// Keys, by name or by how they begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    pub(crate) place: Place,
    pub(crate) exact: &'static [&'static str],
    pub(crate) prefixes: &'static [&'static str],
}

/// Labels of pods.
pub(crate) const POD_LABELS: Keys = Keys {
    place: Place::Labels,
    exact: &[keys::GPU_GROUP],
    prefixes: &[keys::GPU_GROUP_PREFIX],
};
/// Annotations of pods.
pub(crate) const POD_ANNOTATIONS: Keys = Keys {
    place: Place::Annotations,
    exact: &[
        keys::RECEIVED_RESOURCE_TYPE,
        keys::RECEIVED_GPUS,
        keys::RESERVED_GPU,
        keys::RESERVATION_LAST_USER,
    ],
    prefixes: &[keys::NUMA_PREFIX],
};
/// Annotations of pod groups.
pub(crate) const POD_GROUP_ANNOTATIONS: Keys = Keys {
    place: Place::Annotations,
    exact: &[keys::LAST_START, keys::LAST_EVICTION, keys::STALE_SINCE],
    prefixes: &[],
};
/// Annotations of pods that their user writes at creation and nobody changes after: the scheduler counts by them, as by the rest of a
/// pod's spec, which Kubernetes does not let change either.
pub(crate) const FIXED_ANNOTATIONS: Keys = Keys {
    place: Place::Annotations,
    exact: &[
        keys::GPU_FRACTION,
        keys::GPU_MEMORY,
        keys::GPU_FRACTION_DEVICES,
        keys::GPU_FRACTION_CONTAINER,
        keys::SHARED_GPU_CONFIG_MAP,
    ],
    prefixes: &[],
};
/// Values of the label `app` by which helper pods of the scheduler are known.
pub(crate) const HELPERS: [&str; 2] = [keys::RESERVATION, keys::SCALING_POD];

/// What a tenant is told of a key that is not its own.
pub(crate) const WRITTEN_BY_US: &str = "only the scheduler writes this; remove it from the manifest, or from the template that \
                                        it was copied into";
/// What a tenant is told who takes such a key away.
pub(crate) const REMOVED_BY_US: &str = "only the scheduler changes or removes this; keep it as it is";
/// What a tenant is told who changes what is fixed.
pub(crate) const FIXED: &str =
    "a pod's GPU request can't change after the pod was created; delete the pod and create it anew";
/// What a tenant is told whose pod looks like one of ours.
pub(crate) const HELPER: &str = "this value marks helper pods of the scheduler; choose another";
/// What a tenant is told who says how its pod is doing.
pub(crate) const PHASE: &str =
    "only the pod's node says how the pod is doing, and the scheduler counts by it; leave it alone";
/// What a tenant is told who binds pods.
pub(crate) const BOUND_BY_TENANT: &str = "only schedulers of the whole cluster bind pods; it takes the right to create \
                                          pods/binding in all namespaces";
/// What a tenant is told who chooses a node.
pub(crate) const NODE_CHOSEN: &str = "the scheduler chooses the node; remove it, and use nodeSelector or affinity to say which \
                                      nodes will do";

impl Keys {
    pub(crate) fn contains(&self, key: &str) -> bool {
        self.exact.contains(&key) || self.prefixes.iter().any(|prefix| key.starts_with(prefix))
    }

    /// Keys that were added or given another value, and keys that were taken away.
    fn differences<'a>(&self, old: &'a Value, new: &'a Value) -> (Vec<&'a str>, Vec<&'a str>) {
        let of = |object: &'a Value| view::entries(object, self.place).filter(|(key, _)| self.contains(key));
        let changed = of(new).filter(|(key, value)| view::entry(old, self.place, key).as_ref() != Some(value));
        let removed = of(old).filter(|(key, _)| view::entry(new, self.place, key).is_none());
        (
            changed.map(|(key, _)| key).collect(),
            removed.map(|(key, _)| key).collect(),
        )
    }

    fn findings(&self, old: &Value, new: &Value) -> Vec<Finding> {
        let (changed, removed) = self.differences(old, new);
        let finding = |key: &str, text: &str| Finding::forbidden(format!("{}.{key}", self.place.path()), text);
        let changed = changed.into_iter().map(|key| match view::entry(old, self.place, key) {
            None => finding(key, WRITTEN_BY_US),
            Some(_) => finding(key, REMOVED_BY_US),
        });
        let removed = removed.into_iter().map(|key| finding(key, REMOVED_BY_US));
        changed.chain(removed).collect()
    }
}

/// What a user that is not one of ours may not do to a pod.
pub(crate) fn pod(request: &Request, scheduler_name: &str) -> Vec<Finding> {
    let (old, new) = (&request.old_object, &request.object);
    let mut findings = POD_LABELS.findings(old, new);
    findings.extend(POD_ANNOTATIONS.findings(old, new));
    findings.extend(helper(old, new));
    match request.operation {
        Operation::Create => {
            findings.extend(node_chosen(request, scheduler_name));
            findings.extend(slot(new, scheduler_name));
        }
        Operation::Update => {
            let (mut keys, removed) = FIXED_ANNOTATIONS.differences(old, new);
            keys.extend(removed);
            let path = FIXED_ANNOTATIONS.place.path();
            findings.extend(
                keys.iter()
                    .map(|key| Finding::forbidden(format!("{path}.{key}"), FIXED)),
            );
        }
        Operation::Delete | Operation::Connect => {}
    }
    findings
}

/// What a user that is not one of ours may not do to a pod group.
pub(crate) fn pod_group(request: &Request) -> Vec<Finding> {
    POD_GROUP_ANNOTATIONS.findings(&request.old_object, &request.object)
}

fn helper(old: &Value, new: &Value) -> Option<Finding> {
    let app = |object| view::entry(object, Place::Labels, keys::APP);
    let (old, new) = (app(old), app(new));
    let ours = |app: &Option<std::borrow::Cow<str>>| app.as_deref().is_some_and(|app| HELPERS.contains(&app));
    (old != new && (ours(&old) || ours(&new)))
        .then(|| Finding::forbidden(format!("metadata.labels.{}", keys::APP), HELPER))
}

/// A slot without a share would only keep others from theirs: no container starts with it.
fn slot(pod: &Value, scheduler_name: &str) -> Option<Finding> {
    let ours = view::text(pod, "/spec/schedulerName") == Some(scheduler_name);
    match ours && share::is_fractional(pod) {
        // Which container may have it is looked at with the rest of the pod.
        true => None,
        false => share::slots(pod, None),
    }
}

/// A kubelet tells the API server of its static pods, which of course have its node.
fn node_chosen(request: &Request, scheduler_name: &str) -> Option<Finding> {
    let of_kubelet = request.user_info.groups.iter().any(|group| group == KUBELETS);
    let ours = view::text(&request.object, "/spec/schedulerName") == Some(scheduler_name);
    let chosen = view::text(&request.object, "/spec/nodeName").is_some();
    (ours && chosen && !of_kubelet).then(|| Finding::forbidden("spec.nodeName", NODE_CHOSEN))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labelled(labels: Value, annotations: Value) -> Value {
        json!({"metadata": {"labels": labels, "annotations": annotations}, "spec": {"schedulerName": "kai-scheduler"}})
    }

    fn check(operation: Operation, old: Value, new: Value, expect: &[&str]) {
        let request = Request {
            operation,
            object: new,
            old_object: old,
            ..Request::default()
        };
        let fields: Vec<String> = pod(&request, "kai-scheduler")
            .into_iter()
            .map(|finding| finding.field)
            .collect();
        assert_eq!(fields, expect, "{request:?}");
    }

    #[test]
    fn what_a_tenant_may_not_create() {
        let create = |labels, annotations, expect: &[&str]| {
            check(Operation::Create, Value::Null, labelled(labels, annotations), expect);
        };
        create(
            json!({"app": "mine", "kai.scheduler/queue": "q"}),
            json!({"gpu-fraction": "0.5"}),
            &[],
        );
        create(
            json!({"runai-gpu-group": "g"}),
            json!({}),
            &["metadata.labels.runai-gpu-group"],
        );
        create(
            json!({"runai-gpu-group/g": "g"}),
            json!({}),
            &["metadata.labels.runai-gpu-group/g"],
        );
        create(json!({"runai-gpu-groups": "g"}), json!({}), &[]);
        create(
            json!({"app": "kai-resource-reservation"}),
            json!({}),
            &["metadata.labels.app"],
        );
        create(json!({"app": "scaling-pod"}), json!({}), &["metadata.labels.app"]);
        for key in [
            "received-resource-type",
            "kai.scheduler/received-gpus",
            "run.ai/reserve_for_gpu_index",
            "kai.scheduler/last-user",
            "kai.scheduler/numa-placement-predicted",
            "kai.scheduler/numa-placement-anything",
        ] {
            create(json!({}), json!({key: "x"}), &[&format!("metadata.annotations.{key}")]);
        }
        // The mutating webhook writes it, and it may have been written before.
        create(json!({}), json!({"runai/shared-gpu-configmap": "x"}), &[]);
    }

    #[test]
    fn a_node_is_chosen_by_the_scheduler() {
        let pod = |scheduler: &str| json!({"spec": {"schedulerName": scheduler, "nodeName": "n"}});
        check(Operation::Create, Value::Null, pod("kai-scheduler"), &["spec.nodeName"]);
        check(Operation::Create, Value::Null, pod("default-scheduler"), &[]);
        check(Operation::Update, pod("kai-scheduler"), pod("kai-scheduler"), &[]);
        let static_pod = Request {
            object: pod("kai-scheduler"),
            user_info: super::super::review::User {
                username: "system:node:n".into(),
                groups: vec![KUBELETS.into()],
            },
            ..Request::default()
        };
        assert!(super::pod(&static_pod, "kai-scheduler").is_empty());
    }

    #[test]
    fn an_edit_that_keeps_our_keys_is_fine_and_one_that_touches_them_is_not() {
        let update = |labels: Value, annotations: Value, expect: &[&str]| {
            let old = labelled(
                json!({"runai-gpu-group": "g", "team": "a"}),
                json!({"received-resource-type": "Fraction", "gpu-fraction": "0.5", "runai/shared-gpu-configmap": "x"}),
            );
            check(Operation::Update, old, labelled(labels, annotations), expect);
        };
        let kept =
            json!({"received-resource-type": "Fraction", "gpu-fraction": "0.5", "runai/shared-gpu-configmap": "x"});
        update(json!({"runai-gpu-group": "g", "team": "b"}), kept.clone(), &[]);
        update(
            json!({"runai-gpu-group": "other"}),
            kept.clone(),
            &["metadata.labels.runai-gpu-group"],
        );
        update(json!({"team": "b"}), kept.clone(), &["metadata.labels.runai-gpu-group"]);
        update(
            json!({"runai-gpu-group": "g"}),
            json!({"gpu-fraction": "0.1", "runai/shared-gpu-configmap": "y", "gpu-memory": "1"}),
            &[
                "metadata.annotations.received-resource-type",
                "metadata.annotations.gpu-fraction",
                "metadata.annotations.gpu-memory",
                "metadata.annotations.runai/shared-gpu-configmap",
            ],
        );
        update(
            json!({"runai-gpu-group": "g", "app": "kai-resource-reservation"}),
            kept,
            &["metadata.labels.app"],
        );
    }

    #[test]
    fn pod_groups_keep_the_schedulers_notes() {
        let request = |annotations: Value| Request {
            operation: Operation::Update,
            old_object: json!({"metadata": {"annotations": {"kai.scheduler/last-start-timestamp": "t"}}}),
            object: json!({"metadata": {"annotations": annotations}}),
            ..Request::default()
        };
        assert!(pod_group(&request(json!({"kai.scheduler/last-start-timestamp": "t", "a": "b"}))).is_empty());
        assert_eq!(
            pod_group(&request(json!({"kai.scheduler/last-start-timestamp": "u"}))).len(),
            1
        );
        assert_eq!(pod_group(&request(json!({}))).len(), 1);
        assert_eq!(
            pod_group(&request(json!({
                "kai.scheduler/last-start-timestamp": "t",
                "kai.scheduler/last-eviction-timestamp": "t",
                "kai.scheduler/stale-podgroup-timestamp": "t"
            })))
            .len(),
            2
        );
    }
}
