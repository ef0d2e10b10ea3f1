//! Code that a process no longer runs takes no memory. The start of a process runs far more code than its work, and the kernel keeps all of it
//! mapped until memory is short: in an idle `kai all` that was more than half of its memory.

use std::convert::Infallible;
use std::time::Duration;

/// Code that did not run for this time is released. The kernel maps code that runs again in about a millisecond in all.
const INTERVAL: Duration = Duration::from_secs(60);
/// The first release, when the start is over.
const START_TAKES: Duration = Duration::from_secs(20);

/// Releases code pages regularly, until dropped.
pub async fn release_unused_code() -> Infallible {
    tokio::time::sleep(START_TAKES).await;
    loop {
        if let Err(error) = kai_gpu::code_pages::release() {
            tracing::debug!(%error, "could not release code pages");
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
