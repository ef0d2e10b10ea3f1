//! The scheduler that a process's page shows. It comes and goes with the lease, and with changes of the Config; the page stays.

use std::sync::Arc;

use kai_page::{BoxFuture, Source};
use kai_scheduler::ViewHandle;
use kai_view::{ClusterView, ExplanationView};
use std::sync::{Mutex, PoisonError};

/// The scheduler that runs at present, if any. Cheap to clone; all clones are one slot.
#[derive(Clone, Debug, Default)]
pub struct PageSlot {
    /// A plain lock: held for a clone or an assignment only.
    scheduler: Arc<Mutex<Option<ViewHandle>>>,
}

impl PageSlot {
    /// The page shows this scheduler until the result is dropped.
    pub(crate) fn show(&self, scheduler: ViewHandle) -> Shown {
        *self.scheduler.lock().unwrap_or_else(PoisonError::into_inner) = Some(scheduler);
        Shown { slot: self.clone() }
    }

    /// Whether a scheduler runs in this process.
    pub(super) fn is_filled(&self) -> bool {
        self.scheduler().is_some()
    }

    fn scheduler(&self) -> Option<ViewHandle> {
        self.scheduler.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Says that a scheduler is shown. Dropping it empties the slot.
pub(crate) struct Shown {
    slot: PageSlot,
}

impl Drop for Shown {
    fn drop(&mut self) {
        *self.slot.scheduler.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Source for PageSlot {
    fn view(&self) -> BoxFuture<'_, Option<Arc<ClusterView>>> {
        let scheduler = self.scheduler();
        Box::pin(async move { scheduler?.view().await })
    }

    fn explain(&self, namespace: &str, pod: &str) -> BoxFuture<'_, Option<ExplanationView>> {
        let scheduler = self.scheduler();
        let (namespace, pod) = (namespace.to_owned(), pod.to_owned());
        Box::pin(async move { scheduler?.explain(&namespace, &pod).await })
    }
}
