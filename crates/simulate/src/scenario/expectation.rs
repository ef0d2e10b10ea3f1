//! The expected result of a case.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::parse::Fields;

/// The expected result of a case.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expectation {
    /// Pods by name, or by `namespace/name`.
    pub pods: BTreeMap<String, ExpectedPod>,
    /// Nodes by name.
    pub nodes: BTreeMap<String, ExpectedNode>,
    /// Sums over the whole run.
    pub totals: ExpectedTotals,
}

/// The expected state of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedPod {
    /// The name of the status.
    pub status: String,
    /// The node; `None` = any.
    pub node: Option<String>,
    /// A part of the reason; `None` = any reason, or none.
    pub reason: Option<String>,
}

/// Whole GPUs of a node after the last decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedNode {
    /// Free GPUs.
    #[serde(rename = "idleGPUs")]
    pub idle_gpus: Option<i64>,
    /// GPUs of terminating pods.
    #[serde(rename = "releasingGPUs")]
    pub releasing_gpus: Option<i64>,
}

/// The expected sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct ExpectedTotals {
    /// Pods bound, exactly.
    pub bound: Option<u64>,
    /// Pods pipelined, exactly.
    pub pipelined: Option<u64>,
    /// Pods evicted, exactly.
    pub evicted: Option<u64>,
    /// Pods bound, at most.
    pub bound_max: Option<u64>,
    /// Whether every gang must have its minimum of pods or none.
    pub gang_atomic: Option<bool>,
}

/// The field `expect` as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawExpect {
    pub(super) pods: Option<BTreeMap<String, Fields<ExpectedPod>>>,
    pub(super) nodes: Option<BTreeMap<String, Fields<ExpectedNode>>>,
}
