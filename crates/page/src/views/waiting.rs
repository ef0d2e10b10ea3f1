//! What waits: reason, since when, position, progress of the gang, and what would help.

use kai_view::Gang;

use super::ROWS_MAX;
use super::words::{Rest, count_waiting, head, progress, queue_link, rest_row, workload_link};
use crate::blocks::Blocks;
use crate::facts::Facts;
use crate::html::Html;

pub(crate) fn render(blocks: &mut Blocks, facts: &Facts<'_>, queue: Option<&str>) {
    let mut gangs = facts.view.waiting_gangs();
    gangs.retain(|gang| queue.is_none_or(|queue| gang.queue == queue));
    blocks.section("head", |html, id| {
        head(html, id, "Waiting", |html| {
            match &facts.view.gangs {
                Some(_) => count_waiting(html, facts, gangs.len(), "workload waits", "workloads wait"),
                None => {
                    html.unknown();
                }
            }
            if let Some(queue) = queue {
                html.raw(" in ");
                queue_link(html, facts, queue);
                html.raw(" · <a href=\"/waiting\">all queues</a>");
            }
        });
    });
    blocks.open("waiting", |html, id, rows| {
        html.raw("<section class=\"panel\" id=\"").text(id).raw("\"><table class=\"waiting\"><caption class=\"vh\">Waiting workloads</caption>");
        html.raw("<thead><tr><th>workload</th><th>queue</th><th>position</th><th>since</th><th>pods placed</th><th>why</th></tr></thead>");
        html.raw("<tbody id=\"").text(rows).raw("\">");
    });
    if gangs.is_empty() && facts.view.gangs.is_some() {
        blocks.row("nothing", |html, id| {
            html.raw("<tr id=\"")
                .text(id)
                .raw("\"><td colspan=\"6\" class=\"quiet\">");
            match facts.gangs_of_unknown_pods() {
                0 => html.raw("Nothing waits."),
                _ => html.raw("What waits is ").unknown().raw(": pods could not be read."),
            };
            html.raw("</td></tr>");
        });
    }
    for gang in gangs.iter().take(ROWS_MAX) {
        blocks.row(&format!("gang:{}/{}", gang.namespace, gang.pod_group), |html, id| {
            row(html, id, facts, gang)
        });
    }
    if gangs.len() > ROWS_MAX {
        blocks.row("rest", |html, id| {
            rest_row(html, id, gangs.len() - ROWS_MAX, Rest::ByQueue)
        });
    }
    blocks.close("</tbody></table></section>");
}

fn row(html: &mut Html, id: &str, facts: &Facts<'_>, gang: &Gang) {
    html.raw("<tr id=\"").text(id).raw("\"><th scope=\"row\">");
    workload_link(html, gang);
    html.raw(" <small>").text(&gang.namespace).raw("</small></th><td>");
    queue_link(html, facts, &gang.queue);
    html.raw("</td><td>");
    match gang.position {
        Some(position) => html.show(position),
        None if !facts.view.is_complete() => html.unknown(),
        None => html.raw("<span class=\"quiet\">none</span>"),
    };
    html.raw("</td><td>");
    match gang.waiting_since {
        Some(since) => html.time(since),
        None => html.unknown(),
    };
    html.raw("</td><td>");
    progress(html, facts, gang);
    html.raw("</td><td class=\"reason\">");
    reason(html, facts, gang.reason.as_deref());
    help_link(html, facts, gang);
    html.raw("</td></tr>");
}

/// Why a gang or pod waits.
pub(super) fn reason(html: &mut Html, facts: &Facts<'_>, reason: Option<&str>) {
    match reason {
        Some(reason) => html.text(reason),
        // Without all lists only conditions have reasons.
        None if !facts.view.is_complete() => html.raw("the reason is ").unknown(),
        None => html.raw("<span class=\"quiet\">not tried yet</span>"),
    };
}

/// A link to what would help. The search for it costs time, so the page asks for it on demand only.
pub(super) fn help_link(html: &mut Html, facts: &Facts<'_>, gang: &Gang) {
    if let Some(pod) = facts.waiting_pod(gang) {
        html.raw(" <a class=\"help\" href=\"/remedies/")
            .segment(pod.0)
            .raw("/")
            .segment(pod.1)
            .raw("\">What would help</a>");
    }
}
