//! The scheduler's metrics, with KAI's names where it has them. Its counters are mostly named without `_total`, which the text format
//! adds to every counter; those are gauges here that only grow, so that dashboards find them under the names they know.

mod search;

use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kai_engine::Cluster;
use kai_engine::model::Action;
use kai_engine::report::{ActionStats, Decision, Generator, NodeView, Report, SearchResult};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use rustc_hash::FxHashSet;

use self::search::SearchMetrics;

type Number = Gauge<f64, AtomicU64>;
type Whole = Gauge<i64, AtomicI64>;

/// Pod groups with a counter of their own. Beyond, all of them start anew.
const EVICTED_GROUPS_MAX: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfAction {
    action: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfQueue {
    queue_name: String,
    queue_metadata_name: String,
    queue_display_name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfGroup {
    podgroup: String,
    namespace: String,
    uid: String,
    nodepool: String,
    action: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfLaw {
    law: &'static str,
}

/// The scheduler's metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    cycle: Number,
    gather: Number,
    carry: Number,
    actions: Family<OfAction, Number>,
    task_scheduling: Histogram,
    task_bind: Histogram,
    scheduled: Family<OfAction, Whole>,
    acted_on: Family<OfAction, Whole>,
    simulated: Family<OfAction, Whole>,
    filtered: Family<OfAction, Whole>,
    search: SearchMetrics,
    preemption_attempts: Whole,
    fair_share: [Family<OfQueue, Number>; 3],
    usage: [Family<OfQueue, Number>; 3],
    evicted: Family<OfGroup, Counter>,
    decisions: Family<OfKind, Counter>,
    failed_writes: Family<OfKind, Counter>,
    drift: Family<OfKind, Whole>,
    cycle_seconds: Histogram,
    take_in_seconds: Histogram,
    waiting_pods: Whole,
    assumed: Whole,
    status_backlog: Whole,
    broken_laws: Family<OfLaw, Counter>,
    /// Series in `evicted`, counted here since a family can't.
    evicted_groups: Mutex<FxHashSet<String>>,
}

impl Metrics {
    /// Registers all of them under the prefix.
    pub(crate) fn new(registry: &mut Registry, prefix: &str) -> Metrics {
        let registry = registry.sub_registry_with_prefix(prefix);
        let seconds = || Histogram::new(exponential_buckets(0.0005, 2.0, 16));
        let task_latency = || Histogram::new(exponential_buckets(5.0, 2.0, 10));
        let metrics = Metrics {
            cycle: Number::default(),
            gather: Number::default(),
            carry: Number::default(),
            actions: Family::default(),
            task_scheduling: task_latency(),
            task_bind: task_latency(),
            scheduled: Family::default(),
            acted_on: Family::default(),
            simulated: Family::default(),
            filtered: Family::default(),
            search: SearchMetrics::default(),
            preemption_attempts: Whole::default(),
            fair_share: Default::default(),
            usage: Default::default(),
            evicted: Family::default(),
            decisions: Family::default(),
            failed_writes: Family::default(),
            drift: Family::default(),
            cycle_seconds: seconds(),
            take_in_seconds: seconds(),
            waiting_pods: Whole::default(),
            assumed: Whole::default(),
            status_backlog: Whole::default(),
            broken_laws: Family::default(),
            evicted_groups: Mutex::default(),
        };
        metrics.register_known(registry);
        metrics.search.register(registry);
        metrics.register_own(registry);
        metrics
    }

    fn register_known(&self, registry: &mut Registry) {
        let names = ["e2e", "open_session", "close_session"];
        let helps = [
            "A whole cycle",
            "Taking in changes",
            "Handing out decisions and explaining",
        ];
        for ((name, help), gauge) in names
            .into_iter()
            .zip(helps)
            .zip([&self.cycle, &self.gather, &self.carry])
        {
            let name = match name {
                "e2e" => "e2e_scheduling_latency_milliseconds".to_owned(),
                name => format!("{name}_latency_milliseconds"),
            };
            registry.register(name, help, gauge.clone());
        }
        let actions = "action_scheduling_latency_milliseconds";
        registry.register(actions, "One action of a cycle", self.actions.clone());
        let task = "task_scheduling_latency_milliseconds";
        registry.register(
            task,
            "From a pod's creation to its decision",
            self.task_scheduling.clone(),
        );
        let bind = "task_bind_latency_milliseconds";
        registry.register(bind, "From the decision to its write", self.task_bind.clone());
        let scheduled = "podgroups_scheduled_by_action";
        registry.register(scheduled, "Pod groups that got places", self.scheduled.clone());
        let acted_on = "podgroups_acted_on_by_action";
        registry.register(
            acted_on,
            "Pod groups that places were sought for",
            self.acted_on.clone(),
        );
        let simulated = "scenarios_simulation_by_action";
        registry.register(simulated, "Simulations of evictions", self.simulated.clone());
        let filtered = "scenarios_filtered_by_action";
        let help = "Sets of victims that could not be enough and were not simulated";
        registry.register(filtered, help, self.filtered.clone());
        let attempts = "total_preemption_attempts";
        let help = "Pod groups that got places by preemption";
        registry.register(attempts, help, self.preemption_attempts.clone());
        let shares = [
            "queue_fair_share_cpu_cores",
            "queue_fair_share_memory_gb",
            "queue_fair_share_gpu",
        ];
        for (name, family) in shares.into_iter().zip(&self.fair_share) {
            registry.register(name, "Fair share of a queue", family.clone());
        }
        let usages = ["queue_cpu_usage", "queue_memory_usage", "queue_gpu_usage"];
        for (name, family) in usages.into_iter().zip(&self.usage) {
            registry.register(
                name,
                "What a queue used lately, as a share of the cluster",
                family.clone(),
            );
        }
        // The text format ends it in `_total`.
        registry.register("pod_group_evicted_pods", "Pods evicted", self.evicted.clone());
    }

    fn register_own(&self, registry: &mut Registry) {
        registry.register("decisions", "Decisions of the engine", self.decisions.clone());
        registry.register(
            "failed_writes",
            "Decisions that could not be written",
            self.failed_writes.clone(),
        );
        let drift = "Objects that an audit found different from their watch; should stay at zero";
        registry.register("mirror_drift", drift, self.drift.clone());
        registry.register("cycle_duration_seconds", "A whole cycle", self.cycle_seconds.clone());
        let take_in = "Taking in what changed, in cycles and between them";
        registry.register("take_in_duration_seconds", take_in, self.take_in_seconds.clone());
        registry.register("waiting_pods", "Pods that wait for a place", self.waiting_pods.clone());
        let assumed = "Decisions that the cluster does not show yet";
        registry.register("assumed_decisions", assumed, self.assumed.clone());
        let backlog = "Conditions and events that wait to be written";
        registry.register("status_backlog", backlog, self.status_backlog.clone());
        let laws = "Invariants found broken; should stay at zero";
        registry.register("broken_invariants", laws, self.broken_laws.clone());
    }

    /// How long the parts of a cycle took.
    pub(crate) fn cycle(&self, parts: &Parts) {
        let millis = |duration: Duration| duration.as_secs_f64() * 1e3;
        let whole = parts.gather + parts.decide + parts.carry;
        self.cycle.set(millis(whole));
        self.gather.set(millis(parts.gather));
        self.carry.set(millis(parts.carry));
        self.cycle_seconds.observe(whole.as_secs_f64());
        for (action, duration) in &parts.actions {
            let gauge = self.actions.get_or_create(&OfAction { action: action.name() });
            gauge.set(millis(*duration));
        }
        for searched in &parts.searches {
            self.search.took(searched);
        }
    }

    /// What changed was taken in, within so long.
    pub(crate) fn taken_in(&self, duration: Duration) {
        self.take_in_seconds.observe(duration.as_secs_f64());
    }

    /// What a cycle decided.
    pub(crate) fn report(&self, report: &Report) {
        let count = |kind| {
            self.decisions.get_or_create(&OfKind { kind }).inc();
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
        let of = OfAction {
            action: effort.action.name(),
        };
        let add = |family: &Family<OfAction, Whole>, count: u32| {
            family.get_or_create(&of).inc_by(i64::from(count));
        };
        add(&self.scheduled, effort.placed);
        add(&self.acted_on, effort.tried);
        add(&self.simulated, effort.sets.iter().map(|sets| sets.simulated).sum());
        add(&self.filtered, effort.ruled_out);
        if effort.action == Action::Preempt {
            self.preemption_attempts.inc_by(i64::from(effort.placed));
        }
    }

    /// Pods of a group that were evicted.
    pub(crate) fn evicted(&self, group: &kai_api::ObjectReference, pool: &str, action: &'static str, pods: u64) {
        let of = OfGroup {
            podgroup: group.name.clone(),
            namespace: group.namespace.clone(),
            uid: group.uid.clone(),
            nodepool: pool.to_owned(),
            action,
        };
        let mut known = self.evicted_groups.lock().unwrap_or_else(PoisonError::into_inner);
        // Counters may restart at any time.
        if known.len() >= EVICTED_GROUPS_MAX {
            known.clear();
            self.evicted.clear();
        }
        known.insert(group.uid.clone());
        self.evicted.get_or_create(&of).inc_by(pods);
    }

    /// A pod was decided so long after it was made.
    pub(crate) fn decided_after(&self, millis: i64) {
        self.task_scheduling.observe(millis.max(0) as f64);
    }

    /// A decision was written so long after it was made.
    pub(crate) fn bound_after(&self, duration: Duration) {
        self.task_bind.observe(duration.as_secs_f64() * 1e3);
    }

    /// A decision could not be written.
    pub(crate) fn failed(&self, kind: &'static str) {
        self.failed_writes.get_or_create(&OfKind { kind }).inc();
    }

    /// What audits of a kind found so far.
    pub(crate) fn drift(&self, kind: &'static str, differences: u64) {
        let gauge = self.drift.get_or_create(&OfKind { kind });
        gauge.set(i64::try_from(differences).unwrap_or(i64::MAX));
    }

    /// What is under way.
    pub(crate) fn under_way(&self, waiting: usize, assumed: usize, backlog: usize) {
        let whole = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.waiting_pods.set(whole(waiting));
        self.assumed.set(whole(assumed));
        self.status_backlog.set(whole(backlog));
    }

    /// Shares of queues, and the laws that are cheap to check: one look at each node and queue.
    pub(crate) fn look(
        &self,
        engine: &Cluster,
        display_name: impl Fn(&str) -> Option<String>,
        exceeds_gpus: impl Fn(&NodeView<'_>) -> bool,
    ) {
        self.look_at_queues(engine, display_name);
        for node in engine.nodes() {
            if let Some(memory) = node.gpu_memory_mib
                && node.shared.iter().any(|gpu| gpu.allocated_mib > memory)
            {
                self.broken("no GPU beyond its memory", node.name);
            }
            if exceeds_gpus(&node) {
                self.broken("no node beyond its GPUs", node.name);
            }
        }
    }

    fn look_at_queues(&self, engine: &Cluster, display_name: impl Fn(&str) -> Option<String>) {
        /// Milli-cores, bytes and millionths of a GPU in the units of the metrics.
        const UNITS: [f64; 3] = [1e3, 1e9, 1e6];
        const BILLION: f64 = 1e9;
        self.fair_share.iter().chain(&self.usage).for_each(Family::clear);
        for queue in engine.queues() {
            let display = display_name(queue.name);
            let of = OfQueue {
                queue_name: display.clone().unwrap_or_else(|| queue.name.to_owned()),
                queue_metadata_name: queue.name.to_owned(),
                queue_display_name: display.unwrap_or_default(),
            };
            for (at, unit) in UNITS.into_iter().enumerate() {
                self.fair_share[at]
                    .get_or_create(&of)
                    .set(queue.fair_share[at] as f64 / unit);
                let usage = queue.usage_billionths[at] as f64 / BILLION;
                self.usage[at].get_or_create(&of).set(usage);
            }
            let limits = [queue.quota.cpu.limit, queue.quota.memory.limit, queue.quota.gpu.limit];
            let passed = limits
                .iter()
                .zip(queue.allocated)
                .any(|(limit, used)| limit.is_some_and(|limit| used > limit));
            if passed {
                // A limit that was lowered below what runs is not our doing; it is shown all the same, as a warning.
                self.broken("no queue beyond its limit", queue.name);
            }
        }
    }

    fn broken(&self, law: &'static str, by: &str) {
        self.broken_laws.get_or_create(&OfLaw { law }).inc();
        tracing::warn!(law, by, "an invariant does not hold");
    }
}

/// How long the parts of a cycle took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    pub(crate) gather: Duration,
    pub(crate) decide: Duration,
    pub(crate) carry: Duration,
    pub(crate) actions: Vec<(Action, Duration)>,
    pub(crate) searches: Vec<Searched>,
}

/// How long a search for victims took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Searched {
    pub(crate) action: Action,
    pub(crate) generator: Generator,
    pub(crate) end: SearchResult,
    pub(crate) duration: Duration,
}
