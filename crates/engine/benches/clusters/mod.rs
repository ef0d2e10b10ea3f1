//! The clusters of the benchmarks, built from engine events.

// Each benchmark uses some of the clusters.
#![allow(dead_code)]

pub(crate) mod hostile;
pub(crate) mod hostile_terms;

use kai_engine::Cluster;
use kai_engine::model::{
    Action, Config, Constraints, EnforcementTier, Event, FractioningCondition, GangKey, GangSpec, GpuFraction,
    GpuRequest, Gpus, Labels, MemoryKind, MigStrategy, Millis, NodeSpec, PodPhase, PodSpec, QueueSpec, Quota, Requests,
    ResourceQuota, TopologyConstraint, TopologyLevel, TopologySpec,
};

/// GPUs per node.
const GPUS: usize = 8;
/// The time of the cycle.
pub(crate) const NOW: Millis = Millis::seconds(1_000_000_000);

/// A cluster and the policy to run it with.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) cluster: Cluster,
    pub(crate) config: Config,
    /// The pods, if a test applies them again.
    pub(crate) pods: Option<Vec<PodSpec>>,
}

/// Idle nodes and nothing else.
pub(crate) fn nodes(nodes: usize) -> Case {
    idle(nodes, &[Action::Allocate], 0)
}

/// Idle nodes and as many one-GPU jobs as there are GPUs, in four queues under two parents.
pub(crate) fn fill(nodes: usize) -> Case {
    let mut case = idle(nodes, &[Action::Allocate], 0);
    for at in 0..nodes * GPUS {
        case.job(&Job {
            at,
            queue: format!("queue-{}", at % 4),
            ..Job::of(1, GpuRequest::Whole { devices: 1 })
        });
    }
    case
}

/// Like [`fill`], with gangs of `pods`. With racks, every gang must be in one rack.
pub(crate) fn gangs(nodes: usize, pods: usize, racks: usize) -> Case {
    let mut case = idle(nodes, &[Action::Allocate], racks);
    for at in 0..nodes * GPUS / pods {
        let job = Job {
            at,
            queue: format!("queue-{}", at % 4),
            in_rack: racks > 0,
            ..Job::of(pods, GpuRequest::Whole { devices: 1 })
        };
        case.job(&job);
    }
    case
}

/// Three pods with a shared GPU per GPU, by fraction and by memory.
pub(crate) fn fractions(nodes: usize) -> Case {
    let mut case = idle(nodes, &Action::ALL, 0);
    let part = |hundredths: i64| GpuRequest::Fraction {
        fraction: GpuFraction::from_hundredths(hundredths),
        devices: 1,
    };
    let memory = |mib| GpuRequest::Memory { mib, devices: 1 };
    let kinds = [part(50), part(25), memory(20_000), part(30), memory(40_960), part(10)];
    for at in 0..nodes * 24 {
        case.job(&Job {
            at,
            queue: format!("queue-{}", at % 4),
            ..Job::of(1, kinds[at % 6].clone())
        });
    }
    case
}

/// Nodes full of jobs of a queue with no quota, and as many pending jobs of a queue that owns everything.
pub(crate) fn reclaim_many(nodes: usize) -> Case {
    let mut case = full(nodes, &Action::ALL, 0, nodes * GPUS);
    for at in 0..nodes * GPUS {
        case.job(&Job {
            at,
            queue: "queue-1".to_owned(),
            ..Job::of(1, GpuRequest::Whole { devices: 1 })
        });
    }
    case
}

/// Nodes full of jobs of a queue with no quota, and one pending gang of half the nodes.
pub(crate) fn reclaim_large(nodes: usize) -> Case {
    let mut case = full(nodes, &[Action::Reclaim], 0, nodes * GPUS);
    case.job(&Job {
        at: 0,
        queue: "queue-1".to_owned(),
        ..Job::of(nodes / 2, GpuRequest::Whole { devices: GPUS as i64 })
    });
    case
}

/// Full nodes, and a pending gang of ten nodes whose queue may reclaim one GPU too few.
pub(crate) fn infeasible(nodes: usize) -> Case {
    let mut case = full(nodes, &[Action::Reclaim], nodes * GPUS - 79, 80);
    case.job(&Job {
        at: 0,
        queue: "queue-1".to_owned(),
        ..Job::of(10, GpuRequest::Whole { devices: GPUS as i64 })
    });
    case
}

/// A pending background gang of high priority and a pending gang of low priority, of a GPU each, in one queue.
pub(crate) fn background_and_other() -> Case {
    let mut case = idle(1, &[Action::Allocate], 0);
    case.job(&Job {
        priority: 100,
        background: true,
        ..Job::of(1, GpuRequest::Whole { devices: 1 })
    });
    case.job(&Job {
        at: 1,
        priority: 1,
        ..Job::of(1, GpuRequest::Whole { devices: 1 })
    });
    case
}

fn idle(nodes: usize, actions: &[Action], racks: usize) -> Case {
    let mut case = Case::new(nodes, actions, racks);
    let gpus = nodes * GPUS;
    for (at, parent) in ["dept-a", "dept-a", "dept-b", "dept-b"].into_iter().enumerate() {
        case.queue(&format!("queue-{at}"), Some(parent), Some(gpus / 4), 1);
    }
    for parent in ["dept-a", "dept-b"] {
        case.queue(parent, None, Some(gpus / 2), gpus / 2);
    }
    case
}

fn full(nodes: usize, actions: &[Action], quota: usize, other_quota: usize) -> Case {
    let mut case = Case::new(nodes, actions, 0);
    case.queue("all", None, None, 1);
    case.queue("queue-0", Some("all"), Some(quota), 0);
    case.queue("queue-1", Some("all"), Some(other_quota), 0);
    for at in 0..nodes * GPUS {
        let running_on = Some(at % nodes);
        case.job(&Job {
            at,
            queue: "queue-0".to_owned(),
            running_on,
            ..Job::of(1, GpuRequest::Whole { devices: 1 })
        });
    }
    case
}

struct Job {
    at: usize,
    namespace: &'static str,
    queue: String,
    priority: i32,
    pods: usize,
    cpu_milli: i64,
    memory_bytes: i64,
    gpu: GpuRequest,
    /// The GPU group of a running pod.
    gpu_group: Option<String>,
    in_rack: bool,
    running_on: Option<usize>,
    background: bool,
    labels: Labels,
    constraints: Constraints,
}

impl Job {
    fn of(pods: usize, gpu: GpuRequest) -> Job {
        Job {
            at: 0,
            namespace: "bench",
            queue: "queue-0".to_owned(),
            priority: 50,
            pods,
            cpu_milli: 1000,
            memory_bytes: 1_000_000_000,
            gpu,
            gpu_group: None,
            in_rack: false,
            running_on: None,
            background: false,
            labels: Labels::new(),
            constraints: Constraints::default(),
        }
    }

    fn gang(&self) -> GangSpec {
        let state = if self.running_on.is_some() {
            "running"
        } else {
            "pending"
        };
        let key = GangKey {
            namespace: self.namespace.to_owned(),
            name: format!("{state}-{:07}", self.at),
        };
        // Jobs are ordered by age, and all running jobs are older than all pending ones.
        let age = if self.running_on.is_some() { -1_000_000_000 } else { 0 };
        let topology = self.in_rack.then(|| TopologyConstraint {
            topology: "racks".to_owned(),
            required_level: Some("rack".to_owned()),
            preferred_level: None,
        });
        GangSpec {
            created: Millis(NOW.0 - 100_000_000 + age + self.at as i64),
            priority: self.priority,
            min_member: self.pods as u32,
            topology,
            ..GangSpec::new(key, &self.queue)
        }
    }

    fn pod(&self, gang: &GangSpec, index: usize) -> PodSpec {
        let name = format!("{}-{index}", gang.key.name);
        PodSpec {
            created: gang.created,
            gang: Some(gang.key.clone()),
            phase: if self.running_on.is_some() {
                PodPhase::Running
            } else {
                PodPhase::Pending
            },
            node: self.running_on.map(node_name),
            background: self.background,
            gpu_groups: self.gpu_group.iter().cloned().collect(),
            requests: Requests {
                cpu_milli: self.cpu_milli,
                memory_bytes: self.memory_bytes,
                gpu: self.gpu.clone(),
                extended: Vec::new(),
            },
            constraints: self.constraints.clone(),
            labels: self.labels.clone(),
            ..PodSpec::new(&gang.key.namespace, &name)
        }
    }
}

impl Case {
    fn new(nodes: usize, actions: &[Action], racks: usize) -> Case {
        let config = Config {
            actions: actions.to_vec(),
            consolidation_preemptees_max: None,
            ..Config::default()
        };
        let mut case = Case {
            cluster: Cluster::new(),
            config,
            pods: None,
        };
        for at in 0..nodes {
            let rack = (racks > 0).then(|| ("rack", format!("rack-{:04}", at % racks)));
            case.cluster.apply(Event::Node(node(at, rack)));
        }
        if racks > 0 {
            let level = |label: &str| TopologyLevel {
                node_label: label.to_owned(),
                alias: None,
            };
            let levels = vec![level("rack"), level("host")];
            case.cluster.apply(Event::Topology(TopologySpec {
                name: "racks".to_owned(),
                levels,
            }));
        }
        case
    }

    fn queue(&mut self, name: &str, parent: Option<&str>, gpus: Option<usize>, weight: usize) {
        self.queue_of(name, parent, gpus.map(|gpus| Gpus::whole(gpus as i64)), weight);
    }

    fn queue_of(&mut self, name: &str, parent: Option<&str>, quota: Option<Gpus>, weight: usize) {
        let gpu = ResourceQuota {
            deserved: quota.map(|quota| quota.0),
            limit: None,
            weight_millionths: weight as i64 * 1_000_000,
        };
        self.cluster.apply(Event::Queue(QueueSpec {
            name: name.to_owned(),
            display_name: String::new(),
            parent: parent.map(str::to_owned),
            created: Millis(0),
            uid: name.to_owned(),
            priority: 100,
            quota: Quota {
                gpu,
                ..Quota::UNBOUNDED
            },
            preempt_min_runtime: None,
            reclaim_min_runtime: None,
        }));
    }

    /// Adds a gang and its pods.
    fn job(&mut self, job: &Job) {
        let gang = job.gang();
        self.cluster.apply(Event::Gang(gang.clone()));
        for index in 0..job.pods {
            let pod = job.pod(&gang, index);
            if let Some(pods) = &mut self.pods {
                pods.push(pod.clone());
            }
            self.cluster.apply(Event::Pod(pod));
        }
    }
}

fn node_name(at: usize) -> String {
    format!("node-{at:06}")
}

fn node(at: usize, labels: impl IntoIterator<Item = (&'static str, String)>) -> NodeSpec {
    let mut labels: Labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    labels.insert("host".to_owned(), node_name(at));
    NodeSpec {
        name: node_name(at),
        labels,
        taints: Vec::new(),
        unschedulable: false,
        conditions: Vec::new(),
        cpu_milli: 20_000_000,
        memory_bytes: 20_000_000_000_000,
        gpus: GPUS as i64,
        pods: 110,
        extended: Vec::new(),
        gpu_count_label: Some(GPUS as i64),
        gpu_memory_mib: Some(81_900),
        gpu_memory_kind: MemoryKind::Dedicated,
        mig_enabled: false,
        mig_strategy: MigStrategy::None,
        enforcement: EnforcementTier::None,
        fractioning: FractioningCondition::Met,
    }
}
