//! Placing the pods of a gang: all that one attempt needs, within the topology domains that its groups ask for.

use std::sync::Arc;

use crate::cycle::Cycle;
use crate::ids::{DomainId, GangId, NodeId, PodId};
use crate::model::TopologyConstraint;
use crate::place::domains::PodVector;
use crate::place::fit::Worth;
use crate::place::{Devices, Neighbours, choose_devices};
use crate::reasons::Rejections;
use crate::share::{self, Bound};
use crate::tables::{CPU, GPU, Gang, MEMORY, Member, Place, SHARE_GPU, Shape, Share, When, ceil_hundredths};

/// Whether pods may start, or everything is only promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Bind where there is room now, promise where room is being freed.
    Real,
    /// A what-if: promise only. Evicted pods that find their old place again just stay.
    Simulated,
}

/// The nodes that an attempt may use at all.
#[derive(Clone, Debug)]
pub(crate) enum NodeSet {
    All,
    /// By node id.
    Only(Vec<bool>),
}

impl NodeSet {
    pub(crate) fn contains(&self, node: NodeId) -> bool {
        match self {
            NodeSet::All => true,
            NodeSet::Only(allowed) => allowed[node.index()],
        }
    }
}

/// The nodes that a group of pods may use: those of a domain, or all of the attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope<'s> {
    pub(crate) set: &'s NodeSet,
    pub(crate) domain: Option<&'s [NodeId]>,
}

/// Why a gang could not be placed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    /// Nothing to place.
    NoPods,
    /// A queue's bound.
    Bound(Bound),
    /// A pod found no node after `placed` others had.
    Pod {
        pod: PodId,
        placed: u32,
        /// What the nodes said; only looked up outside simulations.
        rejections: Option<Arc<Rejections>>,
    },
    /// No domain can hold the group.
    NoDomain {
        topology: String,
        level: String,
        domains: Vec<(String, u32)>,
        required: u32,
    },
    /// The topology, or one of its levels, is not there.
    TopologyUnknown { topology: String, level: Option<String> },
}

/// Points of nodes by preferred topology level, by node id; `None` = outside.
type NodePoints = Vec<Option<i64>>;

/// Weight of a tenth of the preferred domains.
const DOMAIN_POINT: i64 = 100_000;
/// Weight of the node that a former decision promised.
const NOMINATED: i64 = 10_000_000;

/// One attempt at one gang.
struct Attempt {
    gang: GangId,
    mode: Mode,
    /// Points by group, then by pod set.
    group_points: Vec<Option<NodePoints>>,
    set_points: Vec<Option<NodePoints>>,
    placed: u32,
    /// Some pods are charged by the node they get, so bounds have to be checked for each.
    mixed: bool,
}

impl Cycle<'_> {
    /// Places `pods` of a gang, all or none.
    pub(crate) fn place_gang(
        &mut self,
        gang: GangId,
        pods: &[PodId],
        mode: Mode,
        nodes: &NodeSet,
    ) -> Result<(), Failure> {
        if pods.is_empty() {
            return Err(Failure::NoPods);
        }
        let requested = self.ledger.requested_by(pods, self.memory_max);
        if let Some(bound) = share::exceeded(self.ledger, gang, requested) {
            return Err(Failure::Bound(bound));
        }
        let checkpoint = self.ledger.checkpoint();
        let row = self.ledger.gang(gang);
        let scope = Scope {
            set: nodes,
            domain: None,
        };
        let constrained = row.has_topology();
        let mut attempt = Attempt {
            gang,
            mode,
            group_points: if constrained {
                vec![None; row.groups.len()]
            } else {
                Vec::new()
            },
            set_points: if constrained {
                vec![None; row.pod_sets.len()]
            } else {
                Vec::new()
            },
            placed: 0,
            mixed: pods.iter().any(|pod| self.ledger.shape_of(*pod).is_shared()),
        };
        let result = if constrained {
            self.place_group(&mut attempt, 0, pods, scope)
        } else {
            // Without domains the tree only orders pods, and they come in that order.
            self.place_pods(&mut attempt, pods, scope)
        };
        if result.is_err() {
            self.ledger.rollback(checkpoint);
        }
        result
    }

    fn place_group(
        &mut self,
        attempt: &mut Attempt,
        group: u32,
        pods: &[PodId],
        scope: Scope<'_>,
    ) -> Result<(), Failure> {
        if pods.is_empty() {
            return Ok(());
        }
        let row = self.ledger.gang(attempt.gang);
        let Some(constraint) = row.groups[group as usize].topology.clone() else {
            return self.place_members(attempt, group, pods, scope);
        };
        let mut sets = Vec::new();
        row.sets_below(group, &mut sets);
        let (domains, points) = self.suitable_domains(attempt.gang, &constraint, &sets, pods, scope)?;
        if points.is_some() {
            attempt.group_points[group as usize] = points;
        }
        self.try_domains(attempt, &constraint, domains, scope, |cycle, attempt, scope| {
            cycle.place_members(attempt, group, pods, scope)
        })
    }

    fn place_members(
        &mut self,
        attempt: &mut Attempt,
        group: u32,
        pods: &[PodId],
        scope: Scope<'_>,
    ) -> Result<(), Failure> {
        for member in self.ledger.gang(attempt.gang).ordered_members(group) {
            let mut sets = Vec::new();
            match member {
                Member::Pods(set) => sets.push(set),
                Member::Group(group) => self.ledger.gang(attempt.gang).sets_below(group, &mut sets),
            }
            let of_member = |pod: &PodId| self.ledger.pod(*pod).pod_set.is_some_and(|set| sets.contains(&set));
            let pods: Vec<PodId> = pods.iter().copied().filter(of_member).collect();
            match member {
                Member::Pods(set) => self.place_set(attempt, set, &pods, scope)?,
                Member::Group(group) => self.place_group(attempt, group, &pods, scope)?,
            }
        }
        Ok(())
    }

    fn place_set(&mut self, attempt: &mut Attempt, set: u32, pods: &[PodId], scope: Scope<'_>) -> Result<(), Failure> {
        if pods.is_empty() {
            return Ok(());
        }
        let Some(constraint) = self.ledger.gang(attempt.gang).pod_sets[set as usize].topology.clone() else {
            return self.place_pods(attempt, pods, scope);
        };
        let (domains, points) = self.suitable_domains(attempt.gang, &constraint, &[set], pods, scope)?;
        if points.is_some() {
            attempt.set_points[set as usize] = points;
        }
        self.try_domains(attempt, &constraint, domains, scope, |cycle, attempt, scope| {
            cycle.place_pods(attempt, pods, scope)
        })
    }

    fn try_domains(
        &mut self,
        attempt: &mut Attempt,
        constraint: &TopologyConstraint,
        domains: Option<Vec<DomainId>>,
        scope: Scope<'_>,
        mut place: impl FnMut(&mut Self, &mut Attempt, Scope<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some(domains) = domains else {
            return place(self, attempt, scope);
        };
        let mut result = Err(Failure::NoPods);
        for domain in domains {
            let tree = self
                .domains
                .fresh(self.ledger, &constraint.topology)
                .expect("the topology was there just now");
            let mut nodes = tree.domain(domain).nodes.clone();
            if let Some(offered) = scope.domain {
                nodes.retain(|node| offered.contains(node));
            }
            nodes.retain(|node| scope.set.contains(*node));
            let (checkpoint, placed) = (self.ledger.checkpoint(), attempt.placed);
            result = place(
                self,
                attempt,
                Scope {
                    set: scope.set,
                    domain: Some(&nodes),
                },
            );
            if result.is_ok() {
                return result;
            }
            self.ledger.rollback(checkpoint);
            attempt.placed = placed;
        }
        result
    }

    fn place_pods(&mut self, attempt: &mut Attempt, pods: &[PodId], scope: Scope<'_>) -> Result<(), Failure> {
        for pod in pods {
            if !self.place_pod(attempt, *pod, scope) {
                let rejections = (attempt.mode == Mode::Real).then(|| self.rejections(*pod, scope));
                return Err(Failure::Pod {
                    pod: *pod,
                    placed: attempt.placed,
                    rejections,
                });
            }
            attempt.placed += 1;
        }
        Ok(())
    }

    fn place_pod(&mut self, attempt: &Attempt, pod: PodId, scope: Scope<'_>) -> bool {
        let ledger = &*self.ledger;
        let (row, shape) = (ledger.pod(pod), ledger.shape_of(pod));
        let index = self.indexes.fresh(ledger, row.shape, self.config.placement);
        if index.is_barren() {
            return false;
        }
        let neighbours = (!Neighbours::are_irrelevant(ledger, pod))
            .then(|| Neighbours::of(ledger, pod, self.config.score_pod_affinity));
        let strategy = self.config.placement.gpu;
        let only_promise = attempt.mode == Mode::Simulated;
        // Memory requests and fractions are charged by the node's device, so bounds depend on the node.
        let bounded_by_node = attempt.mixed && is_bounded(ledger.gang(attempt.gang), ledger);
        let accept = |node: NodeId| -> Option<(NodeId, Option<Devices>)> {
            if !scope.set.contains(node) {
                return None;
            }
            if let Some(neighbours) = &neighbours {
                neighbours.check(ledger, node).ok()?;
            }
            if bounded_by_node {
                let charge = charge_on(shape, ledger.node(node).memory_mib);
                if share::exceeded(ledger, attempt.gang, charge).is_some() {
                    return None;
                }
            }
            if !shape.is_shared() {
                return Some((node, None));
            }
            Some((node, Some(choose_devices(ledger, pod, node, strategy, only_promise)?)))
        };
        let points = points_for(attempt, ledger.gang(attempt.gang), row.pod_set);
        let nominated = row.nominated.map(|name| ledger.symbols.text(name));
        let scored = points.is_some() || nominated.is_some() || neighbours.as_ref().is_some_and(Neighbours::has_points);
        let found = if let (Some(nodes), false) = (scope.domain, scored) {
            best_of(nodes.iter().copied(), |node| index.worth(node), accept)
        } else if !scored {
            index.best(accept)
        } else {
            let worth = |node: NodeId| -> Worth {
                let mut worth = index.worth(node);
                if let Some(points) = points {
                    match points[node.index()] {
                        Some(points) => worth = worth.plus(points),
                        None => return Worth::UNFIT,
                    }
                }
                if nominated == Some(&*ledger.node(node).name) {
                    worth = worth.plus(NOMINATED);
                }
                match &neighbours {
                    Some(neighbours) => worth.plus(neighbours.weight(ledger, node)),
                    None => worth,
                }
            };
            match scope.domain {
                Some(nodes) => best_of(nodes.iter().copied(), worth, accept),
                None => best_of((0..ledger.nodes.len()).map(NodeId::new), worth, accept),
            }
        };
        let Some((node, devices)) = found else { return false };
        self.settle(pod, node, devices, attempt.mode);
        true
    }

    /// Puts the pod on the chosen node: bound, promised, or just kept where it was.
    fn settle(&mut self, pod: PodId, node: NodeId, devices: Option<Devices>, mode: Mode) {
        let ledger = &*self.ledger;
        let row = ledger.pod(pod);
        let (groups, must_wait) = match devices {
            Some(devices) => (devices.groups, devices.must_wait),
            None => {
                let node = ledger.node(node);
                let fits_now = crate::place::fits(node, ledger.shape(row.shape), node.free.idle, When::Now).is_ok();
                (Default::default(), !fits_now)
            }
        };
        if mode == Mode::Real && !must_wait {
            return self.ledger.bind(pod, node, groups);
        }
        // Back where it is, or where it still was when it was moved before: then it just keeps what it has.
        let at_home = |home: &Place| home.node == Some(node) && (groups.is_empty() || groups == home.groups);
        let moved_from = row.leaving.as_deref();
        // What it was promised when it was moved may have been given away since: the room was found elsewhere.
        let keeps_promise = || moved_from.is_some_and(at_home) && ledger.still_fits(pod);
        if row.evicted_from.is_some() && (at_home(&row.place) || keeps_promise()) {
            return self.ledger.keep(pod);
        }
        self.ledger.pipeline(pod, node, groups);
    }

    /// The domains that can hold the pods, best first (`None` = no limitation), and points of nodes by preferred level.
    fn suitable_domains(
        &mut self,
        gang: GangId,
        constraint: &TopologyConstraint,
        sets: &[u32],
        pods: &[PodId],
        scope: Scope<'_>,
    ) -> Result<(Option<Vec<DomainId>>, Option<NodePoints>), Failure> {
        let ledger = &*self.ledger;
        let name = &constraint.topology;
        let unknown = |level| Failure::TopologyUnknown {
            topology: name.clone(),
            level,
        };
        let Some(tree) = self.domains.fresh(ledger, name) else {
            return Err(unknown(None));
        };
        let find = |level: &Option<String>| match level.as_deref().filter(|level| !level.is_empty()) {
            Some(level) => tree
                .level(level)
                .map(Some)
                .ok_or_else(|| unknown(Some(level.to_owned()))),
            None => Ok(None),
        };
        let (required, preferred) = (find(&constraint.required_level)?, find(&constraint.preferred_level)?);
        let (finest, coarsest) = match (preferred, required) {
            (None, None) => return Ok((None, None)),
            (Some(preferred), None) => (preferred, 0),
            (None, Some(required)) => (required, required),
            (Some(preferred), Some(required)) => (preferred.max(required), required),
        };
        // Search below the smallest domain that has all offered nodes, but not below what is asked for.
        let stop = [required, preferred].into_iter().flatten().min().unwrap_or(0);
        let mut start = DomainId::new(0);
        loop {
            let domain = tree.domain(start);
            if domain.level >= stop {
                break;
            }
            let next = match (scope.domain, scope.set) {
                (None, NodeSet::All) => match domain.children.as_slice() {
                    [only] => Some(*only),
                    _ => None,
                },
                _ => {
                    let offered = |node: &NodeId| {
                        scope.set.contains(*node) && scope.domain.is_none_or(|nodes| nodes.contains(node))
                    };
                    let below = |node: &NodeId| tree.domain_of(*node, domain.level + 1);
                    let mut found = domain.nodes.iter().filter(|node| offered(node)).map(below);
                    let first = found.next().flatten();
                    if found.all(|other| other == first) { first } else { None }
                }
            };
            let Some(next) = next else { break };
            start = next;
        }
        let vector = homogeneous(pods.iter().map(|pod| ledger.shape_of(*pod)));
        if let Some(vector) = vector.as_ref().filter(|vector| !is_weightless(vector)) {
            tree.count_capacity(ledger, vector);
        }
        let tree = &*tree;
        let capacity = vector.as_ref().map(|vector| tree.capacity(vector));
        let demand = total_demand(pods.iter().map(|pod| ledger.shape_of(*pod)));
        let wanted = pods.len() as i64;
        let capacity_of =
            |capacity: Option<&[i64]>, domain: DomainId| capacity.map_or(i64::MAX, |all| all[domain.index()]);
        let fits = |domain: DomainId| match capacity {
            Some(capacity) => capacity_of(capacity, domain) >= wanted,
            None => fullness(&demand, &tree.domain(domain).free) <= 1.0,
        };
        let room = |domain: DomainId| match capacity {
            Some(capacity) => u32::try_from(capacity_of(capacity, domain).clamp(0, wanted)).unwrap_or(u32::MAX),
            None => {
                if fits(domain) {
                    pods.len() as u32
                } else {
                    0
                }
            }
        };
        let none = |tree: &crate::place::DomainTree, shown: usize| {
            let mut domains: Vec<(String, u32)> = tree
                .domains
                .iter()
                .enumerate()
                .filter(|(_, domain)| domain.level == shown)
                .map(|(at, domain)| (domain.name.clone(), room(DomainId::new(at))))
                .collect();
            domains.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
            domains.truncate(DOMAINS_SHOWN_MAX);
            let level = constraint
                .required_level
                .clone()
                .or_else(|| constraint.preferred_level.clone());
            Failure::NoDomain {
                topology: name.clone(),
                level: level.unwrap_or_default(),
                domains,
                required: pods.len() as u32,
            }
        };
        if !fits(start) {
            return Err(none(tree, coarsest.max(1)));
        }
        // The fullest domain first, so that large holes stay for large gangs.
        let mut levels: Vec<Vec<DomainId>> = vec![vec![start]];
        while tree.domain(levels.last().expect("there is a first level")[0]).level < finest {
            let above = levels.last().expect("there is a first level");
            let mut below = Vec::new();
            for domain in above {
                let weigh = |child: &DomainId| {
                    let row = tree.domain(*child);
                    (fullness(&demand, &row.free), row.rank, *child)
                };
                let mut children: Vec<(f64, u32, DomainId)> = tree.domain(*domain).children.iter().map(weigh).collect();
                children.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
                below.extend(children.into_iter().map(|(.., child)| child));
            }
            if below.is_empty() {
                break;
            }
            levels.push(below);
        }
        let points = preferred.and_then(|preferred| {
            let level = levels.iter().find(|level| tree.domain(level[0]).level == preferred)?;
            let mut points: NodePoints = vec![None; ledger.nodes.len()];
            for (at, domain) in level.iter().enumerate() {
                let tenths = 10 * (at as i64 + 1) / level.len() as i64;
                for node in &tree.domain(*domain).nodes {
                    points[node.index()] = Some(tenths * DOMAIN_POINT);
                }
            }
            Some(points)
        });
        // What already runs pins the required domain.
        let pinned: Option<Vec<DomainId>> = required.and_then(|required| {
            let mut pinned: Vec<DomainId> = sets
                .iter()
                .flat_map(|set| &ledger.gang(gang).pod_sets[*set as usize].pods)
                .map(|pod| &ledger.pod(*pod).place)
                .filter(|place| place.status.is_active_allocated())
                .filter_map(|place| tree.domain_of(place.node?, required))
                .collect();
            let active = sets
                .iter()
                .any(|set| ledger.gang(gang).pod_sets[*set as usize].active_allocated() > 0);
            pinned.sort_unstable();
            pinned.dedup();
            active.then_some(pinned)
        });
        let allowed = |domain: DomainId| match (&pinned, required) {
            (Some(pinned), Some(required)) => {
                let mut at = domain;
                while tree.domain(at).level > required {
                    at = tree.domain(at).parent.expect("only the root has no parent");
                }
                pinned.contains(&at)
            }
            _ => true,
        };
        let found: Vec<DomainId> = levels
            .iter()
            .rev()
            .flatten()
            .copied()
            .filter(|domain| (coarsest..=finest).contains(&tree.domain(*domain).level))
            .filter(|domain| allowed(*domain) && fits(*domain))
            .collect();
        if found.is_empty() {
            return Err(none(tree, coarsest.max(1)));
        }
        Ok((Some(found), points))
    }
}

/// Domains named in an explanation.
const DOMAINS_SHOWN_MAX: usize = 5;

fn best_of<T>(
    nodes: impl Iterator<Item = NodeId> + Clone,
    worth: impl Fn(NodeId) -> Worth,
    mut accept: impl FnMut(NodeId) -> Option<T>,
) -> Option<T> {
    // The best one is nearly always accepted: only if not is it worth to remember the others.
    let best = nodes.clone().max_by_key(|node| worth(*node))?;
    if worth(best) == Worth::UNFIT {
        return None;
    }
    let found = accept(best);
    if found.is_some() {
        return found;
    }
    let mut candidates: Vec<(Worth, NodeId)> = nodes
        .filter(|node| *node != best)
        .map(|node| (worth(node), node))
        .filter(|(worth, _)| *worth != Worth::UNFIT)
        .collect();
    while let Some(best) = (0..candidates.len()).max_by_key(|at| candidates[*at].0) {
        let (_, node) = candidates.swap_remove(best);
        let found = accept(node);
        if found.is_some() {
            return found;
        }
    }
    None
}

/// The points that count for a pod: its own set's, else those of the nearest group above.
fn points_for<'a>(attempt: &'a Attempt, gang: &Gang, pod_set: Option<u32>) -> Option<&'a NodePoints> {
    if attempt.group_points.is_empty() {
        return None;
    }
    let set = pod_set? as usize;
    if let Some(points) = &attempt.set_points[set] {
        return Some(points);
    }
    let mut group = Some(gang.pod_sets[set].parent);
    while let Some(at) = group {
        if let Some(points) = &attempt.group_points[at as usize] {
            return Some(points);
        }
        group = gang.groups[at as usize].parent;
    }
    None
}

fn is_bounded(gang: &Gang, ledger: &crate::ledger::Ledger) -> bool {
    let Some(queue) = gang.queue else { return true };
    ledger.queue_path(queue).any(|queue| {
        let quota = &ledger.queue(queue).quota.gpu;
        quota.limit.is_some() || (!gang.preemptible && quota.deserved.is_some())
    })
}

/// What bounds see of a pod on a device of this size: for a shared one the memory it really takes, rounded up.
fn charge_on(shape: &Shape, memory_mib: i64) -> Share {
    let mut charge = shape.accepted(memory_mib);
    if shape.is_shared() {
        let hundredths = ceil_hundredths(shape.need_mib(memory_mib), memory_mib);
        let accepted = shape.accepted_hundredths(memory_mib);
        charge[SHARE_GPU] = (crate::model::Gpus::hundredths(hundredths.max(accepted)) * shape.devices()).0;
    }
    charge
}

/// The largest pod, if all pods use the same kinds of resources, so that counting how many fit makes sense.
fn homogeneous<'a>(mut shapes: impl Iterator<Item = &'a Shape>) -> Option<PodVector> {
    let mut largest = PodVector::of(shapes.next()?);
    let mut kinds: Vec<_> = largest.extended.iter().map(|(resource, _)| *resource).collect();
    kinds.sort_unstable();
    for shape in shapes {
        let vector = PodVector::of(shape);
        let mut own: Vec<_> = vector.extended.iter().map(|(resource, _)| *resource).collect();
        own.sort_unstable();
        if (vector.gpu_hundredths > 0) != (largest.gpu_hundredths > 0) || own != kinds {
            return None;
        }
        largest.max(&vector);
    }
    Some(largest)
}

/// Whether a pod takes nothing but a slot: then any number fits anywhere.
fn is_weightless(vector: &PodVector) -> bool {
    vector.base[CPU] == 0 && vector.base[MEMORY] == 0 && vector.gpu_hundredths == 0 && vector.extended.is_empty()
}

/// CPU, memory and hundredths of GPUs of all pods together.
fn total_demand<'a>(shapes: impl Iterator<Item = &'a Shape>) -> Share {
    let mut total = [0; 3];
    for shape in shapes {
        let gpus = PodVector::of(shape).gpu_hundredths;
        crate::ledger::add(&mut total, [shape.base[CPU], shape.base[MEMORY], gpus], 1);
    }
    total
}

/// How much of a domain's free resources the pods would take, by the scarcest.
fn fullness(demand: &Share, free: &crate::tables::Vector) -> f64 {
    /// For a resource that the domain does not have at all.
    const MISSING: f64 = 1000.0;
    let free = [free[CPU], free[MEMORY], free[GPU] * 100];
    let ratios = demand.iter().zip(free).filter(|(need, _)| **need > 0);
    ratios
        .map(|(need, free)| if free <= 0 { MISSING } else { *need as f64 / free as f64 })
        .fold(0.0, f64::max)
}
