//! What a case says must come out of it.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Everything that is expected.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expectation {
    /// Pods by name, or by `namespace/name`.
    pub pods: BTreeMap<String, ExpectedPod>,
    /// Nodes by name.
    pub nodes: BTreeMap<String, ExpectedNode>,
    /// Sums over the whole run.
    pub totals: ExpectedTotals,
}

/// A pod that must be somewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedPod {
    /// Name of its status.
    pub status: String,
    /// Its node; `None` = any.
    pub node: Option<String>,
    /// Words that its reason must have in it; `None` = any reason, or none.
    pub reason: Option<String>,
}

/// Whole GPUs of a node after the last decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedNode {
    /// Nobody's.
    #[serde(rename = "idleGPUs")]
    pub idle_gpus: Option<i64>,
    /// Being freed.
    #[serde(rename = "releasingGPUs")]
    pub releasing_gpus: Option<i64>,
}

/// Sums that must come out.
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
    /// Whether every gang must have its minimum or nothing.
    pub gang_atomic: Option<bool>,
}

/// `expect` as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawExpect {
    pub(super) pods: Option<BTreeMap<String, ExpectedPod>>,
    pub(super) nodes: Option<BTreeMap<String, ExpectedNode>>,
}
