//! The search for topology domains that can hold the pods of a subgroup.

use rustc_hash::FxHashSet;

use crate::cycle::Cycle;
use crate::fit::PodRequest;
use crate::ids::{DomainId, GangId, NodeId, PodId};
use crate::ledger::Ledger;
use crate::model::{Gpus, QueueResources, TopologyConstraint, UNKNOWN_GPU_MEMORY_MIB};
use crate::place::domains::DomainFree;
use crate::place::gang::{NodeSet, PlacementFailure, Scope};
use crate::place::{DomainTree, weights};
use crate::reasons::Resource;
use crate::tables::{GpuKind, NodeResources, Shape};

/// Scores of nodes by the preferred topology level, by node id; `None` = the node is in no suitable domain.
pub(super) type TopologyScores = Vec<Option<i64>>;

/// Domains that an explanation names.
const DOMAINS_SHOWN_MAX: usize = 5;

/// The result of a search for domains.
#[derive(Default)]
pub(super) struct DomainChoice {
    /// The domains that can hold the pods, best first; `None` = the constraint names no level, so every node is allowed.
    pub(super) domains: Option<Vec<DomainId>>,
    /// `None` = the constraint has no preferred level.
    pub(super) scores: Option<TopologyScores>,
}

impl Cycle<'_> {
    /// The domains that can hold `pods` of the gang's pod sets `sets`.
    pub(super) fn suitable_domains(
        &mut self,
        gang: GangId,
        constraint: &TopologyConstraint,
        sets: &[u32],
        pods: &[PodId],
        scope: Scope<'_>,
    ) -> Result<DomainChoice, PlacementFailure> {
        let ledger = &*self.ledger;
        let Some(tree) = self.domains.get_updated(ledger, &constraint.topology) else {
            return Err(unknown_topology(constraint, None));
        };
        let Some(levels) = Levels::of(tree, constraint)? else {
            return Ok(DomainChoice::default());
        };
        let root = search_root(tree, &levels, scope);
        let shapes = || pods.iter().map(|pod| ledger.shape_of(*pod));
        let largest = largest_if_homogeneous(shapes());
        if let Some(largest) = largest.as_ref().filter(|largest| !largest.is_empty()) {
            tree.update_pod_capacity(ledger, largest);
        }
        let tree = &*tree;
        let demand = Demand::of(tree, shapes, largest.as_ref());
        if !demand.fits(tree, root) {
            return Err(demand.no_domain(tree, constraint, levels.coarsest.max(1)));
        }
        let by_level = domains_by_level(tree, root, levels.finest, &demand);
        ledger.note_work(pods.len() + by_level.iter().map(Vec::len).sum::<usize>());
        let pinned = levels
            .required
            .and_then(|required| Some((required, pinned_domains(ledger, tree, gang, sets, required)?)));
        let is_allowed = |domain: DomainId| {
            pinned
                .as_ref()
                .is_none_or(|(required, pinned)| pinned.contains(&tree.ancestor_at(domain, *required)))
        };
        let found: Vec<DomainId> = by_level
            .iter()
            .rev()
            .flatten()
            .copied()
            .filter(|domain| (levels.coarsest..=levels.finest).contains(&tree.domain(*domain).level))
            .filter(|domain| is_allowed(*domain) && demand.fits(tree, *domain))
            .collect();
        if found.is_empty() {
            return Err(demand.no_domain(tree, constraint, levels.coarsest.max(1)));
        }
        Ok(DomainChoice {
            domains: Some(found),
            scores: levels
                .preferred
                .and_then(|preferred| topology_scores(tree, &by_level, preferred, ledger.nodes.len())),
        })
    }
}

fn unknown_topology(constraint: &TopologyConstraint, level: Option<String>) -> PlacementFailure {
    PlacementFailure::TopologyUnknown {
        topology: constraint.topology.clone(),
        level,
    }
}

/// The levels of a topology that a constraint names; 0 = the root, 1 = the coarsest level.
struct Levels {
    required: Option<usize>,
    preferred: Option<usize>,
    /// The search considers domains from the finest to the coarsest of these levels.
    finest: usize,
    coarsest: usize,
}

impl Levels {
    /// `None` = the constraint names no level.
    fn of(tree: &DomainTree, constraint: &TopologyConstraint) -> Result<Option<Levels>, PlacementFailure> {
        let find = |level: &Option<String>| match level.as_deref().filter(|level| !level.is_empty()) {
            Some(level) => tree
                .level(level)
                .map(Some)
                .ok_or_else(|| unknown_topology(constraint, Some(level.to_owned()))),
            None => Ok(None),
        };
        let (required, preferred) = (find(&constraint.required_level)?, find(&constraint.preferred_level)?);
        let (finest, coarsest) = match (preferred, required) {
            (None, None) => return Ok(None),
            (Some(preferred), None) => (preferred, 0),
            (None, Some(required)) => (required, required),
            (Some(preferred), Some(required)) => (preferred.max(required), required),
        };
        Ok(Some(Levels {
            required,
            preferred,
            finest,
            coarsest,
        }))
    }
}

/// The smallest domain that contains all nodes of the scope, but not finer than the coarsest level of the constraint.
fn search_root(tree: &DomainTree, levels: &Levels, scope: Scope<'_>) -> DomainId {
    let stop = [levels.required, levels.preferred]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(0);
    let in_domain: Option<FxHashSet<NodeId>> = scope.domain.map(|nodes| nodes.iter().copied().collect());
    let mut root = DomainId::new(0);
    loop {
        let domain = tree.domain(root);
        if domain.level >= stop {
            return root;
        }
        let next = match (scope.domain, scope.allowed) {
            (None, NodeSet::All) => match domain.children.as_slice() {
                [only] => Some(*only),
                _ => None,
            },
            _ => {
                let in_scope = |node: &NodeId| {
                    scope.allowed.contains(*node) && in_domain.as_ref().is_none_or(|nodes| nodes.contains(node))
                };
                let child = |node: &NodeId| tree.domain_of(*node, domain.level + 1);
                let mut children = domain.nodes.iter().filter(|node| in_scope(node)).map(child);
                let first = children.next().flatten();
                if children.all(|other| other == first) {
                    first
                } else {
                    None
                }
            }
        };
        let Some(next) = next else { return root };
        root = next;
    }
}

/// The pods to place, and how many of them fit into a domain.
struct Demand<'t> {
    pods: usize,
    total: QueueResources,
    capacity: DomainCapacity<'t>,
}

/// How the capacity of a domain is measured.
enum DomainCapacity<'t> {
    /// The pods request the same kinds of resources: by domain id, how many pods of the largest request fit.
    PodsPerDomain(&'t [i64]),
    /// The pods request nothing, so any number of them fits.
    Unlimited,
    /// The pods differ: a lower bound of the sum of their requests is compared with the free resources of the domain.
    BySum(QueueResources),
}

impl<'t> Demand<'t> {
    /// `largest` is the largest request, if the pods have one; the tree has its capacity, unless it is empty.
    fn of<'a, S: Iterator<Item = &'a Shape>>(
        tree: &'t DomainTree,
        shapes: impl Fn() -> S,
        largest: Option<&PodRequest>,
    ) -> Demand<'t> {
        Demand {
            pods: shapes().count(),
            total: total_demand(shapes(), charged_gpus),
            capacity: match largest.map(|largest| tree.pod_capacity(largest)) {
                Some(Some(per_domain)) => DomainCapacity::PodsPerDomain(per_domain),
                Some(None) => DomainCapacity::Unlimited,
                None => DomainCapacity::BySum(total_demand(shapes(), least_gpus)),
            },
        }
    }

    fn pods_that_fit(&self, tree: &DomainTree, domain: DomainId) -> i64 {
        match self.capacity {
            DomainCapacity::PodsPerDomain(per_domain) => per_domain[domain.index()],
            DomainCapacity::Unlimited => i64::MAX,
            DomainCapacity::BySum(least) if fits_by_sum(&least, &tree.domain(domain).free) => self.pods as i64,
            DomainCapacity::BySum(_) => 0,
        }
    }

    fn fits(&self, tree: &DomainTree, domain: DomainId) -> bool {
        self.pods_that_fit(tree, domain) >= self.pods as i64
    }

    /// The failure that names the domains of a level with the highest capacity.
    fn no_domain(&self, tree: &DomainTree, constraint: &TopologyConstraint, level: usize) -> PlacementFailure {
        let capacity = |domain: DomainId| {
            let pods = self.pods_that_fit(tree, domain).clamp(0, self.pods as i64);
            u32::try_from(pods).unwrap_or(u32::MAX)
        };
        let mut domains: Vec<(String, u32)> = tree
            .domains
            .iter()
            .enumerate()
            .filter(|(_, domain)| domain.level == level)
            .map(|(at, domain)| (domain.name.clone(), capacity(DomainId::new(at))))
            .collect();
        domains.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        domains.truncate(DOMAINS_SHOWN_MAX);
        let level = constraint
            .required_level
            .clone()
            .or_else(|| constraint.preferred_level.clone());
        PlacementFailure::NoDomain {
            topology: constraint.topology.clone(),
            level: level.unwrap_or_default(),
            domains,
            required: self.pods as u32,
        }
    }
}

/// The domains below `root` by level, from the root to the finest level. Siblings are sorted by utilization, fullest first,
/// so that large free domains remain for large gangs.
fn domains_by_level(tree: &DomainTree, root: DomainId, finest: usize, demand: &Demand<'_>) -> Vec<Vec<DomainId>> {
    let mut levels: Vec<Vec<DomainId>> = vec![vec![root]];
    loop {
        let above = levels.last().expect("there is a first level");
        if tree.domain(above[0]).level >= finest {
            return levels;
        }
        let mut below = Vec::new();
        for domain in above {
            let keyed = |child: &DomainId| {
                let row = tree.domain(*child);
                (utilization(&demand.total, &row.free.base), row.rank, *child)
            };
            let mut children: Vec<(f64, u32, DomainId)> = tree.domain(*domain).children.iter().map(keyed).collect();
            children.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
            below.extend(children.into_iter().map(|(.., child)| child));
        }
        if below.is_empty() {
            return levels;
        }
        levels.push(below);
    }
}

/// Scores by the position of a node's domain among all domains of the preferred level.
fn topology_scores(
    tree: &DomainTree,
    by_level: &[Vec<DomainId>],
    preferred: usize,
    nodes: usize,
) -> Option<TopologyScores> {
    let level = by_level.iter().find(|level| tree.domain(level[0]).level == preferred)?;
    let mut scores: TopologyScores = vec![None; nodes];
    for (at, domain) in level.iter().enumerate() {
        let tenths = 10 * (at as i64 + 1) / level.len() as i64;
        for node in &tree.domain(*domain).nodes {
            scores[node.index()] = Some(tenths * weights::DOMAIN_TENTH);
        }
    }
    Some(scores)
}

/// The domains of the required level in which pods of the sets run already: the other pods have to join them. `None` = no
/// pod of the sets has a place.
fn pinned_domains(
    ledger: &Ledger,
    tree: &DomainTree,
    gang: GangId,
    sets: &[u32],
    required: usize,
) -> Option<Vec<DomainId>> {
    let pod_sets = &ledger.gang(gang).pod_sets;
    if sets.iter().all(|set| pod_sets[*set as usize].active_allocated() == 0) {
        return None;
    }
    let mut pinned: Vec<DomainId> = sets
        .iter()
        .flat_map(|set| &pod_sets[*set as usize].pods)
        .map(|pod| &ledger.pod(*pod).placement)
        .filter(|place| place.status.is_active_allocated())
        .filter_map(|place| tree.domain_of(place.node?, required))
        .collect();
    pinned.sort_unstable();
    pinned.dedup();
    Some(pinned)
}

/// The largest request in every resource, if all pods request the same kinds of resources; otherwise a number of pods that
/// fit has no meaning.
fn largest_if_homogeneous<'a>(mut shapes: impl Iterator<Item = &'a Shape>) -> Option<PodRequest> {
    let mut largest = PodRequest::of(shapes.next()?);
    for shape in shapes {
        let request = PodRequest::of(shape);
        if !request.is_comparable(&largest) {
            return None;
        }
        largest.raise_to(&request);
    }
    Some(largest)
}

/// Sum of the requests for CPU, memory and GPUs, with `gpus` of each shape.
fn total_demand<'a>(shapes: impl Iterator<Item = &'a Shape>, gpus: impl Fn(&Shape) -> Gpus) -> QueueResources {
    let demand = |shape: &Shape| QueueResources {
        cpu_milli: shape.base.cpu_milli,
        memory_bytes: shape.base.memory_bytes,
        gpus: gpus(shape),
    };
    shapes.map(demand).sum()
}

/// GPUs as queues are charged for them. As in KAI, `gpu-memory` requests and MIG slices do not affect the order of domains.
fn charged_gpus(shape: &Shape) -> Gpus {
    match shape.gpu {
        GpuKind::Whole { .. } | GpuKind::Fraction { .. } => {
            Gpus::hundredths(shape.accepted_hundredths(UNKNOWN_GPU_MEMORY_MIB)) * shape.devices()
        }
        GpuKind::None | GpuKind::Memory { .. } | GpuKind::Mig { .. } => Gpus::ZERO,
    }
}

/// A lower bound of the GPUs that the pod takes: a node can count a fraction as less, because it rounds to MiB.
fn least_gpus(shape: &Shape) -> Gpus {
    match shape.gpu {
        GpuKind::Whole { devices } => Gpus::whole(devices),
        GpuKind::Fraction { fraction, devices } => Gpus::hundredths(fraction.percent()) * devices,
        GpuKind::None | GpuKind::Memory { .. } | GpuKind::Mig { .. } => Gpus::ZERO,
    }
}

/// Whether the domain has the resources for the sum of all requests. Shares of GPUs fit into GPUs in use, too.
fn fits_by_sum(demand: &QueueResources, free: &DomainFree) -> bool {
    let mut free_amounts = as_amounts(&free.base);
    free_amounts.gpus += free.gpu_parts;
    let fits = |resource: Resource| demand[resource] <= 0 || demand[resource] <= free_amounts[resource];
    Resource::all(fits)
}

fn as_amounts(free: &NodeResources) -> QueueResources {
    QueueResources {
        cpu_milli: free.cpu_milli,
        memory_bytes: free.memory_bytes,
        gpus: Gpus::whole(free.gpus),
    }
}

/// The part of a domain's free resources that the pods would take, of the resource for which it is highest.
fn utilization(demand: &QueueResources, free: &NodeResources) -> f64 {
    /// For a resource that the domain does not have at all.
    const MISSING: f64 = 1000.0;
    let free = as_amounts(free);
    let ratio = |resource: Resource| {
        let (need, free) = (demand[resource], free[resource]);
        if free <= 0 { MISSING } else { need as f64 / free as f64 }
    };
    let needed = Resource::ALL.into_iter().filter(|resource| demand[*resource] > 0);
    needed.map(ratio).fold(0.0, f64::max)
}
