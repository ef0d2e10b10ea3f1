//! Time slicing: how many replicas each device of a resource has, and under which name they are offered. Flags and configuration files are
//! both turned into a `Sharing`, and the checks of its entries are here. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::plan::{DOMAIN, GPU_RESOURCE};

/// Upper bound on replicas of one device: the kubelet keeps every id in memory and in its checkpoint.
pub const REPLICAS_MAX: u32 = 1000;
/// Longest name of a resource, as NVIDIA's device plugin limits it.
const NAME_BYTES_MAX: usize = 63;
/// Suffix of the default name of shared devices.
const SHARED_SUFFIX: &str = ".shared";

/// Several containers take turns on one device. It isolates neither memory nor speed.
///
/// Invariant: the keys are names of unshared resources, every count of replicas is from 1 to `REPLICAS_MAX`, and no two resources get the
/// same name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sharing {
    resources: BTreeMap<String, SharedResource>,
    /// Refuse containers that request more than one replica, since a second replica gives them no more of the GPU.
    pub one_per_container: bool,
}

/// How the devices of one resource are shared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedResource {
    /// Replicas of each device; 1 means unshared.
    pub replicas: u32,
    /// Another name for the shared devices, so that a pod gets one only if it asks for one.
    pub rename: Option<String>,
}

impl SharedResource {
    const UNSHARED: SharedResource = SharedResource {
        replicas: 1,
        rename: None,
    };

    /// Whether a device of the resource has several replicas.
    pub fn is_shared(&self) -> bool {
        self.replicas > 1
    }
}

/// The name under which shared devices are offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rename<'a> {
    /// The name of the unshared devices.
    Keep,
    /// `<resource>.shared`.
    WithSuffix,
    /// This name.
    To(&'a str),
}

/// Why an entry can't be added, by the part of the entry that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InvalidSharing {
    /// The resource's name.
    Name(String),
    /// The number of replicas.
    Replicas(String),
    /// The name of the shared devices.
    Rename(String),
}

impl InvalidSharing {
    /// What is wrong, and which values are right.
    pub fn problem(&self) -> &str {
        match self {
            InvalidSharing::Name(text) | InvalidSharing::Replicas(text) | InvalidSharing::Rename(text) => text,
        }
    }
}

impl Sharing {
    /// Whole GPUs with this number of replicas.
    pub fn of_gpus(replicas: u32, rename: Rename) -> Result<Self, InvalidSharing> {
        let mut sharing = Self::default();
        sharing.add(GPU_RESOURCE, replicas.into(), rename)?;
        Ok(sharing)
    }

    /// Adds a resource. `name` may lack the prefix `nvidia.com/`.
    pub fn add(&mut self, name: &str, replicas: u64, rename: Rename) -> Result<(), InvalidSharing> {
        let name = qualified(name);
        if name.ends_with(SHARED_SUFFIX) || !is_gpu_resource(&name) || !is_resource_name(&name) {
            return Err(InvalidSharing::Name(format!(
                "{:?} is no resource of GPUs; write {GPU_RESOURCE}, or a MIG resource such as {DOMAIN}/mig-1g.10gb",
                shortened(&name)
            )));
        }
        if self.resources.contains_key(&name) {
            return Err(InvalidSharing::Name(format!("{name} is there twice; keep one entry")));
        }
        let replicas = u32::try_from(replicas)
            .ok()
            .filter(|replicas| (1..=REPLICAS_MAX).contains(replicas))
            .ok_or_else(|| {
                let text = format!("{replicas} is no number of replicas; write a number from 2 to {REPLICAS_MAX}");
                InvalidSharing::Replicas(text)
            })?;
        let rename = self.checked_rename(&name, rename)?;
        self.resources.insert(name, SharedResource { replicas, rename });
        Ok(())
    }

    fn checked_rename(&self, name: &str, rename: Rename) -> Result<Option<String>, InvalidSharing> {
        let new = match rename {
            Rename::Keep => return Ok(None),
            Rename::WithSuffix => format!("{name}{SHARED_SUFFIX}"),
            Rename::To(new) => qualified(new),
        };
        if new == name {
            return Ok(None);
        }
        let shown = shortened(&new);
        if !is_resource_name(&new) {
            return Err(InvalidSharing::Rename(format!(
                "{shown:?} is no name of a resource; write {DOMAIN}/ and lower-case letters, digits, dots and dashes, at most \
                 {NAME_BYTES_MAX} characters in all"
            )));
        }
        // Another resource of GPUs has this name, or could have it after the next partitioning.
        let of_others = is_gpu_resource(&new) && new != format!("{name}{SHARED_SUFFIX}");
        let taken = self.resources.values().any(|other| other.rename.as_ref() == Some(&new));
        if of_others || taken {
            return Err(InvalidSharing::Rename(format!(
                "{shown:?} is the name of another resource; write a name of its own, such as {name}{SHARED_SUFFIX}"
            )));
        }
        Ok(Some(new))
    }

    /// How the devices of a resource are shared, by its unshared name.
    pub fn of(&self, resource: &str) -> &SharedResource {
        self.resources.get(resource).unwrap_or(&SharedResource::UNSHARED)
    }

    /// The entries, by the name of the unshared resource.
    pub fn resources(&self) -> impl Iterator<Item = (&str, &SharedResource)> {
        self.resources.iter().map(|(name, shared)| (name.as_str(), shared))
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }
}

/// The name with the domain of GPU resources.
fn qualified(name: &str) -> String {
    let has_domain = name.strip_prefix(DOMAIN).is_some_and(|rest| rest.starts_with('/'));
    if has_domain {
        name.to_owned()
    } else {
        format!("{DOMAIN}/{name}")
    }
}

/// Whether a node may offer a resource of this name: whole GPUs, or MIG devices of a profile.
fn is_gpu_resource(name: &str) -> bool {
    let mig = name.strip_prefix(DOMAIN).and_then(|rest| rest.strip_prefix("/mig-"));
    name == GPU_RESOURCE || mig.is_some_and(|profile| !profile.is_empty())
}

/// Whether the part after the domain is a DNS subdomain, and the whole name is short enough.
fn is_resource_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !label.is_empty() && label.chars().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    let local = name.strip_prefix(DOMAIN).and_then(|rest| rest.strip_prefix('/'));
    name.len() <= NAME_BYTES_MAX && local.is_some_and(|local| local.split('.').all(is_label))
}

fn shortened(name: &str) -> String {
    kai_yaml::shortened(name, NAME_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(entries: &[(&str, u64, Rename)], expect: &str) {
        let mut sharing = Sharing::default();
        let result = entries
            .iter()
            .try_for_each(|(name, replicas, rename)| sharing.add(name, *replicas, *rename));
        let text = match result {
            Ok(()) => {
                let entry = |(name, shared): (&str, &SharedResource)| {
                    format!("{name} {} {}", shared.replicas, shared.rename.as_deref().unwrap_or("-"))
                };
                sharing.resources().map(entry).collect::<Vec<_>>().join(", ")
            }
            Err(InvalidSharing::Name(text)) => format!("name: {text}"),
            Err(InvalidSharing::Replicas(text)) => format!("replicas: {text}"),
            Err(InvalidSharing::Rename(text)) => format!("rename: {text}"),
        };
        assert!(
            text == expect || text.starts_with(expect) && expect.ends_with(':'),
            "{entries:?}: {text}"
        );
    }

    #[test]
    fn names_are_those_that_a_node_may_offer() {
        check(&[("gpu", 4, Rename::Keep)], "nvidia.com/gpu 4 -");
        check(
            &[("nvidia.com/mig-1g.10gb.me", 2, Rename::WithSuffix)],
            "nvidia.com/mig-1g.10gb.me 2 nvidia.com/mig-1g.10gb.me.shared",
        );
        for bad in [
            "nvidia.com/gpus",
            "nvidia.com/",
            "",
            "amd.com/gpu",
            "nvidia.com/gpu.shared",
            "nvidia.com/mig-",
            "nvidia.com/mig-1G",
            "nvidia.com/mig-1g.5gb.shared",
            "nvidia.com/mig-a/b",
        ] {
            check(&[(bad, 4, Rename::Keep)], "name:");
        }
        let long = format!("mig-{}", "x".repeat(80));
        check(&[(&long, 4, Rename::Keep)], "name:");
        check(
            &[("gpu", 4, Rename::Keep), ("nvidia.com/gpu", 2, Rename::Keep)],
            "name:",
        );
    }

    #[test]
    fn replicas_are_bounded() {
        check(&[("gpu", 1, Rename::Keep)], "nvidia.com/gpu 1 -");
        check(&[("gpu", 1000, Rename::Keep)], "nvidia.com/gpu 1000 -");
        for bad in [0, 1001, u64::MAX] {
            check(&[("gpu", bad, Rename::Keep)], "replicas:");
        }
    }

    #[test]
    fn no_two_resources_get_one_name() {
        check(&[("gpu", 4, Rename::To("slice"))], "nvidia.com/gpu 4 nvidia.com/slice");
        check(&[("gpu", 4, Rename::To("nvidia.com/gpu"))], "nvidia.com/gpu 4 -");
        check(
            &[("gpu", 4, Rename::To("gpu.shared"))],
            "nvidia.com/gpu 4 nvidia.com/gpu.shared",
        );
        for bad in ["mig-1g.5gb", "", "Slice", "a b", "example.com/slice"] {
            check(&[("gpu", 4, Rename::To(bad))], "rename:");
        }
        check(&[("mig-1g.5gb", 4, Rename::To("gpu"))], "rename:");
        check(
            &[("gpu", 4, Rename::To("x")), ("mig-1g.5gb", 4, Rename::To("x"))],
            "rename:",
        );
    }
}
