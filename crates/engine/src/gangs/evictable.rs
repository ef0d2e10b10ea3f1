//! The order in which the pods of a gang are evicted.

use smallvec::{SmallVec, smallvec};

use super::{Core, ElasticState, Progress, by_progress, elastic_state};
use crate::ids::{GangId, PodId};
use crate::ledger::Ledger;
use crate::model::QueueResources;
use crate::steps;
use crate::tables::{Gang, Member};

/// The pods of a gang that can still be evicted: active allocated ones, without those that are victims already.
pub(crate) struct Evictable<'a> {
    ledger: &'a Ledger,
    gang: &'a Gang,
    /// Pods that are victims already, sorted.
    taken: SmallVec<[PodId; 4]>,
    /// Number of evictable pods by pod set; empty if `taken` is empty.
    left: Vec<u32>,
}

/// Sums over the tree of a gang, by subgroup.
struct Sums {
    /// Number of members that have their minimum.
    satisfied: SmallVec<[usize; 2]>,
    /// Whether the subgroup can lose a pod or a member and keep its minimum.
    surplus: SmallVec<[bool; 2]>,
}

impl<'a> Evictable<'a> {
    pub(crate) fn new(ledger: &'a Ledger, gang: GangId, taken: &[PodId]) -> Evictable<'a> {
        let mut taken = SmallVec::from_slice(taken);
        taken.sort_unstable();
        let mut evictable = Evictable {
            ledger,
            gang: ledger.gang(gang),
            taken,
            left: Vec::new(),
        };
        if !evictable.taken.is_empty() {
            let sets = evictable.gang.pod_sets.iter();
            evictable.left = sets
                .map(|set| {
                    steps::count(1 + set.pods.len());
                    set.pods.iter().filter(|pod| evictable.is_left(**pod)).count() as u32
                })
                .collect();
        }
        evictable
    }

    fn is_left(&self, pod: PodId) -> bool {
        self.ledger.pod(pod).placement.status.is_active_allocated() && self.taken.binary_search(&pod).is_err()
    }

    pub(crate) fn count(&self, set: usize) -> u32 {
        match self.left.get(set) {
            Some(left) => *left,
            None => self.gang.pod_sets[set].active_allocated(),
        }
    }

    pub(crate) fn total(&self) -> u32 {
        (0..self.gang.pod_sets.len()).map(|set| self.count(set)).sum()
    }

    /// Whether there is a further unit.
    pub(crate) fn has_unit(&self) -> bool {
        let kept = if self.gang.is_semi_preemptible() {
            self.gang.core_sizes(|set| self.count(set)).iter().sum()
        } else {
            0
        };
        self.total() > kept
    }

    /// What queues are charged for the evictable pods, without pipelined ones.
    pub(crate) fn allocated(&self) -> QueueResources {
        if self.taken.is_empty() {
            return self.gang.allocated;
        }
        let mut allocated = QueueResources::ZERO;
        for pod in self
            .gang
            .pod_sets
            .iter()
            .flat_map(|set| &set.pods)
            .filter(|pod| self.is_left(**pod))
        {
            let row = self.ledger.pod(*pod);
            if let Some(node) = row.placement.node.filter(|_| row.placement.status.is_allocated()) {
                allocated += self.ledger.shape(row.shape).accepted(self.ledger.node(node).memory_mib);
            }
        }
        allocated
    }

    pub(crate) fn elastic_state(&self) -> ElasticState {
        elastic_state(self.gang, |set| self.count(set))
    }

    /// The unit that is evicted first: a pod above the minimum of its set, else an optional subgroup, else the whole gang. The core of
    /// a semi-preemptible gang is in no unit: the last one is empty.
    pub(crate) fn unit(&self) -> Vec<PodId> {
        let is_semi_preemptible = self.gang.is_semi_preemptible();
        let core =
            is_semi_preemptible.then(|| Core::of(&self.gang.pod_sets, &self.gang.sub_groups, |set| self.count(set)));
        let unit = self.elastic_unit(0, &self.sums(), core.as_ref());
        if !unit.is_empty() || is_semi_preemptible {
            return unit;
        }
        self.all_below(Member::SubGroup(0))
    }

    /// One pass is enough, because children are listed after their parents.
    fn sums(&self) -> Sums {
        let sub_groups = &self.gang.sub_groups;
        steps::count(sub_groups.len() + self.gang.pod_sets.len());
        let mut sums = Sums {
            satisfied: smallvec![0; sub_groups.len()],
            surplus: smallvec![false; sub_groups.len()],
        };
        for (at, set) in self.gang.pod_sets.iter().enumerate() {
            let (count, parent) = (self.count(at), set.parent as usize);
            sums.satisfied[parent] += usize::from(count >= set.min);
            sums.surplus[parent] |= count > set.min;
        }
        for (at, sub_group) in sub_groups.iter().enumerate().rev() {
            let required = sub_group.required_members();
            sums.surplus[at] |= sums.satisfied[at] > required;
            if let Some(parent) = sub_group.parent {
                sums.satisfied[parent as usize] += usize::from(sums.satisfied[at] >= required);
                sums.surplus[parent as usize] |= sums.surplus[at];
            }
        }
        sums
    }

    /// The first unit of a subgroup that leaves it its minimum; empty if there is none. With a core, the first unit beyond the core:
    /// pods of a subgroup that lacks its minimum are such a unit, too, if its parent does not need it.
    fn elastic_unit(&self, sub_group: u32, sums: &Sums, core: Option<&Core>) -> Vec<PodId> {
        let row = &self.gang.sub_groups[sub_group as usize];
        let satisfied = sums.satisfied[sub_group as usize];
        if satisfied == 0 && core.is_none() {
            return Vec::new();
        }
        let mut members = by_progress(&row.members, |member| self.progress(member, sums));
        members.reverse();
        if sums.surplus[sub_group as usize] || core.is_some() {
            for member in &members {
                let unit = match member {
                    Member::Pods(set) if self.has_surplus(*set) => self.last_of(*set).into_iter().collect(),
                    Member::Pods(_) => Vec::new(),
                    Member::SubGroup(sub_group) => self.elastic_unit(*sub_group, sums, core),
                };
                if !unit.is_empty() {
                    return unit;
                }
            }
        }
        let is_optional = |member: &&Member| match core {
            Some(core) => !core.keeps(**member),
            None => row.required_members() < satisfied,
        };
        let units = members.iter().filter(is_optional).map(|member| self.all_below(*member));
        units.into_iter().find(|unit| !unit.is_empty()).unwrap_or_default()
    }

    fn has_surplus(&self, set: u32) -> bool {
        self.count(set as usize) > self.gang.pod_sets[set as usize].min
    }

    fn progress(&self, member: Member, sums: &Sums) -> Progress {
        match member {
            Member::Pods(set) => Progress {
                count: self.count(set as usize) as usize,
                min: self.gang.pod_sets[set as usize].min as usize,
            },
            Member::SubGroup(sub_group) => Progress {
                count: sums.satisfied[sub_group as usize],
                min: self.gang.sub_groups[sub_group as usize].required_members(),
            },
        }
    }

    /// All evictable pods of a member.
    fn all_below(&self, member: Member) -> Vec<PodId> {
        let mut sets = Vec::new();
        match member {
            Member::Pods(set) => sets.push(set),
            Member::SubGroup(sub_group) => self.gang.sets_below(sub_group, &mut sets),
        }
        sets.iter().flat_map(|set| self.left_of(*set)).collect()
    }

    /// All evictable pods of a set, the last in task order first.
    fn left_of(&self, set: u32) -> impl Iterator<Item = PodId> {
        let pods = self.gang.pod_sets[set as usize].pods.iter().rev();
        pods.copied().filter(|pod| self.is_left(*pod))
    }

    fn last_of(&self, set: u32) -> Option<PodId> {
        self.left_of(set).next()
    }
}
