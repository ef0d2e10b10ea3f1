//! Decides the node's labels from its GPUs. Pure; `agent` writes them by server-side apply, so a label that is no longer returned here
//! disappears from the node, and labels of other field managers stay.

use std::collections::BTreeMap;

use kai_gpu::{Device, Inventory, MemoryKind, MigAttributes, MigDevice, MigMode, PlatformKind};

use crate::allocator::plan::{GPU_RESOURCE, MigStrategy, Policy, SingleState, single_state};

/// Longest label value that Kubernetes accepts.
const VALUE_BYTES_MAX: usize = 63;

/// Label: kind of GPU memory. The scheduler charges unified memory against the node's RAM as well.
pub const MEMORY_TYPE: &str = "kai.scheduler/gpu-memory-type";
/// Label: how the GPUs are reached.
pub const PLATFORM: &str = "kai.scheduler/platform";
/// Label: tells KAI's tools that the node's GPUs are fake.
pub const FAKE: &str = "run.ai/fake.gpu";

/// Label keys and values.
pub type Labels = BTreeMap<String, String>;

/// All labels that the agent sets on the node; none on a node without GPUs.
pub fn labels(inventory: &Inventory, policy: &Policy) -> Labels {
    let mut labels = Writer::default();
    let Some(main) = dominant(&inventory.devices) else {
        return Labels::new();
    };
    labels.put("nvidia.com/gpu.present", "true");
    labels.put(
        "nvidia.com/gpu.machine",
        sanitised(inventory.platform.machine.as_deref().unwrap_or("unknown")),
    );
    versions(&mut labels, inventory);
    labels.put(
        "nvidia.com/mig.capable",
        inventory.devices.iter().any(|device| device.mig_mode.is_some()),
    );
    let unified = inventory
        .devices
        .iter()
        .any(|device| device.memory_kind == MemoryKind::Unified);
    labels.put(
        MEMORY_TYPE,
        if unified {
            MemoryKind::Unified
        } else {
            MemoryKind::Dedicated
        },
    );
    labels.put(PLATFORM, inventory.platform.kind);
    if inventory.platform.kind == PlatformKind::Fake {
        labels.put(FAKE, "true");
    }
    match policy.mig {
        MigStrategy::None => whole_gpus(&mut labels, inventory, main, policy),
        MigStrategy::Single => {
            labels.put("nvidia.com/mig.strategy", policy.mig.as_str());
            single_strategy(&mut labels, inventory, main, policy);
        }
        MigStrategy::Mixed => {
            labels.put("nvidia.com/mig.strategy", policy.mig.as_str());
            whole_gpus(&mut labels, inventory, main, policy);
            mig_profiles(&mut labels, inventory, policy);
        }
    }
    labels.0
}

/// The GPU model that the labels describe on a node with several models: the most frequent one, then the first by name.
fn dominant(devices: &[Device]) -> Option<&Device> {
    let count = |device: &Device| devices.iter().filter(|other| other.name == device.name).count();
    devices
        .iter()
        .min_by_key(|device| (usize::MAX - count(device), device.name.clone(), device.index))
}

fn versions(labels: &mut Writer, inventory: &Inventory) {
    if let Some(version) = &inventory.driver_version {
        let mut parts = version.splitn(3, '.');
        for name in ["major", "minor", "revision"] {
            labels.put(
                format!("nvidia.com/cuda.driver-version.{name}"),
                sanitised(parts.next().unwrap_or_default()),
            );
        }
        labels.put("nvidia.com/cuda.driver-version.full", sanitised(version));
    }
    if let Some(cuda) = inventory.cuda_version {
        labels.put("nvidia.com/cuda.runtime-version.major", cuda.major);
        labels.put("nvidia.com/cuda.runtime-version.minor", cuda.minor);
        labels.put("nvidia.com/cuda.runtime-version.full", cuda);
    }
}

/// Count and memory describe all GPUs of the node, not only the main model: a scheduler takes allocatable GPUs beyond `gpu.count` for
/// replicas, and must not promise memory that the smallest GPU lacks.
fn whole_gpus(labels: &mut Writer, inventory: &Inventory, main: &Device, policy: &Policy) {
    let shared = sharing(policy, GPU_RESOURCE);
    let partitioned = inventory
        .devices
        .iter()
        .all(|device| device.mig_mode == Some(MigMode::Enabled));
    let memory_mib = inventory.devices.iter().filter_map(|device| device.memory_mib).min();
    labels.put("nvidia.com/gpu.product", product(&[&main.name], &shared));
    labels.put("nvidia.com/gpu.count", inventory.devices.len());
    labels.put("nvidia.com/gpu.replicas", if partitioned { 0 } else { shared.replicas });
    labels.put(
        "nvidia.com/gpu.sharing-strategy",
        if partitioned { "none" } else { shared.strategy },
    );
    compute(labels, main);
    if let Some(memory_mib) = memory_mib.filter(|memory| *memory > 0) {
        labels.put("nvidia.com/gpu.memory", memory_mib);
    }
}

fn compute(labels: &mut Writer, device: &Device) {
    if let Some(capability) = device.compute_capability.filter(|capability| capability.major > 0) {
        labels.put("nvidia.com/gpu.family", capability.family());
        labels.put("nvidia.com/gpu.compute.major", capability.major);
        labels.put("nvidia.com/gpu.compute.minor", capability.minor);
    }
}

fn single_strategy(labels: &mut Writer, inventory: &Inventory, main: &Device, policy: &Policy) {
    match single_state(inventory) {
        SingleState::NoMig => whole_gpus(labels, inventory, main, policy),
        SingleState::Valid => {
            let migs: Vec<&MigDevice> = inventory
                .devices
                .iter()
                .flat_map(|device| &device.mig_devices)
                .collect();
            let Some(first) = migs.first() else { return };
            compute(labels, main);
            mig_labels(labels, GPU_RESOURCE, main, first, migs.len(), policy);
        }
        SingleState::Invalid(_) => {
            compute(labels, main);
            labels.put(
                "nvidia.com/gpu.product",
                product(&[&main.name, "MIG", "INVALID"], &sharing(&Policy::default(), "")),
            );
            labels.put("nvidia.com/gpu.count", 0);
            labels.put("nvidia.com/gpu.replicas", 0);
            labels.put("nvidia.com/gpu.memory", 0);
            labels.put("nvidia.com/gpu.sharing-strategy", "");
        }
    }
}

fn mig_profiles(labels: &mut Writer, inventory: &Inventory, policy: &Policy) {
    let mut groups: BTreeMap<String, (&Device, &MigDevice, usize)> = BTreeMap::new();
    for device in &inventory.devices {
        for mig in &device.mig_devices {
            groups
                .entry(format!("nvidia.com/{}", mig.resource_suffix()))
                .or_insert((device, mig, 0))
                .2 += 1;
        }
    }
    for (resource, (device, mig, count)) in groups {
        mig_labels(labels, &resource, device, mig, count, policy);
    }
}

fn mig_labels(labels: &mut Writer, resource: &str, device: &Device, mig: &MigDevice, count: usize, policy: &Policy) {
    let shared = sharing(policy, resource);
    let profile = mig.profile.replace('+', ".");
    labels.put(
        format!("{resource}.product"),
        product(&[&device.name, "MIG", &profile], &shared),
    );
    labels.put(format!("{resource}.count"), count);
    labels.put(format!("{resource}.replicas"), shared.replicas);
    labels.put(format!("{resource}.sharing-strategy"), shared.strategy);
    if let Some(memory_mib) = mig.memory_mib {
        labels.put(format!("{resource}.memory"), memory_mib);
    }
    if let Some(MigAttributes {
        multiprocessors,
        gpu_instance_slices,
        compute_instance_slices,
        copy_engines,
        decoders,
        encoders,
        jpeg_engines,
        ofa_engines,
    }) = mig.attributes
    {
        labels.put(format!("{resource}.multiprocessors"), multiprocessors);
        labels.put(format!("{resource}.slices.gi"), gpu_instance_slices);
        labels.put(format!("{resource}.slices.ci"), compute_instance_slices);
        labels.put(format!("{resource}.engines.copy"), copy_engines);
        labels.put(format!("{resource}.engines.decoder"), decoders);
        labels.put(format!("{resource}.engines.encoder"), encoders);
        labels.put(format!("{resource}.engines.jpeg"), jpeg_engines);
        labels.put(format!("{resource}.engines.ofa"), ofa_engines);
    }
}

struct Shared {
    replicas: u32,
    strategy: &'static str,
    marked: bool,
}

fn sharing(policy: &Policy, resource: &str) -> Shared {
    let shared = policy.sharing.of(resource);
    let strategy = if shared.is_shared() { "time-slicing" } else { "none" };
    Shared {
        replicas: shared.replicas,
        strategy,
        marked: shared.is_shared() && shared.rename.is_none(),
    }
}

/// The product label: parts joined by dashes. Shared devices under an unshared resource name get a suffix, so that users can select
/// unshared ones.
fn product(parts: &[&str], shared: &Shared) -> String {
    let suffix = shared.marked.then_some("SHARED");
    sanitised(&parts.iter().copied().chain(suffix).collect::<Vec<_>>().join("-"))
}

/// Turns text into a legal label value: drops illegal characters, joins words by dashes, and cuts it to length with a letter or digit at
/// both ends.
fn sanitised(text: &str) -> String {
    let legal: String = text
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "-_. ".contains(*c))
        .collect();
    let joined = legal.split_whitespace().collect::<Vec<_>>().join("-");
    let cut = joined.get(..VALUE_BYTES_MAX).unwrap_or(&joined);
    cut.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

#[derive(Default)]
struct Writer(Labels);

impl Writer {
    fn put(&mut self, key: impl Into<String>, value: impl ToString) {
        self.0.insert(key.into(), value.to_string());
    }
}

#[cfg(test)]
mod tests {
    use kai_gpu::Driver;
    use kai_gpu::fake::{FakeDriver, Settings};

    use super::*;
    use crate::allocator::sharing::{Rename, Sharing};

    fn check(settings: &str, policy: &Policy) -> String {
        let settings = settings.parse::<Settings>().unwrap().seeded("node");
        let labels = labels(&FakeDriver::new(&settings).unwrap().devices().unwrap(), policy);
        for (key, value) in &labels {
            assert!(value.len() <= VALUE_BYTES_MAX, "{key}");
        }
        labels.iter().map(|(key, value)| format!("{key}={value}\n")).collect()
    }

    #[test]
    fn every_profile_has_its_labels() {
        let all: String = kai_gpu::fake::PROFILES
            .iter()
            .map(|profile| format!("# {}\n{}\n", profile.id, check(profile.id, &Policy::default())))
            .collect();
        insta::assert_snapshot!(all);
    }

    #[test]
    fn partitions_and_sharing() {
        let four = |rename| Policy {
            sharing: Sharing::of_gpus(4, rename).unwrap(),
            ..Policy::default()
        };
        let mig = |mig| Policy {
            mig,
            ..Policy::default()
        };
        let cases = [
            ("four replicas", "t4:2", four(Rename::Keep)),
            ("renamed", "t4:2", four(Rename::WithSuffix)),
            ("mixed", "a100-40:1/1g.5gb*2/3g.20gb,a100-40", mig(MigStrategy::Mixed)),
            ("single", "a100-40:2/1g.5gb*7", mig(MigStrategy::Single)),
            ("single, unfit", "a100-40:1/1g.5gb,a100-40", mig(MigStrategy::Single)),
            ("two models", "t4:1,l40s:2", Policy::default()),
        ];
        let all: String = cases
            .iter()
            .map(|(name, settings, policy)| format!("# {name}: {settings}\n{}\n", check(settings, policy)))
            .collect();
        insta::assert_snapshot!(all);
    }

    #[test]
    fn no_gpus_no_labels() {
        assert!(labels(&Inventory::default(), &Policy::default()).is_empty());
    }

    #[test]
    fn values_are_what_kubernetes_accepts() {
        assert_eq!(sanitised("Orin (nvgpu)"), "Orin-nvgpu");
        assert_eq!(
            sanitised("NVIDIA  Jetson AGX Orin Developer Kit"),
            "NVIDIA-Jetson-AGX-Orin-Developer-Kit"
        );
        assert_eq!(sanitised(&"x".repeat(80)).len(), VALUE_BYTES_MAX);
        assert_eq!(sanitised("--a--"), "a");
    }
}
