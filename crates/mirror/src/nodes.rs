//! Translates nodes and topologies into engine events.

use std::sync::Arc;

use kai_api::{Node, NodeCondition, Object, ObjectReference, Topology, keys};
use kai_engine::model::{Event, TopologySpec};

use super::{ClusterMirror, uid_of};

/// A node that the engine has.
#[derive(Debug)]
pub(super) struct NodeEntry {
    uid: Box<str>,
    /// Allocatable GPUs.
    pub(super) gpus: i64,
    /// GPUs in the capacity that are not allocatable: the device plugin reports them unhealthy. `None` = the node reports no capacity.
    pub(super) failed_gpus: Option<i64>,
    /// Shared with the watch's object.
    conditions: Arc<[NodeCondition]>,
}

/// A node without the resource in its capacity has no GPUs, so that none is unhealthy.
fn failed_gpus(node: &Node, allocatable: i64) -> Option<i64> {
    let capacity = node.capacity(keys::RESOURCE_GPU).unwrap_or(0);
    node.reports_capacity()
        .then(|| capacity.saturating_sub(allocatable).max(0))
}

impl ClusterMirror {
    /// The node was added or changed.
    pub fn apply_node(&mut self, node: &Node) {
        let name = node.metadata().plain_name();
        if !self.selects_node(node) {
            return self.remove_node(name);
        }
        let uid = uid_of(node);
        if self.nodes.get(name).is_some_and(|known| &*known.uid != uid) {
            self.remove_node(name);
        }
        match node.read_with_mig_label(&self.mig_label) {
            Ok(mut read) => {
                read.value.fractioning = self.fractioning_condition(node);
                for problem in read.problems {
                    self.report_problem(|| ObjectReference::of(node), uid, problem);
                }
                let entry = NodeEntry {
                    uid: uid.into(),
                    gpus: read.value.gpus,
                    failed_gpus: failed_gpus(node, read.value.gpus),
                    conditions: Arc::clone(node.conditions()),
                };
                self.nodes.insert(name.into(), entry);
                self.recheck_gpu_groups(name);
                self.outbox.events.push(Event::Node(read.value));
            }
            Err(problem) => {
                self.report_problem(|| ObjectReference::of(node), uid, problem);
                self.remove_node(name);
            }
        }
    }

    /// The node was deleted, left the partition or can't be read.
    pub fn remove_node(&mut self, name: &str) {
        if self.nodes.remove(name).is_some() {
            self.outbox.events.push(Event::NodeGone(name.to_owned()));
            self.check_requests_to(name);
            self.recheck_gpu_groups(name);
        }
    }

    /// GPUs that the device plugin of the node reports unhealthy; `None` = unknown.
    pub fn failed_gpus(&self, node: &str) -> Option<i64> {
        self.nodes.get(node)?.failed_gpus
    }

    /// The conditions of the node, in the order of its object.
    pub fn node_conditions(&self, node: &str) -> &[NodeCondition] {
        self.nodes.get(node).map(|entry| &*entry.conditions).unwrap_or_default()
    }

    /// The label that assigns nodes to node pools.
    pub fn node_pool_label(&self) -> &str {
        self.partition.label_key_and_value().0
    }

    /// The topologies, by name.
    pub fn topologies(&self) -> impl Iterator<Item = &TopologySpec> {
        self.topologies.values()
    }

    /// Whether decisions may name this node.
    pub(super) fn has_node(&self, name: &str) -> bool {
        self.nodes.contains_key(name)
    }

    /// Whether the node is in the partition and, where `restrict_nodes` is set, a GPU or CPU worker.
    fn selects_node(&self, node: &Node) -> bool {
        let labels = &node.metadata().labels;
        let is_worker = self
            .restrict_nodes
            .as_ref()
            .is_none_or(|keys| labels.get(&keys.gpu).is_some() || labels.get(&keys.cpu).is_some());
        is_worker && self.partition.contains(node.metadata())
    }

    /// The topology was added or changed.
    pub fn apply_topology(&mut self, topology: &Topology) {
        match topology.read() {
            Ok(read) => {
                let name = read.value.name.clone();
                self.topologies.insert(name, read.value.clone());
                self.outbox.events.push(Event::Topology(read.value));
            }
            Err(problem) => {
                self.report_problem(|| ObjectReference::of(topology), uid_of(topology), problem);
                self.remove_topology(topology.metadata().plain_name());
            }
        }
    }

    /// The topology was deleted.
    pub fn remove_topology(&mut self, name: &str) {
        self.topologies.remove(name);
        self.outbox.events.push(Event::TopologyGone(name.to_owned()));
    }
}
