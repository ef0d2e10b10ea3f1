//! Caring for groups that no bind is at work on: reservations without users go, lost ones come back.

use std::time::Duration;

use kai_api::{ObjectReference, keys};
use kai_cluster::WorkResult;

use crate::GroupKey;
use crate::care::{Care, care};
use crate::devices::NodeFacts;
use crate::locks::Worker;
use crate::metrics::Deed;
use crate::run::Binder;
use crate::step::Reservation;

/// The pause after a step towards a group's own GPU: kubelets take about as long.
const STEP_PAUSE: Duration = Duration::from_secs(1);

impl Binder {
    /// One look at a group.
    pub(crate) async fn care_for(&self, key: GroupKey) -> WorkResult {
        let Some(_hold) = self.locks.take(std::slice::from_ref(&key), Worker::Care(key.clone())) else {
            return WorkResult::Done;
        };
        match self.try_care(&key).await {
            Ok(outcome) => outcome,
            // Somebody changed the reservation since it was read; perhaps it has a user now.
            Err(error) if error.is_conflict() => WorkResult::Retry,
            Err(error) => {
                tracing::warn!(group = %key, %error, "the care for a GPU group is tried again");
                WorkResult::Retry
            }
        }
    }

    /// Everything that leaves a group unwell ends in `Retry`, so that the pauses grow: a node that can't give the GPU back is asked
    /// once a minute in the end.
    async fn try_care(&self, key: &GroupKey) -> Result<WorkResult, kai_cluster::Error> {
        // The reservation is read before who needs it, and removed only as read: a bind marks it before it relies on it.
        let found = self.reservation(key).await?;
        let books = self.books(&key.node, None, &[]).await?;
        let cached_use = self.is_awaited_by_watch(key) || self.placeholders.is_needed(key);
        let cared = care(key, found.as_ref(), &books, cached_use);
        match (cared, found) {
            (Care::Nothing, found) => {
                if found.is_none() {
                    self.waits.end(key);
                }
                self.release(self.placeholders.end(key));
                Ok(WorkResult::Done)
            }
            (Care::Watch, _) => Ok(WorkResult::Retry),
            (Care::Remove { again }, Some(found)) => {
                self.remove_reservation(&found).await?;
                // The node has no GPU left for it: the placeholders have all others, and somebody else has its own.
                self.release(self.placeholders.give_up(key));
                Ok(if again { WorkResult::Retry } else { WorkResult::Done })
            }
            (Care::Restore, _) => {
                let own: Vec<String> = books.own_gpus(&key.group).map(str::to_owned).collect();
                self.restore(key, &own, books.unheld(&key.group)).await
            }
            // It was said, and trying again would be in vain: that it holds any GPU keeps the node from being promised too often.
            (Care::Mismatch { .. }, Some(_)) if self.placeholders.rests(key) => Ok(WorkResult::Done),
            (Care::Mismatch { gpu }, Some(found)) => {
                let pods = books
                    .staying(&key.group)
                    .map(|user| (about(user), user.gpus.join(",")))
                    .collect();
                self.mismatch(key, &found, &gpu, pods).await
            }
            (Care::Remove { .. } | Care::Mismatch { .. }, None) => Ok(WorkResult::Done),
        }
    }

    /// Makes the reservation anew. It says which GPU is wanted, which the node agent makes the kubelet prefer; where another one came of
    /// that, placeholders leave the kubelet no choice.
    async fn restore(
        &self,
        key: &GroupKey,
        own_gpus: &[String],
        wanted: Option<&str>,
    ) -> Result<WorkResult, kai_cluster::Error> {
        let Some(facts) = self.node_facts(&key.node).await? else {
            // Its pods are about to go with it.
            return Ok(WorkResult::Done);
        };
        if let Some(outcome) = self.hold_placeholders(key, &facts, own_gpus).await? {
            return Ok(outcome);
        }
        tracing::warn!(group = %key, "pods share a GPU that nothing holds for them; it is reserved anew");
        let mut pod = self.new_reservation(key, &facts);
        if let Some(gpu) = wanted {
            pod["metadata"]["annotations"][keys::RESERVATION_WANTED_GPU] = gpu.into();
        }
        self.create_reservation(key, pod, Deed::Restored).await?;
        Ok(WorkResult::Retry)
    }

    /// Gets the GPUs that the node chose instead of the group's own out of the way, step by step. `None` once they are.
    async fn hold_placeholders(
        &self,
        key: &GroupKey,
        facts: &NodeFacts,
        own_gpus: &[String],
    ) -> Result<Option<WorkResult>, kai_cluster::Error> {
        for (number, placeholder) in (0_u32..).zip(self.placeholders.of(key)) {
            let Some(held) = self.reservation(&placeholder).await? else {
                let pod = self.new_reservation(&placeholder, facts);
                self.create_reservation(&placeholder, pod, Deed::Created).await?;
                return Ok(Some(WorkResult::RequeueAfter(STEP_PAUSE)));
            };
            if held.terminating {
                return Ok(Some(WorkResult::Retry));
            }
            // It has the very GPU that is wanted, and those before it the others; or the node had none left for it.
            let is_own = held.gpu.as_ref().is_some_and(|gpu| own_gpus.contains(gpu));
            if is_own || !held.alive {
                self.placeholders.limit(key, number);
                self.remove_reservation(&held).await?;
                return Ok(Some(WorkResult::RequeueAfter(STEP_PAUSE)));
            }
            if held.gpu.is_none() {
                return Ok(Some(WorkResult::Retry));
            }
        }
        Ok(None)
    }

    /// Placeholders that nobody needs any more go.
    fn release(&self, placeholders: Vec<GroupKey>) {
        placeholders.into_iter().for_each(|key| self.care.add(key));
    }

    async fn mismatch(
        &self,
        key: &GroupKey,
        found: &Reservation,
        gpu: &str,
        pods: Vec<(ObjectReference, String)>,
    ) -> Result<WorkResult, kai_cluster::Error> {
        tracing::error!(group = %key, gpu, "the reservation made anew holds another GPU than its pods use");
        self.metrics.reservation(Deed::Mismatched);
        for (pod, own) in pods {
            let message = format!(
                "GPU {own} is no longer held for this pod: its reservation was lost, and the node gave {gpu} to the new one. \
                 Others may be given {own} too; no further pod joins the group until this is repaired"
            );
            Binder::warn(&self.events, pod, message).await;
        }
        self.remove_reservation(found).await?;
        self.placeholders.one_more(key);
        Ok(WorkResult::Retry)
    }
}

fn about(user: &crate::books::User) -> ObjectReference {
    ObjectReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        namespace: user.pod.namespace.to_string(),
        name: user.pod.name.to_string(),
        uid: user.uid.clone(),
    }
}
