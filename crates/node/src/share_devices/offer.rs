//! The device plugin's answers about share devices: a fixed list of device ids, and a CDI device name for each. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use kai_gpu::Inventory;

use crate::allocator::inject::CDI_ANNOTATION;
use crate::enforcement::tier::NodeEnforcement;
use crate::kubelet::deviceplugin::{CdiDevice, ContainerAllocateResponse, Device, HEALTHY};

/// CDI kind (`vendor/class`) of share devices.
pub const KIND: &str = "kai.scheduler/share";
/// Prefix of share device ids; a number follows.
pub const ID_PREFIX: &str = "share-";
/// Default number of share devices of a node: more than any kubelet runs pods, so that no pod waits for one.
pub const SHARE_DEVICES_DEFAULT: u32 = 512;
/// Upper bound on the share devices of a node: the kubelet keeps every id in memory and in its checkpoint.
pub const SHARE_DEVICES_MAX: u32 = 4096;

/// The share devices of a node, as the device plugin serves them.
#[derive(Debug, Clone)]
pub struct ShareDeviceOffer {
    /// The kubelet's device list. It never changes: GPUs fail, share devices do not.
    pub devices: Arc<Vec<Device>>,
    /// The GPUs that share devices may stand for.
    pub inventory: Arc<Inventory>,
    /// By what the node holds containers to their share; `None` until that is decided.
    pub enforcement: Option<Arc<NodeEnforcement>>,
}

/// The kubelet's device list with `count` share devices.
pub fn devices(count: u32) -> Vec<Device> {
    let share_device = |number: u32| Device {
        id: format!("{ID_PREFIX}{number}"),
        health: HEALTHY.to_owned(),
        topology: None,
    };
    (0..count).map(share_device).collect()
}

impl ShareDeviceOffer {
    /// Answers Allocate for one container with the CDI name of its share device. `Err` is a sentence for the pod's status.
    pub fn allocate(&self, device_ids: &[String]) -> Result<ContainerAllocateResponse, String> {
        let share_device = single_device(device_ids)?;
        if !self.devices.iter().any(|device| device.id == share_device) {
            return Err(format!("share device {share_device} is not on this node any more"));
        }
        let name = format!("{KIND}={share_device}");
        Ok(ContainerAllocateResponse {
            annotations: BTreeMap::from([(CDI_ANNOTATION.to_owned(), name.clone())]),
            cdi_devices: vec![CdiDevice { name }],
            ..ContainerAllocateResponse::default()
        })
    }
}

/// The share device of a container. A second one would stand for the same GPUs.
pub fn single_device(device_ids: &[String]) -> Result<&str, String> {
    match device_ids {
        [share_device] => Ok(share_device),
        _ => Err(format!(
            "{} share devices were requested, but a container has one: annotations of the pod say how large its GPU share is",
            device_ids.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_answers_with_a_name_by_field_and_by_annotation() {
        let offer = ShareDeviceOffer {
            devices: Arc::new(devices(3)),
            inventory: Arc::default(),
            enforcement: None,
        };
        let of = |ids: &[&str]| offer.allocate(&ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>());
        let answer = of(&["share-2"]).unwrap();
        assert_eq!(answer.cdi_devices[0].name, "kai.scheduler/share=share-2");
        assert_eq!(answer.annotations["cdi.k8s.io/kai-gpu"], "kai.scheduler/share=share-2");
        assert!(answer.envs.is_empty() && answer.devices.is_empty() && answer.mounts.is_empty());
        assert!(of(&["share-3"]).is_err());
        assert!(of(&["share-1", "share-2"]).unwrap_err().contains("a container has one"));
        assert!(of(&[]).is_err());
    }
}
