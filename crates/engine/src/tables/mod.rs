//! The rows of the engine's tables: nodes, pods, gangs, queues and the shapes of pods.
//!
//! Plain data, with methods that read nothing but the row. Only [`crate::ledger`] writes the numbers that decisions change.

mod gang;
mod labels;
mod node;
mod pod;
mod queue;
mod resources;
mod shape;

pub(crate) use gang::{Gang, Member, PodList, PodSet, PodSets, SubGroup};
pub(crate) use labels::PackedLabels;
pub(crate) use node::{ExtendedResource, FreeResources, GpuGroup, Node, When};
pub(crate) use pod::{ChosenVolume, ChosenVolumes, DriverVolumes, GpuGroupIds, Placement, Pod, PodVolumes};
pub(crate) use queue::Queue;
pub(crate) use resources::NodeResources;
pub(crate) use shape::{GpuKind, Shape, ceil_hundredths};

use crate::report::Status;

/// MiB in bytes.
pub(crate) const MIB: i64 = 1 << 20;

/// Adds a row. A table grows by an eighth instead of doubling, because the tables are most of the engine's memory.
pub(crate) fn add_row<T>(table: &mut Vec<T>, row: T) {
    if table.len() == table.capacity() {
        table.reserve_exact(table.len() / 8 + 64);
    }
    table.push(row);
}

impl Status {
    /// Number of statuses, for counters.
    pub(crate) const COUNT: usize = 11;

    /// Whether the pod's resources are accounted on its node.
    pub(crate) fn is_active_used(self) -> bool {
        self.is_active_allocated() || matches!(self, Status::Releasing | Status::StuckInReleasing)
    }

    /// Whether the pod has a node, or is pipelined to one, and is not being evicted.
    pub(crate) fn is_active_allocated(self) -> bool {
        matches!(
            self,
            Status::Pipelined | Status::Binding | Status::Bound | Status::Running
        )
    }

    /// Whether the pod holds resources and is not being evicted. Pipelined pods do not hold any yet.
    pub(crate) fn is_allocated(self) -> bool {
        matches!(self, Status::Binding | Status::Bound | Status::Running)
    }

    /// Whether the pod runs or may still be started.
    pub(crate) fn is_alive(self) -> bool {
        self.is_active_allocated() || matches!(self, Status::Pending | Status::Gated)
    }
}
