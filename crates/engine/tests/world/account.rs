//! The resources that pods take of nodes and queues, summed from the objects alone.

use std::collections::{BTreeMap, BTreeSet};

use super::super::kai_engine::model::{
    ComputeMode, Enforcement, EnforcementTier, GangKey, GangSpec, GpuRequest, Gpus, MemoryKind, Millis, NodeSpec,
    PodKind, PodPhase, PodSpec, Preemptibility, QueueResources, QueueSpec, ShareTerms,
};
use super::super::kai_engine::reasons::Resource;
use super::super::kai_engine::report::{Decision, Report, Status};
use super::{MIB, World, attach_limits};

/// A pod with a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlacedPod {
    pub(crate) pod: PodSpec,
    pub(crate) node: String,
    pub(crate) gpu_groups: Vec<String>,
    pub(crate) state: PodState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodState {
    Active,
    /// Is being deleted.
    Releasing,
    /// Should have terminated long ago.
    Stuck,
    Pipelined,
}

pub(crate) type PlacedPods = Vec<PlacedPod>;

/// The pods that have a node or a binding in flight.
pub(crate) fn placed_pods<'a>(pods: impl Iterator<Item = &'a PodSpec>, stuck_before: Millis) -> PlacedPods {
    let placed_pod = |pod: &PodSpec| {
        let (node, groups) = match (&pod.node, &pod.bind_in_flight) {
            (Some(node), _) => (node, &pod.gpu_groups),
            (None, Some(bind)) => (&bind.node, &bind.gpu_groups),
            (None, None) => return None,
        };
        let alive = matches!(pod.phase, PodPhase::Pending | PodPhase::Running);
        alive.then(|| PlacedPod {
            pod: pod.clone(),
            node: node.clone(),
            gpu_groups: groups.clone(),
            state: match pod.deletion {
                None => PodState::Active,
                Some(deletion) if deletion < stuck_before => PodState::Stuck,
                Some(_) => PodState::Releasing,
            },
        })
    };
    pods.filter_map(placed_pod).collect()
}

/// The placed pods after the decisions of a report. Pipelined pods are read from the views, because a cycle may pipeline a pod and revert
/// that again.
pub(crate) fn after_decisions(world: &World, before: &PlacedPods, report: &Report) -> PlacedPods {
    let mut pods = before.clone();
    for decision in &report.decisions {
        match decision {
            // A repeated decision adds nothing.
            Decision::Bind(placed)
                if pods
                    .iter()
                    .any(|placed_pod| *placed_pod.pod.uid == *placed.pod && *placed_pod.node == *placed.node) => {}
            Decision::Bind(placed) => pods.push(PlacedPod {
                pod: world.pods[&*placed.pod].clone(),
                node: placed.node.to_string(),
                gpu_groups: placed.gpu_groups.clone(),
                state: PodState::Active,
            }),
            Decision::Evict { pod, .. } => {
                let placed_pod = pods
                    .iter_mut()
                    .find(|placed_pod| *placed_pod.pod.uid == **pod && placed_pod.state == PodState::Active);
                placed_pod.expect("only an active pod can be evicted").state = PodState::Releasing;
            }
            Decision::Pipeline(_)
            | Decision::Started(_)
            | Decision::Evicted(_)
            | Decision::Stale { .. }
            | Decision::Recovered(_) => {}
        }
    }
    let views = world.cluster.pods().into_iter();
    pods.extend(
        views
            .filter(|view| view.status == Status::Pipelined)
            .map(|view| PlacedPod {
                pod: world.pods[view.uid].clone(),
                node: view.node.expect("a pipelined pod has a node").to_owned(),
                gpu_groups: view.gpu_groups,
                state: PodState::Pipelined,
            }),
    );
    pods
}

/// Load and capacity, by a name for people.
pub(crate) type Loads = BTreeMap<String, (i64, Option<i64>)>;

/// Volumes on each node and its limit, and pods by claim that one pod alone can use.
pub(crate) fn volume_loads(placed: &[&PlacedPod]) -> Loads {
    let limits: BTreeMap<String, i64> = attach_limits()
        .map(|limits| (limits.node, i64::from(limits.volumes[0].1)))
        .collect();
    let mut volumes: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut loads = Loads::new();
    for placed_pod in placed {
        let used = &placed_pod.pod.volumes;
        let attached = used.attached.values().flatten().map(String::as_str);
        volumes.entry(&placed_pod.node).or_default().extend(attached);
        for claim in &used.exclusive_claims {
            loads.entry(claim.clone()).or_insert((0, Some(1))).0 += 1;
        }
    }
    let of_nodes = volumes.into_iter().filter_map(|(node, volumes)| {
        let limit = limits.get(node)?;
        Some((format!("{node} volumes"), (volumes.len() as i64, Some(*limit))))
    });
    loads.extend(of_nodes);
    loads
}

/// Load and capacity of each resource of each node.
pub(crate) fn node_loads<'a>(nodes: impl Iterator<Item = &'a NodeSpec>, placed: &[&PlacedPod]) -> Loads {
    let mut loads = Loads::new();
    for node in nodes {
        let mut take = |what: &str, capacity: i64, amount: i64| {
            let load = loads
                .entry(format!("{} {what}", node.name))
                .or_insert((0, Some(capacity)));
            load.0 += amount;
        };
        // On a time-sliced node a shared GPU takes all units of a physical GPU.
        let device_units = node
            .gpu_count_label
            .filter(|count| *count > 0)
            .map_or(1, |count| node.gpus / count)
            .max(1);
        let device_mib = node.gpu_memory_mib.unwrap_or(100);
        let mut shared: Vec<&String> = Vec::new();
        for placed_pod in placed.iter().filter(|placed_pod| placed_pod.node == node.name) {
            let requests = &placed_pod.pod.requests;
            take("cpu", node.cpu_milli, requests.cpu_milli);
            take("memory", node.memory_bytes, requests.memory_bytes);
            take("pods", node.pods, 1);
            match &requests.gpu {
                GpuRequest::None => {}
                GpuRequest::Whole { devices } => take("devices", node.gpus, *devices),
                GpuRequest::Mig { slices, .. } => {
                    for (name, count) in slices {
                        let capacity = node.extended.iter().find(|(slice, _)| slice == name);
                        take(name, capacity.map_or(0, |(_, capacity)| *capacity), *count);
                    }
                }
                GpuRequest::Fraction { .. } | GpuRequest::Memory { .. } => {
                    let mib = shared_mib(&requests.gpu, device_mib);
                    for group in &placed_pod.gpu_groups {
                        take(&format!("MiB of {group}"), device_mib, mib);
                        if !shared.contains(&group) {
                            take("devices", node.gpus, device_units);
                            shared.push(group);
                        }
                    }
                    if node.gpu_memory_kind == MemoryKind::Unified && node.gpu_memory_mib.is_some() {
                        take(
                            "memory",
                            node.memory_bytes,
                            mib * placed_pod.gpu_groups.len() as i64 * MIB,
                        );
                    }
                }
            }
        }
    }
    loads
}

fn shared_mib(request: &GpuRequest, device_mib: i64) -> i64 {
    match request {
        GpuRequest::Fraction { fraction, .. } => fraction.billionths() * device_mib / 1_000_000_000,
        GpuRequest::Memory { mib, .. } => *mib,
        GpuRequest::None | GpuRequest::Whole { .. } | GpuRequest::Mig { .. } => 0,
    }
}

/// Whether the placed pods fit on the node, and the pod may run there.
pub(crate) fn fits(node: &NodeSpec, pod: &PodSpec, placed: &PlacedPods) -> bool {
    let selected = pod
        .constraints
        .node_selector
        .iter()
        .all(|(key, value)| node.labels.get(key) == Some(value));
    let known = node.gpu_memory_mib.is_some() || !matches!(pod.requests.gpu, GpuRequest::Memory { .. });
    let placed: Vec<&PlacedPod> = placed.iter().collect();
    let loads = node_loads(std::iter::once(node), &placed);
    selected
        && known
        && offers(node, pod)
        && mixed_group(&placed).is_none()
        && loads
            .values()
            .all(|(load, capacity)| capacity.is_none_or(|capacity| *load <= capacity))
}

/// Whether the node offers what the pod's GPU request and the terms of its share require.
pub(crate) fn offers(node: &NodeSpec, pod: &PodSpec) -> bool {
    let ShareTerms {
        compute_mode,
        enforcement,
    } = pod.constraints.share;
    let has_server = node.enforcement == EnforcementTier::Mps;
    let has_mode = has_server == (compute_mode == ComputeMode::SmSharing);
    let has_limits = enforcement == Enforcement::Preferred || node.enforcement == EnforcementTier::Driver;
    match pod.requests.gpu {
        GpuRequest::Fraction { .. } | GpuRequest::Memory { .. } => has_mode && has_limits,
        // The server is the one process on its GPUs.
        GpuRequest::Whole { .. } => !has_server,
        GpuRequest::None | GpuRequest::Mig { .. } => true,
    }
}

/// A GPU group whose pods have different compute modes.
pub(crate) fn mixed_group(placed: &[&PlacedPod]) -> Option<String> {
    let mut modes: BTreeMap<(&str, &str), ComputeMode> = BTreeMap::new();
    placed.iter().find_map(|placed_pod| {
        let mode = placed_pod.pod.constraints.share.compute_mode;
        placed_pod.gpu_groups.iter().find_map(|group| {
            let known = modes.entry((&placed_pod.node, group)).or_insert(mode);
            (*known != mode).then(|| group.clone())
        })
    })
}

/// What queues are charged for the placed pods, with their limits as capacities; or for non-preemptible gangs and the cores of
/// semi-preemptible ones only, with their quotas.
pub(crate) fn queue_loads(world: &World, placed: &[&PlacedPod], bound: QueueBoundKind) -> Loads {
    let mut loads = Loads::new();
    let cores: BTreeMap<&GangKey, BTreeSet<&str>> = world
        .gangs
        .values()
        .filter(|gang| gang.preemptibility == Preemptibility::SemiPreemptible)
        .map(|gang| (&gang.key, core_of(world, gang, placed)))
        .collect();
    for placed_pod in placed {
        let Some(gang) = gang_of(world, &placed_pod.pod) else {
            continue;
        };
        let is_charged = match (bound, gang.preemptibility) {
            (QueueBoundKind::Limit, _) | (QueueBoundKind::Quota, Preemptibility::NonPreemptible) => true,
            (QueueBoundKind::Quota, Preemptibility::Preemptible) => false,
            (QueueBoundKind::Quota, Preemptibility::SemiPreemptible) => {
                cores[&gang.key].contains(placed_pod.pod.uid.as_str())
            }
        };
        if !is_charged {
            continue;
        }
        let Some(node) = world.nodes.get(&placed_pod.node) else {
            continue;
        };
        let charge = charge(&placed_pod.pod, node);
        for queue in queue_path(world, &gang.queue) {
            for resource in Resource::ALL {
                let quota = queue.quota[resource];
                let capacity = match bound {
                    QueueBoundKind::Limit => quota.limit,
                    QueueBoundKind::Quota => quota.deserved,
                };
                let what = format!("{} {}", queue.name, resource.name());
                loads.entry(what).or_insert((0, capacity)).0 += charge[resource];
            }
        }
    }
    loads
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueBoundKind {
    Limit,
    Quota,
}

/// The gang of a workload pod.
pub(crate) fn gang_of<'w>(world: &'w World, pod: &PodSpec) -> Option<&'w GangSpec> {
    let key: Option<&GangKey> = pod.gang.as_ref().filter(|_| pod.kind == PodKind::Workload);
    world.gangs.get(key?)
}

/// A queue and its ancestors.
pub(crate) fn queue_path<'w>(world: &'w World, leaf: &str) -> impl Iterator<Item = &'w QueueSpec> {
    std::iter::successors(world.queues.get(leaf), |queue| {
        queue.parent.as_ref().and_then(|parent| world.queues.get(parent))
    })
}

fn charge(pod: &PodSpec, node: &NodeSpec) -> QueueResources {
    let hundredths = match &pod.requests.gpu {
        GpuRequest::None => 0,
        GpuRequest::Whole { devices } => devices * 100,
        GpuRequest::Fraction { fraction, devices } => (fraction.billionths() + 5_000_000) / 10_000_000 * devices,
        GpuRequest::Memory { mib, devices } => {
            let device = node.gpu_memory_mib.unwrap_or(100);
            (mib * 100 + device - 1) / device * devices
        }
        GpuRequest::Mig { slices, .. } => {
            let compute = |name: &str| if name.contains("3g") { 300 } else { 100 };
            slices.iter().map(|(name, count)| compute(name) * count).sum()
        }
    };
    QueueResources {
        cpu_milli: pod.requests.cpu_milli,
        memory_bytes: pod.requests.memory_bytes,
        gpus: Gpus(hundredths * 10_000),
    }
}

/// The first load above its capacity that has also grown.
pub(crate) fn overloaded(before: &Loads, after: &Loads) -> Option<String> {
    after.iter().find_map(|(what, (load, capacity))| {
        let capacity = (*capacity)?;
        let old = before.get(what).map_or(0, |(load, _)| *load);
        (*load > capacity && *load > old).then(|| format!("{what}: {load} of {capacity}, {old} before"))
    })
}

/// The pods of the core of a gang, by uid.
pub(crate) fn core_of<'p>(world: &World, gang: &GangSpec, placed: &[&'p PlacedPod]) -> BTreeSet<&'p str> {
    let mut pods: Vec<&PodSpec> = placed
        .iter()
        .map(|placed_pod| &placed_pod.pod)
        .filter(|pod| gang_of(world, pod).is_some_and(|of| of.key == gang.key))
        .collect();
    pods.sort_by_key(|pod| (pod.created, &pod.uid));
    let core = if gang.sub_groups.is_empty() {
        leaf_core(&pods, None, gang.min_member).1
    } else {
        sub_group_core(gang, None, gang.min_sub_group, &pods).1
    };
    core.into_iter().collect()
}

/// Whether a leaf has its minimum, and its core.
fn leaf_core<'p>(pods: &[&'p PodSpec], name: Option<&str>, min: u32) -> (bool, Vec<&'p str>) {
    let ours = pods.iter().filter(|pod| pod.sub_group.as_deref() == name);
    let core: Vec<&str> = ours.map(|pod| pod.uid.as_str()).take(min as usize).collect();
    (core.len() == min as usize, core)
}

/// Whether a subgroup has its minimum, and its core: first the members that have their minimum, of these first the ones that need no pod,
/// then by name; and only as many as are required.
fn sub_group_core<'p>(
    gang: &GangSpec,
    name: Option<&str>,
    min: Option<u32>,
    pods: &[&'p PodSpec],
) -> (bool, Vec<&'p str>) {
    let mut children: Vec<_> = gang
        .sub_groups
        .iter()
        .filter(|group| group.parent.as_deref() == name)
        .collect();
    children.sort_by_key(|group| &group.name);
    let required = min.map_or(children.len(), |min| min as usize);
    let mut cores: Vec<(bool, Vec<&str>)> = children
        .into_iter()
        .map(|group| {
            let name = Some(group.name.as_str());
            let is_leaf = gang.sub_groups.iter().all(|other| other.parent.as_deref() != name);
            match is_leaf {
                true => leaf_core(pods, name, group.min_member.unwrap_or(0)),
                false => sub_group_core(gang, name, group.min_sub_group, pods),
            }
        })
        .filter(|(is_whole, core)| *is_whole || !core.is_empty())
        .collect();
    cores.sort_by_key(|(is_whole, core)| (!is_whole, !core.is_empty()));
    let is_whole = cores.iter().filter(|(is_whole, _)| *is_whole).count() >= required;
    (
        is_whole,
        cores.into_iter().take(required).flat_map(|(_, core)| core).collect(),
    )
}

/// Whether a gang with these numbers of pods by subgroup has its minimum.
pub(crate) fn is_whole(gang: &GangSpec, pods: &dyn Fn(Option<&str>) -> u32) -> bool {
    if gang.sub_groups.is_empty() {
        return pods(None) >= gang.min_member;
    }
    sub_group_is_whole(gang, None, gang.min_sub_group, pods)
}

fn sub_group_is_whole(
    gang: &GangSpec,
    parent: Option<&str>,
    min: Option<u32>,
    pods: &dyn Fn(Option<&str>) -> u32,
) -> bool {
    let children: Vec<_> = gang
        .sub_groups
        .iter()
        .filter(|group| group.parent.as_deref() == parent)
        .collect();
    let whole = children.iter().filter(|group| {
        let name = Some(group.name.as_str());
        let is_leaf = gang.sub_groups.iter().all(|other| other.parent.as_deref() != name);
        if is_leaf {
            pods(name) >= group.min_member.unwrap_or(0)
        } else {
            sub_group_is_whole(gang, name, group.min_sub_group, pods)
        }
    });
    whole.count() >= min.map_or(children.len(), |min| min as usize)
}
