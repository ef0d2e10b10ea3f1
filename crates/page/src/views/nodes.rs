//! The nodes: health, GPUs, driver.

use kai_view::{GpuAmount, GpuState, Node, NodeCondition, SlicesKind};

use super::NODES_MAX;
use super::words::{Rest, counted, head, rest_row, short_resource};
use crate::bar::Bar;
use crate::blocks::Blocks;
use crate::facts::Facts;
use crate::html::Html;

const MILLIONTHS: i64 = 1_000_000;

pub(crate) fn render(blocks: &mut Blocks, facts: &Facts<'_>) {
    let nodes = facts.nodes();
    blocks.section("head", |html, id| {
        head(html, id, "Nodes", |html| {
            if facts.view.nodes.is_none() {
                html.unknown();
                return;
            }
            counted(html, nodes.len(), "node", "nodes");
            let not_ready = nodes.iter().filter(|node| !node.ready).count();
            let silent = nodes.iter().filter(|node| node.ready && !node.reports_readiness());
            let silent = silent.count();
            let cordoned = nodes.iter().filter(|node| node.cordoned).count();
            html.raw(" · ").show(not_ready).raw(" not ready · ");
            if silent > 0 {
                html.show(silent).raw(" of unknown readiness · ");
            }
            html.show(cordoned).raw(" cordoned");
        });
    });
    blocks.open("nodes", |html, id, rows| {
        html.raw("<section class=\"panel\" id=\"").text(id).raw("\"><table class=\"nodes\"><caption class=\"vh\">Nodes</caption>");
        html.raw("<thead><tr><th>node</th><th>health</th><th>GPU model</th><th>GPUs held</th><th class=\"num\">CPU held</th><th class=\"num\">memory held</th>");
        html.raw("<th>driver</th><th>pool</th><th>findings</th></tr></thead><tbody id=\"").text(rows).raw("\">");
    });
    for node in nodes.iter().take(NODES_MAX) {
        blocks.row(&format!("node:{}", node.name), |html, id| row(html, id, node));
    }
    if nodes.len() > NODES_MAX {
        blocks.row("rest", |html, id| {
            rest_row(html, id, nodes.len() - NODES_MAX, Rest::InJson)
        });
    }
    blocks.close("</tbody></table></section>");
}

fn row(html: &mut Html, id: &str, node: &Node) {
    html.raw("<tr id=\"")
        .text(id)
        .raw("\"><th scope=\"row\"><a href=\"/nodes/")
        .segment(&node.name)
        .raw("\">")
        .text(&node.name);
    html.raw("</a></th><td>");
    health(html, node);
    html.raw("</td><td>");
    model(html, node);
    html.raw("</td><td>");
    let total = node.gpus.len() as i64 * MILLIONTHS;
    for slices in node.slices.iter().filter(|slices| slices.kind == SlicesKind::Mig) {
        if let Some(used) = slices.used {
            Bar::begin(html, "bar small", slices.allocatable, "slices held")
                .part(used, "run")
                .end();
        }
        html.raw(" <span class=\"num\">")
            .or_unknown(slices.used)
            .raw("/")
            .show(slices.allocatable)
            .raw(" × ");
        html.text(short_resource(&slices.resource)).raw("</span> ");
    }
    match used_gpus(node) {
        Some(_) if node.gpus.is_empty() => {}
        Some(used) => {
            Bar::begin(html, "bar small", total, "GPUs held")
                .part(used, "run")
                .end();
            html.raw(" <span class=\"num\">")
                .gpus(GpuAmount { millionths: used })
                .raw("/")
                .show(node.gpus.len())
                .raw("</span>");
        }
        None => {
            html.unknown();
        }
    }
    html.raw("</td><td class=\"num\">");
    percent(html, node.cpu_milli.used, node.cpu_milli.allocatable);
    html.raw("</td><td class=\"num\">");
    percent(html, node.memory_bytes.used, node.memory_bytes.allocatable);
    html.raw("</td><td>");
    match &node.driver {
        Some(driver) => html.text(driver),
        None => html.unknown(),
    };
    html.raw("</td><td>");
    html.text(node.pool.as_deref().unwrap_or_default())
        .raw("</td><td class=\"reason\">");
    for (at, condition) in findings(node).enumerate() {
        html.raw(if at == 0 { "" } else { "; " })
            .text(&condition.kind)
            .raw("=")
            .text(&condition.status);
        if let Some(reason) = &condition.reason {
            html.raw(" (").text(reason).raw(")");
        }
    }
    html.raw("</td></tr>");
}

pub(super) fn percent(html: &mut Html, used: Option<i64>, all: i64) {
    match used {
        Some(used) if all > 0 => html.show(i128::from(used) * 100 / i128::from(all)).raw(" %"),
        Some(_) => html.raw("none"),
        None => html.unknown(),
    };
}

pub(super) fn model(html: &mut Html, node: &Node) {
    match &node.gpu_model {
        Some(model) => html.text(model),
        None if node.gpus.is_empty() && node.slices.is_empty() => html.raw("<span class=\"quiet\">no GPUs</span>"),
        None => html.unknown(),
    };
    if let Some(mib) = node.gpu_memory_mib {
        html.raw(" <small>").mib(mib).raw("</small>");
    }
}

/// Words on the health of a node.
pub(super) fn health(html: &mut Html, node: &Node) {
    html.raw(match (node.ready, node.reports_readiness()) {
        (true, true) => "<span class=\"tag ok\">ready</span>",
        (true, false) => "<span class=\"tag warn\">readiness unknown</span>",
        (false, _) => "<span class=\"tag bad\">not ready</span>",
    });
    if node.cordoned {
        html.raw(" <span class=\"tag warn\">cordoned</span>");
    }
    match node.gpus_unhealthy {
        Some(0) => {}
        Some(count) => {
            html.raw(" <span class=\"tag bad\">").show(count);
            html.raw(if count == 1 {
                " failed GPU</span>"
            } else {
                " failed GPUs</span>"
            });
        }
        None => {
            html.raw(" <small>GPU health unknown</small>");
        }
    }
}

/// Conditions that are not as they should be.
pub(super) fn findings(node: &Node) -> impl Iterator<Item = &NodeCondition> {
    node.conditions.iter().filter(|condition| condition.is_problem())
}

/// GPUs that pods hold, in millionths; `None` = unknown.
pub(super) fn used_gpus(node: &Node) -> Option<i64> {
    let replicas = node.slices.iter().find(|slices| slices.kind == SlicesKind::Replica);
    node.gpus.iter().try_fold(0, |sum, gpu| {
        let used = match gpu.state {
            GpuState::Idle | GpuState::Unhealthy => 0,
            GpuState::Whole | GpuState::Held => MILLIONTHS,
            GpuState::Shared => match node.gpu_memory_mib? {
                all if all > 0 => gpu.used_mib? * MILLIONTHS / all,
                _ => return None,
            },
            GpuState::TimeSliced => match replicas?.allocatable {
                all if all > 0 => replicas?.used? * MILLIONTHS / all,
                _ => return None,
            },
            GpuState::Unknown => return None,
        };
        Some(sum + used)
    })
}
