//! The volumes of a pod that affect scheduling: those of claims and of ConfigMaps. Parsing drops all others.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use super::chosen::chosen;
use super::config_maps::Reference;
use crate::text::Text;

/// The claim of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeClaim {
    /// A claim that is an object of its own (`persistentVolumeClaim`).
    Persistent {
        /// Its name.
        claim: Text,
    },
    /// A claim that Kubernetes creates for the pod (`ephemeral`).
    Ephemeral {
        /// Name of the volume.
        volume: Text,
    },
}

impl VolumeClaim {
    /// The name of the claim, in the pod's namespace.
    pub fn claim_name(&self, pod: &str) -> Cow<'_, str> {
        match self {
            VolumeClaim::Persistent { claim } => Cow::Borrowed(claim),
            VolumeClaim::Ephemeral { volume } => Cow::Owned(format!("{pod}-{volume}")),
        }
    }
}

/// The volumes of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Volumes {
    pub(super) claims: Vec<VolumeClaim>,
    /// Volume and ConfigMap; empty after parsing, which keeps the mounted ones elsewhere.
    pub(super) config_maps: Vec<(Text, Text)>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawVolume {
    name: Option<Text>,
    persistent_volume_claim: Option<RawClaim>,
    ephemeral: Option<IgnoredAny>,
    config_map: Option<Reference>,
    projected: Option<RawProjection>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawClaim {
    claim_name: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawProjection {
    #[serde(deserialize_with = "projected")]
    sources: Vec<Text>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawProjectedSource {
    config_map: Option<Reference>,
}

fn projected<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Text>, D::Error> {
    chosen(deserializer, |source: RawProjectedSource| source.config_map?.required())
}

/// The kept part of a volume.
enum Kept {
    Claim(VolumeClaim),
    ConfigMaps { volume: Text, maps: Vec<Text> },
}

impl RawVolume {
    fn kept(self) -> Option<Kept> {
        let volume = self.name.unwrap_or_default();
        if let Some(claim) = self.persistent_volume_claim {
            let claim = claim.claim_name.unwrap_or_default();
            return Some(Kept::Claim(VolumeClaim::Persistent { claim }));
        }
        if self.ephemeral.is_some() {
            return Some(Kept::Claim(VolumeClaim::Ephemeral { volume }));
        }
        let mut maps = self.projected.unwrap_or_default().sources;
        maps.extend(self.config_map.and_then(Reference::required));
        (!maps.is_empty()).then_some(Kept::ConfigMaps { volume, maps })
    }
}

impl<'de> Deserialize<'de> for Volumes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut volumes = Volumes::default();
        for kept in chosen(deserializer, RawVolume::kept)? {
            match kept {
                Kept::Claim(claim) => {
                    // Most pods have one claim.
                    volumes.claims.reserve_exact(1);
                    volumes.claims.push(claim);
                }
                Kept::ConfigMaps { volume, maps } => {
                    let named = maps.into_iter().map(|map| (volume.clone(), map));
                    volumes.config_maps.extend(named);
                }
            }
        }
        Ok(volumes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Pod;

    #[test]
    fn only_claims_are_kept() {
        let pod: Pod = serde_json::from_str(
            r#"{"spec":{"volumes":[{"name":"a","configMap":{"name":"c"}},{"name":"b","persistentVolumeClaim":{"claimName":"data"}},
                {"name":"scratch","ephemeral":{"volumeClaimTemplate":{}}}]}}"#,
        )
        .unwrap();
        let names: Vec<_> = pod
            .volume_claims()
            .iter()
            .map(|claim| claim.claim_name("p").into_owned())
            .collect();
        assert_eq!(names, ["data", "p-scratch"]);
    }
}
