//! Synthetic clusters for the demo and for tests: a few nodes of every kind with a lively crowd of workloads, or a thousand nodes. The
//! same seed gives the same cluster.

mod nodes;
mod view;

use std::sync::Arc;

use kai_view::{
    Beneficiary, ClusterView, Decision, DecisionKind, Fairness, GpuAmount, Held, HeldAmount, HeldByQueue, Time, VERSION,
};

use nodes::{NodeKind, SimNode};
use view::pod_gpus;

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
    decisions: Vec<Arc<Decision>>,
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
            let (kind, name) = other
                .workload
                .split_once(' ')
                .unwrap_or(("pod group", &other.pod_group));
            format!("reclaimed for {kind} {}/{name} (1 pod in all)", other.namespace)
        });
        let fairness = beneficiary.as_ref().map(|other| Fairness::OverFairShare {
            victim: held(gang.queue, 12),
            beneficiary: held(other.queue.as_deref().unwrap_or_default(), 2),
        });
        let waited = kind != DecisionKind::Evict && self.now - gang.created > 60_000;
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
            fairness,
            waiting_since: (kind != DecisionKind::Evict).then(|| time(gang.created)),
            waiting_reason: waited.then(|| self.reason(pod)),
        };
        self.decisions.insert(0, Arc::new(decision));
        self.decisions.truncate(DECISIONS_MAX);
    }
}

/// A queue that holds so many GPUs of a fair share of 8.
fn held(queue: &str, used: i64) -> HeldByQueue {
    let gpus = |gpus: i64| GpuAmount {
        millionths: gpus * 1_000_000,
    };
    HeldByQueue {
        queue: queue.to_owned(),
        held: Held::Gpus(HeldAmount {
            used: gpus(used),
            fair_share: gpus(8),
            quota: Some(gpus(8)),
        }),
    }
}
