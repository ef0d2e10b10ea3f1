//! When a process counts as ready: see [`kai_cluster::Health`].

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use kai_cluster::ReadinessHold;

/// Runs a future, and releases the hold after its first poll: then a role has announced its components, and readiness depends on them.
pub(super) async fn begun<F: Future>(future: F, hold: &ReadinessHold) -> F::Output {
    let mut future = pin!(future);
    match poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await {
        Poll::Ready(output) => output,
        Poll::Pending => {
            hold.release();
            future.await
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kai_cluster::Health;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn there_is_no_moment_between_the_start_and_the_first_announcement() {
        let health = Health::default();
        let hold = health.hold("binder");
        let role = async {
            assert_eq!(health.not_ready(), ["binder"]);
            health.announce("work", Duration::from_secs(60));
            tokio::task::yield_now().await;
            assert_eq!(health.not_ready(), ["work"]);
        };
        begun(role, &hold).await;
    }
}
