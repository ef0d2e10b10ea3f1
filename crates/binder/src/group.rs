//! GPU groups: pods that share one GPU of one node, and the name of the reservation pod that holds that GPU for them.

use kai_api::keys;
use sha2::{Digest, Sha256};

/// A GPU group on a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKey {
    /// The node.
    pub node: Box<str>,
    /// The group's id.
    pub group: Box<str>,
}

impl GroupKey {
    /// A group on a node.
    pub fn new(node: &str, group: &str) -> GroupKey {
        GroupKey {
            node: node.into(),
            group: group.into(),
        }
    }
}

impl std::fmt::Display for GroupKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {}", self.group, self.node)
    }
}

/// Bytes of the digest that go into a name.
const DIGEST_BYTES: usize = 8;

/// The name of the group's reservation pod. There can be only one object of a name, so there can be only one reservation.
pub fn reservation_name(key: &GroupKey) -> String {
    let digest = Sha256::digest(format!("{}/{}", key.node, key.group));
    let hex: String = digest
        .iter()
        .take(DIGEST_BYTES)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{}{hex}", keys::RESERVATION_NAME_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_kai() {
        // printf 'node-1/8a1f' | sha256sum | cut -c1-16
        assert_eq!(
            reservation_name(&GroupKey::new("node-1", "8a1f")),
            "gpu-reservation-28df1ef9c5995ef6"
        );
        assert_ne!(
            reservation_name(&GroupKey::new("a", "g")),
            reservation_name(&GroupKey::new("b", "g"))
        );
    }
}
