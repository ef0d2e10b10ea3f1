//! Creates and removes reservation pods.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kai_api::{Object, Pod};
use kai_cluster::{Deletion, Target};
use serde_json::Value;
use tokio::time::Instant;

use crate::devices::NodeFacts;
use crate::metrics::Deed;
use crate::reservation_pod::{Room, reservation_pod};
use crate::run::Binder;
use crate::step::Reservation;
use crate::{GroupKey, reservation_name};

/// A node that had no CPU or memory for a reservation pod is asked for the GPU alone for this time.
const CROWDED_FOR: Duration = Duration::from_secs(600);

/// Nodes that refused a reservation pod for want of CPU or memory. The scheduler gives a node's last CPU to pods and does not count what
/// a reservation pod will ask for. Kept in memory only: a binder that does not know asks once more.
#[derive(Debug, Default)]
pub(crate) struct CrowdedNodes {
    /// A plain lock: held for map operations only.
    until: Mutex<BTreeMap<Box<str>, Instant>>,
}

impl CrowdedNodes {
    fn note(&self, node: &str) {
        let mut until = self.lock();
        until.retain(|_, until| *until > Instant::now());
        until.insert(node.into(), Instant::now() + CROWDED_FOR);
    }

    /// What a reservation pod may ask of the node.
    pub(crate) fn room(&self, node: &str) -> Room {
        match self.lock().get(node) {
            Some(until) if *until > Instant::now() => Room::None,
            Some(_) | None => Room::Full,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Box<str>, Instant>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Binder {
    /// The manifest of the group's reservation pod.
    pub(crate) fn new_reservation(&self, key: &GroupKey, facts: &NodeFacts) -> Value {
        reservation_pod(key, facts, self.crowded.room(&key.node), &self.settings)
    }

    /// Creates the group's reservation pod, and answers with its uid; empty if there was one already.
    pub(crate) async fn create_reservation(
        &self,
        key: &GroupKey,
        mut pod: Value,
        deed: Deed,
    ) -> Result<String, kai_cluster::Error> {
        let mut created = self.create_pod(pod.clone()).await;
        let class = pod["spec"]
            .as_object_mut()
            .and_then(|spec| spec.remove("priorityClassName"));
        if let (Err(error), Some(_)) = (&created, class)
            && error.is_forbidden()
        {
            // The class is missing, or a quota keeps it from this namespace. A reservation without it is better than none.
            tracing::warn!(
                group = %key, %error,
                "a reservation pod gets no priority class; create the class, or choose one with --resource-reservation-pod-priority-class"
            );
            created = self.create_pod(pod).await;
        }
        match created {
            Ok(created) => {
                tracing::info!(group = %key, pod = reservation_name(key), "a GPU is being reserved");
                self.metrics.reservation(deed);
                Ok(created["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
            }
            Err(error) if error.is_conflict() => Ok(String::new()),
            Err(error) => Err(error),
        }
    }

    async fn create_pod(&self, pod: Value) -> Result<Value, kai_cluster::Error> {
        let namespace = &self.settings.reservation_namespace;
        self.client.create(&Pod::RESOURCE, namespace, pod).await
    }

    /// Removes a reservation pod as it was read: a successor, or one that was marked since, stays.
    pub(crate) async fn remove_reservation(&self, found: &Reservation) -> Result<(), kai_cluster::Error> {
        let target = Target::of::<Pod>(&self.settings.reservation_namespace, &found.name);
        let only_this = Deletion {
            uid: Some(found.uid.clone()),
            resource_version: Some(found.resource_version.clone()),
            // What the pod says: the kubelet confirms that the GPU is free.
            grace_seconds: None,
        };
        self.client.delete(target, &only_this).await?;
        if found.short_of_room {
            self.crowded.note(&found.node);
        }
        tracing::info!(
            pod = found.name,
            group = found.group,
            node = found.node,
            "a reservation is removed"
        );
        self.metrics.reservation(Deed::Removed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_crowded_node_is_asked_in_full_again_later() {
        let crowded = CrowdedNodes::default();
        assert_eq!(crowded.room("n"), Room::Full);
        crowded.note("n");
        assert_eq!((crowded.room("n"), crowded.room("m")), (Room::None, Room::Full));
        tokio::time::sleep(CROWDED_FOR).await;
        assert_eq!(crowded.room("n"), Room::Full);
    }
}
