//! The mode of GPU sharing of an installation: `spec.global.gpuSharingMode` of its Config, and the flag `--gpu-sharing-mode` of its roles.

use std::fmt;
use std::str::FromStr;

/// Who holds pods with GPU shares to their part of the memory, by KAI's names. The node agent enforces limits wherever the node can,
/// whatever the mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GpuSharingMode {
    /// Nobody, as far as KAI knows.
    #[default]
    NonMemoryEnforced,
    /// The library of HAMi, by a variable that the binder sets.
    HamiCore,
    /// The node: pods with GPU shares start only where the condition `gpu-fractioning.nvidia.com/Ready` is true.
    NvFractions,
    /// GPUs are not shared: pods with GPU shares wait.
    Disabled,
}

impl GpuSharingMode {
    /// All modes.
    pub const ALL: [GpuSharingMode; 4] = [
        GpuSharingMode::NonMemoryEnforced,
        GpuSharingMode::HamiCore,
        GpuSharingMode::NvFractions,
        GpuSharingMode::Disabled,
    ];

    /// The name in the Config and in flags.
    pub fn name(self) -> &'static str {
        match self {
            GpuSharingMode::NonMemoryEnforced => "NonMemoryEnforced",
            GpuSharingMode::HamiCore => "HamiCore",
            GpuSharingMode::NvFractions => "NvFractions",
            GpuSharingMode::Disabled => "Disabled",
        }
    }

    /// The mode, and the switch before KAI 0.18, which counts where the mode is not set. Without both, GPU sharing is on.
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

impl fmt::Display for GpuSharingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is none of the modes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no mode of GPU sharing; write NonMemoryEnforced, HamiCore, NvFractions or Disabled")]
pub struct UnknownGpuSharingMode(String);

impl FromStr for GpuSharingMode {
    type Err = UnknownGpuSharingMode;

    fn from_str(name: &str) -> Result<GpuSharingMode, UnknownGpuSharingMode> {
        let found = GpuSharingMode::ALL.into_iter().find(|mode| mode.name() == name);
        found.ok_or_else(|| UnknownGpuSharingMode(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let mode = GpuSharingMode::of(mode, sharing);
            assert_eq!((mode, mode.shares()), (expect, expect != Disabled), "{sharing:?}");
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for mode in GpuSharingMode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert_eq!(
            "nvfractions".parse::<GpuSharingMode>().unwrap_err().to_string(),
            "\"nvfractions\" is no mode of GPU sharing; write NonMemoryEnforced, HamiCore, NvFractions or Disabled"
        );
    }
}
