//! Rolls back an attempt: removes the labels, annotations and ConfigMaps that it wrote. The reservation pods are left to
//! `reservation::reconcile`, which knows their other users.

use kai_api::{BindRequest, Pod, keys};
use kai_cluster::{Part, Patch, Target};
use serde_json::{Map, Value, json};

use crate::bind::limits::is_written_by_binder;
use crate::node::allocations::targets_pod;
use crate::shell::run::Binder;

/// How often the rollback is retried because another writer changed the pod. Beyond that the work queue retries it.
const TRIES_MAX: u32 = 5;

/// Result of a rollback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RollbackResult {
    /// Nothing of the attempt is left.
    RolledBack,
    /// The pod is bound to the requested node after all.
    AlreadyBound,
}

/// The metadata patch that removes the labels and annotations of binders from a pod; `None` if the pod has none.
pub(crate) fn rollback_patch(pod: &Value) -> Option<Value> {
    let nulls = |field: &str, is_ours: &dyn Fn(&str) -> bool| -> Map<String, Value> {
        let present = pod["metadata"][field].as_object().into_iter().flatten();
        present
            .filter(|(key, _)| is_ours(key))
            .map(|(key, _)| (key.clone(), Value::Null))
            .collect()
    };
    let labels = nulls("labels", &keys::is_gpu_group_label);
    let annotations = nulls("annotations", &|key| is_written_by_binder(pod, key));
    (!labels.is_empty() || !annotations.is_empty()).then(|| json!({ "labels": labels, "annotations": annotations }))
}

impl Binder {
    /// Rolls back the changes to the request's pod. The patch names the pod's resource version, as a Binding does: a Binding whose
    /// response was lost either shows in the pod as read, or fails after the patch.
    pub(crate) async fn roll_back(&self, request: &BindRequest) -> Result<RollbackResult, kai_cluster::Error> {
        let target = Target::of::<Pod>(request.metadata.namespace(), request.pod_name());
        let mut tries = 0;
        loop {
            tries += 1;
            let Some(pod) = self.client.get_value(target).await? else {
                return Ok(RollbackResult::RolledBack);
            };
            let slim: Pod = serde_json::from_value(pod.clone()).unwrap_or_default();
            if !targets_pod(request, &slim) {
                return Ok(RollbackResult::RolledBack);
            }
            match slim.node_name() {
                Some(node) if node == request.selected_node() => return Ok(RollbackResult::AlreadyBound),
                Some(_) => return Ok(RollbackResult::RolledBack),
                None => {}
            }
            if let Some(mut metadata) = rollback_patch(&pod) {
                metadata["uid"] = pod["metadata"]["uid"].clone();
                metadata["resourceVersion"] = pod["metadata"]["resourceVersion"].clone();
                let body = Patch::Merge(json!({ "metadata": metadata }));
                match self.client.patch(target, Part::Status, body).await {
                    Ok(_) => {}
                    Err(error) if error.is_not_found() => return Ok(RollbackResult::RolledBack),
                    Err(error) if error.is_conflict() && tries < TRIES_MAX => continue,
                    Err(error) => return Err(error),
                }
            }
            self.delete_config_maps(&pod).await?;
            return Ok(RollbackResult::RolledBack);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_binders_write_goes() {
        let pod = json!({ "metadata": {
            "labels": { "app": "x", "runai-gpu-group": "g", "runai-gpu-group/h": "h" },
            "annotations": {
                "gpu-fraction": "0.5", "received-resource-type": "Fraction", "kai.scheduler/received-gpus": "GPU-1",
                "kai.scheduler/gpu-limits": "{}", "kai.scheduler/gpu-enforcement-tier": "driver",
                "nvidia.com/container.main.gpus.devices": "GPU-1", "nvidia.com/container.main.gpu-memory.limit": "1Mi",
            },
        } });
        let expect = json!({
            "labels": { "runai-gpu-group": null, "runai-gpu-group/h": null },
            "annotations": {
                "received-resource-type": null, "kai.scheduler/received-gpus": null, "kai.scheduler/gpu-limits": null,
                "kai.scheduler/gpu-enforcement-tier": null, "nvidia.com/container.main.gpus.devices": null,
                "nvidia.com/container.main.gpu-memory.limit": null,
            },
        });
        assert_eq!(rollback_patch(&pod), Some(expect));
        assert_eq!(
            rollback_patch(&json!({ "metadata": { "labels": { "app": "x" } } })),
            None
        );
    }
}
