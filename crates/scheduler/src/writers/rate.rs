//! How fast conditions and events are written: so many per second, and a number at once after a quiet time.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// A budget of writes.
#[derive(Debug)]
pub(super) struct Rate {
    interval: Duration,
    burst: u32,
    /// When the budget would be full again. An async lock: who waits for budget holds it, so that waiters are served in order.
    full_at: Mutex<Instant>,
}

impl Rate {
    pub(super) fn new((per_second, burst): (u32, u32)) -> Rate {
        Rate {
            interval: Duration::from_secs(1) / per_second.max(1),
            burst: burst.max(1),
            full_at: Mutex::new(Instant::now()),
        }
    }

    /// Waits until one more may be written.
    pub(super) async fn one(&self) {
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
        let rate = Rate::new((10, 5));
        let start = Instant::now();
        for _ in 0..5 {
            rate.one().await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..10 {
            rate.one().await;
        }
        assert_eq!(start.elapsed(), Duration::from_secs(1));
    }
}
