//! What a node offers to pods with GPU shares: its enforcement tier, and the condition of NVIDIA's gpu-fractioning.

use kai_engine::model::{EnforcementTier, FractioningCondition};

use crate::error::FieldError;
use crate::{Error, Node, keys};

const TIERS: &str = "driver, mps, watch and none";

impl Node {
    /// The tier in the node agent's label. A node without the label enforces nothing.
    pub(crate) fn enforcement(&self) -> Result<EnforcementTier, FieldError> {
        let Some(text) = self.metadata.labels.text(keys::GPU_ENFORCEMENT) else {
            return Ok(EnforcementTier::None);
        };
        crate::EnforcementTier::from_name(text)
            .map(EnforcementTier::from)
            .ok_or_else(|| {
                let error = Error::Unknown {
                    text: text.to_owned(),
                    known: TIERS,
                };
                FieldError::new(format!("metadata.labels.{}", keys::GPU_ENFORCEMENT), error)
            })
    }

    /// The condition that the mode `NvFractions` requires of nodes for pods with GPU shares.
    pub fn fractioning_condition(&self) -> FractioningCondition {
        let conditions = self.conditions().iter();
        let mut found = conditions.filter(|condition| condition.kind() == keys::NODE_GPU_FRACTIONING_READY);
        match found.next_back().map(|condition| condition.status()) {
            None => FractioningCondition::NotFound,
            Some("True") => FractioningCondition::Met,
            Some("False") => FractioningCondition::False,
            Some(_) => FractioningCondition::Unknown,
        }
    }
}

impl From<crate::EnforcementTier> for EnforcementTier {
    fn from(tier: crate::EnforcementTier) -> EnforcementTier {
        match tier {
            crate::EnforcementTier::Driver => EnforcementTier::Driver,
            crate::EnforcementTier::Mps => EnforcementTier::Mps,
            crate::EnforcementTier::Watch => EnforcementTier::Watch,
            crate::EnforcementTier::None => EnforcementTier::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(labels: serde_json::Value, conditions: serde_json::Value) -> Node {
        let node = json!({ "metadata": { "name": "n", "labels": labels }, "status": { "conditions": conditions } });
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn both_crates_agree_on_what_tiers_hold() {
        for tier in ["driver", "mps", "watch", "none"] {
            let read = node(json!({ "kai.scheduler/gpu-enforcement": tier }), json!([]))
                .enforcement()
                .unwrap();
            let of_api = crate::EnforcementTier::from_name(tier).unwrap();
            assert_eq!(read, EnforcementTier::from(of_api));
            assert_eq!(read.limits_memory(), of_api.limits_memory(), "{tier}");
        }
        assert_eq!(node(json!({}), json!([])).enforcement().unwrap(), EnforcementTier::None);
        let read = node(json!({ "kai.scheduler/gpu-enforcement": "Driver" }), json!([]))
            .read()
            .unwrap();
        assert_eq!(read.value.enforcement, EnforcementTier::None);
        assert_eq!(
            read.problems[0].to_string(),
            "Node n: metadata.labels.kai.scheduler/gpu-enforcement: \"Driver\" is unknown; known are driver, mps, watch and none (the \
             label is ignored)"
        );
    }

    #[test]
    fn the_condition_is_read_by_its_status() {
        let condition = |status: &str| {
            let condition = json!([{ "type": "gpu-fractioning.nvidia.com/Ready", "status": status }]);
            node(json!({}), condition).fractioning_condition()
        };
        assert_eq!(condition("True"), FractioningCondition::Met);
        assert_eq!(condition("False"), FractioningCondition::False);
        assert_eq!(condition("Unknown"), FractioningCondition::Unknown);
        assert_eq!(
            node(json!({}), json!([])).fractioning_condition(),
            FractioningCondition::NotFound
        );
    }
}
