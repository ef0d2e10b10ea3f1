//! The resources of a pod in the status of its pod group and queue: the requests that the scheduler counts, without overhead, as KAI's API
//! defines them.

use std::collections::BTreeMap;

use kai_engine::model::GpuRequest;

use super::Pod;
use crate::gpu_request::{RawGpuRequest, devices, gpu_request_with_terms, occupied};
use crate::resources::{Amounts, CPU};
use crate::{Error, GpuShareAnnotations, GpuShareTerms, keys};

/// The GPU request of a pod.
#[derive(Debug)]
pub(super) struct ReadGpus {
    pub(super) request: GpuRequest,
    pub(super) terms: GpuShareTerms,
    /// The error of an invalid request. Then the other fields have its valid parts.
    pub(super) error: Option<(String, Error)>,
}

impl Pod {
    /// The most that the pod requests at a time, without overhead, in thousandths by resource name. Invalid amounts are left out.
    pub fn requests_milli(&self) -> BTreeMap<String, i64> {
        let errors = &mut Vec::new();
        let overhead = Amounts::listed(&self.spec.overhead, "spec.overhead", errors);
        let amounts = self.without_overhead(&overhead, errors);
        // A share device only brings the GPU into the container; the pod's GPU request has the amount.
        let counted = amounts.iter().filter(|(name, _)| *name != keys::RESOURCE_GPU_SHARE);
        let milli = |(name, amount): (&str, i64)| match name {
            CPU => (name.to_owned(), amount),
            _ => (name.to_owned(), amount.saturating_mul(1000)),
        };
        counted.map(milli).collect()
    }

    /// The same as [`Pod::requests_milli`] by the spec alone: once a resize has happened.
    pub fn spec_requests_milli(&self) -> BTreeMap<String, i64> {
        let mut resized = self.clone();
        resized.status.resize = None;
        resized.requests_milli()
    }

    /// The GPU request, or the valid part of an invalid one.
    pub fn gpu_usage(&self) -> GpuRequest {
        let (_, gpus) = self.requests(&mut Vec::new());
        self.read_gpus(&gpus).request
    }

    /// The same from the unparsed request, with all that is known about it.
    pub(super) fn read_gpus(&self, ask: &RawGpuRequest<'_>) -> ReadGpus {
        let (request, terms, error) = match gpu_request_with_terms(ask) {
            Ok((request, terms)) => (request, terms, None),
            Err(error) => {
                let request = occupied(ask);
                let terms = GpuShareAnnotations::of(ask.annotations).terms(&request);
                (request, terms.unwrap_or_default(), Some(error))
            }
        };
        // A kubelet gives a pod the devices in its resources, whatever its annotations say. Only the GPU of a group comes in another way.
        let held = devices(ask).filter(|_| self.node_name().is_some() && self.gpu_groups().is_empty());
        ReadGpus {
            request: held.unwrap_or(request),
            terms,
            error,
        }
    }

    /// The memory that the pod's GPU share requests on a GPU with `gpu_memory_mib`, in whole MiB rounded down. `None` if the pod requests
    /// no GPU share.
    pub fn share_memory_mib(&self, gpu_memory_mib: i64) -> Option<i64> {
        match self.gpu_usage() {
            GpuRequest::Fraction { fraction, .. } => Some(fraction.of_mib(gpu_memory_mib)),
            GpuRequest::Memory { mib, .. } => Some(mib),
            GpuRequest::None | GpuRequest::Whole { .. } | GpuRequest::Mig { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(spec: &str, expect: &[(&str, i64)]) {
        let pod: Pod = serde_json::from_str(&format!(r#"{{"spec":{spec}}}"#)).unwrap();
        let milli = pod.requests_milli();
        let milli: Vec<(&str, i64)> = milli.iter().map(|(name, milli)| (&**name, *milli)).collect();
        assert_eq!(milli, expect, "{spec}");
    }

    #[test]
    fn a_bound_pod_without_a_gpu_group_has_the_devices_in_its_resources() {
        let check = |node: &str, labels: &str, annotations: &str, expect: GpuRequest| {
            let pod = format!(
                r#"{{"metadata":{{"name":"p","labels":{{{labels}}},"annotations":{{{annotations}}}}},
                    "spec":{{"nodeName":"{node}","containers":[{{"name":"c","resources":{{"limits":{{"nvidia.com/gpu":8}}}}}}]}}}}"#
            );
            let pod: Pod = serde_json::from_str(&pod).unwrap();
            assert_eq!(pod.gpu_usage(), expect, "{pod:?}");
        };
        let whole = GpuRequest::Whole { devices: 8 };
        let memory = GpuRequest::Memory { mib: 1, devices: 1 };
        let of_container = r#""nvidia.com/container.c.gpu-memory.request":"1Mi""#;
        for annotation in [
            of_container,
            r#""gpu-fraction":"0.01""#,
            r#""gpu-memory":"1""#,
            r#""nvidia.com/mig-1g.5gb":"1""#,
        ] {
            check("n", "", annotation, whole.clone());
        }
        check("n", r#""runai-gpu-group":"g""#, of_container, memory.clone());
        check("", "", of_container, memory);
    }

    #[test]
    fn containers_count_and_limits_stand_in() {
        check(
            r#"{"overhead":{"cpu":"1"},
                "containers":[{"resources":{"requests":{"cpu":"1"},"limits":{"cpu":"4","nvidia.com/gpu":1}}},
                              {"resources":{"requests":{"cpu":"500m","memory":"lots","kai.scheduler/gpu-share":"1"}}}]}"#,
            &[("cpu", 1500), ("nvidia.com/gpu", 1000)],
        );
    }

    #[test]
    fn init_containers_count_at_their_peak() {
        check(
            r#"{"initContainers":[{"resources":{"requests":{"cpu":"9"}}},{"resources":{"requests":{"cpu":"2","memory":"7"}}}],
                "containers":[{"resources":{"requests":{"cpu":"1","memory":"5"}}},{"resources":{"requests":{"memory":"4"}}}]}"#,
            &[("cpu", 9000), ("memory", 9000)],
        );
    }

    #[test]
    fn sidecars_count_beside_later_init_containers_and_the_containers() {
        let sidecar = r#"{"restartPolicy":"Always","resources":{"requests":{"cpu":"2"}}}"#;
        let init = r#"{"resources":{"requests":{"cpu":"4"}}}"#;
        let main = r#""containers":[{"resources":{"requests":{"cpu":"1"}}}]"#;
        check(&format!(r#"{{"initContainers":[{sidecar}],{main}}}"#), &[("cpu", 3000)]);
        check(
            &format!(r#"{{"initContainers":[{sidecar},{init}],{main}}}"#),
            &[("cpu", 6000)],
        );
        check(
            &format!(r#"{{"initContainers":[{init},{sidecar}],{main}}}"#),
            &[("cpu", 4000)],
        );
    }
}
