//! The current offer of one resource: the task that owns the state publishes it, and the device plugin answers from it. Pure.

use std::sync::Arc;

use kai_api::keys::RESOURCE_GPU_SHARE;
use kai_gpu::{Inventory, PlatformKind};

use super::inject::Injection;
use super::plan::{Resource, Unit};
use super::prefer::{PreferenceQuery, SharedPolicy, preferred};
use crate::health::Health;
use crate::kubelet::deviceplugin::{
    ContainerAllocateResponse, Device, DevicePluginOptions, HEALTHY, NumaNode, TopologyInfo, UNHEALTHY,
};
use crate::share_devices::ShareDeviceOffer;

/// Environment variable by which the `fake-nvml` library limits the GPUs that a process sees.
const FAKE_VISIBLE: &str = "KAI_FAKE_VISIBLE_DEVICES";

/// One resource with everything needed to answer the kubelet about it.
#[derive(Debug, Clone)]
pub enum Offer {
    /// GPUs or MIG devices.
    Gpus(GpuOffer),
    /// Share devices, for containers with a GPU share.
    ShareDevices(ShareDeviceOffer),
}

impl Offer {
    /// The resource's name.
    pub fn name(&self) -> &str {
        match self {
            Offer::Gpus(gpus) => &gpus.resource.name,
            Offer::ShareDevices(_) => RESOURCE_GPU_SHARE,
        }
    }

    /// The kubelet's device list.
    pub fn devices(&self) -> &[Device] {
        match self {
            Offer::Gpus(gpus) => &gpus.devices,
            Offer::ShareDevices(share_devices) => &share_devices.devices,
        }
    }

    /// The options that the plugin registers with. The GPU of a share device is decided in PreStartContainer, and all free share devices
    /// are alike.
    pub fn options(&self) -> DevicePluginOptions {
        let share_devices = matches!(self, Offer::ShareDevices(_));
        DevicePluginOptions {
            pre_start_required: share_devices,
            get_preferred_allocation_available: !share_devices,
        }
    }

    /// Answers Allocate for one container. `Err` is a sentence for the pod's status.
    pub fn allocate(&self, device_ids: &[String]) -> Result<ContainerAllocateResponse, String> {
        match self {
            Offer::Gpus(gpus) => gpus.allocate(device_ids),
            Offer::ShareDevices(share_devices) => share_devices.allocate(device_ids),
        }
    }

    /// Answers GetPreferredAllocation for one container. An empty answer leaves the choice to the kubelet.
    pub fn prefer(&self, query: PreferenceQuery) -> Vec<String> {
        match self {
            Offer::Gpus(gpus) => preferred(&gpus.resource, &gpus.inventory, gpus.shared_policy, query),
            Offer::ShareDevices(_) => Vec::new(),
        }
    }
}

/// A resource of GPUs or MIG devices.
#[derive(Debug, Clone)]
pub struct GpuOffer {
    /// The resource's name and units.
    pub resource: Resource,
    /// The kubelet's device list.
    pub devices: Vec<Device>,
    /// The node's GPUs, whose connections decide the preferred allocation.
    pub inventory: Arc<Inventory>,
    /// How allocated devices are injected into containers.
    pub injection: Arc<Injection>,
    /// How replicas are spread.
    pub shared_policy: SharedPolicy,
    /// Whether a container may have only one replica.
    pub one_per_container: bool,
}

/// The kubelet's device list of a resource: every replica of a unit has the unit's health and NUMA node.
pub fn devices(resource: &Resource, health: &Health) -> Vec<Device> {
    let mut devices = Vec::with_capacity(resource.units.len() * resource.replicas as usize);
    for unit in &resource.units {
        let word = if health.allows(unit) { HEALTHY } else { UNHEALTHY };
        let topology = unit.numa_node.map(|node| TopologyInfo {
            nodes: vec![NumaNode { id: i64::from(node) }],
        });
        devices.extend(resource.device_ids(unit).map(|id| Device {
            id,
            health: word.to_owned(),
            topology: topology.clone(),
        }));
    }
    devices
}

impl GpuOffer {
    fn allocate(&self, device_ids: &[String]) -> Result<ContainerAllocateResponse, String> {
        if self.one_per_container && self.resource.replicas > 1 && device_ids.len() > 1 {
            return Err(format!(
                "{} replicas of {} were requested, but a container may have one: more replicas give no more of the GPU",
                device_ids.len(),
                self.resource.name
            ));
        }
        let mut units: Vec<&Unit> = Vec::new();
        for id in device_ids {
            let Some(unit) = self.resource.unit(id) else {
                return Err(format!(
                    "device {id} of {} is not on this node any more",
                    self.resource.name
                ));
            };
            let known = self.devices.iter().find(|device| device.id == *id);
            if known.is_none_or(|device| device.health != HEALTHY) {
                return Err(format!("device {id} of {} is unhealthy", self.resource.name));
            }
            if !units.contains(&unit) {
                units.push(unit);
            }
        }
        let mut answer = self.injection.response(&units)?;
        if self.inventory.platform.kind == PlatformKind::Fake {
            answer
                .envs
                .extend([fake_visible(units.iter().map(|unit| unit.uuid.as_str()))]);
        }
        Ok(answer)
    }
}

/// The variable that hides other fake GPUs from a container. Real GPUs are hidden by missing device nodes.
pub(crate) fn fake_visible<'a>(uuids: impl Iterator<Item = &'a str>) -> (String, String) {
    (FAKE_VISIBLE.to_owned(), uuids.collect::<Vec<_>>().join(","))
}
