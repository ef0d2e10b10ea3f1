//! Connections between the GPUs of a machine: NVLink and PCI. Queried once per opened library, since it costs many calls and can't change
//! while the driver runs.

use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::{Device, Nvml};

use crate::{PciPath, Peer, sysfs_bus_id};

/// NVML's own bound on links per GPU.
const NVLINKS_MAX: u32 = 36;

/// One GPU with its index and PCI address.
pub(super) struct GpuLocation<'a, 'nvml> {
    pub(super) index: u32,
    pub(super) bus_id: Option<String>,
    pub(super) device: &'a Device<'nvml>,
}

/// The NVLinks of one GPU, by their other end.
struct Links {
    /// PCI address of the NVSwitch at the other end of a link, once per link.
    to_switch: Vec<String>,
    /// PCI address of the GPU at the other end of a link, once per link.
    to_device: Vec<String>,
}

/// The peers of each GPU, in the order given.
pub(super) fn peers(nvml: &Nvml, locations: &[GpuLocation<'_, '_>]) -> Vec<Vec<Peer>> {
    if locations.len() < 2 {
        return vec![Vec::new(); locations.len()];
    }
    let known: Vec<Option<String>> = locations
        .iter()
        .map(|location| location.bus_id.as_deref().map(sysfs_bus_id))
        .collect();
    let links: Vec<Links> = locations
        .iter()
        .map(|location| links_of(location.device, &known))
        .collect();
    let mut all = Vec::with_capacity(locations.len());
    for (here, location) in locations.iter().enumerate() {
        let mut peers = Vec::with_capacity(locations.len() - 1);
        for (there, other) in locations.iter().enumerate().filter(|(there, _)| *there != here) {
            let direct = links[here]
                .to_device
                .iter()
                .filter(|end| known[there].as_ref() == Some(end))
                .count() as u32;
            let switched = switched_links(&links[here].to_switch, &links[there].to_switch);
            let path = nvml
                .topology_common_ancestor(location.device, other.device)
                .ok()
                .map(pci_path);
            peers.push(Peer {
                index: other.index,
                nvlinks: direct + switched,
                path,
            });
        }
        all.push(peers);
    }
    all
}

fn links_of(device: &Device<'_>, known: &[Option<String>]) -> Links {
    let mut links = Links {
        to_switch: Vec::new(),
        to_device: Vec::new(),
    };
    for number in 0..NVLINKS_MAX {
        let link = device.link_wrapper_for(number);
        match link.is_active() {
            Ok(true) => {}
            Ok(false) => continue,
            // The link number is past the last link, or the GPU has no NVLink.
            Err(_) => break,
        }
        let Ok(remote) = link.remote_pci_info() else { continue };
        let end = sysfs_bus_id(&remote.bus_id);
        if known.iter().any(|address| address.as_ref() == Some(&end)) {
            links.to_device.push(end);
        } else {
            links.to_switch.push(end);
        }
    }
    links
}

/// NVLinks between two GPUs through switches: for each common switch, the smaller number of links of the two GPUs.
fn switched_links(here: &[String], there: &[String]) -> u32 {
    let mut left: Vec<&String> = there.iter().collect();
    let mut shared = 0;
    for switch in here {
        if let Some(location) = left.iter().position(|other| *other == switch) {
            left.swap_remove(location);
            shared += 1;
        }
    }
    shared
}

fn pci_path(level: TopologyLevel) -> PciPath {
    match level {
        TopologyLevel::Internal => PciPath::SameBoard,
        TopologyLevel::Single => PciPath::SingleSwitch,
        TopologyLevel::Multiple => PciPath::MultipleSwitches,
        TopologyLevel::HostBridge => PciPath::HostBridge,
        TopologyLevel::Node => PciPath::SameNode,
        TopologyLevel::System => PciPath::System,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_common_switches_count() {
        let links = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<String>>();
        for (here, there, shared) in [
            ("a a b b", "a a b b", 4),
            ("a a b", "a b b", 2),
            ("a a", "b b", 0),
            ("", "a", 0),
        ] {
            assert_eq!(switched_links(&links(here), &links(there)), shared, "{here} | {there}");
        }
    }
}
