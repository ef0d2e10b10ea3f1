//! Strings that many objects have in common, kept once: keys of labels, names of nodes, amounts. There is a fixed number of places, each
//! with the string that came there last, so that it can't grow and nothing has to be collected; a miss costs a copy and nothing else.

use std::hash::Hasher;
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHasher;

/// Each with a lock of its own: several watches are read at a time.
const SHARDS: usize = 16;
/// Places of a shard. With the names of some thousand nodes in them, others still find room.
const PLACES: usize = 1024;
/// Longer strings are hardly ever the same.
const BYTES_MAX: usize = 64;

/// Plain locks: held for one look.
static KEPT: [Mutex<Vec<Option<Arc<str>>>>; SHARDS] = [const { Mutex::new(Vec::new()) }; SHARDS];

/// The string, shared with an equal one that was seen before.
pub(crate) fn shared(text: &str) -> Arc<str> {
    if text.len() > BYTES_MAX {
        return text.into();
    }
    let mut hasher = FxHasher::default();
    hasher.write(text.as_bytes());
    let hash = hasher.finish();
    // Both are far below what fits.
    let (shard, place) = (hash as usize % SHARDS, hash as usize / SHARDS % PLACES);
    let mut kept = KEPT[shard].lock().unwrap_or_else(PoisonError::into_inner);
    if kept.is_empty() {
        kept.resize(PLACES, None);
    }
    match &mut kept[place] {
        Some(same) if **same == *text => Arc::clone(same),
        other => Arc::clone(other.insert(text.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_are_one_unless_they_are_long() {
        assert!(Arc::ptr_eq(
            &shared("kubernetes.io/hostname"),
            &shared("kubernetes.io/hostname")
        ));
        let long = "x".repeat(BYTES_MAX + 1);
        assert!(!Arc::ptr_eq(&shared(&long), &shared(&long)));
        assert_eq!(&*shared(&long), long);
    }

    #[test]
    fn more_strings_than_places_are_all_right() {
        for number in 0..2 * SHARDS * PLACES {
            let text = number.to_string();
            assert_eq!(&*shared(&text), text);
        }
    }
}
