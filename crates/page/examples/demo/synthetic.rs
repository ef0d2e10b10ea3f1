//! Synthetic clusters for the demo and for tests: a few nodes of every kind with a lively crowd of workloads, or a thousand nodes. The
//! same seed gives the same cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use kai_view::{
    Amounts, Beneficiary, ClusterView, Decision, DecisionKind, EnforcementTier, Gang, Gpu, GpuAmount, GpuState,
    GpuUser, Lender, Node, NodeCondition, NodeEnforcement, Pod, PodGpus, PodLimit, PodStatus, Queue, ReasonSource,
    Slices, SlicesKind, TextMap, Time, TopologyDomain, Usage, VERSION,
};

/// 2026-01-01T12:00:00Z.
pub(crate) const START_MS: i64 = 1_767_268_800_000;
const DECISIONS_MAX: usize = 400;
const MILLIONTHS: i64 = 1_000_000;

/// A view of a cluster with nothing in it.
pub(crate) fn empty() -> ClusterView {
    ClusterView {
        version: VERSION.to_owned(),
        time: time(START_MS),
        missing: Vec::new(),
        nodes: Some(Vec::new()),
        queues: Some(Vec::new()),
        gangs: Some(Vec::new()),
        pods: Some(Vec::new()),
        decisions: Some(Vec::new()),
        hidden: None,
    }
}

fn time(ms: i64) -> Time {
    Time::from_millis(ms / 1_000 * 1_000)
}

/// A pseudo-random sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end.max(1)
    }

    fn word(&mut self) -> String {
        (0..5)
            .map(|_| b"bcdfghjklmnpqrstvwxz2456789"[self.below(27) as usize] as char)
            .collect()
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Ask {
    Whole(i64),
    Percent(i64),
    Slices(i64),
    Replicas(i64),
}

struct SimPod {
    name: String,
    ask: Ask,
    /// Node and GPUs.
    place: Option<(usize, Vec<usize>)>,
    since: i64,
}

struct SimGang {
    namespace: &'static str,
    queue: &'static str,
    kind: &'static str,
    name: String,
    pod_group: String,
    priority: i32,
    created: i64,
    last_start: Option<i64>,
    last_eviction: Option<i64>,
    pods: Vec<SimPod>,
}

struct SimNode {
    name: String,
    model: &'static str,
    memory_mib: i64,
    /// Millionths that are used, of each GPU.
    gpus: Vec<i64>,
    kind: NodeKind,
    zone: String,
    rack: String,
}

#[derive(Clone, Copy, PartialEq)]
enum NodeKind {
    Plain,
    Mig(i64),
    TimeSliced(i64),
    Unified,
    Broken,
    Cordoned,
}

const QUEUES: [(&str, &str, &str); 6] = [
    ("vision", "research", "team-vision"),
    ("language", "research", "team-language"),
    ("robotics", "research", "team-robotics"),
    ("serving", "production", "serving"),
    ("batch", "production", "batch"),
    ("evaluation", "production", "evaluation"),
];

/// A cluster that changes.
pub(crate) struct Simulation {
    random: Random,
    now: i64,
    nodes: Vec<SimNode>,
    gangs: Vec<SimGang>,
    decisions: Vec<Decision>,
    number: u64,
    gangs_wanted: usize,
}

impl Simulation {
    /// Six nodes: one of each kind.
    pub(crate) fn small(now: i64) -> Simulation {
        let node = |name: &str, model, memory_mib, gpus, kind| SimNode {
            name: name.to_owned(),
            model,
            memory_mib,
            gpus: vec![0; gpus],
            kind,
            zone: if name.starts_with("h100") { "hall-1" } else { "hall-2" }.to_owned(),
            rack: name.to_owned(),
        };
        let nodes = vec![
            node("a100-mig-1", "NVIDIA-A100-SXM4-80GB", 81_920, 2, NodeKind::Mig(7)),
            node("h100-1", "NVIDIA-H100-80GB-HBM3", 81_559, 8, NodeKind::Plain),
            node("h100-2", "NVIDIA-H100-80GB-HBM3", 81_559, 8, NodeKind::Plain),
            node("h100-3", "NVIDIA-H100-80GB-HBM3", 81_559, 4, NodeKind::Cordoned),
            node("l40s-1", "NVIDIA-L40S", 46_068, 4, NodeKind::Broken),
            node("t4-1", "Tesla-T4-SHARED", 15_360, 2, NodeKind::TimeSliced(8)),
            node("thor-1", "NVIDIA-Thor", 125_772, 1, NodeKind::Unified),
        ];
        let mut simulation = Simulation::of(nodes, now, 22, 7);
        for _ in 0..60 {
            simulation.step(40_000);
        }
        simulation
    }

    /// This many nodes with eight GPUs each, nearly full.
    pub(crate) fn large(nodes: usize, now: i64) -> Simulation {
        let node = |at: usize| SimNode {
            name: format!("gpu-{:02}-{:02}-{:02}", at / 250, at / 25 % 10, at % 25),
            model: if at / 250 == 3 {
                "NVIDIA-A100-SXM4-80GB"
            } else {
                "NVIDIA-H100-80GB-HBM3"
            },
            memory_mib: 81_559,
            gpus: vec![0; 8],
            kind: match at % 97 {
                13 => NodeKind::Broken,
                47 => NodeKind::Cordoned,
                _ => NodeKind::Plain,
            },
            zone: format!("zone-{}", at / 250),
            rack: format!("rack-{:02}-{:02}", at / 250, at / 25 % 10),
        };
        let mut simulation = Simulation::of((0..nodes).map(node).collect(), now, nodes * 6, 11);
        for _ in 0..nodes * 6 {
            simulation.submit();
        }
        simulation.place_all();
        simulation
    }

    fn of(nodes: Vec<SimNode>, now: i64, gangs_wanted: usize, seed: u64) -> Simulation {
        Simulation {
            random: Random(seed),
            now,
            nodes,
            gangs: Vec::new(),
            decisions: Vec::new(),
            number: 0,
            gangs_wanted,
        }
    }

    /// Time passes: workloads come, start and end.
    pub(crate) fn step(&mut self, ms: i64) {
        self.now += ms;
        if self.gangs.len() < self.gangs_wanted {
            self.submit();
        }
        // A large cluster changes in several places at a time.
        for _ in 0..1 + self.gangs.len() / 500 {
            let many = self.gangs.len() as u64;
            if many > 4 && self.random.below(3) == 0 {
                let at = self.random.below(many) as usize;
                if self.gangs[at].pods.iter().all(|pod| pod.place.is_some()) {
                    let gang = self.gangs.remove(at);
                    gang.pods.iter().for_each(|pod| self.free(pod));
                }
            }
        }
        if self.random.below(7) == 0 {
            self.reclaim();
        }
        self.place_all();
    }

    fn submit(&mut self) {
        const NAMES: [(&str, &str); 8] = [
            ("Deployment", "llm"),
            ("Job", "train"),
            ("PyTorchJob", "pretrain"),
            ("Notebook", "notebook"),
            ("Job", "eval"),
            ("RayCluster", "rollout"),
            ("StatefulSet", "embed"),
            ("CronJob", "nightly"),
        ];
        let (queue, _, namespace) = QUEUES[self.random.below(6) as usize];
        let (kind, name) = NAMES[self.random.below(8) as usize];
        let only_plain = self.nodes.len() > 50;
        let (ask, pods) = match self.random.below(if only_plain { 9 } else { 12 }) {
            0..=1 => (Ask::Percent(25), 1 + self.random.below(3)),
            2..=3 => (Ask::Percent(50), 1 + self.random.below(2)),
            4..=5 => (Ask::Whole(1), 1 + self.random.below(4)),
            6 => (Ask::Whole(2), 1 + self.random.below(2)),
            7 => (Ask::Whole(4), 1),
            8 => (Ask::Whole(8), 1),
            9 => (Ask::Slices(1 + self.random.below(2) as i64), 1),
            _ => (Ask::Replicas(1 + self.random.below(3) as i64), 1),
        };
        let name = format!("{name}-{}", self.random.word());
        let pod = |at: u64| SimPod {
            name: format!("{name}-{at}"),
            ask,
            place: None,
            since: self.now,
        };
        self.gangs.push(SimGang {
            namespace,
            queue,
            kind,
            pods: (0..pods).map(pod).collect(),
            pod_group: format!("pg-{name}"),
            name,
            priority: if queue == "serving" { 125 } else { 50 },
            created: self.now,
            last_start: None,
            last_eviction: None,
        });
    }

    fn free(&mut self, pod: &SimPod) {
        let Some((node, gpus)) = &pod.place else { return };
        let part = match pod.ask {
            Ask::Percent(percent) => percent * 10_000,
            Ask::Whole(_) | Ask::Slices(_) | Ask::Replicas(_) => MILLIONTHS,
        };
        gpus.iter().for_each(|gpu| self.nodes[*node].gpus[*gpu] -= part);
    }

    fn slices_used(&self, node: usize) -> i64 {
        let pods = self.gangs.iter().flat_map(|gang| &gang.pods);
        let on_node = pods.filter(|pod| pod.place.as_ref().is_some_and(|(at, _)| *at == node));
        on_node
            .map(|pod| match pod.ask {
                Ask::Slices(count) | Ask::Replicas(count) => count,
                Ask::Whole(_) | Ask::Percent(_) => 0,
            })
            .sum()
    }

    fn find(&self, ask: Ask) -> Option<(usize, Vec<usize>)> {
        self.nodes.iter().enumerate().find_map(|(at, node)| {
            let gpus = match (ask, node.kind) {
                (Ask::Slices(count), NodeKind::Mig(all)) | (Ask::Replicas(count), NodeKind::TimeSliced(all)) => {
                    return (self.slices_used(at) + count <= all).then(|| (at, Vec::new()));
                }
                (Ask::Whole(count), NodeKind::Plain | NodeKind::Unified | NodeKind::Broken) => {
                    let usable = node.gpus.len() - usize::from(node.kind == NodeKind::Broken);
                    let free = (0..usable).filter(|gpu| node.gpus[*gpu] == 0).take(count as usize);
                    let free: Vec<usize> = free.collect();
                    (free.len() == count as usize).then_some(free)
                }
                (Ask::Percent(percent), NodeKind::Plain | NodeKind::Unified) => {
                    let room = MILLIONTHS - percent * 10_000;
                    let shared = node.gpus.iter().position(|used| (1..=room).contains(used));
                    shared
                        .or_else(|| node.gpus.iter().position(|used| *used == 0))
                        .map(|gpu| vec![gpu])
                }
                _ => None,
            };
            Some((at, gpus?))
        })
    }

    fn place_all(&mut self) {
        // What did not fit once does not fit later in the same round.
        let mut too_large: Vec<Ask> = Vec::new();
        for at in 0..self.gangs.len() {
            for pod in 0..self.gangs[at].pods.len() {
                if self.gangs[at].pods[pod].place.is_some() {
                    continue;
                }
                let ask = self.gangs[at].pods[pod].ask;
                if too_large.contains(&ask) {
                    continue;
                }
                let Some((node, gpus)) = self.find(ask) else {
                    too_large.push(ask);
                    continue;
                };
                let part = match self.gangs[at].pods[pod].ask {
                    Ask::Percent(percent) => percent * 10_000,
                    Ask::Whole(_) | Ask::Slices(_) | Ask::Replicas(_) => MILLIONTHS,
                };
                gpus.iter().for_each(|gpu| self.nodes[node].gpus[*gpu] += part);
                let gang = &mut self.gangs[at];
                gang.pods[pod].place = Some((node, gpus));
                gang.pods[pod].since = self.now;
                gang.last_start = Some(self.now);
                self.decide(DecisionKind::Bind, "allocate", at, pod, None);
            }
        }
    }

    /// Evicts a workload of the queue that has the most for one that waits.
    fn reclaim(&mut self) {
        let wants = self.gangs.iter().position(|gang| {
            gang.pods
                .iter()
                .any(|pod| pod.place.is_none() && matches!(pod.ask, Ask::Whole(_)))
        });
        let Some(wants) = wants else { return };
        let victim = self.gangs.iter().position(|gang| {
            let holds = gang
                .pods
                .iter()
                .any(|pod| pod.place.is_some() && matches!(pod.ask, Ask::Whole(_)));
            gang.queue != self.gangs[wants].queue && holds
        });
        let Some(victim) = victim else { return };
        let gang = &self.gangs[wants];
        let beneficiary = Beneficiary {
            namespace: gang.namespace.to_owned(),
            pod_group: gang.pod_group.clone(),
            workload: format!("{} {}", gang.kind, gang.name),
            queue: Some(gang.queue.to_owned()),
        };
        for pod in 0..self.gangs[victim].pods.len() {
            if self.gangs[victim].pods[pod].place.is_none() {
                continue;
            }
            self.decide(DecisionKind::Evict, "reclaim", victim, pod, Some(beneficiary.clone()));
            let taken = SimPod {
                name: String::new(),
                ask: self.gangs[victim].pods[pod].ask,
                place: self.gangs[victim].pods[pod].place.take(),
                since: 0,
            };
            self.free(&taken);
            self.gangs[victim].pods[pod].since = self.now;
        }
        self.gangs[victim].last_eviction = Some(self.now);
        // The beneficiary is tried first.
        let gang = self.gangs.remove(wants);
        self.gangs.insert(0, gang);
    }

    fn decide(&mut self, kind: DecisionKind, action: &str, gang: usize, pod: usize, beneficiary: Option<Beneficiary>) {
        self.number += 1;
        let gang = &self.gangs[gang];
        let pod = &gang.pods[pod];
        let reason = beneficiary.as_ref().map(|other| {
            format!(
                "queue {} holds 12 GPUs of a fair share of 8; queue {} holds 2 of 8",
                gang.queue,
                other.queue.as_deref().unwrap_or_default()
            )
        });
        let decision = Decision {
            number: self.number,
            time: time(self.now),
            kind,
            action: Some(action.to_owned()),
            namespace: gang.namespace.to_owned(),
            pod: pod.name.clone(),
            pod_group: Some(gang.pod_group.clone()),
            workload: format!("{} {}", gang.kind, gang.name),
            queue: Some(gang.queue.to_owned()),
            node: pod.place.as_ref().map(|(node, _)| self.nodes[*node].name.clone()),
            gpus: Some(pod_gpus(pod.ask)),
            beneficiary,
            reason,
        };
        self.decisions.insert(0, decision);
        self.decisions.truncate(DECISIONS_MAX);
    }

    /// The cluster at present.
    pub(crate) fn view(&self) -> ClusterView {
        let mut pods: Vec<Pod> = self
            .gangs
            .iter()
            .flat_map(|gang| gang.pods.iter().map(|pod| self.pod(gang, pod)))
            .collect();
        pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        let mut positions = BTreeMap::new();
        let mut gangs: Vec<Gang> = self.gangs.iter().map(|gang| self.gang(gang, &mut positions)).collect();
        gangs.sort_by(|a, b| (&a.namespace, &a.pod_group).cmp(&(&b.namespace, &b.pod_group)));
        ClusterView {
            time: time(self.now),
            nodes: Some(self.nodes()),
            queues: Some(self.queues(&gangs)),
            gangs: Some(gangs),
            pods: Some(pods),
            decisions: Some(self.decisions.clone()),
            ..empty()
        }
    }

    fn reason(&self, pod: &SimPod) -> String {
        let needs = match pod.ask {
            Ask::Whole(_) => "GPUs",
            Ask::Percent(_) => "GPU memory",
            Ask::Slices(_) => "nvidia.com/mig-1g.10gb",
            Ask::Replicas(_) => "nvidia.com/gpu.shared",
        };
        format!(
            "no nodes with enough resources were found: {} node(s) didn't have enough resources: {needs}, 1 node is unschedulable",
            self.nodes.len() - 1
        )
    }

    fn pod(&self, gang: &SimGang, pod: &SimPod) -> Pod {
        let starting = pod.place.is_some() && self.now - pod.since < 4_000;
        let waits = pod.place.is_none();
        Pod {
            namespace: gang.namespace.into(),
            name: pod.name.as_str().into(),
            uid: format!("uid-{}", pod.name).into(),
            pod_group: Some(gang.pod_group.as_str().into()),
            status: if waits {
                PodStatus::Pending
            } else if starting {
                PodStatus::Bound
            } else {
                PodStatus::Running
            },
            node: pod
                .place
                .as_ref()
                .map(|(node, _)| self.nodes[*node].name.as_str().into()),
            gpus: pod_gpus(pod.ask),
            gpu_limit: match pod.ask {
                Ask::Percent(percent) => Some(self.limit(pod, percent)),
                Ask::Whole(_) | Ask::Slices(_) | Ask::Replicas(_) => None,
            },
            gpu_groups: match (&pod.ask, &pod.place) {
                (Ask::Percent(_), Some((node, gpus))) => vec![group(*node, gpus[0]).into()],
                _ => Vec::new(),
            },
            created: time(gang.created),
            since: Some(time(pod.since)),
            reason: waits.then(|| self.reason(pod).into()),
            reason_source: waits.then_some(ReasonSource::Engine),
        }
    }

    /// The limit of a pod with a part of a GPU: its share, or nothing yet.
    fn limit(&self, pod: &SimPod, percent: i64) -> PodLimit {
        let node = pod.place.as_ref().map(|(node, _)| &self.nodes[*node]);
        PodLimit {
            required: false,
            tier: node.and_then(|node| enforcement(node.kind).tier),
            memory_mib: node.map(|node| (node.memory_mib * percent / 100).unsigned_abs()),
        }
    }

    fn gang(&self, gang: &SimGang, positions: &mut BTreeMap<&'static str, u32>) -> Gang {
        let count = gang.pods.len() as u32;
        let waiting = gang.pods.iter().filter(|pod| pod.place.is_none()).count() as u32;
        let starting = gang
            .pods
            .iter()
            .filter(|pod| pod.place.is_some() && self.now - pod.since < 4_000)
            .count() as u32;
        let position = (waiting > 0).then(|| {
            let position = positions.entry(gang.queue).or_default();
            *position += 1;
            *position
        });
        let first = gang.pods.iter().find(|pod| pod.place.is_none());
        Gang {
            namespace: gang.namespace.into(),
            pod_group: gang.pod_group.as_str().into(),
            workload_kind: gang.kind.into(),
            workload_name: gang.name.as_str().into(),
            queue: gang.queue.into(),
            priority: gang.priority,
            preemptible: gang.priority < 100,
            preemptibility: None,
            min: count,
            pods: count,
            running: count - waiting - starting,
            starting,
            waiting,
            releasing: 0,
            needed: waiting,
            position,
            created: time(gang.created),
            waiting_since: first.map(|pod| time(pod.since)),
            last_start: gang.last_start.map(time),
            last_eviction: gang.last_eviction.map(time),
            stale_since: None,
            reason: first.map(|pod| match gang.pods.len() {
                1 => self.reason(pod).into(),
                all => format!(
                    "only {} of {all} pods of the gang fit: {}",
                    all as u32 - waiting,
                    self.reason(pod)
                )
                .into(),
            }),
            reason_source: first.map(|_| ReasonSource::Engine),
        }
    }

    fn nodes(&self) -> Vec<Node> {
        let mut users: Vec<Vec<(&SimGang, &SimPod)>> = self.nodes.iter().map(|_| Vec::new()).collect();
        for gang in &self.gangs {
            for pod in &gang.pods {
                if let Some((node, _)) = pod.place {
                    users[node].push((gang, pod));
                }
            }
        }
        self.nodes
            .iter()
            .enumerate()
            .map(|(at, node)| self.node(at, node, &users[at]))
            .collect()
    }

    fn node(&self, at: usize, node: &SimNode, users: &[(&SimGang, &SimPod)]) -> Node {
        let user = |gang: &SimGang, pod: &SimPod, mib, slices| GpuUser {
            namespace: gang.namespace.into(),
            name: pod.name.as_str().into(),
            status: if self.now - pod.since < 4_000 {
                PodStatus::Bound
            } else {
                PodStatus::Running
            },
            foreign: false,
            mib,
            limit_mib: match pod.ask {
                Ask::Percent(percent) => self.limit(pod, percent).memory_mib,
                Ask::Whole(_) | Ask::Slices(_) | Ask::Replicas(_) => None,
            },
            slices,
        };
        let mut gpus: Vec<Gpu> = Vec::new();
        for gpu in 0..node.gpus.len() {
            let on_gpu = users
                .iter()
                .filter(|(_, pod)| pod.place.as_ref().is_some_and(|(_, gpus)| gpus.contains(&gpu)));
            let mut pods = Vec::new();
            let mut state = GpuState::Idle;
            for (gang, pod) in on_gpu {
                let (next, mib) = match pod.ask {
                    Ask::Percent(percent) => (GpuState::Shared, node.memory_mib * percent / 100),
                    Ask::Whole(_) | Ask::Slices(_) | Ask::Replicas(_) => (GpuState::Whole, node.memory_mib),
                };
                state = next;
                pods.push(user(gang, pod, Some(mib), 0));
            }
            let last = gpu + 1 == node.gpus.len();
            state = match node.kind {
                NodeKind::Broken if last => GpuState::Unhealthy,
                NodeKind::TimeSliced(_) => GpuState::TimeSliced,
                _ => state,
            };
            gpus.push(Gpu {
                state,
                uuid: (state == GpuState::Shared)
                    .then(|| format!("GPU-{:08x}-{at:04x}", at * 8 + gpu + 0x5a17_0000).into()),
                gpu_group: (state == GpuState::Shared).then(|| group(at, gpu).into()),
                used_mib: Some(pods.iter().filter_map(|pod| pod.mib).sum()),
                pods,
            });
        }
        let slices = match node.kind {
            NodeKind::Mig(all) => Some(("nvidia.com/mig-1g.10gb", SlicesKind::Mig, all)),
            NodeKind::TimeSliced(all) => Some(("nvidia.com/gpu", SlicesKind::Replica, all)),
            _ => None,
        };
        let slices = slices.map(|(resource, kind, allocatable)| Slices {
            resource: resource.into(),
            kind,
            allocatable,
            used: Some(self.slices_used(at)),
            pods: users
                .iter()
                .filter_map(|(gang, pod)| match pod.ask {
                    Ask::Slices(count) | Ask::Replicas(count) => Some(user(gang, pod, None, count)),
                    Ask::Whole(_) | Ask::Percent(_) => None,
                })
                .collect(),
        });
        let gpus = if matches!(node.kind, NodeKind::Mig(_)) {
            Vec::new()
        } else {
            gpus
        };
        let broken = i64::from(node.kind == NodeKind::Broken);
        Node {
            name: node.name.as_str().into(),
            ready: true,
            cordoned: node.kind == NodeKind::Cordoned,
            gpu_model: Some(node.model.into()),
            gpu_memory_mib: Some(node.memory_mib),
            unified_memory: node.kind == NodeKind::Unified,
            mig_strategy: matches!(node.kind, NodeKind::Mig(_)).then(|| "mixed".into()),
            gpus_allocatable: gpus.len() as i64 - broken,
            gpus_unhealthy: Some(broken),
            gpus,
            slices: slices.into_iter().collect(),
            cpu_milli: Usage {
                allocatable: 128_000,
                used: Some(8_000 * users.len() as i64),
            },
            memory_bytes: Usage {
                allocatable: 1_024 << 30,
                used: Some((64 << 30) * users.len() as i64),
            },
            pool: Some(
                if node.kind == NodeKind::Unified {
                    "edge"
                } else {
                    "datacenter"
                }
                .into(),
            ),
            topology: topology(node),
            driver: match node.kind {
                NodeKind::Plain => Some("615.71.09".into()),
                NodeKind::Cordoned => None,
                NodeKind::Mig(_) | NodeKind::TimeSliced(_) | NodeKind::Unified | NodeKind::Broken => {
                    Some("570.133.20".into())
                }
            },
            gpu_enforcement: enforcement(node.kind),
            labels: Arc::new(TextMap::from_entries(vec![
                ("kai.scheduler/node-pool".into(), "datacenter".into()),
                ("nvidia.com/gpu.memory".into(), node.memory_mib.to_string().into()),
                ("nvidia.com/gpu.product".into(), node.model.into()),
            ])),
            conditions: conditions(node.kind).into(),
        }
    }

    fn queues(&self, gangs: &[Gang]) -> Vec<Queue> {
        let total: i64 = self.nodes.iter().map(|node| node.gpus.len() as i64).sum::<i64>() * MILLIONTHS;
        let mut queues = Vec::new();
        for parent in ["production", "research"] {
            let mut children: Vec<Queue> = Vec::new();
            for (name, _, _) in QUEUES.iter().filter(|(_, of, _)| *of == parent) {
                children.push(self.queue(name, parent, total / 6, gangs));
            }
            children.sort_by(|a, b| a.name.cmp(&b.name));
            let lends: Vec<(String, i64)> = children
                .iter()
                .map(|queue| {
                    (
                        queue.name.clone(),
                        millionths(queue.gpus.quota) - millionths(queue.gpus.used),
                    )
                })
                .filter(|(_, free)| *free > 0)
                .collect();
            let spare: i64 = lends.iter().map(|(_, free)| free).sum();
            for queue in &mut children {
                let borrowed = millionths(queue.gpus.borrowed).min(spare);
                if borrowed > 0 {
                    let lender = |(queue, free): &(String, i64)| Lender {
                        queue: queue.clone(),
                        gpus: gpus(borrowed * free / spare),
                    };
                    queue.lenders = lends.iter().map(lender).collect();
                }
            }
            let sum = |of: fn(&Amounts<GpuAmount>) -> Option<GpuAmount>| {
                Some(gpus(children.iter().map(|queue| millionths(of(&queue.gpus))).sum()))
            };
            let used = millionths(sum(|amounts| amounts.used));
            let quota = total / 2;
            let amounts = Amounts {
                quota: Some(gpus(quota)),
                limit: None,
                fair_share: Some(gpus(quota)),
                used: Some(gpus(used)),
                requested: sum(|amounts| amounts.requested),
                non_preemptible: sum(|amounts| amounts.non_preemptible),
                borrowed: Some(gpus((used - quota).max(0))),
                reclaimable: Some(gpus((used - quota).max(0))),
            };
            queues.push(queue_of(parent, None, amounts, (0, 0)));
            queues.append(&mut children);
        }
        queues
    }

    fn queue(&self, name: &str, parent: &str, quota: i64, gangs: &[Gang]) -> Queue {
        let (mut used, mut asked) = (0, 0);
        for gang in self.gangs.iter().filter(|gang| gang.queue == name) {
            for pod in &gang.pods {
                let amount = match pod.ask {
                    Ask::Whole(count) => count * MILLIONTHS,
                    Ask::Percent(percent) => percent * 10_000,
                    Ask::Slices(count) | Ask::Replicas(count) => count * MILLIONTHS / 7,
                };
                asked += amount;
                used += if pod.place.is_some() { amount } else { 0 };
            }
        }
        let borrowed = (used - quota).max(0);
        let amounts = Amounts {
            quota: Some(gpus(quota)),
            limit: (name == "batch").then(|| gpus(quota * 2)),
            fair_share: Some(gpus(asked.min(quota + quota / 3))),
            used: Some(gpus(used)),
            requested: Some(gpus(asked)),
            non_preemptible: Some(gpus(0)),
            borrowed: Some(gpus(borrowed)),
            reclaimable: Some(gpus(borrowed)),
        };
        let of_queue = || gangs.iter().filter(|gang| gang.queue == name);
        let waiting = of_queue().filter(|gang| gang.waiting > 0).count() as u32;
        let running = of_queue().filter(|gang| gang.running + gang.starting > 0).count() as u32;
        queue_of(name, Some(parent), amounts, (waiting, running))
    }
}

fn pod_gpus(ask: Ask) -> PodGpus {
    match ask {
        Ask::Whole(devices) | Ask::Replicas(devices) => PodGpus::Whole { devices },
        Ask::Percent(percent) => PodGpus::Share {
            devices: 1,
            percent: Some(percent),
            mib: None,
        },
        Ask::Slices(count) => PodGpus::Mig {
            slices: vec![("nvidia.com/mig-1g.10gb".into(), count)],
        },
    }
}

fn group(node: usize, gpu: usize) -> String {
    format!("group-{node}-{gpu}")
}

fn topology(node: &SimNode) -> Vec<TopologyDomain> {
    let domain = |level: &str, value: &str| TopologyDomain {
        topology: "datacenter".into(),
        level: level.into(),
        value: value.into(),
    };
    vec![
        domain("topology.kubernetes.io/zone", &node.zone),
        domain("example.com/rack", &node.rack),
    ]
}

/// What the driver of such a node can do. The agent of the cordoned node has not come yet.
fn enforcement(kind: NodeKind) -> NodeEnforcement {
    let (tier, message) = match kind {
        NodeKind::Plain => (
            EnforcementTier::Driver,
            "the driver limits the GPU memory of each container",
        ),
        NodeKind::Mig(_) => (
            EnforcementTier::None,
            "MIG slices need no limit: the hardware divides the memory",
        ),
        NodeKind::TimeSliced(_) | NodeKind::Broken => (
            EnforcementTier::Watch,
            "the driver is 570.133.20, and limits of GPU memory need 615; containers above their share are reported",
        ),
        NodeKind::Unified => (
            EnforcementTier::Watch,
            "GPU memory is system memory, which the driver does not limit; containers above their share are reported",
        ),
        NodeKind::Cordoned => return NodeEnforcement::default(),
    };
    NodeEnforcement {
        tier: Some(tier),
        message: Some(message.into()),
    }
}

fn conditions(kind: NodeKind) -> Vec<NodeCondition> {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| NodeCondition {
        kind: kind.into(),
        status: status.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
    };
    let gpus = match kind {
        NodeKind::Broken => condition(
            "GPUsHealthy",
            "False",
            "GPUUnhealthy",
            "GPU 3: XID 79, the GPU has fallen off the bus; restart the node",
        ),
        _ => condition("GPUsHealthy", "True", "AllHealthy", "all GPUs are healthy"),
    };
    let limits = match enforcement(kind) {
        NodeEnforcement {
            tier: Some(tier),
            message,
        } => {
            let holds = tier == EnforcementTier::Driver;
            let (status, reason) = if holds {
                ("True", "Enforced")
            } else {
                ("False", "NotEnforced")
            };
            Some(condition(
                "GPULimits",
                status,
                reason,
                message.as_deref().unwrap_or_default(),
            ))
        }
        NodeEnforcement { tier: None, .. } => None,
    };
    let mut conditions = vec![
        gpus,
        condition("GPUSetupHealthy", "True", "NoProblems", "no problems were found"),
        condition(
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        ),
        condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ];
    conditions.extend(limits);
    conditions.sort_by(|a, b| a.kind.cmp(&b.kind));
    conditions
}

fn gpus(millionths: i64) -> GpuAmount {
    GpuAmount { millionths }
}

fn millionths(amount: Option<GpuAmount>) -> i64 {
    amount.map_or(0, |amount| amount.millionths)
}

fn queue_of(name: &str, parent: Option<&str>, amounts: Amounts<GpuAmount>, (waiting, running): (u32, u32)) -> Queue {
    let other = |used: i64| Amounts {
        quota: None,
        limit: None,
        fair_share: Some(used),
        used: Some(used),
        requested: Some(used),
        non_preemptible: Some(0),
        borrowed: Some(0),
        reclaimable: Some(0),
    };
    let used = millionths(amounts.used) / MILLIONTHS;
    Queue {
        name: name.to_owned(),
        display_name: name.to_owned(),
        parent: parent.map(str::to_owned),
        depth: u32::from(parent.is_some()),
        priority: 100,
        over_quota: Some(millionths(amounts.borrowed) > 0),
        gpus: amounts,
        cpu_milli: other(used * 8_000),
        memory_bytes: other(used * (64 << 30)),
        gangs_waiting: Some(waiting),
        gangs_running: Some(running),
        lenders: Vec::new(),
    }
}
