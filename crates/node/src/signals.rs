//! Waits for the signals by which Kubernetes ends a container.

use tokio::signal::unix::{SignalKind, signal};

/// Returns at the first SIGTERM or SIGINT.
pub(crate) async fn terminated() {
    let listen = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (Ok(mut terminate), Ok(mut interrupt)) = listen else {
        tracing::warn!("can't listen for signals; only SIGKILL will end this process");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
