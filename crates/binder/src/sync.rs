//! Caring for groups that no bind is at work on: reservations without users go, lost ones come back.

use api::keys;
use cluster::{About, Outcome};

use crate::GroupKey;
use crate::care::{Care, care};
use crate::locks::Worker;
use crate::metrics::Deed;
use crate::reservation_pod::reservation_pod;
use crate::run::Binder;
use crate::step::Reservation;

impl Binder {
    /// One look at a group.
    pub(crate) async fn care_for(&self, key: GroupKey) -> Outcome {
        let Some(_hold) = self.locks.take(std::slice::from_ref(&key), Worker::Care(key.clone())) else {
            return Outcome::Done;
        };
        match self.try_care(&key).await {
            Ok(outcome) => outcome,
            // Somebody changed the reservation since it was read; perhaps it has a user now.
            Err(error) if error.is_conflict() => Outcome::Retry,
            Err(error) => {
                tracing::warn!(group = %key, %error, "the care for a GPU group is tried again");
                Outcome::Retry
            }
        }
    }

    /// Everything that leaves a group unwell ends in `Retry`, so that the pauses grow: a node that can't give the GPU back is asked
    /// once a minute in the end.
    async fn try_care(&self, key: &GroupKey) -> Result<Outcome, cluster::Error> {
        // The reservation is read before who needs it, and removed only as read: a bind marks it before it relies on it.
        let found = self.reservation(key).await?;
        let books = self.books(&key.node, None, &[]).await?;
        let cared = care(key, found.as_ref(), &books, self.is_awaited_by_watch(key));
        match (cared, found) {
            (Care::Nothing, found) => {
                if found.is_none() {
                    self.waits.end(key);
                }
                Ok(Outcome::Done)
            }
            (Care::Watch, _) => Ok(Outcome::Retry),
            (Care::Remove { again }, Some(found)) => {
                self.remove_reservation(&found).await?;
                Ok(if again { Outcome::Retry } else { Outcome::Done })
            }
            (Care::Restore, _) => self.restore(key, books.unheld(&key.group)).await,
            (Care::Mismatch { gpu }, Some(found)) => {
                let pods = books
                    .staying(&key.group)
                    .map(|user| (about(user), user.gpus.join(",")))
                    .collect();
                self.mismatch(key, &found, &gpu, pods).await
            }
            (Care::Remove { .. } | Care::Mismatch { .. }, None) => Ok(Outcome::Done),
        }
    }

    async fn restore(&self, key: &GroupKey, gpu: Option<&str>) -> Result<Outcome, cluster::Error> {
        let Some(facts) = self.node_facts(&key.node).await? else {
            // Its pods are about to go with it.
            return Ok(Outcome::Done);
        };
        tracing::warn!(group = %key, "pods share a GPU that nothing holds for them; it is reserved anew");
        let mut pod = reservation_pod(key, &facts, &self.settings);
        if let Some(gpu) = gpu {
            pod["metadata"]["annotations"][keys::RESERVATION_WANTED_GPU] = gpu.into();
        }
        self.create_reservation(key, pod, Deed::Restored).await?;
        Ok(Outcome::Retry)
    }

    async fn mismatch(
        &self,
        key: &GroupKey,
        found: &Reservation,
        gpu: &str,
        pods: Vec<(About, String)>,
    ) -> Result<Outcome, cluster::Error> {
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
        Ok(Outcome::Retry)
    }
}

fn about(user: &crate::books::User) -> About {
    About {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        namespace: user.pod.namespace.to_string(),
        name: user.pod.name.to_string(),
        uid: user.uid.clone(),
    }
}
