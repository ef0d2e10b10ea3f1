//! The tree of queues with quota, fair share, use and requests.

use kai_view::{Amounts, GpuAmount, Queue};

use super::ROWS_MAX;
use super::words::{Rest, counted, head, rest_row};
use crate::bar::Bar;
use crate::blocks::Blocks;
use crate::facts::Facts;
use crate::html::Html;

pub(crate) fn render(blocks: &mut Blocks, facts: &Facts<'_>) {
    let queues = facts.view.queues.as_deref().unwrap_or_default();
    blocks.section("head", |html, id| {
        head(html, id, "Queues", |html| match &facts.view.queues {
            Some(queues) => {
                counted(html, queues.len(), "queue", "queues");
                html.raw(" · amounts of a queue include those of the queues below it");
            }
            None => {
                html.unknown();
            }
        });
    });
    let roots = queues.iter().filter(|queue| queue.depth == 0);
    let max = roots.map(|queue| scale(&queue.gpus)).max().unwrap_or(0);
    blocks.open("queues", |html, id, rows| {
        html.raw("<section class=\"panel\" id=\"").text(id).raw("\"><table class=\"queues\"><caption class=\"vh\">Queues</caption>");
        html.raw("<thead><tr><th>queue</th><th>GPUs</th><th class=\"num\">held</th><th class=\"num\">fair share</th><th class=\"num\">quota</th>");
        html.raw("<th class=\"num\">limit</th><th class=\"num\">requested</th>");
        html.raw("<th>borrowed</th><th class=\"num\">workloads</th><th class=\"num\">CPU, memory</th></tr></thead><tbody id=\"").text(rows).raw("\">");
    });
    for queue in queues.iter().take(ROWS_MAX) {
        blocks.row(&format!("queue:{}", queue.name), |html, id| {
            row(html, id, facts, queue, max)
        });
    }
    if queues.len() > ROWS_MAX {
        blocks.row("rest", |html, id| {
            rest_row(html, id, queues.len() - ROWS_MAX, Rest::InJson)
        });
    }
    blocks.close(concat!(
        "</tbody></table><p class=\"key\"><i class=\"sw q0\"></i>held within the quota, <i class=\"sw over\"></i>held above the quota, ",
        "<i class=\"sw asked\"></i>requested and not held, <i class=\"ln quota\"></i>quota, <i class=\"ln fairline\"></i>fair share</p></section>"
    ));
}

/// The largest amount that a bar of these shows.
fn scale(gpus: &Amounts<GpuAmount>) -> i64 {
    let amounts = [gpus.used, gpus.fair_share, gpus.quota, gpus.requested];
    amounts
        .iter()
        .flatten()
        .map(|amount| amount.millionths)
        .max()
        .unwrap_or(0)
}

/// What a queue holds within and above its quota, with lines at quota and fair share.
pub(super) fn bar(html: &mut Html, queue: &Queue, max: i64, class: &'static str) {
    let gpus = &queue.gpus;
    let Some(used) = gpus.used else {
        html.unknown();
        return;
    };
    let millionths = |amount: Option<GpuAmount>| amount.map(|amount| amount.millionths);
    let borrowed = millionths(gpus.borrowed).unwrap_or(0);
    let asked = millionths(gpus.requested).unwrap_or(0) - used.millionths;
    let mut label = Html::default();
    label
        .gpus(used)
        .raw(" GPUs held, ")
        .gpus(GpuAmount { millionths: borrowed })
        .raw(" of them above the quota");
    Bar::begin(html, "bar", max, label.as_str())
        .part(used.millionths - borrowed, class)
        .part(borrowed, "over")
        .part(asked, "asked")
        .mark(millionths(gpus.quota), "quota")
        .mark(millionths(gpus.fair_share), "fairline")
        .end();
}

fn row(html: &mut Html, id: &str, facts: &Facts<'_>, queue: &Queue, max: i64) {
    const DEPTHS: [&str; 6] = ["d0", "d1", "d2", "d3", "d4", "d5"];
    let depth = (queue.depth as usize).min(DEPTHS.len() - 1);
    let leaf = facts.is_leaf(queue);
    html.raw("<tr id=\"")
        .text(id)
        .raw("\" class=\"")
        .raw(DEPTHS[depth])
        .raw(if leaf { " leaf" } else { "" });
    html.raw("\"><th scope=\"row\"><a href=\"/gangs?queue=")
        .segment(&queue.name)
        .raw("\">");
    if leaf {
        html.raw("<i class=\"sw ")
            .raw(facts.palette.class(&queue.name))
            .raw("\"></i>");
    }
    html.text(&queue.name).raw("</a>");
    if queue.display_name != queue.name {
        html.raw(" <small>").text(&queue.display_name).raw("</small>");
    }
    if let Some(past) = queue.past_usage {
        html.raw(" <small>past usage ")
            .show(percent(past.gpus_millionths))
            .raw(" %</small>");
    }
    match queue.over_quota {
        Some(true) => html.raw(" <span class=\"tag warn\">over quota</span>"),
        Some(false) => html,
        None => html.raw(" <small>over quota: unknown</small>"),
    };
    html.raw("</th><td>");
    let class = if leaf {
        facts.palette.class(&queue.name)
    } else {
        "group"
    };
    bar(html, queue, max, class);
    let gpus = &queue.gpus;
    html.raw("</td><td class=\"num\">").gpus_or_unknown(gpus.used);
    html.raw("</td><td class=\"num\">").gpus_or_unknown(gpus.fair_share);
    html.raw("</td><td class=\"num\">");
    bound(html, gpus.quota, "unlimited");
    html.raw("</td><td class=\"num\">");
    bound(html, gpus.limit, "none");
    html.raw("</td><td class=\"num\">").gpus_or_unknown(gpus.requested);
    html.raw("</td><td>");
    borrowed(html, queue);
    html.raw("</td><td class=\"num\">");
    if leaf {
        html.raw("<a href=\"/waiting?queue=")
            .segment(&queue.name)
            .raw("\">")
            .or_unknown(queue.gangs_waiting);
        html.raw(" waiting</a>, ")
            .or_unknown(queue.gangs_running)
            .raw(" running");
    }
    html.raw("</td><td class=\"num quiet\">");
    match (queue.cpu_milli.used, queue.memory_bytes.used) {
        (Some(cpu), Some(memory)) => html
            .show((cpu + 500) / 1_000)
            .raw(" cores, ")
            .mib(memory / (1_024 * 1_024)),
        _ => html.unknown(),
    };
    html.raw("</td></tr>");
}

/// Whole percent of the cluster's GPUs.
fn percent(millionths: i64) -> i64 {
    (millionths + 5_000) / 10_000
}

fn bound(html: &mut Html, amount: Option<GpuAmount>, none: &'static str) {
    match amount {
        Some(amount) => html.gpus(amount),
        None => html.raw("<span class=\"quiet\">").raw(none).raw("</span>"),
    };
}

/// Who lends what to the queue.
fn borrowed(html: &mut Html, queue: &Queue) {
    match queue.gpus.borrowed {
        None => {
            html.unknown();
        }
        Some(amount) if amount.millionths == 0 => {
            html.raw("<span class=\"quiet\">none</span>");
        }
        Some(amount) => {
            html.raw("<b>").gpus(amount).raw("</b>");
            for (at, lender) in queue.lenders.iter().enumerate() {
                html.raw(if at == 0 { " from " } else { ", " })
                    .text(&lender.queue)
                    .raw(" (")
                    .gpus(lender.gpus)
                    .raw(")");
            }
            if let Some(reclaimable) = queue.gpus.reclaimable.filter(|reclaimable| *reclaimable != amount) {
                html.raw("; ").gpus(reclaimable).raw(" reclaimable");
            }
        }
    }
}
