//! The evidence that platform detection found, for people: `kai doctor` prints it. No later decision depends on it.

use serde::{Deserialize, Serialize};

use super::KernelGpu;
use crate::{Platform, PlatformKind};

/// The detected platform, with the evidence for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Detection {
    /// The detected platform.
    pub platform: Platform,
    /// Kernel module version, if it is loaded.
    pub driver_version: Option<String>,
    /// GPUs that the kernel module lists, also if NVML is missing.
    pub kernel_gpus: Vec<KernelGpu>,
    /// All observations, in the order of the checks. The last entry is the conclusion.
    pub evidence: Vec<Evidence>,
}

/// One observation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// What was found, with host paths.
    pub saw: String,
    /// What it means.
    pub means: String,
}

impl Detection {
    /// One line per observation.
    pub fn explain(&self) -> String {
        let lines: Vec<String> = self
            .evidence
            .iter()
            .map(|evidence| format!("{}: {}", evidence.saw, evidence.means))
            .collect();
        lines.join("\n")
    }
}

/// Collects observations during detection.
#[derive(Debug, Default)]
pub(super) struct Collector {
    evidence: Vec<Evidence>,
}

impl Collector {
    pub(super) fn add(&mut self, saw: impl Into<String>, means: impl Into<String>) {
        self.evidence.push(Evidence {
            saw: saw.into(),
            means: means.into(),
        });
    }

    pub(super) fn conclude(
        mut self,
        platform: Platform,
        driver_version: Option<String>,
        kernel_gpus: Vec<KernelGpu>,
    ) -> Detection {
        let discrete = super::discrete_gpus(&platform).count();
        let means = match (platform.kind, discrete) {
            (PlatformKind::Tegra, 0) => "Tegra with an integrated GPU".to_owned(),
            (PlatformKind::Tegra, n) => format!("Tegra with an integrated GPU and {n} discrete one(s)"),
            (PlatformKind::Nvml, _) => "GPUs under NVIDIA's ordinary driver, reached by NVML".to_owned(),
            (PlatformKind::Wsl, _) => "GPUs of the Windows host, reached by NVML".to_owned(),
            (PlatformKind::Fake, _) => "a made-up machine".to_owned(),
            (PlatformKind::None, _) => "no NVIDIA GPU".to_owned(),
        };
        self.add(format!("conclusion: platform {}", platform.kind), means);
        Detection {
            platform,
            driver_version,
            kernel_gpus,
            evidence: self.evidence,
        }
    }
}
