//! The view of a synthetic cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use kai_view::{
    Amounts, ClusterView, Gang, Gpu, GpuAmount, GpuState, GpuUser, Lender, Node, Pod, PodGpus, PodLimit, PodStatus,
    Queue, ReasonSource, Slices, SlicesKind, TextMap, Usage,
};

use super::nodes::{NodeKind, SimNode, conditions, enforcement, topology};
use super::{Ask, MILLIONTHS, QUEUES, SimGang, SimPod, Simulation, empty, time};

impl Simulation {
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

    pub(super) fn reason(&self, pod: &SimPod) -> String {
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

pub(super) fn pod_gpus(ask: Ask) -> PodGpus {
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
        past_usage: None,
        lenders: Vec::new(),
    }
}
