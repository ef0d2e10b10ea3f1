//! What came out of a scenario, as values. The JSON form is documented in docs/simulate.md and is stable.

use std::collections::BTreeMap;

use kai_engine::model::Gpus;
use kai_engine::report::Status;
use serde::{Serialize, Serializer};

/// A scenario that was run.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// The scenario.
    pub id: String,
    /// The files it was read from.
    pub files: Vec<String>,
    /// Pods by namespace and name.
    pub pods: Vec<PodOutcome>,
    /// Queues in tree order.
    pub queues: Vec<QueueOutcome>,
    /// Nodes by name, after the last decisions. For tables; the JSON form does without.
    #[serde(skip)]
    pub nodes: Vec<NodeOutcome>,
    /// Sums.
    pub totals: Totals,
    /// How long it took.
    pub timing: Timing,
    /// Peak memory of the process so far; missing where the system does not tell.
    #[serde(skip_serializing_if = "Option::is_none", rename = "peakRssMiB")]
    pub peak_rss_mib: Option<f64>,
    /// Differences from what was expected; missing when nothing was checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub differences: Option<Vec<String>>,
    /// What is not as one might think, with the file; nothing is wrong about it.
    #[serde(skip)]
    pub notes: Vec<String>,
    /// What was skipped or changed on the way in, with the file.
    #[serde(skip)]
    pub warnings: crate::scenario::Warnings,
}

impl Outcome {
    /// The files in a few words.
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
    /// GPU groups it shares.
    pub gpu_groups: Vec<String>,
    /// Why it waits or was evicted.
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

/// What a queue has of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShareOutcome {
    /// Guaranteed.
    pub quota: f64,
    /// Upper bound.
    pub limit: f64,
    /// Weight above the quota.
    pub over_quota_weight: f64,
    /// What fair division gives it.
    pub fair_share: f64,
    /// What its pods have.
    pub allocated: f64,
    /// The part of it that can't be taken back.
    pub allocated_non_preemptible: f64,
    /// What its pods have and wait for.
    pub requested: f64,
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeOutcome {
    /// Name.
    pub name: String,
    /// Whether it takes pods.
    pub ready: bool,
    /// One per device: how much of it is used, in percent.
    pub devices: Vec<Device>,
    /// Free GPUs, parts included.
    pub idle_gpus: Gpus,
    /// GPUs being freed, parts included.
    pub releasing_gpus: Gpus,
    /// MIG slices: name, free, all.
    pub mig: Vec<(String, i64, i64)>,
    /// Milli-cores: free, all.
    pub cpu_milli: (i64, i64),
    /// Bytes: free, all.
    pub memory_bytes: (i64, i64),
}

/// A device of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// Nobody's.
    Idle,
    /// Taken whole.
    Whole,
    /// Shared; so many percent of it are taken.
    Shared(u8),
}

/// Sums over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Pods bound, over all cycles.
    pub bound: u64,
    /// Pods with a place that is not free yet, after the last cycle.
    pub pipelined: u64,
    /// Pods evicted, over all cycles.
    pub evicted: u64,
    /// Pods that wait without a place, after the last cycle.
    pub pending: u64,
    /// Pods of manifests that admission refuses.
    pub refused: u64,
}

/// Wall-clock times. Only decisions are in `cycle_ms`: no loading, no printing.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Timing {
    /// Reading the file and telling the engine.
    pub load_ms: f64,
    /// Each cycle.
    pub cycle_ms: Vec<f64>,
    /// Each action, over all cycles.
    pub action_ms: BTreeMap<&'static str, f64>,
}
