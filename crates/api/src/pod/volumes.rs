//! Volumes of a pod, as far as they decide where it can run: those behind claims. All others are dropped when read.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use super::chosen::chosen;
use crate::text::Text;

/// A volume that is behind a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeClaim {
    /// A claim that exists on its own.
    Persistent {
        /// Its name.
        claim: Text,
    },
    /// A claim that is made for the pod and goes with it.
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

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawVolume {
    name: Option<Text>,
    persistent_volume_claim: Option<RawClaim>,
    ephemeral: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawClaim {
    claim_name: Option<Text>,
}

impl RawVolume {
    fn claim(self) -> Option<VolumeClaim> {
        if let Some(claim) = self.persistent_volume_claim {
            let claim = claim.claim_name.unwrap_or_default();
            return Some(VolumeClaim::Persistent { claim });
        }
        self.ephemeral?;
        let volume = self.name.unwrap_or_default();
        Some(VolumeClaim::Ephemeral { volume })
    }
}

/// For `#[serde(deserialize_with)]`.
pub(super) fn claims<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<VolumeClaim>, D::Error> {
    chosen(deserializer, RawVolume::claim)
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
