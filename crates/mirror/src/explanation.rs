//! An explanation as JSON: of `/explain?remedies=true` and of `kai simulate --explain`.

use std::borrow::Cow;

use kai_engine::model::GangKey;
use kai_engine::reasons::ExplanationText;
use kai_engine::remedies::{Explanation, NearestMiss, Remedy, Step, Wait};
use serde::{Deserialize, Serialize};

/// Why a gang waits and what would help. docs/explain.md documents the form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplanationView {
    /// The position among waiting gangs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<PositionView>,
    /// What a pod needs, and what is missing on the nearest nodes, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs: Option<String>,
    /// The largest request that fits now, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fits: Option<String>,
    /// The nodes on which the least is missing.
    pub nearest_nodes: Vec<NearestView>,
    /// What would help: any one of them.
    pub remedies: Vec<RemedyView>,
    /// Why there is no remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_remedy: Option<String>,
    /// Whether the budget ended before all candidates were tried.
    pub cut: bool,
    /// Cycles that were tried on copies of the cluster.
    pub trials: u32,
}

/// A position among waiting gangs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PositionView {
    /// Gangs of the same queue that come before.
    pub before_in_queue: u32,
    /// Gangs of other queues that come before.
    pub before_in_other_queues: u32,
    /// As text.
    pub text: String,
}

/// A node that can't take the pod at present.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NearestView {
    /// The node.
    pub node: String,
    /// The check that fails, as text.
    pub check: Cow<'static, str>,
    /// Whole GPUs that are free or being released.
    pub free_gpus: i64,
    /// MiB free on one GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_mib: Option<i64>,
    /// What is missing, in the unit of the check.
    pub missing: i64,
    /// The gangs that hold the most there.
    pub holders: Vec<HolderView>,
}

/// A gang that holds GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HolderView {
    /// The workload.
    pub workload: String,
    /// Its GPUs on the node.
    pub gpus: f64,
    /// Its queue.
    pub queue: String,
    /// By which rule it could lose its place.
    pub claim: Cow<'static, str>,
}

/// A remedy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemedyView {
    /// All steps, as text.
    pub text: String,
    /// Whether a trial started the gang.
    pub tried: bool,
    /// All of them are needed.
    pub steps: Vec<StepView>,
}

/// A step of a remedy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepView {
    /// The kind of step.
    pub kind: Cow<'static, str>,
    /// As text.
    pub text: String,
    /// The pod group to end, `namespace/name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_group: Option<String>,
    /// The queue to change or to create.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The resource of a bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<Cow<'static, str>>,
    /// The node to change, or like which to add nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The value at present: GPUs in millionths, milli-cores, bytes or pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<i64>,
    /// The value that suffices, or the number of objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<i64>,
    /// The time until which to wait, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<i64>,
}

impl ExplanationView {
    /// The JSON form, with these names for gangs.
    pub fn new(explanation: &Explanation, name: &dyn Fn(&GangKey) -> String) -> ExplanationView {
        let ExplanationText {
            position,
            needs,
            fits,
            remedies,
            no_remedy,
            cut: _,
        } = explanation.text(name);
        let remedies = explanation.remedies.iter().zip(remedies);
        ExplanationView {
            position: explanation.position.zip(position).map(|(position, text)| PositionView {
                before_in_queue: position.before_in_queue,
                before_in_other_queues: position.before_in_others,
                text,
            }),
            needs,
            fits,
            nearest_nodes: explanation.nearest.iter().map(|miss| nearest(miss, name)).collect(),
            remedies: remedies
                .map(|(remedy, text)| remedy_view(remedy, text.to_string(), name))
                .collect(),
            no_remedy,
            cut: explanation.is_cut,
            trials: explanation.trials,
        }
    }
}

fn nearest(miss: &NearestMiss, name: &dyn Fn(&GangKey) -> String) -> NearestView {
    let holders = miss.holders.iter().map(|holder| HolderView {
        workload: name(&holder.gang),
        gpus: holder.gpus.as_f64(),
        queue: holder.queue.clone(),
        claim: holder.claim.name().into(),
    });
    NearestView {
        node: miss.node.to_string(),
        check: miss.check.text().into(),
        free_gpus: miss.free_gpus,
        free_mib: miss.free_mib,
        missing: miss.missing,
        holders: holders.collect(),
    }
}

fn remedy_view(remedy: &Remedy, text: String, name: &dyn Fn(&GangKey) -> String) -> RemedyView {
    RemedyView {
        text,
        tried: remedy.tried,
        steps: remedy.steps.iter().map(|step| step_view(step, name)).collect(),
    }
}

fn step_view(step: &Step, name: &dyn Fn(&GangKey) -> String) -> StepView {
    let view = StepView {
        kind: step.kind().into(),
        text: step.with_names(name).to_string(),
        ..StepView::default()
    };
    match step {
        Step::End { gang, .. } => StepView {
            pod_group: Some(gang.to_string()),
            ..view
        },
        Step::Raise {
            queue,
            resource,
            from,
            to,
            ..
        } => StepView {
            queue: Some(queue.clone()),
            resource: Some(resource.name().into()),
            from: Some(*from),
            to: Some(*to),
            ..view
        },
        Step::LowerMinimum { from, to, .. } => StepView {
            from: Some(i64::from(*from)),
            to: Some(i64::from(*to)),
            ..view
        },
        Step::Uncordon(node) | Step::MakeReady { node, .. } => StepView {
            node: Some(node.to_string()),
            ..view
        },
        Step::AddNodes { count, like } => StepView {
            node: Some(like.to_string()),
            to: Some(i64::from(*count)),
            ..view
        },
        Step::RemoveGates { pods: count } | Step::CreatePods { count, .. } => StepView {
            to: Some(i64::from(*count)),
            ..view
        },
        Step::CreateQueue(queue) | Step::NameLeafQueue(queue) | Step::ChangeParent(queue) => StepView {
            queue: Some(queue.clone()),
            ..view
        },
        Step::Wait(Wait::PreemptionDelay(until) | Wait::MinRuntime(until)) => StepView {
            until_ms: Some(until.0),
            ..view
        },
        Step::MakePreemptible
        | Step::AskAtMost(_)
        | Step::Relax(_)
        | Step::CreateGang(_)
        | Step::NameSubGroup(_)
        | Step::CreateTopology { .. }
        | Step::Correct
        | Step::Wait(Wait::NextCycle | Wait::Release { .. } | Wait::LaterCycles | Wait::BackOff) => view,
    }
}
