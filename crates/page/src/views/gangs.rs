//! All workloads, whether they wait or run.

use kai_view::Preemptibility;

use super::ROWS_MAX;
use super::words::{Rest, counted, head, progress, queue_link, rest_row, workload_link};
use crate::blocks::Blocks;
use crate::facts::Facts;

pub(crate) fn render(blocks: &mut Blocks, facts: &Facts<'_>, queue: Option<&str>) {
    let gangs = facts.view.gangs.iter().flatten();
    let gangs: Vec<_> = gangs
        .filter(|gang| queue.is_none_or(|queue| gang.queue == queue))
        .collect();
    blocks.section("head", |html, id| {
        head(html, id, "Workloads", |html| {
            match &facts.view.gangs {
                Some(_) => counted(html, gangs.len(), "workload", "workloads"),
                None => {
                    html.unknown();
                }
            }
            if let Some(queue) = queue {
                html.raw(" in ");
                queue_link(html, facts, queue);
                html.raw(" · <a href=\"/gangs\">all queues</a>");
            }
        });
    });
    blocks.open("gangs", |html, id, rows| {
        html.raw("<section class=\"panel\" id=\"").text(id).raw("\"><table class=\"gangs\"><caption class=\"vh\">Workloads</caption>");
        html.raw("<thead><tr><th>workload</th><th>namespace</th><th>queue</th><th>priority</th><th>state</th><th>pods placed</th>");
        html.raw("<th>created</th></tr></thead><tbody id=\"").text(rows).raw("\">");
    });
    for gang in gangs.iter().take(ROWS_MAX) {
        blocks.row(&format!("gang:{}/{}", gang.namespace, gang.pod_group), |html, id| {
            html.raw("<tr id=\"").text(id).raw("\"><th scope=\"row\">");
            workload_link(html, gang);
            html.raw("</th><td>").text(&gang.namespace).raw("</td><td>");
            queue_link(html, facts, &gang.queue);
            html.raw("</td><td>").show(gang.priority);
            if gang.preemptibility() != Preemptibility::Preemptible {
                html.raw(" <small>").raw(gang.preemptibility().name()).raw("</small>");
            }
            html.raw("</td><td>");
            super::gang::state(html, facts, gang);
            html.raw("</td><td>");
            progress(html, facts, gang);
            html.raw("</td><td>").time(gang.created).raw("</td></tr>");
        });
    }
    if gangs.len() > ROWS_MAX {
        blocks.row("rest", |html, id| {
            rest_row(html, id, gangs.len() - ROWS_MAX, Rest::ByQueue)
        });
    }
    blocks.close("</tbody></table></section>");
}
