//! Placing the pods of a gang: all pods of one attempt or none, within the topology domains that its subgroups require.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::cycle::Cycle;
use crate::ids::{DomainId, GangId, NodeId, PodId};
use crate::ledger::CoreChange;
use crate::model::{Preemptibility, QueueResources, TopologyConstraint};
use crate::place::topology::{DomainChoice, TopologyScores};
use crate::reasons::Rejections;
use crate::share::{self, Bound};
use crate::tables::{Gang, Member};

/// Whether an attempt may bind pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlacementMode {
    /// Bind a pod to idle resources, pipeline it to releasing ones.
    Real,
    /// Part of a simulation: pipeline only. An evicted pod that gets its old place again is kept there.
    Simulated,
}

/// The nodes that an attempt may use.
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

/// The nodes that a subgroup may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope<'s> {
    /// The nodes of the attempt.
    pub(crate) allowed: &'s NodeSet,
    /// The nodes of the topology domain that was chosen for the subgroup, if any; all of them are allowed.
    pub(crate) domain: Option<&'s [NodeId]>,
}

/// Why a gang could not be placed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PlacementFailure {
    /// The gang has no pod to place.
    NoPods,
    /// The gang would exceed the limit or quota of a queue.
    Bound(Bound),
    /// No node accepts this pod; `placed` other pods had a node.
    Pod {
        pod: PodId,
        placed: u32,
        /// Why each node rejected the pod; `None` in a simulation.
        rejections: Option<Arc<Rejections>>,
    },
    /// No domain can hold the subgroup.
    NoDomain {
        topology: String,
        level: String,
        domains: Vec<(String, u32)>,
        required: u32,
    },
    /// The budget of work ended before the attempt did.
    OutOfWork,
    /// The topology, or one of its levels, does not exist.
    TopologyUnknown { topology: String, level: Option<String> },
}

/// One attempt to place a gang.
pub(super) struct Attempt {
    pub(super) gang: GangId,
    pub(super) mode: PlacementMode,
    /// Scores by subgroup and by pod set; both empty for a gang without topology constraints.
    subgroup_scores: Vec<Option<TopologyScores>>,
    pod_set_scores: Vec<Option<TopologyScores>>,
    placed: u32,
    /// Some pods share GPUs. Their charge depends on the node, so the bounds of queues are checked for each node.
    pub(super) has_shared_gpu_pods: bool,
    /// For a semi-preemptible gang with such pods: the pods of the attempt that join its core, and the change of the core's charge by the
    /// pods that are placed so far.
    core: Option<CoreChange>,
}

impl Attempt {
    /// If the pod joins the core of a semi-preemptible gang: what the attempt has added to the core's charge so far.
    pub(super) fn core_with(&self, pod: PodId) -> Option<QueueResources> {
        let core = self.core.as_ref().filter(|core| core.joining.contains(&pod));
        core.map(|core| core.others)
    }
}

impl Cycle<'_> {
    /// Places `pods` of a gang, all or none.
    pub(crate) fn place_gang(
        &mut self,
        gang: GangId,
        pods: &[PodId],
        mode: PlacementMode,
        nodes: &NodeSet,
    ) -> Result<(), PlacementFailure> {
        if pods.is_empty() {
            return Err(PlacementFailure::NoPods);
        }
        let has_shared_gpu_pods = pods.iter().any(|pod| self.ledger.shape_of(*pod).is_shared());
        if self.ledger.gang(gang).preemptibility != Preemptibility::Preemptible {
            self.ledger.settle_cores();
        }
        let memory_mib = self.gpu_memory_max_mib;
        let request = self
            .ledger
            .queue_request(gang, pods, |shape| shape.requested(memory_mib));
        if let Some(bound) = share::exceeded(self.ledger, gang, &request) {
            return Err(PlacementFailure::Bound(bound));
        }
        let checkpoint = self.ledger.checkpoint();
        let row = self.ledger.gang(gang);
        let scope = Scope {
            allowed: nodes,
            domain: None,
        };
        let constrained = row.has_topology();
        let mut attempt = Attempt {
            gang,
            mode,
            subgroup_scores: if constrained {
                vec![None; row.sub_groups.len()]
            } else {
                Vec::new()
            },
            pod_set_scores: if constrained {
                vec![None; row.pod_sets.len()]
            } else {
                Vec::new()
            },
            placed: 0,
            has_shared_gpu_pods,
            core: request.core.filter(|_| has_shared_gpu_pods),
        };
        let result = if constrained {
            self.place_subgroup(&mut attempt, 0, pods, scope)
        } else {
            // Without topology the subgroups only order the pods, and `pods` has that order already.
            self.place_pods(&mut attempt, pods, scope)
        };
        if result.is_err() {
            self.ledger.rollback(checkpoint);
        }
        result
    }

    fn place_subgroup(
        &mut self,
        attempt: &mut Attempt,
        subgroup: u32,
        pods: &[PodId],
        scope: Scope<'_>,
    ) -> Result<(), PlacementFailure> {
        if pods.is_empty() {
            return Ok(());
        }
        let row = self.ledger.gang(attempt.gang);
        let Some(constraint) = row.sub_groups[subgroup as usize].topology.clone() else {
            return self.place_members(attempt, subgroup, pods, scope);
        };
        let mut sets = Vec::new();
        row.sets_below(subgroup, &mut sets);
        let DomainChoice { domains, scores } = self.suitable_domains(attempt.gang, &constraint, &sets, pods, scope)?;
        if scores.is_some() {
            attempt.subgroup_scores[subgroup as usize] = scores;
        }
        self.try_domains(attempt, &constraint, domains, scope, |cycle, attempt, scope| {
            cycle.place_members(attempt, subgroup, pods, scope)
        })
    }

    /// Places the pods of a subgroup, one member after the other.
    fn place_members(
        &mut self,
        attempt: &mut Attempt,
        subgroup: u32,
        pods: &[PodId],
        scope: Scope<'_>,
    ) -> Result<(), PlacementFailure> {
        let gang = self.ledger.gang(attempt.gang);
        let mut by_member: FxHashMap<Member, Vec<PodId>> = FxHashMap::default();
        for pod in pods {
            let set = self.ledger.pod(*pod).pod_set;
            if let Some(member) = set.and_then(|set| gang.member_with(subgroup, set)) {
                by_member.entry(member).or_default().push(*pod);
            }
        }
        for member in gang.ordered_members(subgroup) {
            let Some(pods) = by_member.remove(&member) else {
                continue;
            };
            match member {
                Member::Pods(set) => self.place_pod_set(attempt, set, &pods, scope)?,
                Member::SubGroup(subgroup) => self.place_subgroup(attempt, subgroup, &pods, scope)?,
            }
        }
        Ok(())
    }

    fn place_pod_set(
        &mut self,
        attempt: &mut Attempt,
        set: u32,
        pods: &[PodId],
        scope: Scope<'_>,
    ) -> Result<(), PlacementFailure> {
        if pods.is_empty() {
            return Ok(());
        }
        let Some(constraint) = self.ledger.gang(attempt.gang).pod_sets[set as usize].topology.clone() else {
            return self.place_pods(attempt, pods, scope);
        };
        let DomainChoice { domains, scores } = self.suitable_domains(attempt.gang, &constraint, &[set], pods, scope)?;
        if scores.is_some() {
            attempt.pod_set_scores[set as usize] = scores;
        }
        self.try_domains(attempt, &constraint, domains, scope, |cycle, attempt, scope| {
            cycle.place_pods(attempt, pods, scope)
        })
    }

    /// Calls `place` with one domain after the other until it succeeds.
    fn try_domains(
        &mut self,
        attempt: &mut Attempt,
        constraint: &TopologyConstraint,
        domains: Option<Vec<DomainId>>,
        scope: Scope<'_>,
        mut place: impl FnMut(&mut Self, &mut Attempt, Scope<'_>) -> Result<(), PlacementFailure>,
    ) -> Result<(), PlacementFailure> {
        let Some(domains) = domains else {
            return place(self, attempt, scope);
        };
        let mut result = Err(PlacementFailure::NoPods);
        let in_domain: Option<FxHashSet<NodeId>> = scope.domain.map(|nodes| nodes.iter().copied().collect());
        for domain in domains {
            let tree = self
                .domains
                .get_updated(self.ledger, &constraint.topology)
                .expect("the topology was there just now");
            let mut nodes = tree.domain(domain).nodes.clone();
            self.ledger.note_work(1 + nodes.len() / 8);
            if let Some(in_domain) = &in_domain {
                nodes.retain(|node| in_domain.contains(node));
            }
            nodes.retain(|node| scope.allowed.contains(*node));
            let (checkpoint, placed) = (self.ledger.checkpoint(), attempt.placed);
            let core_charge = attempt.core.as_ref().map(|core| core.others);
            result = place(
                self,
                attempt,
                Scope {
                    allowed: scope.allowed,
                    domain: Some(&nodes),
                },
            );
            if result.is_ok() {
                return result;
            }
            self.ledger.rollback(checkpoint);
            attempt.placed = placed;
            if let (Some(core), Some(charge)) = (&mut attempt.core, core_charge) {
                core.others = charge;
            }
            if result == Err(PlacementFailure::OutOfWork) {
                return result;
            }
        }
        result
    }

    fn place_pods(&mut self, attempt: &mut Attempt, pods: &[PodId], scope: Scope<'_>) -> Result<(), PlacementFailure> {
        for pod in pods {
            if self.is_out_of_work() {
                return Err(PlacementFailure::OutOfWork);
            }
            if !self.place_pod(attempt, *pod, scope) {
                let rejections = (attempt.mode == PlacementMode::Real).then(|| self.rejections(*pod, scope));
                return Err(PlacementFailure::Pod {
                    pod: *pod,
                    placed: attempt.placed,
                    rejections,
                });
            }
            attempt.placed += 1;
            if let Some(core) = attempt.core.as_mut().filter(|core| core.joining.contains(pod)) {
                core.others += self.ledger.charge_of(*pod);
            }
        }
        Ok(())
    }
}

/// The scores that apply to a pod: those of its pod set, else of the nearest subgroup above.
pub(super) fn topology_scores_for<'a>(
    attempt: &'a Attempt,
    gang: &Gang,
    pod_set: Option<u32>,
) -> Option<&'a TopologyScores> {
    if attempt.subgroup_scores.is_empty() {
        return None;
    }
    let set = pod_set? as usize;
    if let Some(scores) = &attempt.pod_set_scores[set] {
        return Some(scores);
    }
    let mut subgroup = Some(gang.pod_sets[set].parent);
    while let Some(at) = subgroup {
        if let Some(scores) = &attempt.subgroup_scores[at as usize] {
            return Some(scores);
        }
        subgroup = gang.sub_groups[at as usize].parent;
    }
    None
}
