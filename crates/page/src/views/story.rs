//! The story of a pod or gang as a time line, and what would help it.

use kai_view::{Decision, DecisionKind, ExplanationView, Gang, Pod, PodStatus, Time};

use super::words::{decision_cause, duration, node_link, pod_gpus, pod_link, queue_link};
use crate::facts::Facts;
use crate::html::Html;

/// Decisions in the story of one gang. A gang of a thousand pods has more.
const DECISIONS_MAX: usize = 60;
/// A shorter wait is told only if it had a reason: every pod waits for the next cycle.
const WAIT_SECONDS_MIN: i64 = 10;
/// What is so now may seem to be this much earlier than the decision before it: the API has whole seconds.
const ROUNDING_MILLIS: i64 = 1_000;

/// A time line in the making.
pub(super) struct Story {
    events: Vec<Event>,
}

struct Event {
    place: Place,
    /// The time that is shown; `None` = not known.
    time: Option<Time>,
    class: &'static str,
    html: Html,
}

/// Where an event is in the story.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// By this time, behind those of the same time that were added before it; `None` = at the beginning.
    At(Option<Time>),
    /// At the end. The API has whole seconds, decisions have milliseconds: what a pod does now would sort before the decision that led to it.
    Present,
}

impl Story {
    pub(super) fn new() -> Story {
        Story { events: Vec::new() }
    }

    /// Adds an event. One without a time stays behind the event that was added before it.
    pub(super) fn add(&mut self, time: Option<Time>, class: &'static str, write: impl FnOnce(&mut Html)) {
        let before = self.events.last().map_or(Place::At(None), |event| event.place);
        let place = time.map_or(before, |time| Place::At(Some(time)));
        self.push(place, time, class, write);
    }

    /// Adds what is so now. It is the last event.
    pub(super) fn add_present(&mut self, since: Option<Time>, class: &'static str, write: impl FnOnce(&mut Html)) {
        let latest = self.events.iter().filter_map(|event| event.time).max();
        let rounded =
            |since: Time| latest.filter(|latest| (0..ROUNDING_MILLIS).contains(&(latest.millis() - since.millis())));
        let time = since.map(|since| rounded(since).unwrap_or(since));
        self.push(Place::Present, time, class, write);
    }

    fn push(&mut self, place: Place, time: Option<Time>, class: &'static str, write: impl FnOnce(&mut Html)) {
        let mut html = Html::default();
        write(&mut html);
        let event = Event {
            place,
            time,
            class,
            html,
        };
        self.events.push(event);
    }

    /// Adds the decisions, the newest of which come first.
    pub(super) fn add_decisions(&mut self, facts: &Facts<'_>, decisions: &[&Decision], with_pods: bool) {
        let shown = &decisions[..decisions.len().min(DECISIONS_MAX)];
        if decisions.len() > shown.len() {
            self.add(None, "note", |html| {
                html.show(decisions.len() - shown.len())
                    .raw(" older decisions are not shown");
            });
        }
        for decision in shown.iter().rev() {
            let class = match decision.kind {
                DecisionKind::Bind => "ok",
                DecisionKind::Promise => "hint",
                DecisionKind::Evict => "bad",
            };
            self.add(Some(decision.time), class, |html| {
                html.raw(match decision.kind {
                    DecisionKind::Bind => "<b>Bound</b>",
                    DecisionKind::Promise => "<b>Promised a place</b>",
                    DecisionKind::Evict => "<b>Evicted</b>",
                });
                // A decision from an Event of an earlier version names no pod.
                if with_pods && !decision.pod.is_empty() {
                    html.raw(": ");
                    pod_link(html, &decision.namespace, &decision.pod);
                }
                if let Some(node) = &decision.node {
                    html.raw(if decision.kind == DecisionKind::Evict {
                        " from "
                    } else {
                        " on "
                    });
                    node_link(html, node);
                }
                if let Some(action) = &decision.action {
                    html.raw(" by ").text(action);
                }
                html.raw("<div class=\"cause\">");
                let has_cause = decision_cause(html, facts, decision);
                // The story of a pod tells its wait by itself.
                if with_pods && let (Some(since), Some(reason)) = (decision.waiting_since, &decision.waiting_reason) {
                    html.raw(if has_cause { "; waited " } else { "waited " });
                    duration(html, waited_seconds(decision, since));
                    html.raw(": ").text(reason);
                }
                html.raw("</div>");
            });
        }
    }

    /// Writes the events in the order of their places.
    pub(super) fn write(mut self, html: &mut Html) {
        self.events.sort_by_key(|event| event.place);
        html.raw("<ol class=\"story\">");
        for event in &self.events {
            html.raw("<li class=\"").raw(event.class).raw("\">");
            match event.time {
                Some(time) => html.time(time),
                None => html.raw("<span class=\"quiet\">at no known time</span>"),
            };
            html.raw("<div>").append(&event.html).raw("</div></li>");
        }
        html.raw("</ol>");
    }
}

/// The events that a gang has before any decision: creation and grouping.
pub(super) fn add_beginning(story: &mut Story, facts: &Facts<'_>, gang: &Gang) {
    story.add(Some(gang.created), "", |html| {
        html.raw("<b>Grouped</b> as pod group ")
            .text(&gang.pod_group)
            .raw(" of ");
        html.text(&gang.workload_kind)
            .raw(" ")
            .text(&gang.workload_name)
            .raw(", in ");
        queue_link(html, facts, &gang.queue);
        html.raw(", priority ").show(gang.priority);
        if gang.min > 1 {
            html.raw("; at least ").show(gang.min).raw(" pods start together");
        }
    });
}

/// Starts and evictions that the gang remembers and no shown decision tells.
pub(super) fn add_memories(story: &mut Story, gang: &Gang, decisions: &[&Decision]) {
    let told = |time: Time, kind: DecisionKind| {
        decisions
            .iter()
            .any(|decision| decision.kind == kind && decision.time >= time)
    };
    if let Some(start) = gang.last_start.filter(|start| !told(*start, DecisionKind::Bind)) {
        story.add(Some(start), "ok", |html| {
            html.raw("<b>Started</b>: its minimum was placed");
        });
    }
    if let Some(time) = gang.last_eviction.filter(|time| !told(*time, DecisionKind::Evict)) {
        story.add(Some(time), "bad", |html| {
            html.raw("<b>Lost a pod</b> to another workload; for whom is not known any more");
        });
    }
}

/// What the pod waited for until the first decision about it, if that took a while or had a reason.
pub(super) fn add_wait(story: &mut Story, pod: &Pod, decisions: &[&Decision]) {
    // Decisions about an earlier pod of this name are older than the pod, which has its creation in whole seconds.
    let mut own = decisions.iter().rev().filter(|decision| decision.time >= pod.created);
    let Some(first) = own.find(|decision| decision.kind != DecisionKind::Evict) else {
        return;
    };
    let seconds = waited_seconds(first, pod.created);
    if seconds < WAIT_SECONDS_MIN && first.waiting_reason.is_none() {
        return;
    }
    let latest = story.events.iter().filter_map(|event| event.time).max();
    story.add(latest.max(Some(pod.created)), "warn", |html| {
        html.raw("<b>Waited</b> ");
        duration(html, seconds);
        if let Some(reason) = &first.waiting_reason {
            html.raw("<div class=\"cause\">").text(reason).raw("</div>");
        }
    });
}

/// How long the pod of a decision had waited.
pub(super) fn waited_seconds(decision: &Decision, since: Time) -> i64 {
    (decision.time.millis() - since.millis()).max(0) / 1_000
}

/// The GPU groups of the pod. The scheduler chose them with the last binding, and they were reserved before the pod was bound.
pub(super) fn add_reserved(story: &mut Story, pod: &Pod, bound: Option<Time>) {
    for gpu_group in pod.gpu_groups.iter().filter(|_| !pod.waits()) {
        story.add(bound, "", |html| {
            html.raw("<b>Reserved</b>: GPU group ").text(gpu_group);
        });
    }
}

/// The time of the newest binding of this pod; `None` = not known.
pub(super) fn bound_at(pod: &Pod, decisions: &[&Decision]) -> Option<Time> {
    let bound = decisions.iter().find(|decision| decision.kind == DecisionKind::Bind);
    bound.map(|decision| decision.time).filter(|time| *time >= pod.created)
}

/// What a pod is doing now.
pub(super) fn add_present(story: &mut Story, gang: Option<&Gang>, pod: &Pod) {
    let class = match pod.status {
        PodStatus::Running => "ok now",
        PodStatus::Pending | PodStatus::Gated => "warn now",
        PodStatus::Pipelined | PodStatus::Binding | PodStatus::Bound => "hint now",
        PodStatus::Releasing | PodStatus::StuckInReleasing | PodStatus::Failed => "bad now",
        _ => "now",
    };
    story.add_present(pod.since, class, |html| {
        let word = match pod.status {
            PodStatus::Pending => "Waiting",
            PodStatus::Gated => "Waiting: scheduling gates are closed",
            PodStatus::Pipelined => "Promised a place; others are leaving it",
            PodStatus::Binding | PodStatus::Bound => "Starting",
            PodStatus::Releasing => "Ending",
            PodStatus::StuckInReleasing => "Ending, for longer than its grace period",
            other => other.name(),
        };
        html.raw("<b>").text(word).raw("</b>");
        if let Some(node) = &pod.node {
            html.raw(" on ");
            node_link(html, node);
        }
        if let Some(position) = gang.and_then(|gang| gang.position) {
            html.raw(", number ").show(position).raw(" in its queue");
        }
        if let Some(reason) = &pod.reason {
            html.raw("<div class=\"cause\">").text(reason).raw("</div>");
        }
    });
}

/// What would let a pod start, as a fragment.
pub(super) fn remedies(html: &mut Html, namespace: &str, pod: &str, explanation: Option<&ExplanationView>) {
    html.raw("<h2>What would help ")
        .text(namespace)
        .raw("/")
        .text(pod)
        .raw("</h2>");
    let Some(explanation) = explanation else {
        html.raw("<p>It does not wait, or no answer could be computed.</p>");
        return;
    };
    html.raw("<dl class=\"facts\">");
    let position = explanation.position.as_ref().map(|position| &position.text);
    let facts = [
        ("position", position),
        ("needs", explanation.needs.as_ref()),
        ("room", explanation.fits.as_ref()),
        ("no remedy", explanation.no_remedy.as_ref()),
    ];
    for (name, text) in facts {
        if let Some(text) = text {
            html.raw("<dt>").raw(name).raw("</dt><dd>").text(text).raw("</dd>");
        }
    }
    html.raw("</dl>");
    if !explanation.remedies.is_empty() {
        html.raw(if explanation.remedies.len() > 1 {
            "<p>Any one of these:</p><ol class=\"remedies\">"
        } else {
            "<ol class=\"remedies\">"
        });
        for remedy in &explanation.remedies {
            html.raw("<li>").text(&remedy.text);
            html.raw(if remedy.tried { "" } else { " <small>not tried</small>" })
                .raw("</li>");
        }
        html.raw("</ol>");
    }
    html.raw("<p class=\"quiet\">The scheduler tried each of them on a copy of the cluster, as it is now.");
    if explanation.cut {
        html.raw(" The search ended after ")
            .show(explanation.trials)
            .raw(" trials; there may be others.");
    }
    html.raw("</p>");
}

/// The facts of a pod that its page shows at the top.
pub(super) fn pod_facts(html: &mut Html, pod: &Pod) {
    html.raw("<dt>asks for</dt><dd>");
    pod_gpus(html, &pod.gpus);
    if let Some(words) = pod.gpu_limit.as_ref().and_then(kai_view::PodLimit::words) {
        html.raw("</dd><dt>limit of GPU memory</dt><dd>").text(&words);
    }
    html.raw("</dd><dt>node</dt><dd>");
    match &pod.node {
        Some(node) => node_link(html, node),
        None => {
            html.raw("<span class=\"quiet\">none</span>");
        }
    }
    html.raw("</dd>");
}
