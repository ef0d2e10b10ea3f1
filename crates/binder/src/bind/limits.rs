//! The limits that the binder promises to a pod with a GPU share, and the annotations that tell them. Pure.
//!
//! The node agent enforces [`GpuLimits`] alone. KAI's annotations of the container say the same to tools that know them.

use kai_api::{
    ComputeMode, Enforcement, EnforcementTier, GpuLimits, GpuMemoryLimit, GpuShareAnnotations, GpuShareTerms,
    GpuSharingMode, Pod, keys, quantity_of_mib, share_container,
};
use kai_engine::model::GpuRequest;
use serde_json::{Map, Value};

use crate::bind::failure::BindFailure;
use crate::node::facts::NodeFacts;

/// The GPU share that a pod asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AskedShare {
    /// The container that gets it.
    pub(crate) container: String,
    /// Whether the container requests a share device. The node agent limits containers through it and by no other way.
    pub(crate) has_share_device: bool,
    pub(crate) request: GpuRequest,
    pub(crate) terms: GpuShareTerms,
}

/// What the binder promises to the container on each of its GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Promise {
    /// MiB that it requests.
    pub(crate) request_mib: i64,
    /// MiB that it may use, and how.
    pub(crate) limits: GpuLimits,
}

impl AskedShare {
    /// Reads the share from the pod in both forms; an error says what the pod lacks.
    pub(crate) fn of(pod: &Value, slim: &Pod) -> Result<AskedShare, BindFailure> {
        let at = share_container(pod)?.ok_or(BindFailure::NoContainer)?;
        let container = pod.pointer(&at.pointer()).unwrap_or(&Value::Null);
        let name = container["name"].as_str().unwrap_or_default().to_owned();
        // The API server requires a limit of such a resource.
        let has_share_device = !container["resources"]["limits"][keys::RESOURCE_GPU_SHARE].is_null();
        let request = slim.gpu_usage();
        let terms = GpuShareAnnotations::of(&slim.metadata.annotations)
            .terms(&request)
            .map_err(|(field, error)| BindFailure::InvalidRequest {
                field,
                error: error.to_string(),
            })?;
        if let (Some(wish), false) = (needs_share_device(terms), has_share_device) {
            return Err(BindFailure::NoShareDevice { container: name, wish });
        }
        Ok(AskedShare {
            container: name,
            has_share_device,
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
        self.check_tier(node, facts.tier)?;
        if let Some(promise) = self.promise_of(facts.memory_label_mib) {
            return Ok(Some(promise));
        }
        let needed = match (self.terms.compute_mode, mode) {
            // The node agent starts a container without limits beside the multi-process server.
            (ComputeMode::SmSharing, _) | (_, GpuSharingMode::NvFractions | GpuSharingMode::HamiCore) => true,
            (ComputeMode::TimeSlicing, GpuSharingMode::NonMemoryEnforced | GpuSharingMode::Disabled) => {
                self.has_share_device && facts.tier.is_some_and(EnforcementTier::limits_memory)
            }
        };
        match needed {
            true => Err(BindFailure::GpuMemoryUnknown { node: node.to_owned() }),
            false => Ok(None),
        }
    }

    /// Whether the node still has what the scheduler chose it for.
    fn check_tier(&self, node: &str, label: Option<EnforcementTier>) -> Result<(), BindFailure> {
        let tier = label.unwrap_or(EnforcementTier::None);
        let (node, label) = (node.to_owned(), label.map(EnforcementTier::name));
        let mode = self.terms.compute_mode;
        match self.terms.enforcement {
            Enforcement::Required if !tier.limits_memory() => {
                return Err(BindFailure::NotEnforced { node, tier: label });
            }
            Enforcement::Required | Enforcement::Preferred => {}
        }
        match kai_engine::model::EnforcementTier::from(tier).offers(mode.into()) {
            true => Ok(()),
            false => Err(BindFailure::ModeNotOffered {
                node,
                tier: label,
                mode,
            }),
        }
    }

    /// What the pod's owner should know about a bind to this node: the pod prefers a limit and gets none, or the node limits other containers
    /// and not this one. `None` for a pod that says nothing, on a node that limits nothing: its annotations and views tell that.
    pub(crate) fn warning(&self, pod: &Pod, node: &str, facts: &NodeFacts) -> Option<String> {
        let container = &self.container;
        let node_limits = facts.tier.is_some_and(EnforcementTier::limits_memory);
        if node_limits && self.has_share_device {
            return None;
        }
        if node_limits {
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

    /// `None` if the memory of the GPU is needed and not known.
    fn promise_of(&self, memory_mib: Option<i64>) -> Option<Promise> {
        let request_mib = self.request_mib(memory_mib)?;
        let limit_mib = self.limit_mib(request_mib, memory_mib)?;
        // No container can use more than the GPU has.
        let limit_mib = limit_mib.min(memory_mib.unwrap_or(i64::MAX)).max(1);
        let compute_mode = self.terms.compute_mode;
        Some(Promise {
            request_mib,
            limits: GpuLimits {
                container: self.container.clone(),
                memory_mib: limit_mib.unsigned_abs(),
                compute_mode,
                compute_percent: match compute_mode {
                    ComputeMode::TimeSlicing => None,
                    ComputeMode::SmSharing => Some(self.compute_percent(memory_mib)?),
                },
            },
        })
    }

    /// For a fraction it is the part of the memory in the node's label, of which the scheduler counts hundreds of MiB only.
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

    /// The part of the multiprocessors in percent: that of the memory, rounded down, so that the parts of one GPU don't exceed it. Only
    /// pods below one percent get more, because the server knows no smaller part.
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
        pod: &Value,
        promise: Option<&Promise>,
        tier: Option<EnforcementTier>,
        devices: &str,
    ) -> Map<String, Value> {
        let mut annotations = Map::new();
        if let Some(key) = keys::CONTAINER_DEVICES.of(&self.container) {
            annotations.insert(key, devices.into());
        }
        let Some(promise) = promise else { return annotations };
        if self.has_share_device {
            annotations.insert(keys::GPU_LIMITS.to_owned(), promise.limits.to_annotation().into());
            // Alone it would tell the node agent that somebody removed the limits.
            annotations.extend(tier.map(|tier| (keys::GPU_ENFORCEMENT_TIER.to_owned(), tier.name().into())));
        }
        let limit_mib = i64::try_from(promise.limits.memory_mib).unwrap_or(i64::MAX);
        for (key, mib) in [
            (keys::CONTAINER_MEMORY_REQUEST, promise.request_mib),
            (keys::CONTAINER_MEMORY_LIMIT, limit_mib),
        ] {
            let Some(key) = key.of(&self.container) else { continue };
            let by_binder = matches!(self.request, GpuRequest::Fraction { .. }) || is_written_by_binder(pod, &key);
            if by_binder || pod["metadata"]["annotations"][&key].is_null() {
                annotations.insert(key, quantity_of_mib(mib).into());
            }
        }
        annotations
    }
}

/// What a pod with these terms asks for that only a share device brings.
fn needs_share_device(terms: GpuShareTerms) -> Option<&'static str> {
    match (terms.enforcement, terms.compute_mode) {
        (Enforcement::Required, _) => Some("its GPU memory limited"),
        (Enforcement::Preferred, ComputeMode::SmSharing) => Some("a part of the multiprocessors"),
        (Enforcement::Preferred, ComputeMode::TimeSlicing) => None,
    }
}

/// Whether a binder wrote the annotation of this pod: one of its own, or request and limit of the container where the user asked in
/// another way. Where the user asked by these annotations, they stay: they mean the same as without the binder's addition.
pub(crate) fn is_written_by_binder(pod: &Value, key: &str) -> bool {
    if keys::BINDER_POD_ANNOTATIONS.contains(key) {
        return true;
    }
    let has = |key: &str| !pod["metadata"]["annotations"][key].is_null();
    // A binder writes it together with the amounts.
    if !has(keys::RECEIVED_GPUS) {
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

    fn with_share_device(name: &str) -> Value {
        json!({ "name": name, "resources": { "limits": { "kai.scheduler/gpu-share": "1" } } })
    }

    fn pod(annotations: Value) -> (Value, Pod) {
        let pod = json!({
            "metadata": { "name": "p", "annotations": annotations },
            "spec": {
                "containers": [with_share_device("main"), { "name": "side" }], "initContainers": [{ "name": "load" }],
            },
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
        for tier in [None, Some(EnforcementTier::Watch)] {
            assert_eq!(unknown(half(), tier, mode), Ok(None), "{tier:?}");
        }
        assert_eq!(unknown(json!({ "gpu-memory": "512" }), driver, mode), Ok(Some(512)));
        for (amount, value) in [("gpu-fraction", "0.5"), ("gpu-memory", "512")] {
            let sm_sharing = json!({ amount: value, MODE: "sm-sharing" });
            assert_eq!(
                unknown(sm_sharing, Some(EnforcementTier::Mps), mode),
                failure,
                "{amount}"
            );
        }
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
    fn a_pod_with_time_slicing_is_not_bound_to_a_node_with_a_server() {
        let on = |tier| {
            let asked = asked(json!({ "gpu-fraction": "0.5" }));
            asked.promise("n", &node(Some(1000), tier), GpuSharingMode::NonMemoryEnforced)
        };
        for tier in [None, Some(EnforcementTier::Driver), Some(EnforcementTier::Watch)] {
            assert!(on(tier).is_ok());
        }
        let failure = BindFailure::ModeNotOffered {
            node: "n".into(),
            tier: Some("mps"),
            mode: ComputeMode::TimeSlicing,
        };
        assert_eq!(on(Some(EnforcementTier::Mps)), Err(failure));
    }

    #[test]
    fn nothing_is_promised_that_no_share_device_brings() {
        let asked = |annotations: Value| {
            let pod = json!({
                "metadata": { "annotations": annotations },
                "spec": { "initContainers": [{ "name": "init" }], "containers": [with_share_device("main")] },
            });
            let slim: Pod = serde_json::from_value(pod.clone()).unwrap();
            AskedShare::of(&pod, &slim).map(|asked| (asked, pod))
        };
        let init = |other: Value| {
            let mut annotations = json!({ "gpu-fraction": "0.5", "gpu-fraction-container-name": "init" });
            annotations
                .as_object_mut()
                .unwrap()
                .extend(other.as_object().unwrap().clone());
            annotations
        };
        let (share, pod) = asked(init(json!({}))).unwrap();
        let facts = node(Some(1000), Some(EnforcementTier::Driver));
        let promise = share.promise("n", &facts, GpuSharingMode::HamiCore).unwrap();
        let annotations = share.annotations(&pod, promise.as_ref(), facts.tier, "GPU-1");
        let keys: Vec<&String> = annotations.keys().collect();
        let container = "nvidia.com/container.init";
        let expect = [".gpu-memory.limit", ".gpu-memory.request", ".gpus.devices"];
        assert_eq!(keys, expect.map(|suffix| format!("{container}{suffix}")).each_ref());
        let unlabelled = node(None, Some(EnforcementTier::Driver));
        let promise = share.promise("n", &unlabelled, GpuSharingMode::NonMemoryEnforced);
        assert_eq!(promise, Ok(None), "the label is for limits");
        for (key, value, wish) in [
            ("kai.scheduler/gpu-enforcement", "required", "its GPU memory limited"),
            (
                "nvidia.com/container.init.gpu-compute.mode",
                "sm-sharing",
                "a part of the multiprocessors",
            ),
        ] {
            let failure = asked(init(json!({ key: value }))).unwrap_err();
            let container = "init".to_owned();
            assert_eq!(failure, BindFailure::NoShareDevice { container, wish });
        }
    }

    #[test]
    fn a_pod_with_sm_sharing_is_bound_to_nodes_with_a_server_alone() {
        let on = |tier| {
            let asked = asked(json!({ "gpu-fraction": "0.5", MODE: "sm-sharing" }));
            asked.promise("n", &node(Some(1000), tier), GpuSharingMode::NonMemoryEnforced)
        };
        assert!(on(Some(EnforcementTier::Mps)).is_ok());
        for tier in [None, Some(EnforcementTier::Driver), Some(EnforcementTier::Watch)] {
            let failure = BindFailure::ModeNotOffered {
                node: "n".into(),
                tier: tier.map(EnforcementTier::name),
                mode: ComputeMode::SmSharing,
            };
            assert_eq!(on(tier), Err(failure));
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
            told.contains(
                "nothing limits the GPU memory of container main on node n (label kai.scheduler/gpu-enforcement: watch)"
            ) && told.contains("kai.scheduler/gpu-enforcement: required"),
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
            let tier = match annotations[MODE].is_null() {
                true => EnforcementTier::Watch,
                false => EnforcementTier::Mps,
            };
            let facts = node(Some(1000), Some(tier));
            let promise = asked(annotations).promise("n", &facts, GpuSharingMode::NonMemoryEnforced);
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
            let mut annotations = asked.annotations(&pod, promise.as_ref(), facts.tier, "GPU-1");
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
        check(
            json!({ "gpu-memory": "400", "kai.scheduler/received-gpus": "GPU-0", REQUEST: "400Mi", LIMIT: "9Mi" }),
            json!({ LIMIT: "400Mi" }),
        );
        check(json!({ REQUEST: "300Mi" }), json!({ LIMIT: "300Mi" }));
        check(json!({ LIMIT: "300Mi" }), json!({ REQUEST: "300Mi" }));
        check(json!({ REQUEST: "300Mi", LIMIT: "2Gi" }), json!({}));
    }

    #[test]
    fn a_container_with_a_long_name_has_limits_all_the_same() {
        let long = "c".repeat(63);
        let pod = json!({
            "metadata": { "annotations": { "gpu-memory": "5" } }, "spec": { "containers": [with_share_device(&long)] },
        });
        let slim: Pod = serde_json::from_value(pod.clone()).unwrap();
        let asked = AskedShare::of(&pod, &slim).unwrap();
        let promise = asked
            .promise("n", &node(None, None), GpuSharingMode::NonMemoryEnforced)
            .unwrap();
        let annotations = asked.annotations(&pod, promise.as_ref(), None, "GPU-1");
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
        let gpus = "kai.scheduler/received-gpus";
        assert_eq!(
            written(json!({ "gpu-fraction": "0.5", gpus: "GPU-1", REQUEST: "1Mi", LIMIT: "1Mi", "team": "a" })),
            [gpus, LIMIT, REQUEST]
        );
        assert_eq!(
            written(json!({ "gpu-memory": "5", gpus: "GPU-1", REQUEST: "5Mi", LIMIT: "5Mi" })),
            [gpus, LIMIT]
        );
        let translated =
            json!({ "gpu-memory": "5", "gpu-memory.limit": "6Mi", gpus: "GPU-1", REQUEST: "5Mi", LIMIT: "6Mi" });
        assert_eq!(written(translated), [gpus]);
        assert_eq!(written(json!({ gpus: "GPU-1", REQUEST: "5Mi", LIMIT: "6Mi" })), [gpus]);
        assert_eq!(written(json!({ "gpu-fraction": "0.5", REQUEST: "1Mi" })), [""; 0]);
    }
}
