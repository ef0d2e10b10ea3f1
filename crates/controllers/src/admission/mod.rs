//! Admission: what pods, queues, pod groups and topologies are made to look like, and which of them are refused.
//!
//! Rules are plain functions from a request to a [`Verdict`], one file per object. The server carries requests to them. The rules
//! about the scheduler's own keys exist twice: here, and as policies that the API server evaluates itself, so that they hold while
//! nobody serves. Architecture invariant: nothing here keeps secrets in the cluster; keys stay in memory.

mod args;
mod bundle;
mod certificates;
mod devices;
mod directory;
mod ignored;
mod offline;
mod own_policies;
mod owned;
mod pod_group;
mod pod_mutate;
mod pod_validate;
mod policies;
mod priority;
mod publish;
mod queue;
mod queue_quota;
mod review;
mod role;
mod server;
mod share;
#[cfg(test)]
mod sizes;
mod topology;
mod trust;
mod view;
mod webhooks;

pub use args::{Args, ArgsError, CertificateSource, Endpoint, Feature, NamespaceChoice, Settings};
pub use directory::Directory;
pub use offline::create_pod;
pub use policies::policies;
pub use publish::uninstall;
pub use review::{Cause, Finding, Operation, Outcome, Request, User, Verdict};
pub use role::{register, run, serve};
pub use server::{State, router};
pub use trust::{NotUsers, Trusted};
pub use webhooks::{
    MUTATE_POD, VALIDATE_POD, VALIDATE_POD_GROUP, VALIDATE_QUEUE, VALIDATE_TOPOLOGY, webhook_configurations,
};

/// Why admission can't be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The port can't be had.
    #[error("listening on port {port} for webhooks: {error}; choose another with --webhook-addr")]
    Listen {
        /// Which.
        port: u16,
        /// Why.
        error: std::io::Error,
    },
    /// The server ended.
    #[error("serving webhooks: {error}")]
    Serve {
        /// Why.
        error: std::io::Error,
    },
    /// There is no usable certificate.
    #[error("the webhooks' certificate: {0}")]
    Certificate(String),
    /// The API server did not take our registration.
    #[error(transparent)]
    Cluster(#[from] kai_cluster::Error),
}
