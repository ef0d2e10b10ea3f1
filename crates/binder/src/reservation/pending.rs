//! The reservation pods that binds wait for, with the start of the wait. Kept in memory only: after a restart the wait begins anew, which
//! costs one more timeout, and needs no comparison of clocks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kai_api::ObjectKey;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::GpuGroupKey;

/// The reservation pods that binds wait for, by group.
#[derive(Debug, Default)]
pub(crate) struct PendingReservations {
    /// A plain lock: held for map operations only.
    groups: Mutex<BTreeMap<GpuGroupKey, PendingReservation>>,
}

#[derive(Debug)]
struct PendingReservation {
    /// UID of the pod, and whether the binds wait for its termination.
    pod: (String, bool),
    since: Instant,
    binds: BTreeSet<ObjectKey>,
}

impl PendingReservations {
    /// How long binds have waited for the pod; `None` if none has. Waiting for the termination of a pod is another wait than waiting for
    /// its GPU.
    pub(crate) fn waited(&self, key: &GpuGroupKey, uid: &str, for_termination: bool) -> Option<Duration> {
        let groups = self.groups.lock();
        let wait = groups.get(key)?;
        (wait.pod.0 == uid && wait.pod.1 == for_termination).then(|| wait.since.elapsed())
    }

    /// Adds a bind that waits for the pod, and is requeued when the pod changes.
    pub(crate) fn add(&self, key: &GpuGroupKey, uid: &str, for_termination: bool, bind: Option<&ObjectKey>) {
        let mut groups = self.groups.lock();
        let new = || PendingReservation {
            pod: (uid.to_owned(), for_termination),
            since: Instant::now(),
            binds: BTreeSet::new(),
        };
        let wait = groups.entry(key.clone()).or_insert_with(new);
        if wait.pod.0 != uid || wait.pod.1 != for_termination {
            wait.pod = (uid.to_owned(), for_termination);
            wait.since = Instant::now();
        }
        wait.binds.extend(bind.cloned());
    }

    /// Takes the binds that wait for the group's reservation pod, because the pod has changed.
    pub(crate) fn take_waiting_binds(&self, key: &GpuGroupKey) -> BTreeSet<ObjectKey> {
        let mut groups = self.groups.lock();
        groups
            .get_mut(key)
            .map(|wait| std::mem::take(&mut wait.binds))
            .unwrap_or_default()
    }

    /// Ends the wait. Returns how long it took, and the binds that waited.
    pub(crate) fn finish(&self, key: &GpuGroupKey) -> Option<(Duration, BTreeSet<ObjectKey>)> {
        self.groups
            .lock()
            .remove(key)
            .map(|wait| (wait.since.elapsed(), wait.binds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_is_for_one_pod() {
        let (pending, key) = (PendingReservations::default(), GpuGroupKey::new("n", "g"));
        assert_eq!(pending.waited(&key, "1", false), None);
        pending.add(&key, "1", false, Some(&ObjectKey::new("ns", "p")));
        tokio::time::sleep(Duration::from_secs(5)).await;
        pending.add(&key, "1", false, Some(&ObjectKey::new("ns", "q")));
        assert_eq!(pending.waited(&key, "1", false), Some(Duration::from_secs(5)));
        assert_eq!(pending.waited(&key, "1", true), None);
        assert_eq!(pending.waited(&key, "2", false), None);
        assert_eq!(pending.take_waiting_binds(&key).len(), 2);
        assert_eq!(pending.take_waiting_binds(&key).len(), 0);
        pending.add(&key, "2", false, None);
        assert_eq!(pending.waited(&key, "2", false), Some(Duration::ZERO));
        assert_eq!(pending.finish(&key).map(|end| end.0), Some(Duration::ZERO));
        assert_eq!(pending.waited(&key, "2", false), None);
    }
}
