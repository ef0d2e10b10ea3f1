//! Settings of the fake machine, from a flag (`a100-40:2,t4`) or a YAML file. Parses and checks only; a wrong setting is refused with the
//! list of valid ones.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Control, profile_names};
use crate::GpuError;

/// Upper bound on fake GPUs of one machine. Real machines have at most 16; more is a typing mistake.
pub(crate) const GPUS_PER_MACHINE_MAX: u32 = 64;

/// Settings of the fake driver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Settings {
    /// Seed of UUIDs and serial numbers. Use the node's name, so that they are stable and unique in a cluster.
    pub seed: String,
    /// GPUs, in order of their indices.
    pub gpus: Vec<GpuSettings>,
    /// Machine name instead of the profile's.
    pub machine: Option<String>,
    /// Kernel driver version instead of the profile's.
    pub driver_version: Option<String>,
    /// CUDA version (`12.6`) instead of the profile's.
    pub cuda_version: Option<String>,
    /// Control file, which is polled; its content replaces `control`.
    pub control_file: Option<PathBuf>,
    /// Directory in which memory limits and compute modes are kept, so that several processes share them. Absent: each process has its own.
    pub record_dir: Option<PathBuf>,
    /// Faults and loads at the start.
    pub control: Control,
}

/// A number of equal GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuSettings {
    /// Name of the profile.
    pub profile: String,
    /// How many.
    #[serde(default = "one")]
    pub count: u32,
    /// MIG profiles on each of them. Absent: MIG is off. Empty: on, without partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<Vec<String>>,
    /// Product name instead of the profile's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Memory instead of the profile's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
}

fn one() -> u32 {
    1
}

impl Settings {
    /// `count` GPUs of one profile.
    pub fn of(profile: &str, count: u32) -> Self {
        Self {
            gpus: vec![GpuSettings {
                profile: profile.to_owned(),
                count,
                mig: None,
                name: None,
                memory_mib: None,
            }],
            ..Self::default()
        }
    }

    /// Sets the seed of UUIDs.
    pub fn seeded(self, seed: &str) -> Self {
        Self {
            seed: seed.to_owned(),
            ..self
        }
    }

    /// Sets faults and loads: the path of a control file, or its content as a YAML map in braces (`{gpus: {0: {state: lost}}}`).
    pub fn controlled(mut self, control: &str) -> Result<Self, GpuError> {
        if !control.trim_start().starts_with('{') {
            self.control_file = Some(PathBuf::from(control));
            return Ok(self);
        }
        self.control = kai_yaml::from_str(control).map_err(|detail| GpuError::FakeControl {
            origin: format!("{control:?}"),
            detail,
        })?;
        Ok(self)
    }

    /// From a YAML document. `origin` is for messages.
    pub fn from_yaml(text: &str, origin: &str) -> Result<Self, GpuError> {
        kai_yaml::from_str(text).map_err(|detail| GpuError::FakeSettings {
            origin: origin.to_owned(),
            detail,
        })
    }

    /// From a YAML file.
    pub fn from_file(path: &Path) -> Result<Self, GpuError> {
        let text = std::fs::read_to_string(path).map_err(|source| GpuError::File {
            path: path.to_owned(),
            source,
        })?;
        Self::from_yaml(&text, &path.display().to_string())
    }
}

/// A comma-separated list of `profile[:count][/mig-profile[*n]]...`: `a100-40:2/1g.5gb*3/2g.10gb,t4`.
impl FromStr for Settings {
    type Err = GpuError;

    fn from_str(text: &str) -> Result<Self, GpuError> {
        let refuse = |detail: String| GpuError::FakeSettings {
            origin: format!("{text:?}"),
            detail,
        };
        let number = |digits: &str| {
            digits
                .parse::<u32>()
                .map_err(|_| refuse(format!("{digits:?} is no count")))
        };
        let mut gpus = Vec::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let mut parts = item.split('/');
            let head = parts.next().unwrap_or_default();
            let (profile, count) = match head.split_once(':') {
                Some((profile, count)) => (profile, number(count)?),
                None => (head, 1),
            };
            let mut mig = Vec::new();
            for part in parts {
                let (name, times) = match part.split_once('*') {
                    Some((name, times)) => (name, number(times)?),
                    None => (part, 1),
                };
                mig.extend(std::iter::repeat_n(name.to_owned(), times.min(8) as usize));
            }
            let mig = item.contains('/').then_some(mig);
            gpus.push(GpuSettings {
                profile: profile.to_owned(),
                count,
                mig,
                name: None,
                memory_mib: None,
            });
        }
        if gpus.is_empty() {
            return Err(refuse(format!(
                "no GPU is named; the profiles are: {}",
                profile_names()
            )));
        }
        Ok(Self {
            gpus,
            ..Self::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_name_profiles_counts_and_partitions() {
        let settings: Settings = "a100-40:2/1g.5gb*3/2g.10gb, t4".parse().unwrap();
        assert_eq!(settings.gpus.len(), 2);
        assert_eq!(settings.gpus[0].count, 2);
        let mig = settings.gpus[0].mig.clone().unwrap();
        assert_eq!(mig, ["1g.5gb", "1g.5gb", "1g.5gb", "2g.10gb"]);
        assert_eq!((settings.gpus[1].profile.as_str(), settings.gpus[1].count), ("t4", 1));
        assert!(settings.gpus[1].mig.is_none());
    }

    #[test]
    fn faults_come_from_a_flag_or_a_file() {
        let settings = Settings::of("t4", 2);
        let inline = settings.clone().controlled("{gpus: {1: {state: lost}}}").unwrap();
        assert_eq!(inline.control.gpus["1"].state, Some(crate::fake::GpuState::Lost));
        let file = settings.clone().controlled("/run/control.yaml").unwrap();
        assert_eq!(file.control_file.as_deref(), Some(Path::new("/run/control.yaml")));
        assert!(settings.controlled("{gpus: {1: {state: sad}}}").is_err());
    }

    #[test]
    fn nonsense_is_refused_with_help() {
        for text in ["", " , ", "t4:many", "a100-40/1g.5gb*x"] {
            let error = text.parse::<Settings>().unwrap_err();
            assert!(error.to_string().contains("fake GPU settings"), "{error}");
        }
    }

    #[test]
    fn yaml_says_the_same_and_more() {
        let text = "
seed: node-1
driverVersion: 999.1
gpus:
- profile: a100-40
  count: 2
  mig: [1g.5gb, 2g.10gb]
- {profile: t4, memoryMib: 8000}
control:
  gpus:
    0: {state: lost}
    '*': {temperatureCelsius: 80}
  events:
  - {gpu: 1, xid: 79}
";
        let settings = Settings::from_yaml(text, "test").unwrap();
        assert_eq!(settings.gpus[1].memory_mib, Some(8000));
        assert_eq!(settings.driver_version.as_deref(), Some("999.1"));
        assert_eq!(settings.control.events[0].xid, Some(79));
        assert!(settings.control.gpus.contains_key("0"));
    }

    #[test]
    fn errors_name_no_option_of_the_yaml_parser() {
        let twice = Settings::from_yaml("seed: a\nseed: b\n", "test.yaml").unwrap_err();
        let inline = Settings::of("t4", 1).controlled("{gpus: {}, gpus: {}}").unwrap_err();
        for error in [twice, inline] {
            let told = error.to_string();
            assert!(told.contains("duplicate key") && !told.contains("Policy"), "{told}");
        }
    }

    #[test]
    fn a_misspelt_key_is_refused() {
        let error = Settings::from_yaml("gpuz: []", "test.yaml").unwrap_err();
        assert!(error.to_string().contains("test.yaml"), "{error}");
    }
}
