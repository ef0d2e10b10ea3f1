//! The tables, and the only writer of every number that a decision can change: free resources of nodes and GPU groups, placements of
//! pods, allocated resources of gangs and queues.
//!
//! All changes go through the operations in `operations`. While a cycle runs, each is recorded in a journal, so that a what-if costs no
//! more than its own changes: [`Ledger::checkpoint`], try, [`Ledger::rollback`]. The ledger decides nothing.

mod accounting;
mod attachments;
mod changed_nodes;
mod cores;
mod journal;
mod operations;
mod volumes;

use std::cell::Cell;

use crate::affinity::AffinityIndex;
use crate::ids::{GangId, NodeId, PodId, QueueId, ShapeId};
use crate::intern::Symbols;
use crate::tables::{Gang, Node, Pod, Queue, Shape};

pub(crate) use attachments::{Attachments, VolumeSignature};
use changed_nodes::ChangedNodes;
pub(crate) use cores::{CoreChange, QueueRequest};
pub(crate) use journal::Checkpoint;
use journal::Undo;
pub(crate) use volumes::VolumeUses;

/// The tables and their journal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) nodes: Vec<Node>,
    pub(crate) pods: Vec<Pod>,
    pub(crate) gangs: Vec<Gang>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) shapes: Vec<Shape>,
    pub(crate) symbols: Symbols,
    /// Counts of pods by affinity term and topology value.
    pub(crate) affinity: AffinityIndex,
    /// Number of GPU groups on all nodes.
    pub(crate) gpu_groups_in_use: usize,
    /// Number of GPU shares that pods of gangs hold or are pipelined to: one for each pod and GPU.
    pub(crate) gpu_shares_in_use: i64,
    /// Number of background pods in pod sets.
    pub(crate) background_pods: usize,
    /// The volumes and claims that placements use.
    pub(crate) volumes: VolumeUses,
    /// The claims and volumes that pods use, by the status of the pods.
    pub(crate) attachments: Attachments,
    /// Number of rows in `nodes` that hold a node.
    pub(crate) present_nodes: usize,
    /// See [`Ledger::note_work`].
    work: Cell<u64>,
    journal: Vec<Undo>,
    recording: bool,
    /// Pods whose changes were committed since [`Ledger::take_changed_pods`]; a pod may be listed more than once.
    changed_pods: Vec<PodId>,
    /// The indexes over nodes are brought up to date from it.
    pub(crate) changed_nodes: ChangedNodes,
    /// Gangs whose spec changed, or whose pods were added, removed or changed their status. An id may be listed twice if another gang
    /// has taken over its row.
    pub(crate) dirty_gangs: Vec<GangId>,
    /// Semi-preemptible gangs of which pods got or lost a place since [`Ledger::settle_cores`]. An id may be listed twice, or be that of
    /// a gang that has taken over the row.
    unsettled_cores: Vec<GangId>,
}

/// A row of the node table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeAt<'l> {
    pub(crate) id: NodeId,
    pub(crate) row: &'l Node,
    /// Differs after each change of the node's resources.
    pub(crate) version: u64,
}

impl Ledger {
    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// A node with its id and version.
    pub(crate) fn node_at(&self, id: NodeId) -> NodeAt<'_> {
        NodeAt {
            id,
            row: self.node(id),
            version: self.changed_nodes.version(id),
        }
    }

    pub(crate) fn pod(&self, id: PodId) -> &Pod {
        &self.pods[id.index()]
    }

    pub(crate) fn gang(&self, id: GangId) -> &Gang {
        &self.gangs[id.index()]
    }

    pub(crate) fn queue(&self, id: QueueId) -> &Queue {
        &self.queues[id.index()]
    }

    pub(crate) fn shape(&self, id: ShapeId) -> &Shape {
        &self.shapes[id.index()]
    }

    pub(crate) fn shape_of(&self, pod: PodId) -> &Shape {
        self.shape(self.pod(pod).shape)
    }

    /// The queue and its ancestors, leaf first.
    pub(crate) fn queue_path(&self, leaf: QueueId) -> impl Iterator<Item = QueueId> + '_ {
        std::iter::successors(Some(leaf), |queue| self.queue(*queue).parent)
    }

    /// Counts steps of work: nodes, pods, victims, domains or terms that a loop visits.
    pub(crate) fn note_work(&self, steps: usize) {
        self.work.set(self.work.get() + steps as u64);
    }

    /// Steps of work so far, over all cycles.
    pub(crate) fn work(&self) -> u64 {
        self.work.get()
    }
}
