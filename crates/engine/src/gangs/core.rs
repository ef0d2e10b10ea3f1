//! The core of a gang: the smallest part of it that has its minimum. In a semi-preemptible gang it is non-preemptible; the pods beyond
//! it are elastic.
//!
//! The core is a function of which pods have a place, and of nothing else: of each pod set the first pods in task order, up to its
//! minimum; of each subgroup the first members by name that have their minimum, up to the number that it requires. It is what is left
//! once every [unit](super::Evictable::unit) that keeps the minimum is evicted. If the gang lacks pods, the core has fewer pods than
//! the minimum, never more.

use smallvec::{SmallVec, smallvec};

use super::{DEFAULT_SUB_GROUP, TaskKey, Tree, build_tree};
use crate::model::{GangSpec, PodSpec};
use crate::steps;
use crate::tables::{Gang, Member, PodSet, SubGroup};

/// The parts of a gang that belong to its core.
#[derive(Clone, Debug)]
pub(crate) struct Core {
    /// By pod set: the pods of the core, if the set belongs to it.
    sizes: SmallVec<[u32; 2]>,
    /// Whether the subgroup above keeps the pod set.
    keeps_set: SmallVec<[bool; 2]>,
    /// Whether the subgroup above keeps the subgroup.
    keeps_sub_group: SmallVec<[bool; 2]>,
}

/// What a subgroup needs to know of its members to choose those that it keeps.
struct Parts {
    satisfied: SmallVec<[bool; 2]>,
    /// Whether the core of the member has a pod.
    has_core: SmallVec<[bool; 2]>,
}

impl Core {
    /// The core of a gang with this number of placed pods per pod set.
    pub(crate) fn of(sets: &[PodSet], sub_groups: &[SubGroup], placed: impl Fn(usize) -> u32) -> Core {
        steps::count(sets.len() + sub_groups.len());
        let mut core = Core {
            sizes: sets
                .iter()
                .enumerate()
                .map(|(at, set)| placed(at).min(set.min))
                .collect(),
            keeps_set: smallvec![false; sets.len()],
            keeps_sub_group: smallvec![false; sub_groups.len()],
        };
        let of_sets = Parts {
            satisfied: sets.iter().enumerate().map(|(at, set)| placed(at) >= set.min).collect(),
            has_core: core.sizes.iter().map(|size| *size > 0).collect(),
        };
        let mut of_sub_groups = Parts {
            satisfied: smallvec![false; sub_groups.len()],
            has_core: smallvec![false; sub_groups.len()],
        };
        // Children are listed after their parents.
        for (at, sub_group) in sub_groups.iter().enumerate().rev() {
            steps::count(sub_group.members.len());
            let required = sub_group.required_members();
            let state = |member: &Member| match *member {
                Member::Pods(set) => (of_sets.satisfied[set as usize], of_sets.has_core[set as usize]),
                Member::SubGroup(at) => (
                    of_sub_groups.satisfied[at as usize],
                    of_sub_groups.has_core[at as usize],
                ),
            };
            let (mut satisfied, mut without_pods) = (0, 0);
            for member in &sub_group.members {
                match state(member) {
                    (true, true) => satisfied += 1,
                    (true, false) => (satisfied, without_pods) = (satisfied + 1, without_pods + 1),
                    (false, _) => {}
                }
            }
            // Members that have their minimum without any pod count first: they cost nothing.
            let mut whole = required.saturating_sub(without_pods);
            let mut partial = required.saturating_sub(satisfied);
            let mut has_core = false;
            for member in &sub_group.members {
                let left = match state(member) {
                    (true, true) => &mut whole,
                    (false, true) => &mut partial,
                    (_, false) => continue,
                };
                let is_kept = *left > 0;
                *left -= usize::from(is_kept);
                has_core |= is_kept;
                match *member {
                    Member::Pods(set) => core.keeps_set[set as usize] = is_kept,
                    Member::SubGroup(at) => core.keeps_sub_group[at as usize] = is_kept,
                }
            }
            of_sub_groups.satisfied[at] = satisfied >= required;
            of_sub_groups.has_core[at] = has_core;
        }
        core
    }

    /// Whether the subgroup above the member keeps it.
    pub(crate) fn keeps(&self, member: Member) -> bool {
        match member {
            Member::Pods(set) => self.keeps_set[set as usize],
            Member::SubGroup(at) => self.keeps_sub_group[at as usize],
        }
    }

    /// The number of pods of the core, by pod set.
    fn sizes(&self, sets: &[PodSet], sub_groups: &[SubGroup]) -> SmallVec<[u32; 2]> {
        let mut is_part: SmallVec<[bool; 2]> = smallvec![true; sub_groups.len()];
        for (at, sub_group) in sub_groups.iter().enumerate() {
            if let Some(parent) = sub_group.parent {
                is_part[at] = is_part[parent as usize] && self.keeps_sub_group[at];
            }
        }
        let size = |(at, set): (usize, &PodSet)| {
            let is_part = is_part[set.parent as usize] && self.keeps_set[at];
            if is_part { self.sizes[at] } else { 0 }
        };
        sets.iter().enumerate().map(size).collect()
    }
}

fn core_sizes(sets: &[PodSet], sub_groups: &[SubGroup], placed: impl Fn(usize) -> u32) -> SmallVec<[u32; 2]> {
    match (sets, sub_groups) {
        ([set], [root]) if root.min_members.is_none() => smallvec![placed(0).min(set.min)],
        _ => Core::of(sets, sub_groups, placed).sizes(sets, sub_groups),
    }
}

/// Which of a gang's pods that have a place belong to its core: the rule of the engine, for readers of the same objects.
pub fn core_of(gang: &GangSpec, placed: &[&PodSpec]) -> Vec<bool> {
    let Tree {
        sub_groups, pod_sets, ..
    } = build_tree(gang);
    let set_of = |pod: &PodSpec| {
        let name = pod.sub_group.as_deref().unwrap_or(DEFAULT_SUB_GROUP);
        pod_sets.binary_search_by(|set| (*set.name).cmp(name)).ok()
    };
    let mut order: Vec<(usize, usize)> = (0..placed.len())
        .filter_map(|at| Some((set_of(placed[at])?, at)))
        .collect();
    order.sort_by(|(a_set, a), (b_set, b)| {
        steps::count(1);
        let key = |at: usize| TaskKey::of_spec(placed[at]);
        a_set.cmp(b_set).then_with(|| key(*a).order(&key(*b)))
    });
    let mut counts = vec![0; pod_sets.len()];
    order.iter().for_each(|(set, _)| counts[*set] += 1);
    let mut left = core_sizes(&pod_sets, &sub_groups, |set| counts[set]);
    let mut is_core = vec![false; placed.len()];
    for (set, at) in order {
        is_core[at] = left[set] > 0;
        left[set] = left[set].saturating_sub(1);
    }
    is_core
}

impl Gang {
    /// The number of placed pods that belong to the core, by pod set, if the sets have this number of placed pods.
    pub(crate) fn core_sizes(&self, placed: impl Fn(usize) -> u32) -> SmallVec<[u32; 2]> {
        core_sizes(&self.pod_sets, &self.sub_groups, placed)
    }

    /// Whether other gangs may evict some of its pods.
    pub(crate) fn has_evictable_pods(&self) -> bool {
        use crate::model::Preemptibility::{NonPreemptible, Preemptible, SemiPreemptible};
        match self.preemptibility {
            Preemptible => self.active_allocated() > 0,
            SemiPreemptible => {
                let core = self.core_sizes(|at| self.pod_sets[at].active_allocated());
                self.active_allocated() > core.iter().sum()
            }
            NonPreemptible => false,
        }
    }
}
