//! The GPU map: nodes with their GPUs, each filled by its pods' shares in the colour of their queues.
//!
//! A large cluster has thousands of cells, so a cell is one small element, and the words are left to the legend and to the page of the node.
//! A small cluster gets large cells with the names of pods.

use std::collections::BTreeMap;

use kai_view::{Gpu, GpuState, GpuUser, Node, PodStatus, Queue, Slices, SlicesKind, Text};

use super::nodes::used_gpus;
use super::words::{counted, head, queue_link, short_resource, user_link, user_name};
use super::{LEGEND_MAX, NODES_MAX};
use crate::blocks::Blocks;
use crate::facts::{Facts, is_other_work};
use crate::html::Html;
use crate::route::{Cells, Grouping};

/// Cells are large by default up to this many GPUs.
const LARGE_MAX: usize = 72;
/// Slices of one resource that a node draws one by one.
const SLICES_MAX: i64 = 64;

pub(crate) fn render(blocks: &mut Blocks, facts: &Facts<'_>, group: &Grouping, cells: Cells) {
    let nodes = facts.nodes();
    let gpus: usize = nodes.iter().map(|node| node.gpus.len()).sum();
    let large = match cells {
        Cells::Large => true,
        Cells::Small => false,
        Cells::Default => gpus <= LARGE_MAX,
    };
    let key = GroupKey::of(group, nodes);
    blocks.section("head", |html, id| {
        head(html, id, "GPUs", |html| {
            if facts.view.nodes.is_none() {
                html.unknown();
                return;
            }
            counted(html, gpus, "GPU", "GPUs");
            html.raw(" on ");
            counted(html, nodes.len(), "node", "nodes");
        });
    });
    blocks.section("choices", |html, id| choices(html, id, nodes, &key, large));
    blocks.section("legend", |html, id| legend(html, id, facts));
    let mut groups: BTreeMap<Option<&str>, Vec<&Node>> = BTreeMap::new();
    for node in nodes.iter().take(NODES_MAX) {
        groups.entry(key.value(node)).or_default().push(node);
    }
    for (value, nodes) in groups {
        let id = format!("group:{}", value.unwrap_or_default());
        blocks.open(&id, |html, id, rows| {
            html.raw("<section class=\"map\" id=\"").text(id).raw("\">");
            if key != GroupKey::None {
                html.raw("<h2>");
                match value {
                    Some(value) => html.text(value),
                    None => html.raw("<span class=\"quiet\">not labelled</span>"),
                };
                html.raw(" <small>");
                counted(html, nodes.len(), "node", "nodes");
                html.raw("</small></h2>");
            }
            html.raw("<ul class=\"tiles")
                .raw(if large { " large" } else { "" })
                .raw("\" id=\"")
                .text(rows)
                .raw("\">");
        });
        for node in nodes {
            tile(blocks, facts, node, large);
        }
        blocks.close("</ul></section>");
    }
    if nodes.len() > NODES_MAX {
        blocks.section("rest", |html, id| {
            html.raw("<p class=\"quiet\" id=\"").text(id).raw("\">… and ");
            counted(html, nodes.len() - NODES_MAX, "node", "nodes");
            html.raw(" more. Read <a href=\"/view.json\">view.json</a>.</p>");
        });
    }
}

/// What nodes are grouped by, with the level that was chosen.
#[derive(Debug, PartialEq, Eq)]
enum GroupKey {
    Level(Text),
    Pool,
    Model,
    None,
}

impl GroupKey {
    fn of(group: &Grouping, nodes: &[Node]) -> GroupKey {
        let outermost = || {
            nodes
                .iter()
                .find_map(|node| node.topology.first())
                .map(|domain| domain.level.clone())
        };
        match group {
            Grouping::Pool => GroupKey::Pool,
            Grouping::Model => GroupKey::Model,
            Grouping::None => GroupKey::None,
            Grouping::Level(level) if Grouping::is_outermost(level) => {
                outermost().map_or(GroupKey::None, GroupKey::Level)
            }
            Grouping::Level(level) => GroupKey::Level(level.as_str().into()),
            Grouping::Default => match outermost() {
                Some(level) => GroupKey::Level(level),
                None if nodes.iter().any(|node| node.pool.is_some()) => GroupKey::Pool,
                None => GroupKey::Model,
            },
        }
    }

    fn value<'a>(&self, node: &'a Node) -> Option<&'a str> {
        match self {
            GroupKey::Level(level) => {
                let domain = node.topology.iter().find(|domain| domain.level == *level);
                domain.map(|domain| domain.value.as_str())
            }
            GroupKey::Pool => node.pool.as_deref(),
            GroupKey::Model => node.gpu_model.as_deref(),
            GroupKey::None => None,
        }
    }
}

/// Links to other groupings and sizes.
fn choices(html: &mut Html, id: &str, nodes: &[Node], key: &GroupKey, large: bool) {
    let mut levels: Vec<&str> = Vec::new();
    for domain in nodes.iter().flat_map(|node| &node.topology) {
        if !levels.contains(&domain.level.as_str()) {
            levels.push(&domain.level);
        }
    }
    let size = if large { "&amp;cells=large" } else { "&amp;cells=small" };
    html.raw("<nav class=\"choices\" aria-label=\"Grouping and size\" id=\"")
        .text(id)
        .raw("\"><span>group by</span>");
    for level in levels {
        html.raw("<a href=\"/gpus?group=").segment(level).raw(size).raw("\"");
        html.raw(if matches!(key, GroupKey::Level(chosen) if chosen == level) {
            " aria-current=\"true\">"
        } else {
            ">"
        });
        html.text(level.rsplit('/').next().unwrap_or(level)).raw("</a>");
    }
    let fixed = [
        (GroupKey::Pool, "pool"),
        (GroupKey::Model, "model"),
        (GroupKey::None, "none"),
    ];
    for (choice, name) in fixed {
        html.raw("<a href=\"/gpus?group=").raw(name).raw(size).raw("\"");
        html.raw(if *key == choice { " aria-current=\"true\">" } else { ">" })
            .raw(name)
            .raw("</a>");
    }
    let group: &str = match key {
        GroupKey::Level(level) => level,
        GroupKey::Pool => "pool",
        GroupKey::Model => "model",
        GroupKey::None => "none",
    };
    html.raw("<span>cells</span>");
    for (name, chosen) in [("large", large), ("small", !large)] {
        html.raw("<a href=\"/gpus?group=")
            .segment(group)
            .raw("&amp;cells=")
            .raw(name)
            .raw("\"");
        html.raw(if chosen { " aria-current=\"true\">" } else { ">" })
            .raw(name)
            .raw("</a>");
    }
    html.raw("</nav>");
}

/// The colours of queues, and how states look. The module reads names of queues from it.
fn legend(html: &mut Html, id: &str, facts: &Facts<'_>) {
    html.raw("<ul class=\"legend\" id=\"").text(id).raw("\">");
    legend_queues(html, facts, |_| true);
    html.raw("<li><i class=\"sw qf\"></i>other schedulers</li>");
    if facts.view.hidden.is_some() {
        html.raw("<li><i class=\"sw qo\"></i>other work</li>");
    }
    html.raw("<li class=\"gap c\"><b></b>free</li><li class=\"c\"><a class=\"q0 pr\"></a>promised</li><li class=\"c\"><a class=\"q0 rl\"></a>ending</li>");
    html.raw("<li class=\"c\"><b class=\"held\"></b>held</li><li class=\"c\"><b class=\"ts\"></b>time-sliced</li>");
    html.raw("<li class=\"c\"><b class=\"bad\"></b>failed</li><li class=\"c\"><b class=\"unk\"></b>unknown</li></ul>");
}

/// The colours of the queues that are wanted.
pub(super) fn legend_queues(html: &mut Html, facts: &Facts<'_>, wanted: impl Fn(&Queue) -> bool) {
    let mut queues = facts.leaves().filter(|queue| wanted(queue));
    for queue in queues.by_ref().take(LEGEND_MAX) {
        html.raw("<li>");
        queue_link(html, facts, &queue.name);
        html.raw("</li>");
    }
    let rest = queues.count();
    if rest > 0 {
        html.raw("<li class=\"quiet\">and ");
        counted(html, rest, "more queue", "more queues");
        html.raw("</li>");
    }
}

/// A node with its GPUs.
pub(super) fn tile(blocks: &mut Blocks, facts: &Facts<'_>, node: &Node, large: bool) {
    blocks.row(&format!("n:{}", node.name), |html, id| {
        html.raw("<li id=\"")
            .text(id)
            .raw(if node.unified_memory { "\" class=\"um\"" } else { "\"" });
        html.raw("><a href=\"/nodes/")
            .segment(&node.name)
            .raw("\">")
            .text(&node.name)
            .raw("</a>");
        if !node.gpus.is_empty() {
            html.raw(" <small>");
            match used_gpus(node) {
                Some(used) => html.gpus(kai_view::GpuAmount { millionths: used }),
                None => html.raw("?"),
            };
            html.raw("/").show(node.gpus.len()).raw("</small>");
        }
        badges(html, node, large);
        if !node.gpus.is_empty() {
            html.raw("<div class=\"c\">");
            for gpu in facts.gpus_in_place(node) {
                if large {
                    large_cell(html, facts, node, gpu);
                } else {
                    cell(html, facts, node, gpu);
                }
            }
            html.raw("</div>");
        }
        for slices in &node.slices {
            slices_row(html, facts, slices);
            if large {
                users(html, facts, slices);
            }
        }
        html.raw("</li>");
    });
}

fn badges(html: &mut Html, node: &Node, large: bool) {
    if !node.ready {
        html.raw("<em class=\"bad\">not ready</em>");
    } else if !node.reports_readiness() {
        html.raw("<em class=\"warn\">readiness unknown</em>");
    }
    if node.cordoned {
        html.raw("<em class=\"warn\">cordoned</em>");
    }
    if node.unified_memory {
        html.raw("<em>unified memory</em>");
    }
    if let Some(strategy) = node.mig_strategy.as_ref().filter(|_| large) {
        html.raw("<em>MIG ").text(strategy).raw("</em>");
    }
    // A GPU that failed while a pod has it is drawn with its pod: the API does not tell which one it is.
    let drawn = node.gpus.iter().filter(|gpu| gpu.state == GpuState::Unhealthy).count();
    let failed = node
        .gpus_unhealthy
        .and_then(|count| usize::try_from(count).ok())
        .unwrap_or(0);
    if failed > drawn {
        html.raw("<em class=\"bad\">")
            .show(failed - drawn)
            .raw(" failed in use</em>");
    }
    if let Some(model) = node.gpu_model.as_ref().filter(|_| large) {
        html.raw("<span class=\"model\">").text(model);
        if let Some(mib) = node.gpu_memory_mib {
            html.raw(", ").mib(mib);
        }
        html.raw("</span>");
    }
}

/// Promised and leaving pods look different from running ones.
fn look(user: &GpuUser) -> &'static str {
    match user.status {
        PodStatus::Pipelined => " pr",
        PodStatus::Releasing | PodStatus::StuckInReleasing => " rl",
        _ => "",
    }
}

/// The classes `p0` to `p100` of the style sheet set a part's size.
fn percent_of(mib: Option<i64>, all: Option<i64>) -> Option<i64> {
    match (mib, all) {
        (Some(mib), Some(all)) if all > 0 => Some((mib.saturating_mul(100) / all).clamp(0, 100)),
        _ => None,
    }
}

fn cell(html: &mut Html, facts: &Facts<'_>, node: &Node, gpu: &Gpu) {
    match (gpu.state, gpu.pods.as_slice()) {
        (GpuState::Whole, [user]) => part(html, facts, user, None),
        (GpuState::Whole | GpuState::Shared, users) => {
            let percents = users.iter().map(|user| percent_of(user.mib, node.gpu_memory_mib));
            let percents: Option<Vec<i64>> = percents.collect();
            // Shares of unknown size are drawn as that, not as equal ones.
            html.raw(if percents.is_some() {
                "<span>"
            } else {
                "<span class=\"unk\">"
            });
            for (at, user) in users.iter().enumerate() {
                part(html, facts, user, percents.as_ref().map(|percents| percents[at]));
            }
            html.raw("</span>");
        }
        (state, _) => {
            html.raw("<b").raw(state_class(state)).raw("></b>");
        }
    }
}

fn state_class(state: GpuState) -> &'static str {
    match state {
        GpuState::Idle | GpuState::Whole | GpuState::Shared => "",
        GpuState::TimeSliced => " class=\"ts\"",
        GpuState::Held => " class=\"held\"",
        GpuState::Unhealthy => " class=\"bad\"",
        GpuState::Unknown => " class=\"unk\"",
    }
}

/// A pod's part of a cell. The module adds a title on demand; the node's page has the same in words.
fn part(html: &mut Html, facts: &Facts<'_>, user: &GpuUser, percent: Option<i64>) {
    let linked = !is_other_work(user) && !user.foreign;
    html.raw(if linked { "<a class=\"" } else { "<i class=\"" })
        .raw(facts.class_of(user))
        .raw(look(user));
    if let Some(percent) = percent {
        html.raw(" p").show(percent);
    }
    if linked {
        html.raw("\" tabindex=\"-1\" href=\"/pods/")
            .segment(&user.namespace)
            .raw("/")
            .segment(&user.name)
            .raw("\"></a>");
    } else {
        html.raw("\" title=\"");
        user_name(html, user);
        html.raw("\"></i>");
    }
}

/// A cell with the names of its pods.
fn large_cell(html: &mut Html, facts: &Facts<'_>, node: &Node, gpu: &Gpu) {
    let word = match gpu.state {
        GpuState::Idle => "free",
        GpuState::Whole => "whole",
        GpuState::Shared => "shared",
        GpuState::TimeSliced => "time-sliced",
        GpuState::Held => "held",
        GpuState::Unhealthy => "failed",
        GpuState::Unknown => "unknown",
    };
    html.raw("<div").raw(state_class(gpu.state)).raw("><small>").raw(word);
    if let Some(uuid) = &gpu.uuid {
        html.raw(" · ").text(uuid.get(..12).unwrap_or(uuid));
    }
    html.raw("</small><div>");
    for user in &gpu.pods {
        let whole = gpu.state == GpuState::Whole;
        let percent = if whole {
            100
        } else {
            percent_of(user.mib, node.gpu_memory_mib).unwrap_or(0)
        };
        html.raw("<p class=\"")
            .raw(facts.class_of(user))
            .raw(look(user))
            .raw(" p")
            .show(percent)
            .raw("\">");
        user_link(html, user);
        html.raw(" <small>").text(&user.namespace);
        match user.mib {
            Some(_) if whole => {}
            Some(mib) => {
                html.raw(if user.namespace.is_empty() { "" } else { " · " }).mib(mib);
            }
            None => {
                html.raw(" memory unknown");
            }
        }
        if let Some(limit) = user
            .limit_mib
            .filter(|_| !whole)
            .and_then(|mib| i64::try_from(mib).ok())
        {
            html.raw(" · limit ").mib(limit);
        }
        if user.foreign {
            html.raw(" · other scheduler");
        }
        html.raw(match look(user) {
            " pr" => " · promised",
            " rl" => " · ending",
            _ => "",
        });
        html.raw("</small></p>");
    }
    if let (GpuState::Shared, Some(used), Some(all)) = (gpu.state, gpu.used_mib, node.gpu_memory_mib)
        && all > used
    {
        html.raw("<small class=\"left\">").mib(all - used).raw(" free</small>");
    }
    html.raw("</div></div>");
}

/// The pods on slices, in words.
fn users(html: &mut Html, facts: &Facts<'_>, slices: &Slices) {
    html.raw("<ul class=\"users\">");
    for user in &slices.pods {
        html.raw("<li><i class=\"sw ")
            .raw(facts.class_of(user))
            .raw("\"></i>")
            .show(user.slices)
            .raw(" × ");
        user_link(html, user);
        html.raw(" <small>").text(&user.namespace).raw("</small></li>");
    }
    html.raw("</ul>");
}

/// The slices of one resource: narrow cells for MIG, round ones for replicas.
fn slices_row(html: &mut Html, facts: &Facts<'_>, slices: &Slices) {
    html.raw(match slices.kind {
        SlicesKind::Mig => "<div class=\"sl mig\"><small>",
        SlicesKind::Replica => "<div class=\"sl rep\"><small>",
    });
    match slices.kind {
        SlicesKind::Mig => html.text(short_resource(&slices.resource)),
        SlicesKind::Replica => html.raw("replicas"),
    };
    html.raw(" ")
        .or_unknown(slices.used)
        .raw("/")
        .show(slices.allocatable)
        .raw("</small>");
    let mut left = slices.allocatable.clamp(0, SLICES_MAX);
    for user in &slices.pods {
        for _ in 0..user.slices.min(left) {
            part(html, facts, user, None);
            left -= 1;
        }
    }
    // What is used and has no pod in the view, then what is free.
    let drawn = slices.allocatable.clamp(0, SLICES_MAX) - left;
    let held = slices.used.map(|used| (used - drawn).clamp(0, left));
    for at in 0..left {
        html.raw(match held {
            None => "<b class=\"unk\"></b>",
            Some(held) if at < held => "<b class=\"held\"></b>",
            Some(_) => "<b></b>",
        });
    }
    if slices.allocatable > SLICES_MAX {
        html.raw("<small>…</small>");
    }
    html.raw("</div>");
}
