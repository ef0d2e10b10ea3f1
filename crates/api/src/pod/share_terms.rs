//! What a pod requires of the GPUs that it shares besides their size: the compute mode, and enforced GPU memory.

use kai_engine::model::{ComputeMode, Enforcement, ShareTerms};

use super::Pod;
use crate::error::FieldError;
use crate::{Error, keys};

const COMPUTE_MODES: &str = "time-slicing and sm-sharing";
const ENFORCEMENTS: &str = "required and preferred";

impl Pod {
    /// The requirements in the pod's annotations. An unknown value counts as the default, and its error goes to `errors`.
    pub(super) fn share_terms(&self, errors: &mut Vec<FieldError>) -> ShareTerms {
        let mut reject = |key: &str, text: &str, known| {
            let text = text.to_owned();
            let error = Error::Unknown { text, known };
            errors.push(FieldError::new(format!("metadata.annotations.{key}"), error));
        };
        let mut terms = ShareTerms::default();
        match self.metadata.annotations.text(keys::GPU_ENFORCEMENT) {
            None | Some("preferred") => {}
            Some("required") => terms.enforcement = Enforcement::Required,
            Some(other) => reject(keys::GPU_ENFORCEMENT, other, ENFORCEMENTS),
        }
        if let Some((key, mode)) = self.compute_mode_annotation() {
            match crate::ComputeMode::from_name(mode) {
                Some(mode) => terms.compute_mode = mode.into(),
                None => reject(&key, mode, COMPUTE_MODES),
            }
        }
        terms
    }

    /// The annotation with the compute mode of the container that has the GPU share, and its value.
    fn compute_mode_annotation(&self) -> Option<(String, &str)> {
        let annotations = &self.metadata.annotations;
        let has_mode = |key: &str| key.starts_with(keys::CONTAINER_PREFIX) && key.ends_with(keys::COMPUTE_MODE_SUFFIX);
        // Nearly all pods have no such annotation: one look at the keys is enough.
        if !annotations.iter().any(|(key, _)| has_mode(key)) {
            return None;
        }
        let named = annotations.text(keys::GPU_FRACTION_CONTAINER);
        let requested = annotations.iter().find_map(|(key, _)| {
            let rest = key.strip_prefix(keys::CONTAINER_PREFIX)?;
            rest.strip_suffix(keys::CONTAINER_GPU_MEMORY_SUFFIX)
        });
        let first = || self.spec.containers.first()?.name.as_deref();
        let container = named.or(requested).or_else(first)?;
        let key = format!("{}{container}{}", keys::CONTAINER_PREFIX, keys::COMPUTE_MODE_SUFFIX);
        let mode = annotations.text(&key)?;
        Some((key, mode))
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
    use serde_json::json;

    use super::*;

    fn terms(annotations: serde_json::Value) -> (ShareTerms, Vec<String>) {
        let pod = json!({
            "metadata": { "name": "p", "annotations": annotations },
            "spec": { "containers": [{ "name": "main" }, { "name": "sidecar" }] },
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let mut errors = Vec::new();
        let terms = pod.share_terms(&mut errors);
        let texts = errors.iter().map(|error| format!("{}: {}", error.field, error.error));
        (terms, texts.collect())
    }

    #[test]
    fn the_mode_of_the_container_with_the_share_counts() {
        use ComputeMode::{SmSharing, TimeSlicing};
        let main = "nvidia.com/container.main.gpu-compute.mode";
        let sidecar = "nvidia.com/container.sidecar.gpu-compute.mode";
        let cases = [
            (json!({}), TimeSlicing),
            (json!({ main: "time-slicing" }), TimeSlicing),
            (json!({ main: "sm-sharing" }), SmSharing),
            (json!({ sidecar: "sm-sharing" }), TimeSlicing),
            (
                json!({ sidecar: "sm-sharing", "gpu-fraction-container-name": "sidecar" }),
                SmSharing,
            ),
            (
                json!({ main: "sm-sharing", "gpu-fraction-container-name": "sidecar" }),
                TimeSlicing,
            ),
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
    fn unknown_values_are_errors_with_the_known_ones() {
        let (_, errors) = terms(json!({
            "kai.scheduler/gpu-enforcement": "always",
            "nvidia.com/container.main.gpu-compute.mode": "mps",
        }));
        assert_eq!(
            errors,
            [
                "metadata.annotations.kai.scheduler/gpu-enforcement: \"always\" is unknown; known are required and preferred",
                "metadata.annotations.nvidia.com/container.main.gpu-compute.mode: \"mps\" is unknown; known are time-slicing \
                 and sm-sharing",
            ]
        );
        let (required, errors) = terms(json!({ "kai.scheduler/gpu-enforcement": "required" }));
        assert_eq!((required.enforcement, errors.len()), (Enforcement::Required, 0));
    }
}
