//! Access modes and volume modes of volumes and claims.

use serde::{Deserialize, Deserializer};

use crate::text::Text;

/// How a volume can be mounted, or has to be mountable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AccessModes(u8);

const MANY_WRITE: u8 = 1;
const MANY_READ: u8 = 2;
const ONE_POD: u8 = 4;
const ONE_NODE: u8 = 8;
/// A mode that this program does not know. No volume offers it.
const UNKNOWN: u8 = 16;

impl AccessModes {
    /// Whether a volume with these modes has all modes of a claim.
    pub fn offer(self, asked: AccessModes) -> bool {
        asked.0 & UNKNOWN == 0 && self.0 & asked.0 == asked.0
    }

    /// Whether pods on several nodes can use the volume at a time.
    pub fn many_nodes(self) -> bool {
        self.0 & (MANY_WRITE | MANY_READ) != 0
    }

    /// Whether one pod alone can use the volume.
    pub fn one_pod(self) -> bool {
        self.0 & ONE_POD != 0
    }
}

impl<'de> Deserialize<'de> for AccessModes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let modes = Vec::<Text>::deserialize(deserializer)?;
        let bit = |mode: &Text| match mode.as_str() {
            "ReadWriteMany" => MANY_WRITE,
            "ReadOnlyMany" => MANY_READ,
            "ReadWriteOncePod" => ONE_POD,
            "ReadWriteOnce" => ONE_NODE,
            _ => UNKNOWN,
        };
        Ok(AccessModes(modes.iter().map(bit).fold(0, |all, bit| all | bit)))
    }
}

/// What a pod gets of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
pub enum VolumeMode {
    /// A mounted file system.
    #[default]
    Filesystem,
    /// The device.
    Block,
    /// A mode that this program does not know.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_offers_all_modes_that_are_asked_for() {
        let modes = |text: &str| serde_json::from_str::<AccessModes>(text).unwrap();
        let (once, both) = (
            modes(r#"["ReadWriteOnce"]"#),
            modes(r#"["ReadWriteOnce","ReadWriteMany"]"#),
        );
        assert!(both.offer(once) && !once.offer(both));
        assert!(both.many_nodes() && !once.many_nodes());
        assert!(modes(r#"["ReadWriteOncePod"]"#).one_pod());
        let odd = modes(r#"["Telepathy"]"#);
        assert!(!odd.offer(odd));
        let mode = |text: &str| serde_json::from_str::<VolumeMode>(text).unwrap();
        assert_eq!(
            (mode(r#""Block""#), mode(r#""Tape""#)),
            (VolumeMode::Block, VolumeMode::Unknown)
        );
    }
}
