//! Who writes first. Orders run a bounded number at a time; what is only told gives way to them, because to write the status of a custom
//! resource costs an API server as much as several bindings.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// Orders at one time. An API server has a few hundred to give to all its clients.
const ORDERS_MAX: usize = 64;
/// Longer than this nothing gives way: bindings may go on for ever, and people want to know.
const GIVE_WAY_MAX: Duration = Duration::from_secs(10);

/// The right to write.
#[derive(Debug)]
pub(crate) struct Lanes {
    orders: Semaphore,
    /// It gave way long enough: until then it does not.
    impatient_until: Mutex<Option<Instant>>,
}

impl Lanes {
    pub(crate) fn new() -> Lanes {
        Lanes {
            orders: Semaphore::new(ORDERS_MAX),
            impatient_until: Mutex::default(),
        }
    }

    /// Waits for the right to carry out an order.
    pub(super) async fn order(&self) -> SemaphorePermit<'_> {
        self.orders.acquire().await.expect("nobody closes the semaphore")
    }

    /// Waits while more orders than can be carried out at a time are waiting already.
    pub(super) async fn give_way(&self) {
        let now = Instant::now();
        if self.lock().is_some_and(|until| now < until) {
            return;
        }
        // Waiters are served in order: all orders of now come first.
        if tokio::time::timeout(GIVE_WAY_MAX, self.order()).await.is_err() {
            *self.lock() = Some(Instant::now() + GIVE_WAY_MAX);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.impatient_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_told_waits_for_orders_but_not_for_ever() {
        let lanes = Lanes::new();
        let start = Instant::now();
        lanes.give_way().await;
        let mut held = Vec::new();
        for _ in 0..ORDERS_MAX {
            held.push(lanes.order().await);
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        tokio::join!(lanes.give_way(), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            held.pop();
        });
        assert_eq!(start.elapsed(), Duration::from_secs(1));
        held.push(lanes.order().await);
        lanes.give_way().await;
        lanes.give_way().await;
        assert_eq!(start.elapsed(), Duration::from_secs(1) + GIVE_WAY_MAX, "once is enough");
        tokio::time::sleep(GIVE_WAY_MAX).await;
        held.clear();
        lanes.give_way().await;
        assert_eq!(start.elapsed(), Duration::from_secs(1) + 2 * GIVE_WAY_MAX);
    }
}
