//! Makes the CDI spec of this host from the inventory and the driver's files. Pure. `store` writes the spec; where CDI is off, `allocator`
//! translates it into device plugin responses.

use std::collections::{BTreeMap, BTreeSet};

use kai_gpu::linker::Machine;
use kai_gpu::{Inventory, MemoryKind, MigMode};

use super::cdi::{self, Device, DeviceNode, Edits, Hook, Mount, Spec};
use super::files::{DriverFiles, LibraryPlacement, Node};
use crate::enforcement::hook_edit::lifting_hook;
use crate::enforcement::tier::HookSetup;

/// CDI kind of our devices. A runtime refuses a device that two specs define, so `nvidia.com/gpu` is left to NVIDIA's tools.
pub const KIND: &str = "kai.scheduler/gpu";

/// Device name that stands for all GPUs of the node.
pub const ALL: &str = "all";

/// Tells NVIDIA's runtime, if it is installed, not to inject GPUs.
const VOID: &str = "NVIDIA_VISIBLE_DEVICES=void";

const FILE_OPTIONS: [&str; 5] = ["ro", "nosuid", "nodev", "rbind", "rprivate"];
const SOCKET_OPTIONS: [&str; 5] = ["nosuid", "nodev", "noexec", "rbind", "rprivate"];

/// The fully qualified CDI name of a device, for Allocate responses.
pub fn qualified(identity: &str) -> String {
    format!("{KIND}={}", cdi::device_name(identity))
}

/// Everything that a spec is made of.
#[derive(Debug, Clone)]
pub struct SpecInputs<'a> {
    /// The devices.
    pub inventory: &'a Inventory,
    /// The driver's files on the host.
    pub files: &'a DriverFiles,
    /// Nodes of each GPU and MIG device, by UUID.
    pub nodes: &'a BTreeMap<String, Vec<Node>>,
    /// CPU of the host.
    pub machine: Machine,
    /// Environment for containers (fake devices).
    pub env: &'a [String],
    /// Lifts the memory limits of a container with a whole GPU, on nodes where the driver limits memory.
    pub hook: Option<&'a HookSetup>,
}

/// The spec of this host, or `None` if it has no devices.
pub fn spec(of: &SpecInputs) -> Option<Spec> {
    let mut devices: Vec<Device> = Vec::new();
    let mut all = BTreeSet::new();
    let mut all_hooks = Vec::new();
    for device in &of.inventory.devices {
        let own = nodes_of(of, &device.uuid);
        all.extend(own.iter().cloned());
        // The driver limits no partition, nor memory that is not the GPU's own.
        let limited = device.mig_mode != Some(MigMode::Enabled) && device.memory_kind == MemoryKind::Dedicated;
        let hooks: Vec<Hook> = of
            .hook
            .filter(|_| limited)
            .map(|setup| lifting_hook(setup, &device.uuid))
            .into_iter()
            .collect();
        all_hooks.extend(hooks.iter().cloned());
        push(
            &mut devices,
            [device.index.to_string(), device.uuid.clone()],
            &own,
            &hooks,
        );
        for mig in &device.mig_devices {
            let own = nodes_of(of, &mig.uuid);
            all.extend(own.iter().cloned());
            push(
                &mut devices,
                [format!("{}:{}", device.index, mig.index), mig.uuid.clone()],
                &own,
                &[],
            );
        }
    }
    if devices.is_empty() {
        return None;
    }
    let all: Vec<Node> = all.into_iter().collect();
    push(&mut devices, [ALL.to_owned()], &all, &all_hooks);
    let mut spec = Spec {
        cdi_version: String::new(),
        kind: KIND.to_owned(),
        devices,
        container_edits: Edits {
            env: [VOID.to_owned()].into_iter().chain(of.env.iter().cloned()).collect(),
            mounts: mounts(of.files, of.machine),
            ..Edits::default()
        },
    };
    spec.cdi_version = spec.version_needed().to_owned();
    Some(spec)
}

/// The mounts of every container with a GPU, sorted by container path; the first mount of a path wins.
pub fn mounts(files: &DriverFiles, machine: Machine) -> Vec<Mount> {
    let mut by_place: BTreeMap<String, Mount> = BTreeMap::new();
    let driver = |path: &str| format!("{}{path}", files.host_prefix);
    let mut add = |host: &str, place: String, options: &[&str]| {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        by_place.entry(place.clone()).or_insert(Mount {
            host_path: host.to_owned(),
            container_path: place,
            options,
        });
    };
    for library in &files.libraries {
        if matches!(
            library.placement,
            LibraryPlacement::HostPath | LibraryPlacement::LinkerDirsAndHostPath
        ) {
            add(&driver(&library.path), library.path.clone(), &FILE_OPTIONS);
            for link in &library.links {
                add(&driver(&library.path), link.clone(), &FILE_OPTIONS);
            }
        }
        if matches!(
            library.placement,
            LibraryPlacement::LinkerDirs | LibraryPlacement::LinkerDirsAndHostPath
        ) {
            for directory in linker_dirs(machine) {
                for name in &library.names {
                    add(&driver(&library.path), format!("{directory}/{name}"), &FILE_OPTIONS);
                }
            }
        }
    }
    for binary in &files.binaries {
        let name = binary.rsplit('/').next().unwrap_or_default();
        add(&driver(binary), format!("/usr/bin/{name}"), &FILE_OPTIONS);
    }
    for path in &files.data {
        add(&driver(path), path.clone(), &FILE_OPTIONS);
    }
    for path in &files.sockets {
        add(path, path.clone(), &SOCKET_OPTIONS);
    }
    by_place.into_values().collect()
}

/// Default directories of the dynamic linker in Debian's and Red Hat's images. Libraries are mounted in both, because the spec does not
/// know the image. A library in a default directory needs neither ldconfig in the container nor LD_LIBRARY_PATH, which would override the
/// image's own.
fn linker_dirs(machine: Machine) -> [String; 2] {
    [format!("/usr/lib/{}", machine.triplet()), "/usr/lib64".to_owned()]
}

/// All nodes of a GPU or MIG device, the shared ones included; each once.
pub fn nodes_of(of: &SpecInputs, uuid: &str) -> Vec<Node> {
    let own = of.nodes.get(uuid).map(Vec::as_slice).unwrap_or_default();
    let unique: BTreeSet<Node> = of.files.shared_nodes.iter().chain(own).cloned().collect();
    unique.into_iter().collect()
}

fn push<const N: usize>(devices: &mut Vec<Device>, names: [String; N], nodes: &[Node], hooks: &[Hook]) {
    // Runtimes refuse a device without edits, and a container would start without its GPU.
    if nodes.is_empty() {
        return;
    }
    let groups: BTreeSet<u32> = nodes.iter().filter_map(|node| node.group).collect();
    let edits = Edits {
        device_nodes: nodes
            .iter()
            .map(|node| DeviceNode {
                path: node.path.clone(),
                host_path: node.host_path.clone(),
                permissions: Some("rw".to_owned()),
                gid: node.group,
            })
            .collect(),
        additional_gids: groups.into_iter().collect(),
        hooks: hooks.to_vec(),
        ..Edits::default()
    };
    for name in names.iter().map(|name| cdi::device_name(name)) {
        // If a UUID equals an index, the first device keeps the name.
        if !devices.iter().any(|device| device.name == name) {
            devices.push(Device {
                name,
                container_edits: edits.clone(),
            });
        }
    }
}
