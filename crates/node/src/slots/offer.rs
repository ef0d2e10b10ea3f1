//! What the kubelet sees of slots: a fixed list of ids, and a device name for each. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use kai_gpu::PlatformKind;

use crate::allocator::inject::CDI_ANNOTATION;
use crate::kubelet::deviceplugin::{CdiDevice, ContainerAllocateResponse, Device, HEALTHY};

/// Our kind of CDI devices that stand for slots.
pub const KIND: &str = "kai.scheduler/share";
/// How the ids of slots begin; their number follows.
pub const ID_PREFIX: &str = "share-";
/// Slots of a node that is not told otherwise: more than any kubelet runs pods, so that pods never wait for one.
pub const SLOTS_DEFAULT: u32 = 512;
/// Most slots of a node: the kubelet keeps every id in memory and in its checkpoint.
pub const SLOTS_MAX: u32 = 4096;

/// The slots of a node, as the device plugin serves them.
#[derive(Debug, Clone)]
pub struct SlotOffer {
    /// The kubelet's device list. It never changes: GPUs fail, slots do not.
    pub devices: Arc<Vec<Device>>,
    /// What kind of machine the GPUs are in.
    pub platform: PlatformKind,
}

/// The device list of so many slots.
pub fn devices(count: u32) -> Vec<Device> {
    let slot = |number: u32| Device {
        id: format!("{ID_PREFIX}{number}"),
        health: HEALTHY.to_owned(),
        topology: None,
    };
    (0..count).map(slot).collect()
}

impl SlotOffer {
    /// Answers Allocate for one container: the name that its GPUs will have. `Err` is a sentence for the pod's status.
    pub fn allocate(&self, device_ids: &[String]) -> Result<ContainerAllocateResponse, String> {
        let slot = the_one(device_ids)?;
        if !self.devices.iter().any(|device| device.id == slot) {
            return Err(format!("slot {slot} is not on this node any more"));
        }
        let name = format!("{KIND}={slot}");
        Ok(ContainerAllocateResponse {
            annotations: BTreeMap::from([(CDI_ANNOTATION.to_owned(), name.clone())]),
            cdi_devices: vec![CdiDevice { name }],
            ..ContainerAllocateResponse::default()
        })
    }
}

/// The slot of a container. More than one would be the same GPUs twice.
pub fn the_one(device_ids: &[String]) -> Result<&str, String> {
    match device_ids {
        [slot] => Ok(slot),
        _ => Err(format!(
            "{} slots were requested, but a container has one: its share of the GPU is said by annotations of the pod",
            device_ids.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_answers_with_a_name_by_field_and_by_annotation() {
        let offer = SlotOffer {
            devices: Arc::new(devices(3)),
            platform: PlatformKind::Fake,
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
