//! Why a bind fails, as data, and in this file only, as text. The text lands in the status of the BindRequest, in the condition and the
//! event of the pod, and through the scheduler in the reason why the pod waits.

use std::time::Duration;

use kai_api::{ComputeMode, GpuGroupsError, ObjectKey, ShareContainerError, keys};

use crate::reservation::state::ReservationFailure;
use crate::{GpuGroupKey, reservation_name};

/// Why a bind fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BindFailure {
    #[error("timed out: its reservation pods, its ConfigMaps or the pod kept changing or were not ready")]
    TimedOut,
    /// Claims got no volume within the limit.
    #[error(
        "timed out: no volume within {} s for {}; the events of the claims say what they wait for", limit.as_secs(), claims.join(", ")
    )]
    VolumesNotBound { claims: Vec<String>, limit: Duration },
    #[error("volume claim {claim} is gone")]
    ClaimGone { claim: String },
    #[error("volume {volume}, chosen for claim {claim}, is gone or not available any more")]
    VolumeGone { volume: String, claim: String },
    #[error("volume {volume} was taken by claim {claim} meanwhile")]
    VolumeTaken { volume: String, claim: ObjectKey },
    #[error("claim {claim} is bound to volume {volume}, which node {node} can't use")]
    VolumeElsewhere {
        volume: String,
        claim: String,
        node: String,
    },
    #[error("a volume for claim {claim} is being made for node {node}")]
    ClaimForOtherNode { claim: String, node: String },
    /// The provisioner removed the selected node from the claim.
    #[error(
        "provisioning failed for PVC {claim:?} on node {node}: the provisioner asks for another node; the events of the claim say why"
    )]
    ProvisioningRefused { claim: String, node: String },
    #[error("node {node} is gone")]
    NodeGone { node: String },
    #[error("the pod is gone")]
    PodGone,
    #[error("the pod is bound to node {node} already")]
    BoundElsewhere { node: String },
    #[error("the pod has ended or is being deleted")]
    PodEnded,
    #[error("the pod asks for the scheduler {scheduler}")]
    OtherScheduler { scheduler: String },
    #[error("the request names a GPU group twice")]
    GpuGroupTwice,
    /// The lists of the request contradict each other.
    #[error("the request is invalid: {_0}")]
    GpuGroups(#[from] GpuGroupsError),
    /// The compute mode of the pod is not that of the request.
    #[error(
        "the request has compute mode {}, and the pod has {}; the scheduler has to decide anew", .request.name(), .pod.name()
    )]
    OtherRequestMode { request: ComputeMode, pod: ComputeMode },
    /// The reservation pod holds the GPU for pods of another compute mode.
    #[error(
        "GPU group {} of node {} has compute mode {}, and the pod has {}: pods of different modes can't share a GPU",
        key.group, key.node, .held.name(), .pod.name()
    )]
    OtherComputeMode {
        key: GpuGroupKey,
        held: ComputeMode,
        pod: ComputeMode,
    },
    /// The pod requires enforcement, and the node's label does not promise it.
    #[error(
        "node {node} does not limit GPU memory (label {}: {}), and the pod requires it (annotation {}: required)",
        keys::GPU_ENFORCEMENT, .tier.unwrap_or("missing"), keys::GPU_ENFORCEMENT
    )]
    NotEnforced { node: String, tier: Option<&'static str> },
    /// The node's label does not promise the pod's compute mode.
    #[error(
        "node {node} does not offer compute mode {} (label {}: {}), which the pod asks for; it takes a node {} a multi-process server",
        .mode.name(), keys::GPU_ENFORCEMENT, .tier.unwrap_or("missing"),
        match .mode { ComputeMode::TimeSlicing => "without", ComputeMode::SmSharing => "with" }
    )]
    ModeNotOffered {
        node: String,
        tier: Option<&'static str>,
        mode: ComputeMode,
    },
    /// A container without a share device can't be held to its part of a GPU.
    #[error(
        "the pod asks to have {wish}, but its container {container:?} requests no {}, by which the node agent does that. Init containers \
         that end get none, nor do containers where admission runs with --gpu-share-devices=false. Create the pod anew, with its GPU share \
         in another container ({}) or without that wish",
        keys::RESOURCE_GPU_SHARE,
        keys::GPU_FRACTION_CONTAINER
    )]
    NoShareDevice { container: String, wish: &'static str },
    /// The limit depends on the GPU's memory.
    #[error(
        "the limit of the GPU share can't be computed: node {node} has no label {} with the MiB of a GPU. The node agent and GPU feature \
         discovery write it",
        keys::NODE_GPU_MEMORY
    )]
    GpuMemoryUnknown { node: String },
    #[error("{field}: {error}")]
    InvalidRequest { field: String, error: String },
    #[error("the annotation {} is invalid: {_0}", .0.key())]
    ShareContainer(#[from] ShareContainerError),
    #[error("the pod has no container")]
    NoContainer,
    /// Admission gives a pod with a GPU share ConfigMaps or a share device.
    #[error(
        "the pod lacks the annotation {} and a container that requests {}, which admission writes; it was created while admission was off",
        keys::SHARED_GPU_CONFIG_MAP,
        keys::RESOURCE_GPU_SHARE
    )]
    ConfigMapsUnnamed,
    /// A ConfigMap of this name exists that the binder did not make for the pod.
    #[error(
        "ConfigMap {config_map} exists, and the scheduler did not make it for this pod, so it is left as it is. Delete the ConfigMap if \
         nobody needs it, or create the pod anew without the annotation {}, so that the pod gets a name of its own",
        keys::SHARED_GPU_CONFIG_MAP
    )]
    ConfigMapTaken { config_map: ObjectKey },
    #[error("node {node} is being removed from the cluster; no GPU is reserved on it")]
    NodeLeaving { node: String },
    #[error("nodes are being added for other pods; no GPU is reserved meanwhile")]
    ScalingUp,
    /// The reservation pod of a GPU group got no GPU within the limit.
    #[error("{}", reservation_text(.key, *.failure, *.limit))]
    NotReserved {
        key: GpuGroupKey,
        failure: ReservationFailure,
        limit: Duration,
    },
    #[error("GPU {gpu} of node {} is held for the groups {} and {other} alike", key.node, key.group)]
    GpuHeldTwice {
        key: GpuGroupKey,
        gpu: String,
        /// The other GPU group.
        other: String,
    },
    #[error("GPU {gpu} of node {} is in use by pod {pod} of another group, whose reservation was lost", key.node)]
    GpuInUse {
        key: GpuGroupKey,
        gpu: String,
        pod: ObjectKey,
    },
    #[error("group {} of node {} holds GPU {gpu} now, but its pod {pod} runs on {}", key.group, key.node, pod_gpus.join(","))]
    MemberOnOtherGpu {
        key: GpuGroupKey,
        gpu: String,
        pod: ObjectKey,
        /// The GPUs of the pod.
        pod_gpus: Vec<String>,
    },
    #[error(
        "GPU group {} of node {} has no room: {promised_mib} of {memory_mib} MiB are promised, {requested_mib} MiB are asked for",
        key.group, key.node
    )]
    GpuFull {
        key: GpuGroupKey,
        promised_mib: i64,
        memory_mib: i64,
        requested_mib: i64,
    },
}

fn reservation_text(key: &GpuGroupKey, failure: ReservationFailure, limit: Duration) -> String {
    let (node, name, seconds) = (&key.node, reservation_name(key), limit.as_secs());
    match failure {
        ReservationFailure::Ended => {
            format!("node {node} refused or ended the reservation pod {name}: it may have no free GPU")
        }
        ReservationFailure::TimedOut => {
            format!("reservation pod {name} on node {node} did not get a GPU within {seconds} s")
        }
        ReservationFailure::StuckTerminating => {
            format!("the former reservation pod {name} on node {node} does not end since {seconds} s")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(failure: BindFailure, text: &str) {
        assert_eq!(failure.to_string(), text);
    }

    #[test]
    fn a_bind_that_can_not_be_carried_out() {
        check(
            BindFailure::TimedOut,
            "timed out: its reservation pods, its ConfigMaps or the pod kept changing or were not ready",
        );
        check(BindFailure::NodeGone { node: "n".into() }, "node n is gone");
        check(BindFailure::PodGone, "the pod is gone");
        let elsewhere = BindFailure::BoundElsewhere { node: "n".into() };
        check(elsewhere, "the pod is bound to node n already");
        check(BindFailure::PodEnded, "the pod has ended or is being deleted");
        let scheduler = "other".into();
        check(
            BindFailure::OtherScheduler { scheduler },
            "the pod asks for the scheduler other",
        );
        check(BindFailure::GpuGroupTwice, "the request names a GPU group twice");
    }

    #[test]
    fn a_pod_that_gets_no_config_maps() {
        let pod = serde_json::json!({
            "metadata": { "annotations": { "gpu-fraction-container-name": "x" } }, "spec": { "containers": [{ "name": "main" }] },
        });
        check(
            kai_api::share_container(&pod).unwrap_err().into(),
            "the annotation gpu-fraction-container-name is invalid: the pod has no container \"x\"; name one of its containers or init \
             containers",
        );
        check(BindFailure::NoContainer, "the pod has no container");
        check(
            BindFailure::ConfigMapsUnnamed,
            "the pod lacks the annotation runai/shared-gpu-configmap and a container that requests kai.scheduler/gpu-share, which admission \
             writes; it was created while admission was off",
        );
        let config_map = ObjectKey::new("team", "p-0");
        check(
            BindFailure::ConfigMapTaken { config_map },
            "ConfigMap team/p-0 exists, and the scheduler did not make it for this pod, so it is left as it is. Delete the ConfigMap if \
             nobody needs it, or create the pod anew without the annotation runai/shared-gpu-configmap, so that the pod gets a name of \
             its own",
        );
    }

    #[test]
    fn compute_modes_and_enforcement() {
        check(
            BindFailure::OtherRequestMode {
                request: ComputeMode::TimeSlicing,
                pod: ComputeMode::SmSharing,
            },
            "the request has compute mode time-slicing, and the pod has sm-sharing; the scheduler has to decide anew",
        );
        check(
            BindFailure::OtherComputeMode {
                key: GpuGroupKey::new("n", "g"),
                held: ComputeMode::SmSharing,
                pod: ComputeMode::TimeSlicing,
            },
            "GPU group g of node n has compute mode sm-sharing, and the pod has time-slicing: pods of different modes can't share a GPU",
        );
        let not_enforced = |tier| BindFailure::NotEnforced { node: "n".into(), tier };
        check(
            not_enforced(Some("watch")),
            "node n does not limit GPU memory (label kai.scheduler/gpu-enforcement: watch), and the pod requires it (annotation \
             kai.scheduler/gpu-enforcement: required)",
        );
        assert!(not_enforced(None).to_string().contains("gpu-enforcement: missing"));
        check(
            BindFailure::ModeNotOffered {
                node: "n".into(),
                tier: Some("driver"),
                mode: ComputeMode::SmSharing,
            },
            "node n does not offer compute mode sm-sharing (label kai.scheduler/gpu-enforcement: driver), which the pod asks for; it takes \
             a node with a multi-process server",
        );
        check(
            BindFailure::ModeNotOffered {
                node: "n".into(),
                tier: Some("mps"),
                mode: ComputeMode::TimeSlicing,
            },
            "node n does not offer compute mode time-slicing (label kai.scheduler/gpu-enforcement: mps), which the pod asks for; it takes \
             a node without a multi-process server",
        );
        let no_share_device = BindFailure::NoShareDevice {
            container: "init".into(),
            wish: "its GPU memory limited",
        };
        check(
            no_share_device,
            "the pod asks to have its GPU memory limited, but its container \"init\" requests no kai.scheduler/gpu-share, by which the \
             node agent does that. Init containers that end get none, nor do containers where admission runs with \
             --gpu-share-devices=false. Create the pod anew, with its GPU share in another container (gpu-fraction-container-name) or \
             without that wish",
        );
        check(
            BindFailure::GpuMemoryUnknown { node: "n".into() },
            "the limit of the GPU share can't be computed: node n has no label nvidia.com/gpu.memory with the MiB of a GPU. The node \
             agent and GPU feature discovery write it",
        );
    }

    #[test]
    fn a_gpu_group_without_a_reservation_pod() {
        check(
            BindFailure::NodeLeaving { node: "n".into() },
            "node n is being removed from the cluster; no GPU is reserved on it",
        );
        check(
            BindFailure::ScalingUp,
            "nodes are being added for other pods; no GPU is reserved meanwhile",
        );
        let key = GpuGroupKey::new("n", "g");
        let name = reservation_name(&key);
        let texts = [
            (
                ReservationFailure::Ended,
                format!("node n refused or ended the reservation pod {name}: it may have no free GPU"),
            ),
            (
                ReservationFailure::TimedOut,
                format!("reservation pod {name} on node n did not get a GPU within 40 s"),
            ),
            (
                ReservationFailure::StuckTerminating,
                format!("the former reservation pod {name} on node n does not end since 40 s"),
            ),
        ];
        for (failure, text) in texts {
            let (key, limit) = (key.clone(), Duration::from_secs(40));
            check(BindFailure::NotReserved { key, failure, limit }, &text);
        }
    }

    #[test]
    fn a_gpu_that_can_not_take_the_share() {
        let key = || GpuGroupKey::new("n", "g");
        let (pod, gpu) = (|| ObjectKey::new("team", "p"), || "GPU-1".to_owned());
        let held = BindFailure::GpuHeldTwice {
            key: key(),
            gpu: gpu(),
            other: "h".into(),
        };
        check(held, "GPU GPU-1 of node n is held for the groups g and h alike");
        let in_use = BindFailure::GpuInUse {
            key: key(),
            gpu: gpu(),
            pod: pod(),
        };
        check(
            in_use,
            "GPU GPU-1 of node n is in use by pod team/p of another group, whose reservation was lost",
        );
        let moved = BindFailure::MemberOnOtherGpu {
            key: key(),
            gpu: gpu(),
            pod: pod(),
            pod_gpus: vec!["GPU-2".into(), "GPU-3".into()],
        };
        check(
            moved,
            "group g of node n holds GPU GPU-1 now, but its pod team/p runs on GPU-2,GPU-3",
        );
        let full = BindFailure::GpuFull {
            key: key(),
            promised_mib: 500,
            memory_mib: 1000,
            requested_mib: 600,
        };
        check(
            full,
            "GPU group g of node n has no room: 500 of 1000 MiB are promised, 600 MiB are asked for",
        );
    }
}
