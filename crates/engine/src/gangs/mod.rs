//! The shape of a gang: its tree of subgroups, which pods are started next, which are evicted first.
//!
//! Reads the ledger, never changes it. Recursion goes as deep as the tree, which has at most
//! [`SUB_GROUP_DEPTH_MAX`](crate::model::SUB_GROUP_DEPTH_MAX) levels.

mod evictable;
mod tree;

use std::cmp::Ordering;

use crate::ids::{GangId, PodId};
use crate::ledger::Ledger;
use crate::model::TaskRank;
use crate::reasons::PodsLacking;
use crate::report::Status;
use crate::steps;
use crate::tables::{Gang, Member, Pod, PodSet, Share};

/// Subgroups that lack pods and are named: an event has room for a few.
const LACKING_SHOWN_MAX: usize = 8;

pub(crate) use evictable::Evictable;
pub(crate) use tree::{DEFAULT_SUB_GROUP, Tree, build_tree};

/// The order in which pods of a gang start; the reverse is the order in which they are evicted.
pub(crate) fn task_order(a: &Pod, b: &Pod) -> Ordering {
    let rank = |pod: &Pod| pod.rank.as_deref().copied().unwrap_or_default();
    rank_order(rank(a), rank(b))
        .then_with(|| a.created.cmp(&b.created))
        .then_with(|| a.uid.cmp(&b.uid))
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

/// Whether a gang has less than its minimum, exactly that, or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ElasticState {
    Below,
    Exact,
    Above,
}

/// The same on a subset of a gang's pods.
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

/// The order of gangs within a leaf queue, smaller first: by priority, by what they lack, by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GangRank(pub(crate) u128);

impl GangRank {
    pub(crate) fn new(gang: &Gang, elastic: ElasticState) -> GangRank {
        // The sign bit flipped makes signed priorities order as unsigned ones; the complement puts the highest first.
        let priority = !((gang.priority as u32) ^ (1 << 31));
        GangRank(u128::from(priority) << 64 | (elastic as u128) << 32 | u128::from(gang.seniority))
    }

    pub(crate) fn of(gang: &Gang) -> GangRank {
        GangRank::new(gang, elastic_state(gang, |at| gang.pod_sets[at].active_allocated()))
    }
}

// ---- readiness and satisfaction --------------------------------------------------------------------------------------

impl Gang {
    /// Whether enough pods exist to start the gang.
    pub(crate) fn is_ready(&self) -> bool {
        self.known && self.excess.is_none() && self.group_ready(0)
    }

    fn group_ready(&self, group: u32) -> bool {
        let group = &self.groups[group as usize];
        steps::count(group.members.len());
        let ready = group.members.iter().filter(|member| self.member_ready(**member));
        ready.count() >= group.required_members()
    }

    /// Whether enough pods of a member exist to satisfy it.
    fn member_ready(&self, member: Member) -> bool {
        match member {
            Member::Pods(set) => {
                let set = &self.pod_sets[set as usize];
                set.ready() >= set.min
            }
            Member::Group(group) => self.group_ready(group),
        }
    }

    fn satisfied_members(&self, group: u32, satisfied: fn(&PodSet) -> bool) -> usize {
        let members = &self.groups[group as usize].members;
        steps::count(members.len());
        members
            .iter()
            .filter(|member| match member {
                Member::Pods(set) => satisfied(&self.pod_sets[*set as usize]),
                Member::Group(group) => self.group_satisfied(*group, satisfied),
            })
            .count()
    }

    fn group_satisfied(&self, group: u32, satisfied: fn(&PodSet) -> bool) -> bool {
        self.satisfied_members(group, satisfied) >= self.groups[group as usize].required_members()
    }

    /// Whether the pods that have a place to stay make up a whole gang.
    pub(crate) fn is_satisfied(&self) -> bool {
        self.group_satisfied(0, PodSet::is_satisfied)
    }

    /// Whether the pods that hold a place now, not counting promises, make up a whole gang.
    pub(crate) fn holds_minimum(&self) -> bool {
        self.group_satisfied(0, |set| set.allocated() >= set.min)
    }

    /// Whether what occupies nodes makes up a whole gang, pods that are leaving included.
    pub(crate) fn is_whole(&self) -> bool {
        self.group_satisfied(0, |set| set.active_used() >= set.min)
    }

    /// Whether something runs but less than the minimum. A gang whose pods begin to succeed is finishing, not broken.
    pub(crate) fn is_stale(&self) -> bool {
        self.active_used() > 0 && self.count(Status::Succeeded) == 0 && !self.is_whole()
    }

    /// Whether its staleness is to be looked at: it is below its minimum, or was.
    pub(crate) fn is_unwell(&self) -> bool {
        self.known && (self.stale_since.is_some() || self.is_stale())
    }

    /// Whether a cycle may have to do with it.
    pub(crate) fn is_restless(&self) -> bool {
        self.count(Status::Pending) > 0 || self.is_unwell()
    }

    /// Pods that must run together, for messages. Minimums are a tenant's, and their sum need not fit.
    pub(crate) fn required_pods(&self) -> u32 {
        self.pod_sets.iter().fold(0, |sum, set| sum.saturating_add(set.min))
    }

    /// Subgroups that keep the gang from being ready, for messages.
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

    /// Members of a group in the order in which they get pods.
    pub(crate) fn ordered_members(&self, group: u32) -> Vec<Member> {
        let members = &self.groups[group as usize].members;
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
            Member::Group(group) => Progress {
                count: self.satisfied_members(group, PodSet::is_satisfied),
                min: self.groups[group as usize].required_members(),
            },
        }
    }

    /// The member of `group` that is the pod set, or the group above it.
    pub(crate) fn member_with(&self, group: u32, set: u32) -> Option<Member> {
        let mut member = Member::Pods(set);
        let mut above = Some(self.pod_sets[set as usize].parent);
        while let Some(at) = above {
            if at == group {
                return Some(member);
            }
            member = Member::Group(at);
            above = self.groups[at as usize].parent;
        }
        None
    }

    /// The pod sets below a group.
    pub(crate) fn sets_below(&self, group: u32, into: &mut Vec<u32>) {
        steps::count(self.groups[group as usize].members.len());
        for member in &self.groups[group as usize].members {
            match member {
                Member::Pods(set) => into.push(*set),
                Member::Group(group) => self.sets_below(*group, into),
            }
        }
    }
}

// ---- which pods next -------------------------------------------------------------------------------------------------

/// Which pods count as placeable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Candidates {
    /// Those that wait.
    Waiting,
    /// Also those evicted within the running simulation.
    Simulated,
}

impl Ledger {
    /// The pods that one attempt places: the missing part of the gang, or one more once the gang is whole.
    pub(crate) fn pods_to_place(&self, gang: GangId, candidates: Candidates, into: &mut Vec<PodId>) {
        into.clear();
        let row = self.gang(gang);
        if let [set] = row.pod_sets.as_slice() {
            self.take_from_set(set, candidates, into);
        } else {
            self.take_from_group(row, 0, candidates, into);
        }
    }

    fn take_from_group(&self, gang: &Gang, group: u32, candidates: Candidates, into: &mut Vec<PodId>) {
        let satisfied = gang.group_satisfied(group, PodSet::is_satisfied);
        let required = gang.groups[group as usize].required_members();
        let members = gang.ordered_members(group);
        if !satisfied {
            // Members that lack pods can't help to reach the minimum now; others may. In a simulation all that ran can.
            let can_help = |member: &Member| candidates == Candidates::Simulated || gang.member_ready(*member);
            for member in members.into_iter().filter(can_help).take(required) {
                match member {
                    Member::Pods(set) => {
                        let set = &gang.pod_sets[set as usize];
                        if !set.is_satisfied() {
                            self.take_from_set(set, candidates, into);
                        }
                    }
                    Member::Group(group) => {
                        if !gang.group_satisfied(group, PodSet::is_satisfied) {
                            self.take_from_group(gang, group, candidates, into);
                        }
                    }
                }
            }
            return;
        }
        let before = into.len();
        for member in members {
            match member {
                Member::Pods(set) => self.take_from_set(&gang.pod_sets[set as usize], candidates, into),
                Member::Group(group) => self.take_from_group(gang, group, candidates, into),
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

    /// What queues are asked for by these pods, with memory requests measured on a device of `memory_mib`.
    pub(crate) fn requested_by(&self, pods: &[PodId], memory_mib: Option<i64>) -> Share {
        let mut share = [0; 3];
        for pod in pods {
            crate::ledger::add(&mut share, self.shape_of(*pod).requested(memory_mib), 1);
        }
        share
    }
}

/// How far a member of a group is: pods of a set, or satisfied members of a group, and how many of them it needs.
#[derive(Clone, Copy, Debug)]
struct Progress {
    count: usize,
    min: usize,
}

impl Progress {
    /// Unsatisfied first, then those with the least above their minimum, those without a minimum last.
    fn order(&self, other: &Progress) -> Ordering {
        match (self.count >= self.min, other.count >= other.min) {
            (false, false) => Ordering::Equal,
            (false, true) => Ordering::Less,
            (true, false) => Ordering::Greater,
            (true, true) => match (self.min, other.min) {
                (0, 0) => self.count.cmp(&other.count),
                (0, _) => Ordering::Greater,
                (_, 0) => Ordering::Less,
                // The quotients of count and min, without dividing.
                (own, others) => (self.count * others).cmp(&(other.count * own)),
            },
        }
    }
}

/// Members by progress, then by name: that is the order in which a tree has them, and the sort keeps it.
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
