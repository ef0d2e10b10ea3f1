//! The rows of the engine's tables: nodes, pods, gangs, queues and the shapes of pods.
//!
//! Plain data with the small questions that need nothing but the row. Every number that a decision can change is
//! written by [`crate::ledger`] only.

mod gang;
mod labels;
mod node;
mod pod;
mod queue;
mod shape;

pub(crate) use gang::{Gang, Member, PodList, PodSet, PodSets, SubGroup};
pub(crate) use labels::PackedLabels;
pub(crate) use node::{Extended, Free, Group, Node, When};
pub(crate) use pod::{Groups, Place, Pod};
pub(crate) use queue::Queue;
pub(crate) use shape::{GpuKind, Shape, ceil_hundredths};

use crate::report::Status;

/// Index of milli-cores in resource arrays.
pub(crate) const CPU: usize = 0;
/// Index of bytes of memory.
pub(crate) const MEMORY: usize = 1;
/// Index of whole GPUs.
pub(crate) const GPU: usize = 2;
/// Index of pod slots.
pub(crate) const PODS: usize = 3;

/// CPU, memory, whole GPUs, pod slots.
pub(crate) type Vector = [i64; 4];
/// CPU, memory, GPUs in millionths: what queues count.
pub(crate) type Share = [i64; 3];

/// Index of GPUs in a [`Share`].
pub(crate) const SHARE_GPU: usize = 2;

/// MiB in bytes.
pub(crate) const MIB: i64 = 1 << 20;

/// Adds a row. A table grows by an eighth and not to twice its size: rows are what memory goes into.
pub(crate) fn add_row<T>(table: &mut Vec<T>, row: T) {
    if table.len() == table.capacity() {
        table.reserve_exact(table.len() / 8 + 64);
    }
    table.push(row);
}

impl Status {
    /// Number of statuses, for counters.
    pub(crate) const COUNT: usize = 11;

    /// Occupies its node.
    pub(crate) fn is_active_used(self) -> bool {
        self.is_active_allocated() || matches!(self, Status::Releasing | Status::StuckInReleasing)
    }

    /// Has a place and is meant to keep it.
    pub(crate) fn is_active_allocated(self) -> bool {
        matches!(
            self,
            Status::Pipelined | Status::Binding | Status::Bound | Status::Running
        )
    }

    /// Really holds its place, as opposed to waiting for it.
    pub(crate) fn is_allocated(self) -> bool {
        matches!(self, Status::Binding | Status::Bound | Status::Running)
    }

    /// Is or may become part of the running gang.
    pub(crate) fn is_alive(self) -> bool {
        self.is_active_allocated() || matches!(self, Status::Pending | Status::Gated)
    }
}
