//! Decides what a container with a GPU share is held to. The limit comes from the annotation that the binder wrote
//! ([`kai_api::GpuLimits`]), never from the container's environment or from what its author may change. Pure.

use kai_api::{EnforcementTier, GpuLimits, Pod, Quantity, keys};
use kai_gpu::{Device, Inventory, MemoryKind};
use serde_json::Value;

use super::hold::{EnforcePolicy, HoldRequest};
use super::limits::GpuLimit;
use super::receipt::ContainerName;
use super::tier::{HookSetup, NodeEnforcement};

const MIB: u64 = 1 << 20;

/// A bound on the memory of a GPU that does not tell it: a pebibyte.
const MEMORY_MIB_MAX: u64 = 1 << 30;

/// System memory in MiB that a container without a memory request gets beside its GPU share, where GPU and CPU share memory.
pub const SYSTEM_MEMORY_ALLOWANCE_MIB: u64 = 1024;

/// Whether the memory of containers on integrated GPUs is limited by their cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UnifiedMemoryLimit {
    /// A container without a memory limit gets one: its request and its GPU share.
    #[default]
    On,
    /// Containers keep what their pods say.
    Off,
}

/// What decides about one container.
#[derive(Debug, Clone, Copy)]
pub struct PromiseInputs<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The pod as the API server sent it: the resources of its containers.
    pub object: &'a Value,
    /// The container that holds the share device.
    pub container: &'a str,
    /// UUIDs of its GPUs.
    pub gpus: &'a [String],
    /// The node's GPUs.
    pub inventory: &'a Inventory,
    /// By what the node holds containers.
    pub enforcement: &'a NodeEnforcement,
    /// Whether system memory is limited.
    pub unified: UnifiedMemoryLimit,
}

/// Why a container can't be held to what it was promised. It does not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PromiseError {
    /// The pod requires a limit, and the node has none.
    #[error(
        "pod {pod} requires that its GPU memory is limited (annotation {key}: required), and this node limits none ({summary}); delete the \
         pod, so that it is placed on another node",
        key = keys::GPU_ENFORCEMENT
    )]
    NotEnforced {
        /// Namespace and name.
        pod: String,
        /// The node's tier, with reasons.
        summary: String,
    },
    /// The pod was bound to a node that limits memory, and it does so no more.
    #[error("{note}; the container does not start without its limit: delete the pod, so that it is placed anew")]
    LostTier {
        /// Pod, tiers and reasons.
        note: String,
    },
    /// The binder's annotation can't be read.
    #[error("annotation {key} of pod {pod} is no valid limit: {problem}; delete the pod, so that it is bound anew", key = keys::GPU_LIMITS)]
    Malformed {
        /// Namespace and name.
        pod: String,
        /// What is wrong.
        problem: String,
    },
    /// The binder's annotation is for another container.
    #[error(
        "annotation {key} of pod {pod} limits container {limited}, but container {holder} holds the share device; delete the pod, so that it \
         is bound anew",
        key = keys::GPU_LIMITS
    )]
    OtherContainer {
        /// Namespace and name.
        pod: String,
        /// The container of the annotation.
        limited: String,
        /// The container that the kubelet lists.
        holder: String,
    },
    /// The binder wrote a tier, but no limit.
    #[error("pod {pod} has annotation {tier}, but not {limits}; delete the pod, so that it is bound anew", tier = keys::GPU_ENFORCEMENT_TIER, limits = keys::GPU_LIMITS)]
    Removed {
        /// Namespace and name.
        pod: String,
    },
    /// A pod from before the annotation, whose request is not known either.
    #[error("pod {pod} says nowhere how much GPU memory it may use; delete the pod, so that it is bound anew")]
    NoAmount {
        /// Namespace and name.
        pod: String,
    },
    /// The driver lists no such GPU.
    #[error(
        "GPU {gpu} of pod {pod} is not in this node's list of GPUs, so its memory can't be limited; run kai doctor on the node"
    )]
    UnknownGpu {
        /// Namespace and name.
        pod: String,
        /// The GPU.
        gpu: String,
    },
}

/// What a container was promised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promise {
    /// What the hook is asked for; `None` if the container is not held.
    pub request: Option<HoldRequest>,
    /// Memory on each GPU in MiB, for messages and the watch.
    pub memory_mib: Option<u64>,
    /// Something that the pod's owner should know.
    pub note: Option<String>,
}

/// Decides what a container is held to.
pub fn promise(inputs: &PromiseInputs) -> Result<Promise, PromiseError> {
    let PromiseInputs { pod, enforcement, .. } = *inputs;
    let name = || pod.metadata.qualified_name();
    let annotation = |key: &str| pod.metadata.annotations.text(key);
    let devices = inputs.gpus.iter().map(|gpu| match inputs.inventory.device(gpu) {
        Some(device) => Ok((gpu, device)),
        None => Err(PromiseError::UnknownGpu {
            pod: name(),
            gpu: gpu.clone(),
        }),
    });
    let devices: Vec<_> = devices.collect::<Result<_, _>>()?;
    // Partitions hold by themselves.
    let partitions = devices
        .iter()
        .all(|(gpu, device)| device.mig_devices.iter().any(|mig| mig.uuid == **gpu));
    let required = annotation(keys::GPU_ENFORCEMENT) == Some("required");
    if required && !enforcement.tier.limits_memory() && !partitions {
        return Err(PromiseError::NotEnforced {
            pod: name(),
            summary: enforcement.summary(),
        });
    }
    let note = lowered_tier(&name(), annotation(keys::GPU_ENFORCEMENT_TIER), enforcement);
    let note = match (note, enforcement.lost_tier) {
        (Some(note), EnforcePolicy::Closed) if !partitions => return Err(PromiseError::LostTier { note }),
        (note, EnforcePolicy::Closed | EnforcePolicy::Open) => note,
    };
    let mut promise = Promise {
        request: None,
        memory_mib: None,
        note,
    };
    if partitions {
        return Ok(promise);
    }
    let smallest = devices.iter().filter_map(|(_, device)| device.memory_mib).min();
    let limit_mib = match annotated_mib(inputs) {
        // Without a tier that limits, a wrong annotation holds nobody up.
        Err(_) if !enforcement.tier.limits_memory() => None,
        annotated => match annotated? {
            Some(mib) => Some(mib),
            // A pod that was bound before binders wrote the annotation.
            None => smallest
                .and_then(|memory| pod.share_memory_mib(i64::try_from(memory).ok()?))
                .and_then(|mib| u64::try_from(mib).ok()),
        },
    };
    promise.memory_mib = limit_mib;
    // The driver refuses a limit above the GPU's memory.
    let clamped = |mib: u64, device: &Device| mib.min(device.memory_mib.unwrap_or(MEMORY_MIB_MAX));
    let limits = match (enforcement.tier.limits_memory(), limit_mib) {
        (true, Some(mib)) => devices
            .iter()
            .map(|(_, device)| GpuLimit::hard(&device.uuid, clamped(mib, device) * MIB))
            .collect(),
        (true, None) => return Err(PromiseError::NoAmount { pod: name() }),
        (false, _) => Vec::new(),
    };
    let shared_memory_mib: u64 = devices
        .iter()
        .filter(|(_, device)| device.memory_kind == MemoryKind::Unified)
        .map(|(_, device)| clamped(limit_mib.unwrap_or(0), device))
        .sum();
    let system_memory_bytes = match inputs.unified {
        UnifiedMemoryLimit::On if shared_memory_mib > 0 => {
            system_memory_mib(inputs.object, inputs.container).map(|own| own.saturating_add(shared_memory_mib) * MIB)
        }
        UnifiedMemoryLimit::On | UnifiedMemoryLimit::Off => None,
    };
    // Without the hook's program, system memory stays as it is.
    let system_memory_bytes = system_memory_bytes.filter(|_| enforcement.hook.is_some());
    if !limits.is_empty() || system_memory_bytes.is_some() {
        promise.request = Some(HoldRequest {
            container: container_name(pod, inputs.container),
            policy: policy(enforcement.hook.as_ref(), &limits),
            limits,
            system_memory_bytes,
        });
    }
    Ok(promise)
}

/// Limits of system memory are no promise of the tier.
fn policy(setup: Option<&HookSetup>, limits: &[GpuLimit]) -> EnforcePolicy {
    match limits.is_empty() {
        true => EnforcePolicy::Open,
        false => setup.map_or(EnforcePolicy::Closed, |setup| setup.policy),
    }
}

/// The container in messages and receipts.
pub fn container_name(pod: &Pod, container: &str) -> ContainerName {
    ContainerName {
        namespace: pod.metadata.namespace().to_owned(),
        pod: pod.metadata.plain_name().to_owned(),
        uid: pod.metadata.uid.as_deref().unwrap_or_default().to_owned(),
        container: container.to_owned(),
    }
}

/// The limit that the binder wrote; `None` on pods that were bound before binders wrote one.
fn annotated_mib(inputs: &PromiseInputs) -> Result<Option<u64>, PromiseError> {
    let pod = || inputs.pod.metadata.qualified_name();
    let annotations = &inputs.pod.metadata.annotations;
    let Some(text) = annotations.text(keys::GPU_LIMITS) else {
        return match annotations.text(keys::GPU_ENFORCEMENT_TIER) {
            Some(_) => Err(PromiseError::Removed { pod: pod() }),
            None => Ok(None),
        };
    };
    let malformed = |problem: String| PromiseError::Malformed { pod: pod(), problem };
    let limits = GpuLimits::parse(text).map_err(|error| malformed(error.to_string()))?;
    if limits.container != inputs.container {
        return Err(PromiseError::OtherContainer {
            pod: pod(),
            limited: limits.container,
            holder: inputs.container.to_owned(),
        });
    }
    match limits.memory_mib {
        0 => Err(malformed("memoryMiB is 0".to_owned())),
        mib => Ok(Some(mib)),
    }
}

/// A note if the pod was bound to a better tier than the node has now.
fn lowered_tier(pod: &str, bound: Option<&str>, enforcement: &NodeEnforcement) -> Option<String> {
    let bound = EnforcementTier::from_name(bound?)?;
    (bound.limits_memory() && !enforcement.tier.limits_memory()).then(|| {
        format!(
            "pod {pod} was bound when this node had tier {}, and now its GPU memory is not limited: {}",
            bound.name(),
            enforcement.summary()
        )
    })
}

/// The memory request of a container in MiB, or the allowance; `None` if the container has a limit of its own.
fn system_memory_mib(pod: &Value, container: &str) -> Option<u64> {
    let of_spec = |list: &str| pod["spec"][list].as_array().into_iter().flatten().collect::<Vec<_>>();
    let containers = [of_spec("containers"), of_spec("initContainers")].concat();
    let found = containers.into_iter().find(|other| other["name"] == container)?;
    if !found["resources"]["limits"]["memory"].is_null() {
        return None;
    }
    let request = found["resources"]["requests"]["memory"].as_str();
    let request = request
        .and_then(|text| Quantity::parse(text).ok())
        .map(Quantity::units_up);
    match request.and_then(|bytes| u64::try_from(bytes).ok()) {
        Some(bytes) if bytes > 0 => Some(bytes.div_ceil(MIB)),
        Some(_) | None => Some(SYSTEM_MEMORY_ALLOWANCE_MIB),
    }
}

#[cfg(test)]
mod tests {
    use kai_gpu::Driver;
    use kai_gpu::fake::{FakeDriver, Settings};
    use serde_json::json;

    use super::super::program::HookProgram;
    use super::*;

    fn node(tier: EnforcementTier) -> NodeEnforcement {
        NodeEnforcement {
            tier,
            why_not_higher: Vec::new(),
            warnings: Vec::new(),
            hook: Some(HookSetup {
                program: HookProgram {
                    directory: "/hook/abc".into(),
                    loader: "ld.so".to_owned(),
                },
                library: None,
                environment: Vec::new(),
                receipts: "/limits".into(),
                policy: EnforcePolicy::Closed,
            }),
            lost_tier: EnforcePolicy::Closed,
        }
    }

    fn inventory(gpus: &str) -> Inventory {
        let settings = gpus.parse::<Settings>().unwrap().seeded("n");
        FakeDriver::new(&settings).unwrap().devices().unwrap()
    }

    fn pod(annotations: Value, resources: Value) -> Value {
        json!({
            "metadata": { "name": "p", "namespace": "team", "uid": "u", "annotations": annotations },
            "spec": { "containers": [
                { "name": "side", "env": [{ "name": "NVIDIA_GPU_MEMORY_LIMIT", "value": "40000" }] },
                { "name": "main", "resources": resources, "env": [{ "name": "NVIDIA_GPU_MEMORY_LIMIT", "value": "40000" }] },
            ] },
        })
    }

    fn check(object: &Value, gpus: &str, enforcement: &NodeEnforcement) -> Result<Promise, PromiseError> {
        let inventory = inventory(gpus);
        let uuids: Vec<String> = inventory.devices.iter().map(|device| device.uuid.clone()).collect();
        promise(&PromiseInputs {
            pod: &serde_json::from_value(object.clone()).unwrap(),
            object,
            container: "main",
            gpus: &uuids,
            inventory: &inventory,
            enforcement,
            unified: UnifiedMemoryLimit::On,
        })
    }

    /// The hard limits in MiB.
    fn limits_mib(annotations: Value, gpus: &str) -> Vec<u64> {
        let promised = check(&pod(annotations, json!({})), gpus, &node(EnforcementTier::Driver)).unwrap();
        let request = promised.request.unwrap();
        assert_eq!(
            (request.policy, request.container.container.as_str()),
            (EnforcePolicy::Closed, "main")
        );
        request
            .limits
            .iter()
            .map(|limit| limit.hard_bytes.unwrap() / MIB)
            .collect()
    }

    fn limits(container: &str, mib: u64) -> String {
        format!(r#"{{"container":"{container}","memoryMiB":{mib}}}"#)
    }

    #[test]
    fn the_binders_annotation_is_the_limit_whatever_the_pods_author_wrote() {
        let total = inventory("a100-40:1").devices[0].memory_mib.unwrap();
        let bound = |mib| json!({ "kai.scheduler/gpu-limits": limits("main", mib), "kai.scheduler/gpu-enforcement-tier": "driver" });
        assert_eq!(limits_mib(bound(1000), "a100-40:2"), [1000, 1000]);
        assert_eq!(
            limits_mib(bound(1 << 40), "a100-40:1"),
            [total],
            "the driver takes no more"
        );
        let mut authors = bound(1000);
        for key in [
            "gpu-fraction",
            "gpu-memory",
            "nvidia.com/container.main.gpu-memory.limit",
            "nvidia.com/container.main.gpu-memory.request",
            "kai.scheduler/container.main.gpu-memory.portion.limit",
            "nvidia.com/container.side.gpu-memory.limit",
        ] {
            authors[key] = "40000".into();
        }
        assert_eq!(limits_mib(authors, "a100-40:1"), [1000]);
    }

    #[test]
    fn a_pod_from_before_the_annotation_gets_its_request() {
        let total = inventory("a100-40:1").devices[0].memory_mib.unwrap();
        assert_eq!(limits_mib(json!({ "gpu-fraction": "0.5" }), "a100-40:1"), [total / 2]);
        assert_eq!(limits_mib(json!({ "gpu-memory": "4096" }), "a100-40:1"), [4096]);
    }

    #[test]
    fn what_is_no_promise_starts_no_container_where_memory_is_limited() {
        let tier = "kai.scheduler/gpu-enforcement-tier";
        for (annotations, words) in [
            (json!({ "kai.scheduler/gpu-limits": "lots" }), "no valid limit"),
            (
                json!({ "kai.scheduler/gpu-limits": limits("main", 0) }),
                "memoryMiB is 0",
            ),
            (
                json!({ "kai.scheduler/gpu-limits": limits("side", 5) }),
                "limits container side, but container main",
            ),
            (
                json!({ tier: "driver", "gpu-fraction": "0.5" }),
                "but not kai.scheduler/gpu-limits",
            ),
            (json!({}), "says nowhere how much"),
        ] {
            let object = pod(annotations, json!({}));
            let error = check(&object, "a100-40:1", &node(EnforcementTier::Driver))
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(words) && error.contains("pod team/p") && error.contains("delete the pod"),
                "{error}"
            );
            let open = NodeEnforcement {
                lost_tier: EnforcePolicy::Open,
                ..node(EnforcementTier::Watch)
            };
            let held = check(&object, "a100-40:1", &open).unwrap();
            assert_eq!(held.request, None, "nothing is limited there");
        }
    }

    #[test]
    fn a_pod_that_requires_a_limit_does_not_start_without_one() {
        let mut annotations =
            json!({ "kai.scheduler/gpu-limits": limits("main", 5), "kai.scheduler/gpu-enforcement-tier": "driver" });
        let object = pod(annotations.clone(), json!({}));
        let promised = check(&object, "a100-40:1", &node(EnforcementTier::Watch)).unwrap_err();
        assert!(matches!(promised, PromiseError::LostTier { .. }) && promised.to_string().contains("had tier driver"));
        let open = NodeEnforcement {
            lost_tier: EnforcePolicy::Open,
            ..node(EnforcementTier::Watch)
        };
        let told = check(&object, "a100-40:1", &open).unwrap().note.unwrap();
        assert!(told.contains("pod team/p was bound when this node had tier driver"));
        annotations["kai.scheduler/gpu-enforcement-tier"] = "watch".into();
        let never_promised = check(
            &pod(annotations.clone(), json!({})),
            "a100-40:1",
            &node(EnforcementTier::Watch),
        );
        assert_eq!(never_promised.unwrap().note, None);
        annotations["kai.scheduler/gpu-enforcement"] = "required".into();
        let object = pod(annotations, json!({}));
        let error = check(&object, "a100-40:1", &node(EnforcementTier::Watch)).unwrap_err();
        assert!(matches!(error, PromiseError::NotEnforced { .. }) && error.to_string().contains("tier watch"));
        assert!(check(&object, "a100-40:1", &node(EnforcementTier::Driver)).is_ok());
    }

    #[test]
    fn system_memory_is_the_request_and_the_share_on_integrated_gpus_only() {
        let bound = json!({ "kai.scheduler/gpu-limits": limits("main", 1000) });
        let bytes = |resources: Value, gpus: &str| {
            let held = check(&pod(bound.clone(), resources), gpus, &node(EnforcementTier::Watch)).unwrap();
            held.request.map(|request| {
                assert_eq!((request.policy, request.limits.len()), (EnforcePolicy::Open, 0));
                request.system_memory_bytes.unwrap() / MIB
            })
        };
        assert_eq!(bytes(json!({}), "orin-agx:1"), Some(1000 + SYSTEM_MEMORY_ALLOWANCE_MIB));
        assert_eq!(
            bytes(json!({ "requests": { "memory": "2Gi" } }), "orin-agx:1"),
            Some(1000 + 2048)
        );
        assert_eq!(bytes(json!({ "limits": { "memory": "2Gi" } }), "orin-agx:1"), None);
        assert_eq!(bytes(json!({}), "a100-40:1"), None);
    }
}
