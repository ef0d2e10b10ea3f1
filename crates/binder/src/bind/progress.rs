//! The running time and the failed calls of each bind. Kept in memory only: after a restart both begin anew.

use std::collections::BTreeMap;
use std::time::Duration;

use kai_api::ObjectKey;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Start and failed calls of each bind.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Start of the bind, and its number of failed calls. A plain lock: held for map operations only.
    binds: Mutex<BTreeMap<ObjectKey, (Instant, u32)>>,
}

impl Progress {
    /// Time since the first call for this bind.
    pub(crate) fn elapsed(&self, key: &ObjectKey) -> Duration {
        self.binds
            .lock()
            .entry(key.clone())
            .or_insert_with(|| (Instant::now(), 0))
            .0
            .elapsed()
    }

    /// Counts a failed call and returns their number.
    pub(crate) fn count_failed_call(&self, key: &ObjectKey) -> u32 {
        let mut binds = self.binds.lock();
        let (_, failed_calls) = binds.entry(key.clone()).or_insert_with(|| (Instant::now(), 0));
        *failed_calls = failed_calls.saturating_add(1);
        *failed_calls
    }

    /// The bind has succeeded or failed.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.binds.lock().remove(key);
    }
}
