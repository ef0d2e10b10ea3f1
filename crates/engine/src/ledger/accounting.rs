//! What a pod's placement adds to its node, GPU groups, gang and queues.

use std::ops::{AddAssign, SubAssign};

use super::journal::Undo;
use super::{Ledger, cores};
use crate::ids::{GangId, GpuGroupId, NodeId, PodId, ShapeId};
use crate::model::{ComputeMode, PodKind, QueueResources};
use crate::report::Status;
use crate::tables::{GpuGroup, GpuKind, Placement};

/// Steps of work that a change of a pod's placement counts as.
const WORK_PER_CHANGE: usize = 4;

/// The placement of a pod, and the sums over pods by status.
impl Ledger {
    pub(super) fn set_placement(
        &mut self,
        pod: PodId,
        placement: Placement,
        old_placement: Option<Box<Placement>>,
        evicted_from: Option<Status>,
    ) {
        self.note_work(WORK_PER_CHANGE);
        let (placement, old_placement, evicted_from) = self.swap_placement(pod, placement, old_placement, evicted_from);
        self.log(Undo::Pod {
            pod,
            placement,
            old_placement,
            evicted_from,
        });
    }

    /// Sets the placement without an entry in the journal; returns the values from before.
    pub(super) fn swap_placement(
        &mut self,
        pod: PodId,
        placement: Placement,
        old_placement: Option<Box<Placement>>,
        evicted_from: Option<Status>,
    ) -> (Placement, Option<Box<Placement>>, Option<Status>) {
        self.count_pod(pod, -1);
        let row = &mut self.pods[pod.index()];
        let before = (
            std::mem::replace(&mut row.placement, placement),
            std::mem::replace(&mut row.old_placement, old_placement),
            std::mem::replace(&mut row.evicted_from, evicted_from),
        );
        self.count_pod(pod, 1);
        before
    }

    /// Adds the pod (`sign` 1) to all sums by status, or subtracts it (-1): the counters of its pod set, the resources of its gang and
    /// its queues.
    pub(crate) fn count_pod(&mut self, pod: PodId, sign: i64) {
        let Ledger {
            nodes,
            pods,
            gangs,
            queues,
            shapes,
            dirty_gangs,
            gpu_shares_in_use,
            background_pods,
            unsettled_cores,
            ..
        } = self;
        let row = &pods[pod.index()];
        let (Some(id), Some(pod_set)) = (row.gang, row.pod_set) else {
            return;
        };
        let gang = &mut gangs[id.index()];
        if !std::mem::replace(&mut gang.dirty, true) {
            dirty_gangs.push(id);
        }
        if row.background {
            gang.background_pods = gang.background_pods.wrapping_add_signed(sign as i32);
            *background_pods = background_pods.wrapping_add_signed(sign as isize);
        }
        let status = row.placement.status;
        let set = &mut gang.pod_sets[pod_set as usize];
        let counter = &mut set.counts[status as usize];
        *counter = counter.wrapping_add_signed(sign as i32);
        if row.is_refused() && status == Status::Pending {
            set.refused = set.refused.wrapping_add_signed(sign as i32);
        }
        if gang.is_semi_preemptible() && status.is_active_allocated() {
            cores::mark(id, gang, unsettled_cores);
        }
        let shape = &shapes[row.shape.index()];
        if shape.is_shared() && status.is_active_allocated() {
            *gpu_shares_in_use += sign * shape.devices();
        }
        let accepted = match row.placement.node {
            Some(node) if status.is_active_allocated() => shape.accepted(nodes[node.index()].memory_mib),
            _ => QueueResources::ZERO,
        };
        if accepted == QueueResources::ZERO {
            return;
        }
        let charge = accepted * sign;
        if status.is_allocated() {
            gang.allocated += charge;
        }
        let is_non_preemptible = gang.is_non_preemptible();
        let mut queue = gang.queue;
        while let Some(id) = queue {
            let row = &mut queues[id.index()];
            row.allocated += charge;
            if is_non_preemptible {
                row.allocated_non_preemptible += charge;
            }
            queue = row.parent;
        }
    }

    /// Marks a gang whose spec changed.
    pub(crate) fn mark_dirty(&mut self, gang: GangId) {
        if !std::mem::replace(&mut self.gangs[gang.index()].dirty, true) {
            self.dirty_gangs.push(gang);
        }
    }

    /// The gangs that changed since the last call.
    pub(crate) fn take_dirty_gangs(&mut self) -> Vec<GangId> {
        let dirty = std::mem::take(&mut self.dirty_gangs);
        for gang in &dirty {
            self.gangs[gang.index()].dirty = false;
        }
        dirty
    }
}

/// The resources of a node.
impl Ledger {
    pub(super) fn add_to_node(&mut self, pod: PodId, placement: &Placement) {
        self.use_volumes(placement, 1);
        self.use_attachments(pod, placement.node, placement.status, 1);
        let Some(node) = placement.node.filter(|_| placement.status.is_active_used()) else {
            return;
        };
        self.log(Undo::PodAdded { node });
        self.nodes[node.index()].pods.push(pod);
        self.count_terms(pod, node, 1);
        self.account(pod, node, placement, 1);
    }

    pub(super) fn remove_from_node(&mut self, pod: PodId, placement: &Placement) {
        self.use_volumes(placement, -1);
        self.use_attachments(pod, placement.node, placement.status, -1);
        let Some(node) = placement.node.filter(|_| placement.status.is_active_used()) else {
            return;
        };
        let pods = &mut self.nodes[node.index()].pods;
        let at = pods
            .iter()
            .rposition(|on_node| *on_node == pod)
            .expect("a pod with a placement is listed on its node");
        pods.swap_remove(at);
        self.count_terms(pod, node, -1);
        self.log(Undo::PodRemoved {
            node,
            pod,
            at: at as u32,
        });
        self.account(pod, node, placement, -1);
    }

    /// Takes the resources of a pod from its node (`sign` 1) or gives them back (-1).
    fn account(&mut self, pod: PodId, node: NodeId, placement: &Placement, sign: i64) {
        let row = &self.pods[pod.index()];
        let (kind, shape) = (row.kind, row.shape);
        let old_free = self.nodes[node.index()].free;
        self.log(Undo::Free { node, free: old_free });
        let shape_row = &self.shapes[shape.index()];
        let target = &mut self.nodes[node.index()];
        let charge = target.charge(shape_row, kind);
        shift(
            &mut target.free.idle,
            &mut target.free.releasing,
            charge * sign,
            placement.status,
        );
        target.free.whole_gpus_used += sign * charge.gpus;
        if placement.status == Status::Releasing {
            target.free.whole_gpus_releasing += sign * charge.gpus;
        }
        if kind == PodKind::Foreign {
            target.foreign += shape_row.requested(None) * sign;
        }
        if let GpuKind::Mig { legacy: true } = shape_row.gpu {
            target.legacy_mig_pods = target.legacy_mig_pods.wrapping_add_signed(sign as i32);
        }
        self.account_extended(node, shape, placement.status, sign);
        if self.shapes[shape.index()].is_shared() {
            let shape = &self.shapes[shape.index()];
            let need = shape.need_mib(self.nodes[node.index()].memory_mib);
            let mode = shape.constraints.share.compute_mode;
            for group in &placement.gpu_groups {
                self.account_gpu_group(node, *group, (need, mode), placement.status, sign);
            }
        }
        self.changed_nodes.push(node);
    }

    fn account_extended(&mut self, node: NodeId, shape: ShapeId, status: Status, sign: i64) {
        for at in 0..self.shapes[shape.index()].extended.len() {
            let (resource, amount) = self.shapes[shape.index()].extended[at];
            let target = &mut self.nodes[node.index()];
            let Some(at) = target
                .extended
                .iter()
                .position(|extended| extended.resource == resource)
            else {
                continue;
            };
            let extended = &mut target.extended[at];
            if extended.allocatable == 0 {
                continue;
            }
            let undo = Undo::Extended {
                node,
                at: at as u32,
                idle: extended.idle,
                releasing: extended.releasing,
            };
            shift(&mut extended.idle, &mut extended.releasing, amount * sign, status);
            self.log(undo);
        }
    }

    /// Accounts one pod in a GPU group, by its MiB and its compute mode, and the whole GPUs that the node gains or loses by it.
    fn account_gpu_group(
        &mut self,
        node: NodeId,
        id: GpuGroupId,
        (need, mode): (i64, ComputeMode),
        status: Status,
        sign: i64,
    ) {
        let groups = &self.nodes[node.index()].gpu_groups;
        let found = groups.binary_search_by_key(&id, |group| group.id);
        let old = found.ok().map(|at| groups[at]);
        self.log(Undo::GpuGroup { node, id, old });
        let before = old.unwrap_or(GpuGroup::empty(id));
        let mut after = before;
        let part = match status {
            Status::Releasing => &mut after.releasing_mib,
            Status::Pipelined => &mut after.pipelined_mib,
            _ => &mut after.active_mib,
        };
        *part += sign * need;
        // A pod without memory does not keep its group in the list, so it has no part in the group's mode.
        if need > 0 {
            let count = |pods: u32| pods.wrapping_add_signed(sign as i32);
            after.pods = count(after.pods);
            match mode {
                ComputeMode::TimeSlicing => {}
                ComputeMode::SmSharing => after.sm_sharing_pods = count(after.sm_sharing_pods),
            }
        }
        let target = &mut self.nodes[node.index()];
        target.free.idle.gpus -= after.idle_gpus_taken() - before.idle_gpus_taken();
        target.free.releasing.gpus += after.releasing_gpus_given() - before.releasing_gpus_given();
        match (found, after.is_unused()) {
            (Ok(at), true) => {
                target.gpu_groups.remove(at);
                self.gpu_groups_in_use -= 1;
            }
            (Ok(at), false) => target.gpu_groups[at] = after,
            (Err(_), true) => {}
            (Err(at), false) => {
                target.gpu_groups.insert(at, after);
                self.gpu_groups_in_use += 1;
            }
        }
    }
}

/// Moves `amount` between idle and releasing as a pod of this status is added; a negative amount as it is removed.
fn shift<A: Copy + AddAssign + SubAssign>(idle: &mut A, releasing: &mut A, amount: A, status: Status) {
    match status {
        Status::Releasing => {
            *idle -= amount;
            *releasing += amount;
        }
        Status::Pipelined => *releasing -= amount,
        _ => *idle -= amount,
    }
}
