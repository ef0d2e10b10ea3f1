//! Links, names and small pieces that several views share.

use kai_view::{Decision, DecisionKind, Fairness, Gang, GpuUser, PodGpus};

use crate::facts::{Facts, is_other_work};
use crate::html::Html;

/// The beginning of a section with a title.
pub(crate) fn panel(html: &mut Html, id: &str, title: &'static str) {
    html.raw("<section class=\"panel\" id=\"")
        .text(id)
        .raw("\"><h2>")
        .raw(title)
        .raw("</h2>");
}

/// The head of a view: its title, and a line of numbers by `write`.
pub(crate) fn head(html: &mut Html, id: &str, title: &str, write: impl FnOnce(&mut Html)) {
    html.raw("<header class=\"head\" id=\"")
        .text(id)
        .raw("\"><h1>")
        .text(title)
        .raw("</h1><p>");
    write(html);
    html.raw("</p></header>");
}

pub(crate) fn pod_link(html: &mut Html, namespace: &str, name: &str) {
    html.raw("<a href=\"/pods/")
        .segment(namespace)
        .raw("/")
        .segment(name)
        .raw("\">");
    html.text(namespace).raw("/").text(name).raw("</a>");
}

/// The name of a workload, with its namespace, as a link to its gang.
pub(crate) fn workload_link(html: &mut Html, gang: &Gang) {
    gang_href(html, &gang.namespace, &gang.pod_group);
    html.raw("<span class=\"kind\">")
        .text(&gang.workload_kind)
        .raw("</span> ")
        .text(&gang.workload_name)
        .raw("</a>");
}

/// The start tag of a link to a gang.
pub(crate) fn gang_href(html: &mut Html, namespace: &str, pod_group: &str) {
    html.raw("<a href=\"/gangs/")
        .segment(namespace)
        .raw("/")
        .segment(pod_group)
        .raw("\">");
}

pub(crate) fn node_link(html: &mut Html, node: &str) {
    html.raw("<a href=\"/nodes/")
        .segment(node)
        .raw("\">")
        .text(node)
        .raw("</a>");
}

/// The name of a queue with its colour, as a link to the queues.
pub(crate) fn queue_link(html: &mut Html, facts: &Facts<'_>, queue: &str) {
    html.raw("<a class=\"queue\" href=\"/queues#queue:")
        .segment(queue)
        .raw("\"><i class=\"sw ");
    html.raw(facts.palette.class(queue))
        .raw("\"></i>")
        .text(queue)
        .raw("</a>");
}

/// Who has a part of a GPU, with a link where there is a page about it; the name first, the namespace behind it.
pub(crate) fn user_link(html: &mut Html, user: &GpuUser) {
    if is_other_work(user) || user.foreign {
        html.raw("<span>").text(&user.name).raw("</span>");
    } else {
        html.raw("<a href=\"/pods/")
            .segment(&user.namespace)
            .raw("/")
            .segment(&user.name)
            .raw("\">")
            .text(&user.name)
            .raw("</a>");
    }
}

pub(crate) fn user_name(html: &mut Html, user: &GpuUser) {
    if is_other_work(user) {
        html.text(&user.name);
    } else {
        html.text(&user.namespace).raw("/").text(&user.name);
    }
}

/// The GPUs of a decision.
pub(crate) fn decision_gpus(html: &mut Html, decision: &Decision) {
    match &decision.gpus {
        Some(gpus) => pod_gpus(html, gpus),
        None => {
            html.unknown();
        }
    }
}

/// GPUs that a pod asks for.
pub(crate) fn pod_gpus(html: &mut Html, gpus: &PodGpus) {
    match gpus {
        PodGpus::None => html.raw("no GPU"),
        PodGpus::Whole { devices } => html.show(devices).raw(if *devices == 1 { " GPU" } else { " GPUs" }),
        PodGpus::Share { devices, percent, mib } => {
            match (percent, mib) {
                (Some(percent), _) => html.show(percent).raw(" % of "),
                (None, Some(mib)) => html.mib(*mib).raw(" of "),
                (None, None) => html.raw("a part of "),
            };
            match devices {
                1 => html.raw("a GPU"),
                _ => html.show(devices).raw(" GPUs"),
            }
        }
        PodGpus::Mig { slices } => {
            for (at, (resource, count)) in slices.iter().enumerate() {
                html.raw(if at == 0 { "" } else { ", " }).show(count).raw(" × ");
                html.text(short_resource(resource));
            }
            html
        }
    };
}

/// `nvidia.com/mig-1g.5gb` as `1g.5gb`.
pub(crate) fn short_resource(resource: &str) -> &str {
    let name = resource.rsplit('/').next().unwrap_or(resource);
    name.strip_prefix("mig-").unwrap_or(name)
}

/// A kind of decision as a word with its look.
pub(crate) fn decision_tag(html: &mut Html, kind: DecisionKind) {
    html.raw(match kind {
        DecisionKind::Bind => "<span class=\"tag ok\">bound</span>",
        DecisionKind::Promise => "<span class=\"tag hint\">promised</span>",
        DecisionKind::Evict => "<span class=\"tag bad\">evicted</span>",
    });
}

/// For whom and why, of an eviction; why, of others. Returns whether anything was written.
pub(crate) fn decision_cause(html: &mut Html, facts: &Facts<'_>, decision: &Decision) -> bool {
    if let Some(beneficiary) = &decision.beneficiary {
        html.raw("for ");
        gang_href(html, &beneficiary.namespace, &beneficiary.pod_group);
        html.text(&beneficiary.workload).raw("</a>");
        if let Some(queue) = &beneficiary.queue {
            html.raw(" of ");
            queue_link(html, facts, queue);
        }
    }
    if let Some(reason) = &decision.reason {
        html.raw(if decision.beneficiary.is_some() { ": " } else { "" })
            .text(reason);
    }
    let fair = why_fair(decision);
    if let Some(fair) = &fair {
        html.raw(" <span class=\"why\">").text(fair).raw("</span>");
    }
    decision.beneficiary.is_some() || decision.reason.is_some() || fair.is_some()
}

/// Why it was fair to evict the pod. Nothing is said of a reclaim or a preemption whose numbers are unknown.
fn why_fair(decision: &Decision) -> Option<String> {
    if decision.kind != DecisionKind::Evict {
        return None;
    }
    if let Some(fairness) = &decision.fairness {
        let action = match fairness {
            Fairness::OverFairShare { .. } | Fairness::OverQuota { .. } => "Reclaim",
            Fairness::Priority { .. } => "Preemption in one queue",
        };
        return Some(format!("{action}: {fairness}."));
    }
    let fair = match decision.action.as_deref()? {
        "consolidation" => "Consolidation: it is moved, so that free GPUs come together.",
        "stalegangeviction" => "Its gang ran below its minimum for too long.",
        "backgroundpods" => "Background pods make room for every other workload.",
        _ => return None,
    };
    Some(fair.to_owned())
}

/// The progress of a gang: how many pods run, start and wait, and the minimum.
pub(crate) fn progress(html: &mut Html, facts: &Facts<'_>, gang: &Gang) {
    if !facts.knows_pods_of(gang) {
        html.unknown();
        return;
    }
    let label = format!(
        "{} running, {} starting, {} waiting; minimum {}",
        gang.running, gang.starting, gang.waiting, gang.min
    );
    let max = i64::from(gang.pods.max(gang.min));
    crate::bar::Bar::begin(html, "bar small", max, &label)
        .part(i64::from(gang.running), "run")
        .part(i64::from(gang.starting), "start")
        .part(i64::from(gang.releasing), "leave")
        .mark((i64::from(gang.min) < max).then_some(i64::from(gang.min)), "line")
        .end();
    html.raw(" <span class=\"num\">")
        .show(gang.running + gang.starting)
        .raw("/")
        .show(max)
        .raw("</span>");
    if i64::from(gang.min) < max && gang.min > 1 {
        html.raw(" <small>min ").show(gang.min).raw("</small>");
    }
}

/// A length of time in one or two units.
pub(crate) fn duration(html: &mut Html, seconds: i64) {
    match seconds.max(0) {
        seconds @ ..60 => html.show(seconds).raw(" s"),
        seconds @ ..3_600 => html.show(seconds / 60).raw(" min"),
        seconds @ ..86_400 => html
            .show(seconds / 3_600)
            .raw(" h ")
            .show(seconds % 3_600 / 60)
            .raw(" min"),
        seconds => html
            .show(seconds / 86_400)
            .raw(" d ")
            .show(seconds % 86_400 / 3_600)
            .raw(" h"),
    };
}

/// How many workloads wait, as far as it is known.
pub(crate) fn count_waiting(html: &mut Html, facts: &Facts<'_>, waiting: usize, one: &'static str, many: &'static str) {
    match facts.gangs_of_unknown_pods() {
        0 => counted(html, waiting, one, many),
        // Nothing is known to wait.
        _ if waiting == 0 => {
            html.unknown().raw(" ").raw(many);
        }
        unknown => {
            counted(html, waiting, one, many);
            html.raw(", of ").show(unknown).raw(" others ").unknown();
        }
    }
}

/// A number with its noun.
pub(crate) fn counted(html: &mut Html, count: usize, one: &'static str, many: &'static str) {
    html.show(count).raw(" ").raw(if count == 1 { one } else { many });
}

/// How to see the rows that a table leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// The view can be filtered by queue.
    ByQueue,
    /// Only the JSON has them.
    InJson,
}

/// A row that says that a table ends before its data does.
pub(crate) fn rest_row(html: &mut Html, id: &str, rest: usize, how: Rest) {
    html.raw("<tr class=\"rest\" id=\"")
        .text(id)
        .raw("\"><td colspan=\"10\">… and ")
        .show(rest);
    html.raw(match how {
        Rest::ByQueue => " more. Filter by queue, or read ",
        Rest::InJson => " more. Read ",
    });
    html.raw("<a href=\"/view.json\">view.json</a>.</td></tr>");
}
