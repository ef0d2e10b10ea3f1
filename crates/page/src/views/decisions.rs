//! The log of decisions.

use std::sync::Arc;

use kai_view::{Decision, DecisionKind, Queue};

use super::ROWS_MAX;
use super::words::{
    Rest, counted, decision_cause, decision_gpus, decision_tag, gang_href, head, node_link, pod_link, queue_link,
    rest_row,
};
use crate::blocks::Blocks;
use crate::facts::Facts;
use crate::html::Html;
use crate::route::DecisionFilter;

pub(crate) fn render(blocks: &mut Blocks, facts: &Facts<'_>, filter: &DecisionFilter) {
    let decisions = facts.view.decisions.iter().flatten().map(Arc::as_ref);
    let decisions: Vec<&Decision> = decisions.filter(|decision| is_wanted(decision, filter)).collect();
    blocks.section("head", |html, id| {
        head(html, id, "Decisions", |html| match &facts.view.decisions {
            Some(_) => {
                counted(html, decisions.len(), "decision", "decisions");
                html.raw(" of the last hour, newest first");
            }
            None => {
                html.raw("Decisions are ")
                    .unknown()
                    .raw(" here: only the scheduler has them.");
            }
        });
    });
    blocks.section("filter", |html, id| form(html, id, facts, filter));
    blocks.open("decisions", |html, id, rows| {
        html.raw("<section class=\"panel\" id=\"").text(id).raw("\"><table class=\"decisions\"><caption class=\"vh\">Decisions</caption>");
        html.raw("<thead><tr><th>when</th><th>what</th><th>workload</th><th>GPUs</th><th>node</th><th>queue</th><th>why</th></tr></thead>");
        html.raw("<tbody id=\"").text(rows).raw("\">");
    });
    if decisions.is_empty() && facts.view.decisions.is_some() {
        blocks.row("nothing", |html, id| {
            html.raw("<tr id=\"")
                .text(id)
                .raw("\"><td colspan=\"7\" class=\"quiet\">No decisions.</td></tr>");
        });
    }
    for decision in decisions.iter().take(ROWS_MAX) {
        blocks.row(&format!("decision:{}", decision.number), |html, id| {
            row(html, id, facts, decision)
        });
    }
    if decisions.len() > ROWS_MAX {
        blocks.row("rest", |html, id| {
            rest_row(html, id, decisions.len() - ROWS_MAX, Rest::ByQueue)
        });
    }
    blocks.close("</tbody></table></section>");
}

fn is_wanted(decision: &Decision, filter: &DecisionFilter) -> bool {
    let DecisionFilter { kind, queue, namespace } = filter;
    let of_queue = |queue: &String| {
        let beneficiary = decision
            .beneficiary
            .as_ref()
            .and_then(|beneficiary| beneficiary.queue.as_ref());
        decision.queue.as_ref() == Some(queue) || beneficiary == Some(queue)
    };
    kind.as_deref().is_none_or(|kind| decision.kind.name() == kind)
        && queue.as_ref().is_none_or(of_queue)
        && namespace
            .as_ref()
            .is_none_or(|namespace| decision.namespace == *namespace)
}

fn form(html: &mut Html, id: &str, facts: &Facts<'_>, filter: &DecisionFilter) {
    html.raw("<form class=\"filter\" action=\"/decisions\" id=\"")
        .text(id)
        .raw("\"><label>what <select name=\"kind\"><option value=\"\">all</option>");
    let kinds = [
        (DecisionKind::Bind, "bound"),
        (DecisionKind::Promise, "promised"),
        (DecisionKind::Evict, "evicted"),
    ];
    for (kind, word) in kinds {
        html.raw("<option value=\"").raw(kind.name()).raw("\"");
        html.raw(if filter.kind.as_deref() == Some(kind.name()) {
            " selected>"
        } else {
            ">"
        })
        .raw(word)
        .raw("</option>");
    }
    html.raw("</select></label> <label>queue <select name=\"queue\"><option value=\"\">all</option>");
    // The chosen queue is among them, wherever it is in the list.
    let chosen = |queue: &&Queue| filter.queue.as_ref() == Some(&queue.name);
    let beyond = facts.leaves().skip(ROWS_MAX).filter(chosen);
    for queue in facts.leaves().take(ROWS_MAX).chain(beyond) {
        html.raw("<option");
        html.raw(if filter.queue.as_ref() == Some(&queue.name) {
            " selected>"
        } else {
            ">"
        })
        .text(&queue.name)
        .raw("</option>");
    }
    html.raw("</select></label> <label>namespace <input name=\"namespace\" size=\"14\" value=\"");
    html.text(filter.namespace.as_deref().unwrap_or_default());
    html.raw("\"></label> <button>Filter</button></form>");
}

fn row(html: &mut Html, id: &str, facts: &Facts<'_>, decision: &Decision) {
    html.raw("<tr id=\"")
        .text(id)
        .raw("\"><td>")
        .time(decision.time)
        .raw("</td><td>");
    decision_tag(html, decision.kind);
    html.raw("<br><small>")
        .text(decision.action.as_deref().unwrap_or("action unknown"))
        .raw("</small></td><th scope=\"row\">");
    match &decision.pod_group {
        Some(pod_group) => {
            gang_href(html, &decision.namespace, pod_group);
            html.text(&decision.workload).raw("</a>");
        }
        None => {
            html.text(&decision.workload);
        }
    }
    // A decision that is read from an event of a workload names no pod.
    if !decision.pod.is_empty() {
        html.raw("<br><small>");
        pod_link(html, &decision.namespace, &decision.pod);
        html.raw("</small>");
    }
    html.raw("</th><td>");
    decision_gpus(html, decision);
    html.raw("</td><td>");
    if let Some(node) = &decision.node {
        node_link(html, node);
    }
    html.raw("</td><td>");
    if let Some(queue) = &decision.queue {
        queue_link(html, facts, queue);
    }
    html.raw("</td><td class=\"reason\">");
    if !decision_cause(html, facts, decision) {
        html.raw(match decision.kind {
            DecisionKind::Bind => "<span class=\"quiet\">a place was free</span>",
            DecisionKind::Promise => "<span class=\"quiet\">others are leaving its place</span>",
            DecisionKind::Evict => "<span class=\"unknown\">unknown</span>",
        });
    }
    html.raw("</td></tr>");
}
