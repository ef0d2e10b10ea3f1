//! Stable UUIDs for devices without one. Callers pass the words that a UUID is derived from; the machine is not read here.

/// Derives a UUID from words: the same words always give the same UUID. Version 8 (custom) of RFC 9562: version 5 would need SHA-1 and has
/// no advantage, since no other program derives these UUIDs. FNV-1a never changes, unlike the standard library's hasher.
pub fn stable_uuid(words: &[&str]) -> String {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let mut hash = OFFSET;
    for word in words {
        // The separator distinguishes ["ab", "c"] from ["a", "bc"].
        for byte in word.bytes().chain(std::iter::once(0xff)) {
            hash = (hash ^ u128::from(byte)).wrapping_mul(PRIME);
        }
    }
    // FNV mixes its low bits worse than its high bits, so they are folded once.
    let mixed = (hash ^ (hash >> 67)).wrapping_mul(PRIME ^ OFFSET);
    let mut bytes = (mixed ^ (mixed >> 71)).to_be_bytes();
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// Other names of a device: its index, and its UUID without (or with) the prefix `GPU-`.
pub fn aliases_of(index: u32, uuid: &str) -> Vec<String> {
    let other_spelling = match uuid.strip_prefix("GPU-") {
        Some(bare) => bare.to_owned(),
        None => format!("GPU-{uuid}"),
    };
    vec![index.to_string(), other_spelling]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_words_always_give_this_name() {
        // Pinned: these names are in annotations of running pods, so a change would orphan them.
        assert_eq!(
            stable_uuid(&["node-1", "gpu", "0"]),
            "a1818fb1-ba9a-8af5-819c-22fe4215b73f"
        );
    }

    #[test]
    fn different_words_differ() {
        let mut names: Vec<String> = (0..20_000).map(|n| stable_uuid(&["node", &n.to_string()])).collect();
        names.push(stable_uuid(&["no", "de0"]));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 20_001);
    }

    #[test]
    fn aliases_know_both_spellings() {
        assert_eq!(aliases_of(0, "GPU-1-2"), ["0", "1-2"]);
        assert_eq!(aliases_of(1, "1-2"), ["1", "GPU-1-2"]);
    }
}
