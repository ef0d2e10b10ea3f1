//! Runs a scenario: cycles of the engine, with the simulated cluster between them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kai_api::{Pod, PodIdentity, keys};
use kai_engine::model::{
    Action, GangKey, Gpus, Millis, PlacementStrategies, PlacementStrategy, PodKind, PodPhase, Quota, ResourceQuota,
};
use kai_engine::reasons::Resource;
use kai_engine::report::{CycleProgress, Decision, NodeView, PodView, QueueView, Report, Status};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::check;
use crate::memory::peak_rss_mib;
use crate::outcome::{Device, NodeOutcome, Outcome, PodOutcome, QueueOutcome, ShareOutcome, Timing, Totals};
use crate::scenario::{ObjectFiles, Objects, Scenario, View, Warnings};
use crate::simulated_cluster::{Remember, SimulatedCluster, Transition, evicted_pods};

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
    /// The pod or pod group to explain after the last cycle.
    pub explain: Option<String>,
}

/// Runs the scenario.
pub fn run(mut scenario: Scenario, options: &Options) -> Outcome {
    override_config(&mut scenario, options);
    let cycles = options.cycles.unwrap_or(scenario.cycles).max(1);
    let settle = if options.check { scenario.settle_cycles } else { 0 };
    let started = Instant::now();
    let mut runner = Runner::new(&mut scenario, options.check);
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
            for anomaly in runner.simulated.engine().anomalies() {
                let kai_engine::report::Anomaly { object, field, problem } = anomaly;
                let problem = format_args!("{field}: {problem}");
                scenario.object_files.warn(&mut scenario.warnings, &object, problem);
            }
        }
        let last = cycle + 1 == cycles + settle;
        if last {
            runner.finish(&scenario, &report);
            let explain = |wanted: &String| crate::explain::explain(&runner.simulated, &scenario.config, wanted);
            runner.outcome.explanation = options.explain.as_ref().map(explain);
        } else {
            runner.simulated.apply_decisions(&report, now);
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
    /// The pods that have not ended, as the engine has them after its decisions.
    pub(crate) views: Vec<PodView<'f>>,
    pub(crate) evicted: FxHashSet<&'f str>,
    pub(crate) nodes: Vec<NodeView<'f>>,
    pub(crate) simulated: &'f SimulatedCluster,
    pub(crate) totals: Totals,
}

struct Runner {
    simulated: SimulatedCluster,
    timing: Timing,
    totals: Totals,
    outcome: Outcome,
}

impl Runner {
    /// Applies all objects to the mirror and the engine, and warns of their problems.
    fn new(scenario: &mut Scenario, check: bool) -> Runner {
        let expectation = scenario.expectation.as_ref().filter(|_| check);
        let remember = Remember {
            pods: expectation.is_some_and(|expect| !expect.nodes.is_empty()),
            gang_minimums: expectation.is_some_and(|expect| expect.totals.gang_atomic == Some(true)),
        };
        let generated_groups = std::mem::take(&mut scenario.objects.generated_groups);
        let written_memory = written_memory(&scenario.objects);
        let mut simulated = SimulatedCluster::remembering(scenario, remember);
        for found in simulated.take_problems() {
            let object = &found.object;
            let group = kai_api::ObjectKey::new(&object.namespace, &object.name);
            // Grouping warns about the workload of a generated pod group.
            if object.kind == "PodGroup" && generated_groups.contains(&group) {
                continue;
            }
            let file = scenario.object_files.file(&found.problem.object);
            scenario.warnings.push_about(file, &found.problem);
        }
        Runner {
            outcome: Outcome {
                notes: rounded_memory(&scenario.object_files, &written_memory, &simulated.engine().nodes()),
                ..empty_outcome()
            },
            simulated,
            timing: Timing::default(),
            totals: Totals::default(),
        }
    }

    /// Warns of nodes whose pods, by the files, have more GPUs than the node.
    fn warn_of_overcommitted_nodes(&self, files: &ObjectFiles, warnings: &mut Warnings) {
        let blocked: FxHashSet<&str> = self.simulated.mirror().nodes_with_unreserved_groups().collect();
        for node in self.simulated.engine().nodes() {
            let object = || format!("Node {}", node.name);
            if blocked.contains(node.name) {
                let problem = format_args!(
                    "pods share a GPU there that no reservation pod reports in metadata.annotations.{}; until one does, no other pod \
                     gets a GPU of the node",
                    keys::RESERVED_GPU
                );
                files.warn(warnings, &object(), problem);
            } else if node.idle_gpus < Gpus::ZERO {
                let missing = -node.idle_gpus.as_f64();
                let problem = format_args!(
                    "its pods hold {missing} GPUs more than it has; correct status.allocatable of the node, or spec.nodeName or \
                     status.phase of pods"
                );
                files.warn(warnings, &object(), problem);
            }
        }
    }

    fn cycle(&mut self, now: Millis, scenario: &Scenario) -> Report {
        let mut action_starts: Vec<(Action, Instant)> = Vec::with_capacity(scenario.config.actions.len());
        self.simulated.begin_cycle(now);
        let started = Instant::now();
        let engine = self.simulated.engine_mut();
        let report = engine.cycle_observed(now, &scenario.config, &mut |moment| {
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
        let views = self.simulated.engine().pods();
        // As in a cluster, reasons name workloads.
        let workload = |gang: &GangKey| self.simulated.mirror().workload(gang);
        let pods = views
            .iter()
            .filter(|view| view.status != Status::Succeeded)
            .map(|view| {
                let transition = self.simulated.transition(view, evicted.contains(view.uid));
                pod_outcome(view, scenario.view, &workload, &transition)
            });
        let identity = scenario.mirror.identity();
        let ended = self.simulated.ended_pods().iter();
        let mut pods: Vec<PodOutcome> = pods.chain(ended.filter_map(|pod| ended_pod(pod, &identity))).collect();
        pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        CycleResult {
            pods,
            views,
            evicted,
            nodes: self.simulated.engine().nodes(),
            simulated: &self.simulated,
            totals: self.totals,
        }
    }

    fn finish(&mut self, scenario: &Scenario, report: &Report) {
        let result = self.result(scenario, report);
        let (pods, nodes) = (result.pods, result.nodes.iter().map(node_outcome).collect());
        self.totals.pending = pods.iter().filter(|pod| pod.status == Status::Pending).count() as u64;
        self.outcome.queues = self.simulated.engine().queues().iter().map(queue_outcome).collect();
        self.outcome.pods = pods;
        self.outcome.nodes = nodes;
    }
}

/// The labels with the GPU memory of nodes, if pods request GPU memory.
fn written_memory(objects: &Objects) -> FxHashMap<String, i64> {
    let asks = |pod: &Pod| pod.metadata.annotations.text(keys::GPU_MEMORY).is_some();
    if !objects.pods.iter().any(|pod| asks(pod)) {
        return FxHashMap::default();
    }
    let written = objects.nodes.iter().filter_map(|node| {
        let written = node.metadata.labels.text(keys::NODE_GPU_MEMORY)?.parse().ok()?;
        Some((node.metadata.plain_name().to_owned(), written))
    });
    written.collect()
}

/// Notes about rounded GPU memory: it counts in hundreds of MiB, as in KAI. If pods request GPU memory, one may wait because of this.
fn rounded_memory(files: &ObjectFiles, written: &FxHashMap<String, i64>, nodes: &[NodeView<'_>]) -> Vec<String> {
    let note = |node: &NodeView<'_>| {
        let (written, counted) = (*written.get(node.name)?, node.gpu_memory_mib?);
        (written != counted).then(|| {
            format!(
                "{}: Node {}: metadata.labels.{}: {written} counts as {counted} MiB (whole hundreds, as in KAI)",
                files.file(&format!("Node {}", node.name)).display(),
                node.name,
                keys::NODE_GPU_MEMORY
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
        explanation: None,
        warnings: Warnings::default(),
    }
}

/// The outcome of a pod that had ended before the first cycle.
fn ended_pod(pod: &Pod, identity: &PodIdentity) -> Option<PodOutcome> {
    let status = match pod.phase() {
        PodPhase::Succeeded => Status::Succeeded,
        PodPhase::Failed => Status::Failed,
        PodPhase::Pending | PodPhase::Running | PodPhase::Unknown => return None,
    };
    let is_workload = pod.kind(identity) == PodKind::Workload;
    is_workload.then(|| PodOutcome {
        namespace: pod.metadata.namespace().to_owned(),
        name: pod.metadata.plain_name().to_owned(),
        status,
        node: pod.node_name().map(str::to_owned),
        gpu_groups: Vec::new(),
        reason: None,
    })
}

fn pod_outcome(
    view: &PodView<'_>,
    moment: View,
    workload: &dyn Fn(&GangKey) -> String,
    transition: &Transition,
) -> PodOutcome {
    let as_decided = PodOutcome {
        namespace: view.namespace.to_owned(),
        name: view.name.to_owned(),
        status: view.status,
        node: view.node.map(str::to_owned),
        gpu_groups: view.gpu_groups.clone(),
        reason: view
            .reason
            .as_ref()
            .map(|reason| reason.with_names(&workload).to_string()),
    };
    if moment == View::Decisions {
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
