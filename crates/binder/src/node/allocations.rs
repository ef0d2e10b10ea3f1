//! The allocations of a node's shared GPUs, from fresh reads: which pods are in which group, with how much memory, and which reservation
//! pod holds which GPU. Pure.
//!
//! Tenants can write labels of pods. A pod counts if it is bound to the node for our scheduler, and its BindRequest names its groups;
//! labels count only for pods whose BindRequest is deleted.

use std::collections::BTreeMap;

use kai_api::{BindPhase, BindRequest, ComputeMode, GpuShareAnnotations, ObjectKey, Pod, PodIdentity, keys};
use kai_engine::model::{GpuFraction, GpuRequest, PodPhase, counted_gpu_memory_mib};

use crate::reservation::state::Reservation;

/// The scheduler rounds the portion of a BindRequest by less than this.
const ROUNDING: GpuFraction = GpuFraction::from_hundredths(1);

/// A pod with GPU shares on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharingPod {
    pub(crate) key: ObjectKey,
    pub(crate) uid: String,
    pub(crate) groups: Vec<String>,
    /// Whether `groups` has the order of `gpus`, as in a BindRequest; groups from labels have no order.
    pub(crate) groups_in_gpu_order: bool,
    /// MiB on each of the pod's GPUs.
    pub(crate) requested_mib: i64,
    pub(crate) terminating: bool,
    /// UUIDs of the GPUs in the pod's annotation; empty for pods that KAI's binder bound.
    pub(crate) gpus: Vec<String>,
    pub(crate) compute_mode: ComputeMode,
}

/// The allocations of one node's shared GPUs.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeAllocations {
    /// MiB of each GPU.
    pub(crate) memory_mib: i64,
    /// Pods that are bound to the node.
    pub(crate) bound: Vec<SharingPod>,
    /// Pods that have their group labels but no node yet: a bind is between announcement and Binding, or was when its binder stopped.
    pub(crate) announced: Vec<SharingPod>,
    /// Reservation pods of the node.
    pub(crate) reservations: Vec<Reservation>,
    /// BindRequests that may still bind a pod, with their groups.
    pub(crate) active_requests: Vec<(ObjectKey, Vec<String>)>,
}

/// The objects of a node, as read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeObjects<'a> {
    pub(crate) node: &'a str,
    /// MiB per GPU, if known.
    pub(crate) memory_mib: Option<i64>,
    /// All pods on the node.
    pub(crate) pods: &'a [Pod],
    /// Pods with the label of a group, bound or not.
    pub(crate) labelled: &'a [Pod],
    /// BindRequests, at least all of this node.
    pub(crate) requests: &'a [BindRequest],
}

impl NodeAllocations {
    pub(crate) fn new(objects: NodeObjects<'_>, identity: &PodIdentity) -> NodeAllocations {
        let memory_mib = counted_gpu_memory_mib(objects.memory_mib);
        let of_node = objects
            .requests
            .iter()
            .filter(|request| request.selected_node() == objects.node);
        let requests: BTreeMap<(&str, &str), &BindRequest> = of_node
            .map(|request| ((request.metadata.namespace(), request.pod_name()), request))
            .collect();
        let request_of = |pod: &Pod| {
            let name = (pod.metadata.namespace(), pod.metadata.plain_name());
            requests.get(&name).copied().filter(|request| targets_pod(request, pod))
        };
        let mut allocations = NodeAllocations {
            memory_mib,
            ..NodeAllocations::default()
        };
        for pod in objects.pods.iter().filter(|pod| pod.node_name() == Some(objects.node)) {
            if identity.reservation_pods.contains(pod) {
                allocations.reservations.push(Reservation::of(pod));
            } else if is_scheduled_by_us(pod, identity) {
                allocations.bound.extend(sharing_pod(pod, request_of(pod), memory_mib));
            }
        }
        for pod in objects
            .labelled
            .iter()
            .filter(|pod| pod.node_name().is_none() && is_scheduled_by_us(pod, identity))
        {
            // A tenant may have written the label: the pod counts only with an active BindRequest.
            let request = request_of(pod).filter(|request| is_active(request));
            allocations
                .announced
                .extend(request.and_then(|request| announced(pod, request, memory_mib)));
        }
        allocations.active_requests = requests
            .values()
            .filter(|request| is_active(request))
            .map(|request| request_groups(request))
            .collect();
        allocations
    }

    /// MiB of the group's GPU that are allocated to other pods than `except_uid`.
    pub(crate) fn allocated_mib(&self, group: &str, except_uid: &str) -> i64 {
        let others = self
            .bound
            .iter()
            .chain(&self.announced)
            .filter(|pod| pod.uid != except_uid);
        others.filter(|pod| pod.uses(group)).map(|pod| pod.requested_mib).sum()
    }

    /// Bound pods of the group that are not terminating.
    pub(crate) fn active_members(&self, group: &str) -> impl Iterator<Item = &SharingPod> {
        self.bound.iter().filter(move |pod| pod.uses(group) && !pod.terminating)
    }

    /// Whether the group has bound or announced pods; terminating pods count.
    pub(crate) fn has_members(&self, group: &str) -> bool {
        self.bound.iter().chain(&self.announced).any(|pod| pod.uses(group))
    }

    /// Whether an active BindRequest other than `except` names the group.
    pub(crate) fn has_pending_request(&self, group: &str, except: Option<&ObjectKey>) -> bool {
        let others = self.active_requests.iter().filter(|(key, _)| Some(key) != except);
        others
            .into_iter()
            .any(|(_, groups)| groups.iter().any(|other| other == group))
    }

    /// A reservation pod of another group that holds the same GPU.
    pub(crate) fn conflicting_reservation(&self, group: &str, gpu: &str) -> Option<&Reservation> {
        let others = self
            .reservations
            .iter()
            .filter(|other| other.is_genuine() && other.alive && other.group != group);
        others.into_iter().find(|other| other.gpu.as_deref() == Some(gpu))
    }

    /// A pod of another group that uses this GPU: the reservation pod of that group was lost, and the kubelet gave the GPU away again.
    pub(crate) fn gpu_in_use_by(&self, group: &str, gpu: &str) -> Option<&SharingPod> {
        let others = self.bound.iter().chain(&self.announced).filter(|pod| !pod.uses(group));
        others.into_iter().find(|pod| pod.gpus.iter().any(|known| known == gpu))
    }

    /// The GPU that pods of the group use and that no reservation pod holds.
    pub(crate) fn unreserved_gpu(&self, group: &str) -> Option<&str> {
        let held = |gpu: &str| self.reservations.iter().any(|found| found.gpu.as_deref() == Some(gpu));
        self.gpus_of_members(group).find(|gpu| !held(gpu))
    }

    /// The GPUs that pods of the group use for it. It is one GPU, unless the reservation was lost, or a pod with several GPUs has no
    /// BindRequest that tells which GPU belongs to which group.
    pub(crate) fn gpus_of_members(&self, group: &str) -> impl Iterator<Item = &str> {
        self.active_members(group)
            .flat_map(move |pod| pod.gpus_for(group))
            .map(String::as_str)
    }

    /// The compute mode of the group's bound pods, also of terminating ones; `None` if there are none.
    pub(crate) fn compute_mode(&self, group: &str) -> Option<ComputeMode> {
        let member = self.bound.iter().find(|pod| pod.uses(group));
        member.map(|pod| pod.compute_mode)
    }

    /// A pod of the group that uses another GPU.
    pub(crate) fn member_on_other_gpu(&self, group: &str, gpu: &str) -> Option<&SharingPod> {
        let assigned = self.active_members(group).filter(|pod| !pod.gpus.is_empty());
        assigned
            .into_iter()
            .find(|pod| !pod.gpus_for(group).iter().any(|known| known == gpu))
    }
}

impl SharingPod {
    pub(crate) fn uses(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// The GPUs that may belong to this group: one if the order of the groups is known, otherwise all GPUs of the pod.
    fn gpus_for(&self, group: &str) -> &[String] {
        let at = self.groups.iter().position(|own| own == group);
        match at {
            Some(at) if self.groups_in_gpu_order && self.groups.len() == self.gpus.len() => &self.gpus[at..=at],
            Some(_) | None => &self.gpus,
        }
    }
}

/// Whether the BindRequest may still bind its pod.
pub(crate) fn is_active(request: &BindRequest) -> bool {
    match request.phase() {
        BindPhase::Succeeded => false,
        BindPhase::Pending => true,
        BindPhase::Failed => !request.failed_for_good(),
    }
}

/// Whether the BindRequest is for this pod, and not for an earlier pod of the same name.
pub(crate) fn targets_pod(request: &BindRequest, pod: &Pod) -> bool {
    request.is_for_pod(pod.metadata.uid.as_deref().unwrap_or_default())
}

/// MiB that the pod requests on each of its GPUs.
///
/// The annotation is exact, but a tenant may edit it. The BindRequest's portion is ours, but rounded to hundredths. The result is the
/// annotation, and at least the portion less the rounding.
pub(crate) fn requested_mib(pod: &Pod, request: Option<&BindRequest>, memory_mib: i64) -> i64 {
    let asked = match pod.gpu_usage() {
        GpuRequest::Fraction { fraction, .. } => fraction.of_mib(memory_mib),
        GpuRequest::Memory { mib, .. } => mib,
        GpuRequest::Whole { .. } | GpuRequest::None | GpuRequest::Mig { .. } => 0,
    };
    let floor = request
        .and_then(BindRequest::portion)
        .map_or(0, |portion| portion.minus(ROUNDING).of_mib(memory_mib));
    asked.max(floor)
}

fn is_scheduled_by_us(pod: &Pod, identity: &PodIdentity) -> bool {
    let ended = matches!(pod.phase(), PodPhase::Succeeded | PodPhase::Failed);
    !ended && pod.scheduler_name() == identity.scheduler_name
}

pub(crate) fn sharing_pod(pod: &Pod, request: Option<&BindRequest>, memory_mib: i64) -> Option<SharingPod> {
    let groups: Vec<String> = match request {
        Some(request) if request.received_resource_type() == keys::RECEIVED_FRACTION => groups_of(request),
        Some(_) => return None,
        None if matches!(pod.gpu_usage(), GpuRequest::Fraction { .. } | GpuRequest::Memory { .. }) => {
            pod.gpu_groups().into_iter().map(str::to_owned).collect()
        }
        None => return None,
    };
    (!groups.is_empty()).then(|| SharingPod {
        key: ObjectKey::of(pod),
        uid: pod.metadata.uid.as_deref().unwrap_or_default().to_owned(),
        groups,
        groups_in_gpu_order: request.is_some(),
        requested_mib: requested_mib(pod, request, memory_mib),
        terminating: pod.is_terminating(),
        gpus: assigned_gpus(pod),
        compute_mode: compute_mode(pod),
    })
}

fn announced(pod: &Pod, request: &BindRequest, memory_mib: i64) -> Option<SharingPod> {
    let labels = pod.gpu_groups();
    let mut announced = sharing_pod(pod, Some(request), memory_mib)?;
    announced.groups.retain(|group| labels.contains(&group.as_str()));
    (!announced.groups.is_empty()).then_some(announced)
}

fn request_groups(request: &BindRequest) -> (ObjectKey, Vec<String>) {
    (ObjectKey::of(request), groups_of(request))
}

pub(crate) fn groups_of(request: &BindRequest) -> Vec<String> {
    request.gpu_groups().iter().map(|group| group.to_string()).collect()
}

fn compute_mode(pod: &Pod) -> ComputeMode {
    let share = GpuShareAnnotations::of(&pod.metadata.annotations);
    share
        .terms(&pod.gpu_usage())
        .map(|terms| terms.compute_mode)
        .unwrap_or_default()
}

fn assigned_gpus(pod: &Pod) -> Vec<String> {
    let text = pod.metadata.annotations.text(keys::RECEIVED_GPUS).unwrap_or_default();
    text.split(',')
        .filter(|gpu| !gpu.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{GpuGroupKey, reservation_name};

    fn pod(name: &str, node: &str, change: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({
            "metadata": { "name": name, "namespace": "ns", "uid": format!("uid-{name}"),
                          "labels": { "runai-gpu-group": "g" }, "annotations": { "gpu-fraction": "0.5" } },
            "spec": { "schedulerName": "kai-scheduler", "nodeName": node },
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    fn request(pod: &str, groups: &[&str], portion: &str, phase: &str) -> BindRequest {
        let request = json!({
            "metadata": { "name": pod, "namespace": "ns",
                          "ownerReferences": [{ "kind": "Pod", "name": pod, "uid": format!("uid-{pod}") }] },
            "spec": { "podName": pod, "selectedNode": "n", "receivedResourceType": "Fraction",
                      "selectedGPUGroups": groups, "receivedGPU": { "count": 1, "portion": portion } },
            "status": { "phase": phase },
        });
        serde_json::from_value(request).unwrap()
    }

    fn allocations(pods: &[Pod], labelled: &[Pod], requests: &[BindRequest]) -> NodeAllocations {
        let objects = NodeObjects {
            node: "n",
            memory_mib: Some(1000),
            pods,
            labelled,
            requests,
        };
        NodeAllocations::new(objects, &PodIdentity::default())
    }

    #[test]
    fn bound_pods_count_by_their_request_and_by_labels_without_one() {
        let pods = [pod("a", "n", |_| {}), pod("b", "n", |_| {}), pod("c", "m", |_| {})];
        let requests = [request("a", &["h"], "0.50", "Succeeded")];
        let allocations = allocations(&pods, &[], &requests);
        assert_eq!(allocations.allocated_mib("g", ""), 500, "b by its label");
        assert_eq!(
            allocations.allocated_mib("h", ""),
            500,
            "a by its request, whatever its label says"
        );
        assert_eq!(allocations.allocated_mib("h", "uid-a"), 0);
        assert!(allocations.has_members("g") && !allocations.has_members("x"));
    }

    #[test]
    fn unknown_memory_is_the_engines() {
        for memory_mib in [None, Some(0)] {
            let objects = NodeObjects {
                node: "n",
                memory_mib,
                pods: &[pod("a", "n", |_| {})],
                labelled: &[],
                requests: &[],
            };
            let allocations = NodeAllocations::new(objects, &PodIdentity::default());
            assert_eq!((allocations.memory_mib, allocations.allocated_mib("g", "")), (100, 50));
        }
    }

    #[test]
    fn forged_labels_have_no_effect() {
        let foreign = pod("a", "n", |pod| {
            pod["spec"]["schedulerName"] = json!("default-scheduler")
        });
        let plain = pod("b", "n", |pod| pod["metadata"]["annotations"] = json!({}));
        let ended = pod("c", "n", |pod| pod["status"]["phase"] = json!("Succeeded"));
        let whole = pod("d", "n", |_| {});
        let mut regular = request("d", &[], "1.00", "Succeeded");
        regular = serde_json::from_value(json!({
            "metadata": { "name": "d", "namespace": "ns", "ownerReferences": [{ "kind": "Pod", "uid": "uid-d" }] },
            "spec": { "podName": regular.pod_name(), "selectedNode": "n", "receivedResourceType": "Regular" },
        }))
        .unwrap();
        let unbound = pod("e", "", |_| {});
        let allocations = allocations(&[foreign, plain, ended, whole], &[unbound], &[regular]);
        assert_eq!(allocations.allocated_mib("g", ""), 0);
        assert!(!allocations.has_members("g"));
    }

    #[test]
    fn a_request_of_an_earlier_pod_says_nothing() {
        let successor = pod("a", "n", |pod| pod["metadata"]["uid"] = json!("uid-later"));
        let allocations = allocations(&[successor], &[], &[request("a", &["h"], "0.50", "Succeeded")]);
        assert_eq!(
            (allocations.allocated_mib("g", ""), allocations.allocated_mib("h", "")),
            (500, 0)
        );
    }

    #[test]
    fn announced_pods_count_while_their_request_is_active() {
        let unbound = || [pod("a", "", |_| {})];
        let with = |phase| allocations(&[], &unbound(), &[request("a", &["g"], "0.50", phase)]);
        assert_eq!(with("").allocated_mib("g", ""), 500);
        assert_eq!(with("Failed").allocated_mib("g", ""), 0);
        assert!(with("").has_pending_request("g", None));
        assert!(!with("").has_pending_request("g", Some(&ObjectKey::new("ns", "a"))));
        assert!(!with("Failed").has_pending_request("g", None) && !with("Succeeded").has_pending_request("g", None));
        let other_label = [pod("a", "", |pod| {
            pod["metadata"]["labels"] = json!({ "runai-gpu-group": "x" })
        })];
        assert_eq!(
            allocations(&[], &other_label, &[request("a", &["g"], "0.50", "")]).allocated_mib("g", ""),
            0
        );
    }

    #[test]
    fn an_edited_annotation_does_not_shrink_a_share() {
        let shrunk = pod("a", "n", |pod| {
            pod["metadata"]["annotations"]["gpu-fraction"] = json!("0.01")
        });
        let found = allocations(&[shrunk], &[], &[request("a", &["g"], "0.50", "Succeeded")]);
        assert_eq!(found.allocated_mib("g", ""), 490);
        let memory = pod("a", "n", |pod| {
            pod["metadata"]["annotations"] = json!({ "gpu-memory": "41" })
        });
        let found = allocations(&[memory], &[], &[request("a", &["g"], "0.05", "Succeeded")]);
        assert_eq!(
            found.allocated_mib("g", ""),
            41,
            "rounding up to hundredths is not charged"
        );
    }

    #[test]
    fn several_devices_count_on_each_group() {
        let several = pod("a", "n", |pod| {
            pod["metadata"]["labels"] = json!({ "runai-gpu-group/g": "g", "runai-gpu-group/h": "h" });
        });
        let allocations = allocations(&[several], &[], &[]);
        assert_eq!(
            (allocations.allocated_mib("g", ""), allocations.allocated_mib("h", "")),
            (500, 500)
        );
    }

    #[test]
    fn rivals_and_strangers() {
        let reservation = |group: &str, gpu: &str| {
            let key = GpuGroupKey::new("n", group);
            pod(&reservation_name(&key), "n", |pod| {
                pod["metadata"]["namespace"] = json!(keys::RESERVATION);
                pod["metadata"]["labels"] = json!({ "app": keys::RESERVATION, "runai-gpu-group": group });
                pod["metadata"]["annotations"] = json!({ "run.ai/reserve_for_gpu_index": gpu });
            })
        };
        let assigned = pod("a", "n", |pod| {
            pod["metadata"]["annotations"]["kai.scheduler/received-gpus"] = json!("GPU-1");
        });
        let mut pretended = reservation("x", "GPU-3");
        pretended.metadata.namespace = Some("tenant".into());
        let allocations = allocations(
            &[
                reservation("g", "GPU-1"),
                reservation("h", "GPU-2"),
                assigned,
                pretended,
            ],
            &[],
            &[],
        );
        assert_eq!(allocations.conflicting_reservation("g", "GPU-1"), None);
        assert_eq!(
            allocations
                .conflicting_reservation("g", "GPU-2")
                .map(|other| &*other.group),
            Some("h")
        );
        assert_eq!(
            allocations.conflicting_reservation("g", "GPU-3"),
            None,
            "a tenant's pod is no reservation"
        );
        assert_eq!(allocations.member_on_other_gpu("g", "GPU-1"), None);
        assert_eq!(
            allocations.member_on_other_gpu("g", "GPU-2").map(|pod| &*pod.uid),
            Some("uid-a")
        );
        assert_eq!(allocations.reservations.len(), 2);
    }

    #[test]
    fn the_gpu_of_a_lost_reservation_is_known_from_its_pods() {
        let key = GpuGroupKey::new("n", "h");
        let other = pod(&reservation_name(&key), "n", |pod| {
            pod["metadata"]["namespace"] = json!(keys::RESERVATION);
            pod["metadata"]["labels"] = json!({ "app": keys::RESERVATION, "runai-gpu-group": "h" });
            pod["metadata"]["annotations"] = json!({ "run.ai/reserve_for_gpu_index": "GPU-1" });
        });
        let on_two = pod("a", "n", |pod| {
            pod["metadata"]["annotations"]["kai.scheduler/received-gpus"] = json!("GPU-1,GPU-2");
        });
        let allocations = allocations(&[other, on_two], &[], &[]);
        assert_eq!(allocations.unreserved_gpu("g"), Some("GPU-2"));
        assert_eq!(allocations.unreserved_gpu("nobody's"), None);
    }

    #[test]
    fn each_group_of_a_pod_on_several_gpus_has_its_own() {
        let on_two = || {
            pod("a", "n", |pod| {
                pod["metadata"]["labels"] = json!({ "runai-gpu-group/g": "g", "runai-gpu-group/h": "h" });
                pod["metadata"]["annotations"]["kai.scheduler/received-gpus"] = json!("GPU-1,GPU-2");
            })
        };
        let known = allocations(&[on_two()], &[], &[request("a", &["h", "g"], "0.50", "Succeeded")]);
        assert_eq!(
            (known.unreserved_gpu("g"), known.unreserved_gpu("h")),
            (Some("GPU-2"), Some("GPU-1"))
        );
        assert!(known.member_on_other_gpu("g", "GPU-1").is_some() && known.member_on_other_gpu("g", "GPU-2").is_none());
        let unknown = allocations(&[on_two()], &[], &[]);
        assert!(
            unknown.member_on_other_gpu("g", "GPU-1").is_none() && unknown.member_on_other_gpu("g", "GPU-2").is_none()
        );
    }
}
