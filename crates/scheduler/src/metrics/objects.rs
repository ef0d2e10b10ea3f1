//! Gauges with one series per queue or node, set once per check of the cluster. Series of objects that are gone are removed; the others
//! never disappear for a moment, because a scrape may come at any time.

use std::hash::Hash;

use kai_engine::model::Millis;
use kai_engine::reasons::Resource;
use kai_engine::report::{NodeView, QueueView, QueueWait};
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use rustc_hash::FxHashSet;

use super::FloatGauge;

const BILLION: f64 = 1e9;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct QueueLabels {
    queue_name: String,
    queue_metadata_name: String,
    queue_display_name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct NodeLabels {
    node: String,
}

/// A name and its description.
type Described = (&'static str, &'static str);

const FAIR_SHARE: &str = "Fair share of a queue";
const USAGE: &str = "Recent usage of a queue, as a share of the cluster";
const REQUESTED: &str = "Resources that the pods of a queue hold or wait for";
/// In the order of [`queue_values`].
const QUEUE_GAUGES: [Described; 11] = [
    ("queue_fair_share_cpu_cores", FAIR_SHARE),
    ("queue_fair_share_memory_gb", FAIR_SHARE),
    ("queue_fair_share_gpu", FAIR_SHARE),
    ("queue_cpu_usage", USAGE),
    ("queue_memory_usage", USAGE),
    ("queue_gpu_usage", USAGE),
    ("queue_requested_cpu_cores", REQUESTED),
    ("queue_requested_memory_bytes", REQUESTED),
    ("queue_requested_gpus", REQUESTED),
    (
        "queue_waiting_pod_groups",
        "Pod groups of a leaf queue that could start and wait",
    ),
    (
        "queue_longest_wait_seconds",
        "Since the creation of the oldest pod of a pod group that waits; 0 if none does",
    ),
];

/// In the order of [`node_values`].
const NODE_GAUGES: [Described; 3] = [
    ("node_gpus", "Allocatable GPUs of a node, including MIG slices"),
    ("node_allocated_gpus", "GPUs of a node that pods hold"),
    (
        "node_idle_gpus",
        "GPUs of a node that no pod holds; 0 while the node takes no pods",
    ),
];

/// `N` gauges with the same labels.
#[derive(Debug)]
struct ObjectGauges<L, const N: usize> {
    gauges: [Family<L, FloatGauge>; N],
    /// The label sets of the exported series. One writer; held for set operations only.
    exported: Mutex<FxHashSet<L>>,
}

impl<L: Clone + Hash + Eq, const N: usize> Default for ObjectGauges<L, N> {
    fn default() -> Self {
        ObjectGauges {
            gauges: std::array::from_fn(|_| Family::default()),
            exported: Mutex::default(),
        }
    }
}

impl<L, const N: usize> ObjectGauges<L, N>
where
    L: Clone + Hash + Eq + EncodeLabelSet + std::fmt::Debug + Send + Sync + 'static,
{
    fn register(&self, registry: &mut Registry, names: [Described; N]) {
        for (gauge, (name, help)) in self.gauges.iter().zip(names) {
            registry.register(name, help, gauge.clone());
        }
    }

    /// Sets the values of all objects.
    fn set(&self, objects: impl Iterator<Item = (L, [f64; N])>) {
        let mut present = FxHashSet::default();
        for (labels, values) in objects {
            for (gauge, value) in self.gauges.iter().zip(values) {
                gauge.get_or_create(&labels).set(value);
            }
            present.insert(labels);
        }
        let mut exported = self.exported.lock();
        for gone in exported.difference(&present) {
            for gauge in &self.gauges {
                gauge.remove(gone);
            }
        }
        *exported = present;
    }
}

/// The gauges of queues and nodes.
#[derive(Debug, Default)]
pub(super) struct ObjectMetrics {
    queues: ObjectGauges<QueueLabels, { QUEUE_GAUGES.len() }>,
    nodes: ObjectGauges<NodeLabels, { NODE_GAUGES.len() }>,
}

/// A queue with its values outside the engine.
pub(super) struct NamedQueue<'a> {
    pub(super) view: &'a QueueView<'a>,
    pub(super) display_name: Option<String>,
    pub(super) wait: Option<QueueWait>,
}

impl ObjectMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        self.queues.register(registry, QUEUE_GAUGES);
        self.nodes.register(registry, NODE_GAUGES);
    }

    pub(super) fn set_queues<'a>(&self, queues: impl Iterator<Item = NamedQueue<'a>>, now: Millis) {
        self.queues.set(queues.map(|queue| {
            let values = queue_values(&queue, now);
            let labels = QueueLabels {
                queue_name: queue.display_name.clone().unwrap_or_else(|| queue.view.name.to_owned()),
                queue_metadata_name: queue.view.name.to_owned(),
                queue_display_name: queue.display_name.unwrap_or_default(),
            };
            (labels, values)
        }));
    }

    /// Sets the gauges of nodes with GPUs.
    pub(super) fn set_nodes(&self, nodes: &[NodeView<'_>]) {
        let with_gpus = nodes.iter().filter(|node| node.allocatable_gpus.as_f64() > 0.0);
        self.nodes.set(with_gpus.map(|node| {
            let labels = NodeLabels {
                node: node.name.to_owned(),
            };
            (labels, node_values(node))
        }));
    }
}

fn queue_values(queue: &NamedQueue<'_>, now: Millis) -> [f64; QUEUE_GAUGES.len()] {
    let view = queue.view;
    let share = |resource: Resource| view.fair_share[resource] as f64 / share_unit(resource);
    let usage = |resource: Resource| view.usage_billionths[resource] as f64 / BILLION;
    let requested = |resource: Resource| view.requested[resource] as f64 / requested_unit(resource);
    let (waiting, seconds) = queue.wait.map_or((0.0, 0.0), |wait| {
        let waited = (now - wait.since).0.max(0);
        (f64::from(wait.gangs), waited as f64 / 1e3)
    });
    let [cpu, memory, gpu] = [Resource::Cpu, Resource::Memory, Resource::Gpu];
    [
        share(cpu),
        share(memory),
        share(gpu),
        usage(cpu),
        usage(memory),
        usage(gpu),
        requested(cpu),
        requested(memory),
        requested(gpu),
        waiting,
        seconds,
    ]
}

fn node_values(node: &NodeView<'_>) -> [f64; NODE_GAUGES.len()] {
    let all = node.allocatable_gpus.as_f64();
    let idle = node.idle_gpus.as_f64();
    [all, all - idle, if node.ready { idle.max(0.0) } else { 0.0 }]
}

/// How many units of an amount (milli-cores, bytes, millionths of a GPU) are one unit of the fair share, as KAI has it.
fn share_unit(resource: Resource) -> f64 {
    match resource {
        Resource::Cpu => 1e3,
        Resource::Memory => 1e9,
        Resource::Gpu => 1e6,
    }
}

/// How many units of an amount are one unit of the requests.
fn requested_unit(resource: Resource) -> f64 {
    match resource {
        Resource::Cpu => 1e3,
        Resource::Memory => 1.0,
        Resource::Gpu => 1e6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_objects_that_are_gone_are_removed() {
        let gauges: ObjectGauges<NodeLabels, { NODE_GAUGES.len() }> = ObjectGauges::default();
        let mut registry = Registry::default();
        gauges.register(&mut registry, NODE_GAUGES);
        let text = |names: &[&str]| {
            let labels = |name: &&str| NodeLabels {
                node: (*name).to_owned(),
            };
            gauges.set(names.iter().map(|name| (labels(name), [8.0, 3.0, 5.0])));
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            text
        };
        assert!(text(&["a", "b"]).contains("node_idle_gpus{node=\"b\"} 5.0"));
        let after = text(&["a"]);
        assert!(
            after.contains("node_gpus{node=\"a\"} 8.0") && !after.contains("\"b\""),
            "{after}"
        );
    }
}
