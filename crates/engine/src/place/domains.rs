//! Topologies as trees of domains over nodes. The trees keep the free resources of each domain up to date by the ledger's
//! log of changed nodes.

use rustc_hash::FxHashMap;

use crate::fit::{PodRequest, free_gpu_parts, max_pods_by_volume};
use crate::ids::{DomainId, NodeId};
use crate::ledger::Ledger;
use crate::model::{Gpus, TopologySpec};
use crate::tables::NodeResources;

/// One topology.
#[derive(Clone, Debug)]
pub(crate) struct DomainTree {
    pub(crate) spec: TopologySpec,
    pub(crate) domains: Vec<Domain>,
    /// By node: its finest domain; `None` = the node is not part of the topology.
    leaf: Vec<Option<DomainId>>,
    /// By node: the free resources that are included in the sums of its domains.
    counted: Vec<DomainFree>,
    cursor: Option<u64>,
    /// Pods that fit per node and domain, by request.
    capacities: FxHashMap<PodRequest, PodCapacity>,
}

/// A domain; index 0 is the root, which contains all nodes of the topology.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    /// Label values from the coarsest level down, joined by dots.
    pub(crate) name: String,
    /// Position among all domains by name.
    pub(crate) rank: u32,
    /// 0 = the root, 1 = the coarsest level.
    pub(crate) level: usize,
    pub(crate) parent: Option<DomainId>,
    pub(crate) children: Vec<DomainId>,
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) free: DomainFree,
}

/// Idle and releasing resources of the nodes of a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DomainFree {
    pub(crate) base: NodeResources,
    /// Available parts of GPUs that pods share; `base` has the whole GPUs.
    pub(crate) gpu_parts: Gpus,
}

/// How many pods of one request fit.
#[derive(Clone, Debug, Default)]
struct PodCapacity {
    cursor: Option<u64>,
    per_node: Vec<i64>,
    per_domain: Vec<i64>,
}

/// The most requests for which a tree keeps counts, to bound its memory.
const CAPACITIES_MAX: usize = 16;

/// All topologies by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Domains {
    pub(crate) specs: FxHashMap<String, TopologySpec>,
    trees: FxHashMap<String, DomainTree>,
}

impl Domains {
    /// Drops all trees after a change of nodes or topologies; [`Domains::get_updated`] builds them again.
    pub(crate) fn clear(&mut self) {
        self.trees.clear();
    }

    /// The topology of this name with up-to-date sums; `None` = it does not exist.
    pub(crate) fn get_updated(&mut self, ledger: &Ledger, name: &str) -> Option<&mut DomainTree> {
        if !self.trees.contains_key(name) {
            let tree = DomainTree::build(self.specs.get(name)?.clone(), ledger);
            self.trees.insert(name.to_owned(), tree);
        }
        let tree = self.trees.get_mut(name)?;
        tree.catch_up(ledger);
        Some(tree)
    }
}

impl Domain {
    fn new(name: String, level: usize, parent: Option<DomainId>) -> Domain {
        Domain {
            name,
            rank: 0,
            level,
            parent,
            children: Vec::new(),
            nodes: Vec::new(),
            free: DomainFree::default(),
        }
    }
}

fn rank_by_name(domains: &mut [Domain]) {
    let mut by_name: Vec<usize> = (0..domains.len()).collect();
    by_name.sort_by(|a, b| domains[*a].name.cmp(&domains[*b].name));
    for (rank, at) in by_name.into_iter().enumerate() {
        domains[at].rank = rank as u32;
    }
}

impl DomainTree {
    fn build(spec: TopologySpec, ledger: &Ledger) -> DomainTree {
        let mut domains = vec![Domain::new(String::new(), 0, None)];
        let mut leaf = vec![None; ledger.nodes.len()];
        let mut by_name: FxHashMap<(usize, String), DomainId> = FxHashMap::default();
        let mut order: Vec<NodeId> = (0..ledger.nodes.len()).map(NodeId::new).collect();
        order.sort_by_key(|node| ledger.node(*node).rank);
        for node in order {
            let labels = &ledger.node(node).labels;
            let values: Option<Vec<&String>> = spec.levels.iter().map(|level| labels.get(&level.node_label)).collect();
            // A node that lacks a level is in no domain of this topology.
            let Some(values) = values else { continue };
            let mut at = DomainId::new(0);
            domains[0].nodes.push(node);
            for (level, value) in values.into_iter().enumerate() {
                let parent = &domains[at.index()];
                let name = if level == 0 {
                    value.clone()
                } else {
                    format!("{}.{value}", parent.name)
                };
                let id = *by_name.entry((level + 1, name.clone())).or_insert_with(|| {
                    let id = DomainId::new(domains.len());
                    domains.push(Domain::new(name, level + 1, Some(at)));
                    domains[at.index()].children.push(id);
                    id
                });
                domains[id.index()].nodes.push(node);
                at = id;
            }
            leaf[node.index()] = Some(at);
        }
        rank_by_name(&mut domains);
        let counted = vec![DomainFree::default(); ledger.nodes.len()];
        DomainTree {
            spec,
            domains,
            leaf,
            counted,
            cursor: None,
            capacities: FxHashMap::default(),
        }
    }

    /// The level (1 = coarsest) that a constraint names by label or alias.
    pub(crate) fn level(&self, name: &str) -> Option<usize> {
        let named =
            |level: &crate::model::TopologyLevel| level.node_label == name || level.alias.as_deref() == Some(name);
        self.spec.levels.iter().position(named).map(|at| at + 1)
    }

    pub(crate) fn domain(&self, id: DomainId) -> &Domain {
        &self.domains[id.index()]
    }

    /// The domain of a node at a level; `None` = the node is not part of the topology.
    pub(crate) fn domain_of(&self, node: NodeId, level: usize) -> Option<DomainId> {
        Some(self.ancestor_at(self.leaf[node.index()]?, level))
    }

    /// The domain, or its ancestor at the level if the domain is finer.
    pub(crate) fn ancestor_at(&self, domain: DomainId, level: usize) -> DomainId {
        let mut at = domain;
        while self.domain(at).level > level {
            at = self.domain(at).parent.expect("only the root has no parent");
        }
        at
    }

    fn catch_up(&mut self, ledger: &Ledger) {
        let changed = self.cursor.and_then(|cursor| ledger.changed_nodes.since(cursor));
        match changed {
            Some(changed) => changed.iter().for_each(|node| self.recount(ledger, *node)),
            None => (0..ledger.nodes.len())
                .map(NodeId::new)
                .for_each(|node| self.recount(ledger, node)),
        }
        self.cursor = Some(ledger.changed_nodes.end());
    }

    fn recount(&mut self, ledger: &Ledger, node: NodeId) {
        let row = ledger.node(node);
        let free = DomainFree {
            base: row.free.total(),
            gpu_parts: free_gpu_parts(row),
        };
        let old = std::mem::replace(&mut self.counted[node.index()], free);
        if old == free {
            return;
        }
        let mut at = self.leaf[node.index()];
        while let Some(domain) = at {
            let row = &mut self.domains[domain.index()];
            row.free.base += free.base - old.base;
            row.free.gpu_parts += free.gpu_parts - old.gpu_parts;
            at = row.parent;
        }
    }

    /// How many pods of this request fit in each domain, by domain id: the sum over its nodes as of the last
    /// [`DomainTree::update_pod_capacity`]; `None` = never counted.
    pub(crate) fn pod_capacity(&self, pod: &PodRequest) -> Option<&[i64]> {
        self.capacities.get(pod).map(|capacity| capacity.per_domain.as_slice())
    }

    /// Counts how many pods of this request fit in each domain.
    pub(crate) fn update_pod_capacity(&mut self, ledger: &Ledger, pod: &PodRequest) {
        if !self.capacities.contains_key(pod) && self.capacities.len() >= CAPACITIES_MAX {
            self.capacities.clear();
        }
        let DomainTree {
            domains,
            leaf,
            capacities,
            ..
        } = self;
        if !capacities.contains_key(pod) {
            capacities.insert(pod.clone(), PodCapacity::default());
        }
        let capacity = capacities.get_mut(pod).expect("the entry was inserted just now");
        if capacity.per_node.is_empty() {
            capacity.per_node = vec![0; ledger.nodes.len()];
            capacity.per_domain = vec![0; domains.len()];
        }
        let PodCapacity {
            cursor,
            per_node,
            per_domain,
        } = capacity;
        let mut recount = |node: NodeId| {
            let fit = max_pods_by_volume(ledger.node(node), pod);
            let old = std::mem::replace(&mut per_node[node.index()], fit);
            let mut at = if old == fit { None } else { leaf[node.index()] };
            while let Some(domain) = at {
                per_domain[domain.index()] += fit - old;
                at = domains[domain.index()].parent;
            }
        };
        match cursor.and_then(|cursor| ledger.changed_nodes.since(cursor)) {
            Some(changed) => changed.iter().for_each(|node| recount(*node)),
            None => (0..ledger.nodes.len()).map(NodeId::new).for_each(&mut recount),
        }
        *cursor = Some(ledger.changed_nodes.end());
    }
}
