//! The file format of the Container Device Interface, as far as we write it, and a validator for its rules. Data only: `spec` decides the
//! content, `store` writes it.
//!
//! The types are our own, because the published crate can only read specs (see docs/node-agent.md).

use serde::{Deserialize, Serialize};

/// A spec file: one kind (`vendor/class`) with its devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// The lowest format version that has all features of this spec: older runtimes refuse newer versions.
    pub cdi_version: String,
    /// `vendor/class`.
    pub kind: String,
    /// The devices that containers can request by name.
    pub devices: Vec<Device>,
    /// Edits that apply once if a container requests any device of this file.
    #[serde(default, skip_serializing_if = "Edits::is_empty")]
    pub container_edits: Edits,
}

/// A device that a container can request by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    /// Name, unique within the kind.
    pub name: String,
    /// The edits of the container. Must not be empty.
    pub container_edits: Edits,
}

/// Changes to a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Edits {
    /// `KEY=value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes, with the cgroup rule that lets them be opened.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Bind mounts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Supplementary groups of the container's process. Since format 0.7.0.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
    /// Programs of the host that the runtime runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
}

impl Edits {
    fn is_empty(&self) -> bool {
        *self == Edits::default()
    }

    /// Adds the edits of `other` that are missing.
    pub fn merge(&mut self, other: &Edits) {
        fn add<T: Clone + PartialEq>(all: &mut Vec<T>, more: &[T]) {
            for one in more {
                if !all.contains(one) {
                    all.push(one.clone());
                }
            }
        }
        add(&mut self.env, &other.env);
        add(&mut self.device_nodes, &other.device_nodes);
        add(&mut self.mounts, &other.mounts);
        add(&mut self.additional_gids, &other.additional_gids);
        add(&mut self.hooks, &other.hooks);
    }
}

/// A device node. The runtime reads major and minor numbers from the host when the container starts, because dynamic majors (nvidia-uvm,
/// nvgpu) change with every boot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceNode {
    /// Path in the container.
    pub path: String,
    /// Path on the host, if different. Since format 0.5.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    /// Any of `r`, `w` and `m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<String>,
    /// Owner group in the container, if not root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

/// A program of the host that the runtime runs at a point in a container's life.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hook {
    /// The point: one of [`HOOK_NAMES`].
    pub hook_name: String,
    /// Absolute path on the host.
    pub path: String,
    /// The words of the command line; the first one is the program's name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Its whole environment, `KEY=value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Seconds after which the runtime ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u32>,
}

/// The points at which runtimes run hooks.
pub const HOOK_NAMES: [&str; 6] = [
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
];

/// A bind mount.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mount {
    /// Path on the host.
    pub host_path: String,
    /// Path in the container.
    pub container_path: String,
    /// Options as for mount(8).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Spec {
    /// The lowest format version that covers what the spec uses.
    pub fn version_needed(&self) -> &'static str {
        let all = || {
            self.devices
                .iter()
                .map(|device| &device.container_edits)
                .chain([&self.container_edits])
        };
        let class_has_dot = self.kind.split_once('/').is_some_and(|(_, class)| class.contains('.'));
        if all().any(|edits| !edits.additional_gids.is_empty()) {
            "0.7.0"
        } else if class_has_dot {
            "0.6.0"
        } else if self
            .devices
            .iter()
            .any(|device| !device.name.starts_with(|first: char| first.is_ascii_alphabetic()))
            || all().any(|edits| edits.device_nodes.iter().any(|node| node.host_path.is_some()))
        {
            "0.5.0"
        } else {
            "0.3.0"
        }
    }

    /// Everything in the spec that a runtime would refuse, in words. Empty for a valid spec.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        match self.kind.split_once('/') {
            Some((vendor, class)) if is_vendor(vendor) && is_class(class) => {}
            Some(_) | None => problems.push(format!("kind {:?} is not vendor/class", self.kind)),
        }
        if version(&self.cdi_version) < version(self.version_needed()) {
            problems.push(format!(
                "cdiVersion {} is too low: {} is needed",
                self.cdi_version,
                self.version_needed()
            ));
        }
        let mut names: Vec<&str> = self.devices.iter().map(|device| device.name.as_str()).collect();
        names.sort_unstable();
        for pair in names.windows(2).filter(|pair| pair[0] == pair[1]) {
            problems.push(format!("device {:?} is there twice", pair[0]));
        }
        if self.devices.is_empty() {
            problems.push("there is no device".to_owned());
        }
        for device in &self.devices {
            if !is_device_name(&device.name) {
                problems.push(format!("device name {:?} is not allowed", device.name));
            }
            if device.container_edits.is_empty() {
                problems.push(format!("device {:?} changes nothing in the container", device.name));
            }
            edit_problems(&device.container_edits, &mut problems);
        }
        edit_problems(&self.container_edits, &mut problems);
        problems
    }
}

fn edit_problems(edits: &Edits, problems: &mut Vec<String>) {
    for env in &edits.env {
        if env.split_once('=').is_none_or(|(key, _)| key.is_empty()) {
            problems.push(format!("environment entry {env:?} is not KEY=value"));
        }
    }
    for hook in &edits.hooks {
        if !HOOK_NAMES.contains(&hook.hook_name.as_str()) {
            problems.push(format!("hook name {:?} is unknown", hook.hook_name));
        }
        if !hook.path.starts_with('/') {
            problems.push(format!("hook path {:?} is not absolute", hook.path));
        }
        for env in hook
            .env
            .iter()
            .filter(|env| env.split_once('=').is_none_or(|(key, _)| key.is_empty()))
        {
            problems.push(format!("environment entry {env:?} of a hook is not KEY=value"));
        }
    }
    for node in &edits.device_nodes {
        if !node.path.starts_with('/') {
            problems.push(format!("device node path {:?} is not absolute", node.path));
        }
        if node
            .permissions
            .as_deref()
            .is_some_and(|text| text.is_empty() || text.chars().any(|c| !"rwm".contains(c)))
        {
            problems.push(format!(
                "device node {} has permissions other than r, w and m",
                node.path
            ));
        }
    }
    for mount in &edits.mounts {
        if !mount.host_path.starts_with('/') || !mount.container_path.starts_with('/') {
            problems.push(format!(
                "mount {:?} to {:?} is not absolute",
                mount.host_path, mount.container_path
            ));
        }
    }
}

/// Turns a UUID or index into a legal device name: illegal characters, such as the `/` of old MIG UUIDs, become `-`.
pub fn device_name(identity: &str) -> String {
    let legal = |c: char| {
        if c.is_ascii_alphanumeric() || "_-.:".contains(c) {
            c
        } else {
            '-'
        }
    };
    identity
        .chars()
        .map(legal)
        .collect::<String>()
        .trim_matches(|c: char| !c.is_ascii_alphanumeric())
        .to_owned()
}

fn is_device_name(name: &str) -> bool {
    bounded(name) && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.:".contains(c))
}

fn is_vendor(name: &str) -> bool {
    bounded(name)
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
}

fn is_class(name: &str) -> bool {
    is_vendor(name)
}

/// Begins and ends with a letter or digit.
fn bounded(name: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    name.starts_with(edge) && name.ends_with(edge)
}

fn version(text: &str) -> Vec<u32> {
    text.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str) -> Spec {
        let node = DeviceNode {
            path: "/dev/nvidia0".into(),
            host_path: None,
            permissions: None,
            gid: None,
        };
        let container_edits = Edits {
            device_nodes: vec![node],
            ..Edits::default()
        };
        let mut spec = Spec {
            cdi_version: String::new(),
            kind: "kai.scheduler/gpu".into(),
            devices: vec![Device {
                name: name.into(),
                container_edits,
            }],
            container_edits: Edits::default(),
        };
        spec.cdi_version = spec.version_needed().to_owned();
        spec
    }

    #[test]
    fn the_version_is_the_lowest_that_will_do() {
        assert_eq!(spec("all").cdi_version, "0.3.0");
        assert_eq!(spec("0").cdi_version, "0.5.0");
        let mut with_groups = spec("all");
        with_groups.devices[0].container_edits.additional_gids.push(44);
        assert_eq!(with_groups.version_needed(), "0.7.0");
        assert_eq!(with_groups.problems(), ["cdiVersion 0.3.0 is too low: 0.7.0 is needed"]);
    }

    #[test]
    fn names_follow_the_rules_of_the_format() {
        assert_eq!(device_name("MIG-GPU-0d1/3/0"), "MIG-GPU-0d1-3-0");
        assert_eq!(device_name("0:1"), "0:1");
        for name in ["all", "0", "0:1", "GPU-1", "a_b.c"] {
            assert!(spec(name).problems().is_empty(), "{name}");
        }
        for name in ["", "-a", "a-", "a/b", "a b"] {
            assert!(!spec(name).problems().is_empty(), "{name}");
        }
    }

    #[test]
    fn what_a_runtime_would_refuse_is_named() {
        let mut bad = spec("all");
        bad.kind = "gpu".into();
        bad.devices.push(bad.devices[0].clone());
        bad.devices.push(Device {
            name: "empty".into(),
            container_edits: Edits::default(),
        });
        bad.container_edits.env.push("novalue".into());
        bad.container_edits.mounts.push(Mount {
            host_path: "relative".into(),
            container_path: "/x".into(),
            options: Vec::new(),
        });
        bad.container_edits.hooks.push(Hook {
            hook_name: "atStart".into(),
            path: "kai".into(),
            args: Vec::new(),
            env: vec!["novalue".into()],
            timeout: None,
        });
        assert_eq!(bad.problems().len(), 8, "{:#?}", bad.problems());
    }

    fn fuzz(fuzz: kai_fuzz::Fuzz) {
        let mut full = spec("GPU-1");
        full.devices[0].container_edits.additional_gids.push(44);
        full.container_edits.env.push("NVIDIA_VISIBLE_DEVICES=void".into());
        full.container_edits.mounts.push(Mount {
            host_path: "/usr/lib/libcuda.so.1.1".into(),
            container_path: "/usr/lib/libcuda.so.1".into(),
            options: vec!["ro".into()],
        });
        full.devices[0].container_edits.hooks.push(Hook {
            hook_name: "createRuntime".into(),
            path: "/usr/bin/kai".into(),
            args: vec!["kai".into()],
            env: vec!["A=b".into()],
            timeout: Some(10),
        });
        full.cdi_version = full.version_needed().to_owned();
        assert!(full.problems().is_empty());
        let seeds = [spec("0"), full].map(|spec| serde_json::to_value(spec).unwrap());
        fuzz.json(&seeds, |tree| {
            let Ok(spec) = serde_json::from_value::<Spec>(tree.clone()) else {
                return;
            };
            let text = super::super::store::render(&spec);
            assert_eq!(
                serde_json::from_str::<Spec>(&text).unwrap(),
                spec,
                "what is written is read again"
            );
            let _ = spec.problems();
        });
    }

    #[test]
    fn mutated_specs_never_panic() {
        fuzz(kai_fuzz::Fuzz::short("CDI"));
    }

    #[test]
    #[ignore = "runs for KAI_FUZZ_SECONDS"]
    fn long_run_of_specs() {
        fuzz(kai_fuzz::Fuzz::long("CDI"));
    }
}
