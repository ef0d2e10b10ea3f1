//! The tree of a gang's subgroups, built from the list in its PodGroup.
//!
//! Tenants write that list. Besides one sort, building the tree takes time linear in the length of the list and no recursion. A list
//! beyond [`SUB_GROUPS_MAX`] or [`SUB_GROUP_DEPTH_MAX`] gives a tree with a single leaf.

use std::sync::{Arc, LazyLock};

use rustc_hash::FxHashMap;

use crate::model::{GangSpec, SUB_GROUP_DEPTH_MAX, SUB_GROUPS_MAX, SubGroupSpec, TopologyConstraint};
use crate::reasons::SubGroupExcess;
use crate::steps;
use crate::tables::{Member, PodList, PodSet, PodSets, SubGroup};

/// Name of the only leaf of a gang without subgroups.
pub(crate) const DEFAULT_SUB_GROUP: &str = "default";

/// The tree of a gang.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// Parents before children; the first is the gang itself.
    pub(crate) sub_groups: Arc<[SubGroup]>,
    /// Ordered by name, so that the set of a pod is found by binary search.
    pub(crate) pod_sets: PodSets,
    /// Subgroups that can't be attached and are left out.
    pub(crate) problems: Vec<TreeProblem>,
    /// If set, the list exceeds a bound: the tree has one leaf for all pods, and none of them is started.
    pub(crate) excess: Option<SubGroupExcess>,
}

/// A problem in a gang's list of subgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeProblem {
    pub(crate) sub_group: String,
    pub(crate) problem: &'static str,
}

/// Builds the tree of a gang.
pub(crate) fn build_tree(spec: &GangSpec) -> Tree {
    if spec.sub_groups.is_empty() {
        return single_leaf(spec, spec.min_member, None);
    }
    if spec.sub_groups.len() > SUB_GROUPS_MAX {
        let count = u32::try_from(spec.sub_groups.len()).unwrap_or(u32::MAX);
        return single_leaf(spec, 0, Some(SubGroupExcess::Count(count)));
    }
    let list = SubGroupList::new(&spec.sub_groups);
    match list.reached() {
        Some(reached) => list.tree(spec, &reached),
        None => single_leaf(spec, 0, Some(SubGroupExcess::Depth)),
    }
}

/// The tree of a gang with a single pod set.
fn single_leaf(spec: &GangSpec, min: u32, excess: Option<SubGroupExcess>) -> Tree {
    let pods = leaf(DEFAULT_NAME.clone(), 0, min, None);
    let sub_groups = match &spec.topology {
        None => SINGLE_LEAF.clone(),
        Some(topology) => [root_of_pods(Some(Arc::new(topology.clone())))].into(),
    };
    Tree {
        sub_groups,
        pod_sets: PodSets::from_buf([pods]),
        problems: Vec::new(),
        excess,
    }
}

/// The parent of a subgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parent {
    Gang,
    SubGroup(usize),
    Missing,
}

/// The subgroups sorted by name, so that their order in the PodGroup has no effect, with the edges between them.
struct SubGroupList<'s> {
    specs: Vec<&'s SubGroupSpec>,
    parents: Vec<Parent>,
    /// By name, without subgroups whose name is repeated.
    children: Vec<Vec<usize>>,
    /// Children of the gang itself.
    roots: Vec<usize>,
    /// Whether another subgroup names this one as its parent: then it holds subgroups instead of pods.
    is_parent: Vec<bool>,
}

impl<'s> SubGroupList<'s> {
    fn new(sub_groups: &'s [SubGroupSpec]) -> SubGroupList<'s> {
        let mut specs: Vec<&SubGroupSpec> = sub_groups.iter().collect();
        specs.sort_by(|a, b| {
            steps::count(1);
            a.name.cmp(&b.name)
        });
        // Names are lower case by schema; KAI compares references to them case-insensitively.
        let names: Vec<String> = specs.iter().map(|spec| spec.name.to_lowercase()).collect();
        let mut by_name: FxHashMap<&str, usize> = FxHashMap::default();
        for (at, name) in names.iter().enumerate() {
            by_name.entry(name).or_insert(at);
        }
        let parent_of = |spec: &&SubGroupSpec| {
            steps::count(1);
            match spec.parent.as_deref().filter(|name| !name.is_empty()) {
                None => Parent::Gang,
                Some(name) => match by_name.get(name.to_lowercase().as_str()) {
                    Some(parent) => Parent::SubGroup(*parent),
                    None => Parent::Missing,
                },
            }
        };
        let parents: Vec<Parent> = specs.iter().map(parent_of).collect();
        let mut list = SubGroupList {
            children: vec![Vec::new(); specs.len()],
            roots: Vec::new(),
            is_parent: vec![false; specs.len()],
            specs,
            parents,
        };
        for at in 0..list.specs.len() {
            if let Parent::SubGroup(parent) = list.parents[at] {
                list.is_parent[parent] = true;
            }
            match list.parents[at] {
                _ if list.is_repeated(at) => {}
                Parent::Gang => list.roots.push(at),
                Parent::SubGroup(parent) => list.children[parent].push(at),
                Parent::Missing => {}
            }
        }
        list
    }

    fn is_repeated(&self, at: usize) -> bool {
        at > 0 && self.specs[at].name == self.specs[at - 1].name
    }

    /// The subgroups that are connected to the gang, level by level; `None` if there are too many levels.
    fn reached(&self) -> Option<Vec<usize>> {
        let mut reached = self.roots.clone();
        let (mut level, mut depth) = (0..reached.len(), 1);
        while !level.is_empty() {
            if depth > SUB_GROUP_DEPTH_MAX {
                return None;
            }
            let end = level.end;
            for at in level {
                let parent = reached[at];
                steps::count(1 + self.children[parent].len());
                reached.extend_from_slice(&self.children[parent]);
            }
            (level, depth) = (end..reached.len(), depth + 1);
        }
        Some(reached)
    }

    fn tree(&self, spec: &GangSpec, reached: &[usize]) -> Tree {
        let mut leaves: Vec<usize> = reached.iter().copied().filter(|at| !self.is_parent[*at]).collect();
        leaves.sort_unstable();
        let members = self.members(reached, &leaves);
        let pod_set = |at: &usize| {
            let own = self.specs[*at];
            let topology = own.topology.clone().map(Arc::new);
            leaf(
                own.name.as_str().into(),
                self.parent_index(*at, &members),
                own.min_member.unwrap_or(0),
                topology,
            )
        };
        Tree {
            sub_groups: self.inner_nodes(spec, reached, &members).into(),
            pod_sets: leaves.iter().map(pod_set).collect(),
            problems: self.problems(&members),
            excess: None,
        }
    }

    /// The nodes of the tree that subgroups become: parents are numbered in the order of `reached`, leaves in the order of `leaves`.
    /// `None` for a subgroup that is not connected to the gang.
    fn members(&self, reached: &[usize], leaves: &[usize]) -> Vec<Option<Member>> {
        let mut members: Vec<Option<Member>> = vec![None; self.specs.len()];
        // Number 0 is the gang itself.
        let parents = reached.iter().filter(|at| self.is_parent[**at]);
        for (at, number) in parents.zip(1..) {
            members[*at] = Some(Member::SubGroup(number));
        }
        for (at, number) in leaves.iter().zip(0..) {
            members[*at] = Some(Member::Pods(number));
        }
        members
    }

    /// The index of a subgroup's parent among the inner nodes.
    fn parent_index(&self, at: usize, members: &[Option<Member>]) -> u32 {
        match self.parents[at] {
            Parent::SubGroup(parent) => match members[parent] {
                Some(Member::SubGroup(sub_group)) => sub_group,
                Some(Member::Pods(_)) | None => unreachable!("the parent of a connected subgroup is connected"),
            },
            Parent::Gang | Parent::Missing => 0,
        }
    }

    fn inner_nodes(&self, spec: &GangSpec, reached: &[usize], members: &[Option<Member>]) -> Vec<SubGroup> {
        let mut nodes = vec![SubGroup {
            parent: None,
            members: Vec::new(),
            min_members: spec.min_sub_group,
            topology: spec.topology.clone().map(Arc::new),
        }];
        for at in reached.iter().copied() {
            let (own, parent) = (self.specs[at], self.parent_index(at, members));
            if self.is_parent[at] {
                nodes.push(SubGroup {
                    parent: Some(parent),
                    members: Vec::new(),
                    min_members: own.min_sub_group,
                    topology: own.topology.clone().map(Arc::new),
                });
            }
            nodes[parent as usize].members.extend(members[at]);
        }
        nodes
    }

    /// Why each subgroup that is not connected to the gang is left out.
    fn problems(&self, members: &[Option<Member>]) -> Vec<TreeProblem> {
        let left_out = (0..self.specs.len()).filter(|at| members[*at].is_none());
        left_out
            .map(|at| TreeProblem {
                sub_group: self.specs[at].name.clone(),
                problem: match self.parents[at] {
                    _ if self.is_repeated(at) => "appears twice",
                    Parent::Missing => "its parent does not exist",
                    Parent::Gang | Parent::SubGroup(_) => "its parents form a cycle, or lead into one",
                },
            })
            .collect()
    }
}

/// The tree of gangs without subgroups and topology: nearly all gangs, which share this value.
static SINGLE_LEAF: LazyLock<Arc<[SubGroup]>> = LazyLock::new(|| [root_of_pods(None)].into());
static DEFAULT_NAME: LazyLock<Arc<str>> = LazyLock::new(|| DEFAULT_SUB_GROUP.into());

fn root_of_pods(topology: Option<Arc<TopologyConstraint>>) -> SubGroup {
    SubGroup {
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
