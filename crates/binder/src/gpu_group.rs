//! GPU groups: the pods that share one GPU of one node. A reservation pod holds that GPU; its name follows from node and group.

use kai_api::keys;
use sha2::{Digest, Sha256};

/// A GPU group on a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuGroupKey {
    /// The node.
    pub node: Box<str>,
    /// The id of the group.
    pub group: Box<str>,
}

impl GpuGroupKey {
    /// A group on a node.
    pub fn new(node: &str, group: &str) -> GpuGroupKey {
        GpuGroupKey {
            node: node.into(),
            group: group.into(),
        }
    }
}

impl std::fmt::Display for GpuGroupKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {}", self.group, self.node)
    }
}

/// Bytes of the digest that go into a name.
const DIGEST_BYTES: usize = 8;

/// The name of the group's reservation pod. Names are unique, so a group can't have two reservation pods.
pub fn reservation_name(key: &GpuGroupKey) -> String {
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
            reservation_name(&GpuGroupKey::new("node-1", "8a1f")),
            "gpu-reservation-28df1ef9c5995ef6"
        );
        assert_ne!(
            reservation_name(&GpuGroupKey::new("a", "g")),
            reservation_name(&GpuGroupKey::new("b", "g"))
        );
    }
}
