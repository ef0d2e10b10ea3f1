//! The binder's care for reservation pods, between two cycles. Only for files that have reservation pods: without any, the mirror takes
//! every GPU group as reserved.

use std::sync::Arc;

use kai_api::{Metadata, ObjectKey, Pod, ReservationPods, TextMap, keys};
use kai_mirror::{ClusterMirror, UnreservedGroup};

/// The GPU that a reservation pod reports if its members name none. Members that start in a simulation name none.
const SIMULATED_GPU: &str = "simulated";

/// Creates and deletes reservation pods.
#[derive(Debug)]
pub(super) struct SimulatedReservations {
    namespace: String,
    app_label: String,
}

impl SimulatedReservations {
    pub(super) fn new(reservation_pods: &ReservationPods) -> SimulatedReservations {
        SimulatedReservations {
            namespace: reservation_pods.namespace.clone(),
            app_label: reservation_pods.app_label.clone(),
        }
    }

    /// Deletes the reservation pods of GPU groups without members, and reserves the GPU groups that have members only.
    pub(super) fn reconcile(&self, mirror: &mut ClusterMirror) {
        for pod in mirror.unused_reservation_pods() {
            mirror.remove_pod(&pod);
        }
        for group in mirror.groups_without_reservation() {
            let pod = self.reservation_pod(&group);
            mirror.apply_pod(&ObjectKey::of(&pod), &Arc::new(pod));
        }
    }

    fn reservation_pod(&self, group: &UnreservedGroup) -> Pod {
        let UnreservedGroup { node, gpu_group, gpu } = group;
        let gpu = gpu.as_deref().unwrap_or(SIMULATED_GPU);
        let text = |key: &str, value: &str| (key.into(), value.into());
        let mut pod = Pod::default();
        pod.metadata = Metadata {
            name: Some(format!("simulated-{node}-{gpu_group}").into()),
            namespace: Some(self.namespace.as_str().into()),
            labels: TextMap::from_entries(vec![text(keys::APP, &self.app_label)]),
            annotations: TextMap::from_entries(vec![text(keys::RESERVED_GPU, gpu)]),
            ..Metadata::default()
        };
        pod.started_on(node, std::slice::from_ref(gpu_group))
    }
}
