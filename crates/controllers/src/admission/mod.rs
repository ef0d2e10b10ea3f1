//! Admission: what pods, queues, pod groups and topologies are made to look like, and which of them are refused.
//!
//! Rules are plain functions from a request to a [`Verdict`], one file per object. The server carries requests to them. The rules
//! about the scheduler's own keys exist twice: here, and as policies that the API server evaluates itself, so that they hold while
//! nobody serves. Architecture invariant: nothing here keeps secrets in the cluster; keys stay in memory.

mod admission_policies;
mod admit_pod;
mod args;
mod ca_bundle;
mod certificates;
mod gpu_share;
mod ignored_values;
mod pod_group;
mod pod_mutate;
mod pod_validate;
mod priority_class;
mod protected_keys;
mod queue;
mod queue_lister;
mod queue_quota;
mod registration;
mod review;
#[cfg(test)]
mod review_cost_tests;
mod role;
mod server;
mod service_account_policies;
mod topology;
mod trusted_users;
mod unstructured;
mod visible_devices;
mod webhook_configurations;

pub use admission_policies::admission_policies;
pub use admit_pod::admit_pod;
pub use args::{Args, ArgsError, CertificateSource, Endpoint, Feature, NamespaceChoice, Settings};
pub use queue_lister::QueueLister;
pub use registration::uninstall;
pub use review::{Decision, DenialReason, FieldError, Operation, Request, User, Verdict};
pub use role::{register, run, serve};
pub use server::{State, router};
pub use trusted_users::{InvalidUserMatcher, UserMatcher};
pub use webhook_configurations::{
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
