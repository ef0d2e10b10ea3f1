//! Taking back what an attempt to bind has written, so that nothing of it is left: labels, annotations, ConfigMaps. Reservations are
//! taken back by the care for their group, which knows who else uses them.

use kai_api::{BindRequest, Pod, keys};
use kai_cluster::{Part, Patch, Target};
use serde_json::{Map, Value, json};

use crate::books::is_about;
use crate::run::Binder;

/// Somebody else may change the pod at the same time; more often than this in a row is a reason to come back later.
const TRIES_MAX: u32 = 5;

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undone {
    /// Nothing of the attempt is left.
    Clean,
    /// The pod is on the node after all.
    Bound,
}

/// What has to go from a pod that is not bound; `None` if nothing.
pub(crate) fn undo(pod: &Value) -> Option<Value> {
    let nulls = |field: &str, is_ours: fn(&str) -> bool| -> Map<String, Value> {
        let present = pod["metadata"][field].as_object().into_iter().flatten();
        present
            .filter(|(key, _)| is_ours(key))
            .map(|(key, _)| (key.clone(), Value::Null))
            .collect()
    };
    let labels = nulls("labels", |key| {
        key == keys::GPU_GROUP || key.starts_with(keys::GPU_GROUP_PREFIX)
    });
    let annotations = nulls("annotations", |key| {
        [keys::RECEIVED_RESOURCE_TYPE, keys::RECEIVED_GPUS].contains(&key)
    });
    (!labels.is_empty() || !annotations.is_empty()).then(|| json!({ "labels": labels, "annotations": annotations }))
}

impl Binder {
    /// Takes back what was written to the request's pod. The pod is changed only as it was read: a binding that was sent and never
    /// answered either shows now or can't come true any more.
    pub(crate) async fn roll_back(&self, request: &BindRequest) -> Result<Undone, kai_cluster::Error> {
        let target = Target::of::<Pod>(request.metadata.namespace(), request.pod_name());
        let mut tries = 0;
        loop {
            tries += 1;
            let Some(pod) = self.client.get_value(target).await? else {
                return Ok(Undone::Clean);
            };
            let slim: Pod = serde_json::from_value(pod.clone()).unwrap_or_default();
            if !is_about(request, &slim) {
                return Ok(Undone::Clean);
            }
            match slim.node_name() {
                Some(node) if node == request.selected_node() => return Ok(Undone::Bound),
                Some(_) => return Ok(Undone::Clean),
                None => {}
            }
            if let Some(mut metadata) = undo(&pod) {
                metadata["uid"] = pod["metadata"]["uid"].clone();
                metadata["resourceVersion"] = pod["metadata"]["resourceVersion"].clone();
                let body = Patch::Merge(json!({ "metadata": metadata }));
                match self.client.patch(target, Part::Status, body).await {
                    Ok(_) => {}
                    Err(error) if error.is_not_found() => return Ok(Undone::Clean),
                    Err(error) if error.is_conflict() && tries < TRIES_MAX => continue,
                    Err(error) => return Err(error),
                }
            }
            self.remove_config_maps(&pod).await?;
            return Ok(Undone::Clean);
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
            "annotations": { "gpu-fraction": "0.5", "received-resource-type": "Fraction", "kai.scheduler/received-gpus": "GPU-1" },
        } });
        let expect = json!({
            "labels": { "runai-gpu-group": null, "runai-gpu-group/h": null },
            "annotations": { "received-resource-type": null, "kai.scheduler/received-gpus": null },
        });
        assert_eq!(undo(&pod), Some(expect));
        assert_eq!(undo(&json!({ "metadata": { "labels": { "app": "x" } } })), None);
    }
}
