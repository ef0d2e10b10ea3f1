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
