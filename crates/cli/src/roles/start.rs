//! What a role's process says about itself when it starts: version, ports, election, API server, and what it watches.

use std::net::SocketAddr;
use std::time::Duration;

use kai_cluster::{Candidate, Client};

use crate::all::Settings;

/// How long to wait before an API server that does not answer is asked again.
const PAUSE: Duration = Duration::from_secs(10);

/// Where a process serves what.
pub(super) struct Ports {
    pub(super) metrics_and_health: Option<SocketAddr>,
    pub(super) probes: Option<SocketAddr>,
}

/// Which replica does the work.
pub(super) enum Leader<'a> {
    /// The one that is elected.
    Elected(&'a Candidate),
    /// This one, because there is no other.
    Alone,
    /// Each of them.
    EveryReplica,
}

/// Logs what starts, once.
pub(super) fn announce(client: &Client, leader: &Leader<'_>, ports: &Ports, settings: &Settings) {
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        roles = roles(settings).join(", "),
        api_server = client.address(),
        "kai starts"
    );
    tracing::info!(
        metrics_and_health = text(ports.metrics_and_health),
        probes = text(ports.probes),
        questions = text(settings.questions),
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
        Leader::Elected(candidate) => tracing::info!(
            lease = format!("{}/{}", candidate.namespace, candidate.name),
            identity = candidate.identity,
            "leader election is on: this replica waits for the lease"
        ),
        Leader::Alone => {
            tracing::info!("leader election is off: with more than one replica, start each with --leader-elect");
        }
        Leader::EveryReplica => tracing::info!("every replica answers: there is no leader election"),
    }
    for line in watched(settings) {
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

fn roles(settings: &Settings) -> Vec<&'static str> {
    let Settings {
        scheduler,
        binder,
        controllers,
        admission,
        questions: _,
    } = settings;
    let all = [
        ("scheduler", scheduler.is_some()),
        ("binder", binder.is_some()),
        ("controllers", controllers.is_some()),
        ("admission", admission.is_some()),
    ];
    all.into_iter()
        .filter(|(_, runs)| *runs)
        .map(|(role, _)| role)
        .collect()
}

/// What each role watches, in sentences.
fn watched(settings: &Settings) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(scheduler) = &settings.scheduler {
        lines.push(format!(
            "scheduler: watches pods with schedulerName {} in all namespaces, and the nodes, pod groups and queues of shard {}",
            scheduler.scheduler_name,
            scheduler.partition.name()
        ));
    }
    if let Some(binder) = &settings.binder {
        lines.push(format!(
            "binder: watches bind requests in all namespaces, and reservation pods in namespace {}",
            binder.reservation_namespace
        ));
    }
    if let Some(controllers) = &settings.controllers {
        let parts = [
            ("pods and their owners", controllers.grouper.is_some()),
            ("pod groups", controllers.pod_groups.is_some()),
            ("queues", controllers.queues.is_some()),
        ];
        let parts: Vec<&str> = parts
            .into_iter()
            .filter(|(_, runs)| *runs)
            .map(|(part, _)| part)
            .collect();
        lines.push(format!("controllers: watches {} in all namespaces", parts.join(", ")));
    }
    if let Some(admission) = &settings.admission {
        lines.push(format!(
            "admission: answers for pods with schedulerName {}, queues, pod groups and topologies; its service is in namespace {}",
            admission.scheduler_name, admission.system_namespace
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_says_what_it_watches() {
        let settings = Settings::every_role().unwrap();
        let lines = watched(&settings);
        assert_eq!(lines.len(), roles(&settings).len());
        assert!(
            lines[0].contains("schedulerName kai-scheduler in all namespaces"),
            "{}",
            lines[0]
        );
        let flags = |role: &str| match role {
            "scheduler" => vec!["--partition-label-value=team-a".to_owned()],
            _ => Vec::new(),
        };
        let lines = watched(&Settings::of_flags(flags).unwrap());
        assert!(lines[0].contains("shard team-a"), "{}", lines[0]);
    }
}
