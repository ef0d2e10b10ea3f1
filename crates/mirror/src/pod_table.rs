//! The pods of the mirror, by name and by uid. A slab holds the entries, and two hash tables hold their indices in it: hash tables of
//! entries would waste a third of their memory or more on free buckets.

use std::hash::{BuildHasher, Hash};

use hashbrown::HashTable;
use kai_api::ObjectKey;
use rustc_hash::FxBuildHasher;
use slab::Slab;

use super::pods::PodEntry;

/// Index of an entry in the slab. 32 bits suffice for more pods than fit into memory.
type EntryIndex = u32;

#[derive(Debug, Default)]
pub(super) struct PodTable {
    entries: Slab<PodEntry>,
    by_key: HashTable<EntryIndex>,
    by_uid: HashTable<EntryIndex>,
}

impl PodTable {
    pub(super) fn get(&self, key: &ObjectKey) -> Option<&PodEntry> {
        self.index(key).map(|index| &self.entries[index])
    }

    pub(super) fn get_mut(&mut self, key: &ObjectKey) -> Option<&mut PodEntry> {
        self.index(key).map(|index| &mut self.entries[index])
    }

    pub(super) fn by_uid(&self, uid: &str) -> Option<&PodEntry> {
        let matches = |index: &EntryIndex| *self.entries[*index as usize].uid == *uid;
        let index = self.by_uid.find(digest(uid), matches)?;
        Some(&self.entries[*index as usize])
    }

    /// Adds a pod whose key is not in the table.
    pub(super) fn add(&mut self, entry: PodEntry) {
        debug_assert!(self.index(&entry.key).is_none(), "{} is in the table", entry.key);
        let (by_key, by_uid) = (digest(&entry.key), digest(&*entry.uid));
        let index = self.entries.insert(entry);
        let index = EntryIndex::try_from(index).expect("so many pods don't fit into memory");
        let entries = &self.entries;
        self.by_key
            .insert_unique(by_key, index, |index| digest(&entries[*index as usize].key));
        self.by_uid
            .insert_unique(by_uid, index, |index| digest(&*entries[*index as usize].uid));
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) -> Option<PodEntry> {
        let index = self.index(key)?;
        let entry = self.entries.remove(index);
        for (table, digest) in [(&mut self.by_key, digest(key)), (&mut self.by_uid, digest(&*entry.uid))] {
            if let Ok(found) = table.find_entry(digest, |other| *other as usize == index) {
                found.remove();
            }
        }
        Some(entry)
    }

    fn index(&self, key: &ObjectKey) -> Option<usize> {
        let matches = |index: &EntryIndex| self.entries[*index as usize].key == *key;
        self.by_key.find(digest(key), matches).map(|index| *index as usize)
    }
}

fn digest<T: Hash + ?Sized>(of: &T) -> u64 {
    FxBuildHasher.hash_one(of)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn entry(name: &str, uid: &str) -> PodEntry {
        PodEntry::new(&ObjectKey::new("n", name), uid.into(), &Arc::default())
    }

    #[test]
    fn pods_are_found_by_both_names_until_they_go() {
        let mut table = PodTable::default();
        let numbers = 0..1_000;
        for number in numbers.clone() {
            table.add(entry(&format!("pod-{number}"), &format!("uid-{number}")));
        }
        for number in numbers.clone().step_by(3) {
            let gone = table.remove(&ObjectKey::new("n", &format!("pod-{number}")));
            assert_eq!(&*gone.unwrap().uid, format!("uid-{number}"));
        }
        table.add(entry("pod-0", "uid-new"));
        for number in numbers.skip(1) {
            let stays = number % 3 != 0;
            let by_key = table.get(&ObjectKey::new("n", &format!("pod-{number}")));
            let by_uid = table.by_uid(&format!("uid-{number}"));
            assert_eq!((by_key.is_some(), by_uid.is_some()), (stays, stays), "{number}");
        }
        assert!(table.by_uid("uid-0").is_none());
        assert_eq!(&*table.by_uid("uid-new").unwrap().key.name, "pod-0");
    }
}
