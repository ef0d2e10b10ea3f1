//! Gangs and the tree of their subgroups.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::ids::{PodId, QueueId, Symbol};
use crate::model::{Millis, TopologyConstraint};
use crate::reasons::SubGroupExcess;
use crate::report::Status;
use crate::tables::Share;

/// A member of a subgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Member {
    /// A leaf, by index into the gang's pod sets.
    Pods(u32),
    /// An inner group, by index into the gang's groups.
    Group(u32),
}

/// An inner node of a gang's tree; index 0 is the gang itself.
#[derive(Clone, Debug)]
pub(crate) struct SubGroup {
    pub(crate) parent: Option<u32>,
    /// In order of names.
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

/// Pods of a set; up to four take no memory beside the row.
pub(crate) type PodList = SmallVec<[PodId; 4]>;
/// Pod sets of a gang: one in nearly all cases.
pub(crate) type PodSets = SmallVec<[PodSet; 1]>;

/// A leaf of a gang's tree.
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
    /// Pods that are pending but refused by the edge.
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

    /// Pods that run or could be started.
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
    /// False while only its pods have been seen.
    pub(crate) known: bool,
    pub(crate) uid: Box<str>,
    pub(crate) created: Millis,
    /// Position among all gangs by age, then uid, then name.
    pub(crate) seniority: u32,
    pub(crate) queue_name: Symbol,
    /// The leaf queue; `None` = missing, cut off or not a leaf.
    pub(crate) queue: Option<QueueId>,
    pub(crate) priority: i32,
    pub(crate) preemptible: bool,
    /// Shared by gangs without subgroups and topology.
    pub(crate) groups: Arc<[SubGroup]>,
    pub(crate) pod_sets: PodSets,
    /// If set, it has more subgroups than are scheduled: all its pods are in one set, and none is started.
    pub(crate) excess: Option<SubGroupExcess>,
    /// Pods that name a subgroup which is not there.
    pub(crate) strays: Vec<PodId>,
    pub(crate) last_start: Option<Millis>,
    pub(crate) last_eviction: Option<Millis>,
    pub(crate) stale_since: Option<Millis>,
    pub(crate) preemption_delay: Millis,
    pub(crate) staleness_grace: Option<Option<Millis>>,
    pub(crate) schedulable: bool,
    /// Why nothing of it may start, in the words of the edge. Then it is not `schedulable`.
    pub(crate) refused: Option<Box<str>>,
    /// What its pods that really hold a place are charged.
    pub(crate) allocated: Share,
    /// How often in a row the search for victims was cut short, and the cycle from which it may search again.
    pub(crate) searches_cut: u32,
    pub(crate) search_from: u64,
    /// Actions that tried it in vain since they last came to the end of all gangs, as bits by [`Round`](crate::work::Round).
    pub(crate) tried_by: u8,
    /// If true, it is among [`Ledger::stirred`](crate::ledger::Ledger).
    pub(crate) stirred: bool,
}

impl Gang {
    /// When it may evict others, if not now.
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

    pub(crate) fn count(&self, status: Status) -> u32 {
        self.pod_sets.iter().map(|set| set.counts[status as usize]).sum()
    }

    /// Pods that a decision can start now.
    pub(crate) fn waiting(&self) -> u32 {
        self.pod_sets
            .iter()
            .map(|set| set.counts[Status::Pending as usize] - set.refused)
            .sum()
    }

    pub(crate) fn active_allocated(&self) -> u32 {
        self.pod_sets.iter().map(PodSet::active_allocated).sum()
    }

    /// Whether any of its pods holds a place, as opposed to waiting for it.
    pub(crate) fn has_started(&self) -> bool {
        self.pod_sets.iter().any(|set| set.allocated() > 0)
    }

    pub(crate) fn active_used(&self) -> u32 {
        self.pod_sets.iter().map(PodSet::active_used).sum()
    }

    pub(crate) fn is_elastic(&self) -> bool {
        self.pod_sets.iter().any(PodSet::is_elastic)
    }

    /// Whether any of it is bound to topology domains.
    pub(crate) fn has_topology(&self) -> bool {
        self.groups.iter().any(|group| group.topology.is_some())
            || self.pod_sets.iter().any(|set| set.topology.is_some())
    }
}
