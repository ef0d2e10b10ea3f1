//! Random clusters: builds objects from plans, carries out decisions, and keeps its own record of every object, so that laws do not
//! depend on the engine's sums.

// Every test file uses another part of this module.
#![allow(dead_code)]

pub(crate) mod account;
pub(crate) mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::kai_engine::Cluster;
use super::kai_engine::model::{
    AttachLimits, BindInFlight, Config, Constraints, Event, FractioningCondition, FreeVolume, GangKey, GangSpec,
    GpuFraction, GpuRequest, HostPort, LabelSelector, MemoryKind, MigStrategy, Millis, NewVolumes, NodeCondition,
    NodeSelectorTerm, NodeSpec, Operator, PodAffinityTerm, PodKind, PodPhase, PodSpec, QueueSpec, Quota, Requests,
    Requirement, ResourceQuota, StorageRequest, StorageSegment, SubGroupSpec, Taint, TaintEffect, TaskRank, Toleration,
    TopologyConstraint, TopologyLevel, TopologySpec, UnboundClaim, Usage, UsedVolumes, VolumePoolSpec,
};
use super::kai_engine::reasons::Refusal;
use super::kai_engine::report::{Decision, Report};
use account::{PlacedPods, fits, placed_pods};
use plan::{
    AttachPlan, ClaimPlan, GangPlan, Gpu, Level, NodeKind, NodePlan, Pace, QueuePlan, Rule, Scene, Shape, SpecialPod,
    Step, TopologyPlan,
};

pub(crate) const MIB: i64 = 1 << 20;
const MIG: [&str; 2] = ["nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"];
const NS: &str = "ns";
const TAINT: &str = "dedicated";
const RULE_LABEL: &str = "rule";

// The engine must not read the environment; tests may.
#[allow(clippy::disallowed_methods)]
/// The configuration of a property test: this many cases unless `PROPTEST_CASES` is set, and a fixed seed unless `PROPTEST_RNG_SEED` is
/// set, so that every run is the same.
pub(crate) fn cases(cases: u32) -> proptest::test_runner::Config {
    let mut config = proptest::test_runner::Config::default();
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
        config.rng_seed = proptest::test_runner::RngSeed::Fixed(1);
    }
    config.failure_persistence = None;
    config.max_shrink_iters = 20_000;
    config
}

/// Puts the events in an order that depends on the seed only.
pub(crate) fn shuffle(events: &mut [Event], mut seed: u64) {
    for at in (1..events.len()).rev() {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        events.swap(at, (seed >> 33) as usize % (at + 1));
    }
}

/// A simulated cluster: all objects as the API server has them, and an engine to which they were applied.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) config: Config,
    pub(crate) now: Millis,
    pub(crate) nodes: BTreeMap<String, NodeSpec>,
    pub(crate) queues: BTreeMap<String, QueueSpec>,
    pub(crate) usage: BTreeMap<String, Usage>,
    pub(crate) gangs: BTreeMap<GangKey, GangSpec>,
    pub(crate) pods: BTreeMap<String, PodSpec>,
    pub(crate) pools: BTreeMap<String, VolumePoolSpec>,
    /// The nodes that can use the volume of each claim that is bound.
    pub(crate) bound_claims: BTreeMap<String, Vec<NodeSelectorTerm>>,
    gang_count: usize,
}

impl World {
    /// The cluster of a scene before its first step.
    pub(crate) fn new(scene: &Scene) -> World {
        let mut config = Config::default();
        (config.placement.gpu, config.placement.cpu) = (scene.policy.strategy, scene.policy.strategy);
        if scene.policy.any_number_of_moves {
            config.consolidation_preemptees_max = None;
        }
        if scene.policy.no_staleness_grace {
            config.staleness_grace = Some(Millis(0));
        }
        let mut world = World {
            cluster: Cluster::new(),
            config,
            now: Millis::seconds(1_000_000),
            nodes: BTreeMap::new(),
            queues: BTreeMap::new(),
            usage: BTreeMap::new(),
            gangs: BTreeMap::new(),
            pods: BTreeMap::new(),
            pools: BTreeMap::new(),
            bound_claims: BTreeMap::new(),
            gang_count: 0,
        };
        world.apply(Event::Topology(topology()));
        for pool in volume_pools() {
            world.apply(Event::VolumePool(pool));
        }
        for limits in attach_limits() {
            world.apply(Event::AttachLimits(limits));
        }
        for (at, plan) in scene.nodes.iter().enumerate() {
            world.apply(Event::Node(node(&format!("n{at}"), plan)));
        }
        for (at, plan) in scene.queues.iter().enumerate() {
            let parent = world.parent_for(at, plan);
            world.apply_queue(format!("q{at}"), parent, plan);
        }
        for plan in &scene.gangs {
            world.add_gang(plan);
        }
        world
    }

    /// Runs a step. `watch` gets the report of a cycle before the decisions are carried out.
    pub(crate) fn step(&mut self, step: &Step, watch: &mut dyn FnMut(&World, &Report)) {
        match step {
            Step::Cycle(pace) => {
                let report = self.cycle();
                watch(self, &report);
                self.carry_out(&report, *pace);
            }
            Step::Wait(seconds) => self.now = self.now + Millis::seconds(*seconds),
            Step::NodeGone(at) => {
                if let Some(name) = pick(&self.nodes, *at) {
                    self.apply(Event::NodeGone(name));
                }
            }
            Step::Node(at, plan) => {
                let name = format!("n{}", at % 7);
                self.apply(Event::Node(node(&name, plan)));
            }
            Step::Cordon(at) => {
                if let Some(name) = pick(&self.nodes, *at) {
                    let mut node = self.nodes[&name].clone();
                    node.unschedulable = !node.unschedulable;
                    self.apply(Event::Node(node));
                }
            }
            Step::PodGone(at) => {
                if let Some(uid) = pick(&self.pods, *at) {
                    self.apply(Event::PodGone(uid));
                }
            }
            Step::PodEnds(at) => self.change_pod(*at, |pod, _| pod.phase = PodPhase::Succeeded),
            Step::PodLeaves(at) => self.change_pod(*at, |pod, now| pod.deletion = pod.deletion.or(Some(now))),
            Step::Gang(plan) => self.add_gang(plan),
            Step::GangGone(at) => {
                if let Some(key) = pick(&self.gangs, *at) {
                    self.apply(Event::GangGone(key));
                }
            }
            Step::GangChanges(at, min) => {
                if let Some(key) = pick(&self.gangs, *at) {
                    let mut gang = self.gangs[&key].clone();
                    gang.min_member = *min;
                    gang.min_sub_group = (*min > 0).then_some(*min);
                    self.apply(Event::Gang(gang));
                }
            }
            Step::Queue(at, plan) => {
                if let Some(name) = pick(&self.queues, *at) {
                    let parent = self.queues[&name].parent.clone();
                    self.apply_queue(name, parent, plan);
                }
            }
        }
    }

    /// Changes one of the pods that have a node.
    fn change_pod(&mut self, at: usize, change: impl FnOnce(&mut PodSpec, Millis)) {
        let placed: Vec<&PodSpec> = self.pods.values().filter(|pod| pod.node.is_some()).collect();
        if !placed.is_empty() {
            let mut pod = placed[at % placed.len()].clone();
            change(&mut pod, self.now);
            self.apply(Event::Pod(pod));
        }
    }

    /// Completes all bindings and deletions that are being carried out.
    pub(crate) fn finish_changes(&mut self) {
        self.carry_out(&Report::default(), Pace::AtOnce);
    }

    pub(crate) fn cycle(&mut self) -> Report {
        self.now = self.now + Millis::seconds(1);
        self.cluster.cycle(self.now, &self.config)
    }

    /// All objects as one event each.
    pub(crate) fn snapshot(&self) -> Vec<Event> {
        let mut events = vec![Event::Topology(topology())];
        events.extend(attach_limits().map(Event::AttachLimits));
        events.extend(self.pools.values().cloned().map(Event::VolumePool));
        events.extend(self.nodes.values().cloned().map(Event::Node));
        events.extend(self.queues.values().cloned().map(Event::Queue));
        events.extend(self.usage.values().cloned().map(Event::Usage));
        events.extend(self.gangs.values().cloned().map(Event::Gang));
        events.extend(self.pods.values().cloned().map(Event::Pod));
        events
    }

    /// The pods with a node.
    pub(crate) fn placed_pods(&self) -> PlacedPods {
        placed_pods(self.pods.values(), self.now - self.config.stuck_in_releasing)
    }

    pub(crate) fn apply(&mut self, event: Event) {
        self.record(event.clone());
        self.cluster.apply(event);
    }

    fn record(&mut self, event: Event) {
        match event {
            Event::Node(node) => drop(self.nodes.insert(node.name.clone(), node)),
            Event::NodeGone(name) => drop(self.nodes.remove(&name)),
            Event::Pod(pod) => drop(self.pods.insert(pod.uid.clone(), pod)),
            Event::PodGone(uid) => drop(self.pods.remove(&uid)),
            Event::Gang(gang) => drop(self.gangs.insert(gang.key.clone(), gang)),
            Event::GangGone(key) => drop(self.gangs.remove(&key)),
            Event::Queue(queue) => drop(self.queues.insert(queue.name.clone(), queue)),
            Event::QueueGone(name) => drop(self.queues.remove(&name)),
            Event::Usage(usage) => drop(self.usage.insert(usage.queue.clone(), usage)),
            Event::VolumePool(pool) => drop(self.pools.insert(pool.name.clone(), pool)),
            Event::VolumePoolGone(name) => drop(self.pools.remove(&name)),
            Event::AttachLimits(_) | Event::Topology(_) | Event::TopologyGone(_) => {}
        }
    }

    // ---- decisions are carried out --------------------------------------------------------------------------------------

    /// Carries out the decisions of a cycle.
    pub(crate) fn carry_out(&mut self, report: &Report, pace: Pace) {
        let mut events = self.gang_events(report);
        let mut pods = self.pods.clone();
        let mut changed = BTreeSet::new();
        for decision in &report.decisions {
            match decision {
                Decision::Bind(placed) => {
                    let pod = pods.get_mut(&*placed.pod).expect("only pods that exist are bound");
                    pod.bind_in_flight = Some(BindInFlight {
                        node: placed.node.to_string(),
                        gpu_groups: placed.gpu_groups.clone(),
                        volumes: placed.volumes.clone(),
                    });
                    changed.insert(placed.pod.to_string());
                }
                Decision::Evict { pod: uid, .. } => {
                    let pod = pods.get_mut(&**uid).expect("only pods that exist are evicted");
                    pod.deletion = pod.deletion.or(Some(self.now));
                    changed.insert(uid.to_string());
                }
                Decision::Pipeline(_)
                | Decision::Started(_)
                | Decision::Evicted(_)
                | Decision::Stale { .. }
                | Decision::Recovered(_) => {}
            }
        }
        for pod in pods.values_mut().filter(|pod| pod.kind == PodKind::Workload) {
            let started = pod.phase == PodPhase::Pending && (pod.node.is_some() || pod.bind_in_flight.is_some());
            let over = matches!(pod.phase, PodPhase::Succeeded | PodPhase::Failed);
            if pod.deletion.is_some() && pod.node.is_none() {
                // The API server deletes a pod without a node at once: no kubelet has to stop it.
                changed.remove(&pod.uid);
                let replacement = self.replacement(pod);
                self.apply(Event::PodGone(pod.uid.clone()));
                self.apply(Event::Pod(replacement));
            } else if pace == Pace::AtOnce {
                if pod.deletion.is_some() && !over {
                    changed.remove(&pod.uid);
                    events.push(Event::PodGone(pod.uid.clone()));
                    events.push(Event::Pod(self.replacement(pod)));
                } else if started {
                    if let Some(bind) = pod.bind_in_flight.take() {
                        events.extend(self.bind_claims(&bind));
                        (pod.node, pod.gpu_groups) = (Some(bind.node), bind.gpu_groups);
                    }
                    pod.phase = PodPhase::Running;
                    changed.insert(pod.uid.clone());
                }
            }
        }
        // Other pods with a claim that is bound now can use its volume.
        for pod in pods.values_mut() {
            let before = pod.constraints.claims.len();
            for claim in std::mem::take(&mut pod.constraints.claims) {
                match self.bound_claims.get(&claim.claim) {
                    Some(nodes) => pod.constraints.volume_nodes.push(nodes.clone()),
                    None => pod.constraints.claims.push(claim),
                }
            }
            let exists = self.pods.contains_key(&pod.uid) && !events.contains(&Event::PodGone(pod.uid.clone()));
            if pod.constraints.claims.len() < before && exists {
                changed.insert(pod.uid.clone());
            }
        }
        events.extend(changed.into_iter().map(|uid| Event::Pod(pods[&uid].clone())));
        for event in events {
            self.record(event.clone());
            if pace != Pace::Silent {
                self.cluster.apply(event);
            }
        }
    }

    /// Binds the claims of a pod to the volumes that a binding in flight chose: they are free no more.
    fn bind_claims(&mut self, bind: &BindInFlight) -> Vec<Event> {
        let mut events = Vec::new();
        for choice in &bind.volumes {
            let volumes = self.pools.values().flat_map(|pool| &pool.volumes);
            let nodes = match &choice.volume {
                Some(name) => volumes
                    .into_iter()
                    .find(|volume| *volume.name == **name)
                    .map(|volume| volume.nodes.clone().unwrap_or_default()),
                // The provisioner makes volumes for racks.
                None => self
                    .nodes
                    .get(&bind.node)
                    .map(|node| vec![has_label("rack", &node.labels["rack"])]),
            };
            let Some(nodes) = nodes else { continue };
            self.bound_claims.entry(choice.claim.clone()).or_insert(nodes);
            for pool in self.pools.values() {
                let mut pool = pool.clone();
                let before = pool.volumes.len();
                pool.volumes
                    .retain(|volume| Some(&*volume.name) != choice.volume.as_deref());
                if pool.volumes.len() < before {
                    events.push(Event::VolumePool(pool));
                }
            }
            for event in &events {
                self.record(event.clone());
            }
        }
        events
    }

    /// The gangs whose recorded times a report changes.
    fn gang_events(&self, report: &Report) -> Vec<Event> {
        let mut gangs = self.gangs.clone();
        let mut events = Vec::new();
        for decision in &report.decisions {
            let (Decision::Started(key)
            | Decision::Evicted(key)
            | Decision::Recovered(key)
            | Decision::Stale { gang: key, .. }) = decision
            else {
                continue;
            };
            let gang = gangs.get_mut(key).expect("only gangs that exist are reported");
            match decision {
                Decision::Started(_) => gang.last_start = Some(self.now),
                Decision::Evicted(_) => gang.last_eviction = Some(self.now),
                Decision::Stale { since, .. } => gang.stale_since = Some(*since),
                _ => gang.stale_since = None,
            }
            events.push(Event::Gang(gang.clone()));
        }
        events
    }

    /// The pod that a controller creates for a deleted pod.
    fn replacement(&self, pod: &PodSpec) -> PodSpec {
        PodSpec {
            uid: format!("{}'", pod.uid),
            created: self.now,
            phase: PodPhase::Pending,
            node: None,
            deletion: None,
            bind_in_flight: None,
            gpu_groups: Vec::new(),
            ..pod.clone()
        }
    }

    // ---- objects from plans --------------------------------------------------------------------------------------------

    fn parent_for(&self, at: usize, plan: &QueuePlan) -> Option<String> {
        let parent = format!("q{}", plan.parent?.checked_rem(at)?);
        let depth = std::iter::successors(Some(&parent), |name| self.queues[*name].parent.as_ref()).count();
        (depth < 3).then_some(parent)
    }

    fn apply_queue(&mut self, name: String, parent: Option<String>, plan: &QueuePlan) {
        let quota = |deserved: Option<i64>, limit: Option<i64>, unit: i64| ResourceQuota {
            deserved: deserved.map(|amount| amount * unit),
            limit: limit.map(|amount| amount * unit),
            weight_millionths: plan.weight * 1_000_000,
        };
        self.apply(Event::Queue(QueueSpec {
            uid: name.clone(),
            name: name.clone(),
            display_name: String::new(),
            parent,
            created: Millis(0),
            priority: plan.priority,
            quota: Quota {
                cpu: quota(plan.cores_deserved, plan.cores_limit, 1_000),
                memory: ResourceQuota::UNBOUNDED,
                gpu: quota(plan.deserved, plan.limit, 10_000),
            },
            preempt_min_runtime: plan.protects.then_some(Millis::seconds(300)),
            reclaim_min_runtime: plan.protects.then_some(Millis::seconds(300)),
        }));
        if let Some(usage) = plan.usage {
            self.apply(Event::Usage(Usage {
                queue: name,
                cpu_billionths: usage * 10_000_000,
                memory_billionths: usage * 10_000_000,
                gpu_billionths: usage * 10_000_000,
            }));
        }
    }

    fn add_gang(&mut self, plan: &GangPlan) {
        let at = self.gang_count;
        self.gang_count += 1;
        let leaves: Vec<&String> = self
            .queues
            .keys()
            .filter(|name| self.queues.values().all(|queue| queue.parent.as_ref() != Some(name)))
            .collect();
        let key = GangKey {
            namespace: NS.into(),
            name: format!("g{at}"),
        };
        let (min_member, min_sub_group, sub_groups, members) = members(plan);
        let gang = GangSpec {
            uid: key.name.clone(),
            key: key.clone(),
            created: self.now - Millis::seconds(100 + plan.age),
            queue: leaves[plan.queue % leaves.len()].clone(),
            priority: plan.priority,
            preemptibility: plan.preemptibility(),
            min_member,
            min_sub_group,
            topology: plan.topology.as_ref().map(constraint),
            sub_groups,
            last_start: plan.runs.then_some(self.now - Millis::seconds(60)),
            last_eviction: None,
            stale_since: None,
            preemption_delay: Millis::seconds(plan.delay.map_or(0, |seconds| 100 + plan.age + seconds)),
            staleness_grace: None,
            schedulable: true,
            refused: None,
        };
        let mut pods: Vec<PodSpec> = members
            .into_iter()
            .enumerate()
            .map(|(index, sub_group)| self.pod(plan, &gang, index, sub_group))
            .collect();
        if plan.runs {
            self.run_pods(&mut pods);
        }
        self.apply(Event::Gang(gang));
        for pod in pods {
            self.apply(Event::Pod(pod));
        }
    }

    /// The claims of a pod that are not bound, and the nodes of the volumes of the others.
    fn claims(&self, plan: ClaimPlan, gang: &str, index: usize) -> Constraints {
        let claim = |name: String, pool: &str, many_nodes| UnboundClaim {
            claim: name,
            storage: (pool == "any").then(|| StorageRequest {
                class: "any".to_owned(),
                bytes: NEW_BYTES,
            }),
            pool: pool.to_owned(),
            many_nodes,
        };
        let own = |suffix: &str, pool| claim(format!("{gang}-{index}{suffix}"), pool, false);
        let claims = match plan {
            ClaimPlan::Disk => vec![own("", "disks")],
            ClaimPlan::DiskOrNew => vec![own("", "any")],
            ClaimPlan::Two => vec![own("", "disks"), own("-2", "any")],
            ClaimPlan::Shared { many_nodes } => vec![claim(gang.to_owned(), "any", many_nodes)],
        };
        let mut constraints = Constraints::default();
        for claim in claims {
            match self.bound_claims.get(&claim.claim) {
                Some(nodes) => constraints.volume_nodes.push(nodes.clone()),
                None => constraints.claims.push(claim),
            }
        }
        constraints
    }

    fn pod(&self, plan: &GangPlan, gang: &GangSpec, index: usize, sub_group: Option<String>) -> PodSpec {
        let request = &plan.requests[index % plan.requests.len()];
        let gpu = match request.gpu {
            Gpu::None | Gpu::Mig(0, 0) => GpuRequest::None,
            Gpu::Whole(devices) => GpuRequest::Whole { devices },
            Gpu::Fraction(hundredths, devices) => GpuRequest::Fraction {
                fraction: GpuFraction::from_hundredths(hundredths),
                devices,
            },
            Gpu::Memory(mib, devices) => GpuRequest::Memory { mib, devices },
            Gpu::Mig(small, large) => GpuRequest::Mig {
                slices: slices(small, large),
                legacy: false,
            },
        };
        let special_pod = plan.special_pod.filter(|_| index == 0);
        let rack = plan.rack.map(|rack| ("rack".to_owned(), format!("r{rack}")));
        PodSpec {
            uid: format!("{}-{index}", gang.key.name),
            namespace: NS.into(),
            name: format!("{}-{index}", gang.key.name),
            created: gang.created,
            kind: match special_pod {
                Some(SpecialPod::Foreign) => PodKind::Foreign,
                _ => PodKind::Workload,
            },
            gang: Some(gang.key.clone()),
            sub_group,
            phase: PodPhase::Pending,
            node: None,
            deletion: None,
            gated: matches!(special_pod, Some(SpecialPod::Gated)),
            bind_in_flight: None,
            background: plan.background,
            gpu_groups: Vec::new(),
            requests: Requests {
                cpu_milli: request.millis,
                memory_bytes: request.mib * MIB,
                gpu,
                extended: Vec::new(),
            },
            volumes: match plan.rule {
                Some(Rule::Attached(volumes)) => used_volumes(volumes, &gang.key.name, index),
                Some(_) | None => UsedVolumes::default(),
            },
            constraints: Constraints {
                node_selector: rack.into_iter().collect(),
                share: plan.share,
                ..match plan.rule {
                    Some(Rule::Claims(claims)) => self.claims(claims, &gang.key.name, index),
                    Some(rule) => rule_constraints(rule),
                    None => Constraints::default(),
                }
            },
            labels: plan
                .rule
                .iter()
                .filter(|rule| !matches!(rule, Rule::Claims(_) | Rule::Attached(_)))
                .map(|_| (RULE_LABEL.to_owned(), String::new()))
                .collect(),
            rank: TaskRank::default(),
            nominated_node: None,
            refused: matches!(special_pod, Some(SpecialPod::Refused)).then(|| Refusal::VolumeClaimMissing {
                claim: "data".to_owned(),
            }),
        }
    }

    /// Makes the pods run on the first nodes where they fit: all of them, or none.
    fn run_pods(&self, pods: &mut [PodSpec]) {
        let mut trial = pods.to_vec();
        for at in 0..trial.len() {
            let found = self.nodes.values().any(|node| {
                let shared = match trial[at].requests.gpu {
                    GpuRequest::Fraction { devices, .. } | GpuRequest::Memory { devices, .. } => devices,
                    GpuRequest::None | GpuRequest::Whole { .. } | GpuRequest::Mig { .. } => 0,
                };
                // The GPU groups of a node are called by its name and a number.
                let groups = (0..5).map(|first| (first..first + shared).map(|group| format!("{}-{group}", node.name)));
                let mut groups = groups.map(Iterator::collect);
                groups.any(|groups| {
                    let pod = &mut trial[at];
                    (pod.node, pod.gpu_groups) = (Some(node.name.clone()), groups);
                    (pod.phase, pod.gated, pod.refused) = (PodPhase::Running, false, None);
                    let placed = placed_pods(self.pods.values().chain(&trial), Millis(0));
                    fits(node, &trial[at], &placed)
                })
            });
            if !found {
                return;
            }
        }
        pods.clone_from_slice(&trial);
    }
}

fn pick<K: Clone, V>(from: &BTreeMap<K, V>, at: usize) -> Option<K> {
    from.keys().nth(at.checked_rem(from.len())?).cloned()
}

fn topology() -> TopologySpec {
    let level = |label: &str| TopologyLevel {
        node_label: label.into(),
        alias: None,
    };
    TopologySpec {
        name: "racks".into(),
        levels: vec![level("rack"), level("host")],
    }
}

fn constraint(plan: &TopologyPlan) -> TopologyConstraint {
    TopologyConstraint {
        topology: "racks".into(),
        required_level: plan.required.map(label_of),
        preferred_level: plan.preferred.map(label_of),
    }
}

/// The constraints of a pod with a rule. Such pods have the label [`RULE_LABEL`].
fn rule_constraints(rule: Rule) -> Constraints {
    let mut constraints = Constraints::default();
    let others = |level: Level| PodAffinityTerm {
        selector: Some(LabelSelector {
            requirements: vec![Requirement {
                key: RULE_LABEL.to_owned(),
                operator: Operator::Exists,
                values: Vec::new(),
            }],
        }),
        namespaces: Some(vec![NS.to_owned()]),
        topology_key: label_of(level),
    };
    match rule {
        Rule::Tolerates => constraints.tolerations.push(toleration()),
        Rule::HostPort(port) => constraints.host_ports.push(HostPort {
            ip: String::new(),
            protocol: "TCP".to_owned(),
            port: 8_000 + port,
        }),
        Rule::Beside(level) => constraints.affinity.required.push(others(level)),
        Rule::Apart(level) => constraints.anti_affinity.required.push(others(level)),
        Rule::Claims(_) | Rule::Attached(_) => {}
    }
    constraints
}

pub(crate) fn has_label(key: &str, value: &str) -> NodeSelectorTerm {
    NodeSelectorTerm {
        labels: vec![Requirement {
            key: key.to_owned(),
            operator: Operator::In,
            values: vec![value.to_owned()],
        }],
        fields: Vec::new(),
    }
}

/// Disks of three nodes, a disk of a rack and one for all nodes; and a pool that has some of them, and new disks in a rack.
fn volume_pools() -> [VolumePoolSpec; 2] {
    let volume = |name: &str, nodes: Option<NodeSelectorTerm>| {
        Arc::new(FreeVolume {
            name: name.into(),
            nodes: nodes.map(|term| vec![term]),
        })
    };
    let of_host = |host: &str| volume(&format!("disk-{host}"), Some(has_label("host", host)));
    let of_rack = volume("rack", Some(has_label("rack", "r1")));
    let segment = Arc::new(StorageSegment {
        nodes: Some(vec![has_label("rack", "r0")]),
        bytes: STORAGE_BYTES,
    });
    let pool = |name: &str, volumes: &[Arc<FreeVolume>], new_volumes| VolumePoolSpec {
        name: name.to_owned(),
        volumes: volumes.to_vec(),
        new_volumes,
        storage: (name == "any").then(|| vec![Arc::clone(&segment)]),
    };
    let disks = [
        of_host("n0"),
        of_host("n1"),
        of_host("n2"),
        of_rack.clone(),
        volume("net", None),
    ];
    let any = [of_rack, of_host("n1")];
    [
        pool("disks", &disks, NewVolumes::Nowhere),
        pool("any", &any, NewVolumes::On(vec![has_label("rack", "r0")])),
    ]
}

/// The free storage for new volumes, and the size of one of them: two fit.
pub(crate) const STORAGE_BYTES: i64 = 5;
pub(crate) const NEW_BYTES: i64 = 2;

/// The driver of all volumes that are attached.
pub(crate) const DRIVER: &str = "disk.example.com";

/// How many volumes the first nodes take.
pub(crate) fn attach_limits() -> impl Iterator<Item = AttachLimits> {
    [2, 1, 3].into_iter().enumerate().map(|(at, max)| AttachLimits {
        node: format!("n{at}"),
        volumes: vec![(DRIVER.to_owned(), max)],
    })
}

fn used_volumes(plan: AttachPlan, gang: &str, index: usize) -> UsedVolumes {
    let own = |at: u8| format!("{gang}-{index}-{at}");
    let (exclusive, attached): (BTreeSet<String>, BTreeSet<String>) = match plan {
        AttachPlan::Own(count) => (BTreeSet::new(), (0..count).map(own).collect()),
        AttachPlan::Shared => (BTreeSet::new(), [gang.to_owned(), own(0)].into()),
        AttachPlan::Exclusive(claim) if index == 0 => ([format!("claim-{claim}")].into(), BTreeSet::new()),
        AttachPlan::Exclusive(_) => (BTreeSet::new(), BTreeSet::new()),
    };
    UsedVolumes {
        exclusive_claims: exclusive,
        attached: [(DRIVER.to_owned(), attached)].into(),
    }
}

/// The toleration of the taint that nodes may have.
pub(crate) fn toleration() -> Toleration {
    Toleration {
        key: Some(TAINT.to_owned()),
        value: None,
        effect: None,
    }
}

fn label_of(level: Level) -> String {
    match level {
        Level::Rack => "rack".to_owned(),
        Level::Host => "host".to_owned(),
    }
}

fn slices(small: i64, large: i64) -> Vec<(String, i64)> {
    let slices = MIG.iter().zip([small, large]).filter(|(_, count)| *count > 0);
    slices.map(|(name, count)| ((*name).to_owned(), count)).collect()
}

fn node(name: &str, plan: &NodePlan) -> NodeSpec {
    let mig = matches!(plan.kind, NodeKind::Mig(..));
    NodeSpec {
        name: name.into(),
        labels: [
            ("rack".to_owned(), format!("r{}", plan.rack)),
            ("host".to_owned(), name.to_owned()),
        ]
        .into(),
        taints: Vec::from_iter(plan.tainted.then(|| Taint {
            key: TAINT.to_owned(),
            value: String::new(),
            effect: TaintEffect::NoSchedule,
        })),
        unschedulable: plan.cordoned,
        conditions: if plan.not_ready {
            vec![NodeCondition::NotReady]
        } else {
            Vec::new()
        },
        cpu_milli: plan.cores * 1_000,
        memory_bytes: plan.memory_gib * 1_024 * MIB,
        gpus: match plan.kind {
            NodeKind::TimeSliced(units) => plan.gpus * units,
            NodeKind::Mig(..) => 0,
            NodeKind::Plain | NodeKind::Unified => plan.gpus,
        },
        pods: plan.pods,
        extended: match plan.kind {
            NodeKind::Mig(small, large) => slices(small, large),
            NodeKind::Plain | NodeKind::TimeSliced(_) | NodeKind::Unified => Vec::new(),
        },
        gpu_count_label: Some(plan.gpus),
        gpu_memory_mib: plan.memory_mib,
        gpu_memory_kind: match plan.kind {
            NodeKind::Unified => MemoryKind::Unified,
            NodeKind::Plain | NodeKind::TimeSliced(_) | NodeKind::Mig(..) => MemoryKind::Dedicated,
        },
        mig_enabled: mig,
        mig_strategy: if mig { MigStrategy::Mixed } else { MigStrategy::None },
        enforcement: plan.tier,
        fractioning: FractioningCondition::Met,
    }
}

/// Minimums and subgroups of a gang, and the subgroup of each of its pods.
fn members(plan: &GangPlan) -> (u32, Option<u32>, Vec<SubGroupSpec>, Vec<Option<String>>) {
    let (min_sub_group, branches) = match &plan.shape {
        Shape::One => return (1, None, Vec::new(), vec![None]),
        Shape::Gang { min, more } => return (*min, None, Vec::new(), vec![None; (min + more) as usize]),
        Shape::Tree {
            min_sub_group,
            branches,
        } => (*min_sub_group, branches),
    };
    let (mut sub_groups, mut members) = (Vec::new(), Vec::new());
    let mut add = |name: String, parent: Option<String>, min, min_sub_group, together: bool| {
        sub_groups.push(SubGroupSpec {
            name,
            parent,
            min_member: min,
            min_sub_group,
            topology: together.then(|| {
                constraint(&TopologyPlan {
                    required: Some(Level::Rack),
                    preferred: None,
                })
            }),
        });
    };
    for (at, branch) in branches.iter().enumerate() {
        let name = format!("s{at}");
        if let [(min, more)] = branch.leaves[..] {
            add(name.clone(), None, Some(min), None, branch.together);
            members.extend((0..min + more).map(|_| Some(name.clone())));
            continue;
        }
        add(name.clone(), None, None, branch.min_sub_group, branch.together);
        for (leaf, (min, more)) in branch.leaves.iter().enumerate() {
            let leaf = format!("{name}{leaf}");
            add(leaf.clone(), Some(name.clone()), Some(*min), None, false);
            members.extend((0..min + more).map(|_| Some(leaf.clone())));
        }
    }
    (0, min_sub_group, sub_groups, members)
}
