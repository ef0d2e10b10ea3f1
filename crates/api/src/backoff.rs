//! Pauses that grow with every failure in a row.

use std::time::Duration;

/// How long to wait after failures of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure; doubled with each one more.
    pub first: Duration,
    /// Never longer than this.
    pub longest: Duration,
}

impl Backoff {
    /// The pause after this many failures in a row.
    pub fn pause(&self, failures: u32) -> Duration {
        let doubled = self
            .first
            .saturating_mul(1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
        doubled.min(self.longest)
    }
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(60),
        }
    }
}
