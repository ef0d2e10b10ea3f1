//! A pod: its facts and its story.

use std::sync::Arc;

use kai_view::{Decision, Gpu, Pod};

use super::gang::{status, unknown_decisions};
use super::story::{self, Story};
use super::waiting;
use super::words::{head, panel, queue_link, workload_link};
use crate::blocks::Blocks;
use crate::facts::Facts;
use crate::html::Html;

pub(crate) fn render(blocks: &mut Blocks, facts: &Facts<'_>, namespace: &str, name: &str) {
    let decisions = facts.view.decisions.iter().flatten().map(Arc::as_ref);
    let of_pod = |decision: &&Decision| decision.namespace == namespace && decision.pod == name;
    let decisions: Vec<&Decision> = decisions.filter(of_pod).collect();
    let Some(pod) = facts.pod(namespace, name) else {
        return gone(blocks, facts, namespace, name, &decisions);
    };
    let gang = pod
        .pod_group
        .as_deref()
        .and_then(|pod_group| facts.gang(namespace, pod_group));
    blocks.section("head", |html, id| {
        head(html, id, name, |html| {
            html.raw("pod in namespace ").text(namespace).raw(" · ");
            status(html, pod.status);
        });
    });
    blocks.section("facts", |html, id| {
        html.raw("<section class=\"panel\" id=\"")
            .text(id)
            .raw("\"><dl class=\"facts\">");
        if let Some(gang) = gang {
            html.raw("<dt>workload</dt><dd>");
            workload_link(html, gang);
            html.raw("</dd><dt>queue</dt><dd>");
            queue_link(html, facts, &gang.queue);
            html.raw("</dd>");
        }
        story::pod_facts(html, pod);
        gpus_of(html, facts, pod);
        if let Some(gang) = gang.filter(|_| pod.waits()) {
            html.raw("<dt>why it waits</dt><dd>");
            waiting::reason(html, facts, pod.reason.as_deref());
            waiting::help_link(html, facts, gang);
            html.raw("</dd>");
        }
        html.raw("</dl></section>");
    });
    blocks.section("story", |html, id| {
        panel(html, id, "Story");
        let mut story = Story::new();
        story.add(Some(pod.created), "", |html| {
            html.raw("<b>Created</b>");
        });
        if let Some(gang) = gang {
            story::add_beginning(&mut story, facts, gang);
        }
        story::add_wait(&mut story, pod, &decisions);
        let bound = story::bound_at(pod, &decisions);
        if bound.is_some() {
            story::add_reserved(&mut story, pod, bound);
        }
        story.add_decisions(facts, &decisions, false);
        if bound.is_none() {
            story::add_reserved(&mut story, pod, None);
        }
        story::add_present(&mut story, gang, pod);
        story.write(html);
        unknown_decisions(html, facts);
        html.raw("</section>");
    });
}

/// The GPUs that the pod has, where their UUIDs or neighbours are known.
fn gpus_of(html: &mut Html, facts: &Facts<'_>, pod: &Pod) {
    let node = pod
        .node
        .as_ref()
        .and_then(|name| facts.nodes().iter().find(|node| node.name == *name));
    let Some(node) = node else { return };
    let has = |gpu: &&Gpu| {
        gpu.pods
            .iter()
            .any(|user| user.name == pod.name && user.namespace == pod.namespace)
    };
    for gpu in node.gpus.iter().filter(has).filter(|gpu| gpu.gpu_group.is_some()) {
        html.raw("<dt>GPU</dt><dd>");
        match &gpu.uuid {
            Some(uuid) => html.text(uuid),
            None => html.raw("its UUID is ").unknown(),
        };
        let others = gpu.pods.len().saturating_sub(1);
        if others > 0 {
            html.raw(", shared with ")
                .show(others)
                .raw(if others == 1 { " other" } else { " others" });
        }
        html.raw("</dd>");
    }
}

/// A pod that is not there any more may still have decisions.
fn gone(blocks: &mut Blocks, facts: &Facts<'_>, namespace: &str, name: &str, decisions: &[&Decision]) {
    blocks.section("head", |html, id| {
        head(html, id, name, |html| {
            html.raw("pod in namespace ").text(namespace).raw(" · ");
            match &facts.view.pods {
                Some(_) => html.raw("There is no such pod of this scheduler, or you may not see it."),
                None => html.unknown(),
            };
        });
    });
    if !decisions.is_empty() {
        blocks.section("story", |html, id| {
            panel(html, id, "Story");
            let mut story = Story::new();
            story.add_decisions(facts, decisions, false);
            story.write(html);
            html.raw("</section>");
        });
    }
}
