//! The page: a cluster in a browser.
//!
//! [`router`] serves views of a [`kai_view::ClusterView`] as HTML. A view is a list of blocks with ids; the first request gets a whole document,
//! and an event stream sends the blocks that change. The page works without its module too; the module makes it live, and adds search and keys.
//!
//! The crate knows no Kubernetes and no scheduler: it sees the world through [`Source`], [`Authorizer`] and [`StorySteps`]. It changes nothing,
//! except by the steps of the playground's story, and keeps only the places of GPUs while nobody looks. docs/page.md describes the views.

mod assets;
mod bar;
mod blocks;
mod document;
mod facts;
mod gzip;
mod html;
mod hub;
mod palette;
mod places;
mod route;
mod server;
mod source;
#[cfg(test)]
#[path = "../examples/demo/synthetic/mod.rs"]
mod synthetic;
mod views;

pub use server::{is_forwarded, router};
pub use source::{Access, Authorizer, BoxFuture, PageOptions, Source, StoryStep, StorySteps};
