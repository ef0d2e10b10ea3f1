//! The HTTP side: routes, access, headers, compression.

mod access;
mod answers;
mod events;
mod login;
mod pages;
mod respond;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use tokio::sync::Semaphore;

pub use access::is_forwarded;

use crate::hub::Hub;
use crate::source::{Authorizer, PageOptions, Source, StorySteps};

/// Event streams at a time: one per open and visible page. More get 503.
pub(crate) const STREAMS_MAX: usize = 64;
/// Searches for remedies at a time. They cost the scheduler's machine a core for a while.
const EXPLANATIONS_MAX: usize = 1;
/// The size of a form: a token, and an address.
const BODY_BYTES_MAX: usize = 64 * 1_024;

/// What all requests share.
pub(crate) struct App {
    hub: Arc<Hub>,
    source: Arc<dyn Source>,
    authorizer: Arc<dyn Authorizer>,
    story: Option<Arc<dyn StorySteps>>,
    cluster_name: String,
    streams: Arc<Semaphore>,
    explanations: Semaphore,
    answers: Arc<Semaphore>,
}

/// The routes of the page. They need the peer's address: serve them with `into_make_service_with_connect_info::<SocketAddr>()`.
///
/// The page reads; its only writes are the steps of the playground's story.
pub fn router(options: PageOptions) -> Router {
    let PageOptions {
        source,
        authorizer,
        story,
        cluster_name,
    } = options;
    let app = Arc::new(App {
        hub: Hub::new(source.clone(), story.clone()),
        source,
        authorizer,
        story,
        cluster_name,
        streams: Arc::new(Semaphore::new(STREAMS_MAX)),
        explanations: Semaphore::new(EXPLANATIONS_MAX),
        answers: Arc::new(Semaphore::new(answers::ANSWERS_MAX)),
    });
    Router::new()
        .route("/view.json", get(pages::view_json))
        .fallback(get(pages::view))
        .layer(axum::middleware::from_fn_with_state(app.clone(), answers::bound))
        .route("/events", get(events::events))
        .route("/remedies/{namespace}/{pod}", get(pages::remedies))
        .route("/story/{step}", post(pages::submit))
        .layer(axum::middleware::from_fn_with_state(app.clone(), access::authorize))
        // Without access: the files of the program, and the form for a token.
        .route("/assets/{name}", get(pages::asset))
        .route("/login", get(login::form).post(login::log_in))
        .route("/logout", post(login::log_out))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(axum::middleware::from_fn(access::check_host))
        .with_state(app)
}
