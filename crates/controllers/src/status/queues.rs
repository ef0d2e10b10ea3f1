//! The queue controller: writes the status and the metrics of queues, which sum up the resources that the pod groups of a queue and its
//! children request and have.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use kai_api::crd::{QueueStatus, ResourcesStatus};
use kai_api::{ObjectKey, PodGroup, Queue};
use kai_cluster::{Client, Context, Part, Patch, Target};
use serde_json::json;
use tokio::sync::Notify;

use super::queue_metrics::{MetricLabels, QueueMetrics};
use super::resource_amounts::ResourceAmounts;
use crate::Error;
use crate::merge_patch::difference;
use crate::reconciles::Reconciles;

/// The controller's name in health reports.
const NAME: &str = "queue-controller";
/// Delay after a round. Changes come in bursts, and one round of totals and writes covers a burst.
const COALESCE: Duration = Duration::from_millis(500);
/// After this time without a change, the controller reports that it is alive and repeats failed writes.
const RESYNC_INTERVAL: Duration = Duration::from_secs(15);
/// The controller counts as dead after this time; the writes of a round take far less, unless the API server does not answer.
const HEARTBEAT_MAX: Duration = Duration::from_secs(300);
/// Concurrent writes.
const WRITES_MAX: usize = 10;

/// The settings of the queue controller.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Prefix of the metrics' names.
    pub metrics_namespace: String,
    /// Metric label by queue label.
    pub metric_labels: Vec<(String, String)>,
    /// Value of the metric label, by queue label, for queues without that label.
    pub metric_label_defaults: BTreeMap<String, String>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            metrics_namespace: "kai".to_owned(),
            metric_labels: Vec::new(),
            metric_label_defaults: BTreeMap::new(),
        }
    }
}

/// Runs the queue controller until dropped.
pub async fn run(context: Context, settings: Settings) -> Result<Infallible, Error> {
    context.health.announce(NAME, HEARTBEAT_MAX);
    let wake = Arc::new(Notify::new());
    let queues = context.informers.queues().subscribe(&wake);
    let groups = context.informers.pod_groups().subscribe(&wake);
    // Sums over incomplete lists would be wrong.
    queues.informer().synced().await;
    groups.informer().synced().await;

    let reconciles = Reconciles::registered(&context.metrics, "queue_controller", &["changed", "failed"]);
    let metric_labels = MetricLabels {
        labels: settings.metric_labels,
        defaults: settings.metric_label_defaults,
    };
    let metrics = QueueMetrics::registered(&context.metrics, &settings.metrics_namespace, metric_labels);
    let mut usage = UsageByQueue::default();
    loop {
        queues.take();
        usage.record(groups.take());
        let present = context.informers.queues().all();
        let totals = usage.totals(&present);
        metrics.export(&present, &totals);
        let statuses = totals.iter().map(|(name, sum)| (name.as_str(), sum.status())).collect();
        write(&context.client, &reconciles, &present, &statuses).await;
        context.health.alive(NAME);
        tokio::time::sleep(COALESCE).await;
        // On a time-out, the next round repeats failed writes.
        let _ = tokio::time::timeout(RESYNC_INTERVAL, wake.notified()).await;
    }
}

async fn write(
    client: &Client,
    reconciles: &Reconciles,
    queues: &[Arc<Queue>],
    statuses: &BTreeMap<&str, QueueStatus>,
) {
    let changes: Vec<(String, serde_json::Value)> = queues
        .iter()
        .filter_map(|queue| {
            let name = queue.metadata.name.as_deref()?;
            Some((name.to_owned(), change(queue.status(), statuses.get(name)?)?))
        })
        .collect();
    futures_util::stream::iter(changes)
        .for_each_concurrent(WRITES_MAX, |(name, change)| write_one(client, reconciles, name, change))
        .await;
}

async fn write_one(client: &Client, reconciles: &Reconciles, name: String, change: serde_json::Value) {
    let target = Target::of::<Queue>("", &name);
    match client.patch(target, Part::Status, Patch::Merge(change)).await {
        Ok(_) => reconciles.count("changed"),
        Err(error) if error.is_not_found() => {}
        Err(error) => {
            reconciles.count("failed");
            tracing::warn!(%error, "writing the status of a queue failed");
        }
    }
}

/// The patch of a queue's status. Other components write conditions and fair shares.
fn change(before: &QueueStatus, now: &QueueStatus) -> Option<serde_json::Value> {
    let now = QueueStatus {
        conditions: before.conditions.clone(),
        fair_share: before.fair_share.clone(),
        ..now.clone()
    };
    let change = difference(&json!(before), &json!(now))?;
    Some(json!({ "status": change }))
}

/// The usage of each queue by its own pod groups, updated with each change of a pod group.
#[derive(Debug, Default)]
struct UsageByQueue {
    /// The pod groups as they were counted; the objects are shared with the informer.
    groups: BTreeMap<ObjectKey, Arc<PodGroup>>,
    by_queue: BTreeMap<String, Usage>,
}

#[derive(Clone, Debug, Default)]
struct Usage {
    allocated: ResourceAmounts,
    allocated_non_preemptible: ResourceAmounts,
    requested: ResourceAmounts,
}

/// The usage of a queue and its descendants.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueTotals {
    usage: Usage,
    children: BTreeSet<String>,
}

impl UsageByQueue {
    fn record(&mut self, changes: Vec<(ObjectKey, Option<Arc<PodGroup>>)>) {
        for (key, group) in changes {
            let before = match &group {
                Some(group) => self.groups.insert(key, Arc::clone(group)),
                None => self.groups.remove(&key),
            };
            if let Some(before) = before {
                self.count(&before, ResourceAmounts::subtract);
            }
            if let Some(group) = group {
                self.count(&group, ResourceAmounts::add);
            }
        }
    }

    fn count(&mut self, group: &PodGroup, change: fn(&mut ResourceAmounts, &ResourceAmounts)) {
        let Some(status) = group.resources_status() else { return };
        let queue = self.by_queue.entry(group.queue().to_owned()).or_default();
        queue.change(&Usage::of(&status), change);
        if queue.is_empty() {
            self.by_queue.remove(group.queue());
        }
    }

    /// The totals by queue. Each pod group counts once in its queue and once in each ancestor, even if the parents form a cycle.
    fn totals(&self, queues: &[Arc<Queue>]) -> BTreeMap<String, QueueTotals> {
        let named = queues
            .iter()
            .filter_map(|queue| Some((queue.metadata.name.as_deref()?, queue)));
        let parents: BTreeMap<&str, Option<&str>> = named.map(|(name, queue)| (name, queue.parent())).collect();
        let mut totals: BTreeMap<String, QueueTotals> = parents
            .keys()
            .map(|name| ((*name).to_owned(), QueueTotals::default()))
            .collect();
        for (name, parent) in &parents {
            if let Some(sum) = parent.and_then(|parent| totals.get_mut(parent)) {
                sum.children.insert((*name).to_owned());
            }
            let Some(usage) = self.by_queue.get(*name) else {
                continue;
            };
            let mut counted = BTreeSet::new();
            let mut next = Some(*name);
            while let Some(queue) = next.filter(|queue| counted.insert(*queue)) {
                let Some(sum) = totals.get_mut(queue) else { break };
                sum.usage.change(usage, ResourceAmounts::add);
                next = parents.get(queue).copied().flatten();
            }
        }
        totals
    }
}

impl Usage {
    fn of(status: &ResourcesStatus) -> Usage {
        let sum = |list| {
            let mut amounts = ResourceAmounts::default();
            amounts.add_list(list);
            amounts
        };
        Usage {
            allocated: sum(&status.allocated),
            allocated_non_preemptible: sum(&status.allocated_non_preemptible),
            requested: sum(&status.requested),
        }
    }

    /// Drops zero amounts: a resource that only a deleted pod group named must not stay in the status.
    fn change(&mut self, other: &Usage, change: fn(&mut ResourceAmounts, &ResourceAmounts)) {
        for (own, other) in [
            (&mut self.allocated, &other.allocated),
            (&mut self.allocated_non_preemptible, &other.allocated_non_preemptible),
            (&mut self.requested, &other.requested),
        ] {
            change(own, other);
            own.drop_zeros();
        }
    }

    fn is_empty(&self) -> bool {
        [&self.allocated, &self.allocated_non_preemptible, &self.requested]
            .into_iter()
            .all(ResourceAmounts::is_empty)
    }
}

impl QueueTotals {
    pub(super) fn allocated(&self) -> &ResourceAmounts {
        &self.usage.allocated
    }

    fn status(&self) -> QueueStatus {
        QueueStatus {
            conditions: Vec::new(),
            child_queues: self.children.iter().cloned().collect(),
            allocated: self.usage.allocated.to_list(),
            allocated_non_preemptible: self.usage.allocated_non_preemptible.to_list(),
            requested: self.usage.requested.to_list(),
            fair_share: Default::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn queue(name: &str, parent: &str) -> Arc<Queue> {
        let queue = json!({ "metadata": { "name": name }, "spec": { "parentQueue": parent } });
        Arc::new(serde_json::from_value(queue).unwrap())
    }

    fn group(name: &str, queue: &str, gpus: &str) -> (ObjectKey, Option<Arc<PodGroup>>) {
        let group = json!({
            "metadata": { "name": name },
            "spec": { "queue": queue },
            "status": { "resourcesStatus": { "allocated": { "nvidia.com/gpu": gpus }, "requested": { "nvidia.com/gpu": "2" } } },
        });
        (
            ObjectKey::new("ns", name),
            Some(Arc::new(serde_json::from_value(group).unwrap())),
        )
    }

    fn statuses(usage: &UsageByQueue, queues: &[Arc<Queue>]) -> Value {
        let totals = usage.totals(queues);
        totals
            .into_iter()
            .map(|(name, sum)| (name, json!(sum.status())))
            .collect::<serde_json::Map<String, Value>>()
            .into()
    }

    #[test]
    fn sums_go_up_the_tree() {
        let mut usage = UsageByQueue::default();
        usage.record(vec![
            group("x", "a", "1"),
            group("y", "b", "500m"),
            group("z", "nowhere", "9"),
        ]);
        let queues = [
            queue("root", ""),
            queue("a", "root"),
            queue("b", "root"),
            queue("empty", "gone"),
        ];
        let gpus = |text: &str, asked: &str| json!({ "allocated": { "nvidia.com/gpu": text }, "requested": { "nvidia.com/gpu": asked } });
        let mut root = gpus("1500m", "4");
        root["childQueues"] = json!(["a", "b"]);
        let expect = json!({ "a": gpus("1", "2"), "b": gpus("500m", "2"), "empty": {}, "root": root });
        assert_eq!(statuses(&usage, &queues), expect);

        usage.record(vec![(ObjectKey::new("ns", "y"), None), group("x", "b", "3")]);
        let mut root = gpus("3", "2");
        root["childQueues"] = json!(["a", "b"]);
        let expect = json!({ "a": {}, "b": gpus("3", "2"), "empty": {}, "root": root });
        assert_eq!(statuses(&usage, &queues), expect);
    }

    #[test]
    fn sums_do_not_depend_on_who_was_there_before() {
        let queues = [queue("a", "")];
        let mut usage = UsageByQueue::default();
        usage.record(vec![group("none", "a", "0"), group("some", "a", "1")]);
        usage.record(vec![(ObjectKey::new("ns", "some"), None)]);
        let mut fresh = UsageByQueue::default();
        fresh.record(vec![group("none", "a", "0")]);
        assert_eq!(statuses(&usage, &queues), statuses(&fresh, &queues));
        usage.record(vec![(ObjectKey::new("ns", "none"), None)]);
        assert_eq!(statuses(&usage, &queues), json!({ "a": {} }));
        assert!(usage.by_queue.is_empty());
    }

    #[test]
    fn a_circle_of_parents_ends() {
        let mut usage = UsageByQueue::default();
        usage.record(vec![group("x", "a", "1")]);
        let totals = usage.totals(&[queue("a", "b"), queue("b", "a"), queue("self", "self")]);
        assert_eq!(totals["a"].allocated().units("nvidia.com/gpu"), 1.0);
        assert_eq!(totals["b"].allocated().units("nvidia.com/gpu"), 1.0);
    }

    #[test]
    fn only_changes_are_written_and_what_others_write_stays() {
        let before: QueueStatus = serde_json::from_value(json!({
            "conditions": [{ "type": "OverQuota", "status": "True" }],
            "childQueues": ["a"], "allocated": { "cpu": "1" }, "fairShare": { "cpu": "2" },
        }))
        .unwrap();
        let mut now = QueueStatus {
            child_queues: vec!["a".to_owned()],
            allocated: [("cpu".to_owned(), "1".into())].into(),
            ..QueueStatus::default()
        };
        assert_eq!(change(&before, &now), None);
        now.allocated.clear();
        assert_eq!(change(&before, &now), Some(json!({ "status": { "allocated": null } })));
    }
}
