//! What a node's GPUs are promised to, from fresh reads: which pods use which group, how much of it, and who holds which GPU. Pure.
//!
//! Labels of pods are in tenants' hands. A pod counts where it is bound to the node for our scheduler, and its bind request says
//! which groups are its own; labels speak only for pods whose request is gone.

use std::collections::BTreeMap;

use kai_api::{BindPhase, BindRequest, ObjectKey, Pod, keys};
use kai_engine::model::{GpuRequest, PodPhase};

use crate::step::Reservation;

/// The engine's stand-in for unknown GPU memory: fractions of it still add up.
const UNKNOWN_MEMORY_MIB: i64 = 100;
const BILLIONTHS: i128 = 1_000_000_000;

/// What tells our objects from others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity<'a> {
    pub(crate) scheduler_name: &'a str,
    pub(crate) reservation_namespace: &'a str,
    pub(crate) app_label: &'a str,
}

/// A pod that uses groups of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) pod: ObjectKey,
    pub(crate) uid: String,
    pub(crate) groups: Vec<String>,
    /// Whether the groups are in the order of the GPUs, as in its request; labels have none.
    pub(crate) in_order: bool,
    /// MiB on each of its GPUs.
    pub(crate) need_mib: i64,
    pub(crate) terminating: bool,
    /// UUIDs that it was told; empty for pods that another binder bound.
    pub(crate) gpus: Vec<String>,
}

/// The books of one node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Books {
    /// MiB of each GPU.
    pub(crate) memory_mib: i64,
    /// Pods that are bound to the node.
    pub(crate) bound: Vec<User>,
    /// Pods that have their labels and are about to be bound, or were when a binder stopped.
    pub(crate) announced: Vec<User>,
    /// Reservation pods of the node.
    pub(crate) reservations: Vec<Reservation>,
    /// Requests that may still lead to a bind, with their groups.
    pub(crate) active: Vec<(ObjectKey, Vec<String>)>,
}

/// What was read about a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<'a> {
    pub(crate) node: &'a str,
    /// MiB per GPU, if known.
    pub(crate) memory_mib: Option<i64>,
    /// All pods on the node.
    pub(crate) pods: &'a [Pod],
    /// Pods without a node that carry a group's label.
    pub(crate) labelled: &'a [Pod],
    /// Bind requests, at least all of this node.
    pub(crate) requests: &'a [BindRequest],
}

impl Books {
    pub(crate) fn new(reading: Reading<'_>, identity: Identity<'_>) -> Books {
        let memory_mib = reading.memory_mib.unwrap_or(UNKNOWN_MEMORY_MIB);
        let of_node = reading
            .requests
            .iter()
            .filter(|request| request.selected_node() == reading.node);
        let requests: BTreeMap<(&str, &str), &BindRequest> = of_node
            .map(|request| ((request.metadata.namespace(), request.pod_name()), request))
            .collect();
        let request_of = |pod: &Pod| {
            let name = (pod.metadata.namespace(), pod.metadata.plain_name());
            requests.get(&name).copied().filter(|request| is_about(request, pod))
        };
        let mut books = Books {
            memory_mib,
            ..Books::default()
        };
        for pod in reading.pods.iter().filter(|pod| pod.node_name() == Some(reading.node)) {
            if is_reservation(pod, identity) {
                books.reservations.push(Reservation::of(pod));
            } else if is_ours(pod, identity) {
                books.bound.extend(user(pod, request_of(pod), memory_mib));
            }
        }
        for pod in reading
            .labelled
            .iter()
            .filter(|pod| pod.node_name().is_none() && is_ours(pod, identity))
        {
            // Without a request in work a label on a pod that has no node is somebody's fancy.
            let request = request_of(pod).filter(|request| is_active(request));
            books
                .announced
                .extend(request.and_then(|request| announced(pod, request, memory_mib)));
        }
        books.active = requests
            .values()
            .filter(|request| is_active(request))
            .map(|request| active(request))
            .collect();
        books
    }

    /// MiB of the group that are promised to others than this pod.
    pub(crate) fn promised_mib(&self, group: &str, except_uid: &str) -> i64 {
        let others = self
            .bound
            .iter()
            .chain(&self.announced)
            .filter(|user| user.uid != except_uid);
        others.filter(|user| user.uses(group)).map(|user| user.need_mib).sum()
    }

    /// Pods that run on the group's GPU and mean to stay.
    pub(crate) fn staying(&self, group: &str) -> impl Iterator<Item = &User> {
        self.bound
            .iter()
            .filter(move |user| user.uses(group) && !user.terminating)
    }

    /// Whether any pod uses the group, on its way out included.
    pub(crate) fn is_used(&self, group: &str) -> bool {
        self.bound.iter().chain(&self.announced).any(|user| user.uses(group))
    }

    /// Whether a request other than this one may still need the group.
    pub(crate) fn is_awaited(&self, group: &str, except: Option<&ObjectKey>) -> bool {
        let others = self.active.iter().filter(|(key, _)| Some(key) != except);
        others
            .into_iter()
            .any(|(_, groups)| groups.iter().any(|other| other == group))
    }

    /// Another group's reservation that holds the same GPU.
    pub(crate) fn rival(&self, group: &str, gpu: &str) -> Option<&Reservation> {
        let others = self
            .reservations
            .iter()
            .filter(|other| other.is_genuine() && other.alive && other.group != group);
        others.into_iter().find(|other| other.gpu.as_deref() == Some(gpu))
    }

    /// A pod of another group that was told this GPU: its own reservation was lost, and the node gave the GPU away again.
    pub(crate) fn squatter(&self, group: &str, gpu: &str) -> Option<&User> {
        let others = self
            .bound
            .iter()
            .chain(&self.announced)
            .filter(|user| !user.uses(group));
        others
            .into_iter()
            .find(|user| user.gpus.iter().any(|known| known == gpu))
    }

    /// The GPU that pods of the group run on and that no reservation holds.
    pub(crate) fn unheld(&self, group: &str) -> Option<&str> {
        let held = |gpu: &str| self.reservations.iter().any(|found| found.gpu.as_deref() == Some(gpu));
        self.own_gpus(group).find(|gpu| !held(gpu))
    }

    /// The GPUs that pods of the group were told for it: one, unless something went wrong, or nobody knows which of several it is.
    pub(crate) fn own_gpus(&self, group: &str) -> impl Iterator<Item = &str> {
        self.staying(group)
            .flat_map(move |user| user.gpus_for(group))
            .map(String::as_str)
    }

    /// A pod of the group that was told another GPU.
    pub(crate) fn stranger(&self, group: &str, gpu: &str) -> Option<&User> {
        let told = self.staying(group).filter(|user| !user.gpus.is_empty());
        told.into_iter()
            .find(|user| !user.gpus_for(group).iter().any(|known| known == gpu))
    }
}

impl User {
    pub(crate) fn uses(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// The GPUs that it may have been told for this group: a single one where the order of its groups is known.
    fn gpus_for(&self, group: &str) -> &[String] {
        let at = self.groups.iter().position(|own| own == group);
        match at {
            Some(at) if self.in_order && self.groups.len() == self.gpus.len() => &self.gpus[at..=at],
            Some(_) | None => &self.gpus,
        }
    }
}

/// Whether a bind may still come of the request.
pub(crate) fn is_active(request: &BindRequest) -> bool {
    match request.phase() {
        BindPhase::Succeeded => false,
        BindPhase::Pending => true,
        BindPhase::Failed => !request.failed_for_good(),
    }
}

/// Whether the request is about this pod, and not about an earlier one of the same name.
pub(crate) fn is_about(request: &BindRequest, pod: &Pod) -> bool {
    let owners = request.metadata.owner_references.iter();
    let mut owners = owners.filter(|owner| &*owner.kind == "Pod").peekable();
    owners.peek().is_none() || owners.any(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref())
}

/// Whether the pod is one of our reservations: only what is in their namespace can be.
pub(crate) fn is_reservation(pod: &Pod, identity: Identity<'_>) -> bool {
    pod.metadata.namespace() == identity.reservation_namespace
        && pod.metadata.labels.text(keys::APP) == Some(identity.app_label)
}

/// MiB that the pod needs on each of its GPUs.
///
/// The annotation is exact but a tenant may edit it; the request's portion is ours but rounded to hundredths. The portion less what
/// rounding may have added is a floor.
pub(crate) fn need_mib(pod: &Pod, request: Option<&BindRequest>, memory_mib: i64) -> i64 {
    let asked = match pod.gpu_usage() {
        GpuRequest::Fraction { billionths, .. } => {
            i64::try_from(i128::from(billionths) * i128::from(memory_mib) / BILLIONTHS).unwrap_or(i64::MAX)
        }
        GpuRequest::Memory { mib, .. } => mib,
        GpuRequest::Whole { .. } | GpuRequest::None | GpuRequest::Mig { .. } => 0,
    };
    let floor = request
        .and_then(|request| hundredths(request.received_gpu().1))
        .map_or(0, |portion| (portion - 1).max(0).saturating_mul(memory_mib) / 100);
    asked.max(floor)
}

/// `0.50` as 50.
fn hundredths(text: &str) -> Option<i64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 2 || whole.len() > 4 {
        return None;
    }
    let part = format!("{part:0<2}");
    Some(whole.parse::<i64>().ok()? * 100 + part.parse::<i64>().ok()?)
}

fn is_ours(pod: &Pod, identity: Identity<'_>) -> bool {
    let ended = matches!(pod.phase(), PodPhase::Succeeded | PodPhase::Failed);
    !ended && pod.scheduler_name() == identity.scheduler_name
}

pub(crate) fn user(pod: &Pod, request: Option<&BindRequest>, memory_mib: i64) -> Option<User> {
    let groups: Vec<String> = match request {
        Some(request) if request.received_resource_type() == keys::RECEIVED_FRACTION => groups_of(request),
        Some(_) => return None,
        None if matches!(pod.gpu_usage(), GpuRequest::Fraction { .. } | GpuRequest::Memory { .. }) => {
            pod.gpu_groups().into_iter().map(str::to_owned).collect()
        }
        None => return None,
    };
    (!groups.is_empty()).then(|| User {
        pod: ObjectKey::of(pod),
        uid: pod.metadata.uid.as_deref().unwrap_or_default().to_owned(),
        groups,
        in_order: request.is_some(),
        need_mib: need_mib(pod, request, memory_mib),
        terminating: pod.is_terminating(),
        gpus: told(pod),
    })
}

fn announced(pod: &Pod, request: &BindRequest, memory_mib: i64) -> Option<User> {
    let labels = pod.gpu_groups();
    let mut user = user(pod, Some(request), memory_mib)?;
    user.groups.retain(|group| labels.contains(&group.as_str()));
    (!user.groups.is_empty()).then_some(user)
}

fn active(request: &BindRequest) -> (ObjectKey, Vec<String>) {
    (ObjectKey::of(request), groups_of(request))
}

pub(crate) fn groups_of(request: &BindRequest) -> Vec<String> {
    request.gpu_groups().iter().map(|group| group.to_string()).collect()
}

fn told(pod: &Pod) -> Vec<String> {
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
    use crate::{GroupKey, reservation_name};

    const IDENTITY: Identity<'static> = Identity {
        scheduler_name: keys::SCHEDULER_NAME,
        reservation_namespace: keys::RESERVATION,
        app_label: keys::RESERVATION,
    };

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

    fn books(pods: &[Pod], labelled: &[Pod], requests: &[BindRequest]) -> Books {
        let reading = Reading {
            node: "n",
            memory_mib: Some(1000),
            pods,
            labelled,
            requests,
        };
        Books::new(reading, IDENTITY)
    }

    #[test]
    fn bound_pods_count_by_their_request_and_by_labels_without_one() {
        let pods = [pod("a", "n", |_| {}), pod("b", "n", |_| {}), pod("c", "m", |_| {})];
        let requests = [request("a", &["h"], "0.50", "Succeeded")];
        let books = books(&pods, &[], &requests);
        assert_eq!(books.promised_mib("g", ""), 500, "b by its label");
        assert_eq!(
            books.promised_mib("h", ""),
            500,
            "a by its request, whatever its label says"
        );
        assert_eq!(books.promised_mib("h", "uid-a"), 0);
        assert!(books.is_used("g") && !books.is_used("x"));
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
        let books = books(&[foreign, plain, ended, whole], &[unbound], &[regular]);
        assert_eq!(books.promised_mib("g", ""), 0);
        assert!(!books.is_used("g"));
    }

    #[test]
    fn a_request_of_an_earlier_pod_says_nothing() {
        let successor = pod("a", "n", |pod| pod["metadata"]["uid"] = json!("uid-later"));
        let books = books(&[successor], &[], &[request("a", &["h"], "0.50", "Succeeded")]);
        assert_eq!((books.promised_mib("g", ""), books.promised_mib("h", "")), (500, 0));
    }

    #[test]
    fn announced_pods_count_while_their_request_is_active() {
        let unbound = || [pod("a", "", |_| {})];
        let with = |phase| books(&[], &unbound(), &[request("a", &["g"], "0.50", phase)]);
        assert_eq!(with("").promised_mib("g", ""), 500);
        assert_eq!(with("Failed").promised_mib("g", ""), 0);
        assert!(with("").is_awaited("g", None));
        assert!(!with("").is_awaited("g", Some(&ObjectKey::new("ns", "a"))));
        assert!(!with("Failed").is_awaited("g", None) && !with("Succeeded").is_awaited("g", None));
        let other_label = [pod("a", "", |pod| {
            pod["metadata"]["labels"] = json!({ "runai-gpu-group": "x" })
        })];
        assert_eq!(
            books(&[], &other_label, &[request("a", &["g"], "0.50", "")]).promised_mib("g", ""),
            0
        );
    }

    #[test]
    fn an_edited_annotation_does_not_shrink_a_share() {
        let shrunk = pod("a", "n", |pod| {
            pod["metadata"]["annotations"]["gpu-fraction"] = json!("0.01")
        });
        let found = books(&[shrunk], &[], &[request("a", &["g"], "0.50", "Succeeded")]);
        assert_eq!(found.promised_mib("g", ""), 490);
        let memory = pod("a", "n", |pod| {
            pod["metadata"]["annotations"] = json!({ "gpu-memory": "41" })
        });
        let found = books(&[memory], &[], &[request("a", &["g"], "0.05", "Succeeded")]);
        assert_eq!(
            found.promised_mib("g", ""),
            41,
            "rounding up to hundredths is not charged"
        );
    }

    #[test]
    fn several_devices_count_on_each_group() {
        let several = pod("a", "n", |pod| {
            pod["metadata"]["labels"] = json!({ "runai-gpu-group/g": "g", "runai-gpu-group/h": "h" });
        });
        let books = books(&[several], &[], &[]);
        assert_eq!((books.promised_mib("g", ""), books.promised_mib("h", "")), (500, 500));
    }

    #[test]
    fn rivals_and_strangers() {
        let reservation = |group: &str, gpu: &str| {
            let key = GroupKey::new("n", group);
            pod(&reservation_name(&key), "n", |pod| {
                pod["metadata"]["namespace"] = json!(keys::RESERVATION);
                pod["metadata"]["labels"] = json!({ "app": keys::RESERVATION, "runai-gpu-group": group });
                pod["metadata"]["annotations"] = json!({ "run.ai/reserve_for_gpu_index": gpu });
            })
        };
        let told = pod("a", "n", |pod| {
            pod["metadata"]["annotations"]["kai.scheduler/received-gpus"] = json!("GPU-1");
        });
        let mut pretended = reservation("x", "GPU-3");
        pretended.metadata.namespace = Some("tenant".into());
        let books = books(
            &[reservation("g", "GPU-1"), reservation("h", "GPU-2"), told, pretended],
            &[],
            &[],
        );
        assert_eq!(books.rival("g", "GPU-1"), None);
        assert_eq!(books.rival("g", "GPU-2").map(|rival| &*rival.group), Some("h"));
        assert_eq!(books.rival("g", "GPU-3"), None, "a tenant's pod is no reservation");
        assert_eq!(books.stranger("g", "GPU-1"), None);
        assert_eq!(books.stranger("g", "GPU-2").map(|user| &*user.uid), Some("uid-a"));
        assert_eq!(books.reservations.len(), 2);
    }

    #[test]
    fn the_gpu_of_a_lost_reservation_is_known_from_its_pods() {
        let key = GroupKey::new("n", "h");
        let other = pod(&reservation_name(&key), "n", |pod| {
            pod["metadata"]["namespace"] = json!(keys::RESERVATION);
            pod["metadata"]["labels"] = json!({ "app": keys::RESERVATION, "runai-gpu-group": "h" });
            pod["metadata"]["annotations"] = json!({ "run.ai/reserve_for_gpu_index": "GPU-1" });
        });
        let on_two = pod("a", "n", |pod| {
            pod["metadata"]["annotations"]["kai.scheduler/received-gpus"] = json!("GPU-1,GPU-2");
        });
        let books = books(&[other, on_two], &[], &[]);
        assert_eq!(books.unheld("g"), Some("GPU-2"));
        assert_eq!(books.unheld("nobody's"), None);
    }

    #[test]
    fn each_group_of_a_pod_on_several_gpus_has_its_own() {
        let on_two = || {
            pod("a", "n", |pod| {
                pod["metadata"]["labels"] = json!({ "runai-gpu-group/g": "g", "runai-gpu-group/h": "h" });
                pod["metadata"]["annotations"]["kai.scheduler/received-gpus"] = json!("GPU-1,GPU-2");
            })
        };
        let known = books(&[on_two()], &[], &[request("a", &["h", "g"], "0.50", "Succeeded")]);
        assert_eq!((known.unheld("g"), known.unheld("h")), (Some("GPU-2"), Some("GPU-1")));
        assert!(known.stranger("g", "GPU-1").is_some() && known.stranger("g", "GPU-2").is_none());
        let unknown = books(&[on_two()], &[], &[]);
        assert!(unknown.stranger("g", "GPU-1").is_none() && unknown.stranger("g", "GPU-2").is_none());
    }

    #[test]
    fn portions() {
        for (text, expect) in [
            ("0.50", Some(50)),
            ("1.00", Some(100)),
            ("1", Some(100)),
            ("0.5", Some(50)),
            ("", None),
        ] {
            assert_eq!(hundredths(text), expect, "{text}");
        }
        for text in ["NaN", "-0.5", "0.505", "99999.0", "1e3"] {
            assert_eq!(hundredths(text), None, "{text}");
        }
    }
}
