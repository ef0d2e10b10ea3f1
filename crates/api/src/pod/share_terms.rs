//! What a pod requires of the GPUs that it shares besides their size: the compute mode, and enforced GPU memory.

use kai_engine::model::{ComputeMode, Enforcement, ShareTerms};

use crate::GpuShareTerms;

impl From<GpuShareTerms> for ShareTerms {
    fn from(terms: GpuShareTerms) -> ShareTerms {
        ShareTerms {
            compute_mode: terms.compute_mode.into(),
            enforcement: terms.enforcement.into(),
        }
    }
}

impl From<crate::Enforcement> for Enforcement {
    fn from(enforcement: crate::Enforcement) -> Enforcement {
        match enforcement {
            crate::Enforcement::Preferred => Enforcement::Preferred,
            crate::Enforcement::Required => Enforcement::Required,
        }
    }
}

impl From<crate::ComputeMode> for ComputeMode {
    fn from(mode: crate::ComputeMode) -> ComputeMode {
        match mode {
            crate::ComputeMode::TimeSlicing => ComputeMode::TimeSlicing,
            crate::ComputeMode::SmSharing => ComputeMode::SmSharing,
        }
    }
}

impl From<ComputeMode> for crate::ComputeMode {
    fn from(mode: ComputeMode) -> crate::ComputeMode {
        match mode {
            ComputeMode::TimeSlicing => crate::ComputeMode::TimeSlicing,
            ComputeMode::SmSharing => crate::ComputeMode::SmSharing,
        }
    }
}

#[cfg(test)]
mod tests {
    use kai_engine::model::Millis;
    use serde_json::json;

    use super::*;
    use crate::{Pod, PodIdentity};

    fn terms(annotations: serde_json::Value) -> (ShareTerms, Vec<String>) {
        let pod = json!({
            "metadata": { "name": "p", "annotations": annotations },
            "spec": { "containers": [{ "name": "main" }, { "name": "sidecar" }] },
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let read = pod.read(&PodIdentity::default(), Millis(0)).unwrap();
        let problems = read.problems.iter().map(ToString::to_string).collect();
        (read.value.constraints.share, problems)
    }

    #[test]
    fn the_mode_is_read() {
        use ComputeMode::{SmSharing, TimeSlicing};
        let main = "nvidia.com/container.main.gpu-compute.mode";
        let sidecar = "nvidia.com/container.sidecar.gpu-compute.mode";
        let cases = [
            (json!({ "gpu-fraction": "0.5" }), TimeSlicing),
            (json!({ "gpu-fraction": "0.5", main: "time-slicing" }), TimeSlicing),
            (json!({ "gpu-fraction": "0.5", main: "sm-sharing" }), SmSharing),
            (
                json!({ sidecar: "sm-sharing", "nvidia.com/container.sidecar.gpu-memory.request": "4Gi" }),
                SmSharing,
            ),
        ];
        for (annotations, mode) in cases {
            let (terms, errors) = terms(annotations.clone());
            assert_eq!((terms.compute_mode, errors), (mode, Vec::new()), "{annotations}");
        }
    }

    #[test]
    fn an_unknown_value_refuses_the_pod_with_the_known_ones() {
        let (_, errors) = terms(json!({ "kai.scheduler/gpu-enforcement": "always" }));
        let expect = "metadata.annotations.kai.scheduler/gpu-enforcement: \"always\" is unknown; known are required and preferred";
        assert!(errors.len() == 1 && errors[0].contains(expect), "{errors:?}");
        let (_, errors) = terms(json!({ "gpu-fraction": "0.5", "nvidia.com/container.main.gpu-compute.mode": "mps" }));
        assert!(
            errors.len() == 1 && errors[0].contains("known are time-slicing and sm-sharing"),
            "{errors:?}"
        );
        let (required, errors) = terms(json!({ "kai.scheduler/gpu-enforcement": "required" }));
        assert_eq!((required.enforcement, errors.len()), (Enforcement::Required, 0));
    }
}
