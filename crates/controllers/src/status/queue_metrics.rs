//! The metrics of queues: quota and allocation. Series of deleted queues are removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use kai_api::{Queue, keys};
use kai_cluster::Metrics;
use parking_lot::Mutex;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::queues::QueueTotals;

const MILLI_PER_CORE: f64 = 1_000.0;
/// A queue's memory quota is in megabytes.
const BYTES_PER_MEGABYTE: f64 = 1e6;
/// Allocated amounts have four decimals.
const DECIMALS: f64 = 1e4;
/// The value for an unlimited quota.
const UNLIMITED: f64 = -1.0;

type Labels = Vec<(String, String)>;
type Gauges = Family<Labels, Gauge<f64, AtomicU64>>;

/// The mapping from labels of queues to labels of metrics.
#[derive(Clone, Debug, Default)]
pub(super) struct MetricLabels {
    pub(super) labels: Vec<(String, String)>,
    pub(super) defaults: BTreeMap<String, String>,
}

impl MetricLabels {
    fn of(&self, queue: &Queue) -> Labels {
        let name = queue.metadata.plain_name();
        let own = [
            ("queue_name", name),
            ("queue_metadata_name", name),
            ("queue_display_name", queue.own_display_name().unwrap_or_default()),
        ];
        let more = self.labels.iter().map(|(label, metric)| {
            let default = self.defaults.get(label).map(String::as_str);
            let value = queue.metadata.labels.text(label).or(default).unwrap_or_default();
            (metric.as_str(), value)
        });
        let all = own.into_iter().chain(more);
        all.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }
}

/// A gauge per quantity. Dropping the struct removes all series.
#[derive(Debug, Default)]
pub(super) struct QueueMetrics {
    metric_labels: MetricLabels,
    info: Gauges,
    deserved_gpus: Gauges,
    quota_cpu_cores: Gauges,
    quota_memory_bytes: Gauges,
    allocated_gpus: Gauges,
    allocated_cpu_cores: Gauges,
    allocated_memory_bytes: Gauges,
    /// The label sets of the exported series. One writer; held for set operations only.
    exported: Mutex<BTreeSet<Labels>>,
}

impl Drop for QueueMetrics {
    fn drop(&mut self) {
        self.gauges().into_iter().for_each(|(_, _, gauges)| gauges.clear());
    }
}

impl QueueMetrics {
    pub(super) fn registered(metrics: &Metrics, namespace: &str, metric_labels: MetricLabels) -> QueueMetrics {
        let mut queues = QueueMetrics::default();
        queues.metric_labels = metric_labels;
        let mut registry = metrics.registry();
        for (name, help, gauges) in queues.gauges() {
            let name = match namespace {
                "" => name.to_owned(),
                namespace => format!("{namespace}_{name}"),
            };
            registry.register(name, help, gauges.clone());
        }
        queues
    }

    /// Exports quota and allocation of the queues.
    pub(super) fn export(&self, queues: &[Arc<Queue>], totals: &BTreeMap<String, QueueTotals>) {
        let mut present = BTreeSet::new();
        for queue in queues {
            let labels = self.metric_labels.of(queue);
            let quota = queue.resources();
            let set = |gauges: &Gauges, value: f64| {
                gauges.get_or_create(&labels).set(value);
            };
            set(&self.info, 1.0);
            set(&self.deserved_gpus, quota.gpu.quota);
            set(&self.quota_cpu_cores, scaled(quota.cpu.quota, 1.0 / MILLI_PER_CORE));
            set(&self.quota_memory_bytes, scaled(quota.memory.quota, BYTES_PER_MEGABYTE));
            let allocated = totals.get(queue.metadata.plain_name()).map(QueueTotals::allocated);
            let units = |name: &str| allocated.map_or(0.0, |allocated| rounded(allocated.units(name)));
            let gpu = allocated.and_then(|allocated| allocated.names().find(|name| name.ends_with("/gpu")));
            set(&self.allocated_gpus, units(gpu.unwrap_or(keys::RESOURCE_GPU)));
            set(&self.allocated_cpu_cores, units(keys::RESOURCE_CPU));
            set(&self.allocated_memory_bytes, units(keys::RESOURCE_MEMORY));
            present.insert(labels);
        }
        let mut exported = self.exported.lock();
        for gone in exported.difference(&present) {
            for (_, _, gauges) in self.gauges() {
                gauges.remove(gone);
            }
        }
        *exported = present;
    }

    fn gauges(&self) -> [(&'static str, &'static str, &Gauges); 7] {
        [
            ("queue_info", "1 for each queue", &self.info),
            (
                "queue_deserved_gpus",
                "GPU quota of the queue; -1 for unlimited",
                &self.deserved_gpus,
            ),
            (
                "queue_quota_cpu_cores",
                "CPU quota of the queue; -1 for unlimited",
                &self.quota_cpu_cores,
            ),
            (
                "queue_quota_memory_bytes",
                "Memory quota of the queue; -1 for unlimited",
                &self.quota_memory_bytes,
            ),
            (
                "queue_allocated_gpus",
                "GPUs allocated to the queue's pods",
                &self.allocated_gpus,
            ),
            (
                "queue_allocated_cpu_cores",
                "CPUs allocated to the queue's pods",
                &self.allocated_cpu_cores,
            ),
            (
                "queue_allocated_memory_bytes",
                "Memory allocated to the queue's pods",
                &self.allocated_memory_bytes,
            ),
        ]
    }
}

fn scaled(quota: f64, factor: f64) -> f64 {
    if quota == UNLIMITED { quota } else { quota * factor }
}

fn rounded(amount: f64) -> f64 {
    (amount * DECIMALS).round() / DECIMALS
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn series_come_and_go_with_the_queue() {
        let metrics = Metrics::default();
        let metric_labels = MetricLabels {
            labels: vec![("team".to_owned(), "team_name".to_owned())],
            defaults: [("team".to_owned(), "none".to_owned())].into(),
        };
        let queues = QueueMetrics::registered(&metrics, "kai", metric_labels);
        let queue: Queue = serde_json::from_value(json!({
            "metadata": { "name": "q" },
            "spec": { "displayName": "Q", "resources": { "gpu": { "quota": 2.5 }, "cpu": { "quota": 1500 }, "memory": { "quota": -1 } } },
        }))
        .unwrap();
        queues.export(&[Arc::new(queue)], &BTreeMap::new());
        let labels = r#"{queue_name="q",queue_metadata_name="q",queue_display_name="Q",team_name="none"}"#;
        let text = metrics.text();
        for line in [
            format!("kai_queue_info{labels} 1.0"),
            format!("kai_queue_deserved_gpus{labels} 2.5"),
            format!("kai_queue_quota_cpu_cores{labels} 1.5"),
            format!("kai_queue_quota_memory_bytes{labels} -1.0"),
            format!("kai_queue_allocated_gpus{labels} 0.0"),
            format!("kai_queue_allocated_cpu_cores{labels} 0.0"),
            format!("kai_queue_allocated_memory_bytes{labels} 0.0"),
        ] {
            assert!(
                text.lines().any(|exported| exported == line),
                "{line} is missing in\n{text}"
            );
        }
        queues.export(&[], &BTreeMap::new());
        assert!(!metrics.text().contains("queue_name="));
    }
}
