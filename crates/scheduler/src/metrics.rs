//! The scheduler's metrics, with KAI's names where KAI has them. Most counters of KAI lack the suffix `_total`, which the text format appends
//! to every counter. They are growing gauges here, so that KAI's dashboards find them.

mod objects;
mod search;
mod usage;

use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use kai_engine::Cluster;
use kai_engine::model::{Action, Millis};
use kai_engine::reasons::Resource;
use kai_engine::report::{ActionStats, Decision, Generator, NodeView, Report, SearchResult};
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use rustc_hash::FxHashSet;

use self::objects::{NamedQueue, ObjectMetrics};
use self::search::SearchMetrics;
use self::usage::UsageMetrics;

type FloatGauge = Gauge<f64, AtomicU64>;
type IntGauge = Gauge<i64, AtomicI64>;

/// Pod groups with a counter of evicted pods. Beyond, all these counters are reset, which Prometheus allows.
const EVICTED_GROUPS_MAX: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActionLabels {
    action: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PodGroupLabels {
    podgroup: String,
    namespace: String,
    uid: String,
    nodepool: String,
    action: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InvariantLabels {
    law: &'static str,
}

// Label values whose series begin at zero: Prometheus does not see the first increase of a series that appears with it.
const DECISIONS: [&str; 3] = ["bind", "pipeline", "evict"];
const WRITES: [&str; 4] = ["bind", "evict", "clean-up", "unseen"];
const LAWS: [&str; 3] = [GPU_MEMORY_LAW, NODE_GPUS_LAW, QUEUE_LIMIT_LAW];
const GPU_MEMORY_LAW: &str = "no GPU beyond its memory";
const NODE_GPUS_LAW: &str = "no node beyond its GPUs";
const QUEUE_LIMIT_LAW: &str = "no queue beyond its limit";

/// The scheduler's metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    cycle: FloatGauge,
    apply: FloatGauge,
    execute: FloatGauge,
    actions: Family<ActionLabels, FloatGauge>,
    task_scheduling: Histogram,
    task_bind: Histogram,
    scheduled: Family<ActionLabels, IntGauge>,
    acted_on: Family<ActionLabels, IntGauge>,
    simulated: Family<ActionLabels, IntGauge>,
    filtered: Family<ActionLabels, IntGauge>,
    search: SearchMetrics,
    preemption_attempts: IntGauge,
    objects: ObjectMetrics,
    budget_exhausted: Family<ActionLabels, Counter>,
    evicted: Family<PodGroupLabels, Counter>,
    decisions: Family<KindLabels, Counter>,
    failed_writes: Family<KindLabels, Counter>,
    drift: Family<KindLabels, IntGauge>,
    cycle_seconds: Histogram,
    apply_seconds: Histogram,
    pending_pods: IntGauge,
    assumed: IntGauge,
    status_backlog: IntGauge,
    broken_invariants: Family<InvariantLabels, Counter>,
    usage: UsageMetrics,
    /// Uids of the pod groups in `evicted`. `Family` has no length.
    evicted_groups: Mutex<FxHashSet<String>>,
}

impl Metrics {
    /// Registers all metrics under the prefix.
    pub(crate) fn new(registry: &mut Registry, prefix: &str) -> Metrics {
        let registry = registry.sub_registry_with_prefix(prefix);
        let seconds = || Histogram::new(exponential_buckets(0.0005, 2.0, 16));
        let task_latency = || Histogram::new(exponential_buckets(5.0, 2.0, 10));
        let metrics = Metrics {
            cycle: FloatGauge::default(),
            apply: FloatGauge::default(),
            execute: FloatGauge::default(),
            actions: Family::default(),
            task_scheduling: task_latency(),
            task_bind: task_latency(),
            scheduled: Family::default(),
            acted_on: Family::default(),
            simulated: Family::default(),
            filtered: Family::default(),
            search: SearchMetrics::default(),
            preemption_attempts: IntGauge::default(),
            objects: ObjectMetrics::default(),
            budget_exhausted: Family::default(),
            evicted: Family::default(),
            decisions: Family::default(),
            failed_writes: Family::default(),
            drift: Family::default(),
            cycle_seconds: seconds(),
            apply_seconds: seconds(),
            pending_pods: IntGauge::default(),
            assumed: IntGauge::default(),
            status_backlog: IntGauge::default(),
            broken_invariants: Family::default(),
            usage: UsageMetrics::new(task_latency()),
            evicted_groups: Mutex::default(),
        };
        metrics.register_kai_metrics(registry);
        metrics.search.register(registry);
        metrics.usage.register(registry);
        metrics.register_own_metrics(registry);
        metrics.start_series();
        metrics
    }

    fn start_series(&self) {
        for kind in DECISIONS {
            drop(self.decisions.get_or_create(&KindLabels { kind }));
        }
        for kind in WRITES {
            drop(self.failed_writes.get_or_create(&KindLabels { kind }));
        }
        for law in LAWS {
            drop(self.broken_invariants.get_or_create(&InvariantLabels { law }));
        }
        for kind in crate::audit::KINDS {
            drop(self.drift.get_or_create(&KindLabels { kind }));
        }
    }

    /// Metrics that KAI has too.
    fn register_kai_metrics(&self, registry: &mut Registry) {
        self.register_latencies(registry);
        let scheduled = "podgroups_scheduled_by_action";
        registry.register(scheduled, "Pod groups that an action placed", self.scheduled.clone());
        let acted_on = "podgroups_acted_on_by_action";
        registry.register(acted_on, "Pod groups that an action tried", self.acted_on.clone());
        let simulated = "scenarios_simulation_by_action";
        registry.register(simulated, "Simulations of evictions", self.simulated.clone());
        let filtered = "scenarios_filtered_by_action";
        let help = "Sets of victims that free too little and were not simulated";
        registry.register(filtered, help, self.filtered.clone());
        let attempts = "total_preemption_attempts";
        let help = "Pod groups that were placed by preemption";
        registry.register(attempts, help, self.preemption_attempts.clone());
        self.objects.register(registry);
        // The text format appends `_total`.
        registry.register("pod_group_evicted_pods", "Pods evicted", self.evicted.clone());
    }

    fn register_latencies(&self, registry: &mut Registry) {
        let cycle = "e2e_scheduling_latency_milliseconds";
        registry.register(cycle, "The last cycle", self.cycle.clone());
        let apply = "open_session_latency_milliseconds";
        let help = "Applying changes at the start of the last cycle";
        registry.register(apply, help, self.apply.clone());
        let execute = "close_session_latency_milliseconds";
        let help = "Starting writes and explaining pods at the end of the last cycle";
        registry.register(execute, help, self.execute.clone());
        let actions = "action_scheduling_latency_milliseconds";
        registry.register(actions, "An action of the last cycle", self.actions.clone());
        let task = "task_scheduling_latency_milliseconds";
        let help = "From a pod's creation to its decision";
        registry.register(task, help, self.task_scheduling.clone());
        let bind = "task_bind_latency_milliseconds";
        registry.register(bind, "From the decision to its write", self.task_bind.clone());
    }

    fn register_own_metrics(&self, registry: &mut Registry) {
        registry.register("decisions", "Decisions of the engine", self.decisions.clone());
        registry.register(
            "failed_writes",
            "Writes of decisions that failed",
            self.failed_writes.clone(),
        );
        let drift = "Objects that an audit found different from their watch; should stay at zero";
        registry.register("mirror_drift", drift, self.drift.clone());
        registry.register("cycle_duration_seconds", "Cycles", self.cycle_seconds.clone());
        let apply = "Applying changes of watches, in cycles and between them";
        registry.register("take_in_duration_seconds", apply, self.apply_seconds.clone());
        registry.register("waiting_pods", "Pods without a node", self.pending_pods.clone());
        let assumed = "Decisions that no watch shows yet";
        registry.register("assumed_decisions", assumed, self.assumed.clone());
        let backlog = "Conditions and events that wait to be written";
        registry.register("status_backlog", backlog, self.status_backlog.clone());
        let exhausted = "Actions that ended before they tried all pod groups, because their budget or that of the cycle was used up";
        registry.register("action_budget_exhausted", exhausted, self.budget_exhausted.clone());
        let broken = "Violations of invariants; should stay at zero";
        registry.register("broken_invariants", broken, self.broken_invariants.clone());
    }

    /// Records the durations of a cycle.
    pub(crate) fn cycle(&self, times: &CycleTimes) {
        let millis = |duration: Duration| duration.as_secs_f64() * 1e3;
        let whole = times.apply + times.decide + times.execute;
        self.cycle.set(millis(whole));
        self.apply.set(millis(times.apply));
        self.execute.set(millis(times.execute));
        self.cycle_seconds.observe(whole.as_secs_f64());
        for (action, duration) in &times.actions {
            let gauge = self.actions.get_or_create(&ActionLabels { action: action.name() });
            gauge.set(millis(*duration));
        }
        for search in &times.searches {
            self.search.observe_duration(search);
        }
    }

    /// Records how long the driver took to apply changes.
    pub(crate) fn changes_applied(&self, duration: Duration) {
        self.apply_seconds.observe(duration.as_secs_f64());
    }

    /// Counts the decisions and the effort of a cycle.
    pub(crate) fn report(&self, report: &Report) {
        let count = |kind| {
            self.decisions.get_or_create(&KindLabels { kind }).inc();
        };
        for decision in &report.decisions {
            match decision {
                Decision::Bind(_) => count("bind"),
                Decision::Pipeline(_) => count("pipeline"),
                Decision::Evict { .. } => count("evict"),
                Decision::Started(_) | Decision::Evicted(_) | Decision::Stale { .. } | Decision::Recovered(_) => {}
            }
        }
        for effort in &report.action_stats {
            self.effort(effort);
            self.search.effort(effort);
        }
    }

    fn effort(&self, effort: &ActionStats) {
        let labels = ActionLabels {
            action: effort.action.name(),
        };
        let add = |family: &Family<ActionLabels, IntGauge>, count: u32| {
            family.get_or_create(&labels).inc_by(i64::from(count));
        };
        self.budget_exhausted
            .get_or_create(&labels)
            .inc_by(u64::from(effort.exhausted));
        add(&self.scheduled, effort.placed);
        add(&self.acted_on, effort.tried);
        add(&self.simulated, effort.sets.iter().map(|sets| sets.simulated).sum());
        add(&self.filtered, effort.ruled_out);
        if effort.action == Action::Preempt {
            self.preemption_attempts.inc_by(i64::from(effort.placed));
        }
    }

    /// Counts evicted pods of a pod group.
    pub(crate) fn evicted(&self, pod_group: &kai_api::ObjectReference, pool: &str, action: &'static str, pods: u64) {
        let labels = PodGroupLabels {
            podgroup: pod_group.name.clone(),
            namespace: pod_group.namespace.clone(),
            uid: pod_group.uid.clone(),
            nodepool: pool.to_owned(),
            action,
        };
        let mut known = self.evicted_groups.lock();
        if known.len() >= EVICTED_GROUPS_MAX {
            known.clear();
            self.evicted.clear();
        }
        known.insert(pod_group.uid.clone());
        self.evicted.get_or_create(&labels).inc_by(pods);
    }

    /// Records the time from a pod's creation to its decision.
    pub(crate) fn decided_after(&self, millis: i64) {
        self.task_scheduling.observe(millis.max(0) as f64);
    }

    /// Records the time from a decision to its successful write.
    pub(crate) fn bound_after(&self, duration: Duration) {
        self.task_bind.observe(duration.as_secs_f64() * 1e3);
    }

    /// The metrics of usage over time.
    pub(crate) fn usage(&self) -> &UsageMetrics {
        &self.usage
    }

    /// Counts a failed write.
    pub(crate) fn write_failed(&self, kind: &'static str) {
        self.failed_writes.get_or_create(&KindLabels { kind }).inc();
    }

    /// Sets the number of differences that audits of a kind have found.
    pub(crate) fn drift(&self, kind: &'static str, differences: u64) {
        let gauge = self.drift.get_or_create(&KindLabels { kind });
        gauge.set(i64::try_from(differences).unwrap_or(i64::MAX));
    }

    /// Sets the gauges of pending pods, assumed decisions and unwritten statuses.
    pub(crate) fn set_backlogs(&self, pending: usize, assumed: usize, backlog: usize) {
        let gauge_value = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.pending_pods.set(gauge_value(pending));
        self.assumed.set(gauge_value(assumed));
        self.status_backlog.set(gauge_value(backlog));
    }

    /// Sets the metrics of queues and nodes, and checks the invariants that need one visit of each.
    pub(crate) fn check_cluster(
        &self,
        engine: &Cluster,
        now: Millis,
        display_name: impl Fn(&str) -> Option<String>,
        overcommits_gpus: impl Fn(&NodeView<'_>) -> bool,
    ) {
        self.check_queues(engine, now, display_name);
        let nodes = engine.nodes();
        self.objects.set_nodes(&nodes);
        for node in nodes {
            if let Some(memory) = node.gpu_memory_mib
                && node.shared.iter().any(|gpu| gpu.allocated_mib > memory)
            {
                self.report_broken_invariant(GPU_MEMORY_LAW, node.name);
            }
            if overcommits_gpus(&node) {
                self.report_broken_invariant(NODE_GPUS_LAW, node.name);
            }
        }
    }

    fn check_queues(&self, engine: &Cluster, now: Millis, display_name: impl Fn(&str) -> Option<String>) {
        let (queues, waits) = (engine.queues(), engine.waits());
        let named = queues.iter().map(|view| NamedQueue {
            view,
            display_name: display_name(view.name),
            wait: waits.get(view.name).copied(),
        });
        self.objects.set_queues(named, now);
        for queue in &queues {
            let exceeds = |resource: Resource| {
                let limit = queue.quota[resource].limit;
                limit.is_some_and(|limit| queue.allocated[resource] > limit)
            };
            if Resource::ALL.into_iter().any(exceeds) {
                // A user may have lowered the limit below what runs; the metric and the warning show that too.
                self.report_broken_invariant(QUEUE_LIMIT_LAW, queue.name);
            }
        }
    }

    fn report_broken_invariant(&self, law: &'static str, object: &str) {
        self.broken_invariants.get_or_create(&InvariantLabels { law }).inc();
        tracing::warn!(law, object, "an invariant does not hold");
    }
}

/// The durations of a cycle's parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct CycleTimes {
    pub(crate) apply: Duration,
    pub(crate) decide: Duration,
    pub(crate) execute: Duration,
    pub(crate) actions: Vec<(Action, Duration)>,
    pub(crate) searches: Vec<VictimSearch>,
}

/// A finished victim search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VictimSearch {
    pub(crate) action: Action,
    pub(crate) generator: Generator,
    pub(crate) end: SearchResult,
    pub(crate) duration: Duration,
}
