//! Since when binds wait for each group's reservation pod, and which ones. Kept in memory only: after a restart the wait begins anew,
//! which costs one more deadline and can't be wrong about clocks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kai_api::ObjectKey;
use tokio::time::Instant;

use crate::GroupKey;

/// The waits of all groups.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// A plain lock: held for map operations only.
    groups: Mutex<BTreeMap<GroupKey, Wait>>,
}

#[derive(Debug)]
struct Wait {
    /// The pod that is waited for, and whether for its end.
    pod: (String, bool),
    since: Instant,
    binds: BTreeSet<ObjectKey>,
}

impl Waits {
    /// How long the pod has been waited for; `None` if it was not. A pod that is to end is another wait than the same pod alive.
    pub(crate) fn waited(&self, key: &GroupKey, uid: &str, for_its_end: bool) -> Option<Duration> {
        let groups = self.lock();
        let wait = groups.get(key)?;
        (wait.pod.0 == uid && wait.pod.1 == for_its_end).then(|| wait.since.elapsed())
    }

    /// The bind waits for the pod, and wants to be called when something happens to it.
    pub(crate) fn wait(&self, key: &GroupKey, uid: &str, for_its_end: bool, bind: Option<&ObjectKey>) {
        let mut groups = self.lock();
        let new = || Wait {
            pod: (uid.to_owned(), for_its_end),
            since: Instant::now(),
            binds: BTreeSet::new(),
        };
        let wait = groups.entry(key.clone()).or_insert_with(new);
        if wait.pod.0 != uid || wait.pod.1 != for_its_end {
            wait.pod = (uid.to_owned(), for_its_end);
            wait.since = Instant::now();
        }
        wait.binds.extend(bind.cloned());
    }

    /// Something happened to the group's reservation pod: who wanted to know?
    pub(crate) fn call(&self, key: &GroupKey) -> BTreeSet<ObjectKey> {
        let mut groups = self.lock();
        groups
            .get_mut(key)
            .map(|wait| std::mem::take(&mut wait.binds))
            .unwrap_or_default()
    }

    /// The wait is over. Answers with how long it took and who waited.
    pub(crate) fn end(&self, key: &GroupKey) -> Option<(Duration, BTreeSet<ObjectKey>)> {
        self.lock().remove(key).map(|wait| (wait.since.elapsed(), wait.binds))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<GroupKey, Wait>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_is_for_one_pod() {
        let (waits, key) = (Waits::default(), GroupKey::new("n", "g"));
        assert_eq!(waits.waited(&key, "1", false), None);
        waits.wait(&key, "1", false, Some(&ObjectKey::new("ns", "p")));
        tokio::time::sleep(Duration::from_secs(5)).await;
        waits.wait(&key, "1", false, Some(&ObjectKey::new("ns", "q")));
        assert_eq!(waits.waited(&key, "1", false), Some(Duration::from_secs(5)));
        assert_eq!(waits.waited(&key, "1", true), None);
        assert_eq!(waits.waited(&key, "2", false), None);
        assert_eq!(waits.call(&key).len(), 2);
        assert_eq!(waits.call(&key).len(), 0);
        waits.wait(&key, "2", false, None);
        assert_eq!(waits.waited(&key, "2", false), Some(Duration::ZERO));
        assert_eq!(waits.end(&key).map(|end| end.0), Some(Duration::ZERO));
        assert_eq!(waits.waited(&key, "2", false), None);
    }
}
