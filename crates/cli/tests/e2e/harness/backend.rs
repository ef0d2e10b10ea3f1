//! The back end of scenarios: the embedded API server, in virtual time, or with `KAI_E2E_BACKEND=kube` a real API server.

use std::time::Duration;

use kai_api::keys;
use kai_cli::embedded;
use kai_cli::roles::RoleSettings;
use kai_cluster::{Client, Clock, Context};
use kai_embedded::server::{Options, Server};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

use super::kube::Kube;

/// The start of virtual time.
const START: &str = "2026-01-01T00:00:00Z";

/// A back end, before its runtime starts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice {
    /// An API server in the process of the test.
    Embedded,
    /// A real API server.
    Kube,
}

impl Choice {
    pub(crate) fn of_environment() -> Choice {
        match std::env::var("KAI_E2E_BACKEND").as_deref() {
            Err(_) | Ok("embedded") => Choice::Embedded,
            Ok("kube") => Choice::Kube,
            Ok(other) => panic!("KAI_E2E_BACKEND={other}: there are embedded and kube"),
        }
    }

    /// The runtime that scenarios of this back end need.
    pub(crate) fn runtime(self) -> Runtime {
        match self {
            Choice::Embedded => Builder::new_current_thread()
                .enable_all()
                .start_paused(true)
                .build()
                .unwrap(),
            Choice::Kube => {
                // The warnings of roles say more than a pod that does not run. Several scenarios share one log.
                let log = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
                let _ = log.with_writer(std::io::stderr).try_init();
                Builder::new_multi_thread().enable_all().build().unwrap()
            }
        }
    }

    /// Starts the back end. Call it within its runtime.
    pub(crate) async fn start(self) -> Backend {
        match self {
            Choice::Kube => Backend::Kube(Box::new(Kube::start().await)),
            Choice::Embedded => {
                let start = START.parse().unwrap();
                let server = Server::new(Options {
                    clock: Some(kai_embedded::server::Clock::starting_at(start)),
                    ..Options::default()
                });
                embedded::install(&server).unwrap();
                let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": keys::SCALE_ADJUST_NAMESPACE } });
                server.store().create(namespace).unwrap();
                Backend::Embedded {
                    server,
                    clock: Clock::runtime(start),
                }
            }
        }
    }
}

/// A running back end.
#[derive(Clone)]
pub(crate) enum Backend {
    /// An API server in the process of the test.
    Embedded {
        /// The server.
        server: Server,
        /// Virtual time.
        clock: Clock,
    },
    /// A real API server.
    Kube(Box<Kube>),
}

impl Backend {
    /// The API for a user with all rights.
    pub(crate) fn client(&self) -> Client {
        match self {
            Backend::Embedded { server, .. } => Client::in_process(server.service()),
            Backend::Kube(kube) => kube.client.clone(),
        }
    }

    /// The API for simulated nodes.
    pub(crate) fn client_of_nodes(&self) -> Client {
        match self {
            Backend::Embedded { server, .. } => Client::in_process(embedded::service_of_nodes(server)),
            Backend::Kube(kube) => kube.nodes.clone(),
        }
    }

    /// The API for a user with the rights of that name. The embedded server has no RBAC, but its policies
    /// and webhooks receive the user's name.
    pub(crate) async fn client_of(&self, user: &str) -> Client {
        match self {
            Backend::Embedded { server, .. } => Client::in_process(server.service_as(user)),
            Backend::Kube(kube) => kube.client_of(user).await,
        }
    }

    /// The API for a service account with the token that a kubelet mounts into this pod: the token names the pod and its node.
    pub(crate) async fn client_in_pod(&self, account: &str, pod: &kai_api::Pod) -> Client {
        match self {
            Backend::Embedded { server, .. } => {
                let claims = [
                    ("node-name", pod.node_name().unwrap_or_default()),
                    ("pod-name", pod.metadata.plain_name()),
                    ("pod-uid", pod.metadata.uid.as_deref().unwrap_or_default()),
                ];
                let service = claims
                    .iter()
                    .fold(server.service_as(account), |service, (claim, value)| {
                        service.claiming(&format!("authentication.kubernetes.io/{claim}"), value)
                    });
                Client::in_process(service)
            }
            Backend::Kube(kube) => kube.client_in_pod(account, pod).await,
        }
    }

    /// The API for a service account with all rights in RBAC: only policies restrict it.
    pub(crate) async fn client_beyond_rbac(&self, account: &str) -> Client {
        match self {
            Backend::Embedded { server, .. } => Client::in_process(server.service_as(account)),
            Backend::Kube(kube) => kube.client_beyond_rbac(account).await,
        }
    }

    /// The real API server, or `None` on the embedded one.
    pub(crate) fn kube(&self) -> Option<&Kube> {
        match self {
            Backend::Embedded { .. } => None,
            Backend::Kube(kube) => Some(kube),
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        match self {
            Backend::Embedded { clock, .. } => *clock,
            Backend::Kube(_) => Clock::System,
        }
    }

    /// Whether no other controller creates the pods of workloads.
    pub(crate) fn lacks_controller_manager(&self) -> bool {
        match self {
            Backend::Embedded { .. } => true,
            Backend::Kube(_) => false,
        }
    }

    /// A cluster without changes for this time is in a stable state.
    pub(crate) fn quiet(&self) -> Duration {
        match self {
            Backend::Embedded { .. } => Duration::from_secs(5),
            // Real time.
            Backend::Kube(_) => Duration::from_secs(2),
        }
    }

    /// Waits until webhooks and policies of roles that just started take effect.
    pub(crate) async fn until_guarded(&self) {
        match self {
            Backend::Embedded { .. } => {}
            Backend::Kube(kube) => kube.until_guarded().await,
        }
    }

    /// Runs another replica of all roles that have a leader, until dropped. `None` if roles run without leader election.
    pub(crate) fn standby(&self) -> Option<impl Future<Output = anyhow::Error> + Send + 'static> {
        match self {
            Backend::Embedded { .. } => None,
            Backend::Kube(kube) => {
                let kube = kube.clone();
                Some(async move { kube.run_standby().await })
            }
        }
    }

    /// The embedded API server, or `None` on a real one.
    pub(crate) fn server(&self) -> Option<&Server> {
        match self {
            Backend::Embedded { server, .. } => Some(server),
            Backend::Kube(_) => None,
        }
    }

    /// Runs roles until dropped.
    pub(crate) async fn run_roles(&self, settings: RoleSettings) -> anyhow::Error {
        let ended = match self {
            Backend::Kube(kube) => return kube.run_roles(settings).await,
            Backend::Embedded { server, clock } => {
                let client = Client::in_process(embedded::service_of_roles(server));
                embedded::run(server.clone(), Context::new(client, *clock), settings).await
            }
        };
        match ended {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }
}
