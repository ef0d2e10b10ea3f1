//! The volumes of claims that wait for their first consumer: the claim is bound as soon as its pod is. A new volume can be used on every
//! node, because only a real provisioner knows which nodes reach it.

use std::sync::Arc;

use kai_api::{ObjectKey, PersistentVolume};
use kai_engine::model::VolumeChoice;
use kai_mirror::ClusterMirror;

/// Binds claims and volumes as the engine chose.
pub(super) fn bind(mirror: &mut ClusterMirror, choices: &[VolumeChoice]) {
    for choice in choices {
        let (namespace, name) = choice.claim.split_once('/').unwrap_or(("default", &choice.claim));
        let key = ObjectKey::new(namespace, name);
        let Some(claim) = mirror.volume_claim(&key).map(Arc::clone) else {
            continue;
        };
        let volume = match &choice.volume {
            Some(volume) => mirror.volume(volume).map(|volume| (**volume).clone()),
            None => {
                let class = claim.storage_class_name().and_then(|name| mirror.storage_class(name));
                Some(PersistentVolume::made_for(
                    &claim,
                    class.and_then(|class| class.provisioner()),
                ))
            }
        };
        let Some(volume) = volume else { continue };
        mirror.apply_volume(&Arc::new(volume.bound_to(&claim)));
        mirror.apply_volume_claim(&key, &Arc::new(claim.bound_to(&volume)));
    }
}
