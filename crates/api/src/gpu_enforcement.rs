//! How a node holds a container to its part of a GPU, and the limits that the binder promises to a pod.

use serde::{Deserialize, Serialize};

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

/// How an installation shares GPUs: KAI's `global.gpuSharingMode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GpuSharingMode {
    /// Pods share GPUs. The node agent limits GPU memory where the node can.
    #[default]
    NonMemoryEnforced,
    /// The same, and containers get the limit for HAMi's library.
    HamiCore,
    /// Pods share only GPUs of nodes that enforce limits of GPU memory.
    NvFractions,
    /// Pods get whole GPUs only.
    Disabled,
}

impl GpuSharingMode {
    /// The modes.
    pub const ALL: [GpuSharingMode; 4] = [
        GpuSharingMode::NonMemoryEnforced,
        GpuSharingMode::HamiCore,
        GpuSharingMode::NvFractions,
        GpuSharingMode::Disabled,
    ];

    /// KAI's name.
    pub fn name(self) -> &'static str {
        match self {
            GpuSharingMode::NonMemoryEnforced => "NonMemoryEnforced",
            GpuSharingMode::HamiCore => "HamiCore",
            GpuSharingMode::NvFractions => "NvFractions",
            GpuSharingMode::Disabled => "Disabled",
        }
    }

    /// The mode, and before KAI 0.18 a switch: the switch counts where the mode is not set. Without both, GPU sharing is on.
    pub fn of(mode: Option<GpuSharingMode>, sharing: Option<bool>) -> GpuSharingMode {
        match (mode, sharing) {
            (Some(mode), _) => mode,
            (None, Some(false)) => GpuSharingMode::Disabled,
            (None, Some(true) | None) => GpuSharingMode::NonMemoryEnforced,
        }
    }

    /// Whether pods may share GPUs.
    pub fn shares(self) -> bool {
        match self {
            GpuSharingMode::NonMemoryEnforced | GpuSharingMode::HamiCore | GpuSharingMode::NvFractions => true,
            GpuSharingMode::Disabled => false,
        }
    }
}

impl std::fmt::Display for GpuSharingMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is no mode of GPU sharing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is unknown; write NonMemoryEnforced, HamiCore, NvFractions or Disabled")]
pub struct UnknownGpuSharingMode(String);

impl std::str::FromStr for GpuSharingMode {
    type Err = UnknownGpuSharingMode;

    fn from_str(name: &str) -> Result<GpuSharingMode, UnknownGpuSharingMode> {
        let mut all = GpuSharingMode::ALL.into_iter();
        all.find(|mode| mode.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| UnknownGpuSharingMode(name.to_owned()))
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
    /// Its part of the multiprocessors in percent, 1 to 100, for [`ComputeMode::SmSharing`].
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
        for mode in GpuSharingMode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        assert_eq!("hamicore".parse(), Ok(GpuSharingMode::HamiCore));
        let error = "On".parse::<GpuSharingMode>().unwrap_err().to_string();
        assert!(error.contains("NvFractions"), "{error}");
    }

    #[test]
    fn the_mode_counts_before_the_switch() {
        use GpuSharingMode::{Disabled, HamiCore, NonMemoryEnforced};
        for (mode, sharing, expect) in [
            (None, None, NonMemoryEnforced),
            (None, Some(true), NonMemoryEnforced),
            (None, Some(false), Disabled),
            (Some(HamiCore), Some(true), HamiCore),
            (Some(HamiCore), Some(false), HamiCore),
            (Some(Disabled), None, Disabled),
        ] {
            assert_eq!(GpuSharingMode::of(mode, sharing), expect, "{mode:?} {sharing:?}");
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
