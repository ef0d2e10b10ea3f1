//! A gang: its facts, its story and its pods.

use std::sync::Arc;

use kai_view::{Decision, Gang, PodStatus};

use super::story::{self, Story};
use super::words::{Rest, counted, head, node_link, panel, pod_gpus, progress, queue_link, rest_row};
use super::{ROWS_MAX, waiting};
use crate::blocks::Blocks;
use crate::facts::Facts;
use crate::html::Html;

pub(crate) fn render(blocks: &mut Blocks, facts: &Facts<'_>, namespace: &str, pod_group: &str) {
    let Some(gang) = facts.gang(namespace, pod_group) else {
        return gone(blocks, facts, namespace, pod_group);
    };
    let name = format!("{} {}", gang.workload_kind, gang.workload_name);
    blocks.section("head", |html, id| {
        head(html, id, &name, |html| {
            html.raw("namespace ").text(namespace).raw(" · ");
            state(html, facts, gang);
        });
    });
    blocks.section("facts", |html, id| {
        html.raw("<section class=\"panel\" id=\"")
            .text(id)
            .raw("\"><dl class=\"facts\"><dt>queue</dt><dd>");
        queue_link(html, facts, &gang.queue);
        html.raw("</dd><dt>priority</dt><dd>").show(gang.priority);
        html.raw(", ").raw(gang.preemptibility().name());
        html.raw("</dd><dt>pod group</dt><dd>")
            .text(pod_group)
            .raw("</dd><dt>pods placed</dt><dd>");
        progress(html, facts, gang);
        html.raw("</dd>");
        if gang.waiting > 0 {
            html.raw("<dt>position</dt><dd>");
            match gang.position {
                Some(position) => html.show(position).raw(" in its queue"),
                None if !facts.view.is_complete() => html.unknown(),
                None => html.raw("none: no cycle tries it"),
            };
            html.raw("</dd><dt>why it waits</dt><dd>");
            waiting::reason(html, facts, gang.reason.as_deref());
            waiting::help_link(html, facts, gang);
            html.raw("</dd>");
        }
        if let Some(since) = gang.stale_since {
            html.raw("<dt>below its minimum</dt><dd>since ")
                .time(since)
                .raw("</dd>");
        }
        html.raw("</dl></section>");
    });
    blocks.section("story", |html, id| {
        panel(html, id, "Story");
        let decisions = decisions_of(facts, namespace, pod_group);
        let mut story = Story::new();
        story::add_beginning(&mut story, facts, gang);
        story::add_memories(&mut story, gang, &decisions);
        story.add_decisions(facts, &decisions, true);
        if gang.waiting > 0 {
            story.add_present(gang.waiting_since, "warn now", |html| {
                html.raw("<b>");
                counted(html, gang.waiting as usize, "pod waits", "pods wait");
                html.raw("</b><div class=\"cause\">");
                waiting::reason(html, facts, gang.reason.as_deref());
                html.raw("</div>");
            });
        }
        story.write(html);
        unknown_decisions(html, facts);
        html.raw("</section>");
    });
    pods(blocks, facts, gang);
}

/// Says that the story may have gaps.
pub(super) fn unknown_decisions(html: &mut Html, facts: &Facts<'_>) {
    html.raw(match &facts.view.decisions {
        Some(_) => "<p class=\"quiet\">Decisions are kept for an hour, and forgotten when the scheduler restarts.</p>",
        None => "<p class=\"quiet\">Decisions are unknown here: only the scheduler has them.</p>",
    });
}

/// The decisions about the pods of a gang, newest first.
fn decisions_of<'a>(facts: &Facts<'a>, namespace: &str, pod_group: &str) -> Vec<&'a Decision> {
    let decisions = facts.view.decisions.iter().flatten().map(Arc::as_ref);
    let of_gang =
        |decision: &&Decision| decision.namespace == namespace && decision.pod_group.as_deref() == Some(pod_group);
    decisions.filter(of_gang).collect()
}

/// A gang that is not there any more may still have decisions.
fn gone(blocks: &mut Blocks, facts: &Facts<'_>, namespace: &str, pod_group: &str) {
    blocks.section("head", |html, id| {
        head(html, id, pod_group, |html| {
            html.raw("namespace ").text(namespace).raw(" · ");
            match &facts.view.gangs {
                Some(_) => html.raw("There is no such workload, or you may not see it."),
                None => html.unknown(),
            };
        });
    });
    let decisions = decisions_of(facts, namespace, pod_group);
    if !decisions.is_empty() {
        blocks.section("story", |html, id| {
            panel(html, id, "Story");
            let mut story = Story::new();
            story.add_decisions(facts, &decisions, true);
            story.write(html);
            html.raw("</section>");
        });
    }
}

fn pods(blocks: &mut Blocks, facts: &Facts<'_>, gang: &Gang) {
    blocks.open("pods", |html, id, rows| {
        panel(html, id, "Pods");
        html.raw("<table class=\"pods\"><thead><tr><th>pod</th><th>state</th><th>GPUs</th><th>node</th><th>since</th></tr></thead><tbody id=\"");
        html.text(rows).raw("\">");
    });
    let pods: Vec<_> = facts.pods_of(gang).collect();
    if !facts.knows_pods_of(gang) {
        blocks.row("pods-unknown", |html, id| {
            html.raw("<tr id=\"").text(id).raw("\"><td colspan=\"5\">");
            html.unknown().raw("</td></tr>");
        });
    }
    for pod in pods.iter().take(ROWS_MAX) {
        blocks.row(&format!("pod:{}", pod.name), |html, id| {
            html.raw("<tr id=\"")
                .text(id)
                .raw("\"><th scope=\"row\"><a href=\"/pods/")
                .segment(&pod.namespace)
                .raw("/");
            html.segment(&pod.name).raw("\">").text(&pod.name).raw("</a></th><td>");
            status(html, pod.status);
            html.raw("</td><td>");
            pod_gpus(html, &pod.gpus);
            html.raw("</td><td>");
            if let Some(node) = &pod.node {
                node_link(html, node);
            }
            html.raw("</td><td>");
            match pod.since {
                Some(since) => html.time(since),
                None => html.unknown(),
            };
            html.raw("</td></tr>");
        });
    }
    if pods.len() > ROWS_MAX {
        blocks.row("rest", |html, id| {
            rest_row(html, id, pods.len() - ROWS_MAX, Rest::InJson)
        });
    }
    blocks.close("</tbody></table></section>");
}

/// The state of a gang in a word.
pub(super) fn state(html: &mut Html, facts: &Facts<'_>, gang: &Gang) {
    if !facts.knows_pods_of(gang) {
        html.unknown();
        return;
    }
    html.raw(if gang.stale_since.is_some() {
        "<span class=\"tag bad\">below its minimum</span>"
    } else if gang.waiting > 0 && gang.running + gang.starting > 0 {
        "<span class=\"tag hint\">partly running</span>"
    } else if gang.waiting > 0 {
        "<span class=\"tag warn\">waiting</span>"
    } else if gang.starting > 0 {
        "<span class=\"tag hint\">starting</span>"
    } else if gang.running > 0 {
        "<span class=\"tag ok\">running</span>"
    } else if gang.releasing > 0 {
        "<span class=\"tag\">ending</span>"
    } else {
        "<span class=\"tag\">no pods</span>"
    });
}

/// The status of a pod with its look.
pub(super) fn status(html: &mut Html, status: PodStatus) {
    html.raw(match status {
        PodStatus::Running => "<span class=\"tag ok\">",
        PodStatus::Pending | PodStatus::Gated => "<span class=\"tag warn\">",
        PodStatus::Pipelined | PodStatus::Binding | PodStatus::Bound => "<span class=\"tag hint\">",
        PodStatus::StuckInReleasing | PodStatus::Failed => "<span class=\"tag bad\">",
        _ => "<span class=\"tag\">",
    });
    html.text(status.name()).raw("</span>");
}
