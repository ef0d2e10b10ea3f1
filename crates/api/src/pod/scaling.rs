//! Scaling pods, which make cluster autoscalers add nodes.

use super::Pod;
use crate::{ObjectKey, keys};

impl Pod {
    /// The pod for which a scaling pod was created: by annotation, or by the labels of KAI, which can't hold long names.
    pub fn scaling_origin(&self) -> Option<ObjectKey> {
        if let Some(text) = self.metadata.annotations.text(keys::SCALING_FOR) {
            let (namespace, name) = text.split_once('/')?;
            return Some(ObjectKey::new(namespace, name));
        }
        let label = |key: &str| self.metadata.labels.text(key);
        Some(ObjectKey::new(
            label(keys::SCALING_FOR_NAMESPACE)?,
            label(keys::SCALING_FOR_POD)?,
        ))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_annotation_counts_before_the_labels() {
        let origin = |annotations: serde_json::Value| {
            let labels = json!({ "shared-gpu-pod-name": "p", "shared-gpu-pod-namespace": "team" });
            let pod = json!({ "metadata": { "name": "s", "labels": labels, "annotations": annotations } });
            serde_json::from_value::<Pod>(pod).unwrap().scaling_origin()
        };
        assert_eq!(origin(json!({})), Some(ObjectKey::new("team", "p")));
        assert_eq!(
            origin(json!({ "kai.scheduler/scaling-for": "a/b" })),
            Some(ObjectKey::new("a", "b"))
        );
        assert_eq!(Pod::default().scaling_origin(), None);
    }
}
