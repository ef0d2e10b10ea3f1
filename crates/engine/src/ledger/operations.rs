//! The operations on pods of which every decision and every observation consists.

use super::Ledger;
use crate::fit::fits_on_gpus;
use crate::ids::{NodeId, PodId};
use crate::report::Status;
use crate::tables::{ChosenVolumes, GpuGroupIds, Placement, When};

/// Operations of a cycle.
impl Ledger {
    /// Binds a pending pod.
    pub(crate) fn bind(&mut self, pod: PodId, node: NodeId, gpu_groups: GpuGroupIds, volumes: ChosenVolumes) {
        assert_eq!(
            self.pod(pod).placement.status,
            Status::Pending,
            "only a pending pod can be bound"
        );
        let placement = Placement {
            status: Status::Binding,
            node: Some(node),
            gpu_groups,
            volumes,
        };
        self.add_to_node(pod, &placement);
        self.set_placement(pod, placement, None, None);
    }

    /// Pipelines a pod to a node on which resources are being released. A pod that was evicted before keeps its old placement, which
    /// it occupies until it has terminated.
    pub(crate) fn pipeline(&mut self, pod: PodId, node: NodeId, gpu_groups: GpuGroupIds, volumes: ChosenVolumes) {
        let row = self.pod(pod);
        let (old, evicted_from) = (row.placement.clone(), row.evicted_from);
        let mut old_placement = row.old_placement.clone();
        if old.status == Status::Releasing {
            if evicted_from == Some(Status::Pipelined) {
                // The pod was only pipelined to its old node: it occupies nothing there.
                self.remove_from_node(pod, &old);
            } else {
                old_placement = Some(Box::new(old));
            }
        }
        let placement = Placement {
            status: Status::Pipelined,
            node: Some(node),
            gpu_groups,
            volumes,
        };
        self.add_to_node(pod, &placement);
        self.set_placement(pod, placement, old_placement, evicted_from);
    }

    /// Turns a binding of this cycle into a pipelined placement, because other pods of its gang have to wait.
    pub(crate) fn bind_to_pipeline(&mut self, pod: PodId) {
        let old = self.pod(pod).placement.clone();
        assert_eq!(old.status, Status::Binding, "only a binding can become pipelined");
        let new = Placement {
            status: Status::Pipelined,
            ..old.clone()
        };
        self.remove_from_node(pod, &old);
        self.add_to_node(pod, &new);
        self.set_placement(pod, new, None, None);
    }

    /// Turns a pipelined placement into a binding if its resources are free now. Leaves changes in the journal if they are not: the
    /// caller then rolls back.
    pub(crate) fn promote_to_bind(&mut self, pod: PodId) -> bool {
        let old = self.pod(pod).placement.clone();
        let Some(node) = old.node else { return false };
        self.remove_from_node(pod, &old);
        let fits = fits_on_gpus(self.node(node), self.shape_of(pod), &old.gpu_groups, When::Now)
            && self.check_attachments(pod, node, When::Now).is_ok();
        if !fits {
            return false;
        }
        let new = Placement {
            status: Status::Binding,
            ..old
        };
        self.add_to_node(pod, &new);
        self.set_placement(pod, new, None, None);
        true
    }

    /// Evicts a pod: its resources are releasing from now on.
    pub(crate) fn evict(&mut self, pod: PodId) {
        let old = self.pod(pod).placement.clone();
        assert!(
            old.status.is_active_allocated(),
            "only a pod with a placement can be evicted"
        );
        let old_placement = self.pod(pod).old_placement.clone();
        let new = Placement {
            status: Status::Releasing,
            ..old.clone()
        };
        self.remove_from_node(pod, &old);
        self.add_to_node(pod, &new);
        self.set_placement(pod, new, old_placement, Some(old.status));
    }

    /// Undoes the eviction of a pod: the pod stays on its node.
    pub(crate) fn undo_eviction(&mut self, pod: PodId) {
        let old = self.pod(pod).placement.clone();
        let status = self
            .pod(pod)
            .evicted_from
            .expect("only an eviction of this cycle can be undone");
        let old_placement = self.pod(pod).old_placement.clone();
        let new = Placement { status, ..old.clone() };
        self.remove_from_node(pod, &old);
        self.add_to_node(pod, &new);
        self.set_placement(pod, new, old_placement, None);
    }

    /// Undoes the new placement of a pod that the running simulation evicted and placed again: the pod is evicted only.
    pub(crate) fn undo_move(&mut self, pod: PodId) {
        let row = self.pod(pod);
        let (placement, evicted_from) = (row.placement.clone(), row.evicted_from);
        let old_placement = row.old_placement.clone();
        let old_placement = old_placement.expect("a moved pod still has its old placement");
        self.remove_from_node(pod, &placement);
        self.set_placement(pod, *old_placement, None, evicted_from);
    }

    /// Makes the eviction of a pod final: it can't be undone any more.
    pub(crate) fn finish_eviction(&mut self, pod: PodId) {
        let row = &mut self.pods[pod.index()];
        row.evicted_from = None;
    }

    /// Assumes that a binding is carried out, until an event shows otherwise.
    pub(crate) fn assume_bound(&mut self, pod: PodId) {
        let row = &mut self.pods[pod.index()];
        row.observed = row.placement.clone();
        let node = row.placement.node.expect("a bound pod has a node");
        row.observed_node_name = Some(self.nodes[node.index()].symbol);
    }

    /// No longer assumes that a binding of this cycle is carried out.
    pub(crate) fn forget_binding(&mut self, pod: PodId) {
        let row = &mut self.pods[pod.index()];
        row.observed = Placement::none(Status::Pending);
        row.observed_node_name = None;
    }

    /// Retracts a binding of this cycle whose pod a later action evicted: the pod is pending again, or pipelined if that action placed
    /// it again.
    pub(crate) fn retract_binding(&mut self, pod: PodId) {
        self.forget_binding(pod);
        let row = &self.pods[pod.index()];
        let (placement, old_placement) = (row.placement.clone(), row.old_placement.clone());
        if let Some(old_placement) = old_placement {
            self.remove_from_node(pod, &old_placement);
            return self.set_placement(pod, placement, None, None);
        }
        self.remove_from_node(pod, &placement);
        self.set_placement(pod, Placement::none(Status::Pending), None, None);
    }

    /// Whether a pod that the running simulation evicted would still fit on its node, once all releasing pods have terminated.
    pub(crate) fn still_fits(&self, pod: PodId) -> bool {
        let placement = &self.pod(pod).placement;
        let Some(node) = placement.node else { return false };
        fits_on_gpus(
            self.node(node),
            self.shape_of(pod),
            &placement.gpu_groups,
            When::AfterRelease,
        ) && self.check_attachments(pod, node, When::AfterRelease).is_ok()
    }
}

/// Operations between cycles.
impl Ledger {
    /// Sets the placement of a pod to the observed one.
    pub(crate) fn set_observed(&mut self, pod: PodId, observed: Placement) {
        debug_assert!(!self.recording);
        self.remove_placement(pod);
        self.add_to_node(pod, &observed);
        self.pods[pod.index()].observed = observed.clone();
        self.set_placement(pod, observed, None, None);
    }

    /// Removes a pod from its nodes and from all sums.
    pub(crate) fn remove_placement(&mut self, pod: PodId) {
        debug_assert!(!self.recording);
        let row = self.pod(pod);
        let (placement, old_placement) = (row.placement.clone(), row.old_placement.clone());
        self.remove_from_node(pod, &placement);
        if let Some(old_placement) = old_placement {
            self.remove_from_node(pod, &old_placement);
        }
        self.set_placement(pod, Placement::none(Status::Unknown), None, None);
    }
}
