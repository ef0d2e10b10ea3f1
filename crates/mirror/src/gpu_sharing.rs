//! What the mode of GPU sharing changes: the nodes for pods with GPU shares, or whether such pods start at all.

use kai_api::{GpuSharingMode, Node};
use kai_engine::model::{FractioningCondition, GpuRequest, PodSpec};
use kai_engine::reasons::Refusal;

use super::ClusterMirror;

impl ClusterMirror {
    /// The condition of the node for pods with GPU shares, if the mode requires one.
    pub(super) fn fractioning_condition(&self, node: &Node) -> FractioningCondition {
        match self.gpu_sharing {
            GpuSharingMode::NvFractions => node.fractioning_condition(),
            GpuSharingMode::NonMemoryEnforced | GpuSharingMode::HamiCore | GpuSharingMode::Disabled => {
                FractioningCondition::Met
            }
        }
    }

    /// Refuses a pod with a GPU share where GPUs are not shared.
    pub(super) fn refuse_disabled_share(&self, spec: &mut PodSpec) {
        let is_share = match spec.requests.gpu {
            GpuRequest::Fraction { .. } | GpuRequest::Memory { .. } => true,
            GpuRequest::None | GpuRequest::Whole { .. } | GpuRequest::Mig { .. } => false,
        };
        match self.gpu_sharing {
            GpuSharingMode::Disabled if is_share => {
                spec.refused.get_or_insert(Refusal::GpuSharingDisabled);
            }
            GpuSharingMode::NonMemoryEnforced
            | GpuSharingMode::HamiCore
            | GpuSharingMode::NvFractions
            | GpuSharingMode::Disabled => {}
        }
    }
}
