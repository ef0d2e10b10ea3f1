//! Nodes and topologies on their way into the engine.

use kai_api::{Node, Object, ObjectReference, Topology, keys};
use kai_engine::model::Event;

use super::{ClusterMirror, uid_of};

/// A node that is in the engine.
#[derive(Debug)]
pub(super) struct Entry {
    uid: Box<str>,
    /// Allocatable GPUs.
    pub(super) gpus: i64,
    /// GPUs that it has and that are not allocatable: they failed.
    pub(super) failed_gpus: i64,
}

impl ClusterMirror {
    /// The node was added or changed.
    pub fn apply_node(&mut self, node: &Node) {
        let name = node.metadata().plain_name();
        if !self.takes_node(node) {
            return self.remove_node(name);
        }
        let uid = uid_of(node);
        if self.nodes.get(name).is_some_and(|known| &*known.uid != uid) {
            self.remove_node(name);
        }
        match node.read_by(&self.mig_label) {
            Ok(read) => {
                for problem in read.problems {
                    self.tell(|| ObjectReference::of(node), uid, problem);
                }
                let entry = Entry {
                    uid: uid.into(),
                    gpus: read.value.gpus,
                    failed_gpus: node
                        .capacity(keys::RESOURCE_GPU)
                        .map_or(0, |all| all.saturating_sub(read.value.gpus).max(0)),
                };
                self.nodes.insert(name.into(), entry);
                self.recheck_lost_groups(name);
                self.outbox.events.push(Event::Node(read.value));
            }
            Err(problem) => {
                self.tell(|| ObjectReference::of(node), uid, problem);
                self.remove_node(name);
            }
        }
    }

    /// The node was deleted.
    pub fn remove_node(&mut self, name: &str) {
        if self.nodes.remove(name).is_some() {
            self.outbox.events.push(Event::NodeGone(name.to_owned()));
            self.check_requests_to(name);
            self.recheck_lost_groups(name);
        }
    }

    /// Whether decisions may name this node.
    pub(super) fn has_node(&self, name: &str) -> bool {
        self.nodes.contains_key(name)
    }

    /// In the partition, and, where nodes are restricted, a worker of some kind.
    fn takes_node(&self, node: &Node) -> bool {
        let labels = &node.metadata().labels;
        let works = self
            .restrict_nodes
            .as_ref()
            .is_none_or(|keys| labels.get(&keys.gpu).is_some() || labels.get(&keys.cpu).is_some());
        works && self.partition.takes(node.metadata())
    }

    /// The topology was added or changed.
    pub fn apply_topology(&mut self, topology: &Topology) {
        match topology.read() {
            Ok(read) => self.outbox.events.push(Event::Topology(read.value)),
            Err(problem) => {
                self.tell(|| ObjectReference::of(topology), uid_of(topology), problem);
                self.remove_topology(topology.metadata().plain_name());
            }
        }
    }

    /// The topology was deleted.
    pub fn remove_topology(&mut self, name: &str) {
        self.outbox.events.push(Event::TopologyGone(name.to_owned()));
    }
}
