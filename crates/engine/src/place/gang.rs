//! Placing the pods of a gang: all that one attempt needs, within the topology domains that its groups ask for.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::cycle::Cycle;
use crate::ids::{DomainId, GangId, NodeId, PodId};
use crate::model::TopologyConstraint;
use crate::place::domains::PodVector;
use crate::reasons::Rejections;
use crate::share::{self, Bound};
use crate::tables::{CPU, GPU, Gang, MEMORY, Member, QueueResources, Shape};

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
    /// The budget of work was used up before an answer was found.
    Cut,
    /// The topology, or one of its levels, is not there.
    TopologyUnknown { topology: String, level: Option<String> },
}

/// Points of nodes by preferred topology level, by node id; `None` = outside.
pub(super) type NodePoints = Vec<Option<i64>>;

/// Weight of a tenth of the preferred domains.
const DOMAIN_POINT: i64 = 100_000;

/// One attempt at one gang.
pub(super) struct Attempt {
    pub(super) gang: GangId,
    pub(super) mode: Mode,
    /// Points by group, then by pod set.
    group_points: Vec<Option<NodePoints>>,
    set_points: Vec<Option<NodePoints>>,
    placed: u32,
    /// Some pods are charged by the node they get, so bounds have to be checked for each.
    pub(super) mixed: bool,
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
        let requested = self.ledger.requested_by(pods, self.gpu_memory_max_mib);
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
                vec![None; row.sub_groups.len()]
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
        let Some(constraint) = row.sub_groups[group as usize].topology.clone() else {
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
        let gang = self.ledger.gang(attempt.gang);
        let mut by_member: FxHashMap<Member, Vec<PodId>> = FxHashMap::default();
        for pod in pods {
            let set = self.ledger.pod(*pod).pod_set;
            if let Some(member) = set.and_then(|set| gang.member_with(group, set)) {
                by_member.entry(member).or_default().push(*pod);
            }
        }
        for member in gang.ordered_members(group) {
            let Some(pods) = by_member.remove(&member) else {
                continue;
            };
            match member {
                Member::Pods(set) => self.place_set(attempt, set, &pods, scope)?,
                Member::SubGroup(group) => self.place_group(attempt, group, &pods, scope)?,
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
        let offered: Option<FxHashSet<NodeId>> = scope.domain.map(|nodes| nodes.iter().copied().collect());
        for domain in domains {
            let tree = self
                .domains
                .fresh(self.ledger, &constraint.topology)
                .expect("the topology was there just now");
            let mut nodes = tree.domain(domain).nodes.clone();
            self.ledger.note_work(1 + nodes.len() / 8);
            if let Some(offered) = &offered {
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
            if result == Err(Failure::Cut) {
                return result;
            }
        }
        result
    }

    fn place_pods(&mut self, attempt: &mut Attempt, pods: &[PodId], scope: Scope<'_>) -> Result<(), Failure> {
        for pod in pods {
            if self.is_out_of_work() {
                return Err(Failure::Cut);
            }
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
        let in_domain: Option<FxHashSet<NodeId>> = scope.domain.map(|nodes| nodes.iter().copied().collect());
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
                        scope.set.contains(*node) && in_domain.as_ref().is_none_or(|nodes| nodes.contains(node))
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
        ledger.note_work(pods.len() + levels.iter().map(Vec::len).sum::<usize>());
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
                .map(|pod| &ledger.pod(*pod).placement)
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

/// The points that count for a pod: its own set's, else those of the nearest group above.
pub(super) fn points_for<'a>(attempt: &'a Attempt, gang: &Gang, pod_set: Option<u32>) -> Option<&'a NodePoints> {
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
        group = gang.sub_groups[at as usize].parent;
    }
    None
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
fn total_demand<'a>(shapes: impl Iterator<Item = &'a Shape>) -> QueueResources {
    let mut total = [0; 3];
    for shape in shapes {
        let gpus = PodVector::of(shape).gpu_hundredths;
        crate::ledger::add(&mut total, [shape.base[CPU], shape.base[MEMORY], gpus], 1);
    }
    total
}

/// How much of a domain's free resources the pods would take, by the scarcest.
fn fullness(demand: &QueueResources, free: &crate::tables::NodeResources) -> f64 {
    /// For a resource that the domain does not have at all.
    const MISSING: f64 = 1000.0;
    let free = [free[CPU], free[MEMORY], free[GPU] * 100];
    let ratios = demand.iter().zip(free).filter(|(need, _)| **need > 0);
    ratios
        .map(|(need, free)| if free <= 0 { MISSING } else { *need as f64 / free as f64 })
        .fold(0.0, f64::max)
}
