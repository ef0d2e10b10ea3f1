//! The volumes that pods use: claims that one pod alone can use, and volumes that a driver attaches to the pod's node. Pods of every
//! scheduler count, because all of them share nodes and claims.

use std::collections::hash_map::Entry;

use kai_api::{CsiNode, ObjectKey, Pod, VolumeBinding};
use kai_engine::model::{AttachLimits, Event, PodSpec};
use kai_engine::steps;

use super::Volumes;
use crate::{ClusterMirror, ObjectList};

/// What a claim means to the other pods of the cluster and of the node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ClaimUse {
    /// One pod alone can use it.
    is_exclusive: bool,
    /// The driver that attaches its volume, and a unique name of the volume.
    attached: Option<(String, String)>,
}

impl ClusterMirror {
    /// The CSINode was added or changed.
    pub fn apply_csi_node(&mut self, node: &CsiNode) {
        self.outbox.events.push(Event::AttachLimits(node.attach_limits()));
    }

    /// The CSINode was deleted.
    pub fn remove_csi_node(&mut self, name: &str) {
        self.outbox.events.push(Event::AttachLimits(AttachLimits {
            node: name.to_owned(),
            volumes: Vec::new(),
        }));
    }

    /// Adds to the pod the volumes that other pods can miss.
    pub(crate) fn add_used_volumes(&mut self, key: &ObjectKey, pod: &Pod, spec: &mut PodSpec) {
        if self.volume_list != ObjectList::Complete {
            return;
        }
        for named in pod.volume_claims() {
            steps::count(1);
            let claim = ObjectKey::new(&key.namespace, &named.claim_name(&key.name));
            let ClaimUse { is_exclusive, attached } = self.volumes.use_of(&claim);
            if is_exclusive {
                spec.volumes.exclusive_claims.insert(claim.to_string());
            }
            if let Some((driver, volume)) = attached {
                spec.volumes.attached.entry(driver).or_default().insert(volume);
            }
            self.volumes.users.entry(claim).or_default().insert(key.clone());
        }
    }

    /// The pod is gone.
    pub(crate) fn forget_used_volumes(&mut self, key: &ObjectKey, pod: &Pod) {
        for named in pod.volume_claims() {
            let claim = ObjectKey::new(&key.namespace, &named.claim_name(&key.name));
            if let Entry::Occupied(mut users) = self.volumes.users.entry(claim) {
                users.get_mut().remove(key);
                if users.get().is_empty() {
                    users.remove();
                }
            }
        }
    }
}

impl Volumes {
    pub(super) fn use_of(&self, key: &ObjectKey) -> ClaimUse {
        let Some(claim) = self.claims.get(key) else {
            return ClaimUse::default();
        };
        let attached = if claim.is_bound() {
            let volume = claim.volume_name().and_then(|name| self.volumes.get(name));
            volume
                .and_then(|volume| volume.csi())
                .map(|(driver, volume)| (driver.to_owned(), format!("{driver} {volume}")))
        } else {
            let class = claim.storage_class_name().and_then(|name| self.classes.get(name));
            let late = class.filter(|class| class.volume_binding() == VolumeBinding::WaitForFirstConsumer);
            late.and_then(|class| class.provisioner())
                .map(|driver| (driver.to_owned(), format!("{driver} of claim {key}")))
        };
        ClaimUse {
            is_exclusive: claim.is_for_one_pod(),
            attached,
        }
    }
}
