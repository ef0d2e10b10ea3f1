//! How a node holds a container to its part of a GPU, and the limits that the binder promises to a pod.

use serde::{Deserialize, Serialize};

/// Reason of a pod's event, of the binder and of the node agent: nothing limits the GPU memory of its container, although the pod prefers a
/// limit or its node had promised one.
pub const EVENT_LIMIT_NOT_ENFORCED: &str = "GPULimitNotEnforced";

/// What a node enforces. The node agent decides it, and writes it as the node's label [`crate::keys::GPU_ENFORCEMENT`]. Higher tiers come
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EnforcementTier {
    /// The driver limits the GPU memory of each container.
    Driver,
    /// A multi-process server (MPS) limits the multiprocessors of each container, and the memory of each process.
    Mps,
    /// Nothing is limited. The agent reports containers above their share.
    Watch,
    /// Nothing is limited or reported.
    None,
}

impl EnforcementTier {
    /// The value of the node's label.
    pub fn name(self) -> &'static str {
        match self {
            EnforcementTier::Driver => "driver",
            EnforcementTier::Mps => "mps",
            EnforcementTier::Watch => "watch",
            EnforcementTier::None => "none",
        }
    }

    /// The tier with this name.
    pub fn from_name(name: &str) -> Option<EnforcementTier> {
        [
            EnforcementTier::Driver,
            EnforcementTier::Mps,
            EnforcementTier::Watch,
            EnforcementTier::None,
        ]
        .into_iter()
        .find(|tier| tier.name() == name)
    }

    /// Whether a container can't get more GPU memory than its limit.
    pub fn limits_memory(self) -> bool {
        match self {
            EnforcementTier::Driver => true,
            EnforcementTier::Mps | EnforcementTier::Watch | EnforcementTier::None => false,
        }
    }
}

/// Whether a pod requires that its node limits the GPU memory of containers: the value of the pod's annotation
/// [`crate::keys::GPU_ENFORCEMENT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Enforcement {
    /// The pod also starts on a node that limits nothing.
    #[default]
    Preferred,
    /// The pod waits for a node that does.
    Required,
}

impl Enforcement {
    /// The value of the pod's annotation.
    pub fn name(self) -> &'static str {
        match self {
            Enforcement::Preferred => "preferred",
            Enforcement::Required => "required",
        }
    }

    /// The value with this name.
    pub fn from_name(name: &str) -> Option<Enforcement> {
        [Enforcement::Preferred, Enforcement::Required]
            .into_iter()
            .find(|enforcement| enforcement.name() == name)
    }
}

/// How containers that share a GPU use its multiprocessors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeMode {
    /// One after the other.
    #[default]
    TimeSlicing,
    /// Each has a part of them, through a multi-process server.
    SmSharing,
}

impl ComputeMode {
    /// The value of the pod's annotation.
    pub fn name(self) -> &'static str {
        match self {
            ComputeMode::TimeSlicing => "time-slicing",
            ComputeMode::SmSharing => "sm-sharing",
        }
    }

    /// The mode with this name.
    pub fn from_name(name: &str) -> Option<ComputeMode> {
        [ComputeMode::TimeSlicing, ComputeMode::SmSharing]
            .into_iter()
            .find(|mode| mode.name() == name)
    }
}

/// The limits of a pod with a GPU share: the value of [`crate::keys::GPU_LIMITS`], as JSON. The binder computes them when it has chosen the
/// GPU; tenants can't write the annotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuLimits {
    /// The container with the GPU share.
    pub container: String,
    /// The most memory that the container may allocate on each of its GPUs, in MiB.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u64,
    /// How the container uses the multiprocessors.
    #[serde(default)]
    pub compute_mode: ComputeMode,
    /// Its part of the multiprocessors in percent, 1 to 100: always there for [`ComputeMode::SmSharing`], and only there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_percent: Option<u8>,
}

impl GpuLimits {
    /// Parses the annotation. The error says what is wrong with it.
    pub fn parse(annotation: &str) -> Result<GpuLimits, serde_json::Error> {
        serde_json::from_str(annotation)
    }

    /// The annotation.
    pub fn to_annotation(&self) -> String {
        serde_json::to_string(self).expect("a struct of texts and numbers is valid JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for tier in ["driver", "mps", "watch", "none"] {
            assert_eq!(EnforcementTier::from_name(tier).map(EnforcementTier::name), Some(tier));
        }
        for mode in ["time-slicing", "sm-sharing"] {
            assert_eq!(ComputeMode::from_name(mode).map(ComputeMode::name), Some(mode));
        }
        assert_eq!(EnforcementTier::from_name("Driver"), None);
        for name in ["required", "preferred"] {
            assert_eq!(Enforcement::from_name(name).map(Enforcement::name), Some(name));
        }
    }

    #[test]
    fn limits_are_read_as_they_are_written() {
        let limits = GpuLimits {
            container: "main".to_owned(),
            memory_mib: 20_480,
            compute_mode: ComputeMode::SmSharing,
            compute_percent: Some(50),
        };
        let annotation = limits.to_annotation();
        assert_eq!(
            annotation,
            r#"{"container":"main","memoryMiB":20480,"computeMode":"sm-sharing","computePercent":50}"#
        );
        assert_eq!(GpuLimits::parse(&annotation).expect("valid"), limits);
        let short = GpuLimits::parse(r#"{"container":"main","memoryMiB":1}"#).expect("valid");
        assert_eq!(
            (short.compute_mode, short.compute_percent),
            (ComputeMode::TimeSlicing, None)
        );
        assert!(GpuLimits::parse(r#"{"container":"main","memoryMiB":-1}"#).is_err());
    }
}
