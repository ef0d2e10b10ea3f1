//! Bounds the concurrent write commands and gives them priority over statuses: to write the status of a custom resource costs an API
//! server as much as several bindings.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// Concurrent write commands. An API server handles a few hundred requests of all its clients at a time.
const CONCURRENT_WRITES_MAX: usize = 64;
/// The longest time that a status yields: a stream of bindings may never end.
const YIELD_MAX: Duration = Duration::from_secs(10);

/// Permits for write commands. The writers of bindings and of statuses share it.
#[derive(Debug)]
pub(crate) struct WriteLimiter {
    permits: Semaphore,
    /// Set after a status has yielded for [`YIELD_MAX`]: until then statuses do not yield.
    no_yield_until: Mutex<Option<Instant>>,
}

impl WriteLimiter {
    pub(crate) fn new() -> WriteLimiter {
        WriteLimiter {
            permits: Semaphore::new(CONCURRENT_WRITES_MAX),
            no_yield_until: Mutex::default(),
        }
    }

    /// Waits for a permit to execute a write command.
    pub(super) async fn acquire(&self) -> SemaphorePermit<'_> {
        self.permits.acquire().await.expect("the semaphore is never closed")
    }

    /// Waits while write commands wait for permits, at most [`YIELD_MAX`].
    pub(super) async fn yield_to_bindings(&self) {
        let now = Instant::now();
        if self.no_yield_until.lock().is_some_and(|until| now < until) {
            return;
        }
        // The semaphore is fair: all commands that wait now come first.
        if tokio::time::timeout(YIELD_MAX, self.acquire()).await.is_err() {
            *self.no_yield_until.lock() = Some(Instant::now() + YIELD_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_told_waits_for_orders_but_not_for_ever() {
        let limiter = WriteLimiter::new();
        let start = Instant::now();
        limiter.yield_to_bindings().await;
        let mut held = Vec::new();
        for _ in 0..CONCURRENT_WRITES_MAX {
            held.push(limiter.acquire().await);
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        tokio::join!(limiter.yield_to_bindings(), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            held.pop();
        });
        assert_eq!(start.elapsed(), Duration::from_secs(1));
        held.push(limiter.acquire().await);
        limiter.yield_to_bindings().await;
        limiter.yield_to_bindings().await;
        assert_eq!(start.elapsed(), Duration::from_secs(1) + YIELD_MAX, "once is enough");
        tokio::time::sleep(YIELD_MAX).await;
        held.clear();
        limiter.yield_to_bindings().await;
        assert_eq!(start.elapsed(), Duration::from_secs(1) + 2 * YIELD_MAX);
    }
}
