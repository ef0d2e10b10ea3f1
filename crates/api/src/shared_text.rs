//! An interner for strings that many objects share: label keys, node names, amounts. It is a cache of fixed size that keeps the last string
//! of each bucket, so it can't grow and needs no garbage collection. A miss costs a copy.

use std::hash::Hasher;
use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHasher;

/// Each shard has a lock, since several watches are read concurrently.
const SHARDS: usize = 16;
/// Buckets of a shard. All shards together have room for the names of some thousand nodes and other strings.
const BUCKETS: usize = 1024;
/// Longer strings are rarely equal and are not cached.
const BYTES_MAX: usize = 64;

/// Plain locks: held for one look-up.
static CACHE: [Mutex<Vec<Option<Arc<str>>>>; SHARDS] = [const { Mutex::new(Vec::new()) }; SHARDS];

/// The string, shared with an equal one in the cache.
pub(crate) fn shared(text: &str) -> Arc<str> {
    if text.len() > BYTES_MAX {
        return text.into();
    }
    let mut hasher = FxHasher::default();
    hasher.write(text.as_bytes());
    let hash = hasher.finish();
    // The casts only drop bits that the remainders don't need.
    let (shard, bucket) = (hash as usize % SHARDS, hash as usize / SHARDS % BUCKETS);
    let mut buckets = CACHE[shard].lock();
    if buckets.is_empty() {
        buckets.resize(BUCKETS, None);
    }
    match &mut buckets[bucket] {
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
        for number in 0..2 * SHARDS * BUCKETS {
            let text = number.to_string();
            assert_eq!(&*shared(&text), text);
        }
    }
}
