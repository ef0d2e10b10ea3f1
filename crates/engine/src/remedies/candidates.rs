//! The candidates for remedies of a gang that could be placed: each is tried before it is offered.

use crate::cluster::Cluster;
use crate::gangs::Candidates;
use crate::ids::{PodId, QueueId, ShapeId};
use crate::ledger::QueueRequest;
use crate::model::{GpuRequest, Gpus, Millis, Preemptibility};
use crate::place::PlacementFailure;
use crate::reasons::{Check, Resource};
use crate::remedies::ends::{Whose, ends};
use crate::remedies::nodes::{large_enough, largest, nearest_nodes, templates};
use crate::remedies::trial::{Outcome, Trials};
use crate::remedies::{Ask, Constraint, RaisedBound, Remedy, Step, Wait};
use crate::tables::{Shape, When};

/// How many times a candidate is extended by further steps.
const REPAIRS_MAX: usize = 6;
/// How many trials the largest value that suffices may take.
const VALUES_MAX: usize = 5;
/// How many nodes a remedy may add.
const ADDED_NODES_MAX: i64 = 64;
/// How many kinds of nodes are tried.
const TEMPLATES_MAX: usize = 2;
/// How many nodes that are cordoned or not ready are tried one by one, and how many together.
const CLOSED_ONE_BY_ONE_MAX: usize = 3;
const CLOSED_TOGETHER_MAX: usize = 6;

/// Which further steps may complete a candidate.
#[derive(Clone, Copy, Default)]
pub(super) struct Allowed {
    pub(super) raise: bool,
    pub(super) end: Option<Whose>,
}

/// All remedies of a gang whose next pods are `pods`; `base` is the outcome of a cycle without any step.
pub(super) fn remedies(trials: &mut Trials<'_>, base: &Outcome, pods: &[PodId]) -> Vec<Remedy> {
    let mut remedies = Vec::new();
    let mut offer = |steps: Option<Vec<Step>>| {
        let remedy = steps.map(|steps| Remedy { steps, tried: true });
        if let Some(remedy) = remedy.filter(|remedy| !remedies.contains(remedy)) {
            remedies.push(remedy);
        }
    };
    let failing = failing_pod(trials, base, pods);
    let shape = base.cluster.ledger.pod(failing).shape;
    let is_bound = matches!(base.failure(trials.gang), Some(PlacementFailure::Bound(_)));
    offer(after_delay(trials));
    if trials.base.ledger.gang(trials.gang).preemptibility != Preemptibility::Preemptible {
        offer(repair(trials, vec![Step::MakePreemptible], Allowed::default()));
    }
    let raised = raises(trials, &base.cluster);
    if !raised.is_empty() {
        let allowed = Allowed { raise: true, end: None };
        offer(repair(trials, raised, allowed));
    }
    for whose in [Whose::SameQueue, Whose::Any] {
        offer(end_gangs(trials, base, whose));
    }
    offer(open_nodes(trials, shape));
    if !is_bound {
        offer(raise_quotas(trials, base));
    }
    offer(ask_less(trials, base, failing));
    offer(lower_minimum(trials, base, failing));
    if !is_bound {
        for like in templates(trials.base, shape, TEMPLATES_MAX) {
            offer(add_nodes(trials, base, shape, &like, Allowed::default()));
        }
    }
    offer(after_min_runtime(trials));
    offer(relax(trials, base));
    if remedies.is_empty() {
        // No single kind of step suffices.
        let both = Allowed {
            raise: true,
            end: Some(Whose::Any),
        };
        let mut steps = repair(trials, Vec::new(), both);
        for like in templates(trials.base, shape, 1) {
            let raise = Allowed { raise: true, end: None };
            steps = steps.or_else(|| add_nodes(trials, base, shape, &like, raise));
        }
        remedies.extend(steps.map(|steps| Remedy { steps, tried: true }));
    }
    remedies
}

/// The pod for which the attempt failed.
fn failing_pod(trials: &Trials<'_>, base: &Outcome, pods: &[PodId]) -> PodId {
    match base.failure(trials.gang) {
        Some(PlacementFailure::Pod { pod, .. }) => *pod,
        Some(_) | None => pods[0],
    }
}

/// Extends the steps as allowed until they start the gang.
pub(super) fn repair(trials: &mut Trials<'_>, mut steps: Vec<Step>, allowed: Allowed) -> Option<Vec<Step>> {
    for _ in 0..REPAIRS_MAX {
        let outcome = trials.run(&steps)?;
        if outcome.started {
            return Some(trials.only_needed(steps));
        }
        let mut more = Vec::new();
        if allowed.raise {
            more = raises(trials, &outcome.cluster);
        }
        if let (true, Some(whose)) = (more.is_empty(), allowed.end) {
            more = ends(trials, outcome.cluster, whose)?;
        }
        if more.is_empty() {
            return None;
        }
        more.into_iter().for_each(|step| add_step(&mut steps, step));
    }
    None
}

/// Adds a step, or replaces one that raises the same bound.
fn add_step(steps: &mut Vec<Step>, new: Step) {
    let same = |step: &&mut Step| match (&**step, &new) {
        (
            Step::Raise {
                queue: a,
                bound: b,
                resource: c,
                ..
            },
            Step::Raise {
                queue, bound, resource, ..
            },
        ) => (a, b, c) == (queue, bound, resource),
        _ => false,
    };
    match steps.iter_mut().find(same) {
        Some(Step::Raise { to, .. }) => {
            if let Step::Raise { to: higher, .. } = new {
                *to = (*to).max(higher);
            }
        }
        Some(_) | None => steps.push(new),
    }
}

/// The bounds that the next pods of the gang would exceed, raised so far that they don't.
fn raises(trials: &Trials<'_>, cluster: &Cluster) -> Vec<Step> {
    let mut steps = Vec::new();
    let (path, requested) = requested_on_path(trials, cluster);
    for queue in path {
        let row = cluster.ledger.queue(queue);
        for resource in Resource::ALL {
            let quota = row.quota[resource];
            let mut raise = |bound, from: Option<i64>, used: i64, requested: i64| {
                let to = used + requested;
                if let Some(from) = from.filter(|from| requested > 0 && *from < to) {
                    steps.push(Step::Raise {
                        queue: row.name.to_string(),
                        bound,
                        resource,
                        from,
                        to: whole_hundredths(resource, to),
                    });
                }
            };
            let (limit, deserved) = (quota.limit, quota.deserved);
            raise(
                RaisedBound::Limit,
                limit,
                row.allocated[resource],
                requested.all[resource],
            );
            let used = row.allocated_non_preemptible[resource];
            raise(RaisedBound::Quota, deserved, used, requested.non_preemptible[resource]);
        }
    }
    steps
}

/// GPUs rounded up to hundredths, in which queues are charged; other resources as they are.
fn whole_hundredths(resource: Resource, amount: i64) -> i64 {
    let unit = Gpus::hundredths(1).0;
    match resource {
        Resource::Gpu => (amount + unit - 1) / unit * unit,
        Resource::Cpu | Resource::Memory => amount,
    }
}

/// The queues from the gang's queue to the root, and what the next pods of the gang may be charged at most.
fn requested_on_path(trials: &Trials<'_>, cluster: &Cluster) -> (Vec<QueueId>, QueueRequest) {
    let ledger = &cluster.ledger;
    let mut pods = Vec::new();
    ledger.pods_to_place(trials.gang, Candidates::Waiting, &mut pods);
    let smallest = cluster.gpu_memory_min_mib;
    let charged = |shape: &Shape| {
        let mut most = shape.requested(smallest);
        if let Some(memory_mib) = smallest {
            most.gpus = most.gpus.max(shape.accepted(memory_mib).gpus);
        }
        most
    };
    let requested = ledger.queue_request(trials.gang, &pods, charged);
    let leaf = ledger.gang(trials.gang).queue;
    let path = leaf.into_iter().flat_map(|leaf| ledger.queue_path(leaf));
    (path.collect(), requested)
}

fn end_gangs(trials: &mut Trials<'_>, base: &Outcome, whose: Whose) -> Option<Vec<Step>> {
    let first = ends(trials, base.cluster.clone(), whose)?;
    let allowed = Allowed {
        raise: false,
        end: Some(whose),
    };
    repair(trials, first, allowed)
}

/// Cordoned nodes and nodes that are not ready, one of them or several.
fn open_nodes(trials: &mut Trials<'_>, shape: ShapeId) -> Option<Vec<Step>> {
    let ledger = &trials.base.ledger;
    let mut nodes: Vec<Vec<Step>> = Vec::new();
    for id in large_enough(trials.base, shape) {
        let node = ledger.node(id);
        let mut steps = Vec::new();
        if node.unschedulable {
            steps.push(Step::Uncordon(node.name.clone()));
        }
        if let Some(spec) = trials.base.node_specs[id.index()].as_ref().filter(|_| node.not_ready) {
            steps.push(Step::MakeReady {
                node: node.name.clone(),
                conditions: spec.conditions.clone(),
            });
        }
        if !steps.is_empty() {
            nodes.push(steps);
        }
    }
    // A cordon is lifted more easily than a node is repaired.
    nodes.sort_by_key(|steps| steps.iter().any(|step| matches!(step, Step::MakeReady { .. })));
    for steps in nodes.iter().take(CLOSED_ONE_BY_ONE_MAX) {
        if trials.starts(steps) {
            return Some(steps.clone());
        }
    }
    let all: Vec<Step> = nodes.into_iter().take(CLOSED_TOGETHER_MAX).flatten().collect();
    if all.len() < 2 {
        return None;
    }
    repair(trials, all, Allowed::default())
}

/// Quotas raised so far that the gang's queue is within them: then it may reclaim from queues above theirs.
fn raise_quotas(trials: &mut Trials<'_>, base: &Outcome) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let (path, requested) = requested_on_path(trials, &base.cluster);
    for queue in path {
        let row = base.cluster.ledger.queue(queue);
        for resource in Resource::ALL {
            let to = whole_hundredths(resource, row.allocated[resource] + requested.all[resource]);
            let from = row.quota[resource].deserved.filter(|from| *from < to);
            if let Some(from) = from.filter(|_| requested.all[resource] > 0) {
                steps.push(Step::Raise {
                    queue: row.name.to_string(),
                    bound: RaisedBound::Quota,
                    resource,
                    from,
                    to,
                });
            }
        }
    }
    if steps.is_empty() {
        return None;
    }
    repair(trials, steps, Allowed::default())
}

/// The largest value of `1..=most` with which the step starts the gang, as far as a few trials find it.
fn largest_value(trials: &mut Trials<'_>, most: i64, step: impl Fn(i64) -> Step) -> Option<Vec<Step>> {
    let (mut low, mut high) = (1, most);
    let mut found = None;
    for _ in 0..VALUES_MAX {
        // The first attempt is the largest value: it suffices in most cases.
        let value = if high == most { most } else { (low + high + 1) / 2 };
        if low > high || value < 1 {
            break;
        }
        if trials.starts(&[step(value)]) {
            found = Some(vec![step(value)]);
            low = value + 1;
        } else {
            high = value - 1;
        }
    }
    found
}

/// A smaller request.
fn ask_less(trials: &mut Trials<'_>, base: &Outcome, failing: PodId) -> Option<Vec<Step>> {
    let shape = base.cluster.ledger.pod(failing).shape;
    let (requests, _) = base.cluster.request_of_shape(shape);
    let fits = largest(&base.cluster, shape);
    let is_bound = matches!(base.failure(trials.gang), Some(PlacementFailure::Bound(_)));
    let node_steps = ask_for_node_resources(trials, base, shape);
    if let Some(steps) = node_steps {
        return Some(steps);
    }
    match requests.gpu {
        GpuRequest::Whole { devices } => {
            // The pods of a gang may fit with less each, even if no node has more for one of them.
            let now = fits.whole.map_or(0, |(gpus, _)| gpus);
            let most = if is_bound { devices - 1 } else { now.min(devices - 1) };
            largest_value(trials, most, |gpus| Step::AskAtMost(Ask::Gpus(gpus)))
        }
        GpuRequest::Memory { mib, .. } => {
            let now = fits.mib.map_or(0, |(mib, _)| mib);
            let most = if is_bound { mib - 1 } else { now.min(mib - 1) };
            largest_value(trials, most, |mib| Step::AskAtMost(Ask::GpuMemoryMib(mib)))
        }
        GpuRequest::Fraction { fraction, .. } => {
            // The last value below the request; of a GPU with other pods, what is left.
            let asked = fraction.nearest_hundredths();
            let free = free_hundredths(&base.cluster, shape);
            let most = if is_bound { asked - 1 } else { free.min(asked - 1) };
            largest_value(trials, most, |hundredths| {
                Step::AskAtMost(Ask::GpuHundredths(hundredths))
            })
        }
        GpuRequest::None | GpuRequest::Mig { .. } => None,
    }
}

/// The largest part of a GPU that is free on some node, in hundredths.
fn free_hundredths(cluster: &Cluster, shape: ShapeId) -> i64 {
    let ledger = &cluster.ledger;
    let when = When::AfterRelease;
    let nodes = ledger.nodes.iter().filter(|node| node.present);
    let accepts = |node: &&crate::tables::Node| crate::place::static_check(node, ledger.shape(shape)).is_ok();
    let free = nodes.filter(accepts).flat_map(|node| {
        let groups = node.gpu_groups.iter().filter(move |group| group.holds_gpu(when));
        groups.map(|group| group.available_mib(node.memory_mib, when) * 100 / node.memory_mib.max(1))
    });
    free.max().unwrap_or(0).clamp(0, 99)
}

/// Less CPU and memory, if the nearest node lacks those.
fn ask_for_node_resources(trials: &mut Trials<'_>, base: &Outcome, shape: ShapeId) -> Option<Vec<Step>> {
    let ledger = &base.cluster.ledger;
    let (id, check, _) = *nearest_nodes(&base.cluster, shape, 1).first()?;
    if !matches!(check, Check::Cpu | Check::Memory) {
        return None;
    }
    let (node, shape) = (ledger.node(id), ledger.shape(shape));
    let free = node.free.total();
    let memory = free.memory_bytes - node.unified_bytes(shape);
    let mut steps = Vec::new();
    if free.cpu_milli < shape.base.cpu_milli {
        steps.push(Step::AskAtMost(Ask::CpuMilli(free.cpu_milli)));
    }
    if memory < shape.base.memory_bytes {
        steps.push(Step::AskAtMost(Ask::MemoryBytes(memory)));
    }
    if free.cpu_milli < 0 || memory < 0 {
        return None;
    }
    repair(trials, steps, Allowed::default())
}

/// A lower minimum of the gang or subgroup of which too few pods fit.
fn lower_minimum(trials: &mut Trials<'_>, base: &Outcome, failing: PodId) -> Option<Vec<Step>> {
    let ledger = &trials.base.ledger;
    let gang = ledger.gang(trials.gang);
    let set = &gang.pod_sets[ledger.pod(failing).pod_set? as usize];
    let (from, single) = (set.min, gang.pod_sets.len() == 1);
    let most = match base.failure(trials.gang) {
        Some(PlacementFailure::Pod { placed, .. }) if single => placed + set.active_used(),
        Some(PlacementFailure::NoDomain { domains, .. }) if single => domains.first().map_or(0, |(_, fits)| *fits),
        Some(_) | None => from.saturating_sub(1),
    };
    let is_subgroup = !single || &*set.name != crate::gangs::DEFAULT_SUB_GROUP;
    let sub_group = is_subgroup.then(|| set.name.to_string());
    largest_value(trials, i64::from(most.min(from.saturating_sub(1))), |to| {
        Step::LowerMinimum {
            sub_group: sub_group.clone(),
            from,
            to: to as u32,
        }
    })
}

/// As few nodes like this one as start the gang.
fn add_nodes(
    trials: &mut Trials<'_>,
    base: &Outcome,
    shape: ShapeId,
    like: &std::sync::Arc<str>,
    allowed: Allowed,
) -> Option<Vec<Step>> {
    let step = |count: i64| Step::AddNodes {
        count: count as u32,
        like: like.clone(),
    };
    let least = nodes_needed(trials, base, shape, like);
    // Doubling finds a number that suffices, bisection the smallest one.
    let (mut low, mut high) = (1, least.max(1));
    let mut found = loop {
        if high > ADDED_NODES_MAX {
            return None;
        }
        match repair(trials, vec![step(high)], allowed) {
            Some(steps) => break steps,
            None if trials.is_cut => return None,
            None => (low, high) = (high + 1, high * 2),
        }
    };
    for _ in 0..VALUES_MAX {
        if low >= high {
            break;
        }
        let middle = (low + high) / 2;
        match repair(trials, vec![step(middle)], allowed) {
            Some(steps) => (found, high) = (steps, middle),
            None => low = middle + 1,
        }
    }
    Some(found)
}

/// How many nodes hold the pods that found no place, by their GPUs.
fn nodes_needed(trials: &Trials<'_>, base: &Outcome, shape: ShapeId, like: &str) -> i64 {
    let ledger = &base.cluster.ledger;
    let mut pods = Vec::new();
    ledger.pods_to_place(trials.gang, Candidates::Waiting, &mut pods);
    let placed = match base.failure(trials.gang) {
        Some(PlacementFailure::Pod { placed, .. }) => i64::from(*placed),
        Some(_) | None => 0,
    };
    let node = ledger.nodes.iter().find(|node| node.present && &*node.name == like);
    let per_node = match ledger.shape(shape).base.gpus {
        0 => 1,
        gpus => node.map_or(1, |node| (node.allocatable.gpus / gpus).max(1)),
    };
    let left = (pods.len() as i64 - placed).max(1);
    (left + per_node - 1) / per_node
}

/// The end of the gang's preemption delay.
fn after_delay(trials: &mut Trials<'_>) -> Option<Vec<Step>> {
    let until = trials.base.ledger.gang(trials.gang).delayed_until(trials.base.now)?;
    let steps = vec![Step::Wait(Wait::PreemptionDelay(until))];
    trials.starts(&steps).then_some(steps)
}

/// The end of the minimum runtime of other gangs.
fn after_min_runtime(trials: &mut Trials<'_>) -> Option<Vec<Step>> {
    let (ledger, now) = (&trials.base.ledger, trials.base.now);
    let end_of = |gang: &crate::tables::Gang| -> Option<Millis> {
        let (started, queue) = (gang.last_start?, gang.queue?);
        let path = || ledger.queue_path(queue).map(|queue| ledger.queue(queue));
        let own = path().flat_map(|queue| [queue.preempt_min_runtime, queue.reclaim_min_runtime]);
        let defaults = [trials.config.preempt_min_runtime, trials.config.reclaim_min_runtime];
        let longest = own.flatten().chain(defaults).max()?;
        Some(started + longest).filter(|end| *end > now && longest > Millis(0))
    };
    let evictable = ledger
        .gangs
        .iter()
        .filter(|gang| !gang.is_non_preemptible() && gang.has_started());
    let mut times: Vec<Millis> = evictable.filter_map(end_of).collect();
    times.sort_unstable();
    times.dedup();
    let wait = |until: Millis| vec![Step::Wait(Wait::MinRuntime(until))];
    let mut found = None;
    let (mut low, mut high) = (0, times.len().checked_sub(1)?);
    // The last time first: if it does not help, no earlier one does.
    if !trials.starts(&wait(times[high])) {
        return None;
    }
    for _ in 0..VALUES_MAX {
        if low >= high {
            break;
        }
        let middle = (low + high) / 2;
        if trials.starts(&wait(times[middle])) {
            (found, high) = (Some(middle), middle);
        } else {
            low = middle + 1;
        }
    }
    Some(wait(times[found.unwrap_or(high)]))
}

/// Without one of the constraints that rejected nodes, or without all of them.
fn relax(trials: &mut Trials<'_>, base: &Outcome) -> Option<Vec<Step>> {
    let constraint_of = |check: Check| match check {
        Check::NodeAffinity => Some(Constraint::NodeAffinity),
        Check::Taints => Some(Constraint::Taints),
        Check::HostPorts => Some(Constraint::HostPorts),
        Check::PodAffinity => Some(Constraint::PodAffinity),
        Check::PodAntiAffinity => Some(Constraint::PodAntiAffinity),
        Check::Domain => Some(Constraint::Topology),
        Check::Enforcement => Some(Constraint::Enforcement),
        Check::ComputeMode | Check::ComputeModeInUse => Some(Constraint::ComputeMode),
        Check::Gpus
        | Check::GpuMemory
        | Check::GpuTooSmall
        | Check::Cpu
        | Check::Memory
        | Check::PodSlots
        | Check::Extended
        | Check::Unschedulable
        | Check::NotReady
        | Check::Leaving
        | Check::MigMismatch
        | Check::GpuMemoryUnknown
        | Check::SmSharingOnly
        | Check::Fractioning(_)
        | Check::VolumeNodes
        | Check::VolumesToBind
        | Check::Storage
        | Check::ExclusiveClaim
        | Check::AttachLimit
        | Check::QueueBound => None,
    };
    let mut constraints: Vec<Constraint> = match base.failure(trials.gang)? {
        PlacementFailure::Pod { rejections, .. } => {
            let checks = rejections.iter().flat_map(|rejections| &rejections.checks);
            checks.filter_map(|(check, _)| constraint_of(*check)).collect()
        }
        PlacementFailure::NoDomain { .. } | PlacementFailure::TopologyUnknown { .. } => Vec::new(),
        PlacementFailure::NoPods | PlacementFailure::Bound(_) | PlacementFailure::OutOfWork => return None,
    };
    if trials.base.ledger.gang(trials.gang).has_topology() && !constraints.contains(&Constraint::Topology) {
        constraints.push(Constraint::Topology);
    }
    let steps: Vec<Step> = constraints.into_iter().map(Step::Relax).collect();
    for step in &steps {
        if trials.starts(std::slice::from_ref(step)) {
            return Some(vec![step.clone()]);
        }
    }
    if steps.len() < 2 {
        return None;
    }
    repair(trials, steps, Allowed::default())
}
