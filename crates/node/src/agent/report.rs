//! Writes the node's labels, its GPU condition and its events to the API server. The content is decided by pure functions; a write that
//! fails is tried again and delays no other part of the agent.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use kai_cluster::{Client, Condition, ConditionStatus, NodeEvent, Severity};
use kai_gpu::Inventory;
use tokio::sync::{mpsc, watch};

use super::state::Snapshot;
use crate::health::Change;
use crate::labels::Labels;

/// Field manager of the labels and the condition (server-side apply).
pub const FIELD_MANAGER: &str = "kai-node-agent";

/// The node condition that says whether all GPUs can be used.
pub const CONDITION: &str = "GPUsHealthy";

/// Events that wait for the API server. Beyond, the oldest are dropped: the condition has the current state.
const EVENTS_QUEUED_MAX: usize = 32;

/// How many unhealthy GPUs the condition's message lists; further ones are only counted.
const GPUS_LISTED_MAX: usize = 8;

/// The condition's status, reason and message. `None` on a node without GPUs, and until the driver has answered.
pub fn condition(snapshot: &Snapshot) -> Option<(ConditionStatus, String, String)> {
    let total = snapshot.inventory.devices.len();
    if total == 0 || !snapshot.confirmed {
        return None;
    }
    if let Some(problem) = &snapshot.driver_problem {
        return Some((
            ConditionStatus::False,
            "DriverDoesNotAnswer".to_owned(),
            problem.reason.clone(),
        ));
    }
    if snapshot.failed.is_empty() {
        let message = format!("all {total} GPUs answer");
        return Some((ConditionStatus::True, "AllGPUsAnswer".to_owned(), message));
    }
    let mut words: Vec<String> = snapshot
        .failed
        .iter()
        .take(GPUS_LISTED_MAX)
        .map(|(gpu, reason)| format!("{gpu}: {reason}"))
        .collect();
    if snapshot.failed.len() > GPUS_LISTED_MAX {
        words.push(format!("and {} more", snapshot.failed.len() - GPUS_LISTED_MAX));
    }
    Some((ConditionStatus::False, "GPUUnhealthy".to_owned(), words.join("; ")))
}

/// The Kubernetes event for a health change.
pub fn event(change: &Change, inventory: &Inventory) -> NodeEvent {
    let index = inventory
        .device(&change.gpu)
        .map_or_else(|| "?".to_owned(), |device| device.index.to_string());
    let slice = change
        .mig
        .map(|(gi, ci)| format!(" MIG instance {gi}/{ci}"))
        .unwrap_or_default();
    let subject = format!("GPU {index} ({}){slice}", change.gpu);
    if change.healthy {
        let message = format!("{subject} is offered again: {}", change.reason);
        NodeEvent {
            severity: Severity::Normal,
            reason: "GPURecovered".to_owned(),
            message,
        }
    } else {
        let message = format!("{subject} is no longer offered: {}", change.reason);
        NodeEvent {
            severity: Severity::Warning,
            reason: "GPUUnhealthy".to_owned(),
            message,
        }
    }
}

/// Runs until the agent stops.
pub async fn run(
    client: Client,
    node: String,
    retry: Duration,
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    mut changes: mpsc::Receiver<NodeEvent>,
) {
    let mut reported = Reported::default();
    let mut events: VecDeque<NodeEvent> = VecDeque::new();
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        while let Ok(event) = changes.try_recv() {
            if events.len() == EVENTS_QUEUED_MAX {
                events.pop_front();
            }
            events.push_back(event);
        }
        let sent = reported.send(&client, &node, &snapshot, &mut events).await;
        if let Err(error) = &sent {
            tracing::warn!(%error, "could not write the node's labels, condition or events; trying again");
        }
        tokio::select! {
            changed = snapshots.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(retry), if sent.is_err() => {}
        }
    }
}

/// What was written to the API server last, so that unchanged values are not written again.
#[derive(Default)]
struct Reported {
    labels: Option<Labels>,
    condition: Option<(ConditionStatus, String, String)>,
    since: Option<jiff::Timestamp>,
}

impl Reported {
    async fn send(
        &mut self,
        client: &Client,
        node: &str,
        snapshot: &Snapshot,
        events: &mut VecDeque<NodeEvent>,
    ) -> Result<(), kai_cluster::Error> {
        if let Some(labels) = snapshot
            .labels
            .as_ref()
            .filter(|labels| self.labels.as_ref() != Some(labels))
        {
            let applied = client.apply_node_labels(node, FIELD_MANAGER, labels).await?;
            for (label, owner) in applied.left_alone {
                tracing::warn!(
                    label,
                    owner,
                    "did not change a label that another field manager set; remove it there to get ours"
                );
            }
            tracing::info!(count = labels.len(), "labelled the node");
            self.labels = Some(labels.clone());
        }
        if let Some(wanted) = condition(snapshot).filter(|wanted| self.condition.as_ref() != Some(wanted)) {
            let before = self.condition.as_ref().map(|(status, _, _)| *status);
            let since = match self.since {
                Some(since) if before == Some(wanted.0) => since,
                Some(_) | None => jiff::Timestamp::now(),
            };
            let (status, reason, message) = wanted.clone();
            let condition = Condition {
                kind: CONDITION.to_owned(),
                status,
                reason,
                message,
                since,
            };
            client.apply_node_condition(node, FIELD_MANAGER, &condition).await?;
            self.since = Some(since);
            self.condition = Some(wanted);
        }
        while let Some(event) = events.front() {
            client.record_node_event(node, FIELD_MANAGER, event).await?;
            events.pop_front();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::DriverProblem;
    use super::*;
    use kai_gpu::Driver;
    use kai_gpu::fake::{FakeDriver, Settings};

    #[test]
    fn the_condition_names_what_is_wrong() {
        let inventory = FakeDriver::new(&Settings::of("t4", 2).seeded("n"))
            .unwrap()
            .devices()
            .unwrap();
        let gpu = inventory.devices[1].uuid.clone();
        let mut snapshot = Snapshot {
            inventory: Arc::new(inventory),
            confirmed: true,
            ..Snapshot::default()
        };
        assert_eq!(condition(&snapshot).unwrap().2, "all 2 GPUs answer");
        snapshot.failed = vec![(gpu.clone(), "Xid 79 (GPU has fallen off the bus)".into())];
        let (status, reason, message) = condition(&snapshot).unwrap();
        assert_eq!((status, reason.as_str()), (ConditionStatus::False, "GPUUnhealthy"));
        assert_eq!(message, format!("{gpu}: Xid 79 (GPU has fallen off the bus)"));
        snapshot.driver_problem = Some(DriverProblem {
            reason: "asking NVML: Driver Not Loaded".into(),
            ..DriverProblem::default()
        });
        assert_eq!(condition(&snapshot).unwrap().1, "DriverDoesNotAnswer");
        assert_eq!(condition(&Snapshot::default()), None);

        let change = Change {
            gpu: gpu.clone(),
            mig: None,
            healthy: false,
            reason: "Xid 79".into(),
        };
        let told = event(&change, &snapshot.inventory);
        assert_eq!(told.message, format!("GPU 1 ({gpu}) is no longer offered: Xid 79"));
    }
}
