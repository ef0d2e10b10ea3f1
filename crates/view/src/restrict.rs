//! A view for people who may see only some namespaces: it has no name of a pod, gang or workload in another one. What other namespaces
//! hold stays visible as amounts, since people must see why a GPU is not free.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use kai_mirror::{ExplanationView, StepView};
use serde::{Deserialize, Serialize};

use crate::foreign_names::{NameFilter, OTHER_WORK, is_plain_name};
use crate::{ClusterView, Decision, GpuUser, NodeCondition, PodStatus, Text};

/// How much a restricted view leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hidden {
    /// Gangs of other namespaces.
    pub gangs: u32,
    /// Pods of other namespaces.
    pub pods: u32,
}

impl ClusterView {
    /// The view without the names of pods, gangs and workloads in namespaces other than these. Gangs, pods and decisions of the others are
    /// left out; on GPUs and slices they are one user without a namespace, called [`OTHER_WORK`]. Nodes and queues stay.
    pub fn restricted_to(&self, namespaces: &BTreeSet<String>) -> ClusterView {
        let filter = self.name_filter(namespaces);
        let clean = |reason: &Option<Text>| reason.as_ref().map(|text| clean_text(&filter, text));
        let mut hidden = Hidden::default();
        let gangs = self.gangs.as_ref().map(|gangs| {
            let own = gangs
                .iter()
                .filter(|gang| namespaces.contains(gang.namespace.as_str()))
                .cloned();
            let mut own: Vec<_> = own.collect();
            own.iter_mut().for_each(|gang| gang.reason = clean(&gang.reason));
            hidden.gangs = count(gangs.len() - own.len());
            own
        });
        let pods = self.pods.as_ref().map(|pods| {
            let own = pods
                .iter()
                .filter(|pod| namespaces.contains(pod.namespace.as_str()))
                .cloned();
            let mut own: Vec<_> = own.collect();
            own.iter_mut().for_each(|pod| pod.reason = clean(&pod.reason));
            hidden.pods = count(pods.len() - own.len());
            own
        });
        let mut nodes = self.nodes.clone();
        for node in nodes.iter_mut().flatten() {
            let of_gpus = node.gpus.iter_mut().map(|gpu| &mut gpu.pods);
            let of_slices = node.slices.iter_mut().map(|slices| &mut slices.pods);
            of_gpus
                .chain(of_slices)
                .for_each(|users| merge_foreign(users, namespaces));
            // The node agent names containers whose limits are lost.
            node.gpu_enforcement.message = clean(&node.gpu_enforcement.message);
            node.conditions = node
                .conditions
                .iter()
                .map(|condition| restricted_condition(condition, &filter))
                .collect();
        }
        let decisions = self.decisions.as_ref().map(|decisions| {
            let own = decisions
                .iter()
                .filter(|decision| namespaces.contains(&decision.namespace));
            own.map(|decision| restricted_decision(decision, &filter)).collect()
        });
        ClusterView {
            version: self.version.clone(),
            time: self.time,
            missing: self.missing.clone(),
            nodes,
            queues: self.queues.clone(),
            gangs,
            pods,
            decisions,
            hidden: Some(hidden),
        }
    }

    /// The explanation of a waiting pod of this view, without the names in namespaces other than these.
    pub fn restricted_explanation(
        &self,
        explanation: &ExplanationView,
        namespaces: &BTreeSet<String>,
    ) -> ExplanationView {
        let filter = self.name_filter(namespaces);
        let clean = |text: &mut String| *text = filter.clean(text).into_owned();
        let mut restricted = explanation.clone();
        restricted
            .position
            .iter_mut()
            .for_each(|position| clean(&mut position.text));
        let texts = [&mut restricted.needs, &mut restricted.fits, &mut restricted.no_remedy];
        texts.into_iter().flatten().for_each(clean);
        for node in &mut restricted.nearest_nodes {
            for holder in &mut node.holders {
                if filter.clean(&holder.workload) != holder.workload {
                    holder.workload = OTHER_WORK.to_owned();
                }
            }
        }
        for remedy in &mut restricted.remedies {
            clean(&mut remedy.text);
            for StepView { text, pod_group, .. } in &mut remedy.steps {
                clean(text);
                let namespace = pod_group.as_deref().and_then(|key| key.split_once('/'));
                if namespace.is_some_and(|(namespace, _)| !namespaces.contains(namespace)) {
                    *pod_group = None;
                }
            }
        }
        restricted
    }

    fn name_filter<'a>(&self, namespaces: &'a BTreeSet<String>) -> NameFilter<'a> {
        let gangs = self.gangs.iter().flatten();
        let mut foreign = gangs.filter(|gang| !namespaces.contains(gang.namespace.as_str()));
        let is_odd = |words: &str| !words.split(' ').all(is_plain_name);
        NameFilter {
            namespaces,
            // Without the list of gangs nobody knows.
            has_odd_names: self.gangs.is_none()
                || foreign.any(|gang| is_odd(&gang.workload_kind) || !is_plain_name(&gang.workload_name)),
        }
    }
}

/// The text without foreign names; the same text where it has none.
fn clean_text(filter: &NameFilter<'_>, text: &Text) -> Text {
    match filter.clean(text) {
        Cow::Borrowed(clean) if *text == clean => text.clone(),
        clean => clean.as_ref().into(),
    }
}

fn restricted_condition(condition: &NodeCondition, filter: &NameFilter<'_>) -> NodeCondition {
    NodeCondition {
        message: condition.message.as_ref().map(|text| clean_text(filter, text)),
        ..condition.clone()
    }
}

/// Numbers of objects of a cluster are far below the maximum.
fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Replaces the users of other namespaces by one, at the place of the first of them.
fn merge_foreign(users: &mut Vec<GpuUser>, namespaces: &BTreeSet<String>) {
    let is_own = |user: &GpuUser| namespaces.contains(user.namespace.as_str());
    let Some(at) = users.iter().position(|user| !is_own(user)) else {
        return;
    };
    let foreign: Vec<GpuUser> = users.extract_if(at.., |user| !is_own(user)).collect();
    let status = |first: &GpuUser| {
        let is_common = foreign.iter().all(|user| user.status == first.status);
        if is_common { first.status } else { PodStatus::Running }
    };
    let other_work = GpuUser {
        namespace: Text::default(),
        name: OTHER_WORK.into(),
        status: foreign.first().map_or(PodStatus::Running, status),
        foreign: foreign.iter().all(|user| user.foreign),
        // Unknown as soon as one of them is.
        mib: foreign
            .iter()
            .try_fold(0_i64, |sum, user| Some(sum.saturating_add(user.mib?))),
        limit_mib: None,
        slices: foreign.iter().fold(0, |sum, user| sum.saturating_add(user.slices)),
    };
    users.insert(at, other_work);
}

/// The decision without foreign names; the same value where it has none.
fn restricted_decision(decision: &Arc<Decision>, filter: &NameFilter<'_>) -> Arc<Decision> {
    let mut shared = Arc::clone(decision);
    let beneficiary = decision.beneficiary.as_ref();
    let is_foreign = beneficiary.is_some_and(|gang| !filter.namespaces.contains(&gang.namespace));
    if is_foreign {
        // Not the name of the workload, which may be odd and is gone from the list of gangs by now.
        let action = decision.action.as_deref().unwrap_or("eviction");
        let restricted = Arc::make_mut(&mut shared);
        restricted.reason = Some(format!("evicted for {OTHER_WORK} ({action})"));
        restricted.beneficiary = None;
    } else if let Some(reason) = &decision.reason {
        let clean = filter.clean(reason);
        if clean != reason.as_str() {
            Arc::make_mut(&mut shared).reason = Some(clean.into_owned());
        }
    }
    if let Some(reason) = &decision.waiting_reason {
        let clean = filter.clean(reason);
        if clean != reason.as_str() {
            Arc::make_mut(&mut shared).waiting_reason = Some(clean.into_owned());
        }
    }
    shared
}
