//! How far the doctor's pod is, from its status and from the events of its Job. Pure: which state is final is decided here.

use kai_api::{Metadata, Object, Resource, Scope};
use serde::Deserialize;

/// A pod's status, as far as the doctor's pod needs it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pod {
    pub(super) metadata: Metadata,
    status: PodStatus,
}

impl Object for Pod {
    const RESOURCE: Resource = kai_api::Pod::RESOURCE;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodStatus {
    phase: String,
    reason: String,
    message: String,
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ContainerStatus {
    state: ContainerState,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    waiting: Option<Cause>,
    running: Option<serde::de::IgnoredAny>,
    terminated: Option<Terminated>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: String,
    message: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Terminated {
    exit_code: i32,
    reason: String,
}

/// An event about the Job or its pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Event {
    metadata: Metadata,
    #[serde(rename = "type")]
    kind: String,
    reason: String,
    message: String,
    involved_object: Involved,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Involved {
    kind: String,
    name: String,
}

impl Event {
    /// Whether the event is about the Job of this name, or about a pod of it.
    pub(super) fn is_about(&self, job: &str) -> bool {
        let rest = self.involved_object.name.strip_prefix(job);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }
}

impl Object for Event {
    const RESOURCE: Resource = Resource::new("", "v1", "Event", "events", Scope::Namespaced);

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// How far the pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing final yet. The text says what the pod waits for.
    Waiting(String),
    /// The doctor's container ended.
    Ended {
        exit_code: i32,
        /// The runtime's word for the end, as in `OOMKilled`.
        reason: String,
    },
    /// The pod does not start.
    Failed {
        /// Why, in the words of Kubernetes.
        cause: String,
        remedy: Remedy,
    },
}

/// What a user can do about a pod that does not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remedy {
    /// The image is not on the node and can't be pulled.
    Image,
    /// The namespace enforces a Pod Security level that allows no directory of the host.
    PodSecurity,
    /// The objects' own description says more.
    Describe,
}

/// Reasons by which a container waits for its image without hope. `ErrImagePull` is not among them: the kubelet tries again.
const NO_IMAGE: [&str; 4] = [
    "ErrImageNeverPull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
];
/// Reasons by which a container waits that only a change of the pod or the node ends.
const NO_START: [&str; 4] = [
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "StartError",
];

/// The state of the doctor's pod. `pod` is `None` until the Job controller has created it; `events` are those of the Job and the pod.
pub(super) fn progress(pod: Option<&Pod>, events: &[&Event]) -> Progress {
    let Some(pod) = pod else { return without_pod(events) };
    let Pod { status, .. } = pod;
    let state = status.container_statuses.first().map(|container| &container.state);
    if let Some(Terminated { exit_code, reason }) = state.and_then(|state| state.terminated.as_ref()) {
        return Progress::Ended {
            exit_code: *exit_code,
            reason: reason.clone(),
        };
    }
    if status.phase == "Failed" {
        return Progress::Failed {
            cause: text("the kubelet rejected the pod", &status.reason, &status.message),
            remedy: Remedy::Describe,
        };
    }
    if let Some(Cause { reason, message }) = state.and_then(|state| state.waiting.as_ref()) {
        let cause = text("its container waits", reason, message);
        let remedy = match &**reason {
            reason if NO_IMAGE.contains(&reason) => Remedy::Image,
            reason if NO_START.contains(&reason) => Remedy::Describe,
            _ => return Progress::Waiting(with_warning(cause, events)),
        };
        return Progress::Failed { cause, remedy };
    }
    if state.is_some_and(|state| state.running.is_some()) {
        return Progress::Waiting("the doctor runs, but does not end".to_owned());
    }
    let silent = "the kubelet has not started the pod; the node may be down, or its kubelet".to_owned();
    Progress::Waiting(with_warning(silent, events))
}

/// The Job exists, but no pod does.
fn without_pod(events: &[&Event]) -> Progress {
    let refused = events
        .iter()
        .rfind(|event| event.involved_object.kind == "Job" && event.reason == "FailedCreate");
    let Some(refused) = refused else {
        return Progress::Waiting("the Job has no pod; kube-controller-manager may be down".to_owned());
    };
    let cause = text("the API server refuses the pod", "", &refused.message);
    // Other refusals pass by themselves: the service account of a new namespace, a webhook that does not answer.
    let is_final = refused.message.contains("is forbidden") && !refused.message.contains("service account");
    match refused.message.contains("violates PodSecurity") {
        true => Progress::Failed {
            cause,
            remedy: Remedy::PodSecurity,
        },
        false if is_final => Progress::Failed {
            cause,
            remedy: Remedy::Describe,
        },
        false => Progress::Waiting(cause),
    }
}

/// The last warning about the pod says more than its state: a mount or a sandbox that fails.
fn with_warning(state: String, events: &[&Event]) -> String {
    let warning = events
        .iter()
        .rfind(|event| event.involved_object.kind == "Pod" && event.kind == "Warning");
    match warning {
        Some(Event { reason, message, .. }) => text(&state, reason, message),
        None => state,
    }
}

/// `what: reason: message`, without empty parts.
fn text(what: &str, reason: &str, message: &str) -> String {
    let parts = [what, reason, message].into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({ "metadata": { "name": "p" }, "status": status })).unwrap()
    }

    fn event(kind: &str, reason: &str, message: &str) -> Event {
        let object = json!({
            "metadata": {}, "type": "Warning", "reason": reason, "message": message, "involvedObject": { "kind": kind },
        });
        serde_json::from_value(object).unwrap()
    }

    fn state(state: Value) -> Progress {
        let status = json!({ "phase": "Pending", "containerStatuses": [{ "state": state }] });
        progress(Some(&pod(status)), &[])
    }

    #[track_caller]
    fn check_failed(progress: Progress, words: &str, expect: Remedy) {
        match progress {
            Progress::Failed { cause, remedy } => {
                assert!(cause.contains(words) && remedy == expect, "{cause} {remedy:?}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn check_waiting(progress: Progress, words: &str) {
        match progress {
            Progress::Waiting(why) => assert!(why.contains(words), "{why}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_end_of_the_container_is_the_end() {
        let ended = state(json!({ "terminated": { "exitCode": 1, "reason": "Error" } }));
        let expect = Progress::Ended {
            exit_code: 1,
            reason: "Error".to_owned(),
        };
        assert_eq!(ended, expect);
    }

    #[test]
    fn an_image_that_can_not_be_had_is_told_at_once() {
        for reason in NO_IMAGE {
            check_failed(state(json!({ "waiting": { "reason": reason } })), reason, Remedy::Image);
        }
        // The kubelet tries again.
        check_waiting(
            state(json!({ "waiting": { "reason": "ErrImagePull", "message": "timeout" } })),
            "timeout",
        );
        check_waiting(
            state(json!({ "waiting": { "reason": "ContainerCreating" } })),
            "ContainerCreating",
        );
    }

    #[test]
    fn a_rejected_pod_is_told_with_the_kubelets_words() {
        let rejected =
            pod(json!({ "phase": "Failed", "reason": "OutOfpods", "message": "Node didn't have enough resource" }));
        check_failed(
            progress(Some(&rejected), &[]),
            "OutOfpods: Node didn't have",
            Remedy::Describe,
        );
    }

    #[test]
    fn a_refused_pod_is_told_with_the_servers_words() {
        let refused = |message: &str| progress(None, &[&event("Job", "FailedCreate", message)]);
        let security =
            "Error creating: pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\": hostPath volumes";
        check_failed(refused(security), "hostPath volumes", Remedy::PodSecurity);
        let class = "Error creating: pods \"x\" is forbidden: pod rejected: RuntimeClass \"nvidia\" not found";
        check_failed(refused(class), "RuntimeClass \"nvidia\" not found", Remedy::Describe);
        let account = "Error creating: pods \"x\" is forbidden: error looking up service account a/default";
        check_waiting(refused(account), "service account");
        check_waiting(progress(None, &[]), "no pod");
    }

    #[test]
    fn the_last_warning_says_what_a_pod_waits_for() {
        let waiting = pod(json!({ "phase": "Pending" }));
        let events = [
            event("Pod", "FailedMount", "first"),
            event(
                "Pod",
                "FailedCreatePodSandBox",
                "no runtime for \"nvidia\" is configured",
            ),
        ];
        let events: Vec<&Event> = events.iter().collect();
        check_waiting(
            progress(Some(&waiting), &events),
            "FailedCreatePodSandBox: no runtime for",
        );
        check_waiting(progress(Some(&waiting), &[]), "the node may be down");
    }
}
