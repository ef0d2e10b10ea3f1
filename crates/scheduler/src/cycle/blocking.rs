//! Runs CPU-bound work without blocking the other tasks of the runtime.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// Runs CPU-bound work. On a multi-threaded runtime the other tasks (watches, writes, webhooks) go on on another thread meanwhile. A
/// single-threaded runtime, as tests with a paused clock have, runs the work in place.
pub(super) fn run_blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => block_in_place(work),
        _ => work(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_tasks_go_on_while_the_engine_decides() {
        let cycle = tokio::spawn(async {
            let (sender, receiver) = channel();
            tokio::spawn(async move { sender.send(()) });
            // If the work blocked the runtime's only worker, the other task would never run.
            run_blocking(|| receiver.recv_timeout(Duration::from_secs(60))).is_ok()
        });
        assert!(cycle.await.unwrap());
    }

    #[tokio::test]
    async fn a_runtime_of_one_thread_does_it_at_once() {
        assert_eq!(run_blocking(|| 1), 1);
    }
}
