//! Replicas of roles on a real API server, each with its own proxy to the server.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;

use kai_cli::roles::RoleSettings;
use kai_cluster::{ClientConfig, Context, LeaseTimes};
use kai_controllers::admission::Endpoint;
use tokio::task::JoinSet;

use super::kube::{Kube, first_end};
use super::line::Line;

/// For scenarios about leader election: a slow machine must not count as disconnected.
const UNHURRIED: LeaseTimes = LeaseTimes {
    lease: Duration::from_secs(9),
    renew: Duration::from_secs(6),
    retry: Duration::from_secs(1),
};

/// One replica of the roles that have a leader.
pub(crate) struct Replica {
    /// Its proxy to the server.
    pub(crate) line: Line,
    roles: JoinSet<()>,
    _config: tempfile::NamedTempFile,
}

impl Replica {
    /// Kills the replica, as if its machine had died.
    pub(crate) async fn kill(mut self) {
        self.roles.shutdown().await;
    }

    /// Asserts that no role of the replica has ended.
    pub(crate) fn assert_alive(&mut self) {
        assert!(self.roles.try_join_next().is_none(), "a replica ended by itself");
    }
}

/// One replica of the webhooks.
pub(crate) struct Webhooks {
    context: Context,
    serving: JoinSet<()>,
}

impl Webhooks {
    /// How often the server called it about pods.
    pub(crate) fn asked(&self) -> u64 {
        let text = self.context.metrics.text();
        let of_pods = text.lines().filter(|line| line.contains("mutate--v1-pod"));
        of_pods
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    }

    /// Stops the replica.
    pub(crate) async fn kill(mut self) {
        self.serving.shutdown().await;
    }
}

impl Kube {
    /// Runs a replica of each role that has a leader, with its own proxy to the server; the server sees the address `source`.
    pub(crate) async fn replica(&self, source: IpAddr) -> Replica {
        let (line, access, _config) = self.over_a_line(source).await;
        let kube = Kube { access, ..self.clone() };
        let elected = kube.elected(RoleSettings::every_role().unwrap(), UNHURRIED).await;
        let mut roles = JoinSet::new();
        roles.spawn(async move { panic!("a role of a replica ended: {:?}", first_end(elected).await) });
        Replica { line, roles, _config }
    }

    /// Runs a replica of the webhooks on `listener`, which the server reaches at `endpoint`.
    pub(crate) async fn webhooks(&self, identity: &str, endpoint: SocketAddr, listener: TcpListener) -> Webhooks {
        let mut settings = RoleSettings::every_role().unwrap().admission.unwrap();
        settings.endpoint = Endpoint::Url(format!("https://{endpoint}"));
        identity.clone_into(&mut settings.identity);
        let context = self.context_of("admission").await;
        let served = context.clone();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let ended = kai_controllers::admission::serve(served, settings, listener).await;
            panic!("webhooks ended: {ended:?}")
        });
        Webhooks { context, serving }
    }

    /// Credentials of the same user for the server behind a proxy.
    async fn over_a_line(&self, source: IpAddr) -> (Line, ClientConfig, tempfile::NamedTempFile) {
        let ClientConfig::Kubeconfig(path) = &self.access else {
            unreachable!("scenarios are given a kubeconfig");
        };
        let config = std::fs::read_to_string(path).unwrap();
        let (_, rest) = config.split_once("server: https://").unwrap();
        let server = rest.lines().next().unwrap().trim();
        let line = Line::new(source, &[server.parse().unwrap()]).await;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), config.replace(server, &line.address.to_string())).unwrap();
        let access = ClientConfig::Kubeconfig(file.path().to_owned());
        (line, access, file)
    }
}
