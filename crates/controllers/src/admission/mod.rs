//! The admission role: mutating and validating webhooks for pods, and validating webhooks for queues, pod groups and topologies.
//!
//! Every rule is a plain function from an admission request to a [`Verdict`], one file per kind; `server` passes requests to the rules.
//! The rules that protect the scheduler's own keys exist twice: as webhook rules, and as ValidatingAdmissionPolicies, which the API
//! server evaluates itself while no webhook server runs. Architecture invariant: admission stores no secrets in the cluster; private
//! keys stay in memory.

mod admission_policies;
mod admit_pod;
mod args;
mod ca_bundle;
mod certificates;
pub(crate) mod core_of_pod_group;
mod gpu_share;
mod ignored_values;
mod pod_group;
mod pod_mutate;
mod pod_resize;
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
    MUTATE_POD, VALIDATE_POD, VALIDATE_POD_GROUP, VALIDATE_POD_RESIZE, VALIDATE_QUEUE, VALIDATE_TOPOLOGY,
    webhook_configurations,
};

/// Why the admission role ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process uses the port, or the port is not allowed.
    #[error("listening on port {port} for webhooks: {error}; choose another with --webhook-addr")]
    Listen {
        /// The port.
        port: u16,
        /// The I/O error.
        error: std::io::Error,
    },
    /// The server ended.
    #[error("serving webhooks: {error}")]
    Serve {
        /// The I/O error.
        error: std::io::Error,
    },
    /// The serving certificate could not be generated or read.
    #[error("the webhooks' certificate: {0}")]
    Certificate(String),
    /// The API server refused the registration of webhooks or policies.
    #[error(transparent)]
    Cluster(#[from] kai_cluster::Error),
}
