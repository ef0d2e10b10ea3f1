//! The outcome of a scenario. docs/simulate.md documents its JSON form, which is stable.

use std::collections::BTreeMap;

use kai_engine::model::Gpus;
use kai_engine::report::Status;
use serde::{Serialize, Serializer};

/// The outcome of one scenario.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// The id of the scenario.
    pub id: String,
    /// The files of the scenario.
    pub files: Vec<String>,
    /// Pods by namespace and name.
    pub pods: Vec<PodOutcome>,
    /// Queues in tree order.
    pub queues: Vec<QueueOutcome>,
    /// Nodes by name, after the last decisions. Not in the JSON form.
    #[serde(skip)]
    pub nodes: Vec<NodeOutcome>,
    /// Sums.
    pub totals: Totals,
    /// Wall-clock times.
    pub timing: Timing,
    /// Peak memory of the process so far; missing on systems that do not report it.
    #[serde(skip_serializing_if = "Option::is_none", rename = "peakRssMiB")]
    pub peak_rss_mib: Option<f64>,
    /// Differences from the expectation; missing without a check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub differences: Option<Vec<String>>,
    /// The explanation that was asked for, or why there is none; missing if none was.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "explanation")]
    pub explanation: Option<Result<crate::explain::PodExplanation, String>>,
    /// Remarks about surprising but valid input, with the file.
    #[serde(skip)]
    pub notes: Vec<String>,
    /// Warnings about skipped or changed input, with the file.
    #[serde(skip)]
    pub warnings: crate::scenario::Warnings,
}

/// An explanation that was not found is an object with the error.
pub(crate) fn explanation<S: Serializer>(
    explanation: &Option<Result<crate::explain::PodExplanation, String>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match explanation {
        None => serializer.serialize_none(),
        Some(Ok(found)) => found.serialize(serializer),
        Some(Err(error)) => BTreeMap::from([("error", error)]).serialize(serializer),
    }
}

impl Outcome {
    /// The names of the files, shortened.
    pub fn file_names(&self) -> String {
        match self.files.as_slice() {
            [first, rest @ ..] if rest.len() > 2 => format!("{first} and {} more", rest.len()),
            few => few.join(", "),
        }
    }
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodOutcome {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Status.
    #[serde(serialize_with = "status_name")]
    pub status: Status,
    /// Node.
    pub node: Option<String>,
    /// The GPU groups of the pod.
    pub gpu_groups: Vec<String>,
    /// Why the pod waits or was evicted.
    pub reason: Option<String>,
}

fn status_name<S: Serializer>(status: &Status, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(status.name())
}

/// A queue. Amounts are in the units of the Queue API: GPUs, milli-cores, megabytes; -1 = unlimited.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueOutcome {
    /// Name.
    pub name: String,
    /// Parent.
    pub parent: Option<String>,
    /// Priority.
    pub priority: i32,
    /// GPUs.
    pub gpu: ShareOutcome,
    /// Milli-cores.
    pub cpu: ShareOutcome,
    /// Megabytes.
    pub memory: ShareOutcome,
}

/// A queue's amounts of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShareOutcome {
    /// The guaranteed amount.
    pub quota: f64,
    /// The upper bound.
    pub limit: f64,
    /// The weight in the division of resources above the quotas.
    pub over_quota_weight: f64,
    /// The fair share.
    pub fair_share: f64,
    /// The amount that the queue's pods have.
    pub allocated: f64,
    /// The part of `allocated` of non-preemptible pods.
    pub allocated_non_preemptible: f64,
    /// The amount that the queue's pods have and wait for.
    pub requested: f64,
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeOutcome {
    /// Name.
    pub name: String,
    /// Whether the node accepts pods.
    pub ready: bool,
    /// The use of each GPU.
    pub devices: Vec<Device>,
    /// Free GPUs, with parts of shared ones.
    pub idle_gpus: Gpus,
    /// GPUs of terminating pods, with parts of shared ones.
    pub releasing_gpus: Gpus,
    /// MIG slices: name, free, total.
    pub mig: Vec<(String, i64, i64)>,
    /// Milli-cores: free, total.
    pub cpu_milli: (i64, i64),
    /// Bytes: free, total.
    pub memory_bytes: (i64, i64),
}

/// The use of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// Free.
    Idle,
    /// Used by one pod.
    Whole,
    /// Shared; the used part in percent.
    Shared(u8),
}

/// Sums over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Pods bound, over all cycles.
    pub bound: u64,
    /// Pipelined pods, after the last cycle.
    pub pipelined: u64,
    /// Pods evicted, over all cycles.
    pub evicted: u64,
    /// Pending pods, after the last cycle.
    pub pending: u64,
    /// Pods of manifests that admission rejects.
    pub refused: u64,
}

/// Wall-clock times. Only decisions are in `cycle_ms`: no loading, no printing.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Timing {
    /// Reading the files and sending the objects to the engine.
    pub load_ms: f64,
    /// Each cycle.
    pub cycle_ms: Vec<f64>,
    /// Each action, over all cycles.
    pub action_ms: BTreeMap<&'static str, f64>,
}
