//! Serves the page (`kai-page`): where it gets the cluster from, and what a request may see.

mod access;
mod forward;
mod live;
mod scheduler;
mod slot;

use std::sync::Arc;

use kai_page::{Authorizer, PageOptions, Source, StorySteps};

pub(crate) use access::{LoopbackOnly, RightsOfToken};
pub(crate) use forward::{Election, Forwarder};
pub(crate) use live::LiveSource;
pub(crate) use scheduler::SchedulerSource;
pub use slot::PageSlot;

use crate::roles::{Served, serve_page};

/// The page of a cluster.
pub(crate) struct Page {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) authorizer: Arc<dyn Authorizer>,
    pub(crate) story: Option<Arc<dyn StorySteps>>,
    pub(crate) cluster_name: String,
    /// Set in a replica that takes part in an election.
    pub(crate) forwarder: Option<Forwarder>,
}

impl Page {
    /// Serves the page on a thread of its own, until the result is dropped. `flag` sets the address.
    pub(crate) fn serve(self, address: &str, flag: &'static str) -> anyhow::Result<Served> {
        serve_page(address, self.router(), flag)
    }

    fn router(self) -> axum::Router {
        let router = kai_page::router(PageOptions {
            source: self.source,
            authorizer: self.authorizer,
            story: self.story,
            cluster_name: self.cluster_name,
        });
        match self.forwarder {
            Some(forwarder) => router.layer(axum::middleware::from_fn_with_state(forwarder, forward::forward)),
            None => router,
        }
    }
}
