//! Validation of the scheduler's pods: GPU requests, the scheduler's own keys, GPUs named by hand, queues that the namespace may not
//! use. An update is not denied for a problem that the pod had before; otherwise nobody could remove its finalizers.

use kai_api::{GpuRequestKinds, GpuShareAnnotations, GpuSharingMode, RawGpuRequest, TextMap, gpu_request, keys};
use kai_engine::model::{GpuFraction, GpuRequest};
use serde_json::Value;

use super::args::{Feature, Settings};
use super::queue_lister::QueueLister;
use super::review::{FieldError, Operation, Request, Verdict};
use super::unstructured::{self, MetadataMap};
use super::{gpu_share, ignored_values, priority_class, protected_keys, visible_devices};

/// Reviews a pod.
pub(super) fn validate(request: &Request, settings: &Settings, queues: &dyn QueueLister) -> Verdict {
    match request.operation {
        Operation::Delete | Operation::Connect => return Verdict::default(),
        Operation::Create | Operation::Update => {}
    }
    let mut errors = match settings.trusts(&request.user_info) {
        true => Vec::new(),
        false => protected_keys::validate_pod(request, &settings.scheduler_name, &settings.reservation_pods),
    };
    let ours = unstructured::text(&request.object, "/spec/schedulerName") == Some(&settings.scheduler_name);
    if ours {
        let before = match request.operation {
            Operation::Update => content(&request.old_object, settings, Operation::Update),
            Operation::Create | Operation::Delete | Operation::Connect => None,
        };
        let after = content(&request.object, settings, request.operation);
        errors.extend(after.filter(|error| Some(error) != before.as_ref()));
        errors.extend(queue(request, settings, queues));
        errors.extend(priority_class::validate_pod(request));
    }
    let warnings = match (ours, request.operation) {
        (true, Operation::Create) => ignored_values::pod(&request.object, &queues.priority_classes()),
        _ => Vec::new(),
    };
    Verdict::of(&request.object_name("Pod"), &errors).with_warnings(warnings)
}

/// The first error in the pod itself, without other objects.
fn content(pod: &Value, settings: &Settings, operation: Operation) -> Option<FieldError> {
    if let Err(error) = gpus(pod, settings.gpu_sharing, operation) {
        return Some(error);
    }
    let container = match gpu_share::is_fractional(pod) {
        true => gpu_share::container(pod),
        false => Ok(None),
    };
    match container {
        Err(error) => Some(error),
        Ok(container) => {
            let share_devices = container.and_then(|container| {
                gpu_share::validate_share_devices(pod, Some(container))
                    .or_else(|| gpu_share::validate_enforcement(pod, container, settings.share_devices))
            });
            share_devices.or_else(|| match settings.block_visible_devices {
                Feature::On => visible_devices::validate(pod, container),
                Feature::Off => None,
            })
        }
    }
}

/// KAI's checks in KAI's order, then the checks that the scheduler would make later.
fn gpus(pod: &Value, mode: GpuSharingMode, operation: Operation) -> Result<(), FieldError> {
    let field = |key: &str| format!("metadata.annotations.{key}");
    let annotations = gpu_share::request_annotations(pod);
    let share = GpuShareAnnotations::of(&annotations);
    if let (Some(key), false) = (share.share_key(), mode.shares()) {
        let text = "sharing of GPUs is turned off in this cluster; request whole GPUs, or ask an administrator to turn it on \
                    (global.gpuSharingMode)";
        return Err(FieldError::invalid(field(key), text));
    }
    let mps = unstructured::entry(pod, MetadataMap::Annotations, keys::MPS);
    if share.share_key().is_none() && mps.as_deref() == Some("true") {
        let text = "it is for pods that share a GPU; remove it, or add gpu-fraction or gpu-memory";
        return Err(FieldError::invalid(field(keys::MPS), text));
    }
    let asked = |wanted: fn(&str) -> bool| gpu_share::resource_requests(pod).any(|(_, _, name, _)| wanted(name));
    let kinds = GpuRequestKinds {
        share,
        whole: asked(keys::is_gpu_resource),
        mig: asked(|name| name.starts_with(keys::MIG_PREFIX)),
    };
    if let Some((key, error)) = kinds.share_conflict() {
        return Err(FieldError::invalid(field(key), error.to_string()));
    }
    // KAI checks the amount before the number of devices, so the first pass reads the request without the latter.
    let amount = annotations.iter().filter(|(key, _)| *key != keys::GPU_FRACTION_DEVICES);
    readable(
        &amount.map(|(key, value)| (key.into(), value.clone())).collect(),
        operation,
    )?;
    readable(&annotations, operation)
}

/// Checks that the scheduler can read the annotations of a GPU request, and on creation that they fit each other.
fn readable(annotations: &TextMap, operation: Operation) -> Result<(), FieldError> {
    let invalid = |(field, error): (String, kai_api::Error)| FieldError::invalid(field, error.to_string());
    let ask = RawGpuRequest {
        annotations,
        whole: 0,
        mig: Vec::new(),
    };
    let request = gpu_request(&ask).map_err(invalid)?;
    if matches!(request, GpuRequest::Fraction { fraction, .. } if fraction == GpuFraction::WHOLE) {
        // The scheduler could treat a fraction of 1 as a share, but KAI denies it, and a whole GPU needs no reservation.
        return Err(FieldError::invalid(
            format!("metadata.annotations.{}", keys::GPU_FRACTION),
            "it is a whole GPU; request the resource nvidia.com/gpu instead, or write a decimal below 1",
        ));
    }
    match operation {
        Operation::Create => GpuShareAnnotations::of(annotations)
            .check_created(&request)
            .map_err(invalid),
        // Binders add annotations for the container. Users can't change a GPU request.
        Operation::Update | Operation::Delete | Operation::Connect => Ok(()),
    }
}

fn queue(request: &Request, settings: &Settings, queues: &dyn QueueLister) -> Option<FieldError> {
    let queue = unstructured::entry(&request.object, MetadataMap::Labels, &settings.queue_label)?;
    if unstructured::entry(&request.old_object, MetadataMap::Labels, &settings.queue_label).as_ref() == Some(&queue) {
        return None;
    }
    let field = format!("metadata.labels.{}", settings.queue_label);
    super::queue::access(queues, &queue, &request.namespace, field)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::review::{Decision, User};
    use super::*;

    fn settings() -> Settings {
        Settings {
            gpu_sharing: GpuSharingMode::NonMemoryEnforced,
            ..Settings::default()
        }
    }

    fn pod(annotations: Value, container: Value) -> Value {
        json!({
            "metadata": {"name": "p", "namespace": "a", "annotations": annotations},
            "spec": {"schedulerName": "kai-scheduler", "containers": [container]},
        })
    }

    fn message(request: &Request, settings: &Settings) -> String {
        match validate(request, settings, &Vec::new()).decision {
            Decision::Denied { message, .. } => message,
            Decision::Allowed => String::new(),
            Decision::Patched(_) => panic!("validation changes nothing"),
        }
    }

    fn create(pod: Value) -> Request {
        Request {
            object: pod,
            namespace: "a".into(),
            ..Request::default()
        }
    }

    fn check(annotations: Value, container: Value, expect: &str) {
        let message = message(&create(pod(annotations.clone(), container)), &settings());
        match expect {
            "" => assert_eq!(message, "", "{annotations}"),
            words => assert!(
                message.starts_with("Pod a/p: ") && message.contains(words),
                "{annotations}: {message}"
            ),
        }
    }

    #[test]
    fn requests_that_are_fine() {
        check(json!({}), json!({}), "");
        check(json!({}), json!({"resources": {"limits": {"nvidia.com/gpu": 8}}}), "");
        for fraction in ["0.5", ".5", "5e-1", "0.000001", "0.999999", "+0.5"] {
            check(json!({"gpu-fraction": fraction}), json!({}), "");
        }
        check(
            json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "8", "mps": "true"}),
            json!({}),
            "",
        );
        check(
            json!({"gpu-memory": "4096", "gpu-fraction-num-devices": "1"}),
            json!({}),
            "",
        );
        check(json!({"mps": "false"}), json!({}), "");
    }

    #[test]
    fn amounts_that_are_none() {
        for fraction in [
            "NaN", "nan", "inf", "-Inf", "0", "-0.5", "0x1p-1", "0.5.5", "half", "", "500m", "1e-300", "５",
        ] {
            check(json!({"gpu-fraction": fraction}), json!({}), "gpu-fraction: ");
        }
        for fraction in [
            "1.5",
            "2",
            "1e308",
            "1e99999999999",
            "99999999999999999999999999999999999999999",
        ] {
            check(json!({"gpu-fraction": fraction}), json!({}), "gpu-fraction: ");
        }
        for fraction in ["1", "1.0", "10e-1", "0.9999999999999"] {
            check(
                json!({"gpu-fraction": fraction}),
                json!({}),
                "gpu-fraction: it is a whole GPU",
            );
        }
        for memory in [
            "0",
            "-1",
            "+1",
            "1.5",
            "2Gi",
            "NaN",
            "0x10",
            "",
            "99999999999999999999",
            "4294967296",
        ] {
            check(json!({"gpu-memory": memory}), json!({}), "gpu-memory: ");
        }
        for devices in ["0", "-1", "+1", "1.5", "NaN", "65537", "18446744073709551616", ""] {
            let request = json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": devices});
            check(request, json!({}), "gpu-fraction-num-devices: ");
        }
        for odd in [json!(0.5), json!(null), json!({"a": 1}), json!(true)] {
            let message = message(&create(pod(json!({"gpu-memory": odd}), json!({}))), &settings());
            assert!(message.contains("gpu-memory: "), "{odd}: {message}");
        }
    }

    #[test]
    fn requests_that_exclude_each_other() {
        let whole = json!({"resources": {"limits": {"nvidia.com/gpu": 1}}});
        check(json!({"gpu-fraction": "0.5"}), whole.clone(), "whole GPUs");
        check(json!({"gpu-memory": "100"}), whole, "whole GPUs");
        let of_another_vendor = json!({"resources": {"limits": {"amd.com/gpu": 1}}});
        check(json!({"gpu-fraction": "0.5"}), of_another_vendor, "whole GPUs");
        let no_gpu = json!({"resources": {"limits": {"example.com/vgpu": 1}}});
        check(json!({"gpu-fraction": "0.5"}), no_gpu, "");
        let slice = json!({"resources": {"requests": {"nvidia.com/mig-1g.5gb": 1}}});
        check(json!({"gpu-memory": "100"}), slice, "MIG slices");
        check(
            json!({"gpu-fraction": "0.5", "gpu-memory": "100"}),
            json!({}),
            "gpu-memory: it can't be combined",
        );
        check(
            json!({"gpu-fraction-num-devices": "2"}),
            json!({}),
            "gpu-fraction-num-devices: it needs",
        );
        check(json!({"mps": "true"}), json!({}), "mps: it is for pods that share");
        check(
            json!({"gpu-fraction": "0.5", "gpu-fraction-container-name": "x"}),
            json!({}),
            "container-name: the pod has no",
        );
    }

    #[test]
    fn slots_are_not_asked_for_by_hand() {
        let share_devices =
            |amount: Value| json!({"name": "c", "resources": {"limits": {"kai.scheduler/gpu-share": amount}}});
        let half = json!({"gpu-fraction": "0.5"});
        check(half.clone(), share_devices(json!("1")), "");
        check(half.clone(), share_devices(json!(1)), "");
        check(
            half.clone(),
            share_devices(json!("2")),
            "gpu-share: the scheduler adds it",
        );
        check(
            json!({}),
            share_devices(json!("1")),
            "spec.containers[0].resources.limits.kai.scheduler/gpu-share: ",
        );
        let mut two = pod(half, share_devices(json!("1")));
        two["spec"]["containers"] = json!([share_devices(json!("1")), share_devices(json!("1"))]);
        assert!(message(&create(two), &settings()).contains("spec.containers[1].resources"));
        let mut foreign = pod(json!({"gpu-fraction": "0.5"}), share_devices(json!("1")));
        foreign["spec"]["schedulerName"] = "default-scheduler".into();
        assert!(message(&create(foreign), &settings()).contains("gpu-share"));
    }

    #[test]
    fn requests_and_limits_of_a_container() {
        let main = || json!({"name": "main"});
        let request = "nvidia.com/container.main.gpu-memory.request";
        let limit = "nvidia.com/container.main.gpu-memory.limit";
        let portion = "kai.scheduler/container.main.gpu-memory.portion.limit";
        let mode = "nvidia.com/container.main.gpu-compute.mode";
        let fine = |annotations: Value| check(annotations, main(), "");
        fine(json!({request: "8Gi"}));
        fine(json!({request: "8Gi", limit: "16Gi", mode: "sm-sharing"}));
        fine(json!({limit: "16Gi", "gpu-fraction-container-name": "main", "gpu-fraction-num-devices": "2"}));
        fine(json!({"gpu-fraction": "0.5", portion: "0.75", "mps": "true"}));
        fine(json!({"gpu-fraction": "0.5", "gpu-fraction.limit": "0.75", "kai.scheduler/gpu-enforcement": "required"}));
        fine(json!({"gpu-memory": "4096", "gpu-memory.limit": "8Gi", request: "4Gi"}));
        fine(json!({request: "8Gi", "mps": "true"}));
        let refused = |annotations: Value, expect: &str| check(annotations, main(), expect);
        refused(json!({request: "8"}), "is not an amount of GPU memory");
        refused(json!({request: 8}), "is not an amount of GPU memory");
        refused(json!({request: "8Gi", limit: "4Gi"}), "\"4Gi\" is below the request");
        refused(
            json!({"gpu-fraction": "0.5", request: "8Gi"}),
            "can't be combined with the annotation gpu-fraction",
        );
        refused(json!({"gpu-memory": "4096", limit: "8Gi"}), "write gpu-memory.limit");
        refused(
            json!({"gpu-memory": "4096", request: "8Gi"}),
            "another amount than the annotation gpu-memory",
        );
        refused(json!({"gpu-memory": "4096", portion: "0.7"}), "needs gpu-fraction");
        fine(json!({mode: "sm-sharing"}));
        refused(
            json!({"gpu-fraction": "0.5", mode: "mps"}),
            "known are time-slicing and sm-sharing",
        );
        refused(
            json!({"kai.scheduler/gpu-enforcement": "yes"}),
            "known are required and preferred",
        );
        let side = "nvidia.com/container.side.gpu-memory.request";
        refused(json!({side: "8Gi"}), "the pod has no container \"side\"");
        refused(
            json!({"gpu-memory": "8192", side: "8Gi"}),
            "the GPU share is for container \"main\"",
        );
        let whole = json!({"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}}});
        check(
            json!({request: "8Gi"}),
            whole,
            "gpu-memory.request: it can't be combined with whole GPUs",
        );
    }

    #[test]
    fn only_a_container_with_a_share_device_can_require_a_limit() {
        let with_init = |annotations: Value, init: Value| {
            let mut pod = pod(annotations, json!({"name": "main"}));
            pod["spec"]["initContainers"] = json!([init]);
            pod
        };
        let enforcement = |value: &str| json!({"gpu-fraction": "0.5", "gpu-fraction-container-name": "load", "kai.scheduler/gpu-enforcement": value});
        let ending = || json!({"name": "load"});
        let required = with_init(enforcement("required"), ending());
        assert_eq!(
            message(&create(required.clone()), &settings()),
            "Pod a/p: metadata.annotations.kai.scheduler/gpu-enforcement: spec.initContainers[0] (load): the GPU memory of an init container \
             that ends can't be limited; name another container for the GPU share (gpu-fraction-container-name), make it a sidecar \
             (restartPolicy: Always), or write preferred"
        );
        let by_key =
            json!({"nvidia.com/container.load.gpu-memory.request": "1Gi", "kai.scheduler/gpu-enforcement": "required"});
        assert!(message(&create(with_init(by_key, ending())), &settings()).contains("initContainers[0] (load)"));
        for fine in [
            with_init(enforcement("preferred"), ending()),
            with_init(
                enforcement("required"),
                json!({"name": "load", "restartPolicy": "Always"}),
            ),
            with_init(
                json!({"gpu-fraction": "0.5", "kai.scheduler/gpu-enforcement": "required"}),
                ending(),
            ),
        ] {
            assert_eq!(message(&create(fine.clone()), &settings()), "", "{fine}");
        }
        // A pod from before the rule can lose its finalizers.
        let update = Request {
            operation: Operation::Update,
            old_object: required.clone(),
            ..create(required)
        };
        assert_eq!(message(&update, &settings()), "");

        let without_devices = Settings {
            share_devices: Feature::Off,
            ..settings()
        };
        let pod = |value: &str| {
            let annotations = json!({"gpu-fraction": "0.5", "kai.scheduler/gpu-enforcement": value});
            create(pod(annotations, json!({"name": "main"})))
        };
        assert!(message(&pod("required"), &without_devices).contains("--gpu-share-devices"));
        assert_eq!(message(&pod("preferred"), &without_devices), "");
    }

    /// The binder writes request and limit beside `gpu-fraction`, and the user can still write labels.
    #[test]
    fn a_bound_pod_can_be_edited() {
        let bound = pod(
            json!({"gpu-fraction": "0.5", "nvidia.com/container.main.gpu-memory.request": "20000Mi",
                "nvidia.com/container.main.gpu-memory.limit": "20000Mi"}),
            json!({"name": "main"}),
        );
        let mut request = Request {
            operation: Operation::Update,
            old_object: pod(json!({"gpu-fraction": "0.5"}), json!({"name": "main"})),
            object: bound.clone(),
            user_info: User {
                username: "system:serviceaccount:kai-scheduler:binder".to_owned(),
                groups: Vec::new(),
            },
            ..Request::default()
        };
        assert_eq!(message(&request, &settings()), "");
        request.user_info = User::default();
        request.old_object = bound;
        request.object["metadata"]["labels"] = json!({"team": "a"});
        assert_eq!(message(&request, &settings()), "");
    }

    #[test]
    fn sharing_can_be_off() {
        let off = Settings {
            gpu_sharing: GpuSharingMode::Disabled,
            ..Settings::default()
        };
        let share = create(pod(json!({"gpu-memory": "x"}), json!({})));
        assert!(message(&share, &off).contains("turned off"));
        let memory = json!({"nvidia.com/container.main.gpu-memory.request": "8Gi"});
        assert!(message(&create(pod(memory, json!({"name": "main"}))), &off).contains("turned off"));
        assert_eq!(message(&create(pod(json!({}), json!({}))), &off), "");
    }

    #[test]
    fn pods_of_other_schedulers_are_looked_at_for_our_keys_only() {
        let mut foreign = pod(json!({"gpu-fraction": "NaN"}), json!({}));
        foreign["spec"]["schedulerName"] = "default-scheduler".into();
        assert_eq!(message(&create(foreign.clone()), &settings()), "");
        foreign["metadata"]["labels"] = json!({"runai-gpu-group": "g"});
        assert_eq!(
            message(&create(foreign), &settings()),
            "Pod a/p: metadata.labels.runai-gpu-group: only the scheduler writes this; remove it from the manifest, or from the \
             template that it was copied into"
        );
    }

    #[test]
    fn our_own_service_accounts_write_our_keys() {
        let mut request = create(pod(json!({}), json!({})));
        request.object["metadata"]["labels"] = json!({"runai-gpu-group": "g"});
        assert_ne!(message(&request, &settings()), "");
        let user = |username: &str| User {
            username: username.to_owned(),
            groups: Vec::new(),
        };
        request.user_info = user("system:serviceaccount:kai-scheduler:binder");
        assert_eq!(message(&request, &settings()), "");
        request.user_info = user("system:serviceaccount:team-a:default");
        assert_ne!(message(&request, &settings()), "");
    }

    #[test]
    fn what_was_wrong_before_does_not_keep_a_pod_from_ending() {
        let broken = pod(json!({"gpu-fraction": "NaN"}), json!({}));
        let mut request = Request {
            operation: Operation::Update,
            old_object: broken.clone(),
            object: broken,
            ..Request::default()
        };
        request.object["metadata"]["finalizers"] = json!([]);
        assert_eq!(message(&request, &settings()), "");
        request.object["metadata"]["annotations"]["gpu-fraction"] = "inf".into();
        assert_ne!(message(&request, &settings()), "");
    }

    #[test]
    fn gpus_named_by_hand_are_refused_where_that_is_on() {
        let named = json!({"name": "c", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]});
        let request = create(pod(json!({}), named));
        assert_eq!(message(&request, &settings()), "");
        let blocking = Settings {
            block_visible_devices: Feature::On,
            ..settings()
        };
        assert_eq!(
            message(&request, &blocking),
            "Pod a/p: spec.containers[c].env.NVIDIA_VISIBLE_DEVICES: \"all\" shows GPUs to a container that asked for none; remove \
             it, write void or none, or request a GPU"
        );
    }
}
