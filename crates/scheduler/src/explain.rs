//! Telling people why their pods wait. After a cycle a bounded number of waiting pods is looked at, those that never were first; what the
//! engine says about them becomes conditions and events if it is news. All words about reasons come from `kai_engine::reasons`.

mod rota;
mod structured;

use kai_api::{Object, ObjectKey, ObjectReference, PodCondition};
use kai_cluster::{ObjectEvent, Severity};
use kai_engine::model::{GangKey, Millis};
use kai_engine::reasons::{Reason, not_ready};
use kai_engine::report::PodView;

pub(crate) use rota::Rota;

use crate::writers::{Board, NotScheduled, Unschedulable};
use kai_mirror::{ClusterMirror, group_key};

/// Pods that are looked at after one cycle. Each costs some microseconds; waiting is told late rather than decided late.
const LOOKS_PER_CYCLE_MAX: usize = 256;
/// A pod grouper needs a moment to find a new pod. Until then its pods are not said to belong nowhere.
const GROUPING_GRACE: Millis = Millis::seconds(10);

/// Reason of the conditions and events about waiting.
pub(crate) const UNSCHEDULABLE: &str = "Unschedulable";

/// Looks at waiting pods and posts what is new about them.
pub(crate) fn explain(
    engine: &kai_engine::Cluster,
    index: &ClusterMirror,
    rota: &mut Rota,
    board: &Board,
    pool: &str,
    now: Millis,
) {
    let due = rota.due(now, LOOKS_PER_CYCLE_MAX);
    if due.is_empty() {
        return;
    }
    let (waiting, rest): (Vec<_>, Vec<_>) = due.into_iter().partition(|uid| index.is_waiting(uid));
    for uid in rest {
        rota.forget(&uid);
    }
    for view in engine.pods_of(waiting.iter().map(|uid| &**uid)) {
        look(&view, index, rota, board, pool, now);
    }
    for uid in waiting {
        rota.again(uid, now);
    }
}

fn look(view: &PodView<'_>, index: &ClusterMirror, rota: &mut Rota, board: &Board, pool: &str, now: Millis) {
    let (Some(reason), Some((key, pod))) = (&view.reason, index.pod_by_uid(view.uid)) else {
        return;
    };
    let gang = view.gang.map(group_key);
    let created = pod.metadata().creation_timestamp.as_deref();
    let created = created.and_then(|text| kai_api::parse_time(text).ok()).unwrap_or(now);
    match tells(reason) {
        Tells::Nothing => return,
        // Without a pod group nobody knows which partition it is for; and one of another partition is not missing.
        Tells::OnceGrouped if now - created < GROUPING_GRACE || !index.answers_for(pod, gang.as_ref()) => return,
        Tells::OnceGrouped | Tells::Pod | Tells::PodAndGang => {}
    }
    let text = text(view, reason, index);
    let first = rota.tell(view.uid, &text, now);
    let group = gang.as_ref().and_then(|gang| index.group(gang));
    let text = match group {
        Some(group) if group.backs_off() => format!("Node-Pool '{pool}': {text}"),
        Some(_) | None => text,
    };
    if let Some(since) = first {
        tell_pod(
            key,
            pod,
            reason,
            &text,
            since,
            board,
            group.is_none_or(|group| group.marks_unschedulable()),
        );
    }
    let (Some(gang), Some(group)) = (gang, group) else {
        return;
    };
    if tells(reason) != Tells::PodAndGang {
        return;
    }
    // While a part of it runs, it is scheduled.
    if index.is_active(&gang) || !rota.tell_gang(&gang, view.uid, &text) {
        return;
    }
    if let Reason::GangNotReady { lacking, .. } = reason {
        let message = format!("{} ({text})", not_ready(lacking));
        return board.note(note(
            ObjectReference::of(&**group),
            Severity::Normal,
            "NotReady",
            message,
        ));
    }
    let said = structured::reasons(reason, &text);
    let message = structured::message(&said);
    board.note(note(
        ObjectReference::of(&**group),
        Severity::Normal,
        UNSCHEDULABLE,
        message.clone(),
    ));
    board.group(&gang, Some(Unschedulable { message, reasons: said }));
}

fn tell_pod(
    key: &ObjectKey,
    pod: &kai_api::Pod,
    reason: &Reason,
    text: &str,
    since: Millis,
    board: &Board,
    marks: bool,
) {
    if let Reason::WaitsForRelease { .. } = reason {
        board.note(note(
            ObjectReference::of(pod),
            Severity::Normal,
            "Pipelined",
            text.to_owned(),
        ));
    } else {
        board.note(note(
            ObjectReference::of(pod),
            Severity::Warning,
            UNSCHEDULABLE,
            text.to_owned(),
        ));
    }
    let said = pod.condition(PodCondition::SCHEDULED);
    let says_so = said.is_some_and(|condition| {
        condition.reason.as_deref() == Some(UNSCHEDULABLE) && condition.message.as_deref() == Some(text)
    });
    // A pod that names a subgroup which does not exist is told so in any case: nothing else would ever be said about it.
    if says_so || !(marks || matches!(reason, Reason::UnknownSubGroup(_))) {
        return;
    }
    let condition = NotScheduled {
        uid: pod.metadata().uid.as_deref().unwrap_or_default().to_owned(),
        reason: UNSCHEDULABLE,
        message: text.to_owned(),
        since,
    };
    board.pod(key, condition);
}

/// The engine's words, and what only the mirror knows.
pub(crate) fn text(view: &PodView<'_>, reason: &Reason, index: &ClusterMirror) -> String {
    let name = |gang: &GangKey| index.workload(gang);
    let reason = reason.told(&name);
    match index.avoided(view.uid) {
        Some((node, until)) => {
            let until = crate::writers::time(until);
            format!("{reason}; node {node} is left out until {until} because binding to it failed")
        }
        None => reason.to_string(),
    }
}

/// An event.
pub(crate) fn note(
    about: kai_api::ObjectReference,
    severity: Severity,
    reason: &'static str,
    message: String,
) -> ObjectEvent {
    ObjectEvent {
        about,
        severity,
        reason,
        message,
        annotations: Vec::new(),
    }
}

/// Whom a reason is told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tells {
    /// Nobody: it is not news, or somebody else says it.
    Nothing,
    /// The pod, if it stays without a group.
    OnceGrouped,
    /// The pod.
    Pod,
    /// The pod and its group.
    PodAndGang,
}

fn tells(reason: &Reason) -> Tells {
    match reason {
        // The API server says that gates are set; an eviction has its own event.
        Reason::Gated | Reason::Evicted(_) | Reason::NotTried => Tells::Nothing,
        Reason::GangMissing(_) => Tells::OnceGrouped,
        Reason::WaitsForRelease { .. } | Reason::CutShort => Tells::Pod,
        Reason::QueueMissing(_)
        | Reason::QueueCutOff { .. }
        | Reason::QueueNotLeaf(_)
        | Reason::UnknownSubGroup(_)
        | Reason::SubGroupsExceeded(_)
        | Reason::Refused(_)
        | Reason::GangNotReady { .. }
        | Reason::OverLimit(_)
        | Reason::OverQuota(_)
        | Reason::NoNode(_)
        | Reason::GangShort { .. }
        | Reason::NoDomain { .. }
        | Reason::TopologyUnknown { .. }
        | Reason::PreemptionDelay { .. } => Tells::PodAndGang,
    }
}
