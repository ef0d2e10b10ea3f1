//! Nodes.

use std::sync::Arc;

use kai_engine::model::{
    EnforcementTier, FractioningCondition, MemoryKind, MigStrategy, NodeCondition, NodeSpec, Taint, TaintEffect,
};
use serde::{Deserialize, Deserializer};

use crate::error::FieldError;
use crate::gpu_memory::normalise_gpu_memory_mib;
use crate::metadata::Metadata;
use crate::resources::{CPU, MEMORY, POD_SLOTS_MAX, PODS, RawResources, Rounding, amount};
use crate::text::{Text, TextMap, null_as_default};
use crate::{Error, Problem, Quantity, QuantityText, Read, keys};

const SKIPPED: &str = "the node is skipped";
const NO_RESOURCE: &str = "the node has none of it";
const NO_LABEL: &str = "the label is ignored";
/// The kubelet's default for `pods`, for nodes that do not report it.
const POD_SLOTS_DEFAULT: i64 = 110;
/// Bytes of a condition's message that are kept. The doctor's findings have up to 400 characters; other components write whole logs.
const CONDITION_BYTES_MAX: usize = 1_024;

/// A Node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    /// The kind as written; `None` in items of a list, which leaves it out.
    pub kind: Option<Text>,
    /// Metadata.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "null_as_default")]
    spec: Spec,
    #[serde(deserialize_with = "null_as_default")]
    status: Status,
}

crate::object::object!(Node, "", "v1", "Node", "nodes", Cluster);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    unschedulable: Option<bool>,
    #[serde(deserialize_with = "null_as_default")]
    taints: Vec<RawTaint>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct RawTaint {
    key: Option<Text>,
    value: Option<Text>,
    effect: Option<Text>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    allocatable: Option<RawResources>,
    capacity: Option<RawResources>,
    #[serde(deserialize_with = "shared_conditions")]
    conditions: Arc<[Condition]>,
}

/// A condition of a node. Its times are not kept: kubelets write them every few minutes, and nobody reads them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Condition {
    #[serde(rename = "type")]
    kind: Option<Text>,
    status: Option<Text>,
    /// Reason in one word.
    #[serde(deserialize_with = "short_text")]
    pub reason: Option<Text>,
    /// Message for people. A long one is cut and ends in `…`.
    #[serde(deserialize_with = "short_text")]
    pub message: Option<Text>,
}

impl Condition {
    /// Type, such as `Ready`; empty if missing.
    pub fn kind(&self) -> &str {
        self.kind.as_deref().unwrap_or_default()
    }

    /// `True`, `False` or `Unknown`.
    pub fn status(&self) -> &str {
        self.status.as_deref().unwrap_or("Unknown")
    }
}

fn shared_conditions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[Condition]>, D::Error> {
    null_as_default::<Vec<Condition>, D>(deserializer).map(Arc::from)
}

/// A text of at most [`CONDITION_BYTES_MAX`]; a longer one ends in `…`. The usual texts of kubelets are short and equal on all nodes, so
/// that thousands of nodes share them.
fn short_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Text>, D::Error> {
    let text = Option::<Text>::deserialize(deserializer)?;
    Ok(text.filter(|text| !text.is_empty()).map(|text| {
        if text.len() <= CONDITION_BYTES_MAX {
            return text;
        }
        let starts = text.char_indices().map(|(at, _)| at);
        let end = starts.take_while(|at| *at <= CONDITION_BYTES_MAX).last().unwrap_or(0);
        Text::from(format!("{}…", &text[..end]))
    }))
}

impl Node {
    /// Whether the node is cordoned.
    pub fn is_unschedulable(&self) -> bool {
        self.spec.unschedulable == Some(true)
    }

    /// The conditions, shared: the mirror keeps them too.
    pub fn conditions(&self) -> &Arc<[Condition]> {
        &self.status.conditions
    }

    /// Whether the condition `Ready` is true.
    pub fn is_ready(&self) -> bool {
        let mut conditions = self.status.conditions.iter();
        conditions.any(|condition| (condition.kind(), condition.status()) == ("Ready", "True"))
    }

    /// The allocatable resources, or the capacity of a node that reports none.
    pub fn allocatable(&self) -> Option<&TextMap<QuantityText>> {
        self.status.allocatable.as_ref().or(self.status.capacity.as_ref())
    }

    /// Whether the kubelet has reported the capacity.
    pub fn reports_capacity(&self) -> bool {
        self.status.capacity.is_some()
    }

    /// The capacity of a resource in whole units, with unhealthy devices; `None` if missing or invalid.
    pub fn capacity(&self, resource: &str) -> Option<i64> {
        let text = self.status.capacity.as_ref()?.get(resource)?;
        Quantity::parse(&text.0).ok().map(Quantity::units_down)
    }

    /// The platform in the node agent's label.
    pub fn platform(&self) -> Option<&str> {
        self.metadata.labels.text(keys::NODE_PLATFORM)
    }

    /// The engine's type; `Err` if the engine can't take the node. Whether [`Node::fractioning_condition`] counts depends on the mode of
    /// GPU sharing: the caller sets it.
    pub fn read(&self) -> Result<Read<NodeSpec>, Problem> {
        self.read_with_mig_label(keys::NODE_MIG_ENABLED)
    }

    /// [`Node::read`] with another label that says whether MIG is enabled.
    pub fn read_with_mig_label(&self, mig_label: &str) -> Result<Read<NodeSpec>, Problem> {
        let object = || format!("Node {}", self.metadata.plain_name());
        let name = self
            .metadata
            .required_name()
            .map_err(|error| error.of(object(), SKIPPED))?;
        let mut problems = Vec::new();
        let mut value = NodeSpec {
            name: name.to_owned(),
            labels: self.metadata.labels.to_labels(),
            taints: Vec::new(),
            unschedulable: self.spec.unschedulable.unwrap_or(false),
            conditions: self.conditions_against(),
            cpu_milli: 0,
            memory_bytes: 0,
            gpus: 0,
            pods: POD_SLOTS_DEFAULT,
            extended: Vec::new(),
            gpu_count_label: None,
            gpu_memory_mib: None,
            gpu_memory_kind: MemoryKind::Dedicated,
            mig_enabled: false,
            mig_strategy: MigStrategy::None,
            enforcement: EnforcementTier::None,
            fractioning: FractioningCondition::Met,
        };
        self.read_taints(&mut value, |error| problems.push(error.of(object(), NO_LABEL)));
        self.read_resources(&mut value, |error| problems.push(error.of(object(), NO_RESOURCE)));
        self.read_labels(&mut value, |error| problems.push(error.of(object(), NO_LABEL)));
        self.read_mig(&mut value, mig_label);
        match self.enforcement() {
            Ok(tier) => value.enforcement = tier,
            Err(error) => problems.push(error.of(object(), NO_LABEL)),
        }
        Ok(Read { value, problems })
    }

    /// What keeps pods away from the node. A missing condition counts as healthy.
    fn conditions_against(&self) -> Vec<NodeCondition> {
        let mut found: Vec<NodeCondition> = Vec::new();
        for condition in self.status.conditions.iter() {
            let (kind, healthy) = match condition.kind() {
                "Ready" => (NodeCondition::NotReady, "True"),
                "MemoryPressure" => (NodeCondition::MemoryPressure, "False"),
                "DiskPressure" => (NodeCondition::DiskPressure, "False"),
                "PIDPressure" => (NodeCondition::PidPressure, "False"),
                "NetworkUnavailable" => (NodeCondition::NetworkUnavailable, "False"),
                _ => continue,
            };
            if condition.status() != healthy {
                found.push(kind);
            }
        }
        if self.is_leaving() {
            found.push(NodeCondition::Leaving);
        }
        found.sort();
        found.dedup();
        found
    }

    /// Whether the node is being removed: it was deleted and waits for its finalizers, or has one of [`keys::LEAVING_TAINTS`]. The
    /// autoscaler's taint of candidates has the effect PreferNoSchedule, and counts as any such taint.
    fn is_leaving(&self) -> bool {
        let mut taints = self.spec.taints.iter();
        self.metadata.is_terminating()
            || taints.any(|taint| {
                taint
                    .key
                    .as_deref()
                    .is_some_and(|key| keys::LEAVING_TAINTS.contains(&key))
            })
    }

    fn read_taints(&self, node: &mut NodeSpec, mut report: impl FnMut(FieldError)) {
        for (at, taint) in self.spec.taints.iter().enumerate() {
            let effect = taint.effect.as_deref().unwrap_or_default();
            let Some(effect) = taint_effect(effect) else {
                let error = Error::Unknown {
                    text: effect.to_owned(),
                    known: TAINT_EFFECTS,
                };
                report(FieldError::new(format!("spec.taints[{at}].effect"), error));
                continue;
            };
            node.taints.push(Taint {
                key: taint.key.as_deref().unwrap_or_default().to_owned(),
                value: taint.value.as_deref().unwrap_or_default().to_owned(),
                effect,
            });
        }
    }

    fn read_resources(&self, node: &mut NodeSpec, mut report: impl FnMut(FieldError)) {
        // A node without `allocatable` offers its capacity.
        let (list, field) = match (&self.status.allocatable, &self.status.capacity) {
            (Some(list), _) => (list, "status.allocatable"),
            (None, Some(list)) => (list, "status.capacity"),
            (None, None) => return,
        };
        for (name, raw) in list.iter() {
            let amount = match amount(name, &raw.0, Rounding::Offered) {
                Ok(amount) => amount,
                Err(error) => {
                    report(FieldError::new(format!("{field}.{name}"), error));
                    continue;
                }
            };
            match name {
                CPU => node.cpu_milli = amount,
                MEMORY => node.memory_bytes = amount,
                PODS => node.pods = amount,
                keys::RESOURCE_GPU => node.gpus = amount,
                _ => node.extended.push((name.to_owned(), amount)),
            }
        }
        // GPUs of other vendors also count under their resource name, so that the engine does not overcommit one vendor's GPUs. They are not
        // added to NVIDIA's: a pod that requests those could be placed on another vendor's.
        if list.get(keys::RESOURCE_GPU).is_none() {
            let others = node.extended.iter().filter(|(name, _)| keys::is_gpu_resource(name));
            node.gpus = others.map(|(_, amount)| amount).sum();
        }
        // The kubelet checks share devices only on nodes that report the resource (0 if the node agent is gone); so does the engine.
        if list.get(keys::RESOURCE_GPU_SHARE).is_none() {
            node.extended.push((keys::RESOURCE_GPU_SHARE.to_owned(), POD_SLOTS_MAX));
        }
        node.extended.sort();
        node.extended.dedup_by(|a, b| a.0 == b.0);
    }

    fn read_labels(&self, node: &mut NodeSpec, mut report: impl FnMut(FieldError)) {
        let label = |key: &str| self.metadata.labels.text(key);
        let field = |key: &str| format!("metadata.labels.{key}");
        if let Some(text) = label(keys::NODE_GPU_COUNT) {
            match text.parse::<i64>() {
                Ok(count) if (0..=crate::resources::GPUS_MAX).contains(&count) => node.gpu_count_label = Some(count),
                _ => report(FieldError::new(
                    field(keys::NODE_GPU_COUNT),
                    Error::NotAnInteger(text.to_owned()),
                )),
            }
        }
        if let Some(text) = label(keys::NODE_GPU_MEMORY) {
            node.gpu_memory_mib = normalise_gpu_memory_mib(text);
            if node.gpu_memory_mib.is_none() && node.gpus > 0 {
                report(FieldError::new(
                    field(keys::NODE_GPU_MEMORY),
                    Error::NotGpuMemory(text.to_owned()),
                ));
            }
        }
        if label(keys::NODE_GPU_MEMORY_TYPE) == Some(keys::MEMORY_UNIFIED) {
            node.gpu_memory_kind = MemoryKind::Unified;
        }
    }

    fn read_mig(&self, node: &mut NodeSpec, mig_label: &str) {
        let label = |key: &str| self.metadata.labels.text(key);
        node.mig_strategy = match label(keys::NODE_MIG_STRATEGY) {
            Some("single") => MigStrategy::Single,
            Some("mixed") => MigStrategy::Mixed,
            _ => MigStrategy::None,
        };
        node.mig_enabled = match label(mig_label) {
            Some(text) => matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True"),
            None => node
                .extended
                .iter()
                .any(|(name, count)| name.starts_with(keys::MIG_PREFIX) && *count > 0),
        };
    }
}

pub(crate) const TAINT_EFFECTS: &str = "NoSchedule, PreferNoSchedule and NoExecute";

pub(crate) fn taint_effect(text: &str) -> Option<TaintEffect> {
    match text {
        "NoSchedule" => Some(TaintEffect::NoSchedule),
        "PreferNoSchedule" => Some(TaintEffect::PreferNoSchedule),
        "NoExecute" => Some(TaintEffect::NoExecute),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(text: &str) -> Read<NodeSpec> {
        serde_json::from_str::<Node>(text).unwrap().read().unwrap()
    }

    #[test]
    fn a_gpu_node() {
        let read = node(
            r#"{"metadata":{"name":"n","labels":{"nvidia.com/gpu.memory":"81559","nvidia.com/gpu.count":"8"}},
                "spec":{"taints":[{"key":"gpu","effect":"NoSchedule"}]},
                "status":{"allocatable":{"cpu":"7910m","memory":"32Gi","pods":"110","nvidia.com/gpu":"8","amd.com/gpu":1,
                                         "ephemeral-storage":"10Gi"},
                          "conditions":[{"type":"Ready","status":"True"},{"type":"DiskPressure","status":"Unknown"}]}}"#,
        );
        assert_eq!(read.problems, []);
        let node = read.value;
        assert_eq!(
            (node.cpu_milli, node.memory_bytes, node.gpus, node.pods),
            (7910, 32 << 30, 8, 110)
        );
        assert_eq!((node.gpu_memory_mib, node.gpu_count_label), (Some(81500), Some(8)));
        assert_eq!(node.extended[0], ("amd.com/gpu".to_owned(), 1));
        assert_eq!(node.extended[1], ("ephemeral-storage".to_owned(), 10 << 30));
        assert_eq!(node.conditions, [NodeCondition::DiskPressure]);
        assert_eq!(node.taints[0].effect, TaintEffect::NoSchedule);
    }

    #[test]
    fn nodes_that_are_removed_on_purpose_take_no_pods() {
        let conditions = |text: &str| node(text).value.conditions;
        let tainted = |key: &str, effect: &str| {
            conditions(&format!(
                r#"{{"metadata":{{"name":"n"}},"spec":{{"taints":[{{"key":"{key}","effect":"{effect}"}}]}}}}"#
            ))
        };
        for key in keys::LEAVING_TAINTS {
            assert_eq!(tainted(key, "NoSchedule"), [NodeCondition::Leaving], "{key}");
        }
        assert_eq!(tainted("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule"), []);
        assert_eq!(tainted("mine", "NoSchedule"), []);
        let deleted = r#"{"metadata":{"name":"n","deletionTimestamp":"2026-01-01T00:00:00Z"}}"#;
        assert_eq!(conditions(deleted), [NodeCondition::Leaving]);
    }

    #[test]
    fn conditions_keep_what_people_read_within_bounds() {
        let long = "ä".repeat(CONDITION_BYTES_MAX);
        let text = format!(
            r#"{{"metadata":{{"name":"n"}},"status":{{"conditions":[
                {{"type":"Ready","status":"True","reason":"KubeletReady","message":"kubelet is posting ready status",
                  "lastHeartbeatTime":"2026-01-01T00:00:00Z"}},
                {{"type":"GPUSetupHealthy","status":"False","reason":"","message":"{long}"}},{{}}]}}}}"#
        );
        let read = |text: &str| serde_json::from_str::<Node>(text).unwrap();
        let (node, later) = (read(&text), read(&text.replace("00:00:00Z", "00:05:00Z")));
        assert!(node.is_ready());
        assert_eq!(node.conditions(), later.conditions(), "heartbeats are not kept");
        let [ready, setup, empty] = &node.conditions()[..] else {
            panic!("{node:?}")
        };
        assert_eq!(ready.message.as_deref(), Some("kubelet is posting ready status"));
        assert_eq!(
            (setup.kind(), setup.status(), &setup.reason),
            ("GPUSetupHealthy", "False", &None)
        );
        let message = setup.message.as_deref().unwrap();
        assert!(
            message.ends_with('…') && message.len() <= CONDITION_BYTES_MAX + '…'.len_utf8(),
            "{}",
            message.len()
        );
        assert_eq!((empty.kind(), empty.status()), ("", "Unknown"));
        assert!(read(r#"{"status":{"conditions":null}}"#).conditions().is_empty());
    }

    #[test]
    fn resources_that_merely_end_in_gpu_are_not_added_to_the_gpus() {
        let gpus = |allocatable: &str| {
            let text = format!(r#"{{"metadata":{{"name":"n"}},"status":{{"allocatable":{allocatable}}}}}"#);
            node(&text).value.gpus
        };
        assert_eq!(gpus(r#"{"nvidia.com/gpu":4,"example.com/vgpu":8}"#), 4);
        assert_eq!(gpus(r#"{"nvidia.com/gpu":4,"amd.com/gpu":8}"#), 4);
        assert_eq!(gpus(r#"{"amd.com/gpu":8,"example.com/vgpu":8}"#), 8);
        assert_eq!(gpus(r#"{"example.com/vgpu":8}"#), 0);
    }

    #[test]
    fn slots_for_shares_count_only_where_they_are_offered() {
        let share_devices = |allocatable: &str| {
            let text = format!(r#"{{"metadata":{{"name":"n"}},"status":{{"allocatable":{allocatable}}}}}"#);
            let extended = node(&text).value.extended;
            let [(name, amount)] = &extended[..] else {
                panic!("{extended:?}")
            };
            assert_eq!(name, keys::RESOURCE_GPU_SHARE);
            *amount
        };
        assert_eq!(share_devices(r#"{"cpu":"1"}"#), POD_SLOTS_MAX);
        assert_eq!(share_devices(r#"{"kai.scheduler/gpu-share":"512"}"#), 512);
        assert_eq!(share_devices(r#"{"kai.scheduler/gpu-share":"0"}"#), 0);
    }

    #[test]
    fn mig_is_on_by_label_or_by_slices() {
        let with = |labels: &str| {
            let text = format!(
                r#"{{"metadata":{{"name":"n","labels":{labels}}},"status":{{"allocatable":{{"nvidia.com/mig-1g.5gb":"7"}}}}}}"#
            );
            let node = node(&text).value;
            (node.mig_enabled, node.mig_strategy)
        };
        assert_eq!(with("{}"), (true, MigStrategy::None));
        assert_eq!(
            with(r#"{"node-role.kubernetes.io/mig-enabled":"false"}"#),
            (false, MigStrategy::None)
        );
        assert_eq!(
            with(r#"{"nvidia.com/mig.strategy":"mixed"}"#),
            (true, MigStrategy::Mixed)
        );
    }

    #[test]
    fn another_label_may_say_that_mig_is_on() {
        let text = r#"{"metadata":{"name":"n","labels":{"mig":"true","node-role.kubernetes.io/mig-enabled":"false"}}}"#;
        let node = serde_json::from_str::<Node>(text).unwrap();
        assert!(!node.read().unwrap().value.mig_enabled);
        assert!(node.read_with_mig_label("mig").unwrap().value.mig_enabled);
    }

    #[test]
    fn bad_amounts_count_as_none_and_are_reported() {
        let read = node(
            r#"{"metadata":{"name":"n"},"status":{"capacity":{"cpu":"-4","memory":"1Gi","nvidia.com/gpu":"NaN"}}}"#,
        );
        assert_eq!(
            (read.value.cpu_milli, read.value.memory_bytes, read.value.gpus),
            (0, 1 << 30, 0)
        );
        let texts: Vec<String> = read.problems.iter().map(Problem::to_string).collect();
        assert_eq!(
            texts,
            [
                "Node n: status.capacity.cpu: \"-4\" is negative; write an amount of zero or more (the node has none of it)",
                "Node n: status.capacity.nvidia.com/gpu: \"NaN\" is not a quantity; write a number with an optional suffix, as \
                 in 500m, 4 or 16Gi (the node has none of it)",
            ]
        );
    }
}
