//! Decides which GPUs a share device stands for: the kubelet's pod-resources API names the pod, the pod's labels name its GPU groups, and
//! the reservation pods of these groups name the GPUs. Pure. Anything inconsistent is refused with a reason: a container that waits can be
//! repaired, a container that got another pod's GPU can't.

use std::collections::BTreeSet;

use kai_api::{Pod, keys};
use kai_gpu::PlatformKind;

use super::offer::KIND;
use crate::allocator::offer::fake_visible;
use crate::driver_files::cdi::{self, Device, Edits, Hook, Spec};
use crate::enforcement::promise::PromiseError;
use crate::podresources::DeviceAllocation;

/// The pod to which the kubelet allocated a share device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name.
    pub container: String,
}

/// Why a share device can't be prepared. The kubelet shows the message in the pod's events and tries again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The kubelet lists no container that holds the share device.
    #[error(
        "the kubelet's pod-resources API names no container that holds it; init containers that end are not listed there, so let \
         another container have the share (annotation {})",
        keys::GPU_FRACTION_CONTAINER
    )]
    NoHolder,
    /// The kubelet lists two share devices for one pod name: an earlier pod that has not ended, and its successor.
    #[error("pod {0} holds other share devices, too; an earlier pod of that name has to end first")]
    AmbiguousPodName(String),
    /// The API server does not know the pod.
    #[error("pod {0} is not in the cluster any more; it ends by itself")]
    NoPod(String),
    /// The pod is bound to another node.
    #[error("pod {pod} is not on node {node}, as the API server has it; an earlier pod of that name has to end first")]
    OtherNode {
        /// Namespace and name.
        pod: String,
        /// This node.
        node: String,
    },
    /// The scheduler did not bind the pod to a shared GPU.
    #[error(
        "pod {0} has no GPU group (label {group}): it shares no GPU; request {share_device} only by asking for a part of a GPU (annotation \
         {fraction} or {memory}) and let scheduler {scheduler} place the pod",
        group = keys::GPU_GROUP, share_device = keys::RESOURCE_GPU_SHARE, fraction = keys::GPU_FRACTION, memory = keys::GPU_MEMORY,
        scheduler = keys::SCHEDULER_NAME
    )]
    NoGpuGroup(String),
    /// The GPU group has no reservation pod on this node.
    #[error(
        "pod {pod} is of GPU group {group}, which has no reservation pod on node {node}; the binder makes it again: see its log"
    )]
    NoReservation {
        /// Namespace and name.
        pod: String,
        /// The GPU group.
        group: String,
        /// This node.
        node: String,
    },
    /// The reservation pod has no annotation with its GPU yet.
    #[error(
        "pod {pod} is of GPU group {group}, whose reservation pod {reservation} does not say yet which GPU it holds; wait, or look at that pod"
    )]
    NoGpu {
        /// Namespace and name.
        pod: String,
        /// The GPU group.
        group: String,
        /// Name of the reservation pod.
        reservation: String,
    },
    /// The reservation pod holds another GPU than the one the pod was bound to.
    #[error(
        "pod {pod} was bound to GPU {bound_gpus}, but its reservation holds {held}; delete the pod, so that it is placed anew"
    )]
    OtherGpu {
        /// Namespace and name.
        pod: String,
        /// UUIDs in the annotation that the binder wrote on the pod.
        bound_gpus: String,
        /// UUIDs in the annotations of the reservation pods.
        held: String,
    },
    /// The CDI spec of the node's GPUs is not on disk.
    #[error(
        "the CDI spec of this node's GPUs is not on disk; the node agent writes it once the driver answers: see its log"
    )]
    NoSpec,
    /// It is not decided yet by what this node holds containers.
    #[error(
        "the node agent has not decided yet how this node holds containers to their GPU memory, because the GPU driver has not answered; \
         trying again"
    )]
    Undecided,
    /// The container can't be held to what it was promised.
    #[error(transparent)]
    Promise(#[from] PromiseError),
    /// The CDI spec of the node's GPUs does not contain the GPU.
    #[error("GPU {gpu} of pod {pod} is not in this node's CDI spec; run `kai doctor` on the node")]
    UnknownGpu {
        /// Namespace and name.
        pod: String,
        /// The GPU.
        gpu: String,
    },
}

impl Holder {
    /// Namespace and name, for messages.
    pub fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.pod)
    }
}

/// The pod that holds the share device.
pub fn holder(share_device: &str, allocations: &[DeviceAllocation]) -> Result<Holder, Refusal> {
    let share_devices = |allocation: &&DeviceAllocation| allocation.resource == keys::RESOURCE_GPU_SHARE;
    let holds = |allocation: &&DeviceAllocation| allocation.device_ids.iter().any(|id| id == share_device);
    let Some(found) = allocations.iter().filter(share_devices).find(holds) else {
        return Err(Refusal::NoHolder);
    };
    let holder = Holder {
        namespace: found.namespace.clone(),
        pod: found.pod.clone(),
        container: found.container.clone(),
    };
    // The pod-resources API has no UIDs. A pod has at most one share device, so two of them belong to two pods of one name.
    let same = |allocation: &&DeviceAllocation| allocation.namespace == found.namespace && allocation.pod == found.pod;
    let held: usize = allocations
        .iter()
        .filter(share_devices)
        .filter(same)
        .map(|allocation| allocation.device_ids.len())
        .sum();
    match held {
        1 => Ok(holder),
        _ => Err(Refusal::AmbiguousPodName(holder.name())),
    }
}

/// The UUIDs of the GPUs that the pod shares, in the order of its GPU groups. `reservations` are the reservation pods of this node.
pub fn gpus(pod: &Pod, node: &str, reservations: &[Pod]) -> Result<Vec<String>, Refusal> {
    let name = pod.metadata.qualified_name();
    if pod.node_name() != Some(node) {
        let (pod, node) = (name, node.to_owned());
        return Err(Refusal::OtherNode { pod, node });
    }
    let groups = pod.gpu_groups();
    if groups.is_empty() {
        return Err(Refusal::NoGpuGroup(name));
    }
    let gpus = groups.iter().map(|group| reserved(&name, group, node, reservations));
    let gpus: Vec<String> = gpus.collect::<Result<_, _>>()?;
    // KAI's binder does not write this annotation.
    if let Some(bound_gpus) = pod.metadata.annotations.text(keys::RECEIVED_GPUS) {
        let held: BTreeSet<&str> = gpus.iter().map(String::as_str).collect();
        if bound_gpus.split(',').collect::<BTreeSet<&str>>() != held {
            return Err(Refusal::OtherGpu {
                pod: name,
                bound_gpus: bound_gpus.to_owned(),
                held: gpus.join(","),
            });
        }
    }
    Ok(gpus)
}

/// The GPU that the reservation pod of a GPU group holds.
fn reserved(pod: &str, group: &str, node: &str, reservations: &[Pod]) -> Result<String, Refusal> {
    let of_group = |other: &&Pod| other.metadata.labels.text(keys::GPU_GROUP) == Some(group);
    let here = |other: &&Pod| other.node_name() == Some(node);
    let Some(reservation) = reservations.iter().filter(here).find(of_group) else {
        return Err(Refusal::NoReservation {
            pod: pod.to_owned(),
            group: group.to_owned(),
            node: node.to_owned(),
        });
    };
    match reservation.metadata.annotations.text(keys::RESERVED_GPU) {
        Some(gpu) if !gpu.is_empty() => Ok(gpu.to_owned()),
        Some(_) | None => Err(Refusal::NoGpu {
            pod: pod.to_owned(),
            group: group.to_owned(),
            reservation: reservation.metadata.plain_name().to_owned(),
        }),
    }
}

/// What the CDI spec of a share device is made of.
#[derive(Debug, Clone, Copy)]
pub struct ShareSpecInputs<'a> {
    /// The share device.
    pub share_device: &'a str,
    /// Namespace and name of the pod, for messages.
    pub pod: &'a str,
    /// UUIDs of its GPUs.
    pub gpus: &'a [String],
    /// The spec of the node's whole GPUs.
    pub whole: &'a Spec,
    /// The platform, which decides whether the container gets the fake library's variable.
    pub platform: PlatformKind,
    /// Holds the container to its limits.
    pub hook: Option<&'a Hook>,
}

/// The CDI spec of the share device: the edits that the spec of the node's whole GPUs has for these GPUs, under the share device's name, and
/// the hook of this container. The hooks of whole GPUs are left out: they lift limits.
pub fn spec(inputs: &ShareSpecInputs) -> Result<Spec, Refusal> {
    let ShareSpecInputs {
        share_device,
        pod,
        gpus,
        whole,
        platform,
        hook,
    } = *inputs;
    let mut edits = Edits::default();
    for gpu in gpus {
        let name = cdi::device_name(gpu);
        let Some(device) = whole.devices.iter().find(|device| device.name == name) else {
            return Err(Refusal::UnknownGpu {
                pod: pod.to_owned(),
                gpu: gpu.clone(),
            });
        };
        edits.merge(&device.container_edits);
    }
    edits.hooks = hook.into_iter().cloned().collect();
    if platform == PlatformKind::Fake {
        let (key, value) = fake_visible(gpus.iter().map(String::as_str));
        edits.env.push(format!("{key}={value}"));
    }
    let for_all = Edits {
        hooks: Vec::new(),
        ..whole.container_edits.clone()
    };
    let mut spec = Spec {
        cdi_version: String::new(),
        kind: KIND.to_owned(),
        devices: vec![Device {
            name: share_device.to_owned(),
            container_edits: edits,
        }],
        container_edits: for_all,
    };
    spec.cdi_version = spec.version_needed().to_owned();
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use kai_gpu::Driver;
    use kai_gpu::fake::{FakeDriver, Settings};
    use serde_json::{Value, json};

    use super::*;
    use crate::driver_files::prepare::fake_spec;

    fn held(pod: &str, resource: &str, ids: &[&str]) -> DeviceAllocation {
        DeviceAllocation {
            namespace: "team".into(),
            pod: pod.into(),
            container: "main".into(),
            resource: resource.into(),
            device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        }
    }

    #[test]
    fn the_holder_is_the_one_pod_with_the_slot() {
        let share = keys::RESOURCE_GPU_SHARE;
        let allocations = [
            held("other", "vendor.com/device", &["share-1"]),
            held("a", share, &["share-1"]),
            held("b", share, &["share-2"]),
            held("b", share, &["share-3"]),
        ];
        assert_eq!(holder("share-1", &allocations).unwrap().name(), "team/a");
        assert_eq!(
            holder("share-2", &allocations),
            Err(Refusal::AmbiguousPodName("team/b".into()))
        );
        assert_eq!(holder("share-4", &allocations), Err(Refusal::NoHolder));
    }

    fn pod(labels: Value, annotations: Value) -> Pod {
        let metadata = json!({ "name": "p", "namespace": "team", "labels": labels, "annotations": annotations });
        serde_json::from_value(json!({ "metadata": metadata, "spec": { "nodeName": "n1" } })).unwrap()
    }

    fn reservation(group: &str, node: &str, gpu: Option<&str>) -> Pod {
        let annotations = gpu.map_or(json!({}), |gpu| json!({ "run.ai/reserve_for_gpu_index": gpu }));
        let metadata =
            json!({ "name": format!("r-{group}"), "labels": { "runai-gpu-group": group }, "annotations": annotations });
        serde_json::from_value(json!({ "metadata": metadata, "spec": { "nodeName": node } })).unwrap()
    }

    #[test]
    fn groups_lead_to_the_gpus_of_their_reservations() {
        let reservations = [
            reservation("g1", "n1", Some("GPU-1")),
            reservation("g2", "n2", Some("GPU-9")),
            reservation("g2", "n1", Some("GPU-2")),
            reservation("g3", "n1", None),
        ];
        let check = |labels: Value, annotations: Value| gpus(&pod(labels, annotations), "n1", &reservations);
        assert_eq!(check(json!({ "runai-gpu-group": "g2" }), json!({})).unwrap(), ["GPU-2"]);
        let two = json!({ "runai-gpu-group/g1": "g1", "runai-gpu-group/g2": "g2" });
        let bound_gpus = json!({ "kai.scheduler/received-gpus": "GPU-2,GPU-1" });
        assert_eq!(check(two.clone(), bound_gpus).unwrap(), ["GPU-1", "GPU-2"]);
        let refused = |labels: Value, annotations: Value| check(labels, annotations).unwrap_err().to_string();
        assert!(refused(json!({}), json!({})).contains("team/p has no GPU group"));
        assert!(refused(json!({ "runai-gpu-group": "g9" }), json!({})).contains("no reservation pod on node n1"));
        assert!(refused(json!({ "runai-gpu-group": "g3" }), json!({})).contains("r-g3 does not say yet"));
        let other = json!({ "kai.scheduler/received-gpus": "GPU-7" });
        assert!(refused(json!({ "runai-gpu-group": "g1" }), other).contains("bound to GPU GPU-7"));
        assert!(refused(two, json!({ "kai.scheduler/received-gpus": "GPU-1" })).contains("holds GPU-1,GPU-2"));
        let elsewhere = gpus(&pod(json!({ "runai-gpu-group": "g1" }), json!({})), "n2", &reservations);
        assert!(matches!(elsewhere, Err(Refusal::OtherNode { .. })));
    }

    #[test]
    fn a_slot_has_the_edits_of_its_gpus_and_no_others() {
        let settings: Settings = "t4:3".parse().unwrap();
        let inventory = FakeDriver::new(&settings.seeded("n1")).unwrap().devices().unwrap();
        let whole = fake_spec(&inventory).unwrap();
        let of = |at: usize| inventory.devices[at].uuid.clone();
        let spec = |gpus: &[String], platform| {
            spec(&ShareSpecInputs {
                share_device: "share-7",
                pod: "team/p",
                gpus,
                whole: &whole,
                platform,
                hook: None,
            })
        };
        let written = spec(&[of(0), of(2)], PlatformKind::Fake).unwrap();
        assert_eq!(written.problems(), Vec::<String>::new());
        assert_eq!(
            (written.kind.as_str(), written.devices.len()),
            ("kai.scheduler/share", 1)
        );
        let edits = &written.devices[0].container_edits;
        let nodes: Vec<_> = edits.device_nodes.iter().map(|node| node.path.as_str()).collect();
        assert_eq!(nodes, ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia2"]);
        assert_eq!(edits.env, [format!("KAI_FAKE_VISIBLE_DEVICES={},{}", of(0), of(2))]);
        assert_eq!(written.container_edits, whole.container_edits);
        let real = spec(&[of(1)], PlatformKind::Nvml).unwrap();
        assert!(real.devices[0].container_edits.env.is_empty());
        let unknown = spec(&["GPU-x".into()], PlatformKind::Fake);
        assert!(unknown.unwrap_err().to_string().contains("GPU GPU-x of pod team/p"));
    }
}
