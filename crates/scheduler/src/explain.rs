//! Reports why pods are pending. After each cycle the driver explains a bounded number of pending pods, new ones first. The engine's reason
//! becomes conditions and events if it is a new one. All texts of reasons come from `kai_engine::reasons`.

mod queue;
mod structured;

use kai_api::{Object, ObjectKey, ObjectReference, PodCondition, PodGroup};
use kai_cluster::{ObjectEvent, Severity};
use kai_engine::model::Millis;
use kai_engine::reasons::{Reason, not_ready_text};
use kai_engine::report::PodView;

pub(crate) use queue::ExplainQueue;

use crate::writers::{NotScheduled, StatusQueue, Unschedulable};
use kai_mirror::{ClusterMirror, pod_group_key};

/// Pods to explain after one cycle. Each costs some microseconds; explanations may be late, decisions may not.
const PODS_PER_CYCLE_MAX: usize = 256;
/// The pod grouper needs a moment to create the pod group of a new pod. Until then a missing pod group is not reported.
const GROUPING_GRACE: Millis = Millis::seconds(10);

/// Reason of the conditions and events on pending pods.
pub(crate) const UNSCHEDULABLE: &str = "Unschedulable";

/// Explains pods that are due and queues new messages for writing.
pub(crate) fn explain(
    engine: &kai_engine::Cluster,
    mirror: &ClusterMirror,
    explain_queue: &mut ExplainQueue,
    status_queue: &StatusQueue,
    pool: &str,
    now: Millis,
) {
    let due = explain_queue.due(now, PODS_PER_CYCLE_MAX);
    if due.is_empty() {
        return;
    }
    let (pending, rest): (Vec<_>, Vec<_>) = due.into_iter().partition(|uid| mirror.is_pending(uid));
    for uid in rest {
        explain_queue.remove(&uid);
    }
    let mut explainer = Explainer {
        mirror,
        explain_queue,
        status_queue,
        pool,
        now,
    };
    for view in engine.pods_of(pending.iter().map(|uid| &**uid)) {
        explainer.explain_pod(&view);
    }
    for uid in pending {
        explain_queue.requeue(uid, now);
    }
}

struct Explainer<'a> {
    mirror: &'a ClusterMirror,
    explain_queue: &'a mut ExplainQueue,
    status_queue: &'a StatusQueue,
    pool: &'a str,
    now: Millis,
}

impl Explainer<'_> {
    fn explain_pod(&mut self, view: &PodView<'_>) {
        let (Some(reason), Some((key, pod))) = (&view.reason, self.mirror.pod_by_uid(view.uid)) else {
            return;
        };
        let gang = view.gang.map(pod_group_key);
        let created = pod.metadata().creation_timestamp.as_deref();
        let created = created
            .and_then(|text| kai_api::parse_time(text).ok())
            .unwrap_or(self.now);
        match audience(reason) {
            Audience::None => return,
            // The partition of a pod is that of its pod group. One of another partition is not missing.
            Audience::PodIfUngrouped
                if self.now - created < GROUPING_GRACE || !self.mirror.reports_missing_gang(pod, gang.as_ref()) =>
            {
                return;
            }
            Audience::PodIfUngrouped | Audience::Pod | Audience::PodAndGang => {}
        }
        let text = self.mirror.reason_text(view, reason);
        let new_since = self.explain_queue.record_message(view.uid, &text, self.now);
        let pod_group = gang.as_ref().and_then(|gang| self.mirror.pod_group(gang));
        let text = match pod_group {
            Some(pod_group) if pod_group.backs_off() => format!("Node-Pool '{}': {text}", self.pool),
            Some(_) | None => text,
        };
        if let Some(since) = new_since {
            let sets_condition = pod_group.is_none_or(|pod_group| pod_group.marks_unschedulable());
            self.emit_pod_status(key, pod, reason, &text, since, sets_condition);
        }
        if let (Some(gang), Some(pod_group), Audience::PodAndGang) = (gang, pod_group, audience(reason)) {
            self.emit_gang_status(&gang, pod_group, view.uid, reason, &text);
        }
    }

    fn emit_pod_status(
        &self,
        key: &ObjectKey,
        pod: &kai_api::Pod,
        reason: &Reason,
        text: &str,
        since: Millis,
        sets_condition: bool,
    ) {
        let (severity, event_reason) = if let Reason::WaitsForRelease { .. } = reason {
            (Severity::Normal, "Pipelined")
        } else {
            (Severity::Warning, UNSCHEDULABLE)
        };
        self.status_queue
            .add_event(event(ObjectReference::of(pod), severity, event_reason, text.to_owned()));
        let is_set = pod.condition(PodCondition::SCHEDULED).is_some_and(|condition| {
            condition.reason.as_deref() == Some(UNSCHEDULABLE) && condition.message.as_deref() == Some(text)
        });
        // A pod with an unknown subgroup gets the condition in any case: no other status would ever report it.
        if is_set || !(sets_condition || matches!(reason, Reason::UnknownSubGroup(_))) {
            return;
        }
        let condition = NotScheduled {
            uid: pod.metadata().uid.as_deref().unwrap_or_default().to_owned(),
            reason: UNSCHEDULABLE,
            message: text.to_owned(),
            since,
        };
        self.status_queue.set_pod_condition(key, condition);
    }

    fn emit_gang_status(&mut self, gang: &ObjectKey, pod_group: &PodGroup, uid: &str, reason: &Reason, text: &str) {
        // A gang counts as scheduled while a part of it runs.
        if self.mirror.has_placed_pods(gang) || !self.explain_queue.record_gang_message(gang, uid, text) {
            return;
        }
        let object = ObjectReference::of(pod_group);
        if let Reason::GangNotReady { lacking, .. } = reason {
            let message = format!("{} ({text})", not_ready_text(lacking));
            return self
                .status_queue
                .add_event(event(object, Severity::Normal, "NotReady", message));
        }
        let reasons = structured::reasons(reason, text);
        let message = structured::message(&reasons);
        self.status_queue
            .add_event(event(object, Severity::Normal, UNSCHEDULABLE, message.clone()));
        self.status_queue
            .set_pod_group_condition(gang, Some(Unschedulable { message, reasons }));
    }
}

/// An event without annotations.
pub(crate) fn event(about: ObjectReference, severity: Severity, reason: &'static str, message: String) -> ObjectEvent {
    ObjectEvent {
        about,
        severity,
        reason,
        message,
        annotations: Vec::new(),
    }
}

/// The objects that get a status for a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Audience {
    /// No object: another component reports it, or it is not final.
    None,
    /// The pod, if it stays without a pod group.
    PodIfUngrouped,
    /// The pod.
    Pod,
    /// The pod and its pod group.
    PodAndGang,
}

fn audience(reason: &Reason) -> Audience {
    match reason {
        // The API server reports scheduling gates; an eviction has its own event.
        Reason::Gated | Reason::Evicted(_) | Reason::NotTried => Audience::None,
        Reason::GangMissing(_) => Audience::PodIfUngrouped,
        Reason::WaitsForRelease { .. } | Reason::CutShort => Audience::Pod,
        Reason::QueueMissing(_)
        | Reason::QueueDisconnected { .. }
        | Reason::QueueNotLeaf(_)
        | Reason::UnknownSubGroup(_)
        | Reason::SubGroupsExceeded(_)
        | Reason::Refused(_)
        | Reason::AffinityTermsExceeded(_)
        | Reason::GangNotReady { .. }
        | Reason::OverLimit(_)
        | Reason::OverQuota(_)
        | Reason::CoreOverQuota(_)
        | Reason::NoNode(_)
        | Reason::GangShort { .. }
        | Reason::NoDomain { .. }
        | Reason::TopologyUnknown { .. }
        | Reason::PreemptionDelay { .. } => Audience::PodAndGang,
    }
}
