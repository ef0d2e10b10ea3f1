//! The pods of the mirror, found by name and by uid. The entries lie side by side and both tables hold their places only: in a hash
//! table of entries a third of the room or more would be free.

use std::hash::{BuildHasher, Hash};

use hashbrown::HashTable;
use kai_api::ObjectKey;
use rustc_hash::FxBuildHasher;
use slab::Slab;

use super::pods::Entry;

/// Place of an entry; half the size of a pointer, and more pods than any memory holds.
type Place = u32;

#[derive(Debug, Default)]
pub(super) struct PodTable {
    entries: Slab<Entry>,
    by_key: HashTable<Place>,
    by_uid: HashTable<Place>,
}

impl PodTable {
    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Entry> {
        self.place(key).map(|place| &self.entries[place])
    }

    pub(super) fn get_mut(&mut self, key: &ObjectKey) -> Option<&mut Entry> {
        self.place(key).map(|place| &mut self.entries[place])
    }

    pub(super) fn by_uid(&self, uid: &str) -> Option<&Entry> {
        let is_it = |place: &Place| *self.entries[*place as usize].uid == *uid;
        let place = self.by_uid.find(digest(uid), is_it)?;
        Some(&self.entries[*place as usize])
    }

    /// Adds a pod whose key is not there.
    pub(super) fn add(&mut self, entry: Entry) {
        debug_assert!(self.place(&entry.key).is_none(), "{} is there", entry.key);
        let (by_key, by_uid) = (digest(&entry.key), digest(&*entry.uid));
        let place = self.entries.insert(entry);
        let place = Place::try_from(place).expect("so many pods don't fit into memory");
        let entries = &self.entries;
        self.by_key
            .insert_unique(by_key, place, |place| digest(&entries[*place as usize].key));
        self.by_uid
            .insert_unique(by_uid, place, |place| digest(&*entries[*place as usize].uid));
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) -> Option<Entry> {
        let place = self.place(key)?;
        let entry = self.entries.remove(place);
        for (table, digest) in [(&mut self.by_key, digest(key)), (&mut self.by_uid, digest(&*entry.uid))] {
            if let Ok(found) = table.find_entry(digest, |other| *other as usize == place) {
                found.remove();
            }
        }
        Some(entry)
    }

    fn place(&self, key: &ObjectKey) -> Option<usize> {
        let is_it = |place: &Place| self.entries[*place as usize].key == *key;
        self.by_key.find(digest(key), is_it).map(|place| *place as usize)
    }
}

fn digest<T: Hash + ?Sized>(of: &T) -> u64 {
    FxBuildHasher.hash_one(of)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn entry(name: &str, uid: &str) -> Entry {
        Entry::new(&ObjectKey::new("n", name), uid.into(), &Arc::default())
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
