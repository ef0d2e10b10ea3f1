//! A pod with a node, as the invariants read it from its object.

use kai_api::{ObjectKey, PodIdentity, ReservationPods, keys};
use kai_engine::model::{GpuRequest, Millis, PodPhase, PodSpec};

/// A pod with a node that is not terminal.
#[derive(Debug)]
pub(super) struct BoundPod {
    pub(super) spec: PodSpec,
    pub(super) node: String,
    pub(super) terminating: bool,
    pub(super) is_reservation: bool,
    pub(super) reserved: Option<String>,
    pub(super) group: Option<String>,
    /// Whether its pod has to run where GPU memory is limited.
    pub(super) requires_limit: bool,
    /// MiB of each GPU that the binder promised as the limit.
    pub(super) promised_mib: Option<i64>,
    /// `spec.schedulerName`.
    scheduler: String,
    /// Whether the pod runs, so that a kubelet has admitted it.
    pub(super) runs: bool,
}

impl BoundPod {
    pub(super) fn of(pod: &kai_api::Pod, reservation_pods: &ReservationPods) -> Option<BoundPod> {
        let node = pod.node_name()?.to_owned();
        let spec = pod.read(&PodIdentity::default(), Millis(0)).ok()?.value;
        if matches!(spec.phase, PodPhase::Succeeded | PodPhase::Failed) {
            return None;
        }
        let label = |key: &str| pod.metadata.labels.text(key).map(str::to_owned);
        Some(BoundPod {
            node,
            terminating: pod.metadata.deletion_timestamp.is_some(),
            is_reservation: reservation_pods.contains(pod),
            reserved: pod.metadata.annotations.text(keys::RESERVED_GPU).map(str::to_owned),
            group: label(keys::GPU_GROUP),
            requires_limit: pod.metadata.annotations.text(keys::GPU_ENFORCEMENT) == Some("required"),
            promised_mib: pod.metadata.annotations.text(keys::GPU_LIMITS).and_then(promised_mib),
            scheduler: pod.scheduler_name().to_owned(),
            runs: spec.phase == PodPhase::Running,
            spec,
        })
    }

    pub(super) fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.spec.namespace, &self.spec.name)
    }

    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.spec.namespace, self.spec.name)
    }

    /// Whether another scheduler placed the pod.
    pub(super) fn is_foreign(&self) -> bool {
        !self.is_reservation && self.scheduler != keys::SCHEDULER_NAME
    }

    /// The number of whole GPUs that the pod requests.
    pub(super) fn whole_gpus(&self) -> i64 {
        match self.spec.requests.gpu {
            GpuRequest::Whole { devices } => devices,
            GpuRequest::None | GpuRequest::Fraction { .. } | GpuRequest::Memory { .. } | GpuRequest::Mig { .. } => 0,
        }
    }

    /// The GPUs that the pod counts as in its queue, on a node whose GPUs have this memory. This arithmetic is separate from the engine's
    /// on purpose: the invariants must not repeat its errors.
    pub(super) fn gpus(&self, memory_mib: Option<i64>) -> f64 {
        match &self.spec.requests.gpu {
            GpuRequest::None | GpuRequest::Mig { .. } => 0.0,
            GpuRequest::Whole { devices } => *devices as f64,
            GpuRequest::Fraction { fraction, devices } => fraction.billionths() as f64 / 1e9 * *devices as f64,
            GpuRequest::Memory { mib, devices } => {
                *mib as f64 / memory_mib.unwrap_or(i64::MAX) as f64 * *devices as f64
            }
        }
    }

    /// The memory in MiB that the pod uses of each GPU that it shares.
    pub(super) fn share_mib(&self, memory_mib: i64) -> Option<i64> {
        match &self.spec.requests.gpu {
            GpuRequest::Fraction { fraction, .. } => {
                let share = i128::from(fraction.billionths()) * i128::from(memory_mib) / 1_000_000_000;
                i64::try_from(share).ok()
            }
            GpuRequest::Memory { mib, .. } => Some(*mib),
            GpuRequest::None | GpuRequest::Whole { .. } | GpuRequest::Mig { .. } => None,
        }
    }
}

/// The limit in the binder's annotation.
fn promised_mib(annotation: &str) -> Option<i64> {
    let limits: serde_json::Value = serde_json::from_str(annotation).ok()?;
    limits["memoryMiB"].as_i64()
}
