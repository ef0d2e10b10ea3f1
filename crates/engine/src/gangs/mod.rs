//! The rules of gangs: the tree of subgroups, whether a gang is ready, satisfied or stale, and which of its pods are started next and
//! evicted first.
//!
//! Reads the ledger, never changes it. Recursion goes as deep as the tree, which has at most
//! [`SUB_GROUP_DEPTH_MAX`](crate::model::SUB_GROUP_DEPTH_MAX) levels.

mod core;
mod evictable;
mod tree;

use std::cmp::Ordering;

use crate::ids::{GangId, PodId};
use crate::ledger::Ledger;
use crate::model::{Millis, PodSpec, QueueResources, TaskRank};
use crate::reasons::PodsLacking;
use crate::report::Status;
use crate::steps;
use crate::tables::{Gang, Member, Pod, PodSet};

/// How many of the subgroups that lack pods a message names: an event has room for a few.
const LACKING_SHOWN_MAX: usize = 8;

pub(crate) use core::Core;
pub use core::core_of;
pub(crate) use evictable::Evictable;
pub(crate) use tree::{DEFAULT_SUB_GROUP, Tree, TreeProblem, build_tree};

/// The order in which pods of a gang start; the reverse is the order in which they are evicted.
pub(crate) fn task_order(a: &Pod, b: &Pod) -> Ordering {
    TaskKey::of(a).order(&TaskKey::of(b))
}

/// What decides the position of a pod in task order.
#[derive(Clone, Copy)]
struct TaskKey<'a> {
    rank: TaskRank,
    created: Millis,
    uid: &'a str,
}

impl<'a> TaskKey<'a> {
    fn of(pod: &'a Pod) -> TaskKey<'a> {
        TaskKey {
            rank: pod.rank.as_deref().copied().unwrap_or_default(),
            created: pod.created,
            uid: &pod.uid,
        }
    }

    fn of_spec(pod: &'a PodSpec) -> TaskKey<'a> {
        TaskKey {
            rank: pod.rank,
            created: pod.created,
            uid: &pod.uid,
        }
    }

    fn order(&self, other: &TaskKey<'_>) -> Ordering {
        rank_order(self.rank, other.rank)
            .then_with(|| self.created.cmp(&other.created))
            .then_with(|| self.uid.cmp(other.uid))
    }
}

fn rank_order(a: TaskRank, b: TaskRank) -> Ordering {
    let number = |rank: TaskRank| match rank.priority {
        None => (2, 0),
        Some(None) => (1, 0),
        Some(Some(priority)) => (0, priority.saturating_neg()),
    };
    b.leads_kubeflow_job
        .cmp(&a.leads_kubeflow_job)
        .then_with(|| b.heads_ray_cluster.cmp(&a.heads_ray_cluster))
        .then_with(|| number(a).cmp(&number(b)))
}

/// Whether the number of allocated pods of a gang is below, at or above its minimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ElasticState {
    Below,
    Exact,
    Above,
}

/// The elastic state of a gang with this number of allocated pods per pod set.
pub(crate) fn elastic_state(gang: &Gang, allocated: impl Fn(usize) -> u32) -> ElasticState {
    let mut state = ElasticState::Exact;
    for (at, set) in gang.pod_sets.iter().enumerate() {
        match allocated(at).cmp(&set.min) {
            Ordering::Less => return ElasticState::Below,
            Ordering::Equal => {}
            Ordering::Greater => state = ElasticState::Above,
        }
    }
    state
}

/// The order of gangs within a leaf queue, smaller first: by priority, elastic state, requested GPUs (if configured) and age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GangRank(pub(crate) u128);

impl GangRank {
    pub(crate) fn new(gang: &Gang, elastic: ElasticState) -> GangRank {
        // With the sign bit flipped, signed priorities sort as unsigned numbers; the complement puts the highest first.
        let priority = !((gang.priority as u32) ^ (1 << 31));
        let (elastic, gpus) = (elastic as u128, u128::from(gang.gpu_order));
        GangRank(u128::from(priority) << 96 | elastic << 64 | gpus << 32 | u128::from(gang.seniority))
    }

    pub(crate) fn of(gang: &Gang) -> GangRank {
        GangRank::new(gang, elastic_state(gang, |at| gang.pod_sets[at].active_allocated()))
    }
}

// ---- readiness and satisfaction --------------------------------------------------------------------------------------

impl Gang {
    /// Whether enough pods exist to start the gang.
    pub(crate) fn is_ready(&self) -> bool {
        self.known && self.excess.is_none() && self.sub_group_ready(0)
    }

    fn sub_group_ready(&self, sub_group: u32) -> bool {
        let row = &self.sub_groups[sub_group as usize];
        steps::count(row.members.len());
        let ready = row.members.iter().filter(|member| self.member_ready(**member));
        ready.count() >= row.required_members()
    }

    /// Whether enough pods of a subgroup's member exist to satisfy that member.
    fn member_ready(&self, member: Member) -> bool {
        match member {
            Member::Pods(set) => {
                let set = &self.pod_sets[set as usize];
                set.ready() >= set.min
            }
            Member::SubGroup(sub_group) => self.sub_group_ready(sub_group),
        }
    }

    fn satisfied_members(&self, sub_group: u32, satisfied: fn(&PodSet) -> bool) -> usize {
        let members = &self.sub_groups[sub_group as usize].members;
        steps::count(members.len());
        members
            .iter()
            .filter(|member| match member {
                Member::Pods(set) => satisfied(&self.pod_sets[*set as usize]),
                Member::SubGroup(sub_group) => self.sub_group_satisfied(*sub_group, satisfied),
            })
            .count()
    }

    fn sub_group_satisfied(&self, sub_group: u32, satisfied: fn(&PodSet) -> bool) -> bool {
        self.satisfied_members(sub_group, satisfied) >= self.sub_groups[sub_group as usize].required_members()
    }

    /// Whether the gang has its minimum, pipelined pods included.
    pub(crate) fn is_satisfied(&self) -> bool {
        self.sub_group_satisfied(0, PodSet::is_satisfied)
    }

    /// Whether the gang has its minimum without pipelined pods.
    pub(crate) fn holds_minimum(&self) -> bool {
        self.sub_group_satisfied(0, |set| set.allocated() >= set.min)
    }

    /// Whether the gang has its minimum, pipelined and releasing pods included.
    pub(crate) fn is_whole(&self) -> bool {
        self.sub_group_satisfied(0, |set| set.active_used() >= set.min)
    }

    /// Whether some pods run, but fewer than the minimum. A gang with succeeded pods is finishing and never stale.
    pub(crate) fn is_stale(&self) -> bool {
        self.active_used() > 0 && self.count(Status::Succeeded) == 0 && !self.is_whole()
    }

    /// Whether the gang is stale, or is marked as stale and may have recovered.
    pub(crate) fn is_or_was_stale(&self) -> bool {
        self.known && (self.stale_since.is_some() || self.is_stale())
    }

    /// Whether pods of the gang terminate, and the others are fewer than its minimum.
    pub(crate) fn loses_minimum(&self) -> bool {
        self.known && self.active_used() > 0 && self.count(Status::Succeeded) == 0 && !self.is_satisfied()
    }

    /// Whether a cycle has to visit the gang: it has pending pods, is or was stale, or loses its minimum.
    pub(crate) fn is_active(&self) -> bool {
        // Without pods that terminate, a gang below its minimum is stale.
        let terminate = self.count(Status::Releasing) + self.count(Status::StuckInReleasing) > 0;
        self.count(Status::Pending) > 0 || self.is_or_was_stale() || (terminate && self.loses_minimum())
    }

    /// Number of pods that must run together, for messages. Saturating, because tenants write the minimums.
    pub(crate) fn required_pods(&self) -> u32 {
        self.pod_sets.iter().fold(0, |sum, set| sum.saturating_add(set.min))
    }

    /// The first subgroups with fewer ready pods than their minimum, for messages.
    pub(crate) fn pods_lacking(&self) -> Vec<PodsLacking> {
        let lacking = self.pod_sets.iter().filter(|set| set.ready() < set.min);
        let lacking = lacking.map(|set| PodsLacking {
            sub_group: (*set.name != *DEFAULT_SUB_GROUP).then(|| set.name.to_string()),
            required: set.min,
            existing: set.alive(),
            gated: set.counts[Status::Gated as usize],
        });
        lacking.take(LACKING_SHOWN_MAX).collect()
    }

    /// The members of a subgroup, in the order in which pods are placed.
    pub(crate) fn ordered_members(&self, sub_group: u32) -> Vec<Member> {
        let members = &self.sub_groups[sub_group as usize].members;
        by_progress(members, |member| self.member_progress(member))
    }

    fn member_progress(&self, member: Member) -> Progress {
        match member {
            Member::Pods(set) => {
                let set = &self.pod_sets[set as usize];
                Progress {
                    count: set.active_allocated() as usize,
                    min: set.min as usize,
                }
            }
            Member::SubGroup(sub_group) => Progress {
                count: self.satisfied_members(sub_group, PodSet::is_satisfied),
                min: self.sub_groups[sub_group as usize].required_members(),
            },
        }
    }

    /// The member of the subgroup that contains the pod set.
    pub(crate) fn member_with(&self, sub_group: u32, set: u32) -> Option<Member> {
        let mut member = Member::Pods(set);
        let mut above = Some(self.pod_sets[set as usize].parent);
        while let Some(at) = above {
            if at == sub_group {
                return Some(member);
            }
            member = Member::SubGroup(at);
            above = self.sub_groups[at as usize].parent;
        }
        None
    }

    /// Adds the pod sets below a subgroup to `into`.
    pub(crate) fn sets_below(&self, sub_group: u32, into: &mut Vec<u32>) {
        let members = &self.sub_groups[sub_group as usize].members;
        steps::count(members.len());
        for member in members {
            match member {
                Member::Pods(set) => into.push(*set),
                Member::SubGroup(sub_group) => self.sets_below(*sub_group, into),
            }
        }
    }
}

// ---- which pods next -------------------------------------------------------------------------------------------------

/// Which pods an attempt can place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Candidates {
    /// Waiting pods.
    Waiting,
    /// Waiting pods, and pods that the running simulation evicted.
    Simulated,
}

impl Ledger {
    /// Sets `into` to the pods that one attempt places: those missing to the minimum, or one more pod once the gang is satisfied.
    pub(crate) fn pods_to_place(&self, gang: GangId, candidates: Candidates, into: &mut Vec<PodId>) {
        into.clear();
        let row = self.gang(gang);
        if let [set] = row.pod_sets.as_slice() {
            self.take_from_set(set, candidates, into);
        } else {
            self.take_from_sub_group(row, 0, candidates, into);
        }
    }

    fn take_from_sub_group(&self, gang: &Gang, sub_group: u32, candidates: Candidates, into: &mut Vec<PodId>) {
        let satisfied = gang.sub_group_satisfied(sub_group, PodSet::is_satisfied);
        let required = gang.sub_groups[sub_group as usize].required_members();
        let members = gang.ordered_members(sub_group);
        if !satisfied {
            // A member that lacks pods can't reach its minimum. In a simulation every member that ran can: its pods are evicted only.
            let can_help = |member: &Member| candidates == Candidates::Simulated || gang.member_ready(*member);
            for member in members.into_iter().filter(can_help).take(required) {
                match member {
                    Member::Pods(set) => {
                        let set = &gang.pod_sets[set as usize];
                        if !set.is_satisfied() {
                            self.take_from_set(set, candidates, into);
                        }
                    }
                    Member::SubGroup(sub_group) => {
                        if !gang.sub_group_satisfied(sub_group, PodSet::is_satisfied) {
                            self.take_from_sub_group(gang, sub_group, candidates, into);
                        }
                    }
                }
            }
            return;
        }
        let before = into.len();
        for member in members {
            match member {
                Member::Pods(set) => {
                    let set = &gang.pod_sets[set as usize];
                    self.take_from_set(set, candidates, into);
                    // An optional member starts with its own minimum or not at all, too.
                    let missing = set.min.saturating_sub(set.active_allocated()) as usize;
                    if into.len() - before < missing {
                        into.truncate(before);
                    }
                }
                Member::SubGroup(sub_group) => {
                    let can_start = candidates == Candidates::Simulated
                        || gang.sub_group_satisfied(sub_group, PodSet::is_satisfied)
                        || gang.sub_group_ready(sub_group);
                    if can_start {
                        self.take_from_sub_group(gang, sub_group, candidates, into);
                    }
                }
            }
            if into.len() > before {
                return;
            }
        }
    }

    fn take_from_set(&self, set: &PodSet, candidates: Candidates, into: &mut Vec<PodId>) {
        let missing = set.min.saturating_sub(set.active_allocated()).max(1);
        let placeable = set.pods.iter().copied().filter(|pod| match candidates {
            Candidates::Waiting => self.pod(*pod).is_waiting(),
            Candidates::Simulated => self.pod(*pod).is_placeable(),
        });
        into.extend(placeable.take(missing as usize));
    }

    /// What these pods request from queues; `gpu-memory` counts as a part of a GPU of `memory_mib`.
    pub(crate) fn requested_by(&self, pods: &[PodId], memory_mib: Option<i64>) -> QueueResources {
        pods.iter().map(|pod| self.shape_of(*pod).requested(memory_mib)).sum()
    }
}

/// How far a member of a subgroup is: its allocated pods or satisfied members, and its minimum of them.
#[derive(Clone, Copy, Debug)]
struct Progress {
    count: usize,
    min: usize,
}

impl Progress {
    /// Unsatisfied members first, then by the ratio of count and minimum, members without a minimum last.
    fn order(&self, other: &Progress) -> Ordering {
        match (self.count >= self.min, other.count >= other.min) {
            (false, false) => Ordering::Equal,
            (false, true) => Ordering::Less,
            (true, false) => Ordering::Greater,
            (true, true) => match (self.min, other.min) {
                (0, 0) => self.count.cmp(&other.count),
                (0, _) => Ordering::Greater,
                (_, 0) => Ordering::Less,
                // Compares the ratios of count and minimum by cross-multiplication.
                (own, others) => (self.count * others).cmp(&(other.count * own)),
            },
        }
    }
}

/// Members by progress, then by name: the tree has them by name, and the sort is stable.
fn by_progress(members: &[Member], progress: impl Fn(Member) -> Progress) -> Vec<Member> {
    if members.len() <= 1 {
        return members.to_vec();
    }
    let mut ordered: Vec<(Progress, Member)> = members.iter().map(|member| (progress(*member), *member)).collect();
    ordered.sort_by(|(a, _), (b, _)| {
        steps::count(1);
        a.order(b)
    });
    ordered.into_iter().map(|(_, member)| member).collect()
}

#[cfg(test)]
mod tests;
