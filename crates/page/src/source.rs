//! What the page needs from the program that serves it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use kai_view::{ClusterView, ExplanationView};

/// A future in a box, so that the traits below can be used as objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where the page gets the cluster from.
pub trait Source: Send + Sync + 'static {
    /// The cluster at present; `None` if this replica does not schedule or has not finished its first lists.
    fn view(&self) -> BoxFuture<'_, Option<Arc<ClusterView>>>;

    /// What would let this pod start; `None` if it does not wait, or cannot be told.
    fn explain(&self, namespace: &str, pod: &str) -> BoxFuture<'_, Option<ExplanationView>>;
}

/// Decides what a request may see.
pub trait Authorizer: Send + Sync + 'static {
    /// The access of a caller at this address, with this token.
    fn authorize(&self, peer: IpAddr, token: Option<&str>) -> BoxFuture<'_, Access>;
}

/// What a request may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every namespace.
    Everything,
    /// Only these namespaces; pods, gangs and decisions of others are shown without names.
    Namespaces(Arc<BTreeSet<String>>),
    /// HTTP status and text of the refusal (401, 403, 503).
    Refused(u16, String),
}

/// Steps of the playground's story, which the page can submit. Only the playground has them.
pub trait StorySteps: Send + Sync + 'static {
    /// The steps, in order.
    fn steps(&self) -> Vec<StoryStep>;

    /// Submits a step, counted from 0. The error is a text for the person who asked.
    fn submit(&self, step: usize) -> BoxFuture<'_, Result<(), String>>;
}

/// A step of the playground's story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoryStep {
    /// What it does, in a few words.
    pub title: String,
    /// Whether it was submitted.
    pub submitted: bool,
}

/// What the page is made of.
pub struct PageOptions {
    /// Where the cluster is from.
    pub source: Arc<dyn Source>,
    /// Who may see what.
    pub authorizer: Arc<dyn Authorizer>,
    /// The playground's story.
    pub story: Option<Arc<dyn StorySteps>>,
    /// The name of the cluster, for the title.
    pub cluster_name: String,
}

impl std::fmt::Debug for PageOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageOptions")
            .field("cluster_name", &self.cluster_name)
            .field("story", &self.story.is_some())
            .finish_non_exhaustive()
    }
}
