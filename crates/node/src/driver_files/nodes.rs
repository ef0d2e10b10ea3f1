//! Finds the device nodes of a GPU or MIG device and the groups that may open them. Reads `/dev`, `/sys` and `/proc/driver/nvidia-caps`
//! below their prefixes; never creates a node.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use kai_gpu::{Device, DeviceKind, Inventory, MigDevice, Roots};

use super::files::{DriverFiles, Node};

/// Nodes of NVIDIA's standard driver that every GPU needs, if they exist.
const SHARED: [&str; 4] = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"];

/// The existing shared nodes of NVIDIA's standard driver, with their groups.
pub fn shared_nodes(roots: &Roots) -> Vec<Node> {
    SHARED
        .iter()
        .filter_map(|name| existing_node(roots, &format!("/dev/{name}")))
        .collect()
}

/// Device nodes by the UUID of the GPU or MIG device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodesById {
    /// UUID of a GPU or MIG device, and the nodes that it needs besides the shared ones.
    pub by_uuid: BTreeMap<String, Vec<Node>>,
    /// Warnings for operators.
    pub warnings: Vec<String>,
}

/// Finds the nodes of every GPU and MIG device.
pub fn device_nodes(roots: &Roots, inventory: &Inventory, files: &DriverFiles) -> NodesById {
    let caps = mig_minors(&fs::read_to_string(roots.proc.join("driver/nvidia-caps/mig-minors")).unwrap_or_default());
    let mut found = NodesById::default();
    for device in &inventory.devices {
        let own = match device.kind {
            DeviceKind::Integrated => integrated(device, inventory, files),
            DeviceKind::Discrete => discrete(roots, device, &mut found.warnings),
        };
        if own.is_empty() && files.shared_nodes.is_empty() {
            found.warnings.push(format!(
                "GPU {} has no device nodes here: mount the host's /dev into the agent",
                device.index
            ));
        }
        for mig in &device.mig_devices {
            let mut nodes = own.clone();
            nodes.extend(mig_caps(roots, device, mig, &caps, &mut found.warnings));
            found.by_uuid.insert(mig.uuid.clone(), nodes);
        }
        found.by_uuid.insert(device.uuid.clone(), own);
    }
    found
}

fn discrete(roots: &Roots, device: &Device, warnings: &mut Vec<String>) -> Vec<Node> {
    let path = format!("/dev/nvidia{}", device.minor.unwrap_or(device.index));
    let mut nodes = vec![existing_node(roots, &path).unwrap_or_else(|| {
        warnings.push(format!(
            "GPU {} has no {path}: run nvidia-modprobe -c 0 -u on the host",
            device.index
        ));
        // The spec names the node nevertheless: the runtime then refuses the container and names the missing file.
        Node::open(path.clone())
    })];
    if let Some(bus) = device.sysfs_bus_id() {
        let drm = roots.sys.join("bus/pci/devices").join(bus).join("drm");
        nodes.extend(
            drm_names(&drm)
                .iter()
                .filter_map(|name| existing_node(roots, &format!("/dev/dri/{name}"))),
        );
    }
    nodes
}

/// A Tegra's lists may contain the nodes of PCI cards, which do not belong to the integrated GPU.
fn integrated(device: &Device, inventory: &Inventory, files: &DriverFiles) -> Vec<Node> {
    let others: Vec<String> = inventory
        .devices
        .iter()
        .filter(|other| other.index != device.index)
        .filter_map(|other| other.minor.map(|minor| format!("/dev/nvidia{minor}")))
        .collect();
    files
        .integrated_nodes
        .iter()
        .filter(|node| !others.contains(&node.path))
        .cloned()
        .collect()
}

fn drm_names(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("card") || name.starts_with("renderD"))
        .collect();
    names.sort_unstable();
    names
}

fn mig_caps(
    roots: &Roots,
    device: &Device,
    mig: &MigDevice,
    caps: &BTreeMap<String, u32>,
    warnings: &mut Vec<String>,
) -> Vec<Node> {
    let (gpu, gi, ci) = (
        device.minor.unwrap_or(device.index),
        mig.gpu_instance_id,
        mig.compute_instance_id,
    );
    let keys = [
        format!("gpu{gpu}/gi{gi}/access"),
        format!("gpu{gpu}/gi{gi}/ci{ci}/access"),
    ];
    let mut nodes = Vec::new();
    for key in keys {
        match caps.get(&key) {
            Some(minor) => {
                let path = format!("/dev/nvidia-caps/nvidia-cap{minor}");
                nodes.push(existing_node(roots, &path).unwrap_or_else(|| Node::open(path)));
            }
            None => warnings.push(format!(
                "MIG device {} has no entry {key} in /proc/driver/nvidia-caps/mig-minors",
                mig.uuid
            )),
        }
    }
    nodes
}

/// Parses lines like `gpu0/gi3/access 30`: the minor number of the capability node of an instance.
fn mig_minors(text: &str) -> BTreeMap<String, u32> {
    text.lines()
        .filter_map(|line| {
            let (key, minor) = line.trim().rsplit_once(' ')?;
            Some((key.to_owned(), minor.parse().ok()?))
        })
        .collect()
}

/// The node, if it exists.
pub fn existing_node(roots: &Roots, path: &str) -> Option<Node> {
    let seen = roots.dev.join(path.strip_prefix("/dev/")?);
    let facts = fs::metadata(seen).ok()?;
    Some(Node {
        path: path.to_owned(),
        host_path: None,
        group: group_needed(facts.gid(), facts.mode()),
    })
}

/// The group that a container's user needs. A node that others may read and write needs none.
fn group_needed(gid: u32, mode: u32) -> Option<u32> {
    const OTHERS_READ_WRITE: u32 = 0o006;
    (gid != 0 && mode & OTHERS_READ_WRITE != OTHERS_READ_WRITE).then_some(gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_restricted_nodes_need_a_group() {
        assert_eq!(group_needed(44, 0o020660), Some(44));
        assert_eq!(group_needed(44, 0o020440), Some(44));
        assert_eq!(group_needed(44, 0o020666), None);
        assert_eq!(group_needed(0, 0o020600), None);
    }

    #[test]
    fn mig_minors_are_read_by_their_path() {
        let caps = mig_minors("config 1\nmonitor 2\ngpu0/gi3/access 30\ngpu0/gi3/ci0/access 31\nbroken\n");
        assert_eq!(caps.get("gpu0/gi3/access"), Some(&30));
        assert_eq!(caps.get("gpu0/gi3/ci0/access"), Some(&31));
        assert_eq!(caps.len(), 4);
    }
}
