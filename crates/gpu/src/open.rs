//! Chooses the driver for this machine. Only this module knows all implementations. It fails only for wrong options, never because hardware
//! is missing.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use crate::fake::{FakeDriver, Settings};
use crate::nvml::NvmlDriver;
use crate::platform::{Detection, Evidence, MemoryReserve, detect};
use crate::tegra::TegraDriver;
use crate::{Driver, GpuError, Inventory, NoGpu, PlatformKind, Roots};

/// Which driver to use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DriverChoice {
    /// By platform detection.
    #[default]
    Auto,
    /// NVML, whatever the platform looks like.
    Nvml,
    /// Tegra files.
    Tegra,
    /// Fake GPUs.
    Fake(Box<Settings>),
}

/// `auto`, `nvml`, `tegra`, or `fake:` with fake settings (`fake:t4:2`) or with a YAML file that holds them (`fake:/etc/gpus.yaml`).
impl FromStr for DriverChoice {
    type Err = GpuError;

    fn from_str(text: &str) -> Result<Self, GpuError> {
        match text {
            "auto" => Ok(DriverChoice::Auto),
            "nvml" => Ok(DriverChoice::Nvml),
            "tegra" => Ok(DriverChoice::Tegra),
            _ => match text.strip_prefix("fake:") {
                Some(file) if file.starts_with(['/', '.']) || file.ends_with(".yaml") || file.ends_with(".yml") => {
                    Ok(DriverChoice::Fake(Box::new(Settings::from_file(Path::new(file))?)))
                }
                Some(settings) => Ok(DriverChoice::Fake(Box::new(settings.parse()?))),
                None => Err(GpuError::FakeSettings {
                    origin: format!("{text:?}"),
                    detail: "the drivers are auto, nvml, tegra, fake:<profile>[:<count>] and fake:<file.yaml>"
                        .to_owned(),
                }),
            },
        }
    }
}

/// How to open a driver.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Prefixes of the host's directories.
    pub roots: Roots,
    /// Which driver.
    pub driver: DriverChoice,
    /// NVML library to try first (flag `--nvml-library` or environment).
    pub nvml_library: Option<PathBuf>,
    /// RAM kept from GPU workloads where memory is unified.
    pub memory_reserve: MemoryReserve,
    /// Whether NVML may be used on Tegra. Off for recorded trees and for nodes where NVML misbehaves.
    pub tegra_nvml: bool,
    /// The UUID under which this board's integrated GPU was offered before. The UUID must survive restarts, even if NVML starts or stops
    /// reporting a UUID of its own.
    pub integrated_uuid: Option<String>,
    /// Time after which the driver reopens NVML because a GPU does not answer; later intervals double. NVML reports such a GPU as lost
    /// until it is reopened, even if the GPU is back.
    pub reopen_after: Duration,
}

/// Environment variable that names the NVML library.
pub const NVML_LIBRARY_ENV: &str = "KAI_NVML_LIBRARY";

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            roots: Roots::here(),
            driver: DriverChoice::Auto,
            nvml_library: std::env::var_os(NVML_LIBRARY_ENV).map(PathBuf::from),
            memory_reserve: MemoryReserve::Auto,
            tegra_nvml: true,
            integrated_uuid: None,
            reopen_after: Duration::from_secs(30),
        }
    }
}

/// A driver, with the platform detection that chose it.
#[derive(Debug)]
pub struct Opened {
    /// The driver.
    pub driver: Box<dyn Driver>,
    /// The platform and the evidence for it.
    pub detection: Detection,
}

/// Opens the driver for this machine. A missing library or kernel module is no error here: the driver's calls report it, and succeed once
/// it is repaired.
pub fn open(options: OpenOptions) -> Result<Opened, GpuError> {
    let mut detection = detect(&options.roots);
    let driver: Box<dyn Driver> = match &options.driver {
        DriverChoice::Fake(settings) => Box::new(FakeDriver::start(settings, &options.roots)?),
        DriverChoice::Nvml => Box::new(NvmlDriver::new(options, detection.clone())),
        DriverChoice::Tegra => Box::new(TegraDriver::new(options, detection.clone())),
        DriverChoice::Auto => match detection.platform.kind {
            PlatformKind::Tegra => Box::new(TegraDriver::new(options, detection.clone())),
            PlatformKind::Nvml | PlatformKind::Wsl => Box::new(NvmlDriver::new(options, detection.clone())),
            PlatformKind::Fake | PlatformKind::None => open_without_evidence(options, &mut detection),
        },
    };
    Ok(Opened { driver, detection })
}

/// Used if no file shows a GPU. If NVML lists GPUs nevertheless (hidden sysfs, or a fake library), the platform becomes NVML.
fn open_without_evidence(options: OpenOptions, detection: &mut Detection) -> Box<dyn Driver> {
    let nvml = NvmlDriver::new(options, detection.clone());
    match nvml.devices() {
        Ok(inventory) if !inventory.devices.is_empty() => {
            detection.platform.kind = PlatformKind::Nvml;
            let library = inventory.nvml_library.unwrap_or_default();
            let saw = format!("NVML ({library}) lists {} GPU(s)", inventory.devices.len());
            detection.evidence.push(Evidence {
                saw,
                means: "GPUs that no file showed: platform nvml".to_owned(),
            });
            Box::new(nvml.with_platform(detection.platform.clone()))
        }
        Ok(_) | Err(_) => {
            let notes = vec!["no NVIDIA GPU was found on this machine".to_owned()];
            Box::new(NoGpu::new(Inventory {
                platform: detection.platform.clone(),
                notes,
                ..Inventory::default()
            }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_words_lists_or_files() {
        assert_eq!("auto".parse::<DriverChoice>().unwrap(), DriverChoice::Auto);
        assert_eq!("tegra".parse::<DriverChoice>().unwrap(), DriverChoice::Tegra);
        let DriverChoice::Fake(settings) = "fake:a100-40:2/1g.5gb".parse().unwrap() else {
            panic!("fake")
        };
        assert_eq!(settings.gpus[0].count, 2);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gpus.yaml");
        std::fs::write(&path, "gpus: [{profile: thor}]").unwrap();
        let DriverChoice::Fake(settings) = format!("fake:{}", path.display()).parse().unwrap() else {
            panic!("fake")
        };
        assert_eq!(settings.gpus[0].profile, "thor");
        assert!(
            "cuda"
                .parse::<DriverChoice>()
                .unwrap_err()
                .to_string()
                .contains("the drivers are")
        );
        assert!("fake:/nonexistent.yaml".parse::<DriverChoice>().is_err());
    }
}
