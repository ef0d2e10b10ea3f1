//! The first lines of a process's log: version, ports, election, API server, and the objects that its roles watch.

use std::net::SocketAddr;
use std::time::Duration;

use kai_cluster::Client;

use super::run::Replica;
use super::table::RoleSettings;

/// Pause between two attempts to reach an API server that does not answer.
const PAUSE: Duration = Duration::from_secs(10);

/// The addresses that a process serves.
pub(super) struct Ports {
    pub(super) metrics_and_health: Option<SocketAddr>,
    pub(super) probes: Option<SocketAddr>,
    pub(super) page: Option<SocketAddr>,
}

/// Which replica works.
pub(super) enum Leader {
    /// The one that holds these leases; each role has its own.
    Elected(Replica, Vec<String>),
    /// This one: there is no other.
    Alone,
    /// Each of them.
    EveryReplica,
}

/// Logs version, ports, election and watched objects.
pub(super) fn announce(client: &Client, leader: &Leader, ports: &Ports, settings: &RoleSettings) {
    tracing::info!(
        version = kai_cluster::VERSION,
        roles = settings.names().join(", "),
        api_server = client.address(),
        "kai starts"
    );
    tracing::info!(
        metrics_and_health = text(ports.metrics_and_health),
        probes = text(ports.probes),
        page = text(ports.page),
        debug_endpoints = text(settings.debug_address),
        webhooks = settings
            .admission
            .as_ref()
            .map_or("none".to_owned(), |admission| format!(
                "port {}",
                admission.webhook_port
            )),
        "serving"
    );
    match leader {
        Leader::Elected(replica, leases) => tracing::info!(
            namespace = replica.namespace,
            leases = leases.join(", "),
            identity = replica.identity,
            "leader election is on: each role waits for its lease"
        ),
        Leader::Alone => {
            tracing::info!("leader election is off: with more than one replica, start each with --leader-elect");
        }
        Leader::EveryReplica => tracing::info!("every replica answers: there is no leader election"),
    }
    for line in settings.watches() {
        tracing::info!("{line}");
    }
}

/// Asks the API server for its version until it answers, and logs it. Never ends.
pub(super) async fn reach(client: &Client) -> std::convert::Infallible {
    loop {
        match client.server_version().await {
            Ok(version) => {
                tracing::info!(api_server = client.address(), version, "the API server answers");
                return std::future::pending().await;
            }
            Err(error) => tracing::error!(
                api_server = client.address(),
                %error,
                "the API server does not answer; without one, `kai playground` shows a cluster in one process"
            ),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn text(address: Option<SocketAddr>) -> String {
    address.map_or("none".to_owned(), |address| address.to_string())
}
