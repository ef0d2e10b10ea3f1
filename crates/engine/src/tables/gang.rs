//! Gangs and the tree of their subgroups.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::ids::{PodId, QueueId, Symbol};
use crate::model::{Millis, Preemptibility, QueueResources, TopologyConstraint};
use crate::reasons::{Refusal, SubGroupExcess};
use crate::report::Status;

/// A child of a subgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Member {
    /// A leaf, by index into the gang's pod sets.
    Pods(u32),
    /// An inner node, by index into the gang's subgroups.
    SubGroup(u32),
}

/// An inner node of a gang's tree. Index 0 is the gang itself.
#[derive(Clone, Debug)]
pub(crate) struct SubGroup {
    pub(crate) parent: Option<u32>,
    /// Ordered by name.
    pub(crate) members: Vec<Member>,
    /// Members that must be satisfied; `None` = all.
    pub(crate) min_members: Option<u32>,
    pub(crate) topology: Option<Arc<TopologyConstraint>>,
}

impl SubGroup {
    pub(crate) fn required_members(&self) -> usize {
        self.min_members.map_or(self.members.len(), |min| min as usize)
    }
}

/// Pods of a set. Up to four are stored in the row itself.
pub(crate) type PodList = SmallVec<[PodId; 4]>;
/// Pod sets of a gang: one in nearly all cases.
pub(crate) type PodSets = SmallVec<[PodSet; 1]>;

/// A leaf of a gang's tree: the pods of one subgroup, or of a gang without subgroups.
#[derive(Clone, Debug)]
pub(crate) struct PodSet {
    pub(crate) name: Arc<str>,
    pub(crate) parent: u32,
    pub(crate) min: u32,
    pub(crate) topology: Option<Arc<TopologyConstraint>>,
    /// In task order: the first is started first and evicted last.
    pub(crate) pods: PodList,
    /// Pods per status.
    pub(crate) counts: [u32; Status::COUNT],
    /// Pending pods that are refused; see [`PodSpec::refused`](crate::model::PodSpec).
    pub(crate) refused: u32,
}

impl PodSet {
    fn sum(&self, keep: fn(Status) -> bool) -> u32 {
        STATUSES
            .iter()
            .filter(|status| keep(**status))
            .map(|status| self.counts[*status as usize])
            .sum()
    }

    pub(crate) fn active_allocated(&self) -> u32 {
        self.sum(Status::is_active_allocated)
    }

    pub(crate) fn allocated(&self) -> u32 {
        self.sum(Status::is_allocated)
    }

    pub(crate) fn active_used(&self) -> u32 {
        self.sum(Status::is_active_used)
    }

    /// Pods that have not ended.
    pub(crate) fn alive(&self) -> u32 {
        self.sum(Status::is_alive)
    }

    /// Pods that run or can be started.
    pub(crate) fn ready(&self) -> u32 {
        self.alive() - self.counts[Status::Gated as usize] - self.refused
    }

    pub(crate) fn is_satisfied(&self) -> bool {
        self.active_allocated() >= self.min
    }

    pub(crate) fn is_elastic(&self) -> bool {
        (self.min as usize) < self.pods.len()
    }
}

const STATUSES: [Status; Status::COUNT] = [
    Status::Pending,
    Status::Gated,
    Status::Pipelined,
    Status::Binding,
    Status::Bound,
    Status::Running,
    Status::Releasing,
    Status::StuckInReleasing,
    Status::Succeeded,
    Status::Failed,
    Status::Unknown,
];

/// A gang.
#[derive(Clone, Debug)]
pub(crate) struct Gang {
    pub(crate) key: Arc<crate::model::GangKey>,
    /// False while the engine knows pods of the gang but not the gang.
    pub(crate) known: bool,
    pub(crate) uid: Box<str>,
    pub(crate) created: Millis,
    /// Position among all gangs by age, then uid, then name.
    pub(crate) seniority: u32,
    /// Position by requested GPUs, smaller first; 0 if GPUs do not order gangs. A cycle sets it at its start.
    pub(crate) gpu_order: u32,
    pub(crate) queue_name: Symbol,
    /// The leaf queue; `None` = the queue is missing, disconnected from a root, or not a leaf.
    pub(crate) queue: Option<QueueId>,
    pub(crate) priority: i32,
    pub(crate) preemptibility: Preemptibility,
    /// Parents before children, the gang itself first. One value is shared by all gangs without subgroups and topology.
    pub(crate) sub_groups: Arc<[SubGroup]>,
    pub(crate) pod_sets: PodSets,
    /// How many pods of the sets are background pods.
    pub(crate) background_pods: u32,
    /// If set, the gang exceeds a bound on subgroups: all its pods are in one set, and none is started.
    pub(crate) excess: Option<SubGroupExcess>,
    /// Pods whose subgroup does not exist.
    pub(crate) unmatched_pods: Vec<PodId>,
    pub(crate) last_start: Option<Millis>,
    pub(crate) last_eviction: Option<Millis>,
    pub(crate) stale_since: Option<Millis>,
    pub(crate) preemption_delay: Millis,
    pub(crate) staleness_grace: Option<Option<Millis>>,
    pub(crate) schedulable: bool,
    /// Why no pod of the gang may start; if set, `schedulable` is false.
    pub(crate) refused: Option<Box<Refusal>>,
    /// What queues are charged for its pods, without pipelined ones.
    pub(crate) allocated: QueueResources,
    /// What queues are charged for the core of a semi-preemptible gang, pipelined pods included. See
    /// [`Ledger::settle_cores`](crate::ledger::Ledger::settle_cores).
    pub(crate) core_allocated: QueueResources,
    /// How many victim searches in a row ended for lack of budget.
    pub(crate) searches_cut: u32,
    /// The first cycle in which the gang may search for victims again.
    pub(crate) search_from: u64,
    /// Actions that failed to place the gang in their current round, as bits by [`Round`](crate::work::Round).
    pub(crate) tried_by: u8,
    /// Whether the gang is in [`Ledger::dirty_gangs`](crate::ledger::Ledger).
    pub(crate) dirty: bool,
    /// Whether the gang is in [`Ledger::unsettled_cores`](crate::ledger::Ledger).
    pub(crate) core_unsettled: bool,
}

impl Gang {
    /// Whether the gang may be linked to the queue that it names.
    pub(crate) fn may_use_queue(&self) -> bool {
        self.known && !self.refused.as_deref().is_some_and(Refusal::withholds_queue)
    }

    /// The end of its preemption delay, if it is not over.
    pub(crate) fn delayed_until(&self, now: Millis) -> Option<Millis> {
        if self.preemption_delay <= Millis(0) {
            return None;
        }
        let anchor = self
            .last_eviction
            .map_or(self.created, |eviction| eviction.max(self.created));
        let until = anchor + self.preemption_delay;
        (now < until).then_some(until)
    }

    /// Whether no pod of the gang may be evicted for others, and all are charged to the quota of its queue.
    pub(crate) fn is_non_preemptible(&self) -> bool {
        self.preemptibility == Preemptibility::NonPreemptible
    }

    /// Whether only the pods beyond its core may be evicted for others.
    pub(crate) fn is_semi_preemptible(&self) -> bool {
        self.preemptibility == Preemptibility::SemiPreemptible
    }

    /// Whether all its pods are background pods.
    pub(crate) fn is_background(&self) -> bool {
        let pods = || self.pod_sets.iter().map(|set| set.pods.len()).sum::<usize>();
        self.background_pods > 0 && self.background_pods as usize == pods()
    }

    pub(crate) fn count(&self, status: Status) -> u32 {
        self.pod_sets.iter().map(|set| set.counts[status as usize]).sum()
    }

    /// Number of pods that a decision can start now.
    pub(crate) fn waiting(&self) -> u32 {
        self.pod_sets
            .iter()
            .map(|set| set.counts[Status::Pending as usize] - set.refused)
            .sum()
    }

    pub(crate) fn active_allocated(&self) -> u32 {
        self.pod_sets.iter().map(PodSet::active_allocated).sum()
    }

    /// Whether any of its pods holds resources.
    pub(crate) fn has_started(&self) -> bool {
        self.pod_sets.iter().any(|set| set.allocated() > 0)
    }

    pub(crate) fn active_used(&self) -> u32 {
        self.pod_sets.iter().map(PodSet::active_used).sum()
    }

    pub(crate) fn is_elastic(&self) -> bool {
        self.pod_sets.iter().any(PodSet::is_elastic)
    }

    /// Whether the gang or one of its subgroups has a topology constraint.
    pub(crate) fn has_topology(&self) -> bool {
        self.sub_groups.iter().any(|group| group.topology.is_some())
            || self.pod_sets.iter().any(|set| set.topology.is_some())
    }
}
