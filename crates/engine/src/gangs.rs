//! The shape of a gang: its tree of subgroups, which pods are started next, which are evicted first.
//!
//! Reads the ledger, never changes it.

use std::cmp::Ordering;
use std::sync::{Arc, LazyLock};

use crate::ids::{GangId, PodId};
use crate::ledger::Ledger;
use crate::model::{GangSpec, TaskRank, TopologyConstraint};
use crate::tables::{Gang, Member, Pod, PodList, PodSet, PodSets, Share, SubGroup};

/// Name of the only leaf of a gang without subgroups.
pub(crate) const DEFAULT_SUB_GROUP: &str = "default";

/// A problem in a gang's list of subgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeProblem {
    pub(crate) sub_group: String,
    pub(crate) problem: &'static str,
}

/// Builds the tree of a gang. Subgroups that can't be attached are left out and reported.
pub(crate) fn build_tree(spec: &GangSpec) -> (Arc<[SubGroup]>, PodSets, Vec<TreeProblem>) {
    if spec.sub_groups.is_empty() {
        let pods = leaf(DEFAULT_NAME.clone(), 0, spec.min_member, None);
        let groups = match &spec.topology {
            None => PLAIN.clone(),
            Some(topology) => [only_pods(Some(Arc::new(topology.clone())))].into(),
        };
        return (groups, PodSets::from_buf([pods]), Vec::new());
    }
    let mut groups = vec![SubGroup {
        name: "".into(),
        parent: None,
        members: Vec::new(),
        min_members: spec.min_sub_group,
        topology: spec.topology.clone().map(Arc::new),
    }];
    let mut pod_sets = PodSets::new();
    let mut problems = Vec::new();
    // By name, so that the order in the list decides nothing.
    let mut order: Vec<_> = spec.sub_groups.iter().collect();
    order.sort_by(|a, b| a.name.cmp(&b.name));
    let parent_name = |at: usize| {
        order[at]
            .parent
            .as_deref()
            .map(str::to_lowercase)
            .filter(|name| !name.is_empty())
    };
    let by_name = |name: &str| order.iter().position(|group| group.name.to_lowercase() == name);
    let is_parent: Vec<bool> = (0..order.len())
        .map(|at| {
            let name = order[at].name.to_lowercase();
            (0..order.len()).any(|child| parent_name(child).as_deref() == Some(name.as_str()))
        })
        .collect();
    // Attach level by level from the root; whatever is never reached hangs in a cycle or on a missing parent.
    let mut placed: Vec<Option<u32>> = vec![None; order.len()];
    let mut attached = vec![false; order.len()];
    loop {
        let mut grown = false;
        for at in 0..order.len() {
            if attached[at] || (at > 0 && order[at].name == order[at - 1].name) {
                continue;
            }
            let parent = match parent_name(at) {
                None => Some(0),
                Some(name) => by_name(&name).and_then(|parent| placed[parent]),
            };
            let Some(parent) = parent else { continue };
            let spec = order[at];
            let member = if is_parent[at] {
                let id = groups.len() as u32;
                groups.push(SubGroup {
                    name: spec.name.as_str().into(),
                    parent: Some(parent),
                    members: Vec::new(),
                    min_members: spec.min_sub_group,
                    topology: spec.topology.clone().map(Arc::new),
                });
                placed[at] = Some(id);
                Member::Group(id)
            } else {
                pod_sets.push(leaf(
                    spec.name.as_str().into(),
                    parent,
                    spec.min_member.unwrap_or(0),
                    spec.topology.clone().map(Arc::new),
                ));
                Member::Pods(pod_sets.len() as u32 - 1)
            };
            groups[parent as usize].members.push(member);
            attached[at] = true;
            grown = true;
        }
        if !grown {
            break;
        }
    }
    for at in 0..order.len() {
        if attached[at] {
            continue;
        }
        let problem = match parent_name(at) {
            _ if at > 0 && order[at].name == order[at - 1].name => "appears twice",
            Some(name) if by_name(&name).is_none() => "its parent does not exist",
            Some(_) | None => "it hangs in a cycle of parents or on one that does",
        };
        problems.push(TreeProblem {
            sub_group: order[at].name.clone(),
            problem,
        });
    }
    (groups.into(), pod_sets, problems)
}

/// The tree of nearly all gangs: one set of pods and no wishes. One value serves them all.
static PLAIN: LazyLock<Arc<[SubGroup]>> = LazyLock::new(|| [only_pods(None)].into());
static DEFAULT_NAME: LazyLock<Arc<str>> = LazyLock::new(|| DEFAULT_SUB_GROUP.into());

fn only_pods(topology: Option<Arc<TopologyConstraint>>) -> SubGroup {
    SubGroup {
        name: "".into(),
        parent: None,
        members: vec![Member::Pods(0)],
        min_members: None,
        topology,
    }
}

fn leaf(name: Arc<str>, parent: u32, min: u32, topology: Option<Arc<TopologyConstraint>>) -> PodSet {
    PodSet {
        name,
        parent,
        min,
        topology,
        pods: PodList::new(),
        counts: [0; crate::report::Status::COUNT],
        refused: 0,
    }
}

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
        self.known && self.group_ready(0)
    }

    fn group_ready(&self, group: u32) -> bool {
        let group = &self.groups[group as usize];
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
        let members = self.groups[group as usize].members.iter();
        members
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
        self.active_used() > 0 && self.count(crate::report::Status::Succeeded) == 0 && !self.is_whole()
    }

    /// Whether its staleness is to be looked at: it is below its minimum, or was.
    pub(crate) fn is_unwell(&self) -> bool {
        self.known && (self.stale_since.is_some() || self.is_stale())
    }

    /// Whether a cycle may have to do with it.
    pub(crate) fn is_restless(&self) -> bool {
        self.count(crate::report::Status::Pending) > 0 || self.is_unwell()
    }

    /// Pods that must run together, for messages.
    pub(crate) fn required_pods(&self) -> u32 {
        self.pod_sets.iter().map(|set| set.min).sum()
    }

    /// Members of a group in the order in which they get pods.
    pub(crate) fn ordered_members(&self, group: u32) -> Vec<Member> {
        let mut members = self.groups[group as usize].members.clone();
        if members.len() > 1 {
            members.sort_by(|a, b| self.member_order(*a, *b));
        }
        members
    }

    /// Unsatisfied members first, then those with the least above their minimum.
    pub(crate) fn member_order(&self, a: Member, b: Member) -> Ordering {
        let (a_count, a_min) = self.member_progress(a);
        let (b_count, b_min) = self.member_progress(b);
        order_by_progress(a_count, a_min, b_count, b_min).then_with(|| self.member_name(a).cmp(self.member_name(b)))
    }

    fn member_progress(&self, member: Member) -> (usize, usize) {
        match member {
            Member::Pods(set) => {
                let set = &self.pod_sets[set as usize];
                (set.active_allocated() as usize, set.min as usize)
            }
            Member::Group(group) => (
                self.satisfied_members(group, PodSet::is_satisfied),
                self.groups[group as usize].required_members(),
            ),
        }
    }

    fn member_name(&self, member: Member) -> &str {
        match member {
            Member::Pods(set) => &self.pod_sets[set as usize].name,
            Member::Group(group) => &self.groups[group as usize].name,
        }
    }

    /// The pod sets below a group.
    pub(crate) fn sets_below(&self, group: u32, into: &mut Vec<u32>) {
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

// ---- which pods to evict ---------------------------------------------------------------------------------------------

/// Pods of a gang that can still be evicted: those with a place, less those already taken.
pub(crate) struct Evictable<'a> {
    ledger: &'a Ledger,
    gang: &'a Gang,
    taken: &'a [PodId],
}

impl<'a> Evictable<'a> {
    pub(crate) fn new(ledger: &'a Ledger, gang: GangId, taken: &'a [PodId]) -> Evictable<'a> {
        Evictable {
            ledger,
            gang: ledger.gang(gang),
            taken,
        }
    }

    fn is_left(&self, pod: PodId) -> bool {
        self.ledger.pod(pod).place.status.is_active_allocated() && !self.taken.contains(&pod)
    }

    pub(crate) fn count(&self, set: usize) -> u32 {
        if self.taken.is_empty() {
            return self.gang.pod_sets[set].active_allocated();
        }
        self.gang.pod_sets[set]
            .pods
            .iter()
            .filter(|pod| self.is_left(**pod))
            .count() as u32
    }

    pub(crate) fn total(&self) -> u32 {
        (0..self.gang.pod_sets.len()).map(|set| self.count(set)).sum()
    }

    /// What the remaining pods that really hold a place are charged.
    pub(crate) fn allocated(&self) -> Share {
        if self.taken.is_empty() {
            return self.gang.allocated;
        }
        let mut share = [0; 3];
        for pod in self
            .gang
            .pod_sets
            .iter()
            .flat_map(|set| &set.pods)
            .filter(|pod| self.is_left(**pod))
        {
            let row = self.ledger.pod(*pod);
            if let Some(node) = row.place.node.filter(|_| row.place.status.is_allocated()) {
                let accepted = self.ledger.shape(row.shape).accepted(self.ledger.node(node).memory_mib);
                crate::ledger::add(&mut share, accepted, 1);
            }
        }
        share
    }

    pub(crate) fn elastic_state(&self) -> ElasticState {
        elastic_state(self.gang, |set| self.count(set))
    }

    /// The pods that go first: one that is above the minimum, else an optional subgroup, else the whole gang.
    pub(crate) fn unit(&self) -> Vec<PodId> {
        let unit = self.elastic_unit(0);
        if !unit.is_empty() {
            return unit;
        }
        let mut sets = Vec::new();
        self.gang.sets_below(0, &mut sets);
        sets.iter().flat_map(|set| self.all_of(*set)).collect()
    }

    fn satisfied(&self, member: Member) -> bool {
        match member {
            Member::Pods(set) => self.count(set as usize) >= self.gang.pod_sets[set as usize].min,
            Member::Group(group) => self.satisfied_below(group) >= self.gang.groups[group as usize].required_members(),
        }
    }

    fn satisfied_below(&self, group: u32) -> usize {
        self.gang.groups[group as usize]
            .members
            .iter()
            .filter(|member| self.satisfied(**member))
            .count()
    }

    fn has_surplus(&self, member: Member) -> bool {
        match member {
            Member::Pods(set) => self.count(set as usize) > self.gang.pod_sets[set as usize].min,
            Member::Group(group) => {
                let row = &self.gang.groups[group as usize];
                self.satisfied_below(group) > row.required_members()
                    || row.members.iter().any(|member| self.has_surplus(*member))
            }
        }
    }

    fn elastic_unit(&self, group: u32) -> Vec<PodId> {
        let row = &self.gang.groups[group as usize];
        let satisfied = self.satisfied_below(group);
        if satisfied == 0 {
            return Vec::new();
        }
        let mut members = row.members.clone();
        members.sort_by(|a, b| self.member_order(*b, *a));
        if self.has_surplus(Member::Group(group)) {
            for member in &members {
                let unit = match member {
                    Member::Pods(set) if self.has_surplus(*member) => self.all_of(*set).into_iter().take(1).collect(),
                    Member::Pods(_) => Vec::new(),
                    Member::Group(group) => self.elastic_unit(*group),
                };
                if !unit.is_empty() {
                    return unit;
                }
            }
        }
        if row.required_members() < satisfied {
            for member in &members {
                let mut sets = Vec::new();
                match member {
                    Member::Pods(set) => sets.push(*set),
                    Member::Group(group) => self.gang.sets_below(*group, &mut sets),
                }
                let unit: Vec<PodId> = sets.iter().flat_map(|set| self.all_of(*set)).collect();
                if !unit.is_empty() {
                    return unit;
                }
            }
        }
        Vec::new()
    }

    fn member_order(&self, a: Member, b: Member) -> Ordering {
        let progress = |member| match member {
            Member::Pods(set) => (
                self.count(set as usize) as usize,
                self.gang.pod_sets[set as usize].min as usize,
            ),
            Member::Group(group) => (
                self.satisfied_below(group),
                self.gang.groups[group as usize].required_members(),
            ),
        };
        if self.taken.is_empty() {
            return self.gang.member_order(a, b);
        }
        let ((a_count, a_min), (b_count, b_min)) = (progress(a), progress(b));
        order_by_progress(a_count, a_min, b_count, b_min)
            .then_with(|| self.gang.member_name(a).cmp(self.gang.member_name(b)))
    }

    /// All that are left of a set, last in task order first.
    fn all_of(&self, set: u32) -> Vec<PodId> {
        let pods = self.gang.pod_sets[set as usize].pods.iter().rev();
        pods.copied().filter(|pod| self.is_left(*pod)).collect()
    }
}

/// Unsatisfied first, then those with the least above their minimum, those without a minimum last.
fn order_by_progress(a_count: usize, a_min: usize, b_count: usize, b_min: usize) -> Ordering {
    match (a_count >= a_min, b_count >= b_min) {
        (false, false) => Ordering::Equal,
        (false, true) => Ordering::Less,
        (true, false) => Ordering::Greater,
        (true, true) => match (a_min, b_min) {
            (0, 0) => a_count.cmp(&b_count),
            (0, _) => Ordering::Greater,
            (_, 0) => Ordering::Less,
            // a_count / a_min against b_count / b_min without dividing.
            (a_min, b_min) => (a_count * b_min).cmp(&(b_count * a_min)),
        },
    }
}
