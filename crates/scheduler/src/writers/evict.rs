//! Evicts pods: deletes the pod of this uid with its own grace period. A newer pod of the same name stays.

use kai_api::{Pod, PodCondition};
use kai_cluster::{Deletion, Error, Part, Patch, Target};
use serde_json::json;

use super::{Evict, Writer};

impl Writer {
    pub(super) async fn evict(&self, evict: &Evict) -> Result<(), Error> {
        let target = Target::of::<Pod>(&evict.pod.namespace, &evict.pod.name);
        if self.settings.eviction_condition {
            let body = json!({
                "metadata": { "uid": evict.uid },
                "status": { "conditions": [{
                    "type": PodCondition::DISRUPTION_TARGET,
                    "status": "True",
                    "reason": "PreemptionByScheduler",
                    "message": evict.message,
                    "lastTransitionTime": self.settings.clock.now_text(),
                }] },
            });
            match self.client.patch(target, Part::Status, Patch::Strategic(body)).await {
                Err(error) if is_gone(&error) => return Ok(()),
                result => result.map(|_| ())?,
            }
        }
        let deletion = Deletion {
            uid: Some(evict.uid.clone()),
            ..Deletion::default()
        };
        match self.client.delete(target, &deletion).await {
            Err(error) if is_gone(&error) => Ok(()),
            result => result,
        }
    }
}

/// Whether the error says that the pod of this uid does not exist any more.
fn is_gone(error: &Error) -> bool {
    error.is_not_found() || error.is_conflict()
}
