//! The labels and annotations that only the scheduler writes, and the pods that only the scheduler creates. The tables serve the
//! webhook and the ValidatingAdmissionPolicies, which hold while the webhook is down. Architecture invariant: these keys decide where a
//! pod runs and which GPU it may use, so no tenant writes them. A change that leaves these keys alone is admitted.

use kai_api::ReservationPods;
use kai_api::keys::{self, KeySet};
use serde_json::Value;

use super::gpu_share;
use super::review::{FieldError, Operation, Request};
use super::trusted_users::KUBELET_GROUP;
use super::unstructured::{self, MetadataMap};

/// Protected labels or annotations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProtectedKeys {
    pub(crate) map: MetadataMap,
    pub(crate) keys: KeySet,
}

/// Protected labels of pods.
pub(crate) const POD_LABELS: ProtectedKeys = ProtectedKeys {
    map: MetadataMap::Labels,
    keys: keys::SCHEDULER_POD_LABELS,
};
/// Protected annotations of pods.
pub(crate) const POD_ANNOTATIONS: ProtectedKeys = ProtectedKeys {
    map: MetadataMap::Annotations,
    keys: keys::SCHEDULER_POD_ANNOTATIONS,
};
/// Protected annotations of pod groups.
pub(crate) const POD_GROUP_ANNOTATIONS: ProtectedKeys = ProtectedKeys {
    map: MetadataMap::Annotations,
    keys: KeySet {
        exact: &[keys::LAST_START, keys::LAST_EVICTION, keys::STALE_SINCE],
        prefixes: &[],
        containers: &[],
    },
};
/// The annotations of a GPU request. Kubernetes fixes the rest of a pod's resource requests the same way.
pub(crate) const FIXED_ANNOTATIONS: ProtectedKeys = ProtectedKeys {
    map: MetadataMap::Annotations,
    keys: keys::GPU_REQUEST_ANNOTATIONS,
};
/// The GPUs and limits of a bound pod. Of the accounts in the installation's namespaces only the binder's writes them, so that no other
/// component, such as the agent of a node, can lift a limit.
pub(crate) const BINDER_ANNOTATIONS: ProtectedKeys = ProtectedKeys {
    map: MetadataMap::Annotations,
    keys: keys::BINDER_POD_ANNOTATIONS,
};
/// Values of the label `app` that mark the scheduler's own pods.
pub(crate) fn own_apps(reservation_pods: &ReservationPods) -> [&str; 2] {
    [&reservation_pods.app_label, keys::SCALING_POD]
}

/// Denial of a protected key that a tenant adds.
pub(crate) const KEY_ADDED: &str = "only the scheduler writes this; remove it from the manifest, or from the template that \
                                        it was copied into";
/// Denial of a change or removal of a protected key.
pub(crate) const KEY_CHANGED: &str = "only the scheduler changes or removes this; keep it as it is";
/// Denial of GPUs or limits that another account of the installation writes.
pub(crate) const BINDER_KEY_CHANGED: &str = "only the binder's account writes this; keep it as it is";
/// Denial of a changed GPU request.
pub(crate) const GPU_REQUEST_CHANGED: &str =
    "a pod's GPU request can't change after the pod was created; delete the pod and create it anew";
/// Denial of a tenant's pod that is labelled as the scheduler's own.
pub(crate) const OWN_APP_USED: &str =
    "this value marks reservation pods and scaling pods of the scheduler; choose another";
/// Denial of a tenant's write to the phase of a pod.
pub(crate) const PHASE_WRITTEN: &str =
    "only the pod's node says how the pod is doing, and the scheduler counts by it; leave it alone";
/// Denial of a tenant's binding.
pub(crate) const BINDING_FORBIDDEN: &str = "only schedulers of the whole cluster bind pods; it takes the right to create \
                                          pods/binding in all namespaces";
/// Denial of a pod with a node name.
pub(crate) const NODE_NAME_SET: &str = "the scheduler chooses the node; remove it, and use nodeSelector or affinity to say which \
                                      nodes will do";

impl ProtectedKeys {
    /// The protected keys that were added or changed, and those that were removed.
    fn differences<'a>(&self, old: &'a Value, new: &'a Value) -> (Vec<&'a str>, Vec<&'a str>) {
        let of = |object: &'a Value| unstructured::entries(object, self.map).filter(|(key, _)| self.keys.contains(key));
        let changed = of(new).filter(|(key, value)| unstructured::entry(old, self.map, key).as_ref() != Some(value));
        let removed = of(old).filter(|(key, _)| unstructured::entry(new, self.map, key).is_none());
        (
            changed.map(|(key, _)| key).collect(),
            removed.map(|(key, _)| key).collect(),
        )
    }

    fn errors(&self, old: &Value, new: &Value) -> Vec<FieldError> {
        let (changed, removed) = self.differences(old, new);
        let error = |key: &str, text: &str| FieldError::forbidden(format!("{}.{key}", self.map.path()), text);
        let changed = changed
            .into_iter()
            .map(|key| match unstructured::entry(old, self.map, key) {
                None => error(key, KEY_ADDED),
                Some(_) => error(key, KEY_CHANGED),
            });
        let removed = removed.into_iter().map(|key| error(key, KEY_CHANGED));
        changed.chain(removed).collect()
    }
}

/// Reviews a pod write of an untrusted user.
pub(crate) fn validate_pod(
    request: &Request,
    scheduler_name: &str,
    reservation_pods: &ReservationPods,
) -> Vec<FieldError> {
    let (old, new) = (&request.old_object, &request.object);
    let mut errors = POD_LABELS.errors(old, new);
    let mut annotations = POD_ANNOTATIONS.errors(old, new);
    if is_fake_reservation(request, reservation_pods) {
        let allowed = format!("{}.{}", POD_ANNOTATIONS.map.path(), keys::RESERVED_GPU);
        annotations.retain(|error| error.field != allowed);
    }
    errors.extend(annotations);
    errors.extend(own_app_used(old, new, own_apps(reservation_pods)));
    match request.operation {
        Operation::Create => {
            errors.extend(node_name_set(request, scheduler_name));
            errors.extend(share_device_without_share(new, scheduler_name));
        }
        Operation::Update => {
            let (mut keys, removed) = FIXED_ANNOTATIONS.differences(old, new);
            keys.extend(removed);
            let path = FIXED_ANNOTATIONS.map.path();
            errors.extend(
                keys.iter()
                    .map(|key| FieldError::forbidden(format!("{path}.{key}"), GPU_REQUEST_CHANGED)),
            );
        }
        Operation::Delete | Operation::Connect => {}
    }
    errors
}

/// Whether the pod is a reservation pod on a node of fake-gpu-operator, which annotates it with its GPU. The binder gives only these pods
/// this node selector, and Kubernetes fixes it at creation.
fn is_fake_reservation(request: &Request, reservation_pods: &ReservationPods) -> bool {
    let selector = &request.old_object["spec"]["nodeSelector"];
    request.operation == Operation::Update
        && request.namespace == reservation_pods.namespace
        && selector.get(keys::NODE_FAKE_GPU).is_some()
}

/// Reviews a pod group write of an untrusted user.
pub(crate) fn validate_pod_group(request: &Request) -> Vec<FieldError> {
    POD_GROUP_ANNOTATIONS.errors(&request.old_object, &request.object)
}

fn own_app_used(old: &Value, new: &Value, own_apps: [&str; 2]) -> Option<FieldError> {
    let app = |object| unstructured::entry(object, MetadataMap::Labels, keys::APP);
    let (old, new) = (app(old), app(new));
    let ours = |app: &Option<std::borrow::Cow<str>>| app.as_deref().is_some_and(|app| own_apps.contains(&app));
    (old != new && (ours(&old) || ours(&new)))
        .then(|| FieldError::forbidden(format!("metadata.labels.{}", keys::APP), OWN_APP_USED))
}

/// A share device without a GPU share is useless: no container starts with it, and it is missing for other pods.
fn share_device_without_share(pod: &Value, scheduler_name: &str) -> Option<FieldError> {
    let ours = unstructured::text(pod, "/spec/schedulerName") == Some(scheduler_name);
    match ours && gpu_share::is_fractional(pod) {
        // `pod_validate` checks which container requests the share device.
        true => None,
        false => gpu_share::validate_share_devices(pod, None),
    }
}

/// Kubelets may create pods with a node name: the mirror pods of their static pods.
fn node_name_set(request: &Request, scheduler_name: &str) -> Option<FieldError> {
    let of_kubelet = request.user_info.groups.iter().any(|group| group == KUBELET_GROUP);
    let ours = unstructured::text(&request.object, "/spec/schedulerName") == Some(scheduler_name);
    let chosen = unstructured::text(&request.object, "/spec/nodeName").is_some();
    (ours && chosen && !of_kubelet).then(|| FieldError::forbidden("spec.nodeName", NODE_NAME_SET))
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
        let fields: Vec<String> = validate_pod(&request, "kai-scheduler", &ReservationPods::default())
            .into_iter()
            .map(|error| error.field)
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
            "kai.scheduler/gpu-limits",
            "kai.scheduler/gpu-enforcement-tier",
            "kai.scheduler/gpu-compute-mode",
            "nvidia.com/container.main.gpus.devices",
            "run.ai/reserve_for_gpu_index",
            "kai.scheduler/last-user",
            "kai.scheduler/numa-placement-predicted",
            "kai.scheduler/numa-placement-anything",
        ] {
            create(json!({}), json!({key: "x"}), &[&format!("metadata.annotations.{key}")]);
        }
        for key in [
            "nvidia.com/container.main.gpu-memory.request",
            "nvidia.com/container.main.gpu-memory.limit",
            "nvidia.com/container.main.gpu-compute.mode",
            "kai.scheduler/container.main.gpu-memory.portion.limit",
            "kai.scheduler/gpu-enforcement",
        ] {
            create(json!({}), json!({key: "x"}), &[]);
        }
        // The mutating webhook writes the annotation before validation, and may run twice.
        create(json!({}), json!({"runai/shared-gpu-configmap": "x"}), &[]);
    }

    #[test]
    fn fake_gpu_operator_annotates_reservation_pods_on_its_nodes() {
        let check = |namespace: &str, selector: Value, key: &str, expect: usize| {
            let pod =
                |annotations| json!({"metadata": {"annotations": annotations}, "spec": {"nodeSelector": selector}});
            let request = Request {
                operation: Operation::Update,
                namespace: namespace.to_owned(),
                old_object: pod(json!({})),
                object: pod(json!({key: "x"})),
                ..Request::default()
            };
            let errors = validate_pod(&request, "kai-scheduler", &ReservationPods::default());
            assert_eq!(errors.len(), expect, "{request:?}");
        };
        let fake = || json!({"run.ai/fake.gpu": "true"});
        check(keys::RESERVATION, fake(), "run.ai/reserve_for_gpu_index", 0);
        check(keys::RESERVATION, fake(), "kai.scheduler/received-gpus", 1);
        check(keys::RESERVATION, Value::Null, "run.ai/reserve_for_gpu_index", 1);
        check("tenant", fake(), "run.ai/reserve_for_gpu_index", 1);
    }

    #[test]
    fn the_label_of_helper_pods_is_the_installations() {
        let reservation_pods = ReservationPods {
            app_label: "holder".to_owned(),
            ..ReservationPods::default()
        };
        let errors = |app: &str| {
            let request = Request {
                object: labelled(json!({"app": app}), json!({})),
                ..Request::default()
            };
            validate_pod(&request, "kai-scheduler", &reservation_pods).len()
        };
        assert_eq!(
            (
                errors("holder"),
                errors("scaling-pod"),
                errors("kai-resource-reservation")
            ),
            (1, 1, 0)
        );
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
                groups: vec![KUBELET_GROUP.into()],
            },
            ..Request::default()
        };
        assert!(super::validate_pod(&static_pod, "kai-scheduler", &ReservationPods::default()).is_empty());
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
    fn a_request_of_a_container_is_fixed_as_well() {
        let key = |name: &str| format!("nvidia.com/container.{name}.gpu-memory.request");
        let pod = |annotations| labelled(json!({}), annotations);
        let old = || pod(json!({key("a"): "1Gi", "kai.scheduler/gpu-enforcement": "required"}));
        let field = |key: &str| format!("metadata.annotations.{key}");
        check(Operation::Update, old(), old(), &[]);
        let changed = pod(json!({key("a"): "2Gi", "kai.scheduler/gpu-enforcement": "required"}));
        check(Operation::Update, old(), changed, &[&field(&key("a"))]);
        let moved = pod(json!({key("b"): "1Gi"}));
        let fields = [
            &*field(&key("b")),
            "metadata.annotations.kai.scheduler/gpu-enforcement",
            &*field(&key("a")),
        ];
        check(Operation::Update, old(), moved, &fields);
        let limited =
            pod(json!({key("a"): "1Gi", "kai.scheduler/gpu-enforcement": "required", "gpu-memory.limit": "2Gi"}));
        check(
            Operation::Update,
            old(),
            limited,
            &["metadata.annotations.gpu-memory.limit"],
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
        assert!(validate_pod_group(&request(json!({"kai.scheduler/last-start-timestamp": "t", "a": "b"}))).is_empty());
        assert_eq!(
            validate_pod_group(&request(json!({"kai.scheduler/last-start-timestamp": "u"}))).len(),
            1
        );
        assert_eq!(validate_pod_group(&request(json!({}))).len(), 1);
        assert_eq!(
            validate_pod_group(&request(json!({
                "kai.scheduler/last-start-timestamp": "t",
                "kai.scheduler/last-eviction-timestamp": "t",
                "kai.scheduler/stale-podgroup-timestamp": "t"
            })))
            .len(),
            2
        );
    }
}
