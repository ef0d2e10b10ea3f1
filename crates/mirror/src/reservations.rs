//! GPU groups, their member pods and their reservation pods. Three situations need more than the engine's own accounting, which charges a
//! shared GPU to the members of its GPU group.
//!
//! **Unused reservation.** The last member is gone and the reservation pod is not: the GPU looks free, but the kubelet counts it to the
//! reservation pod until the binder has deleted that. The kubelet would reject a pod bound in between. So the mirror shows an unused
//! reservation pod to the engine as a terminating pod with a whole GPU.
//!
//! **Unreserved group.** Members run, but the reservation pod is gone or holds another GPU: the kubelet takes the members' GPU to be free
//! and may give it to any pod. The mirror can't know which GPU the kubelet gives next, so it shows all idle GPUs of the node as held by a
//! terminating pod until the binder has reserved the group's own GPU again. The binder deletes a reservation pod with the wrong GPU and
//! tries again. If such a pod stays, another pod has the group's GPU, and the node's other GPUs are safe to use.
//!
//! **Suspected reservation.** A failed or cancelled bind may have created reservation pods that the watch does not show yet, since the watch
//! of pods may lag behind the watch of bind requests. The mirror shows a terminating pod in their place until they appear, or until they
//! would have appeared.

use std::collections::{BTreeMap, BTreeSet};

use kai_api::{BindRequest, ObjectKey, Pod, keys};
use kai_engine::model::{Event, GpuRequest, Millis, PodKind, PodPhase, PodSpec, Requests};
use kai_engine::report::NodeView;
use rustc_hash::FxHashMap;

use super::{ClusterMirror, ObjectList};

/// How long the mirror suspects a reservation after a failed bind. Watches lag by seconds when an API server is overloaded; a GPU without
/// a reservation stays idle for this time.
const SUSPICION_PERIOD: Millis = Millis::seconds(10);
/// After this time a reservation pod with the wrong GPU stays: the binder deletes it within seconds, unless it has given up.
const WRONG_GPU_GRACE: Millis = Millis::seconds(60);

/// The id of a GPU group: the value of its label.
type GpuGroupId = Box<str>;
type NodeName = Box<str>;
/// UUIDs of GPUs.
type GpuUuids = Box<[Box<str>]>;
/// The bound members of a GPU group, with the GPUs in each member's annotation.
type BoundMembers = FxHashMap<ObjectKey, GpuUuids>;

/// Members and reservation pods of all GPU groups. `ClusterMirror::update_role` keeps it in step with the pods.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    /// Pods that are bound, or being bound, to the group's GPU.
    member_counts: FxHashMap<GpuGroupId, usize>,
    reservation_pods: FxHashMap<GpuGroupId, Vec<ReservationPod>>,
    suspected: BTreeMap<GpuGroupId, SuspectedReservation>,
    bound_members: FxHashMap<NodeName, BTreeMap<GpuGroupId, BoundMembers>>,
    /// Nodes to check for unreserved groups.
    dirty_nodes: BTreeSet<NodeName>,
    /// Nodes with unreserved groups, and how many GPUs the mirror shows as held there.
    blocked_nodes: BTreeMap<NodeName, i64>,
}

/// A reservation pod as of its last change.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReservationPod {
    key: ObjectKey,
    node: NodeName,
    /// The GPU that it holds; `None` if unknown or if the pod is terminating.
    gpu: Option<Box<str>>,
    /// Whether the pod has reported its GPU. Then the kubelet has admitted the pod.
    has_reported_gpu: bool,
    /// The time of the last change.
    since: Millis,
}

#[derive(Clone, Debug)]
struct SuspectedReservation {
    node: NodeName,
    until: Millis,
}

/// A GPU group whose members run on a GPU that no reservation pod holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnreservedGroup {
    /// The node.
    pub node: String,
    /// The id of the GPU group.
    pub gpu_group: String,
    /// A GPU in the annotations of the members.
    pub gpu: Option<String>,
}

/// What a pod is to GPU groups. Each pod's entry holds its role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum GpuGroupRole {
    /// The pod has nothing to do with shared GPUs.
    #[default]
    None,
    /// The pod has a part of the GPUs.
    Member(Box<Membership>),
    /// The pod reserves the GPU of a group.
    Reservation(Box<ReservedGroup>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Membership {
    gpu_groups: Box<[GpuGroupId]>,
    /// The pod's node and the GPUs in its annotation; `None` until the pod is bound.
    bound: Option<(NodeName, GpuUuids)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReservedGroup {
    gpu_group: GpuGroupId,
    node: NodeName,
    gpu: Option<Box<str>>,
    is_terminating: bool,
}

impl GpuGroupRole {
    pub(super) fn of(spec: &PodSpec, pod: &Pod) -> GpuGroupRole {
        let annotation = |key: &str| pod.metadata.annotations.text(key).filter(|text| !text.is_empty());
        match spec.kind {
            // A pod that has ended holds no GPU.
            _ if spec.phase == PodPhase::Succeeded => GpuGroupRole::None,
            PodKind::Reservation => spec.gpu_groups.first().map_or(GpuGroupRole::None, |gpu_group| {
                GpuGroupRole::Reservation(Box::new(ReservedGroup {
                    gpu_group: gpu_group.as_str().into(),
                    node: spec.node.as_deref().unwrap_or_default().into(),
                    gpu: annotation(keys::RESERVED_GPU).map(Into::into),
                    is_terminating: spec.deletion.is_some(),
                }))
            }),
            PodKind::Workload => {
                let in_flight = spec.bind_in_flight.iter().flat_map(|bind| &bind.gpu_groups);
                let placed = spec.gpu_groups.iter().filter(|_| spec.node.is_some());
                let mut role = GpuGroupRole::member_of(in_flight.chain(placed));
                // The label alone does not make a pod a user of a GPU.
                let shares_gpu = matches!(
                    spec.requests.gpu,
                    GpuRequest::Fraction { .. } | GpuRequest::Memory { .. }
                );
                if let (GpuGroupRole::Member(membership), Some(node), true) = (&mut role, &spec.node, shares_gpu) {
                    let gpus = annotation(keys::RECEIVED_GPUS)
                        .into_iter()
                        .flat_map(|text| text.split(','));
                    membership.bound = Some((node.as_str().into(), gpus.map(Into::into).collect()));
                }
                role
            }
            PodKind::Utility | PodKind::Foreign => GpuGroupRole::None,
        }
    }

    pub(super) fn member_of<'g>(gpu_groups: impl Iterator<Item = &'g String>) -> GpuGroupRole {
        let mut gpu_groups: Vec<GpuGroupId> = gpu_groups.map(|gpu_group| gpu_group.as_str().into()).collect();
        gpu_groups.sort_unstable();
        gpu_groups.dedup();
        if gpu_groups.is_empty() {
            GpuGroupRole::None
        } else {
            GpuGroupRole::Member(Box::new(Membership {
                gpu_groups: gpu_groups.into(),
                bound: None,
            }))
        }
    }
}

impl ClusterMirror {
    /// Turns an unused reservation pod into a terminating pod with a whole GPU.
    pub(super) fn show_unused_reservation(&self, spec: &mut PodSpec) {
        if spec.kind != PodKind::Reservation {
            return;
        }
        let is_used = spec
            .gpu_groups
            .iter()
            .any(|gpu_group| self.reservations.member_counts.contains_key(gpu_group.as_str()));
        if !is_used {
            spec.kind = PodKind::Utility;
            spec.gpu_groups.clear();
            spec.deletion.get_or_insert(self.now);
        }
    }

    /// The bind of this request failed or was cancelled. It may have created reservation pods that the watch does not show yet.
    pub(super) fn suspect_reservations(&mut self, request: &BindRequest) {
        if self.reservation_pod_list == ObjectList::Unknown {
            return;
        }
        for gpu_group in request.gpu_groups() {
            let is_known = self.reservations.member_counts.contains_key(&**gpu_group)
                || self.reservations.reservation_pods.contains_key(&**gpu_group);
            if is_known {
                continue;
            }
            let suspected = SuspectedReservation {
                node: request.selected_node().into(),
                until: self.now + SUSPICION_PERIOD,
            };
            self.reservations.suspected.insert((&**gpu_group).into(), suspected);
            let pod = self.synthetic_pod(suspected_uid(gpu_group), request.selected_node(), 1);
            self.outbox.events.push(Event::Pod(pod));
        }
    }

    /// Drops suspected reservations that did not appear in time.
    pub(super) fn expire_suspected_reservations(&mut self) {
        let expired = self
            .reservations
            .suspected
            .iter()
            .filter(|(_, suspected)| suspected.until <= self.now);
        let expired: Vec<GpuGroupId> = expired.map(|(gpu_group, _)| gpu_group.clone()).collect();
        for gpu_group in &expired {
            self.drop_suspected_reservation(gpu_group);
        }
    }

    fn drop_suspected_reservation(&mut self, gpu_group: &str) {
        if self.reservations.suspected.remove(gpu_group).is_some() {
            self.outbox.events.push(Event::PodGone(suspected_uid(gpu_group)));
        }
    }

    /// The pod's role changed. Refreshes the reservation pods of groups that became used or unused.
    pub(super) fn update_role(&mut self, key: &ObjectKey, before: &GpuGroupRole, now: &GpuGroupRole) {
        if before == now {
            return;
        }
        self.reservations.remove_role(key, before);
        let mut changed: Vec<GpuGroupId> = Vec::new();
        match now {
            GpuGroupRole::Member(membership) => {
                for gpu_group in &membership.gpu_groups {
                    let members = self.reservations.member_counts.entry(gpu_group.clone()).or_default();
                    *members += 1;
                    if *members == 1 {
                        changed.push(gpu_group.clone());
                    }
                }
                self.reservations.add_member(key, membership);
            }
            GpuGroupRole::Reservation(reserved) => {
                self.reservations.add_reservation_pod(key, reserved, self.now);
                self.drop_suspected_reservation(&reserved.gpu_group);
            }
            GpuGroupRole::None => {}
        }
        match before {
            GpuGroupRole::Member(membership) => {
                for gpu_group in &membership.gpu_groups {
                    let Some(members) = self.reservations.member_counts.get_mut(gpu_group) else {
                        continue;
                    };
                    *members -= 1;
                    if *members == 0 {
                        self.reservations.member_counts.remove(gpu_group);
                        changed.push(gpu_group.clone());
                    }
                }
            }
            GpuGroupRole::Reservation(_) | GpuGroupRole::None => {}
        }
        for gpu_group in changed {
            let pods = self.reservations.reservation_pods.get(&gpu_group).cloned();
            for pod in pods.unwrap_or_default() {
                self.refresh_pod(&pod.key);
            }
        }
    }

    /// The node was added, changed or removed.
    pub(super) fn recheck_gpu_groups(&mut self, node: &str) {
        if self.reservations.bound_members.contains_key(node) {
            self.reservations.dirty_nodes.insert(node.into());
        }
    }

    /// Shows the idle GPUs of nodes with unreserved groups as held, and frees them once the groups are reserved again.
    pub(super) fn block_gpus_of_unreserved_groups(&mut self) {
        if self.reservation_pod_list == ObjectList::Unknown {
            self.reservations.dirty_nodes.clear();
            return;
        }
        let blocked: Vec<NodeName> = self.reservations.blocked_nodes.keys().cloned().collect();
        self.reservations.dirty_nodes.extend(blocked);
        for node in std::mem::take(&mut self.reservations.dirty_nodes) {
            let gpus = self.nodes.get(&node).map(|entry| entry.gpus);
            let devices = gpus.filter(|gpus| *gpus > 0 && self.reservations.has_unreserved_group(&node, self.now));
            if devices == self.reservations.blocked_nodes.get(&node).copied() {
                continue;
            }
            match devices {
                Some(devices) => {
                    self.reservations.blocked_nodes.insert(node.clone(), devices);
                    let pod = self.synthetic_pod(blocked_uid(&node), &node, devices);
                    self.outbox.events.push(Event::Pod(pod));
                }
                None => {
                    self.reservations.blocked_nodes.remove(&node);
                    self.outbox.events.push(Event::PodGone(blocked_uid(&node)));
                }
            }
        }
    }

    /// GPUs of the node that the engine counts as held or missing although no pod was promised a GPU beyond the node's capacity: failed
    /// GPUs of running pods, and GPUs of suspected reservations, of unreserved groups, and of unused reservation pods that the kubelet
    /// has not admitted yet.
    fn gpus_held_without_promise(&self, node: &str) -> i64 {
        let known = &self.reservations;
        let suspected = known.suspected.values().filter(|suspected| *suspected.node == *node);
        let unused = known
            .reservation_pods
            .iter()
            .filter(|(gpu_group, _)| !known.member_counts.contains_key(*gpu_group))
            .flat_map(|(_, pods)| pods)
            .filter(|pod| *pod.node == *node && !pod.has_reported_gpu);
        let unconfirmed = i64::try_from(suspected.count() + unused.count()).unwrap_or(i64::MAX);
        let blocked = known.blocked_nodes.get(node).copied().unwrap_or(0);
        let failed = self.failed_gpus(node).unwrap_or(0);
        unconfirmed.saturating_add(blocked).saturating_add(failed)
    }
}

impl ClusterMirror {
    /// UUID of the GPU of a GPU group, as its reservation pod reports it.
    pub fn gpu_of_group(&self, gpu_group: &str) -> Option<&str> {
        let pods = self.reservations.reservation_pods.get(gpu_group)?;
        pods.iter().find_map(|pod| pod.gpu.as_deref())
    }

    /// Whether the pods on the node were promised more GPUs than the node has. An invariant of the scheduler says that this never happens.
    pub fn overcommits_gpus(&self, node: &NodeView<'_>) -> bool {
        node.idle_devices < 0 && {
            let excused = self.gpus_held_without_promise(node.name);
            node.idle_devices.saturating_add(excused) < 0
        }
    }

    /// Nodes whose idle GPUs the engine sees as held, because a GPU group there has no reservation pod with its GPU.
    pub fn nodes_with_unreserved_groups(&self) -> impl Iterator<Item = &str> {
        self.reservations.blocked_nodes.keys().map(|node| &**node)
    }

    /// The reservation pods of GPU groups without members, sorted. The binder deletes them.
    pub fn unused_reservation_pods(&self) -> Vec<ObjectKey> {
        let known = &self.reservations;
        let unused = known.reservation_pods.iter();
        let unused = unused.filter(|(gpu_group, _)| !known.member_counts.contains_key(*gpu_group));
        let mut pods: Vec<ObjectKey> = unused.flat_map(|(_, pods)| pods).map(|pod| pod.key.clone()).collect();
        pods.sort_unstable();
        pods
    }

    /// The GPU groups with bound members and without a reservation pod that has a GPU, sorted. The binder creates their reservation pods.
    pub fn groups_without_reservation(&self) -> Vec<UnreservedGroup> {
        let known = &self.reservations;
        let mut found = Vec::new();
        for (node, gpu_groups) in &known.bound_members {
            let is_reserved = |gpu_group: &GpuGroupId| {
                let mut pods = known.reservation_pods.get(gpu_group).into_iter().flatten();
                pods.any(|pod| pod.node == *node && pod.gpu.is_some())
            };
            let unreserved = gpu_groups.iter().filter(|(gpu_group, _)| !is_reserved(gpu_group));
            found.extend(unreserved.map(|(gpu_group, members)| UnreservedGroup {
                node: node.to_string(),
                gpu_group: gpu_group.to_string(),
                gpu: members.values().flatten().min().map(ToString::to_string),
            }));
        }
        found.sort_unstable();
        found
    }

    /// A terminating pod that exists in the engine only and holds whole GPUs of the node.
    fn synthetic_pod(&self, uid: String, node: &str, devices: i64) -> PodSpec {
        PodSpec {
            created: self.now,
            kind: PodKind::Utility,
            node: Some(node.to_owned()),
            deletion: Some(self.now),
            requests: Requests {
                gpu: GpuRequest::Whole { devices },
                ..Requests::default()
            },
            ..PodSpec::new(&self.identity.reservation_pods.namespace, &uid)
        }
    }
}

impl Reservations {
    fn remove_role(&mut self, key: &ObjectKey, role: &GpuGroupRole) {
        match role {
            GpuGroupRole::Member(membership) => self.remove_member(key, membership),
            GpuGroupRole::Reservation(reserved) => self.remove_reservation_pod(key, reserved),
            GpuGroupRole::None => {}
        }
    }

    fn add_member(&mut self, key: &ObjectKey, membership: &Membership) {
        let Some((node, gpus)) = &membership.bound else { return };
        let of_node = self.bound_members.entry(node.clone()).or_default();
        for gpu_group in &membership.gpu_groups {
            let members = of_node.entry(gpu_group.clone()).or_default();
            members.insert(key.clone(), gpus.clone());
        }
        self.dirty_nodes.insert(node.clone());
    }

    fn remove_member(&mut self, key: &ObjectKey, membership: &Membership) {
        let Some((node, _)) = &membership.bound else { return };
        let Some(of_node) = self.bound_members.get_mut(node) else {
            return;
        };
        for gpu_group in &membership.gpu_groups {
            if let Some(members) = of_node.get_mut(gpu_group) {
                members.remove(key);
                if members.is_empty() {
                    of_node.remove(gpu_group);
                }
            }
        }
        if of_node.is_empty() {
            self.bound_members.remove(node);
        }
        self.dirty_nodes.insert(node.clone());
    }

    fn add_reservation_pod(&mut self, key: &ObjectKey, reserved: &ReservedGroup, now: Millis) {
        let pod = ReservationPod {
            key: key.clone(),
            node: reserved.node.clone(),
            gpu: reserved.gpu.clone().filter(|_| !reserved.is_terminating),
            has_reported_gpu: reserved.gpu.is_some(),
            since: now,
        };
        self.reservation_pods
            .entry(reserved.gpu_group.clone())
            .or_default()
            .push(pod);
        self.dirty_nodes.insert(reserved.node.clone());
    }

    fn remove_reservation_pod(&mut self, key: &ObjectKey, reserved: &ReservedGroup) {
        if let Some(pods) = self.reservation_pods.get_mut(&reserved.gpu_group) {
            pods.retain(|pod| pod.key != *key);
            if pods.is_empty() {
                self.reservation_pods.remove(&reserved.gpu_group);
            }
        }
        self.dirty_nodes.insert(reserved.node.clone());
    }

    /// Whether pods of the node run on a GPU that no reservation pod holds for them.
    fn has_unreserved_group(&self, node: &str, now: Millis) -> bool {
        let gpu_groups = self.bound_members.get(node).into_iter().flatten();
        let is_reserved = |gpu_group: &str, members: &BoundMembers| {
            let mut pods = self.reservation_pods.get(gpu_group).into_iter().flatten();
            pods.any(|pod| match &pod.gpu {
                Some(gpu) if *pod.node == *node => {
                    // Members that another binder bound have no annotation with their GPU.
                    let is_own_gpu = members.values().all(|gpus| gpus.is_empty() || gpus.contains(gpu));
                    is_own_gpu || pod.since + WRONG_GPU_GRACE <= now
                }
                Some(_) => false,
                None => false,
            })
        };
        gpu_groups
            .into_iter()
            .any(|(gpu_group, members)| !is_reserved(gpu_group, members))
    }
}

fn suspected_uid(gpu_group: &str) -> String {
    format!("suspected reservation of {gpu_group}")
}

fn blocked_uid(node: &str) -> String {
    format!("idle GPUs of {node}, which has a GPU group without its reservation")
}
