//! Free resources of a node: whole GPUs, GPUs for new GPU groups, the memory of shared GPUs, extended resources.

use crate::ids::ResourceId;
use crate::tables::{FreeResources, GpuGroup, Node, NodeResources, Shape, When};

impl FreeResources {
    pub(crate) fn at(&self, when: When) -> NodeResources {
        match when {
            When::Now => self.idle,
            When::AfterRelease => self.total(),
        }
    }
}

impl GpuGroup {
    /// Whether the group keeps its GPU from being a free one of its node.
    pub(crate) fn holds_gpu(&self, when: When) -> bool {
        match when {
            When::Now => self.allocated_mib() > 0,
            When::AfterRelease => !self.is_emptying() && !self.is_unused(),
        }
    }

    /// MiB of the GPU that one more pod can get. Has a meaning only if the group holds its GPU.
    pub(crate) fn available_mib(&self, memory_mib: i64, when: When) -> i64 {
        match when {
            When::Now => memory_mib - self.allocated_mib(),
            When::AfterRelease => memory_mib - self.active_mib - self.pipelined_mib,
        }
    }

    /// Whether one more pod of the shape can join on a node with GPUs of `memory_mib`. Never true for a group that does not hold its
    /// GPU: that GPU counts as a free one.
    pub(crate) fn fits(&self, shape: &Shape, memory_mib: i64, when: When) -> bool {
        self.has_room(shape, memory_mib, when) && self.compute_mode() == Some(shape.constraints.share.compute_mode)
    }

    /// Whether the memory suffices for one more pod of the shape, whatever its compute mode.
    pub(super) fn has_room(&self, shape: &Shape, memory_mib: i64, when: When) -> bool {
        self.available_mib(memory_mib, when) >= shape.need_mib(memory_mib) && self.holds_gpu(when)
    }
}

impl Node {
    /// How many of `free` GPUs can be allocated whole. On a time-sliced node every GPU group takes all units of one physical GPU.
    pub(crate) fn whole_units_of(&self, free: i64, when: When) -> i64 {
        if !self.is_time_sliced() {
            return free;
        }
        let (shared, whole) = self.occupied(when);
        free.min(self.gpu_units - shared * self.units_per_device() - whole)
    }

    /// How many GPUs can become the GPU of a new GPU group.
    pub(crate) fn shareable_devices(&self, when: When) -> i64 {
        self.shareable_devices_of(self.free.at(when).gpus, when)
    }

    /// How many of `free` GPUs can become the GPU of a new GPU group.
    pub(super) fn shareable_devices_of(&self, free: i64, when: When) -> i64 {
        if !self.is_time_sliced() {
            return free;
        }
        let (shared, whole) = self.occupied(when);
        let per_device = self.units_per_device();
        free.min(self.gpu_physical - shared - (whole + per_device - 1) / per_device)
    }

    /// How much of an extended resource is free; 0 if the node has none.
    pub(crate) fn free_extended(&self, resource: ResourceId, when: When) -> i64 {
        let Some(extended) = self.extended.iter().find(|extended| extended.resource == resource) else {
            return 0;
        };
        match when {
            When::Now => extended.idle,
            When::AfterRelease => extended.idle + extended.releasing,
        }
    }

    fn units_per_device(&self) -> i64 {
        (self.gpu_units / self.gpu_physical.max(1)).max(1)
    }

    /// GPU groups and whole GPUs in use.
    fn occupied(&self, when: When) -> (i64, i64) {
        match when {
            When::Now => (self.gpu_groups.len() as i64, self.free.whole_gpus_used),
            When::AfterRelease => {
                let remaining = self.gpu_groups.iter().filter(|group| !group.is_emptying());
                let whole = self.free.whole_gpus_used - self.free.whole_gpus_releasing;
                (remaining.count() as i64, whole)
            }
        }
    }
}
