//! The tree of a gang's subgroups, from the list that a PodGroup has.
//!
//! Tenants write that list. The tree is built in time linear in its length (but for one sort), without recursion, and lists
//! beyond the bounds of [`SUB_GROUPS_MAX`] and [`SUB_GROUP_DEPTH_MAX`] give no tree at all.

use std::sync::{Arc, LazyLock};

use rustc_hash::FxHashMap;

use crate::model::{GangSpec, SUB_GROUP_DEPTH_MAX, SUB_GROUPS_MAX, SubGroupSpec, TopologyConstraint};
use crate::reasons::SubGroupExcess;
use crate::steps;
use crate::tables::{Member, PodList, PodSet, PodSets, SubGroup};

/// Name of the only leaf of a gang without subgroups.
pub(crate) const DEFAULT_SUB_GROUP: &str = "default";

/// What a gang's list of subgroups comes to.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// Parents stand before their children; the first is the gang itself.
    pub(crate) groups: Arc<[SubGroup]>,
    /// By name, so that a pod's set is found by a binary search.
    pub(crate) pod_sets: PodSets,
    /// Subgroups that can't be attached and are left out.
    pub(crate) problems: Vec<TreeProblem>,
    /// If set, the list is beyond a bound: the tree has one leaf for all pods, and the gang starts no pods.
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
    let list = List::new(&spec.sub_groups);
    match list.reached() {
        Some(reached) => list.tree(spec, &reached),
        None => single_leaf(spec, 0, Some(SubGroupExcess::Depth)),
    }
}

/// A gang of one set of pods.
fn single_leaf(spec: &GangSpec, min: u32, excess: Option<SubGroupExcess>) -> Tree {
    let pods = leaf(DEFAULT_NAME.clone(), 0, min, None);
    let groups = match &spec.topology {
        None => PLAIN.clone(),
        Some(topology) => [only_pods(Some(Arc::new(topology.clone())))].into(),
    };
    Tree {
        groups,
        pod_sets: PodSets::from_buf([pods]),
        problems: Vec::new(),
        excess,
    }
}

/// Which subgroup a subgroup is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parent {
    Gang,
    SubGroup(usize),
    Missing,
}

/// The subgroups by name, so that their order in the PodGroup decides nothing, with the edges between them.
struct List<'s> {
    specs: Vec<&'s SubGroupSpec>,
    parents: Vec<Parent>,
    /// In order of names, without repeated ones.
    children: Vec<Vec<usize>>,
    /// Children of the gang itself.
    roots: Vec<usize>,
    /// Whether a subgroup is named as a parent, and so holds subgroups instead of pods.
    is_parent: Vec<bool>,
}

impl<'s> List<'s> {
    fn new(sub_groups: &'s [SubGroupSpec]) -> List<'s> {
        let mut specs: Vec<&SubGroupSpec> = sub_groups.iter().collect();
        specs.sort_by(|a, b| {
            steps::count(1);
            a.name.cmp(&b.name)
        });
        // Names are lower case by schema; KAI forgives capitals in references to them.
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
        let mut list = List {
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

    /// The subgroups that hang on the gang, level by level; `None` if there are too many levels.
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
        let mut members: Vec<Option<Member>> = vec![None; self.specs.len()];
        let (mut group_count, mut set_count) = (1, 0);
        for at in reached.iter().copied().filter(|at| self.is_parent[*at]) {
            members[at] = Some(Member::Group(group_count));
            group_count += 1;
        }
        let mut leaves: Vec<usize> = reached.iter().copied().filter(|at| !self.is_parent[*at]).collect();
        leaves.sort_unstable();
        for at in &leaves {
            members[*at] = Some(Member::Pods(set_count));
            set_count += 1;
        }
        let group_of = |at: usize| match self.parents[at] {
            Parent::SubGroup(parent) => match members[parent] {
                Some(Member::Group(group)) => group,
                Some(Member::Pods(_)) | None => unreachable!("what is reached has a parent that is"),
            },
            Parent::Gang | Parent::Missing => 0,
        };
        let mut groups = vec![SubGroup {
            parent: None,
            members: Vec::new(),
            min_members: spec.min_sub_group,
            topology: spec.topology.clone().map(Arc::new),
        }];
        for at in reached.iter().copied() {
            let (own, parent) = (self.specs[at], group_of(at));
            if self.is_parent[at] {
                groups.push(SubGroup {
                    parent: Some(parent),
                    members: Vec::new(),
                    min_members: own.min_sub_group,
                    topology: own.topology.clone().map(Arc::new),
                });
            }
            groups[parent as usize].members.extend(members[at]);
        }
        let pod_set = |at: &usize| {
            let own = self.specs[*at];
            let topology = own.topology.clone().map(Arc::new);
            leaf(
                own.name.as_str().into(),
                group_of(*at),
                own.min_member.unwrap_or(0),
                topology,
            )
        };
        Tree {
            groups: groups.into(),
            pod_sets: leaves.iter().map(pod_set).collect(),
            problems: self.problems(&members),
            excess: None,
        }
    }

    /// Why the subgroups that are no members are left out.
    fn problems(&self, members: &[Option<Member>]) -> Vec<TreeProblem> {
        let left_out = (0..self.specs.len()).filter(|at| members[*at].is_none());
        left_out
            .map(|at| TreeProblem {
                sub_group: self.specs[at].name.clone(),
                problem: match self.parents[at] {
                    _ if self.is_repeated(at) => "appears twice",
                    Parent::Missing => "its parent does not exist",
                    Parent::Gang | Parent::SubGroup(_) => "it hangs in a cycle of parents or on one that does",
                },
            })
            .collect()
    }
}

/// The tree of nearly all gangs: one set of pods and no wishes. One value serves them all.
static PLAIN: LazyLock<Arc<[SubGroup]>> = LazyLock::new(|| [only_pods(None)].into());
static DEFAULT_NAME: LazyLock<Arc<str>> = LazyLock::new(|| DEFAULT_SUB_GROUP.into());

fn only_pods(topology: Option<Arc<TopologyConstraint>>) -> SubGroup {
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
