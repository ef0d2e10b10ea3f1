//! Limits the rate of conditions and events, with a burst after a quiet time (flags `--qps` and `--burst`).

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// A token bucket. Its state is the time at which it is full again.
#[derive(Debug)]
pub(super) struct RateLimiter {
    interval: Duration,
    burst: u32,
    /// An async lock: a task holds it while it waits for a token, so that tasks are served in order.
    full_at: Mutex<Instant>,
}

impl RateLimiter {
    pub(super) fn new((per_second, burst): (u32, u32)) -> RateLimiter {
        RateLimiter {
            interval: Duration::from_secs(1) / per_second.max(1),
            burst: burst.max(1),
            full_at: Mutex::new(Instant::now()),
        }
    }

    /// Waits for a token.
    pub(super) async fn acquire(&self) {
        let mut full_at = self.full_at.lock().await;
        let next = (*full_at).max(Instant::now()) + self.interval;
        let debt_max = self.interval * self.burst;
        tokio::time::sleep_until(next.checked_sub(debt_max).unwrap_or(next)).await;
        *full_at = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_then_a_steady_rate() {
        let rate = RateLimiter::new((10, 5));
        let start = Instant::now();
        for _ in 0..5 {
            rate.acquire().await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..10 {
            rate.acquire().await;
        }
        assert_eq!(start.elapsed(), Duration::from_secs(1));
    }
}
