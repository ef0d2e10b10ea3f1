//! Keeps long work away from the threads that serve everything else.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// Does work that may take long. The other tasks of the runtime go on meanwhile, on another thread: watches, writes and webhooks don't
/// wait for a cycle. A runtime of a single thread, which tests with a clock of their own have, does one thing after the other.
pub(super) fn apart<T>(work: impl FnOnce() -> T) -> T {
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
            let (tell, told) = channel();
            tokio::spawn(async move { tell.send(()) });
            // Without a thread of its own the cycle would wait for a task that waits for the cycle.
            apart(|| told.recv_timeout(Duration::from_secs(60))).is_ok()
        });
        assert!(cycle.await.unwrap());
    }

    #[tokio::test]
    async fn a_runtime_of_one_thread_does_it_at_once() {
        assert_eq!(apart(|| 1), 1);
    }
}
