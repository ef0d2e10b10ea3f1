//! The journal of a cycle: how each change of the ledger is undone.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Ledger;
use crate::ids::{GpuGroupId, NodeId, PodId};
use crate::report::Status;
use crate::tables::{ChosenVolume, FreeResources, GpuGroup, Placement};

/// How to undo one change: the values from before it.
#[derive(Clone, Debug)]
pub(super) enum Undo {
    Pod {
        pod: PodId,
        placement: Placement,
        old_placement: Option<Box<Placement>>,
        evicted_from: Option<Status>,
    },
    Free {
        node: NodeId,
        free: FreeResources,
    },
    Extended {
        node: NodeId,
        at: u32,
        idle: i64,
        releasing: i64,
    },
    GpuGroup {
        node: NodeId,
        id: GpuGroupId,
        old: Option<GpuGroup>,
    },
    Volumes {
        node: Option<NodeId>,
        volumes: Arc<[ChosenVolume]>,
        sign: i32,
    },
    Attachments {
        pod: PodId,
        node: Option<NodeId>,
        status: Status,
        sign: i32,
    },
    PodAdded {
        node: NodeId,
    },
    PodRemoved {
        node: NodeId,
        pod: PodId,
        at: u32,
    },
}

/// Up to this many pods, a linear search through a list is faster than a set.
const LINEAR_SEARCH_MAX: usize = 16;

/// Steps of work that undoing the change of a pod's placement counts as.
const WORK_PER_UNDO: usize = 2;

/// A position in the journal to roll back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint(usize);

impl Ledger {
    /// Starts to record changes. Called at the start of a cycle.
    pub(crate) fn start_journal(&mut self) {
        debug_assert!(self.journal.is_empty());
        self.recording = true;
    }

    /// Stops to record changes, and commits those of the journal.
    pub(crate) fn stop_journal(&mut self) {
        self.recording = false;
        self.commit();
    }

    pub(super) fn log(&mut self, undo: Undo) {
        if self.recording {
            self.journal.push(undo);
        }
    }

    /// Pods that cycles changed since the last call, in the order of their ids.
    pub(crate) fn take_changed_pods(&mut self) -> Vec<PodId> {
        let mut changed = std::mem::take(&mut self.changed_pods);
        changed.sort_unstable();
        changed.dedup();
        changed
    }

    /// Pods changed since the checkpoint, each once, in the order of their first change.
    pub(crate) fn changed_since(&self, checkpoint: Checkpoint) -> SmallVec<[PodId; LINEAR_SEARCH_MAX]> {
        let mut changed: SmallVec<[PodId; LINEAR_SEARCH_MAX]> = SmallVec::new();
        let mut seen = rustc_hash::FxHashSet::default();
        for undo in &self.journal[checkpoint.0..] {
            let Undo::Pod { pod, .. } = undo else { continue };
            if changed.len() < LINEAR_SEARCH_MAX {
                if !changed.contains(pod) {
                    changed.push(*pod);
                }
                continue;
            }
            if seen.is_empty() {
                seen.extend(changed.iter().copied());
            }
            if seen.insert(*pod) {
                changed.push(*pod);
            }
        }
        changed
    }

    /// Makes all changes of the journal final.
    pub(crate) fn commit(&mut self) {
        let pods = self.journal.drain(..).filter_map(|undo| match undo {
            Undo::Pod { pod, .. } => Some(pod),
            Undo::Free { .. }
            | Undo::Extended { .. }
            | Undo::GpuGroup { .. }
            | Undo::Volumes { .. }
            | Undo::Attachments { .. }
            | Undo::PodAdded { .. }
            | Undo::PodRemoved { .. } => None,
        });
        self.changed_pods.extend(pods);
    }

    pub(crate) fn checkpoint(&self) -> Checkpoint {
        Checkpoint(self.journal.len())
    }

    /// Undoes all changes since the checkpoint, the last one first.
    pub(crate) fn rollback(&mut self, to: Checkpoint) {
        while self.journal.len() > to.0 {
            let undo = self.journal.pop().expect("the journal is longer than the checkpoint");
            self.undo(undo);
        }
    }

    fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Pod {
                pod,
                placement,
                old_placement,
                evicted_from,
            } => {
                self.note_work(WORK_PER_UNDO);
                self.swap_placement(pod, placement, old_placement, evicted_from);
            }
            Undo::Free { node, free } => {
                self.nodes[node.index()].free = free;
                self.changed_nodes.push(node);
            }
            Undo::Extended {
                node,
                at,
                idle,
                releasing,
            } => {
                let extended = &mut self.nodes[node.index()].extended[at as usize];
                (extended.idle, extended.releasing) = (idle, releasing);
                self.changed_nodes.push(node);
            }
            Undo::GpuGroup { node, id, old } => self.restore_gpu_group(node, id, old),
            Undo::Volumes { node, volumes, sign } => self.volumes.count(node, &volumes, -sign),
            Undo::Attachments {
                pod,
                node,
                status,
                sign,
            } => self.undo_attachments(pod, node, status, sign),
            Undo::PodAdded { node } => {
                if let Some(pod) = self.nodes[node.index()].pods.pop() {
                    self.count_terms(pod, node, -1);
                }
            }
            Undo::PodRemoved { node, pod, at } => {
                self.count_terms(pod, node, 1);
                let pods = &mut self.nodes[node.index()].pods;
                pods.push(pod);
                let last = pods.len() - 1;
                pods.swap(at as usize, last);
            }
        }
    }

    fn restore_gpu_group(&mut self, node: NodeId, id: GpuGroupId, old: Option<GpuGroup>) {
        let groups = &mut self.nodes[node.index()].gpu_groups;
        match (groups.binary_search_by_key(&id, |group| group.id), old) {
            (Ok(at), Some(old)) => groups[at] = old,
            (Ok(at), None) => {
                groups.remove(at);
                self.gpu_groups_in_use -= 1;
            }
            (Err(at), Some(old)) => {
                groups.insert(at, old);
                self.gpu_groups_in_use += 1;
            }
            (Err(_), None) => {}
        }
        self.changed_nodes.push(node);
    }
}
