//! Interning: equal values share one id, so that the tables stay small and comparisons are integer compares.

use rustc_hash::FxHashMap;

use crate::ids::{GpuGroupId, Symbol};

/// Interned strings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Symbols {
    ids: FxHashMap<Box<str>, Symbol>,
    texts: Vec<Box<str>>,
}

impl Symbols {
    pub(crate) fn intern(&mut self, text: &str) -> Symbol {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let id = Symbol::new(self.texts.len());
        self.texts.push(text.into());
        self.ids.insert(text.into(), id);
        id
    }

    pub(crate) fn get(&self, text: &str) -> Option<Symbol> {
        self.ids.get(text).copied()
    }

    pub(crate) fn text(&self, id: Symbol) -> &str {
        &self.texts[id.index()]
    }
}

/// Names of GPU groups. A UUID is its own id; other names are hashed, and kept here for the way back.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuGroupNames {
    other_names: FxHashMap<GpuGroupId, Box<str>>,
}

impl GpuGroupNames {
    /// The id of the GPU group of this name.
    pub(crate) fn id(&mut self, name: &str) -> GpuGroupId {
        if let Some(id) = parse_uuid(name) {
            return GpuGroupId::new(id);
        }
        let id = GpuGroupId::new(hash128(&[name.as_bytes()]));
        self.other_names.entry(id).or_insert_with(|| name.into());
        id
    }

    pub(crate) fn text(&self, id: GpuGroupId) -> String {
        match self.other_names.get(&id) {
            Some(name) => name.to_string(),
            None => format_uuid(id.bits()),
        }
    }
}

/// The id of a new GPU group. It is a function of its first pod, the node and `ordinal`, which tells apart several GPUs of one pod, so
/// that equal decisions give equal names on every machine.
pub(crate) fn new_gpu_group_id(pod_uid: &str, node: &str, ordinal: u32) -> GpuGroupId {
    // UUID version 8, variant 1, for custom content (RFC 9562).
    let bits = hash128(&[pod_uid.as_bytes(), node.as_bytes(), &ordinal.to_le_bytes()]);
    GpuGroupId::new(bits & !(0xf << 76) & !(0x3 << 62) | (0x8 << 76) | (0x2 << 62))
}

/// Without `format!`, which takes ten times as long: every pod with a shared GPU needs the text.
fn format_uuid(bits: u128) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [b'-'; 36];
    let mut at = 0;
    for (count, byte) in bits.to_be_bytes().into_iter().enumerate() {
        if matches!(count, 4 | 6 | 8 | 10) {
            at += 1;
        }
        text[at] = DIGITS[usize::from(byte >> 4)];
        text[at + 1] = DIGITS[usize::from(byte & 0xf)];
        at += 2;
    }
    std::str::from_utf8(&text)
        .expect("digits and dashes are text")
        .to_owned()
}

fn parse_uuid(text: &str) -> Option<u128> {
    let bytes = text.as_bytes();
    let dashes = |at: usize| matches!(at, 8 | 13 | 18 | 23);
    if bytes.len() != 36 {
        return None;
    }
    let mut bits = 0u128;
    for (at, byte) in bytes.iter().enumerate() {
        let digit = match byte {
            b'-' if dashes(at) => continue,
            b'0'..=b'9' if !dashes(at) => byte - b'0',
            // A UUID in upper case would come back in lower case, so it is treated as another name.
            b'a'..=b'f' if !dashes(at) => byte - b'a' + 10,
            _ => return None,
        };
        bits = bits << 4 | u128::from(digit);
    }
    Some(bits)
}

/// 128-bit FNV-1a: the same on all machines and in all releases, unlike the hashers of the standard library.
fn hash128(parts: &[&[u8]]) -> u128 {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for part in parts {
        for byte in part.iter().chain(&[0xff]) {
            hash = (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_names_survive_the_round_trip() {
        let mut names = GpuGroupNames::default();
        for name in [
            "0",
            "gpu-a",
            "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
            "3F2504E0-4F89-11D3-9A0C-0305E82C3301",
        ] {
            let id = names.id(name);
            assert_eq!(names.text(id), name);
            assert_eq!(names.id(name), id);
        }
    }

    #[test]
    fn fresh_groups_are_uuids_that_differ_by_pod_node_and_device() {
        let names = GpuGroupNames::default();
        let groups = [
            new_gpu_group_id("a", "n", 0),
            new_gpu_group_id("b", "n", 0),
            new_gpu_group_id("a", "m", 0),
            new_gpu_group_id("a", "n", 1),
        ];
        for (at, group) in groups.iter().enumerate() {
            let text = names.text(*group);
            assert_eq!(parse_uuid(&text), Some(group.bits()));
            assert_eq!(&text[14..15], "8");
            assert!(!groups[..at].contains(group));
        }
    }
}
