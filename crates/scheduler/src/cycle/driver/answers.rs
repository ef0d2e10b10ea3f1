//! How the driver answers requests: of the debug endpoints, and of the page.
//!
//! A view is computed from the engine as the last cycle left it, between cycles or at the end of one; nobody's look makes a cycle run. If
//! changes were applied since that cycle, the engine's tables are not in order until the next one (queues are not linked, gangs not
//! ranked). A change makes a cycle due within the gather period, so the request waits for that one. To compute the position of gangs,
//! a view reverts the pipelined placements, as the next cycle does: a second view of the same cycle would lack them, and is a copy of the
//! first.

use std::sync::Arc;
use std::time::Duration;

use kai_api::Object;
use kai_view::{ClusterView, Knowledge, Sources};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Driver;
use crate::debug_endpoints::{DebugRequest, EngineCopy, JobOrder, PodExplanation};

/// Requests within this time of a view get the same one: many people who look at a page cost no more than one.
const VIEW_SHARED_FOR: Duration = Duration::from_millis(500);

/// The newest view and the requests for one.
#[derive(Debug, Default)]
pub(super) struct Views {
    /// Dropped by the first cycle after it became old, so that nothing is held while nobody looks.
    newest: Option<(Instant, Arc<ClusterView>)>,
    waiting: Vec<oneshot::Sender<Arc<ClusterView>>>,
    engine: EngineState,
}

/// What a view of the engine would show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EngineState {
    /// Changes since the last cycle, or a cycle's result without pipelined placements.
    #[default]
    Changed,
    /// The result of the last cycle.
    AsDecided,
    /// The same as the newest view.
    Viewed,
}

impl Views {
    /// A cycle has ended. Returns whether somebody looks, or has looked a moment ago.
    pub(super) fn cycle_ended(&mut self) -> bool {
        self.engine = EngineState::AsDecided;
        let is_old = |(at, _): &mut (Instant, _)| at.elapsed() >= VIEW_SHARED_FOR;
        drop(self.newest.take_if(is_old));
        self.newest.is_some() || !self.waiting.is_empty()
    }

    /// Changes are applied to the engine, or its pipelined placements are reverted.
    pub(super) fn engine_changed(&mut self) {
        self.engine = EngineState::Changed;
    }

    /// A view that still serves.
    fn current(&self) -> Option<&Arc<ClusterView>> {
        let (at, view) = self.newest.as_ref()?;
        (self.engine == EngineState::Viewed || at.elapsed() < VIEW_SHARED_FOR).then_some(view)
    }
}

impl Driver {
    /// Answers the request or keeps it; returns whether it needs a cycle.
    pub(super) fn accept_debug_request(&mut self, request: DebugRequest) -> bool {
        match request {
            DebugRequest::View(reply) => {
                self.views.waiting.push(reply);
                self.answer_view_requests();
                false
            }
            DebugRequest::Decisions { after, reply } => {
                let _ = reply.send(self.decisions.after(after, self.now()));
                false
            }
            DebugRequest::Workloads(gangs, reply) => {
                let named = gangs.into_iter().map(|gang| {
                    let name = self.mirror.workload(&gang);
                    (gang, name)
                });
                let _ = reply.send(named.collect());
                false
            }
            DebugRequest::Explain(..) | DebugRequest::Copy(..) | DebugRequest::JobOrder(_) => {
                self.debug_requests.push(request);
                true
            }
        }
    }

    /// Answers the requests that waited for the cycle that has just ended.
    pub(super) fn answer_debug_requests(&mut self) {
        let mut job_orders = Vec::new();
        // `send` fails if the client has disconnected.
        for request in std::mem::take(&mut self.debug_requests) {
            match request {
                DebugRequest::Explain(pod, reply) => {
                    let explanation = self.mirror.pod(&pod).map(|object| {
                        let uid = object.metadata().uid.as_deref().unwrap_or_default();
                        PodExplanation::new(&pod, &self.engine, &self.mirror, uid)
                    });
                    let _ = reply.send(explanation);
                }
                DebugRequest::Copy(pod, reply) => {
                    let uid = self.mirror.pod(&pod).and_then(|object| object.metadata().uid.clone());
                    let copy = uid.map(|uid| EngineCopy {
                        engine: Box::new(self.engine.clone()),
                        config: self.settings.config.clone(),
                        uid: uid.to_string(),
                    });
                    let _ = reply.send(copy);
                }
                DebugRequest::JobOrder(reply) => job_orders.push(reply),
                DebugRequest::View(_) | DebugRequest::Decisions { .. } | DebugRequest::Workloads(..) => {
                    self.accept_debug_request(request);
                }
            }
        }
        self.answer_view_requests();
        // Last: `serving_order` reverts the pipelined placements that explanations and views show.
        for reply in job_orders {
            let order = self.engine.serving_order(&self.settings.config);
            if self.views.engine == EngineState::AsDecided {
                self.views.engine_changed();
            }
            let _ = reply.send(JobOrder::of(order));
        }
    }

    /// Answers the requests for a view, if there is one that serves or the engine is as the last cycle left it.
    fn answer_view_requests(&mut self) {
        self.views.waiting.retain(|reply| !reply.is_closed());
        if self.views.waiting.is_empty() {
            return;
        }
        let view = match (self.views.current(), self.views.engine) {
            (Some(view), _) => Arc::clone(view),
            (None, EngineState::AsDecided) => self.compute_view(),
            (None, EngineState::Changed | EngineState::Viewed) => return,
        };
        for reply in self.views.waiting.drain(..) {
            let _ = reply.send(Arc::clone(&view));
        }
    }

    fn compute_view(&mut self) -> Arc<ClusterView> {
        // The old view goes before the new one comes: both would be some megabytes in a large cluster.
        self.views.newest = None;
        let mut view = ClusterView::new(Sources {
            mirror: &self.mirror,
            engine: &mut self.engine,
            config: &self.settings.config,
            now: self.cycle_time,
            knowledge: Knowledge::complete(),
        });
        view.decisions = Some(self.decisions.newest_first(self.cycle_time));
        let view = Arc::new(view);
        self.views.newest = Some((Instant::now(), Arc::clone(&view)));
        self.views.engine = EngineState::Viewed;
        view
    }
}
