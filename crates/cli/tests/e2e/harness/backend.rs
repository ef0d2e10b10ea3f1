//! Where scenarios run. The embedded API server, in virtual time, is the usual one.

use cli::all::Settings;
use cli::embedded;
use cluster::{Client, Clock, Context};
use sim::server::{Options, Server};
use tokio::runtime::{Builder, Runtime};

/// When virtual time begins.
const START: &str = "2026-01-01T00:00:00Z";

/// A back end, before its runtime runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice {
    /// An API server within the test.
    Embedded,
}

impl Choice {
    pub(crate) fn of_environment() -> Choice {
        match std::env::var("KAI_E2E_BACKEND").as_deref() {
            Err(_) | Ok("embedded") => Choice::Embedded,
            Ok(other) => panic!("KAI_E2E_BACKEND={other}: there is only embedded"),
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
        }
    }

    /// Starts it. Within its runtime.
    pub(crate) fn start(self) -> Backend {
        match self {
            Choice::Embedded => {
                let start = START.parse().unwrap();
                let server = Server::new(Options {
                    clock: Some(sim::server::Clock::starting_at(start)),
                    ..Options::default()
                });
                embedded::install(&server).unwrap();
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
    /// An API server within the test.
    Embedded {
        /// The server.
        server: Server,
        /// Virtual time.
        clock: Clock,
    },
}

impl Backend {
    /// The API for a user who may do everything.
    pub(crate) fn client(&self) -> Client {
        match self {
            Backend::Embedded { server, .. } => Client::in_process(server.service()),
        }
    }

    /// The API for simulated nodes.
    pub(crate) fn client_of_nodes(&self) -> Client {
        match self {
            Backend::Embedded { server, .. } => Client::in_process(embedded::service_of_nodes(server)),
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        match self {
            Backend::Embedded { clock, .. } => *clock,
        }
    }

    /// Whether nobody else turns workloads into pods.
    pub(crate) fn lacks_controller_manager(&self) -> bool {
        match self {
            Backend::Embedded { .. } => true,
        }
    }

    /// The embedded API server, if it is one.
    pub(crate) fn server(&self) -> Option<&Server> {
        match self {
            Backend::Embedded { server, .. } => Some(server),
        }
    }

    /// Runs roles until dropped.
    pub(crate) async fn run_roles(&self, settings: Settings) -> anyhow::Error {
        let ended = match self {
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
