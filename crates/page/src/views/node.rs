//! A node: its GPUs with their pods, health, driver, labels, conditions.

use kai_view::Node;

use super::gpus;
use super::nodes::{health, model, percent};
use super::words::{head, panel};
use crate::blocks::Blocks;
use crate::facts::Facts;
use crate::html::Html;

pub(crate) fn render(blocks: &mut Blocks, facts: &Facts<'_>, name: &str) {
    let Some(node) = facts.nodes().iter().find(|node| node.name == name) else {
        blocks.section("head", |html, id| {
            head(html, id, name, |html| {
                match &facts.view.nodes {
                    Some(_) => html.raw("There is no such node."),
                    None => html.raw("Nodes are ").unknown(),
                };
            });
        });
        return;
    };
    blocks.section("head", |html, id| {
        head(html, id, name, |html| {
            html.raw("node · ");
            health(html, node);
        });
    });
    blocks.open("map", |html, id, rows| {
        panel(html, id, "GPUs");
        html.raw("<ul class=\"tiles large\" id=\"").text(rows).raw("\">");
    });
    gpus::tile(blocks, facts, node, true);
    blocks.close("</ul></section>");
    blocks.section("facts", |html, id| facts_of(html, id, node));
    blocks.section("conditions", |html, id| conditions(html, id, node));
    blocks.section("labels", |html, id| {
        panel(html, id, "Labels");
        html.raw("<table class=\"labels\"><tbody>");
        for (key, value) in node.labels.iter() {
            html.raw("<tr><th scope=\"row\">")
                .text(key)
                .raw("</th><td>")
                .text(value)
                .raw("</td></tr>");
        }
        html.raw("</tbody></table><p class=\"quiet\">Labels of GPUs, of kai and of topologies.</p></section>");
    });
}

fn facts_of(html: &mut Html, id: &str, node: &Node) {
    panel(html, id, "Facts");
    html.raw("<dl class=\"facts\"><dt>GPU model</dt><dd>");
    model(html, node);
    html.raw("</dd><dt>driver</dt><dd>");
    match &node.driver {
        Some(driver) => html.text(driver),
        None => html.unknown(),
    };
    html.raw("</dd><dt>GPUs offered</dt><dd>").show(node.gpus_allocatable);
    html.raw("</dd><dt>GPUs unhealthy</dt><dd>")
        .or_unknown(node.gpus_unhealthy)
        .raw("</dd><dt>GPU memory</dt><dd>");
    html.raw(if node.unified_memory {
        "unified: part of the node's RAM"
    } else {
        "of its own"
    });
    html.raw("</dd>");
    if !node.gpus.is_empty() || !node.slices.is_empty() {
        html.raw("<dt>limits of GPU memory</dt><dd>");
        match node.gpu_enforcement.tier {
            Some(_) => html.text(&node.gpu_enforcement.words()),
            None => html.unknown(),
        };
        html.raw("</dd>");
    }
    if let Some(strategy) = &node.mig_strategy {
        html.raw("<dt>MIG</dt><dd>strategy ").text(strategy).raw("</dd>");
    }
    if let Some(pool) = &node.pool {
        html.raw("<dt>pool</dt><dd>").text(pool).raw("</dd>");
    }
    for domain in &node.topology {
        html.raw("<dt>")
            .text(&domain.level)
            .raw("</dt><dd>")
            .text(&domain.value);
        html.raw(" <small>topology ")
            .text(&domain.topology)
            .raw("</small></dd>");
    }
    html.raw("<dt>CPU held</dt><dd>");
    percent(html, node.cpu_milli.used, node.cpu_milli.allocatable);
    html.raw(" of ")
        .show(node.cpu_milli.allocatable / 1_000)
        .raw(" cores</dd><dt>memory held</dt><dd>");
    percent(html, node.memory_bytes.used, node.memory_bytes.allocatable);
    html.raw(" of ")
        .mib(node.memory_bytes.allocatable / (1_024 * 1_024))
        .raw("</dd></dl></section>");
}

fn conditions(html: &mut Html, id: &str, node: &Node) {
    panel(html, id, "Conditions");
    if node.conditions.is_empty() {
        html.raw("<p class=\"quiet\">The node has no conditions, or they are unknown.</p></section>");
        return;
    }
    html.raw("<table class=\"conditions\"><thead><tr><th>condition</th><th>status</th><th>reason</th><th>message</th></tr></thead><tbody>");
    for condition in node.conditions.iter() {
        html.raw("<tr><th scope=\"row\">")
            .text(&condition.kind)
            .raw("</th><td>");
        html.raw(match (condition.is_problem(), condition.is_information()) {
            (true, _) => "<span class=\"tag bad\">",
            (false, true) => "<span class=\"tag\">",
            (false, false) => "<span class=\"tag ok\">",
        });
        html.text(&condition.status)
            .raw("</span></td><td>")
            .text(condition.reason.as_deref().unwrap_or_default());
        html.raw("</td><td class=\"reason\">")
            .text(condition.message.as_deref().unwrap_or_default())
            .raw("</td></tr>");
    }
    html.raw("</tbody></table><p class=\"quiet\">For more, <code>kai doctor ");
    html.text(&node.name).raw("</code>.</p></section>");
}
