//! Asks the driver. The debug endpoints and the page use it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kai_api::ObjectKey;
use kai_mirror::ExplanationView;
use kai_view::ClusterView;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::{DebugRequest, remedies};

/// The driver answers at the end of the next cycle, or sooner.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The cluster as a scheduler of this process sees it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ViewHandle {
    debug_sender: mpsc::Sender<DebugRequest>,
    running: Arc<AtomicBool>,
    /// Held while an explanation is tried: each takes copies of the cluster, so there is one at a time.
    pub(super) trials: Arc<Semaphore>,
}

impl ViewHandle {
    pub(crate) fn new(debug_sender: mpsc::Sender<DebugRequest>) -> ViewHandle {
        ViewHandle {
            debug_sender,
            running: Arc::default(),
            trials: Arc::new(Semaphore::new(1)),
        }
    }

    /// The cluster after the last cycle, with the decisions of the last hour. Callers within half a second share one view, and none makes a
    /// cycle run. `None` if the scheduler does not lead, has not finished its first cycle, or is too busy.
    pub async fn view(&self) -> Option<Arc<ClusterView>> {
        if !self.is_running() {
            return None;
        }
        self.ask(DebugRequest::View).await
    }

    /// Why this pod waits and what would let it start, or that it does not wait; `None` if there is no such pod, or as for
    /// [`ViewHandle::view`]. Explanations are made one at a time.
    pub async fn explain(&self, namespace: &str, pod: &str) -> Option<ExplanationView> {
        if !self.is_running() {
            return None;
        }
        let permit = self.trials.acquire();
        let _permit = tokio::time::timeout(ANSWER_TIMEOUT, permit).await.ok()?.ok()?;
        remedies::explain(self, ObjectKey::new(namespace, pod)).await
    }

    /// The driver's answer; `None` if there is none in time.
    pub(super) async fn ask<A>(&self, request: impl FnOnce(oneshot::Sender<A>) -> DebugRequest) -> Option<A> {
        let (reply, answer) = oneshot::channel();
        self.debug_sender.try_send(request(reply)).ok()?;
        tokio::time::timeout(ANSWER_TIMEOUT, answer).await.ok()?.ok()
    }

    /// The flag that a driver sets while it runs.
    pub(crate) fn running_flag(&self) -> RunningFlag {
        RunningFlag(Arc::clone(&self.running))
    }

    fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed)
    }
}

/// Says that a driver runs, until it is dropped. Without the flag, callers on a replica that does not lead would wait for an answer that
/// never comes.
#[derive(Debug)]
pub(crate) struct RunningFlag(Arc<AtomicBool>);

impl RunningFlag {
    /// A cycle has ended.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Drop for RunningFlag {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
