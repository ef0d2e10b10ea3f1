//! The views: functions from a view of the cluster to blocks of HTML. They read no clock.

mod decisions;
mod gang;
mod gangs;
mod gpus;
mod node;
mod nodes;
mod overview;
mod pod;
mod queues;
mod story;
mod waiting;
mod words;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use kai_view::{ClusterView, ExplanationView};

use crate::blocks::Blocks;
use crate::facts::Facts;
use crate::html::Html;
use crate::places::Order;
use crate::route::Route;
use crate::source::StoryStep;

/// Workloads, pods and decisions that a table shows at most. More rows help nobody, and when one workload starts, the positions of all behind it
/// change: a browser replaces this many rows within a tenth of a second.
pub(crate) const ROWS_MAX: usize = 300;
/// Nodes that a table shows at most.
pub(crate) const NODES_MAX: usize = 2_000;

/// Queues that a legend shows at most. There are fewer colours.
pub(crate) const LEGEND_MAX: usize = 40;

/// What a view is rendered from.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    /// The cluster, without what the caller may not see; `None` = there is none yet.
    pub(crate) view: Option<&'a ClusterView>,
    /// The places of GPUs; `None` = those of the view's lists.
    pub(crate) order: Option<&'a Order>,
    /// The namespaces that the caller may see; `None` = all.
    pub(crate) namespaces: Option<&'a BTreeSet<String>>,
    /// The steps of the playground's story.
    pub(crate) steps: &'a [StoryStep],
}

/// Renders a view.
pub(crate) fn render(route: &Route, input: Input<'_>) -> Blocks {
    let Some(view) = input.view else {
        return no_view();
    };
    let facts = Facts::new(view, input.order);
    let mut blocks = Blocks::with_capacity(capacity(route, view));
    match route {
        Route::Overview => overview::render(&mut blocks, &facts, input.steps),
        Route::Gpus { group, cells } => gpus::render(&mut blocks, &facts, group, *cells),
        Route::Queues => queues::render(&mut blocks, &facts),
        Route::Waiting { queue } => waiting::render(&mut blocks, &facts, queue.as_deref()),
        Route::Gangs { queue } => gangs::render(&mut blocks, &facts, queue.as_deref()),
        Route::Gang { namespace, pod_group } => gang::render(&mut blocks, &facts, namespace, pod_group),
        Route::Pod { namespace, name } => pod::render(&mut blocks, &facts, namespace, name),
        Route::Decisions(filter) => decisions::render(&mut blocks, &facts, filter),
        Route::Nodes => nodes::render(&mut blocks, &facts),
        Route::Node { name } => node::render(&mut blocks, &facts, name),
    }
    notices(&mut blocks, view, input.namespaces);
    blocks
}

/// What would let a pod start, as a fragment.
pub(crate) fn remedies(html: &mut Html, namespace: &str, pod: &str, explanation: Option<&ExplanationView>) {
    story::remedies(html, namespace, pod, explanation);
}

/// An estimate, so that the string rarely grows.
fn capacity(route: &Route, view: &ClusterView) -> usize {
    let count = |list: Option<usize>| list.unwrap_or(0);
    let nodes = count(view.nodes.as_ref().map(Vec::len));
    let gangs = count(view.gangs.as_ref().map(Vec::len));
    let bytes = match route {
        Route::Gpus { .. } => nodes * 1_200,
        Route::Nodes => nodes * 800,
        Route::Waiting { .. } | Route::Gangs { .. } => gangs.min(ROWS_MAX) * 900,
        Route::Decisions(_) => count(view.decisions.as_ref().map(Vec::len)).min(ROWS_MAX) * 700,
        Route::Overview | Route::Queues | Route::Gang { .. } | Route::Pod { .. } | Route::Node { .. } => 0,
    };
    bytes + 16 * 1_024
}

fn no_view() -> Blocks {
    let mut blocks = Blocks::with_capacity(512);
    blocks.section("no-view", |html, id| {
        html.raw("<section class=\"panel notice\" id=\"").text(id);
        html.raw("\"><h1>No view of the cluster</h1><p>This replica does not schedule at present, or has not read the cluster yet. ");
        html.raw("The numbers are unknown. The page shows them as soon as there are any.</p>");
        html.raw("<p>Of several replicas only the leader shows the cluster. The lease <code>kai-scheduler</code> in kai's namespace names its pod.</p></section>");
    });
    blocks
}

/// What the view leaves out, at its end.
fn notices(blocks: &mut Blocks, view: &ClusterView, namespaces: Option<&BTreeSet<String>>) {
    if !view.missing.is_empty() {
        blocks.section("missing", |html, id| {
            html.raw("<section class=\"panel notice\" id=\"").text(id);
            html.raw("\"><h2>Not everything could be read</h2><ul>");
            for missing in &view.missing {
                html.raw("<li>").show(format_args!("{:?}", missing.list)).raw(": ");
                if let Some(namespace) = &missing.only_namespace {
                    html.raw("only namespace ").text(namespace).raw("; ");
                }
                html.text(&missing.message).raw("</li>");
            }
            html.raw("</ul><p>What needs these lists is shown as unknown.</p></section>");
        });
    }
    if let Some(namespaces) = namespaces {
        blocks.section("restricted", |html, id| {
            html.raw("<section class=\"panel notice\" id=\"").text(id);
            html.raw("\"><h2>A part of the cluster</h2><p>You may list pods in ");
            match namespaces.len() {
                0 => html.raw("no namespace"),
                1 => html.raw("the namespace "),
                _ => html.raw("the namespaces "),
            };
            for (at, namespace) in namespaces.iter().enumerate() {
                html.raw(if at == 0 { "<b>" } else { ", <b>" })
                    .text(namespace)
                    .raw("</b>");
            }
            html.raw(". Work of other namespaces is shown without names");
            if let Some(hidden) = view.hidden {
                html.raw(": ")
                    .show(hidden.gangs)
                    .raw(" gangs and ")
                    .show(hidden.pods)
                    .raw(" pods are not listed");
            }
            html.raw(".</p></section>");
        });
    }
}
