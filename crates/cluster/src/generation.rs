//! A counter that tasks wait on. It wakes them in the order in which they began to wait: tokio's watch channel wakes its receivers in
//! random order, and a fault run has to replay from its seed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// A counter that only increases. Clones share the value.
#[derive(Clone, Debug, Default)]
pub struct Generation {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    value: AtomicU64,
    incremented: Notify,
}

impl Generation {
    /// The current value.
    pub fn value(&self) -> u64 {
        self.shared.value.load(Ordering::Acquire)
    }

    /// Adds one and wakes all waiting tasks.
    pub fn increment(&self) {
        self.shared.value.fetch_add(1, Ordering::AcqRel);
        self.shared.incremented.notify_waiters();
    }

    /// Waits until the value is above `value`.
    pub async fn wait_above(&self, value: u64) {
        loop {
            // Created before the value is read, so that an increment in between wakes it.
            let incremented = self.shared.incremented.notified();
            if self.value() > value {
                return;
            }
            incremented.await;
        }
    }
}

#[cfg(test)]
mod tests {

    use parking_lot::Mutex;

    use super::*;

    #[tokio::test]
    async fn who_came_first_is_woken_first() {
        let (generation, woken) = (Generation::default(), Arc::new(Mutex::new(Vec::new())));
        let mut waiting = tokio::task::JoinSet::new();
        for number in 0..20 {
            let (generation, woken) = (generation.clone(), Arc::clone(&woken));
            waiting.spawn(async move {
                generation.wait_above(0).await;
                woken.lock().push(number);
            });
        }
        tokio::task::yield_now().await;
        generation.increment();
        generation.wait_above(0).await;
        while waiting.join_next().await.is_some() {}
        assert_eq!(*woken.lock(), (0..20).collect::<Vec<_>>());
    }
}
