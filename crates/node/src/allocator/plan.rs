//! Decides which extended resources the node offers and which device ids each resource has. Pure: the same inventory and policy give the
//! same ids, so a restarted agent offers the same devices.

use std::collections::{BTreeMap, BTreeSet};

use kai_gpu::{Device, Inventory, MigDevice, MigMode};
use serde::{Deserialize, Serialize};

use super::prefer::SharedPolicy;
use super::sharing::Sharing;

/// The resource of a whole GPU.
pub const GPU_RESOURCE: &str = "nvidia.com/gpu";
/// The domain of all resources of GPUs.
pub(super) const DOMAIN: &str = "nvidia.com";

/// How the node's owner wants GPUs offered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// How MIG devices appear.
    pub mig: MigStrategy,
    /// Time slicing.
    pub sharing: Sharing,
    /// How replicas are spread.
    pub shared_policy: SharedPolicy,
    /// Number of share devices (`kai.scheduler/gpu-share`); 0 for none.
    pub share_devices: u32,
}

impl Policy {
    /// The policy in one line, for conditions and events.
    pub fn summary(&self) -> String {
        let mut parts = vec![format!("MIG strategy {}", self.mig.as_str())];
        for (name, shared) in self.sharing.resources().filter(|(_, shared)| shared.is_shared()) {
            let offered = shared.rename.as_deref().unwrap_or(name);
            let renamed = shared
                .rename
                .as_ref()
                .map(|_| format!(" of {name}"))
                .unwrap_or_default();
            parts.push(format!(
                "{offered} with {} replicas of each device{renamed}",
                shared.replicas
            ));
        }
        match (parts.len(), self.sharing.one_per_container) {
            (1, _) => parts.push("no time slicing".to_owned()),
            (_, true) => parts.push("one replica per container".to_owned()),
            (_, false) => {}
        }
        parts.join(", ")
    }
}

/// How MIG devices appear as resources.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MigStrategy {
    /// Only whole GPUs are offered, partitioned or not.
    #[default]
    None,
    /// All MIG devices are of one profile and are offered as `nvidia.com/gpu`.
    Single,
    /// Each profile is a resource of its own: `nvidia.com/mig-1g.10gb`.
    Mixed,
}

impl MigStrategy {
    /// The strategy's name in flags and labels.
    pub fn as_str(self) -> &'static str {
        match self {
            MigStrategy::None => "none",
            MigStrategy::Single => "single",
            MigStrategy::Mixed => "mixed",
        }
    }
}

/// The extended resources that the node offers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The resources; each has its own device plugin.
    pub resources: Vec<Resource>,
    /// Why something is not offered.
    pub notes: Vec<String>,
}

/// One extended resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// `nvidia.com/gpu`.
    pub name: String,
    /// Replicas of each unit.
    pub replicas: u32,
    /// The GPUs or MIG devices, before replication, in hardware order.
    pub units: Vec<Unit>,
}

/// One GPU or MIG device that the kubelet can allocate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// UUID of the GPU or MIG device: the device id, if unshared.
    pub uuid: String,
    /// UUID of the physical GPU. The unit is unhealthy if its GPU is.
    pub gpu: String,
    /// Index of the physical GPU.
    pub gpu_index: u32,
    /// `0`, or `0:1` for a MIG device.
    pub index: String,
    /// NUMA node.
    pub numa_node: Option<u32>,
    /// GPU instance id and compute instance id, to match health events.
    pub mig: Option<(u32, u32)>,
}

impl Resource {
    /// The kubelet's device ids of one unit: its UUID, or `uuid::n` for replicas.
    pub fn device_ids<'a>(&'a self, unit: &'a Unit) -> impl Iterator<Item = String> + 'a {
        let shared = self.replicas > 1;
        (0..self.replicas).map(move |n| {
            if shared {
                format!("{}::{n}", unit.uuid)
            } else {
                unit.uuid.clone()
            }
        })
    }

    /// The unit that a device id belongs to.
    pub fn unit(&self, device_id: &str) -> Option<&Unit> {
        let uuid = device_uuid(device_id);
        self.units.iter().find(|unit| unit.uuid == uuid)
    }
}

/// The UUID in a device id, without the replica number.
pub fn device_uuid(device_id: &str) -> &str {
    device_id.split_once("::").map_or(device_id, |(uuid, _)| uuid)
}

/// Decides what to offer.
pub fn plan(inventory: &Inventory, policy: &Policy) -> Plan {
    let mut plan = Plan::default();
    let mut units: BTreeMap<String, Vec<Unit>> = BTreeMap::new();
    match policy.mig {
        MigStrategy::None => {
            units.insert(
                GPU_RESOURCE.to_owned(),
                inventory.devices.iter().map(gpu_unit).collect(),
            );
        }
        MigStrategy::Single => {
            units.insert(
                GPU_RESOURCE.to_owned(),
                single_strategy_units(inventory, &mut plan.notes),
            );
        }
        MigStrategy::Mixed => {
            let whole_gpus = inventory.devices.iter().filter(|device| !partitioned(device));
            units.insert(GPU_RESOURCE.to_owned(), whole_gpus.map(gpu_unit).collect());
            for device in inventory.devices.iter().filter(|device| partitioned(device)) {
                if device.mig_devices.is_empty() {
                    plan.notes.push(format!(
                        "GPU {} has MIG on but no partitions: it offers nothing",
                        device.index
                    ));
                }
                for mig in &device.mig_devices {
                    let name = format!("{DOMAIN}/{}", mig.resource_suffix());
                    units.entry(name).or_default().push(mig_unit(device, mig));
                }
            }
        }
    }
    let offered = |name: &str| units.get(name).is_some_and(|units| !units.is_empty());
    for (name, _) in policy.sharing.resources().filter(|(name, _)| !offered(name)) {
        // One configuration may be for nodes with different partitions.
        if !inventory.devices.is_empty() {
            plan.notes.push(format!(
                "{name} is shared by the configuration, but this node has no such device"
            ));
        }
    }
    for (name, units) in units {
        // A node whose GPUs are all partitioned does not offer the resource of whole GPUs at all.
        if units.is_empty() && policy.mig == MigStrategy::Mixed && !inventory.devices.is_empty() {
            continue;
        }
        let shared = policy.sharing.of(&name);
        let name = match &shared.rename {
            Some(new) if shared.is_shared() => new.clone(),
            Some(_) | None => name,
        };
        plan.resources.push(Resource {
            name,
            replicas: shared.replicas,
            units,
        });
    }
    plan
}

/// The units under strategy `single`: every GPU must be partitioned, and all partitions must have one profile. Otherwise the node offers no
/// GPU and a note says why. Without any partitioned GPU the node offers whole GPUs.
fn single_strategy_units(inventory: &Inventory, notes: &mut Vec<String>) -> Vec<Unit> {
    match single_state(inventory) {
        SingleState::NoMig => inventory.devices.iter().map(gpu_unit).collect(),
        SingleState::Valid => inventory
            .devices
            .iter()
            .flat_map(|device| device.mig_devices.iter().map(|mig| mig_unit(device, mig)))
            .collect(),
        SingleState::Invalid(why) => {
            notes.push(format!(
                "MIG strategy single can't be used: {why}; use strategy mixed, or partition all GPUs alike"
            ));
            Vec::new()
        }
    }
}

/// Whether the `single` strategy fits the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SingleState {
    /// No GPU has MIG on.
    NoMig,
    /// All GPUs are partitioned alike.
    Valid,
    /// Why the strategy does not fit.
    Invalid(String),
}

/// Checks whether the `single` strategy fits the node.
pub fn single_state(inventory: &Inventory) -> SingleState {
    if !inventory.devices.iter().any(partitioned) {
        return SingleState::NoMig;
    }
    if let Some(device) = inventory.devices.iter().find(|device| !partitioned(device)) {
        return SingleState::Invalid(format!("GPU {} has MIG off while others have it on", device.index));
    }
    if let Some(device) = inventory.devices.iter().find(|device| device.mig_devices.is_empty()) {
        return SingleState::Invalid(format!("GPU {} has no partitions", device.index));
    }
    let migs = inventory.devices.iter().flat_map(|device| &device.mig_devices);
    let profiles: BTreeSet<&str> = migs.map(|mig| mig.profile.as_str()).collect();
    if profiles.len() > 1 {
        let list: Vec<&str> = profiles.into_iter().collect();
        return SingleState::Invalid(format!("there are different profiles: {}", list.join(", ")));
    }
    SingleState::Valid
}

fn partitioned(device: &Device) -> bool {
    device.mig_mode == Some(MigMode::Enabled)
}

fn gpu_unit(device: &Device) -> Unit {
    Unit {
        uuid: device.uuid.clone(),
        gpu: device.uuid.clone(),
        gpu_index: device.index,
        index: device.index.to_string(),
        numa_node: device.numa_node,
        mig: None,
    }
}

fn mig_unit(device: &Device, mig: &MigDevice) -> Unit {
    Unit {
        uuid: mig.uuid.clone(),
        gpu: device.uuid.clone(),
        gpu_index: device.index,
        index: format!("{}:{}", device.index, mig.index),
        numa_node: device.numa_node,
        mig: Some((mig.gpu_instance_id, mig.compute_instance_id)),
    }
}

#[cfg(test)]
mod tests {
    use kai_gpu::Driver;
    use kai_gpu::fake::{FakeDriver, Settings};

    use super::super::sharing::Rename;
    use super::*;

    fn inventory(settings: &str) -> Inventory {
        FakeDriver::new(&settings.parse::<Settings>().unwrap().seeded("node"))
            .unwrap()
            .devices()
            .unwrap()
    }

    fn offered(settings: &str, policy: &Policy) -> Vec<(String, Vec<String>)> {
        let plan = plan(&inventory(settings), policy);
        let indices = |resource: &Resource| resource.units.iter().map(|unit| unit.index.clone()).collect();
        plan.resources
            .iter()
            .map(|resource| (resource.name.clone(), indices(resource)))
            .collect()
    }

    fn mig(mig: MigStrategy) -> Policy {
        Policy {
            mig,
            ..Policy::default()
        }
    }

    #[test]
    fn strategies_offer_whole_gpus_and_slices_under_the_usual_names() {
        let mixed = "a100-40:1/1g.5gb*2/2g.10gb,a100-40";
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            offered(mixed, &mig(MigStrategy::None)),
            [("nvidia.com/gpu".to_owned(), texts(&["0", "1"]))]
        );
        assert_eq!(
            offered(mixed, &mig(MigStrategy::Mixed)),
            [
                ("nvidia.com/gpu".to_owned(), texts(&["1"])),
                ("nvidia.com/mig-1g.5gb".to_owned(), texts(&["0:0", "0:1"])),
                ("nvidia.com/mig-2g.10gb".to_owned(), texts(&["0:2"])),
            ]
        );
        assert_eq!(
            offered("a100-40:2/1g.5gb*2", &mig(MigStrategy::Single)),
            [("nvidia.com/gpu".to_owned(), texts(&["0:0", "0:1", "1:0", "1:1"]))]
        );
    }

    #[test]
    fn an_unfit_single_strategy_offers_nothing_and_says_why() {
        let plan = plan(&inventory("a100-40:1/1g.5gb,a100-40"), &mig(MigStrategy::Single));
        assert!(plan.resources[0].units.is_empty());
        assert!(plan.notes[0].contains("GPU 1 has MIG off"), "{:?}", plan.notes);
    }

    #[test]
    fn replicas_have_stable_ids_that_lead_back() {
        let mut policy = Policy {
            sharing: Sharing::of_gpus(3, Rename::Keep).unwrap(),
            ..Policy::default()
        };
        let shared = plan(&inventory("t4"), &policy);
        let resource = &shared.resources[0];
        let unit = &resource.units[0];
        let ids: Vec<String> = resource.device_ids(unit).collect();
        assert_eq!(ids, [0, 1, 2].map(|n| format!("{}::{n}", unit.uuid)));
        assert_eq!(resource.unit(&ids[2]), Some(unit));
        assert_eq!(plan(&inventory("t4"), &policy), shared);
        policy.sharing = Sharing::of_gpus(3, Rename::WithSuffix).unwrap();
        assert_eq!(
            plan(&inventory("t4"), &policy).resources[0].name,
            "nvidia.com/gpu.shared"
        );
    }

    #[test]
    fn a_node_without_gpus_offers_none() {
        let none = plan(&Inventory::default(), &Policy::default());
        assert_eq!(none.resources.len(), 1);
        assert!(none.resources[0].units.is_empty());
    }
}
