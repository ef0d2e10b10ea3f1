//! Writes the node's labels, its GPU condition and its events to the API server. The content is decided by pure functions; a write that
//! fails is tried again and delays no other part of the agent.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kai_api::EnforcementTier;
use kai_api::keys::{NODE_GPU_FRACTIONING_READY, NODE_GPU_LIMITS};
use kai_cluster::{Claim, Client, Condition, ConditionStatus, NodeEvent, Severity};
use kai_gpu::Inventory;
use tokio::sync::{mpsc, watch};

use super::state::Snapshot;
use crate::enforcement::audit::LimitsSummary;
use crate::health::Change;
use crate::labels::Labels;
use crate::plugin_config::ConfigStatus;

/// Field manager of the labels and the condition (server-side apply).
pub const FIELD_MANAGER: &str = "kai-node-agent";

/// The node condition that says whether all GPUs can be used.
pub const CONDITION: &str = "GPUsHealthy";

/// The node condition that says whether the node's configuration file is used.
pub const CONFIG_CONDITION: &str = "GPUConfigApplied";

/// Events that wait for the API server. Beyond, the oldest are dropped: the condition has the current state.
const EVENTS_QUEUED_MAX: usize = 32;

/// Longest message of an event that the API server accepts, with room for the note that it was cut.
const EVENT_CHARS_MAX: usize = 1000;

/// How many unhealthy GPUs the condition's message lists; further ones are only counted.
const GPUS_LISTED_MAX: usize = 8;

/// How many fields without effect the condition's message lists; further ones are only counted.
const WARNINGS_LISTED_MAX: usize = 8;

/// How many containers without a limit the condition's message lists; further ones are only counted.
const CONTAINERS_LISTED_MAX: usize = 4;

/// Field manager of the condition that KAI's mode `NvFractions` asks for. Another program may write that condition, so the agent applies it
/// by itself and never by force.
const FRACTIONING_MANAGER: &str = "kai-node-agent-fractioning";

/// Until it is tried again to write a condition that another program writes: that program may be gone.
const FOREIGN_AGAIN: Duration = Duration::from_secs(600);

/// Status, reason and message of a condition.
pub type ConditionText = (ConditionStatus, String, String);

/// The conditions of the node by their type.
pub fn conditions(snapshot: &Snapshot) -> BTreeMap<&'static str, ConditionText> {
    let all = [
        (CONDITION, condition(snapshot)),
        (CONFIG_CONDITION, config_condition(snapshot)),
        (NODE_GPU_LIMITS, limits_condition(snapshot)),
    ];
    all.into_iter().filter_map(|(kind, text)| Some((kind, text?))).collect()
}

/// The condition of limits: whether containers are held to their GPU memory, and by what. `None` on nodes without GPUs, and until it is
/// decided.
pub fn limits_condition(snapshot: &Snapshot) -> Option<ConditionText> {
    let enforcement = snapshot
        .enforcement
        .as_ref()
        .filter(|_| has_gpus(snapshot) && snapshot.labels.is_some())?;
    let summary = enforcement.summary();
    let LimitsSummary {
        broken,
        unlimited,
        unreadable,
    } = &snapshot.limits;
    let listed = |containers: &[String]| {
        let mut words: Vec<String> = containers.iter().take(CONTAINERS_LISTED_MAX).cloned().collect();
        if containers.len() > CONTAINERS_LISTED_MAX {
            words.push(format!("and {} more", containers.len() - CONTAINERS_LISTED_MAX));
        }
        words.join("; ")
    };
    if !enforcement.tier.limits_memory() {
        return Some((ConditionStatus::False, "NotLimited".to_owned(), summary));
    }
    if !broken.is_empty() {
        let message = format!(
            "{} container(s) are not held: {}. {summary}",
            broken.len(),
            listed(broken)
        );
        return Some((ConditionStatus::False, "LimitMissing".to_owned(), message));
    }
    let mut message = summary;
    if !unlimited.is_empty() {
        message.push_str(&format!(
            "; {} container(s) started before the node had limits, and have none until they restart: {}",
            unlimited.len(),
            listed(unlimited)
        ));
    }
    if let Some(reason) = unreadable {
        message.push_str(&format!("; some limits can't be read: {reason}"));
    }
    Some((ConditionStatus::True, "LimitedByDriver".to_owned(), message))
}

/// The condition that KAI's mode `NvFractions` asks for, of a node of this tier. `None` where the driver limits no memory: KAI takes an
/// absent condition for false.
pub fn fractioning_of(tier: EnforcementTier) -> Option<ConditionText> {
    tier.limits_memory().then(|| {
        let message = "kai's node agent limits the GPU memory of containers by the driver".to_owned();
        (ConditionStatus::True, "LimitedByDriver".to_owned(), message)
    })
}

fn fractioning_condition(snapshot: &Snapshot) -> Option<ConditionText> {
    let enforcement = snapshot
        .enforcement
        .as_ref()
        .filter(|_| has_gpus(snapshot) && snapshot.labels.is_some())?;
    fractioning_of(enforcement.tier)
}

/// Whether there are GPUs to report about: on a node without GPUs the agent writes no condition.
fn has_gpus(snapshot: &Snapshot) -> bool {
    snapshot.confirmed && !snapshot.inventory.devices.is_empty()
}

/// The condition of the configuration. `None` on nodes without GPUs or without configuration files.
fn config_condition(snapshot: &Snapshot) -> Option<ConditionText> {
    if !has_gpus(snapshot) {
        return None;
    }
    let in_effect = &snapshot.policy_summary;
    match &snapshot.config {
        ConfigStatus::FlagsOnly | ConfigStatus::Pending => None,
        ConfigStatus::Applied(applied) => {
            let mut message = format!("{}: {in_effect}", applied.source);
            for warning in applied.warnings.iter().take(WARNINGS_LISTED_MAX) {
                message.push_str(&format!("; {warning}"));
            }
            if applied.warnings.len() > WARNINGS_LISTED_MAX {
                message.push_str(&format!("; and {} more", applied.warnings.len() - WARNINGS_LISTED_MAX));
            }
            Some((ConditionStatus::True, "ConfigApplied".to_owned(), message))
        }
        ConfigStatus::Rejected { problem } => {
            let message = format!("{problem}. Meanwhile the node has: {in_effect}");
            Some((ConditionStatus::False, "ConfigRejected".to_owned(), message))
        }
    }
}

/// The Kubernetes event for a change of the configuration between two snapshots: a problem, or settings that took effect.
pub fn config_event(before: &Snapshot, after: &Snapshot) -> Option<NodeEvent> {
    let (status, reason, message) = config_condition(after)?;
    let told = has_gpus(before) && before.config == after.config;
    // After a restart of the agent the configuration is the last run's: that is no news.
    let is_news = before.config != after.config || status == ConditionStatus::False;
    if told || !is_news {
        return None;
    }
    let severity = match status {
        ConditionStatus::True => Severity::Normal,
        ConditionStatus::False => Severity::Warning,
    };
    Some(NodeEvent {
        severity,
        reason: format!("GPU{reason}"),
        message: kai_yaml::shortened(&message, EVENT_CHARS_MAX),
    })
}

/// The condition's status, reason and message. `None` on a node without GPUs, and until the driver has answered.
pub fn condition(snapshot: &Snapshot) -> Option<ConditionText> {
    let total = snapshot.inventory.devices.len();
    if !has_gpus(snapshot) {
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
    conditions: BTreeMap<&'static str, ConditionText>,
    /// When the status of a condition last changed.
    since: BTreeMap<&'static str, jiff::Timestamp>,
    /// The condition for KAI's mode `NvFractions`.
    fractioning: Fractioning,
}

/// What is known about the condition for KAI's mode `NvFractions` on the node.
#[derive(Debug, Default, PartialEq, Eq)]
enum Fractioning {
    /// Nothing: an earlier agent may have left one.
    #[default]
    Unknown,
    /// This agent's last write took effect. `None`: the condition is absent.
    Applied(Option<ConditionText>),
    /// Another program writes it; seen at this time.
    Foreign(tokio::time::Instant),
}

impl Fractioning {
    /// Whether the condition has to be applied.
    fn is_due(&self, wanted: Option<&ConditionText>, now: tokio::time::Instant) -> bool {
        match self {
            Fractioning::Unknown => true,
            Fractioning::Applied(present) => present.as_ref() != wanted,
            Fractioning::Foreign(seen) => now.duration_since(*seen) >= FOREIGN_AGAIN,
        }
    }
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
        let wanted = conditions(snapshot);
        if !wanted.is_empty() && wanted != self.conditions {
            let now = jiff::Timestamp::now();
            let mut since = self.since.clone();
            for (kind, (status, _, _)) in &wanted {
                let same = self.conditions.get(kind).is_some_and(|(before, _, _)| before == status);
                if !same {
                    since.insert(kind, now);
                }
            }
            let all = wanted.iter().map(|(kind, (status, reason, message))| Condition {
                kind: (*kind).to_owned(),
                status: *status,
                reason: reason.clone(),
                message: message.clone(),
                since: since.get(kind).copied().unwrap_or(now),
            });
            client
                .apply_node_conditions(node, FIELD_MANAGER, &all.collect::<Vec<_>>())
                .await?;
            self.since = since;
            self.conditions = wanted;
        }
        self.send_fractioning(client, node, snapshot).await?;
        while let Some(event) = events.front() {
            client.record_node_event(node, FIELD_MANAGER, event).await?;
            events.pop_front();
        }
        Ok(())
    }
}

impl Reported {
    async fn send_fractioning(
        &mut self,
        client: &Client,
        node: &str,
        snapshot: &Snapshot,
    ) -> Result<(), kai_cluster::Error> {
        // Before the tier is decided the condition of an earlier agent stays.
        let wanted = fractioning_condition(snapshot);
        let now = tokio::time::Instant::now();
        if snapshot.labels.is_none() || !self.fractioning.is_due(wanted.as_ref(), now) {
            return Ok(());
        }
        let since = jiff::Timestamp::now();
        let condition = wanted.clone().map(|(status, reason, message)| Condition {
            kind: NODE_GPU_FRACTIONING_READY.to_owned(),
            status,
            reason,
            message,
            since,
        });
        let applied = client
            .apply_unclaimed_node_conditions(node, FRACTIONING_MANAGER, condition.as_slice())
            .await?;
        self.fractioning = match applied {
            Claim::Ours => Fractioning::Applied(wanted),
            Claim::Foreign => {
                tracing::info!(
                    "another program writes the node condition {NODE_GPU_FRACTIONING_READY}; it is left alone"
                );
                Fractioning::Foreign(now)
            }
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::DriverProblem;
    use super::*;
    use crate::allocator::plan::Policy;
    use crate::plugin_config::AppliedConfig;
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

        assert!(conditions(&Snapshot::default()).is_empty());

        let change = Change {
            gpu: gpu.clone(),
            mig: None,
            healthy: false,
            reason: "Xid 79".into(),
        };
        let told = event(&change, &snapshot.inventory);
        assert_eq!(told.message, format!("GPU 1 ({gpu}) is no longer offered: Xid 79"));
    }

    #[test]
    fn the_condition_of_limits_names_tier_reasons_and_containers() {
        use crate::enforcement::tier::NodeEnforcement;
        let inventory = FakeDriver::new(&Settings::of("t4", 1).seeded("n"))
            .unwrap()
            .devices()
            .unwrap();
        let mut snapshot = Snapshot {
            inventory: Arc::new(inventory),
            confirmed: true,
            labels: Some(Labels::new()),
            ..Snapshot::default()
        };
        assert_eq!(limits_condition(&snapshot), None, "not decided yet");
        let decided = |tier, reason: &str| {
            Some(Arc::new(NodeEnforcement {
                tier,
                why_not_higher: Some(reason.to_owned())
                    .filter(|text| !text.is_empty())
                    .into_iter()
                    .collect(),
                ..NodeEnforcement::switched_off()
            }))
        };
        snapshot.enforcement = decided(kai_api::EnforcementTier::Watch, "driver: too old");
        let (status, reason, message) = limits_condition(&snapshot).unwrap();
        assert_eq!((status, reason.as_str()), (ConditionStatus::False, "NotLimited"));
        assert!(
            message.starts_with("tier watch") && message.contains("too old"),
            "{message}"
        );
        assert_eq!(fractioning_condition(&snapshot), None);

        snapshot.enforcement = decided(kai_api::EnforcementTier::Driver, "");
        snapshot.limits.unlimited = vec!["team/old, container main".to_owned()];
        let (status, reason, message) = limits_condition(&snapshot).unwrap();
        assert_eq!((status, reason.as_str()), (ConditionStatus::True, "LimitedByDriver"));
        assert!(
            message.contains("1 container(s) started before the node had limits"),
            "{message}"
        );
        assert_eq!(fractioning_condition(&snapshot).unwrap().0, ConditionStatus::True);
        snapshot.limits.broken = (0..6).map(|number| format!("team/p{number}: gone")).collect();
        let (status, _, message) = limits_condition(&snapshot).unwrap();
        assert_eq!(status, ConditionStatus::False);
        assert!(
            message.contains("team/p3: gone; and 2 more") && message.starts_with("6 container(s)"),
            "{message}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_condition_that_an_earlier_agent_left_is_written_over_once() {
        let now = tokio::time::Instant::now();
        let ready = (ConditionStatus::True, "LimitedByDriver".to_owned(), "by kai".to_owned());
        for (known, wanted, is_due) in [
            (Fractioning::Unknown, None, true),
            (Fractioning::Unknown, Some(&ready), true),
            (Fractioning::Applied(None), None, false),
            (Fractioning::Applied(None), Some(&ready), true),
            (Fractioning::Applied(Some(ready.clone())), Some(&ready), false),
            (Fractioning::Applied(Some(ready.clone())), None, true),
            (Fractioning::Foreign(now), Some(&ready), false),
        ] {
            assert_eq!(known.is_due(wanted, now), is_due, "{known:?} {wanted:?}");
        }
        let foreign = Fractioning::Foreign(now);
        assert!(
            foreign.is_due(Some(&ready), now + FOREIGN_AGAIN),
            "that program may be gone"
        );
    }

    #[test]
    fn the_configuration_has_a_condition_and_events_about_news() {
        let inventory = FakeDriver::new(&Settings::of("t4", 1).seeded("n"))
            .unwrap()
            .devices()
            .unwrap();
        let snapshot = |config: ConfigStatus, confirmed: bool| Snapshot {
            inventory: Arc::new(inventory.clone()),
            confirmed,
            config,
            policy_summary: "MIG strategy none".to_owned(),
            ..Snapshot::default()
        };
        let applied = |warnings: usize| {
            ConfigStatus::Applied(AppliedConfig {
                source: "ConfigMap ns/gpus, key a".to_owned(),
                policy: Policy::default(),
                warnings: (0..warnings).map(|n| format!("flags.f{n} has no effect")).collect(),
            })
        };
        let rejected = ConfigStatus::Rejected {
            problem: "ConfigMap ns/gpus, key b, field version: \"v2\" is unknown; write v1".to_owned(),
        };
        let condition = |config| config_condition(&snapshot(config, true));
        assert_eq!(condition(ConfigStatus::FlagsOnly), None);
        assert_eq!(condition(ConfigStatus::Pending), None);
        let (status, reason, message) = condition(applied(9)).unwrap();
        assert_eq!((status, reason.as_str()), (ConditionStatus::True, "ConfigApplied"));
        assert!(
            message.starts_with("ConfigMap ns/gpus, key a: MIG strategy none; flags.f0 has no effect;"),
            "{message}"
        );
        assert!(message.ends_with("flags.f7 has no effect; and 1 more"), "{message}");
        let (status, _, message) = condition(rejected.clone()).unwrap();
        assert_eq!(status, ConditionStatus::False);
        assert!(
            message.contains("key b, field version") && message.ends_with("Meanwhile the node has: MIG strategy none")
        );
        assert_eq!(
            config_condition(&snapshot(applied(0), false)),
            None,
            "the GPUs are not known yet"
        );

        let event = |before: (ConfigStatus, bool), after: (ConfigStatus, bool)| {
            let event = config_event(&snapshot(before.0, before.1), &snapshot(after.0, after.1));
            event.map_or_else(|| "-".to_owned(), |event| event.reason)
        };
        assert_eq!(
            event((ConfigStatus::Pending, true), (applied(0), true)),
            "GPUConfigApplied"
        );
        assert_eq!(event((applied(0), true), (applied(0), true)), "-");
        assert_eq!(event((applied(0), false), (applied(0), true)), "-", "the last run's");
        assert_eq!(event((applied(0), true), (rejected.clone(), true)), "GPUConfigRejected");
        assert_eq!(event((rejected.clone(), true), (rejected.clone(), true)), "-");
        assert_eq!(
            event((rejected.clone(), false), (rejected.clone(), true)),
            "GPUConfigRejected"
        );
        assert_eq!(event((rejected, true), (applied(0), true)), "GPUConfigApplied");
    }
}
