//! Eviction: the pod is deleted, with its own grace period. Only this very pod: a successor of the same name is left alone.

use kai_api::{Pod, PodCondition};
use kai_cluster::{Deletion, Error, Part, Patch, Target};
use serde_json::json;

use super::{Evict, Writer};

impl Writer {
    pub(super) async fn evict(&self, evict: &Evict) -> Result<(), Error> {
        let target = Target::of::<Pod>(&evict.pod.namespace, &evict.pod.name);
        if self.rules.eviction_condition {
            let body = json!({
                "metadata": { "uid": evict.uid },
                "status": { "conditions": [{
                    "type": PodCondition::DISRUPTION_TARGET,
                    "status": "True",
                    "reason": "PreemptionByScheduler",
                    "message": evict.message,
                    "lastTransitionTime": self.rules.clock.now_text(),
                }] },
            });
            match self.client.patch(target, Part::Status, Patch::Strategic(body)).await {
                Err(error) if is_past(&error) => return Ok(()),
                result => result.map(|_| ())?,
            }
        }
        let deletion = Deletion {
            uid: Some(evict.uid.clone()),
            ..Deletion::default()
        };
        match self.client.delete(target, &deletion).await {
            Err(error) if is_past(&error) => Ok(()),
            result => result,
        }
    }
}

/// The pod is gone or has a successor: nothing left to do.
fn is_past(error: &Error) -> bool {
    error.is_not_found() || error.is_conflict()
}
