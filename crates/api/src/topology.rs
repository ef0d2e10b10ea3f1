//! Topologies.

use kai_engine::model::{TopologyLevel, TopologySpec};
use serde::Deserialize;

use crate::error::FieldError;
use crate::metadata::Metadata;
use crate::text::{Text, null_as_default};
use crate::{Error, Problem, Read};

const SKIPPED: &str = "the topology is skipped";
/// The schema's bound on levels, checked here too since an object may be older than the schema. The engine counts nodes per level.
const LEVELS_MAX: usize = 16;

/// A Topology.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Topology {
    /// The kind as written; `None` in items of a list, which leaves it out.
    pub kind: Option<Text>,
    /// Metadata.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "null_as_default")]
    spec: Spec,
}

crate::object::object!(Topology, "kai.scheduler", "v1alpha1", "Topology", "topologies", Cluster);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(deserialize_with = "null_as_default")]
    levels: Vec<Level>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Level {
    node_label: Option<Text>,
    alias: Option<Text>,
}

impl Topology {
    /// The engine's type; `Err` if the engine can't take the topology.
    pub fn read(&self) -> Result<Read<TopologySpec>, Problem> {
        let object = || format!("Topology {}", self.metadata.plain_name());
        let value = self.spec().map_err(|error| error.of(object(), SKIPPED))?;
        Ok(Read {
            value,
            problems: Vec::new(),
        })
    }

    fn spec(&self) -> Result<TopologySpec, FieldError> {
        let name = self.metadata.required_name()?.to_owned();
        if self.spec.levels.is_empty() {
            return Err(FieldError::new("spec.levels", Error::Missing));
        }
        let count = self.spec.levels.len();
        if count > LEVELS_MAX {
            let error = Error::TooMany { count, max: LEVELS_MAX };
            return Err(FieldError::new("spec.levels", error));
        }
        let levels = self
            .spec
            .levels
            .iter()
            .enumerate()
            .map(|(at, level)| match level.node_label.as_deref() {
                Some(label) if !label.is_empty() => Ok(TopologyLevel {
                    node_label: label.to_owned(),
                    alias: level
                        .alias
                        .as_deref()
                        .filter(|alias| !alias.is_empty())
                        .map(str::to_owned),
                }),
                _ => Err(FieldError::new(format!("spec.levels[{at}].nodeLabel"), Error::Missing)),
            });
        Ok(TopologySpec {
            name,
            levels: levels.collect::<Result<_, _>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_needs_its_label_and_there_are_at_most_sixteen() {
        let good =
            r#"{"metadata":{"name":"t"},"spec":{"levels":[{"nodeLabel":"rack"},{"nodeLabel":"host","alias":"node"}]}}"#;
        let topology: Topology = serde_json::from_str(good).unwrap();
        assert_eq!(topology.read().unwrap().value.levels.len(), 2);
        let topology: Topology =
            serde_json::from_str(r#"{"metadata":{"name":"t"},"spec":{"levels":[{"alias":"rack"}]}}"#).unwrap();
        let many = format!(
            r#"{{"metadata":{{"name":"t"}},"spec":{{"levels":[{}]}}}}"#,
            ["{}"; 17].join(",")
        );
        let many: Topology = serde_json::from_str(&many).unwrap();
        let text = "Topology t: spec.levels: 17 entries are more than the 16 that are scheduled; leave some out \
                    (the topology is skipped)";
        assert_eq!(many.read().unwrap_err().to_string(), text);
        assert_eq!(
            topology.read().unwrap_err().to_string(),
            "Topology t: spec.levels[0].nodeLabel: it is missing or empty; give it a value (the topology is skipped)"
        );
    }
}
