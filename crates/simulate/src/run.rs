//! Runs a scenario: cycles of the engine, with the simulated cluster between them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kai_engine::Cluster;
use kai_engine::model::{
    Action, Event, GangKey, GpuRequest, Gpus, Millis, NodeSpec, PlacementStrategies, PlacementStrategy, PodSpec, Quota,
    ResourceQuota,
};
use kai_engine::reasons::Resource;
use kai_engine::report::{CycleProgress, Decision, NodeView, PodView, QueueView, Report, Status};
use rustc_hash::FxHashSet;

use crate::check;
use crate::memory::peak_rss_mib;
use crate::outcome::{Device, NodeOutcome, Outcome, PodOutcome, QueueOutcome, ShareOutcome, Timing, Totals};
use crate::scenario::{ObjectFiles, Objects, Scenario, View, Warnings};
use crate::simulated_cluster::{SimulatedCluster, Transition, evicted_pods};

/// The simulated time between two cycles.
const CYCLE_PERIOD: Millis = Millis::seconds(1);

/// Further notes would repeat the first ones.
const NOTES_MAX: usize = 5;

/// Options of the user that override the scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The number of cycles.
    pub cycles: Option<u32>,
    /// The actions of a cycle.
    pub actions: Option<Vec<Action>>,
    /// The placement strategy for GPU and CPU nodes.
    pub placement: Option<PlacementStrategy>,
    /// Compares the result with the expectation, also after the settle cycles.
    pub check: bool,
}

/// Runs the scenario.
pub fn run(mut scenario: Scenario, options: &Options) -> Outcome {
    override_config(&mut scenario, options);
    let cycles = options.cycles.unwrap_or(scenario.cycles).max(1);
    let settle = if options.check { scenario.settle_cycles } else { 0 };
    let started = Instant::now();
    let mut runner = Runner::new(&mut scenario, cycles + settle > 1);
    runner.timing.load_ms = milliseconds(scenario.load_time + started.elapsed());
    runner.warn_of_overcommitted_nodes(&scenario.object_files, &mut scenario.warnings);
    let mut differences = Vec::new();
    for cycle in 0..cycles + settle {
        let now = Millis(
            scenario
                .now
                .0
                .saturating_add(CYCLE_PERIOD.0.saturating_mul(i64::from(cycle))),
        );
        let report = runner.cycle(now, &scenario);
        // Later cycles would repeat the same difference.
        if options.check && cycle + 1 >= cycles && differences.is_empty() {
            let when = match cycle + 1 - cycles {
                0 => String::new(),
                1 => " (after 1 more cycle)".to_owned(),
                settled => format!(" (after {settled} more cycles)"),
            };
            let found = check::differences(&runner.result(&scenario, &report), &scenario);
            differences.extend(found.into_iter().map(|difference| format!("{difference}{when}")));
        }
        if cycle == 0 {
            for anomaly in runner.cluster.anomalies() {
                let kai_engine::report::Anomaly { object, field, problem } = anomaly;
                let problem = format_args!("{field}: {problem}");
                scenario.object_files.warn(&mut scenario.warnings, &object, problem);
            }
        }
        let last = cycle + 1 == cycles + settle;
        if last {
            runner.finish(&scenario, &report);
        } else {
            runner.simulated.apply_decisions(&mut runner.cluster, &report, now);
        }
    }
    let mut outcome = runner.outcome;
    outcome.id = scenario.id;
    outcome.files = scenario.files.iter().map(|file| file.display().to_string()).collect();
    outcome.timing = runner.timing;
    outcome.totals = runner.totals;
    outcome.totals.refused = scenario.refused_pods;
    outcome.peak_rss_mib = peak_rss_mib();
    outcome.differences = options.check.then_some(differences);
    outcome.warnings = scenario.warnings;
    outcome
}

fn override_config(scenario: &mut Scenario, options: &Options) {
    if let Some(strategy) = options.placement {
        scenario.config.placement = PlacementStrategies {
            gpu: strategy,
            cpu: strategy,
        };
        // Consolidation packs pods and contradicts spreading; KAI drops it too.
        if strategy == PlacementStrategy::Spread {
            scenario
                .config
                .actions
                .retain(|action| *action != Action::Consolidation);
        }
    }
    if let Some(actions) = &options.actions {
        scenario.config.actions.clone_from(actions);
    }
}

fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// The state after a cycle, for the check.
pub(crate) struct CycleResult<'f> {
    /// The pods with the status of the scenario's [`View`].
    pub(crate) pods: Vec<PodOutcome>,
    /// The same pods in the same order, as the engine has them after its decisions.
    pub(crate) views: Vec<PodView<'f>>,
    pub(crate) evicted: FxHashSet<&'f str>,
    pub(crate) nodes: Vec<NodeView<'f>>,
    pub(crate) simulated: &'f SimulatedCluster,
    pub(crate) totals: Totals,
}

struct Runner {
    cluster: Cluster,
    simulated: SimulatedCluster,
    timing: Timing,
    totals: Totals,
    outcome: Outcome,
}

impl Runner {
    /// Sends all objects to the engine. The simulated cluster keeps copies only if a further cycle or a check needs them.
    fn new(scenario: &mut Scenario, remember: bool) -> Runner {
        let mut simulated = SimulatedCluster::new(&scenario.hold_releasing);
        let remember = remember
            || scenario
                .expectation
                .as_ref()
                .is_some_and(|expect| !expect.nodes.is_empty());
        let Objects {
            nodes,
            queues,
            gangs,
            pods,
            topologies,
            usage,
        } = std::mem::take(&mut scenario.objects);
        if remember {
            gangs.iter().for_each(|gang| simulated.add_gang(gang));
            pods.iter().for_each(|pod| simulated.add_pod(pod));
        }
        let notes = rounded_memory(&scenario.object_files, &nodes, &pods);
        // For the check of all gangs.
        scenario.gang_minimums = gangs.iter().map(check::gang_minimum).collect();
        let mut cluster = Cluster::new();
        let events = topologies
            .into_iter()
            .map(Event::Topology)
            .chain(queues.into_iter().map(Event::Queue));
        let events = events
            .chain(usage.into_iter().map(Event::Usage))
            .chain(nodes.into_iter().map(Event::Node));
        let events = events
            .chain(gangs.into_iter().map(Event::Gang))
            .chain(pods.into_iter().map(Event::Pod));
        events.for_each(|event| cluster.apply(event));
        Runner {
            cluster,
            simulated,
            timing: Timing::default(),
            totals: Totals::default(),
            outcome: Outcome {
                notes,
                ..empty_outcome()
            },
        }
    }

    /// Warns of nodes whose pods, by the files, have more GPUs than the node.
    fn warn_of_overcommitted_nodes(&self, files: &ObjectFiles, warnings: &mut Warnings) {
        for node in self.cluster.nodes() {
            if node.idle_gpus < Gpus::ZERO {
                let missing = -node.idle_gpus.as_f64();
                let problem = format_args!(
                    "its pods hold {missing} GPUs more than it has; correct status.allocatable of the node, or spec.nodeName or \
                     status.phase of pods"
                );
                files.warn(warnings, &format!("Node {}", node.name), problem);
            }
        }
    }

    fn cycle(&mut self, now: Millis, scenario: &Scenario) -> Report {
        let mut action_starts: Vec<(Action, Instant)> = Vec::with_capacity(scenario.config.actions.len());
        let started = Instant::now();
        let report = self.cluster.cycle_observed(now, &scenario.config, &mut |moment| {
            if let CycleProgress::ActionStarts(action) = moment {
                action_starts.push((action, Instant::now()));
            }
        });
        let ended = Instant::now();
        self.timing.cycle_ms.push(milliseconds(ended - started));
        let ends = action_starts.iter().skip(1).map(|(_, at)| *at).chain([ended]);
        let mut per_action: BTreeMap<&'static str, Duration> = BTreeMap::new();
        for ((action, from), until) in action_starts.iter().zip(ends) {
            *per_action.entry(action.name()).or_default() += until - *from;
        }
        for (action, time) in per_action {
            let sum = self.timing.action_ms.entry(action).or_default();
            *sum = ((*sum + milliseconds(time)) * 1e3).round() / 1e3;
        }
        self.count(&report);
        report
    }

    fn count(&mut self, report: &Report) {
        self.totals.pipelined = 0;
        for decision in &report.decisions {
            match decision {
                Decision::Bind(_) => self.totals.bound += 1,
                Decision::Pipeline(_) => self.totals.pipelined += 1,
                Decision::Evict { .. } => self.totals.evicted += 1,
                Decision::Started(_) | Decision::Evicted(_) | Decision::Stale { .. } | Decision::Recovered(_) => {}
            }
        }
    }

    fn result<'f>(&'f self, scenario: &Scenario, report: &'f Report) -> CycleResult<'f> {
        let evicted = evicted_pods(report);
        let views = self.cluster.pods();
        let pods = views.iter().map(|view| {
            let transition = self.simulated.transition(view, evicted.contains(view.uid));
            pod_outcome(view, scenario, &transition)
        });
        let pods = pods.collect();
        CycleResult {
            pods,
            views,
            evicted,
            nodes: self.cluster.nodes(),
            simulated: &self.simulated,
            totals: self.totals,
        }
    }

    fn finish(&mut self, scenario: &Scenario, report: &Report) {
        let result = self.result(scenario, report);
        let (pods, nodes) = (result.pods, result.nodes.iter().map(node_outcome).collect());
        self.totals.pending = pods.iter().filter(|pod| pod.status == Status::Pending).count() as u64;
        self.outcome.queues = self.cluster.queues().iter().map(queue_outcome).collect();
        self.outcome.pods = pods;
        self.outcome.nodes = nodes;
    }
}

/// Notes about rounded GPU memory: it counts in hundreds of MiB, as in KAI. If pods request GPU memory, one may wait because of this.
fn rounded_memory(files: &ObjectFiles, nodes: &[NodeSpec], pods: &[PodSpec]) -> Vec<String> {
    let asks = |pod: &PodSpec| matches!(pod.requests.gpu, GpuRequest::Memory { .. });
    if !pods.iter().any(asks) {
        return Vec::new();
    }
    let note = |node: &NodeSpec| {
        let label = kai_api::keys::NODE_GPU_MEMORY;
        let (written, counted) = (node.labels.get(label)?, node.gpu_memory_mib?);
        let written: i64 = written.parse().ok()?;
        (written != counted).then(|| {
            format!(
                "{}: Node {}: metadata.labels.{label}: {written} counts as {counted} MiB (whole hundreds, as in KAI)",
                files.file(&format!("Node {}", node.name)).display(),
                node.name
            )
        })
    };
    nodes.iter().filter_map(note).take(NOTES_MAX).collect()
}

fn empty_outcome() -> Outcome {
    Outcome {
        id: String::new(),
        files: Vec::new(),
        notes: Vec::new(),
        pods: Vec::new(),
        queues: Vec::new(),
        nodes: Vec::new(),
        totals: Totals::default(),
        timing: Timing::default(),
        peak_rss_mib: None,
        differences: None,
        warnings: Warnings::default(),
    }
}

fn pod_outcome(view: &PodView<'_>, scenario: &Scenario, transition: &Transition) -> PodOutcome {
    // As in a cluster, reasons name workloads.
    let name = |gang: &GangKey| match scenario.workload_names.get(gang) {
        Some(workload) => workload.clone(),
        None => gang.to_string(),
    };
    let as_decided = PodOutcome {
        namespace: view.namespace.to_owned(),
        name: view.name.to_owned(),
        status: view.status,
        node: view.node.map(str::to_owned),
        gpu_groups: view.gpu_groups.clone(),
        reason: view.reason.as_ref().map(|reason| reason.with_names(&name).to_string()),
    };
    if scenario.view == View::Decisions {
        return as_decided;
    }
    match transition {
        Transition::Unchanged if view.status == Status::Pipelined => PodOutcome {
            status: Status::Pending,
            node: None,
            gpu_groups: Vec::new(),
            ..as_decided
        },
        Transition::Unchanged => as_decided,
        Transition::Starts => PodOutcome {
            status: Status::Running,
            ..as_decided
        },
        Transition::Recreated => PodOutcome {
            status: Status::Pending,
            node: None,
            gpu_groups: Vec::new(),
            ..as_decided
        },
        Transition::StaysTerminating => PodOutcome {
            status: Status::Releasing,
            ..as_decided
        },
    }
}

fn node_outcome(view: &NodeView<'_>) -> NodeOutcome {
    let percent = |used_mib: i64| match view.gpu_memory_mib {
        Some(memory) if memory > 0 => u8::try_from((used_mib * 100 / memory).clamp(0, 100)).unwrap_or(100),
        // On a node without the label, shares are in percent.
        _ => u8::try_from(used_mib.clamp(0, 100)).unwrap_or(100),
    };
    let whole = usize::try_from(view.whole_used).unwrap_or(0);
    let all = usize::try_from(view.gpus).unwrap_or(0);
    // Pipelined and terminating pods of a device both count, so that their sum can exceed the number of devices.
    let shared = view
        .shared
        .iter()
        .map(|shared| Device::Shared(percent(shared.used_mib)))
        .take(all);
    let mut devices: Vec<Device> = shared.collect();
    let whole = whole.min(all - devices.len());
    devices.splice(0..0, std::iter::repeat_n(Device::Whole, whole));
    devices.resize(all, Device::Idle);
    NodeOutcome {
        name: view.name.to_owned(),
        ready: view.ready,
        devices,
        idle_gpus: view.idle_gpus,
        releasing_gpus: view.releasing_gpus,
        mig: view
            .mig
            .iter()
            .map(|(name, free, all)| ((*name).to_owned(), *free, *all))
            .collect(),
        cpu_milli: (view.cpu_idle_milli, view.cpu_milli),
        memory_bytes: (view.memory_idle_bytes, view.memory_bytes),
    }
}

fn queue_outcome(view: &QueueView<'_>) -> QueueOutcome {
    let Quota { cpu, memory, gpu } = view.quota;
    let share = |resource: Resource, quota: ResourceQuota, unit: f64| {
        let amount = |amount: i64| {
            if amount >= i64::MAX / 2 {
                -1.0
            } else {
                amount as f64 / unit
            }
        };
        let bound = |bound: Option<i64>| bound.map_or(-1.0, amount);
        ShareOutcome {
            quota: bound(quota.deserved),
            limit: bound(quota.limit),
            over_quota_weight: quota.weight_millionths as f64 / 1e6,
            fair_share: amount(view.fair_share[resource]),
            allocated: amount(view.allocated[resource]),
            allocated_non_preemptible: amount(view.allocated_non_preemptible[resource]),
            requested: amount(view.requested[resource]),
        }
    };
    QueueOutcome {
        name: view.name.to_owned(),
        parent: view.parent.map(str::to_owned),
        priority: view.priority,
        cpu: share(Resource::Cpu, cpu, 1.0),
        memory: share(Resource::Memory, memory, 1e6),
        gpu: share(Resource::Gpu, gpu, Gpus::ONE.0 as f64),
    }
}
