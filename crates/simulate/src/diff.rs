//! The difference between the outcomes of an unchanged and of a changed cluster. docs/simulate.md documents its JSON form, which is stable.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::outcome::{NodeOutcome, Outcome, PodOutcome, QueueOutcome, ShareOutcome, Totals};

/// What differs between two outcomes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OutcomeDiff {
    /// The id of the scenario.
    pub id: String,
    /// The files of the scenario.
    pub files: Vec<String>,
    /// The changes, in words.
    pub changes: Vec<String>,
    /// Pods with another status or node, by namespace and name.
    pub pods: Vec<PodDiff>,
    /// Queues with other GPU amounts, in tree order.
    pub queues: Vec<QueueDiff>,
    /// Nodes with other GPUs, by name.
    pub nodes: Vec<NodeDiff>,
    /// Sums.
    pub totals: Sides<Totals>,
    /// The explanation of a pod of the changed cluster; missing if none was asked for.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "crate::outcome::explanation"
    )]
    pub explanation: Option<Result<crate::explain::PodExplanation, String>>,
}

/// A value in both outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sides<T> {
    /// In the unchanged cluster.
    pub before: T,
    /// In the changed cluster.
    pub after: T,
}

/// A pod that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PodDiff {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The pod; `None` if it does not exist.
    #[serde(flatten)]
    pub sides: Sides<Option<PodState>>,
}

/// The state of a pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodState {
    /// Status.
    pub status: &'static str,
    /// Node.
    pub node: Option<String>,
    /// Why the pod waits or was evicted.
    pub reason: Option<String>,
}

/// A queue that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueueDiff {
    /// Name.
    pub name: String,
    /// The GPUs of the queue; `None` if it does not exist.
    #[serde(flatten)]
    pub gpu: Sides<Option<ShareOutcome>>,
}

/// A node that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeDiff {
    /// Name.
    pub name: String,
    /// The GPUs of the node; `None` if it does not exist.
    #[serde(flatten)]
    pub gpus: Sides<Option<NodeGpus>>,
}

/// The GPUs of a node.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeGpus {
    /// All GPUs.
    pub gpus: usize,
    /// Free GPUs, with parts of shared ones.
    pub idle_gpus: f64,
    /// Whether the node accepts pods.
    pub ready: bool,
}

impl OutcomeDiff {
    /// Compares the outcomes of the cluster without and with the changes.
    pub fn new(changes: Vec<String>, before: &Outcome, after: &Outcome) -> OutcomeDiff {
        let of_pod = |pod: &PodOutcome| PodState {
            status: pod.status.name(),
            node: pod.node.clone(),
            reason: pod.reason.clone(),
        };
        let pods = paired(
            &before.pods,
            &after.pods,
            |pod| (pod.namespace.clone(), pod.name.clone()),
            of_pod,
        );
        // A reason alone changes with every number in it.
        let place = |state: &Option<PodState>| state.as_ref().map(|state| (state.status, state.node.clone()));
        let pods = pods
            .into_iter()
            .filter(|(_, sides)| place(&sides.before) != place(&sides.after));
        let nodes = paired(&before.nodes, &after.nodes, |node| node.name.clone(), node_gpus);
        let mut queues = paired(
            &before.queues,
            &after.queues,
            |queue| queue.name.clone(),
            |queue: &QueueOutcome| queue.gpu,
        );
        let order = after
            .queues
            .iter()
            .chain(&before.queues)
            .map(|queue| queue.name.clone());
        let queues = order.filter_map(|name| queues.remove(&name).map(|gpu| QueueDiff { name, gpu }));
        OutcomeDiff {
            id: after.id.clone(),
            files: after.files.clone(),
            changes,
            pods: pods
                .map(|((namespace, name), sides)| PodDiff { namespace, name, sides })
                .collect(),
            queues: queues.filter(|queue| queue.gpu.before != queue.gpu.after).collect(),
            nodes: nodes
                .into_iter()
                .filter(|(_, gpus)| gpus.before != gpus.after)
                .map(|(name, gpus)| NodeDiff { name, gpus })
                .collect(),
            totals: Sides {
                before: before.totals,
                after: after.totals,
            },
            explanation: after.explanation.clone(),
        }
    }

    /// Whether the changes have no effect on decisions.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.queues.is_empty() && self.nodes.is_empty()
    }
}

fn node_gpus(node: &NodeOutcome) -> NodeGpus {
    NodeGpus {
        gpus: node.devices.len(),
        idle_gpus: node.idle_gpus.as_f64(),
        ready: node.ready,
    }
}

/// The elements of both lists by key.
fn paired<T, K: Ord, V>(
    before: &[T],
    after: &[T],
    key: impl Fn(&T) -> K,
    value: impl Fn(&T) -> V,
) -> BTreeMap<K, Sides<Option<V>>> {
    let mut all: BTreeMap<K, Sides<Option<V>>> = BTreeMap::new();
    let none = || Sides {
        before: None,
        after: None,
    };
    for element in before {
        all.entry(key(element)).or_insert_with(none).before = Some(value(element));
    }
    for element in after {
        all.entry(key(element)).or_insert_with(none).after = Some(value(element));
    }
    all
}
