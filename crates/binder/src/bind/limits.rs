//! The limits that the binder promises to a pod with a GPU share, and the annotations that tell them. Pure.
//!
//! The node agent enforces [`GpuLimits`] alone. KAI's annotations of the container say the same to tools that know them.

use kai_api::keys::{self, KeySet};
use kai_api::{
    ComputeMode, Enforcement, EnforcementTier, GpuLimits, GpuMemoryLimit, GpuShareAnnotations, GpuShareTerms,
    GpuSharingMode, Pod, quantity_of_mib, share_container,
};
use kai_engine::model::GpuRequest;
use serde_json::{Map, Value};

use crate::bind::failure::BindFailure;
use crate::node::facts::NodeFacts;

/// The annotations of pods that binders alone write when they bind.
const BIND_ANNOTATIONS: KeySet = KeySet {
    exact: &[
        keys::RECEIVED_RESOURCE_TYPE,
        keys::RECEIVED_GPUS,
        keys::GPU_LIMITS,
        keys::GPU_ENFORCEMENT_TIER,
    ],
    prefixes: &[],
    containers: &[keys::CONTAINER_DEVICES],
};

/// The GPU share that a pod asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AskedShare {
    /// The container that gets it.
    pub(crate) container: String,
    /// Whether the node agent prepares the container: it has a share device.
    pub(crate) prepared: Prepared,
    pub(crate) request: GpuRequest,
    pub(crate) terms: GpuShareTerms,
}

/// Whether the node agent prepares a container with a GPU share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prepared {
    /// It has a share device.
    ByAgent,
    /// An init container that ends, or one that admission did not see. Nothing limits it.
    ByRuntime,
}

/// What the binder promises to the container on each of its GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Promise {
    /// MiB that are reserved for it.
    pub(crate) request_mib: i64,
    /// MiB that it may use, and how.
    pub(crate) limits: GpuLimits,
}

impl AskedShare {
    /// Reads the share from the pod in both forms; an error says what the pod lacks.
    pub(crate) fn of(pod: &Value, slim: &Pod) -> Result<AskedShare, BindFailure> {
        let at = share_container(pod)?.ok_or(BindFailure::NoContainer)?;
        let container = pod.pointer(&at.pointer()).unwrap_or(&Value::Null);
        let has_share_device = ["requests", "limits"]
            .iter()
            .any(|list| !container["resources"][list][keys::RESOURCE_GPU_SHARE].is_null());
        let request = slim.gpu_usage();
        let terms = GpuShareAnnotations::of(&slim.metadata.annotations)
            .terms(&request)
            .map_err(|(field, error)| BindFailure::InvalidRequest {
                field,
                error: error.to_string(),
            })?;
        Ok(AskedShare {
            container: container["name"].as_str().unwrap_or_default().to_owned(),
            prepared: match has_share_device {
                true => Prepared::ByAgent,
                false => Prepared::ByRuntime,
            },
            request,
            terms,
        })
    }

    /// What the binder promises on this node; `None` if the amount is not known and nothing would enforce it.
    pub(crate) fn promise(
        &self,
        node: &str,
        facts: &NodeFacts,
        mode: GpuSharingMode,
    ) -> Result<Option<Promise>, BindFailure> {
        let is_enforced = self.tier(facts).is_some_and(EnforcementTier::limits_memory);
        match (self.terms.enforcement, self.prepared) {
            (Enforcement::Required, Prepared::ByRuntime) => {
                return Err(BindFailure::NoShareDevice {
                    container: self.container.clone(),
                });
            }
            (Enforcement::Required, Prepared::ByAgent) if !is_enforced => {
                return Err(BindFailure::NotEnforced {
                    node: node.to_owned(),
                    tier: facts.tier.map(EnforcementTier::name),
                });
            }
            (Enforcement::Required | Enforcement::Preferred, _) => {}
        }
        if let Some(request_mib) = self.request_mib(facts.memory_label_mib)
            && let Some(limit_mib) = self.limit_mib(request_mib, facts.memory_label_mib)
        {
            return Ok(Some(self.promise_of(request_mib, limit_mib, facts.memory_label_mib)));
        }
        let needed = match mode {
            GpuSharingMode::NvFractions | GpuSharingMode::HamiCore => true,
            GpuSharingMode::NonMemoryEnforced | GpuSharingMode::Disabled => is_enforced,
        };
        match needed {
            true => Err(BindFailure::GpuMemoryUnknown { node: node.to_owned() }),
            false => Ok(None),
        }
    }

    /// By what the node holds this container: tiers other than `watch` need its share device.
    pub(crate) fn tier(&self, facts: &NodeFacts) -> Option<EnforcementTier> {
        match (self.prepared, facts.tier) {
            (Prepared::ByAgent, tier) => tier,
            (Prepared::ByRuntime, Some(EnforcementTier::Driver | EnforcementTier::Mps)) => Some(EnforcementTier::None),
            (Prepared::ByRuntime, tier @ (Some(EnforcementTier::Watch | EnforcementTier::None) | None)) => tier,
        }
    }

    /// What the pod's owner should know about a bind to this node: the pod prefers a limit and gets none, or the node limits other containers
    /// and not this one. `None` for a pod that says nothing, on a node that limits nothing: its annotations and views tell that.
    pub(crate) fn warning(&self, pod: &Pod, node: &str, facts: &NodeFacts) -> Option<String> {
        let container = &self.container;
        let has = self.tier(facts);
        if has.is_some_and(EnforcementTier::limits_memory) {
            return None;
        }
        let other_containers = facts.tier.is_some_and(EnforcementTier::limits_memory);
        if other_containers {
            return Some(format!(
                "node {node} limits the GPU memory of containers with a share device, and container {container} has none: it is an init \
                 container that ends, or the pod was created while admission was off. Nothing limits its GPU memory"
            ));
        }
        let prefers = pod.metadata.annotations.contains_key(keys::GPU_ENFORCEMENT);
        prefers.then(|| {
            format!(
                "nothing limits the GPU memory of container {container} on node {node} (label {key}: {}), and the pod prefers a limit; with the \
                 annotation {key}: required it waits for a node that limits GPU memory",
                facts.tier.map_or("missing", EnforcementTier::name),
                key = keys::GPU_ENFORCEMENT,
            )
        })
    }

    fn promise_of(&self, request_mib: i64, limit_mib: i64, memory_mib: Option<i64>) -> Promise {
        // No container can use more than the GPU has.
        let limit_mib = limit_mib.min(memory_mib.unwrap_or(i64::MAX)).max(1);
        let compute_mode = self.terms.compute_mode;
        Promise {
            request_mib,
            limits: GpuLimits {
                container: self.container.clone(),
                memory_mib: limit_mib.unsigned_abs(),
                compute_mode,
                compute_percent: match compute_mode {
                    ComputeMode::TimeSlicing => None,
                    ComputeMode::SmSharing => self.compute_percent(memory_mib),
                },
            },
        }
    }

    /// The amount that the scheduler counts; it needs the memory of the GPU for a fraction.
    fn request_mib(&self, memory_mib: Option<i64>) -> Option<i64> {
        match self.request {
            GpuRequest::Fraction { fraction, .. } => Some(fraction.of_mib(memory_mib?).max(1)),
            GpuRequest::Memory { mib, .. } => Some(mib),
            GpuRequest::None | GpuRequest::Whole { .. } | GpuRequest::Mig { .. } => None,
        }
    }

    fn limit_mib(&self, request_mib: i64, memory_mib: Option<i64>) -> Option<i64> {
        match self.terms.limit {
            None => Some(request_mib),
            Some(GpuMemoryLimit::Mib(mib)) => Some(mib),
            Some(GpuMemoryLimit::Portion(portion)) => Some(portion.of_mib(memory_mib?).max(request_mib)),
        }
    }

    /// The part of the multiprocessors in percent: that of the memory, rounded down, so that the parts of one GPU never exceed it.
    fn compute_percent(&self, memory_mib: Option<i64>) -> Option<u8> {
        let percent = match self.request {
            GpuRequest::Fraction { fraction, .. } => fraction.of_mib(100),
            GpuRequest::Memory { mib, .. } => mib.saturating_mul(100).checked_div(memory_mib?)?,
            GpuRequest::None | GpuRequest::Whole { .. } | GpuRequest::Mig { .. } => return None,
        };
        u8::try_from(percent.clamp(1, 100)).ok()
    }

    /// The annotations of a bind to these GPUs, which are named as KAI's tools expect. An annotation that the user or admission wrote stays:
    /// beside `gpu-fraction` there is none.
    pub(crate) fn annotations(
        &self,
        pod: &Pod,
        promise: Option<&Promise>,
        tier: Option<EnforcementTier>,
        devices: &str,
    ) -> Map<String, Value> {
        let mut annotations = Map::new();
        if let Some(tier) = tier {
            annotations.insert(keys::GPU_ENFORCEMENT_TIER.to_owned(), tier.name().into());
        }
        if let Some(key) = keys::CONTAINER_DEVICES.of(&self.container) {
            annotations.insert(key, devices.into());
        }
        let Some(promise) = promise else { return annotations };
        annotations.insert(keys::GPU_LIMITS.to_owned(), promise.limits.to_annotation().into());
        let limit_mib = i64::try_from(promise.limits.memory_mib).unwrap_or(i64::MAX);
        for (key, mib) in [
            (keys::CONTAINER_MEMORY_REQUEST, promise.request_mib),
            (keys::CONTAINER_MEMORY_LIMIT, limit_mib),
        ] {
            let Some(key) = key.of(&self.container) else { continue };
            let by_binder = matches!(self.request, GpuRequest::Fraction { .. });
            if by_binder || !pod.metadata.annotations.contains_key(&key) {
                annotations.insert(key, quantity_of_mib(mib).into());
            }
        }
        annotations
    }
}

/// Whether the annotation is one that binders alone write when they bind.
pub(crate) fn is_bind_annotation(key: &str) -> bool {
    BIND_ANNOTATIONS.contains(key)
}

/// Whether a binder wrote the annotation of this pod: one of its own, or request and limit of the container where the user asked in
/// another way. Where the user asked by these annotations, they stay: they mean the same as without the binder's addition.
pub(crate) fn is_written_by_binder(pod: &Value, key: &str) -> bool {
    if is_bind_annotation(key) {
        return true;
    }
    let has = |key: &str| !pod["metadata"]["annotations"][key].is_null();
    if !has(keys::GPU_LIMITS) {
        return false;
    }
    let is_request = keys::CONTAINER_MEMORY_REQUEST.container(key).is_some();
    let is_limit = keys::CONTAINER_MEMORY_LIMIT.container(key).is_some();
    match (has(keys::GPU_FRACTION), has(keys::GPU_MEMORY)) {
        (true, _) => is_request || is_limit,
        (false, true) => is_limit && !has(keys::GPU_MEMORY_LIMIT),
        (false, false) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const REQUEST: &str = "nvidia.com/container.main.gpu-memory.request";
    const LIMIT: &str = "nvidia.com/container.main.gpu-memory.limit";
    const MODE: &str = "nvidia.com/container.main.gpu-compute.mode";

    fn pod(annotations: Value) -> (Value, Pod) {
        let pod = json!({
            "metadata": { "name": "p", "annotations": annotations },
            "spec": { "containers": [
                { "name": "main", "resources": { "limits": { "kai.scheduler/gpu-share": "1" } } }, { "name": "side" },
            ], "initContainers": [{ "name": "load" }] },
        });
        let slim = serde_json::from_value(pod.clone()).unwrap();
        (pod, slim)
    }

    fn asked(annotations: Value) -> AskedShare {
        let (pod, slim) = pod(annotations);
        AskedShare::of(&pod, &slim).unwrap()
    }

    fn node(memory_label_mib: Option<i64>, tier: Option<EnforcementTier>) -> NodeFacts {
        NodeFacts {
            memory_label_mib,
            tier,
            ..NodeFacts::default()
        }
    }

    /// Checks request and limit in MiB on a GPU of 81,559 MiB.
    fn check(annotations: Value, request_mib: i64, limit_mib: u64) {
        let facts = node(Some(81_559), None);
        let promise = asked(annotations.clone()).promise("n", &facts, GpuSharingMode::NonMemoryEnforced);
        let promise = promise.unwrap().unwrap();
        assert_eq!(
            (promise.request_mib, promise.limits.memory_mib),
            (request_mib, limit_mib),
            "{annotations}"
        );
    }

    #[test]
    fn the_limit_is_the_request_unless_the_pod_gave_one() {
        check(json!({ "gpu-fraction": "0.5" }), 40_779, 40_779);
        check(json!({ "gpu-fraction": "0.333333" }), 27_186, 27_186);
        check(json!({ "gpu-fraction": "0.000001" }), 1, 1);
        check(
            json!({ "gpu-fraction": "0.25", "gpu-fraction.limit": "0.75" }),
            20_389,
            61_169,
        );
        let portion = "kai.scheduler/container.main.gpu-memory.portion.limit";
        check(json!({ "gpu-fraction": "0.25", portion: "0.5" }), 20_389, 40_779);
        check(json!({ "gpu-memory": "4096" }), 4096, 4096);
        check(json!({ "gpu-memory": "4096", "gpu-memory.limit": "8Gi" }), 4096, 8192);
        check(json!({ REQUEST: "1000M" }), 954, 954);
        check(json!({ REQUEST: "4Gi", LIMIT: "8Gi" }), 4096, 8192);
        check(json!({ LIMIT: "8Gi" }), 8192, 8192);
        check(json!({ REQUEST: "4Gi", LIMIT: "1Ti" }), 4096, 81_559);
    }

    #[test]
    fn without_the_memory_of_the_gpu_a_promise_is_made_where_it_can_be() {
        let unknown = |annotations: Value, tier, mode| {
            let promise = asked(annotations).promise("n1", &node(None, tier), mode);
            promise.map(|promise| promise.map(|promise| promise.limits.memory_mib))
        };
        let half = || json!({ "gpu-fraction": "0.5" });
        let driver = Some(EnforcementTier::Driver);
        let failure = Err(BindFailure::GpuMemoryUnknown { node: "n1".into() });
        for mode in [GpuSharingMode::NvFractions, GpuSharingMode::HamiCore] {
            assert_eq!(unknown(half(), None, mode), failure, "{mode}");
        }
        let mode = GpuSharingMode::NonMemoryEnforced;
        assert_eq!(unknown(half(), driver, mode), failure);
        for tier in [None, Some(EnforcementTier::Watch), Some(EnforcementTier::Mps)] {
            assert_eq!(unknown(half(), tier, mode), Ok(None), "{tier:?}");
        }
        assert_eq!(unknown(json!({ "gpu-memory": "512" }), driver, mode), Ok(Some(512)));
        assert_eq!(
            unknown(json!({ REQUEST: "1Gi" }), driver, GpuSharingMode::NvFractions),
            Ok(Some(1024))
        );
    }

    #[test]
    fn a_pod_that_requires_enforcement_is_not_bound_elsewhere() {
        let required = || json!({ "gpu-memory": "512", "kai.scheduler/gpu-enforcement": "required" });
        let on = |tier| asked(required()).promise("n", &node(Some(1000), tier), GpuSharingMode::NonMemoryEnforced);
        assert!(on(Some(EnforcementTier::Driver)).is_ok());
        for tier in [
            None,
            Some(EnforcementTier::Mps),
            Some(EnforcementTier::Watch),
            Some(EnforcementTier::None),
        ] {
            let failure = BindFailure::NotEnforced {
                node: "n".into(),
                tier: tier.map(EnforcementTier::name),
            };
            assert_eq!(on(tier), Err(failure));
        }
    }

    #[test]
    fn a_container_without_a_share_device_is_promised_no_enforcement() {
        let load = |enforcement: &str| {
            asked(json!({
                "gpu-memory": "512", "gpu-fraction-container-name": "load", "kai.scheduler/gpu-enforcement": enforcement,
            }))
        };
        for (of_node, of_container) in [
            (Some(EnforcementTier::Driver), Some(EnforcementTier::None)),
            (Some(EnforcementTier::Mps), Some(EnforcementTier::None)),
            (Some(EnforcementTier::Watch), Some(EnforcementTier::Watch)),
            (None, None),
        ] {
            let facts = node(Some(1000), of_node);
            assert_eq!(load("preferred").tier(&facts), of_container);
            assert_eq!(
                load("required").promise("n", &facts, GpuSharingMode::NonMemoryEnforced),
                Err(BindFailure::NoShareDevice {
                    container: "load".into()
                })
            );
        }
    }

    #[test]
    fn the_owner_is_told_that_nothing_limits_a_container() {
        let warning = |annotations: Value, tier| {
            let (pod, slim) = pod(annotations);
            let asked = AskedShare::of(&pod, &slim).unwrap();
            asked.warning(&slim, "n", &node(Some(1000), tier))
        };
        let driver = Some(EnforcementTier::Driver);
        let prefers = || json!({ "gpu-memory": "5", "kai.scheduler/gpu-enforcement": "preferred" });
        let told = warning(prefers(), Some(EnforcementTier::Watch)).unwrap();
        assert!(
            told.contains("nothing limits the GPU memory of container main on node n (label kai.scheduler/gpu-enforcement: watch)")
                && told.contains("kai.scheduler/gpu-enforcement: required"),
            "{told}"
        );
        assert!(warning(prefers(), None).unwrap().contains("gpu-enforcement: missing"));
        assert_eq!(warning(prefers(), driver), None);
        let silent = json!({ "gpu-memory": "5" });
        assert_eq!(warning(silent, Some(EnforcementTier::None)), None);
        let ends = || json!({ "gpu-memory": "5", "gpu-fraction-container-name": "load" });
        let told = warning(ends(), driver).unwrap();
        assert!(told.contains("container load has none"), "{told}");
        assert_eq!(warning(ends(), Some(EnforcementTier::None)), None);
    }

    #[test]
    fn multiprocessors_are_shared_like_memory() {
        let percent = |annotations: Value| {
            let promise = asked(annotations).promise("n", &node(Some(1000), None), GpuSharingMode::NonMemoryEnforced);
            promise.unwrap().unwrap().limits.compute_percent
        };
        assert_eq!(percent(json!({ "gpu-fraction": "0.5" })), None);
        assert_eq!(
            percent(json!({ "gpu-fraction": "0.335", MODE: "sm-sharing" })),
            Some(33)
        );
        assert_eq!(percent(json!({ "gpu-fraction": "0.001", MODE: "sm-sharing" })), Some(1));
        assert_eq!(percent(json!({ "gpu-memory": "250", MODE: "sm-sharing" })), Some(25));
        assert_eq!(percent(json!({ "gpu-memory": "5000", MODE: "sm-sharing" })), Some(100));
    }

    #[test]
    fn annotations_of_the_user_stay() {
        let check = |given: Value, expect: Value| {
            let (pod, slim) = pod(given);
            let asked = AskedShare::of(&pod, &slim).unwrap();
            let facts = node(Some(1000), Some(EnforcementTier::Driver));
            let promise = asked.promise("n", &facts, GpuSharingMode::NonMemoryEnforced).unwrap();
            let mut annotations = asked.annotations(&slim, promise.as_ref(), facts.tier, "GPU-1");
            assert_eq!(
                annotations.remove("kai.scheduler/gpu-enforcement-tier"),
                Some("driver".into())
            );
            assert_eq!(
                annotations.remove("nvidia.com/container.main.gpus.devices"),
                Some("GPU-1".into())
            );
            let limits = annotations.remove("kai.scheduler/gpu-limits").unwrap();
            assert_eq!(GpuLimits::parse(limits.as_str().unwrap()).unwrap().container, "main");
            assert_eq!(Value::from(annotations), expect);
        };
        let both = |request: &str, limit: &str| json!({ REQUEST: request, LIMIT: limit });
        check(json!({ "gpu-fraction": "0.5" }), both("500Mi", "500Mi"));
        // An earlier attempt on another node wrote other amounts.
        check(
            json!({ "gpu-fraction": "0.5", REQUEST: "9Mi", LIMIT: "9Mi" }),
            both("500Mi", "500Mi"),
        );
        check(
            json!({ "gpu-memory": "400", REQUEST: "400Mi" }),
            json!({ LIMIT: "400Mi" }),
        );
        check(json!({ REQUEST: "300Mi" }), json!({ LIMIT: "300Mi" }));
        check(json!({ LIMIT: "300Mi" }), json!({ REQUEST: "300Mi" }));
        check(json!({ REQUEST: "300Mi", LIMIT: "2Gi" }), json!({}));
    }

    #[test]
    fn a_container_with_a_long_name_has_limits_all_the_same() {
        let long = "c".repeat(63);
        let pod = json!({ "metadata": { "annotations": { "gpu-memory": "5" } }, "spec": { "containers": [{ "name": long }] } });
        let slim: Pod = serde_json::from_value(pod.clone()).unwrap();
        let asked = AskedShare::of(&pod, &slim).unwrap();
        let promise = asked
            .promise("n", &node(None, None), GpuSharingMode::NonMemoryEnforced)
            .unwrap();
        let annotations = asked.annotations(&slim, promise.as_ref(), None, "GPU-1");
        let keys: Vec<&String> = annotations.keys().collect();
        assert_eq!(
            keys,
            ["kai.scheduler/gpu-limits"],
            "the API server takes no longer keys"
        );
    }

    #[test]
    fn invalid_annotations_fail_the_bind() {
        let (pod, slim) = pod(json!({ "gpu-fraction": "0.5", "gpu-fraction.limit": "0.1" }));
        let failure = AskedShare::of(&pod, &slim).unwrap_err().to_string();
        assert!(
            failure.contains("gpu-fraction.limit") && failure.contains("raise it"),
            "{failure}"
        );
    }

    #[test]
    fn what_a_binder_wrote_is_known() {
        let written = |annotations: Value| -> Vec<String> {
            let pod = json!({ "metadata": { "annotations": annotations } });
            let keys = pod["metadata"]["annotations"].as_object().unwrap().keys();
            keys.filter(|key| is_written_by_binder(&pod, key)).cloned().collect()
        };
        let limits = "kai.scheduler/gpu-limits";
        assert_eq!(
            written(json!({ "gpu-fraction": "0.5", limits: "{}", REQUEST: "1Mi", LIMIT: "1Mi", "team": "a" })),
            [limits, LIMIT, REQUEST]
        );
        assert_eq!(
            written(json!({ "gpu-memory": "5", limits: "{}", REQUEST: "5Mi", LIMIT: "5Mi" })),
            [limits, LIMIT]
        );
        let translated =
            json!({ "gpu-memory": "5", "gpu-memory.limit": "6Mi", limits: "{}", REQUEST: "5Mi", LIMIT: "6Mi" });
        assert_eq!(written(translated), [limits]);
        assert_eq!(written(json!({ limits: "{}", REQUEST: "5Mi", LIMIT: "6Mi" })), [limits]);
        assert_eq!(written(json!({ "gpu-fraction": "0.5", REQUEST: "1Mi" })), [""; 0]);
    }
}
