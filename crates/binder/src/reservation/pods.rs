//! Creates and deletes reservation pods.

use std::collections::BTreeMap;
use std::time::Duration;

use kai_api::{ComputeMode, Object, Pod};
use kai_cluster::{Deletion, InstallationOwner, Target};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::node::facts::NodeFacts;
use crate::reservation::manifest::{PodRequests, reservation_pod};
use crate::reservation::state::Reservation;
use crate::shell::metrics::Operation;
use crate::shell::run::Binder;
use crate::{GpuGroupKey, reservation_name};

/// How long reservation pods request the GPU only, after the node had no CPU or memory for one.
const FULL_FOR: Duration = Duration::from_secs(600);

/// Nodes whose kubelet rejected a reservation pod for lack of CPU or memory. The scheduler does not count the requests of future
/// reservation pods, so it may give a node's last CPU to workloads. Kept in memory only: after a restart one more pod is rejected.
#[derive(Debug, Default)]
pub(crate) struct FullNodes {
    /// When each entry expires. A plain lock: held for map operations only.
    until: Mutex<BTreeMap<Box<str>, Instant>>,
}

impl FullNodes {
    fn record(&self, node: &str) {
        let mut until = self.until.lock();
        until.retain(|_, until| *until > Instant::now());
        until.insert(node.into(), Instant::now() + FULL_FOR);
    }

    /// What a reservation pod on this node should request.
    pub(crate) fn requests_for(&self, node: &str) -> PodRequests {
        match self.until.lock().get(node) {
            Some(until) if *until > Instant::now() => PodRequests::GpuOnly,
            Some(_) | None => PodRequests::Full,
        }
    }
}

impl Binder {
    /// The manifest of the group's reservation pod.
    pub(crate) fn new_reservation(&self, key: &GpuGroupKey, facts: &NodeFacts, mode: ComputeMode) -> Value {
        let requests = self.full_nodes.requests_for(&key.node);
        reservation_pod(key, facts, requests, mode, &self.settings)
    }

    /// Creates the group's reservation pod and returns its UID; empty if the pod exists already.
    pub(crate) async fn create_reservation(
        &self,
        key: &GpuGroupKey,
        mut pod: Value,
        operation: Operation,
    ) -> Result<String, kai_cluster::Error> {
        if let Some(owner) = self.installation_owner().await? {
            pod["metadata"]["ownerReferences"] = json!([owner]);
        }
        let mut created = self.create_pod(pod.clone()).await;
        let class = pod["spec"]
            .as_object_mut()
            .and_then(|spec| spec.remove("priorityClassName"));
        if let (Err(error), Some(_)) = (&created, class)
            && error.is_forbidden()
        {
            // The priority class is missing, or a quota forbids it in this namespace. The reservation works without it.
            tracing::warn!(
                group = %key, %error,
                "a reservation pod gets no priority class; create the class, or choose one with --resource-reservation-pod-priority-class"
            );
            created = self.create_pod(pod).await;
        }
        match created {
            Ok(created) => {
                tracing::info!(group = %key, pod = reservation_name(key), "a reservation pod is created");
                self.metrics.reservation(operation);
                Ok(created["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
            }
            Err(error) if error.is_conflict() => Ok(String::new()),
            Err(error) => Err(error),
        }
    }

    /// The owner of reservation pods. The binder reads it once: after an uninstallation the reference is stale, and the garbage collector
    /// deletes a pod that this process still creates.
    async fn installation_owner(&self) -> Result<Option<&Value>, kai_cluster::Error> {
        let read = async || {
            Ok(match self.client.installation_owner().await? {
                InstallationOwner::Present(owner) | InstallationOwner::Deleted(owner) => Some(owner),
                InstallationOwner::Absent => None,
            })
        };
        Ok(self.owner.get_or_try_init(read).await?.as_ref())
    }

    async fn create_pod(&self, pod: Value) -> Result<Value, kai_cluster::Error> {
        let namespace = self.settings.reservation_namespace();
        self.client.create(&Pod::RESOURCE, namespace, pod).await
    }

    /// Deletes a reservation pod in the version that was read: a new pod of the same name, or a pod that a bind has marked since, stays.
    pub(crate) async fn delete_reservation(&self, found: &Reservation) -> Result<(), kai_cluster::Error> {
        let target = Target::of::<Pod>(self.settings.reservation_namespace(), &found.name);
        let only_this = Deletion {
            uid: Some(found.uid.clone()),
            resource_version: Some(found.resource_version.clone()),
            // The pod's own grace period, so that the kubelet confirms that the GPU is free.
            grace_seconds: None,
            ..Deletion::default()
        };
        self.client.delete(target, &only_this).await?;
        if found.out_of_cpu_or_memory {
            self.full_nodes.record(&found.node);
        }
        tracing::info!(
            pod = found.name,
            group = found.group,
            node = found.node,
            "a reservation pod is deleted"
        );
        self.metrics.reservation(Operation::Removed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_crowded_node_is_asked_in_full_again_later() {
        let full_nodes = FullNodes::default();
        assert_eq!(full_nodes.requests_for("n"), PodRequests::Full);
        full_nodes.record("n");
        assert_eq!(
            (full_nodes.requests_for("n"), full_nodes.requests_for("m")),
            (PodRequests::GpuOnly, PodRequests::Full)
        );
        tokio::time::sleep(FULL_FOR).await;
        assert_eq!(full_nodes.requests_for("n"), PodRequests::Full);
    }
}
