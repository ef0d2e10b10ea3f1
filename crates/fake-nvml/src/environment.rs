//! The library's settings, from the environment of the process that loads it. Read when NVML is initialised; the control file is polled.
//!
//! | variable | meaning |
//! |---|---|
//! | `KAI_FAKE_GPUS` | GPUs as a list: `a100-40:2/1g.5gb*7,t4` |
//! | `KAI_FAKE_CONFIG` | YAML file with the fake driver's settings, instead of the list |
//! | `KAI_FAKE_SEED` | seed of UUIDs; `NODE_NAME` if unset |
//! | `KAI_FAKE_CONTROL` | control file: faults, loads, events |
//! | `KAI_FAKE_RECORD_DIR` | directory that holds memory limits and compute modes, for several processes |
//! | `KAI_FAKE_VISIBLE_DEVICES` | UUIDs or indices that this process may see; else `NVIDIA_VISIBLE_DEVICES` |
//!
//! Without any of the first two, `/etc/kai/fake-gpus.yaml` is read; without that there is no driver, as on a machine without GPUs.

use std::path::{Path, PathBuf};

use kai_gpu::GpuError;
use kai_gpu::fake::Settings;

/// Settings file for containers without these variables.
const DEFAULT_CONFIG: &str = "/etc/kai/fake-gpus.yaml";

/// Settings and visible GPUs, from the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// `None`: no GPUs are configured.
    pub settings: Option<Settings>,
    /// Which of them this process may see.
    pub visible: Visible,
}

/// Which GPUs a process may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Visible {
    /// All.
    All,
    /// GPUs whose device node exists in this container. The real library does not list a GPU that it can't open either.
    ByNode,
    /// GPUs with these UUIDs, indices or MIG UUIDs.
    Only(Vec<String>),
}

impl Visible {
    /// `all` or no value hides no GPU, `none` hides all. `void` means that CDI injected the GPUs and NVIDIA's runtime must not: then the
    /// device nodes decide.
    pub fn parse(text: Option<&str>) -> Self {
        match text.map(str::trim) {
            None | Some("" | "all") => Visible::All,
            Some("void") => Visible::ByNode,
            Some("none") => Visible::Only(Vec::new()),
            Some(list) => Visible::Only(list.split(',').map(|id| qualified_tail(id.trim()).to_owned()).collect()),
        }
    }
}

/// `nvidia.com/gpu=GPU-1` names `GPU-1`.
fn qualified_tail(id: &str) -> &str {
    id.split_once('=').map_or(id, |(_, device)| device)
}

impl Environment {
    /// Reads the process's environment.
    pub fn read() -> Result<Self, GpuError> {
        Self::from(
            |name| std::env::var(name).ok().filter(|value| !value.is_empty()),
            Path::new(DEFAULT_CONFIG),
        )
    }

    /// From any source of variables, for tests.
    pub fn from(variable: impl Fn(&str) -> Option<String>, default_config: &Path) -> Result<Self, GpuError> {
        let mut settings = match (variable("KAI_FAKE_GPUS"), variable("KAI_FAKE_CONFIG")) {
            (Some(list), _) => Some(list.parse::<Settings>()?),
            (None, Some(file)) => Some(Settings::from_file(Path::new(&file))?),
            (None, None) if default_config.is_file() => Some(Settings::from_file(default_config)?),
            (None, None) => None,
        };
        if let Some(settings) = &mut settings {
            if let Some(seed) = variable("KAI_FAKE_SEED").or_else(|| variable("NODE_NAME")) {
                settings.seed = seed;
            }
            if let Some(control) = variable("KAI_FAKE_CONTROL") {
                settings.control_file = Some(PathBuf::from(control));
            }
            if let Some(directory) = variable("KAI_FAKE_RECORD_DIR") {
                settings.record_dir = Some(PathBuf::from(directory));
            }
        }
        let visible = variable("KAI_FAKE_VISIBLE_DEVICES").or_else(|| variable("NVIDIA_VISIBLE_DEVICES"));
        Ok(Self {
            settings,
            visible: Visible::parse(visible.as_deref()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Environment {
        let find = |name: &str| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        Environment::from(find, Path::new("/nonexistent")).unwrap()
    }

    #[test]
    fn nothing_set_means_no_driver() {
        assert_eq!(read(&[]).settings, None);
    }

    #[test]
    fn variables_make_the_machine() {
        let environment = read(&[
            ("KAI_FAKE_GPUS", "t4:2"),
            ("NODE_NAME", "n1"),
            ("KAI_FAKE_CONTROL", "/c"),
            ("KAI_FAKE_RECORD_DIR", "/r"),
        ]);
        let settings = environment.settings.unwrap();
        assert_eq!((settings.gpus[0].count, settings.seed.as_str()), (2, "n1"));
        assert_eq!(settings.control_file, Some(PathBuf::from("/c")));
        assert_eq!(settings.record_dir, Some(PathBuf::from("/r")));
    }

    #[test]
    fn the_readme_tells_the_truth() {
        let readme = include_str!("../README.md");
        let blocks: Vec<&str> = readme
            .split("```yaml\n")
            .skip(1)
            .filter_map(|rest| rest.split("```").next())
            .collect();
        let [settings, control, limits] = blocks.as_slice() else {
            panic!("three YAML examples")
        };
        let settings = Settings::from_yaml(settings, "README").unwrap();
        assert_eq!(kai_gpu::fake::Machine::new(&settings).unwrap().gpus().len(), 3);
        let indented: String = control.lines().map(|line| format!("  {line}\n")).collect();
        let both = Settings::from_yaml(&format!("control:\n{indented}"), "README").unwrap();
        assert_eq!(both.control.events.len(), 2);
        let indented: String = limits.lines().map(|line| format!("  {line}\n")).collect();
        let limits = Settings::from_yaml(&format!("control:\n{indented}"), "README").unwrap();
        let faults = limits.control.gpus["0"].memory_limits.clone().unwrap();
        assert_eq!((faults.set_code, faults.teardowns), (Some(4), 1));
        for profile in kai_gpu::fake::PROFILES {
            assert!(
                readme.contains(&format!("`{}`", profile.id)),
                "{} is missing",
                profile.id
            );
        }
        for profile in [
            "KAI_FAKE_GPUS",
            "KAI_FAKE_CONFIG",
            "KAI_FAKE_SEED",
            "KAI_FAKE_CONTROL",
            "KAI_FAKE_RECORD_DIR",
            "KAI_FAKE_VISIBLE_DEVICES",
        ] {
            assert!(readme.contains(profile), "{profile} is missing");
        }
    }

    #[test]
    fn visibility_follows_the_usual_words() {
        for (text, visible) in [
            (None, Visible::All),
            (Some("all"), Visible::All),
            (Some("void"), Visible::ByNode),
            (Some("none"), Visible::Only(vec![])),
            (Some("0, GPU-1"), Visible::Only(vec!["0".into(), "GPU-1".into()])),
            (Some("nvidia.com/gpu=GPU-1"), Visible::Only(vec!["GPU-1".into()])),
        ] {
            assert_eq!(Visible::parse(text), visible, "{text:?}");
        }
    }

    #[test]
    fn our_own_variable_wins() {
        let environment = read(&[("NVIDIA_VISIBLE_DEVICES", "all"), ("KAI_FAKE_VISIBLE_DEVICES", "1")]);
        assert_eq!(environment.visible, Visible::Only(vec!["1".into()]));
    }
}
