//! Locks of groups between binds and garbage collection. No task waits for a lock: a bind or a collection that finds a group locked ends,
//! and is requeued when the lock is released. A stuck group therefore delays no other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kai_api::ObjectKey;
use kai_cluster::WorkQueue;
use parking_lot::Mutex;

use crate::GpuGroupKey;

/// The work that locks a group or waits for its lock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LockOwner {
    /// The bind of this BindRequest.
    Bind(ObjectKey),
    /// The garbage collection of this group.
    Gc(GpuGroupKey),
}

/// The locked groups. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct GroupLocks {
    /// The locked groups, each with the work to requeue on release. A plain lock: held for map operations only.
    held: Arc<Mutex<BTreeMap<GpuGroupKey, BTreeSet<LockOwner>>>>,
    bind_queue: WorkQueue<ObjectKey>,
    gc_queue: WorkQueue<GpuGroupKey>,
}

/// The locks of some groups, released on drop.
#[derive(Debug)]
pub(crate) struct GroupLockGuard {
    locks: GroupLocks,
    keys: Vec<GpuGroupKey>,
}

impl GroupLocks {
    pub(crate) fn new(bind_queue: &WorkQueue<ObjectKey>, gc_queue: &WorkQueue<GpuGroupKey>) -> GroupLocks {
        GroupLocks {
            held: Arc::default(),
            bind_queue: bind_queue.clone(),
            gc_queue: gc_queue.clone(),
        }
    }

    /// Locks all of the groups or none. If a group is locked, `owner` is requeued once that group is released.
    pub(crate) fn try_lock(&self, keys: &[GpuGroupKey], owner: LockOwner) -> Option<GroupLockGuard> {
        let mut held = self.held.lock();
        if let Some(locked) = keys.iter().find(|key| held.contains_key(*key)) {
            if let Some(waiting) = held.get_mut(locked) {
                waiting.insert(owner);
            }
            return None;
        }
        for key in keys {
            held.insert(key.clone(), BTreeSet::new());
        }
        drop(held);
        Some(GroupLockGuard {
            locks: self.clone(),
            keys: keys.to_vec(),
        })
    }
}

impl Drop for GroupLockGuard {
    fn drop(&mut self) {
        let waiting: Vec<LockOwner> = {
            let mut held = self.locks.held.lock();
            self.keys
                .iter()
                .flat_map(|key| held.remove(key).unwrap_or_default())
                .collect()
        };
        for owner in waiting {
            match owner {
                LockOwner::Bind(key) => self.locks.bind_queue.add(key),
                LockOwner::Gc(key) => self.locks.gc_queue.add(key),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_busy_group_calls_back_and_others_stay_free() {
        let (bind_queue, gc_queue) = (WorkQueue::new(Default::default()), WorkQueue::new(Default::default()));
        let locks = GroupLocks::new(&bind_queue, &gc_queue);
        let (a, b, c) = (
            GpuGroupKey::new("n", "a"),
            GpuGroupKey::new("n", "b"),
            GpuGroupKey::new("n", "c"),
        );
        let request = ObjectKey::new("ns", "p");
        let held = locks
            .try_lock(&[a.clone(), b.clone()], LockOwner::Gc(a.clone()))
            .unwrap();
        assert!(
            locks
                .try_lock(&[b.clone(), c.clone()], LockOwner::Bind(request.clone()))
                .is_none()
        );
        assert!(
            locks
                .try_lock(std::slice::from_ref(&a), LockOwner::Gc(a.clone()))
                .is_none()
        );
        assert!(
            locks
                .try_lock(std::slice::from_ref(&c), LockOwner::Gc(c.clone()))
                .is_some(),
            "a failed try_lock locks no group"
        );
        assert!(bind_queue.is_empty() && gc_queue.is_empty());
        drop(held);
        assert_eq!(bind_queue.next().await, request);
        assert_eq!(gc_queue.next().await, a);
        assert!(locks.try_lock(&[b, c], LockOwner::Bind(request)).is_some());
    }
}
