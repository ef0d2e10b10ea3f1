//! The overview: GPUs, fairness, what waits and why, what changed lately.

use std::collections::BTreeMap;

use kai_view::{Gpu, GpuAmount, GpuState, GpuUser, Node, SlicesKind};

use super::gpus::legend_queues;
use super::words::{
    count_waiting, counted, decision_cause, decision_gpus, decision_tag, gang_href, head, panel, pod_link, queue_link,
};
use crate::bar::Bar;
use crate::blocks::Blocks;
use crate::facts::{Facts, is_other_work};
use crate::html::Html;
use crate::palette::{FOREIGN, OTHER};
use crate::source::StoryStep;

/// Decisions that the overview shows.
const DECISIONS_MAX: usize = 12;
/// Queues that the overview shows.
const QUEUES_MAX: usize = 40;
const MILLIONTHS: i64 = 1_000_000;

pub(crate) fn render(blocks: &mut Blocks, facts: &Facts<'_>, steps: &[StoryStep]) {
    let totals = Totals::of(facts);
    blocks.section("head", |html, id| {
        head(html, id, "Overview", |html| {
            match &facts.view.nodes {
                Some(nodes) => counted(html, nodes.len(), "node", "nodes"),
                None => {
                    html.raw("nodes ").unknown();
                }
            }
            match &facts.view.gangs {
                Some(gangs) => {
                    html.raw(" · ");
                    counted(html, gangs.len(), "workload", "workloads");
                    html.raw(" · ");
                    count_waiting(html, facts, facts.waiting_gangs().count(), "waits", "wait");
                }
                None => {
                    html.raw(" · workloads ").unknown();
                }
            }
        });
    });
    if !steps.is_empty() {
        story(blocks, steps);
    }
    gpus(blocks, facts, &totals);
    fairness(blocks, facts);
    waiting(blocks, facts);
    lately(blocks, facts);
}

/// Buttons that submit the steps of the playground's story.
fn story(blocks: &mut Blocks, steps: &[StoryStep]) {
    blocks.section("story", |html, id| {
        panel(html, id, "Try it");
        html.raw("<p>Submit the steps of the story one after the other, and see what the scheduler does.</p><ol class=\"steps\">");
        for (at, step) in steps.iter().enumerate() {
            html.raw("<li><form method=\"post\" action=\"/story/").show(at).raw("\"><button");
            html.raw(if step.submitted { " disabled>" } else { ">" });
            html.text(&step.title).raw("</button>");
            html.raw(if step.submitted { " <span class=\"tag ok\">submitted</span>" } else { "" });
            html.raw("</form></li>");
        }
        html.raw("</ol></section>");
    });
}

/// GPUs of the cluster, in millionths where they can be shared.
#[derive(Default)]
struct Totals {
    gpus: i64,
    /// By class of the colour.
    by_class: BTreeMap<&'static str, i64>,
    allocated: i64,
    free: i64,
    held: i64,
    unhealthy: Option<i64>,
    unknown: i64,
    /// GPUs on nodes that take no pods.
    unavailable: i64,
    slices: i64,
    slices_used: Option<i64>,
}

impl Totals {
    fn of(facts: &Facts<'_>) -> Totals {
        let mut totals = Totals {
            unhealthy: Some(0),
            slices_used: Some(0),
            ..Totals::default()
        };
        for node in facts.nodes() {
            totals.add(node, facts);
        }
        totals
    }

    fn add(&mut self, node: &Node, facts: &Facts<'_>) {
        self.unhealthy = self.unhealthy.zip(node.gpus_unhealthy).map(|(all, more)| all + more);
        for slices in node.slices.iter().filter(|slices| slices.kind == SlicesKind::Mig) {
            self.slices += slices.allocatable;
            self.slices_used = self.slices_used.zip(slices.used).map(|(all, more)| all + more);
        }
        let replicas = node.slices.iter().find(|slices| slices.kind == SlicesKind::Replica);
        for gpu in &node.gpus {
            self.gpus += MILLIONTHS;
            match gpu.state {
                GpuState::Idle if !node.ready || node.cordoned => self.unavailable += MILLIONTHS,
                GpuState::Idle => self.free += MILLIONTHS,
                GpuState::Held => self.held += MILLIONTHS,
                GpuState::Unknown => self.unknown += MILLIONTHS,
                GpuState::Unhealthy => {}
                GpuState::Whole | GpuState::Shared => match parts(gpu, node) {
                    Some(parts) => self.add_parts(&parts, facts),
                    None => self.unknown += MILLIONTHS,
                },
                GpuState::TimeSliced => match replicas.and_then(|all| Some((all.used?, all.allocatable))) {
                    Some((used, all)) if all > 0 => {
                        let part = used.clamp(0, all) * MILLIONTHS / all;
                        self.allocated += part;
                        self.free += MILLIONTHS - part;
                        *self.by_class.entry(FOREIGN).or_default() += part;
                    }
                    _ => self.unknown += MILLIONTHS,
                },
            }
        }
    }

    fn add_parts(&mut self, parts: &[(&GpuUser, i64)], facts: &Facts<'_>) {
        let mut used = 0;
        for (user, part) in parts {
            let part = (*part).min(MILLIONTHS - used);
            used += part;
            let class = if is_other_work(user) {
                OTHER
            } else {
                facts.class_of(user)
            };
            *self.by_class.entry(class).or_default() += part;
        }
        self.allocated += used;
        self.free += MILLIONTHS - used;
    }
}

/// The parts of a GPU that its pods hold, in millionths; `None` = unknown, since the memory of the GPU or of a pod is.
fn parts<'g>(gpu: &'g Gpu, node: &Node) -> Option<Vec<(&'g GpuUser, i64)>> {
    let part = |user: &'g GpuUser| match gpu.state {
        GpuState::Whole => Some((user, MILLIONTHS)),
        GpuState::Shared
        | GpuState::Idle
        | GpuState::TimeSliced
        | GpuState::Held
        | GpuState::Unhealthy
        | GpuState::Unknown => {
            let all = node.gpu_memory_mib.filter(|all| *all > 0)?;
            Some((user, user.mib?.saturating_mul(MILLIONTHS) / all))
        }
    };
    gpu.pods.iter().map(part).collect()
}

fn gpus(blocks: &mut Blocks, facts: &Facts<'_>, totals: &Totals) {
    blocks.section("gpus", |html, id| {
        panel(html, id, "GPUs");
        if facts.view.nodes.is_none() {
            html.raw("<p>").unknown().raw("</p></section>");
            return;
        }
        html.raw("<dl class=\"figures\">");
        let figure = |html: &mut Html, name: &'static str, class: &'static str, millionths: i64| {
            html.raw("<div class=\"")
                .raw(class)
                .raw("\"><dt>")
                .raw(name)
                .raw("</dt><dd>");
            html.gpus(GpuAmount { millionths }).raw("</dd></div>");
        };
        figure(html, "GPUs", "", totals.gpus);
        if totals.unknown == 0 || totals.unknown < totals.gpus {
            figure(html, "allocated", "", totals.allocated);
            figure(html, "free", "", totals.free);
            if totals.unknown > 0 {
                figure(html, "of unknown use", "warn", totals.unknown);
            }
        } else {
            html.raw("<div><dt>allocated</dt><dd>")
                .unknown()
                .raw("</dd></div><div><dt>free</dt><dd>")
                .unknown();
            html.raw("</dd></div>");
        }
        if totals.held > 0 {
            figure(html, "held", "", totals.held);
        }
        if totals.unavailable > 0 {
            figure(html, "idle on nodes that take no pods", "warn", totals.unavailable);
        }
        html.raw("<div class=\"")
            .raw(if totals.unhealthy.unwrap_or(1) > 0 { "bad" } else { "" });
        html.raw("\"><dt>unhealthy</dt><dd>")
            .or_unknown(totals.unhealthy)
            .raw("</dd></div>");
        if totals.slices > 0 {
            html.raw("<div><dt>MIG slices used</dt><dd>")
                .or_unknown(totals.slices_used);
            html.raw("<small> of ").show(totals.slices).raw("</small></dd></div>");
        }
        html.raw("</dl>");
        let mut bar = Bar::begin(html, "bar tall", totals.gpus, "GPUs by queue");
        for (class, amount) in &totals.by_class {
            bar = bar.part(*amount, class);
        }
        bar.part(totals.held, "held").part(totals.unknown, "unk").end();
        legend(html, facts, totals);
        html.raw("</section>");
    });
}

fn legend(html: &mut Html, facts: &Facts<'_>, totals: &Totals) {
    html.raw("<ul class=\"legend\">");
    legend_queues(html, facts, |queue| {
        totals.by_class.contains_key(facts.palette.class(&queue.name))
    });
    if totals.by_class.contains_key(FOREIGN) {
        html.raw("<li><i class=\"sw qf\"></i>time-sliced, or of other schedulers</li>");
    }
    if totals.by_class.contains_key(OTHER) {
        html.raw("<li><i class=\"sw qo\"></i>other work</li>");
    }
    if totals.held > 0 {
        html.raw("<li><i class=\"sw held\"></i>held</li>");
    }
    html.raw("<li><i class=\"sw free\"></i>free</li></ul>");
}

fn fairness(blocks: &mut Blocks, facts: &Facts<'_>) {
    blocks.open("fairness", |html, id, rows| {
        panel(html, id, "Fairness across queues");
        html.raw("<table class=\"fair\"><thead><tr><th>queue</th><th>GPUs held against fair share</th><th class=\"num\">held</th><th class=\"num\">fair share</th>");
        html.raw("<th class=\"num\">waiting</th></tr></thead><tbody id=\"").text(rows).raw("\">");
    });
    let amount = |amount: Option<GpuAmount>| amount.map_or(0, |amount| amount.millionths);
    let largest = facts.leaves().map(|queue| {
        let gpus = &queue.gpus;
        amount(gpus.used).max(amount(gpus.fair_share)).max(amount(gpus.quota))
    });
    let max = largest.max().unwrap_or(0);
    if facts.view.queues.is_none() {
        blocks.row("fair-unknown", |html, id| {
            html.raw("<tr id=\"")
                .text(id)
                .raw("\"><td colspan=\"5\">")
                .unknown()
                .raw("</td></tr>");
        });
    }
    let rest = facts.leaves().count().saturating_sub(QUEUES_MAX);
    for queue in facts.leaves().take(QUEUES_MAX) {
        blocks.row(&format!("fair:{}", queue.name), |html, id| {
            html.raw("<tr id=\"").text(id).raw("\"><td>");
            queue_link(html, facts, &queue.name);
            html.raw("</td><td>");
            super::queues::bar(html, queue, max, facts.palette.class(&queue.name));
            html.raw("</td><td class=\"num\">").gpus_or_unknown(queue.gpus.used);
            html.raw("</td><td class=\"num\">")
                .gpus_or_unknown(queue.gpus.fair_share);
            html.raw("</td><td class=\"num\">")
                .or_unknown(queue.gangs_waiting)
                .raw("</td></tr>");
        });
    }
    if rest > 0 {
        blocks.row("fair-rest", |html, id| {
            html.raw("<tr class=\"rest\" id=\"")
                .text(id)
                .raw("\"><td colspan=\"5\">… and ");
            counted(html, rest, "queue", "queues");
            html.raw(" more: <a href=\"/queues\">all queues</a></td></tr>");
        });
    }
    blocks.close("</tbody></table><p class=\"key\"><i class=\"sw over\"></i>above quota, <i class=\"ln quota\"></i>quota, <i class=\"ln fairline\"></i>fair share</p></section>");
}

fn waiting(blocks: &mut Blocks, facts: &Facts<'_>) {
    // By reason: gangs and pods.
    let mut reasons: BTreeMap<&str, (usize, u32)> = BTreeMap::new();
    for gang in facts.waiting_gangs() {
        let class = match gang.reason.as_deref() {
            Some(reason) => reason_class(reason),
            None if !facts.view.is_complete() => "unknown",
            None => "not tried yet",
        };
        let (gangs, pods) = reasons.entry(class).or_default();
        *gangs += 1;
        *pods += gang.waiting;
    }
    blocks.open("reasons", |html, id, rows| {
        panel(html, id, "Waiting, by reason");
        html.raw("<table class=\"reasons\"><thead><tr><th>reason</th><th class=\"num\">workloads</th><th class=\"num\">pods</th></tr></thead><tbody id=\"");
        html.text(rows).raw("\">");
    });
    let unknown = facts.gangs_of_unknown_pods() > 0;
    let text = match (&facts.view.gangs, reasons.is_empty()) {
        (None, _) => Some("unknown"),
        (Some(_), true) if unknown => Some("What waits is unknown: pods could not be read."),
        (Some(_), true) => Some("Nothing waits."),
        (Some(_), false) if unknown => Some("Of some workloads it is unknown whether they wait."),
        (Some(_), false) => None,
    };
    if let Some(text) = text {
        blocks.row("no-reasons", |html, id| {
            html.raw("<tr id=\"")
                .text(id)
                .raw("\"><td colspan=\"3\" class=\"quiet\">")
                .raw(text)
                .raw("</td></tr>");
        });
    }
    for (reason, (gangs, pods)) in reasons {
        blocks.row(&format!("reason:{reason}"), |html, id| {
            html.raw("<tr id=\"")
                .text(id)
                .raw("\"><td><a href=\"/waiting\">")
                .text(reason);
            html.raw("</a></td><td class=\"num\">")
                .show(gangs)
                .raw("</td><td class=\"num\">")
                .show(pods)
                .raw("</td></tr>");
        });
    }
    blocks.close("</tbody></table></section>");
}

/// The kind of a reason: its text up to the numbers and names.
fn reason_class(reason: &str) -> &str {
    const CLASSES: [(&str, &str); 10] = [
        ("no nodes with enough resources", "no node has enough free resources"),
        ("only ", "only a part of the gang fits"),
        ("over the limit of queue", "over the limit of its queue"),
        (
            "non-preemptible and over the quota",
            "non-preemptible and over the quota of its queue",
        ),
        (
            "the core is non-preemptible and over the quota",
            "the core is non-preemptible and over the quota of its queue",
        ),
        ("waits for pods to leave", "promised a place; waits for pods to leave"),
        ("the gang has ", "pods of the gang are missing"),
        ("may not evict others before", "may not evict others yet"),
        ("binding to node", "the binding failed and is tried again"),
        ("queue ", "its queue is missing or not allowed"),
    ];
    let known = CLASSES.iter().find(|(prefix, _)| reason.starts_with(prefix));
    match known {
        Some((_, class)) => class,
        None => reason.split([':', ';', '(']).next().unwrap_or(reason).trim(),
    }
}

fn lately(blocks: &mut Blocks, facts: &Facts<'_>) {
    blocks.open("lately", |html, id, rows| {
        panel(html, id, "Lately");
        html.raw("<ol class=\"log\" id=\"").text(rows).raw("\">");
    });
    let text = match &facts.view.decisions {
        None => Some("Decisions are unknown here: only the scheduler has them."),
        Some(decisions) if decisions.is_empty() => Some("Nothing was decided in the last hour."),
        Some(_) => None,
    };
    if let Some(text) = text {
        blocks.row("no-decisions", |html, id| {
            html.raw("<li class=\"quiet\" id=\"")
                .text(id)
                .raw("\">")
                .raw(text)
                .raw("</li>");
        });
    }
    for decision in facts.view.decisions.iter().flatten().take(DECISIONS_MAX) {
        blocks.row(&format!("decision:{}", decision.number), |html, id| {
            html.raw("<li id=\"")
                .text(id)
                .raw("\">")
                .time(decision.time)
                .raw("<div>");
            decision_tag(html, decision.kind);
            html.raw(" ");
            match &decision.pod_group {
                Some(pod_group) => {
                    gang_href(html, &decision.namespace, pod_group);
                    html.text(&decision.workload).raw("</a> (").text(&decision.namespace);
                    // A decision that is read from an event of a workload names no pod.
                    if !decision.pod.is_empty() {
                        html.raw("/").text(&decision.pod);
                    }
                    html.raw(")");
                }
                None => pod_link(html, &decision.namespace, &decision.pod),
            }
            html.raw(", ");
            decision_gpus(html, decision);
            if let Some(node) = &decision.node {
                html.raw(" on ").text(node);
            }
            html.raw("<div class=\"cause\">");
            decision_cause(html, facts, decision);
            html.raw("</div></div></li>");
        });
    }
    blocks.close("</ol><p class=\"more\"><a href=\"/decisions\">All decisions</a></p></section>");
}
