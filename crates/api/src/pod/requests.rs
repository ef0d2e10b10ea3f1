//! Adds up the containers of a pod to one request.

use std::borrow::Cow;

use kai_engine::model::{GpuRequest, Requests};

use super::bounds::{RESOURCE_KINDS_MAX, is_within};
use super::resize::Resize;
use super::{Container, Pod};
use crate::error::FieldError;
use crate::gpu_request::RawGpuRequest;
use crate::keys;
use crate::resources::{Amounts, CPU, MEMORY, PODS};

impl Pod {
    /// The requests without GPUs, and the unparsed GPU request.
    pub(super) fn requests(&self, errors: &mut Vec<FieldError>) -> (Requests, RawGpuRequest<'_>) {
        let amounts = self.folded(errors);
        let mut requests = Requests {
            gpu: GpuRequest::None,
            ..Requests::default()
        };
        let (mut whole, mut mig) = (0i64, Vec::new());
        for (name, amount) in amounts.iter().filter(|(_, amount)| *amount > 0) {
            match name {
                CPU => requests.cpu_milli = amount,
                MEMORY => requests.memory_bytes = amount,
                // The engine counts pods itself.
                PODS => {}
                keys::RESOURCE_GPU => whole = whole.saturating_add(amount),
                // Queues are charged for GPUs of any vendor; a node has to offer this resource name.
                _ if keys::is_gpu_resource(name) => {
                    whole = whole.saturating_add(amount);
                    requests.extended.push((name.to_owned(), amount));
                }
                _ if name.starts_with(keys::MIG_PREFIX) => mig.push((name.to_owned(), amount)),
                _ => requests.extended.push((name.to_owned(), amount)),
            }
        }
        requests.extended.sort();
        mig.sort();
        for kinds in [&mut requests.extended, &mut mig] {
            if !is_within(kinds.len(), RESOURCE_KINDS_MAX, "spec.containers[].resources", errors) {
                kinds.truncate(RESOURCE_KINDS_MAX);
            }
        }
        (
            requests,
            RawGpuRequest {
                annotations: &self.metadata.annotations,
                whole,
                mig,
            },
        )
    }

    fn folded<'a>(&'a self, errors: &mut Vec<FieldError>) -> Amounts<'a> {
        let overhead = Amounts::listed(&self.spec.overhead, "spec.overhead", errors);
        let mut most = self.without_overhead(&overhead, errors);
        most.add(&overhead);
        most
    }

    /// The maximum over the pod's life: init containers run one after the other, each beside the sidecars that started before it; then the
    /// containers run beside all sidecars. Requests of the whole pod replace that sum. During a resize, the larger request counts.
    pub(super) fn without_overhead<'a>(&'a self, overhead: &Amounts<'a>, errors: &mut Vec<FieldError>) -> Amounts<'a> {
        // A pod without a node can't be resized.
        let resize = self.status.resize.as_deref().filter(|_| self.node_name().is_some());
        let asked = |list: &str, at: usize, container: &'a Container, errors: &mut Vec<FieldError>| {
            Amounts::asked(&container.resources, || format!("spec.{list}[{at}].resources"), errors)
        };
        let held = |container: &'a Container, asked: Amounts<'a>, errors: &mut Vec<FieldError>| match resize {
            Some(resize) => resize.container(&container.name, asked, errors),
            None => asked,
        };
        let mut running: Option<Amounts<'a>> = None;
        for (at, container) in self.spec.containers.iter().enumerate() {
            let own = asked("containers", at, container, errors);
            let own = held(container, own, errors);
            match &mut running {
                Some(running) => running.add(&own),
                None => running = Some(own),
            }
        }
        let mut running = running.unwrap_or_default();
        if !self.spec.init_containers.is_empty() {
            let (mut sidecars, mut peak) = (Amounts::default(), Amounts::default());
            for (at, container) in self.spec.init_containers.iter().enumerate() {
                let mut own = asked("initContainers", at, container, errors);
                if container.is_sidecar() {
                    own = held(container, own, errors);
                }
                // The sums of other resources are unchanged since the previous sidecar.
                peak.raise_to(&sidecars.with(&own));
                if container.is_sidecar() {
                    sidecars.add(&own);
                }
            }
            running.add(&sidecars);
            running.raise_to(&peak);
        }
        self.apply_pod_level(&mut running, resize, overhead, errors);
        running
    }

    /// Pod-level requests replace the sum over its containers (KEP-2837: CPU, memory, huge pages only).
    fn apply_pod_level<'a>(
        &'a self,
        running: &mut Amounts<'a>,
        resize: Option<&'a Resize>,
        overhead: &Amounts<'a>,
        errors: &mut Vec<FieldError>,
    ) {
        let Some(resources) = &self.spec.resources else { return };
        let mut asked = Amounts::asked(resources, || "spec.resources".to_owned(), errors);
        if let Some(resize) = resize {
            asked = resize.pod(asked, overhead, errors);
        }
        for (name, amount) in asked.iter() {
            if matches!(name, CPU | MEMORY) || name.starts_with("hugepages-") {
                running.set(Cow::Owned(name.to_owned()), amount);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(spec: &str, cpu_milli: i64, memory_bytes: i64, whole: i64) {
        let text = format!(r#"{{"metadata":{{"name":"p"}},"spec":{spec}}}"#);
        let pod: Pod = serde_json::from_str(&text).unwrap();
        let mut errors = Vec::new();
        let (requests, ask) = pod.requests(&mut errors);
        assert_eq!(errors, []);
        assert_eq!(
            (requests.cpu_milli, requests.memory_bytes, ask.whole),
            (cpu_milli, memory_bytes, whole),
            "{spec}"
        );
    }

    #[test]
    fn containers_add_up_and_limits_stand_in_for_requests() {
        check(
            r#"{"containers":[{"resources":{"requests":{"cpu":"1"},"limits":{"cpu":"4","nvidia.com/gpu":1}}},
                              {"resources":{"limits":{"cpu":"500m","memory":"1k"}}}]}"#,
            1500,
            1000,
            1,
        );
    }

    #[test]
    fn init_containers_count_at_their_peak() {
        check(
            r#"{"initContainers":[{"resources":{"requests":{"cpu":"3"}}},{"resources":{"requests":{"memory":"5k"}}}],
                "containers":[{"resources":{"requests":{"cpu":"1","memory":"1k"}}}]}"#,
            3000,
            5000,
            0,
        );
    }

    #[test]
    fn sidecars_run_beside_later_init_containers_and_beside_the_containers() {
        check(
            r#"{"initContainers":[{"restartPolicy":"Always","resources":{"requests":{"cpu":"1"}}},
                                  {"resources":{"requests":{"cpu":"3"}}},
                                  {"restartPolicy":"Always","resources":{"requests":{"cpu":"500m"}}}],
                "containers":[{"resources":{"requests":{"cpu":"1"}}}]}"#,
            4000,
            0,
            0,
        );
        check(
            r#"{"initContainers":[{"restartPolicy":"Always","resources":{"requests":{"cpu":"1"}}}],
                "containers":[{"resources":{"requests":{"cpu":"1"}}}]}"#,
            2000,
            0,
            0,
        );
    }

    #[test]
    fn overhead_comes_on_top_and_pod_level_requests_replace_the_sum() {
        check(
            r#"{"overhead":{"cpu":"100m"},"containers":[{"resources":{"requests":{"cpu":"1"}}}]}"#,
            1100,
            0,
            0,
        );
        check(
            r#"{"resources":{"requests":{"cpu":"2"}},"containers":[{"resources":{"requests":{"cpu":"1","memory":"1k"}}}]}"#,
            2000,
            1000,
            0,
        );
    }

    #[test]
    fn gpus_of_others_are_charged_as_gpus_and_bounded_by_name() {
        let text = r#"{"spec":{"containers":[{"resources":{"limits":{"amd.com/gpu":2,"example.com/vgpu":3,"nvidia.com/gpu":1}}}]}}"#;
        let pod: Pod = serde_json::from_str(text).unwrap();
        let (requests, ask) = pod.requests(&mut Vec::new());
        assert_eq!(ask.whole, 3);
        let named = [("amd.com/gpu", 2), ("example.com/vgpu", 3)].map(|(name, amount)| (name.to_owned(), amount));
        assert_eq!(requests.extended, named);
    }

    #[test]
    fn a_bad_amount_names_its_container() {
        let text = r#"{"spec":{"containers":[{},{"resources":{"requests":{"cpu":"-1"}}}]}}"#;
        let pod: Pod = serde_json::from_str(text).unwrap();
        let mut errors = Vec::new();
        pod.requests(&mut errors);
        assert_eq!(errors[0].field, "spec.containers[1].resources.requests.cpu");
    }
}
