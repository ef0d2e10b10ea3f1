//! Writes and deletes the ConfigMaps of a pod with a GPU share. Their names come from an annotation that a tenant may choose, so a
//! ConfigMap of that name may be the configuration of an application, or the ConfigMap that another pod reads its GPUs from. The binder
//! never replaces and never deletes a ConfigMap that it did not make for this pod.

use kai_api::{ConfigMap, Object, ObjectKey};
use kai_cluster::{Deletion, Target};
use serde_json::Value;

use crate::bind::attempt::{RETRY_SOON, target_of};
use crate::bind::failure::BindFailure;
use crate::bind::gpu_share::{config_map_names, has_same_content, is_made_for};
use crate::error::NotBound;
use crate::shell::run::Binder;

impl Binder {
    /// Creates the ConfigMap, or replaces the one that an earlier attempt made for this pod. Any other ConfigMap of that name makes the
    /// bind fail.
    pub(crate) async fn put_config_map(&self, pod: &Value, name: &str, wanted: &Value) -> Result<(), NotBound> {
        let target = Target::of::<ConfigMap>(target_of(pod).namespace, name);
        if let Some(found) = self.client.get_value(target).await? {
            if !is_made_for(&found, pod) {
                let config_map = ObjectKey::new(target.namespace, name);
                return Err(BindFailure::ConfigMapTaken { config_map }.into());
            }
            if has_same_content(&found, wanted) {
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

    /// Deletes the ConfigMaps that earlier attempts made for this pod.
    pub(crate) async fn delete_config_maps(&self, pod: &Value) -> Result<(), kai_cluster::Error> {
        for name in config_map_names(pod).into_iter().flatten() {
            let target = Target::of::<ConfigMap>(target_of(pod).namespace, &name);
            let Some(found) = self.client.get_value(target).await? else {
                continue;
            };
            if is_made_for(&found, pod) {
                self.client.delete(target, &as_read(&found)).await?;
            }
        }
        Ok(())
    }
}

/// Deletes the ConfigMap only in the version that was read.
fn as_read(found: &Value) -> Deletion {
    let text = |field: &str| found["metadata"][field].as_str().map(str::to_owned);
    Deletion {
        uid: text("uid"),
        resource_version: text("resourceVersion"),
        ..Deletion::default()
    }
}

/// A conflict means that another writer changed, deleted or created the ConfigMap since it was read: the next attempt reads it again.
fn later_on_conflict<T>(written: Result<T, kai_cluster::Error>) -> Result<T, NotBound> {
    written.map_err(|error| match error.is_conflict() {
        true => NotBound::RetryAfter(RETRY_SOON),
        false => error.into(),
    })
}
