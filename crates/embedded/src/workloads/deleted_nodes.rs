//! Deletes the pods of deleted nodes, as the pod garbage collector does: no kubelet is left to remove them.

use std::time::Duration;

use kai_api::{Object, ObjectKey};
use kai_cluster::{Deletion, Error, Part, Patch, Selection, Target};
use serde_json::json;

use super::reconcile::RequeueAfter;
use super::{Inner, Kind};

/// The pause before the pods of a missing node are deleted, as in kube-controller-manager: the node may register again.
const QUARANTINE: Duration = Duration::from_secs(40);

impl Inner {
    /// Enqueues a check of a node that does not exist.
    pub(super) fn enqueue_if_node_is_missing(&self, node: &str) {
        let key = ObjectKey::new("", node);
        if self.context.informers.nodes().is_synced() && self.context.informers.nodes().get(&key).is_none() {
            self.queue.add_after((Kind::DeletedNode, key), QUARANTINE);
        }
    }

    /// Deletes the pods of a node if it still does not exist.
    pub(super) async fn deleted_node(&self, key: &ObjectKey) -> Result<RequeueAfter, Error> {
        let client = &self.context.client;
        if client
            .get_metadata(Target::of::<kai_api::Node>("", &key.name))
            .await?
            .is_some()
        {
            return Ok(None);
        }
        let selection = Selection {
            fields: format!("spec.nodeName={}", key.name),
            ..Selection::default()
        };
        for pod in client.list_values(&kai_api::Pod::RESOURCE, &selection).await? {
            let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default();
            let (namespace, name) = (text("namespace"), text("name"));
            let target = Target::of::<kai_api::Pod>(namespace, name);
            let ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
            if !ended {
                let now = self.context.clock.now_text();
                let status = json!({ "metadata": { "uid": text("uid") }, "status": { "phase": "Failed", "conditions": [{
                    "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
                    "message": "PodGC: node no longer exists", "lastTransitionTime": now,
                }] } });
                match client.patch(target, Part::Status, Patch::Strategic(status)).await {
                    Err(error) if !error.is_not_found() && !error.is_conflict() => return Err(error),
                    _ => {}
                }
            }
            let at_once = Deletion {
                uid: Some(text("uid").to_owned()),
                grace_seconds: Some(0),
                ..Deletion::default()
            };
            match client.delete(target, &at_once).await {
                Err(error) if !error.is_conflict() => return Err(error),
                _ => {}
            }
        }
        Ok(None)
    }
}
