//! Events about nodes.

use crate::cluster::Cluster;
use crate::ids::{NodeId, PodId, Symbol};
use crate::model::{
    EnforcementTier, FractioningCondition, Gpus, Labels, MemoryKind, MigStrategy, NodeCondition, NodeSpec,
    QueueResources, UNKNOWN_GPU_MEMORY_MIB, counted_gpu_memory_mib,
};
use crate::tables::{ExtendedResource, FreeResources, Node, NodeResources, add_row};

impl Cluster {
    pub(super) fn apply_node(&mut self, spec: NodeSpec) {
        let name = self.ledger.symbols.intern(&spec.name);
        let id = match self.node_ids.get(&name) {
            Some(id) if self.node_specs[id.index()].as_ref() == Some(&spec) => return,
            Some(id) => *id,
            None => {
                let id = self.free_nodes.pop().unwrap_or_else(|| {
                    add_row(&mut self.ledger.nodes, absent_node());
                    add_row(&mut self.node_specs, None);
                    NodeId::new(self.ledger.nodes.len() - 1)
                });
                self.node_ids.insert(name, id);
                self.ranks_changed = true;
                id
            }
        };
        let pods = self.clear_node(id);
        self.ledger.remove_node_labels(id);
        self.ledger.nodes[id.index()] = self.node_row(&spec, name, self.ledger.nodes[id.index()].rank);
        self.ledger.add_node_labels(id);
        self.node_specs[id.index()] = Some(spec);
        self.node_changed();
        for pod in pods
            .into_iter()
            .chain(self.pods_on_unknown_nodes.remove(&name).unwrap_or_default())
        {
            self.update_node_of(pod);
        }
    }

    pub(super) fn remove_node(&mut self, name: &str) {
        let Some(name) = self.ledger.symbols.get(name) else {
            return;
        };
        let Some(id) = self.node_ids.remove(&name) else { return };
        let pods = self.clear_node(id);
        self.ledger.remove_node_labels(id);
        self.ledger.nodes[id.index()] = absent_node();
        self.node_specs[id.index()] = None;
        self.free_nodes.push(id);
        self.ranks_changed = true;
        self.node_changed();
        // Pods that have ended are not accounted on the node, but their placement refers to it.
        let ended = (0..self.ledger.pods.len())
            .map(PodId::new)
            .filter(|pod| self.ledger.pod(*pod).observed.node == Some(id));
        let ended: Vec<PodId> = ended.filter(|pod| !pods.contains(pod)).collect();
        for pod in pods.into_iter().chain(ended) {
            self.update_node_of(pod);
        }
    }

    /// Removes all pods from the accounting of a node; returns them.
    fn clear_node(&mut self, id: NodeId) -> Vec<PodId> {
        let mut pods = self.ledger.node(id).pods.clone();
        pods.sort_unstable();
        pods.dedup();
        for pod in &pods {
            self.ledger.remove_placement(*pod);
        }
        pods
    }

    /// Places a pod on its observed node again, after that node was added, changed or removed.
    fn update_node_of(&mut self, pod: PodId) {
        let row = self.ledger.pod(pod);
        let mut placement = row.observed.clone();
        placement.node = row
            .observed_node_name
            .and_then(|name| self.node_ids.get(&name).copied());
        if let (Some(name), None) = (row.observed_node_name, placement.node) {
            self.pods_on_unknown_nodes.entry(name).or_default().push(pod);
        }
        self.ledger.set_observed(pod, placement);
    }

    fn node_changed(&mut self) {
        self.indexes.clear();
        self.prices.nodes_changed = true;
        self.domains.clear();
        self.volume_pools.nodes_changed();
        self.ledger.changed_nodes.invalidate();
        self.ledger.present_nodes = self.node_ids.len();
        self.gpu_memory_changed = true;
    }

    /// Finds the smallest and the largest known GPU memory again if nodes changed.
    pub(crate) fn update_gpu_memory_bounds(&mut self) {
        if !std::mem::take(&mut self.gpu_memory_changed) {
            return;
        }
        let known = || {
            self.ledger
                .nodes
                .iter()
                .filter(|node| node.memory_known && node.memory_mib > UNKNOWN_GPU_MEMORY_MIB)
        };
        self.gpu_memory_min_mib = known().map(|node| node.memory_mib).min();
        self.gpu_memory_max_mib = known().map(|node| node.memory_mib).max();
    }

    fn node_row(&mut self, spec: &NodeSpec, symbol: Symbol, rank: u32) -> Node {
        let mut extended: Vec<ExtendedResource> = spec
            .extended
            .iter()
            .map(|(name, amount)| {
                let (resource, amount) = (self.resources.intern(name), (*amount).max(0));
                ExtendedResource {
                    resource,
                    allocatable: amount,
                    idle: amount,
                    releasing: 0,
                }
            })
            .collect();
        extended.sort_by_key(|extended| extended.resource);
        let allocatable = NodeResources {
            cpu_milli: spec.cpu_milli.max(0),
            memory_bytes: spec.memory_bytes.max(0),
            gpus: spec.gpus.max(0),
            pods: spec.pods.max(0),
        };
        let has_mig = extended
            .iter()
            .any(|extended| self.resources.mig_gpus(extended.resource) > Gpus::ZERO && extended.allocatable > 0);
        let physical = spec
            .gpu_count_label
            .filter(|count| *count > 0)
            .unwrap_or(allocatable.gpus);
        Node {
            name: spec.name.as_str().into(),
            symbol,
            present: true,
            rank,
            labels: spec.labels.clone(),
            taints: spec.taints.clone(),
            unschedulable: spec.unschedulable,
            not_ready: !spec.conditions.is_empty(),
            leaving: spec.conditions.contains(&NodeCondition::Leaving),
            allocatable,
            free: FreeResources {
                idle: allocatable,
                ..FreeResources::default()
            },
            extended,
            gpu_groups: Vec::new(),
            pods: Vec::new(),
            gpu_units: allocatable.gpus,
            gpu_physical: physical.min(allocatable.gpus),
            memory_mib: counted_gpu_memory_mib(spec.gpu_memory_mib),
            memory_known: spec.gpu_memory_mib.is_some_and(|mib| mib > 0),
            memory_kind: spec.gpu_memory_kind,
            mig_enabled: spec.mig_enabled,
            mig_strategy: spec.mig_strategy,
            enforcement: spec.enforcement,
            fractioning: spec.fractioning,
            has_mig,
            legacy_mig_pods: 0,
            foreign: QueueResources::ZERO,
        }
    }

    /// Sets the rank of every node by name, if nodes were added or removed.
    pub(crate) fn rank_nodes(&mut self) {
        if !std::mem::take(&mut self.ranks_changed) {
            return;
        }
        let mut order: Vec<usize> = (0..self.ledger.nodes.len()).collect();
        order.sort_by(|a, b| self.ledger.nodes[*a].name.cmp(&self.ledger.nodes[*b].name));
        for (rank, at) in order.into_iter().enumerate() {
            self.ledger.nodes[at].rank = rank as u32;
        }
        self.indexes.clear();
        self.ledger.changed_nodes.invalidate();
    }
}

/// The content of an unused row.
fn absent_node() -> Node {
    Node {
        name: "".into(),
        symbol: Symbol::new(0),
        present: false,
        rank: 0,
        labels: Labels::new(),
        taints: Vec::new(),
        unschedulable: true,
        not_ready: true,
        leaving: false,
        allocatable: NodeResources::ZERO,
        free: FreeResources::default(),
        extended: Vec::new(),
        gpu_groups: Vec::new(),
        pods: Vec::new(),
        gpu_units: 0,
        gpu_physical: 0,
        memory_mib: UNKNOWN_GPU_MEMORY_MIB,
        memory_known: false,
        memory_kind: MemoryKind::Dedicated,
        mig_enabled: false,
        mig_strategy: MigStrategy::None,
        enforcement: EnforcementTier::None,
        fractioning: FractioningCondition::Met,
        has_mig: false,
        legacy_mig_pods: 0,
        foreign: QueueResources::ZERO,
    }
}
