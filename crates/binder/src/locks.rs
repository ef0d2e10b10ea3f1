//! Who works on a group at the moment. A busy group is never waited for: whoever finds it so is called again when it is free, so a
//! stuck group holds up nobody but itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kai_api::ObjectKey;
use kai_cluster::WorkQueue;

use crate::GroupKey;

/// Who wants a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Worker {
    /// The bind of this request.
    Bind(ObjectKey),
    /// The care for this group.
    Care(GroupKey),
}

/// The groups in work. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Locks {
    /// The groups in work, and who is to be called when they are free. A plain lock: held for map operations only.
    held: Arc<Mutex<BTreeMap<GroupKey, BTreeSet<Worker>>>>,
    binds: WorkQueue<ObjectKey>,
    care: WorkQueue<GroupKey>,
}

/// The right to work on some groups, until it is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    locks: Locks,
    keys: Vec<GroupKey>,
}

impl Locks {
    pub(crate) fn new(binds: &WorkQueue<ObjectKey>, care: &WorkQueue<GroupKey>) -> Locks {
        Locks {
            held: Arc::default(),
            binds: binds.clone(),
            care: care.clone(),
        }
    }

    /// All of the groups or none; if one of them is busy, the worker is called again once it is free.
    pub(crate) fn take(&self, keys: &[GroupKey], worker: Worker) -> Option<Hold> {
        let mut held = self.lock();
        if let Some(waiting) = keys.iter().find(|key| held.contains_key(*key)) {
            if let Some(workers) = held.get_mut(waiting) {
                workers.insert(worker);
            }
            return None;
        }
        for key in keys {
            held.insert(key.clone(), BTreeSet::new());
        }
        drop(held);
        Some(Hold {
            locks: self.clone(),
            keys: keys.to_vec(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<GroupKey, BTreeSet<Worker>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let workers: Vec<Worker> = {
            let mut held = self.locks.lock();
            self.keys
                .iter()
                .flat_map(|key| held.remove(key).unwrap_or_default())
                .collect()
        };
        for worker in workers {
            match worker {
                Worker::Bind(key) => self.locks.binds.add(key),
                Worker::Care(key) => self.locks.care.add(key),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_busy_group_calls_back_and_others_stay_free() {
        let (binds, care) = (WorkQueue::new(Default::default()), WorkQueue::new(Default::default()));
        let locks = Locks::new(&binds, &care);
        let (a, b, c) = (
            GroupKey::new("n", "a"),
            GroupKey::new("n", "b"),
            GroupKey::new("n", "c"),
        );
        let request = ObjectKey::new("ns", "p");
        let held = locks.take(&[a.clone(), b.clone()], Worker::Care(a.clone())).unwrap();
        assert!(
            locks
                .take(&[b.clone(), c.clone()], Worker::Bind(request.clone()))
                .is_none()
        );
        assert!(locks.take(std::slice::from_ref(&a), Worker::Care(a.clone())).is_none());
        assert!(
            locks.take(std::slice::from_ref(&c), Worker::Care(c.clone())).is_some(),
            "half a hold is none"
        );
        assert!(binds.is_empty() && care.is_empty());
        drop(held);
        assert_eq!(binds.next().await, request);
        assert_eq!(care.next().await, a);
        assert!(locks.take(&[b, c], Worker::Bind(request)).is_some());
    }
}
