//! The running time and the failed calls of each bind, and for which claims it has asked for a volume. Kept in memory only: after a
//! restart all begin anew.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kai_api::ObjectKey;
use parking_lot::Mutex;
use tokio::time::Instant;

/// All binds in progress.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// A plain lock: held for map operations only.
    binds: Mutex<BTreeMap<ObjectKey, BindProgress>>,
}

#[derive(Debug)]
struct BindProgress {
    start: Instant,
    failed_calls: u32,
    /// Claims that this bind or another one has asked the provisioner to make a volume for.
    requested_volumes: BTreeSet<String>,
}

impl Default for BindProgress {
    fn default() -> BindProgress {
        BindProgress {
            start: Instant::now(),
            failed_calls: 0,
            requested_volumes: BTreeSet::new(),
        }
    }
}

impl Progress {
    /// Time since the first call for this bind.
    pub(crate) fn elapsed(&self, key: &ObjectKey) -> Duration {
        self.binds.lock().entry(key.clone()).or_default().start.elapsed()
    }

    /// Counts a failed call and returns their number.
    pub(crate) fn count_failed_call(&self, key: &ObjectKey) -> u32 {
        let mut binds = self.binds.lock();
        let bind = binds.entry(key.clone()).or_default();
        bind.failed_calls = bind.failed_calls.saturating_add(1);
        bind.failed_calls
    }

    /// The claim names the selected node, so that its provisioner makes a volume.
    pub(crate) fn volume_requested(&self, key: &ObjectKey, claim: &str) {
        let mut binds = self.binds.lock();
        let bind = binds.entry(key.clone()).or_default();
        bind.requested_volumes.insert(claim.to_owned());
    }

    /// Whether the claim named the selected node at an earlier attempt.
    pub(crate) fn is_volume_requested(&self, key: &ObjectKey, claim: &str) -> bool {
        let binds = self.binds.lock();
        binds
            .get(key)
            .is_some_and(|bind| bind.requested_volumes.contains(claim))
    }

    /// The bind has succeeded or failed.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.binds.lock().remove(key);
    }
}
