//! Writes and deletes the ConfigMaps of a pod that shares GPUs. Their names come from an annotation that a tenant may choose, so a
//! ConfigMap of that name may be anything: the configuration of an application, or what another pod reads its GPUs from. The binder
//! never replaces and never deletes a ConfigMap that it did not make for this very pod.

use kai_api::{ConfigMap, Object, keys};
use kai_cluster::{Deletion, Target};
use serde_json::Value;

use crate::bind::{SOON, target_of};
use crate::error::Stop;
use crate::run::Binder;
use crate::sharing::{config_map_names, is_ours, is_same};

impl Binder {
    /// Creates the ConfigMap, or replaces one that an earlier attempt made for this pod. Any other ConfigMap of that name fails the
    /// bind.
    pub(crate) async fn put_config_map(&self, pod: &Value, name: &str, wanted: &Value) -> Result<(), Stop> {
        let target = Target::of::<ConfigMap>(target_of(pod).namespace, name);
        if let Some(found) = self.client.get_value(target).await? {
            if !is_ours(&found, pod) {
                return Err(Stop::Refused(foreign(&target)));
            }
            if is_same(&found, wanted) {
                return Ok(());
            }
            later_on_conflict(self.client.delete(target, &as_read(&found)).await)?;
        }
        let created = self
            .client
            .create(&ConfigMap::RESOURCE, target.namespace, wanted.clone())
            .await;
        later_on_conflict(created).map(drop)
    }

    /// Deletes what attempts to bind this pod have left.
    pub(crate) async fn remove_config_maps(&self, pod: &Value) -> Result<(), kai_cluster::Error> {
        for name in config_map_names(pod).into_iter().flatten() {
            let target = Target::of::<ConfigMap>(target_of(pod).namespace, &name);
            let Some(found) = self.client.get_value(target).await? else {
                continue;
            };
            if is_ours(&found, pod) {
                self.client.delete(target, &as_read(&found)).await?;
            }
        }
        Ok(())
    }
}

/// Only the ConfigMap that was read, and only as it was read.
fn as_read(found: &Value) -> Deletion {
    let text = |field: &str| found["metadata"][field].as_str().map(str::to_owned);
    Deletion {
        uid: text("uid"),
        resource_version: text("resourceVersion"),
        ..Deletion::default()
    }
}

/// Somebody changed, deleted or created the ConfigMap since it was read: the next pass reads it anew and decides again.
fn later_on_conflict<T>(written: Result<T, kai_cluster::Error>) -> Result<T, Stop> {
    written.map_err(|error| match error.is_conflict() {
        true => Stop::Later(SOON),
        false => error.into(),
    })
}

fn foreign(target: &Target<'_>) -> String {
    format!(
        "{target} exists, and the scheduler did not make it for this pod, so it is left as it is. Delete the ConfigMap if nobody \
         needs it, or create the pod anew without the annotation {}, so that the pod gets a name of its own",
        keys::SHARED_GPU_CONFIG_MAP
    )
}
