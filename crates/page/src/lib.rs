//! The page: a cluster in a browser.

mod source;

pub use source::{Access, Authorizer, BoxFuture, PageOptions, Source, StoryStep, StorySteps};

/// The routes of the page. They need the peer's address: serve them with `into_make_service_with_connect_info::<SocketAddr>()`.
pub fn router(_options: PageOptions) -> axum::Router {
    axum::Router::new()
}
