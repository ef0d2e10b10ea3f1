//! The scheduler's own view, from its debug endpoints. They are on the loopback interface of its pod: a port-forward reaches them.

use std::sync::Arc;

use kai_cluster::{Client, ClientConfig, Error, PodPort};
use kai_mirror::ExplanationView;
use kai_view::{ClusterView, Decision};
use serde::de::DeserializeOwned;
use tokio::sync::OnceCell;

use super::Connection;
use super::load::{connect, no_cluster, plain};
use crate::roles::{DEBUG_PORT, host_of};

/// The debug endpoints of a scheduler. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SchedulerEndpoints(Place);

#[derive(Clone)]
enum Place {
    /// At this address, for instance of a port-forward.
    Url(String),
    /// In the pod that holds the scheduler's lease.
    Leader(Arc<Leader>),
}

/// The pod that leads, found anew for each request: another one may lead then.
struct Leader {
    connection: Connection,
    /// Of the lease and the pod.
    namespace: String,
    /// The client, and the name of the lease.
    connected: OnceCell<(Client, String)>,
}

impl std::fmt::Display for SchedulerEndpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Place::Url(url) => write!(f, "the scheduler at {url}"),
            Place::Leader(leader) => write!(f, "the scheduler of namespace {}", leader.namespace),
        }
    }
}

impl SchedulerEndpoints {
    pub(crate) fn at(url: &str) -> SchedulerEndpoints {
        SchedulerEndpoints(Place::Url(url.to_owned()))
    }

    pub(crate) fn of_leader(connection: &Connection, namespace: &str) -> SchedulerEndpoints {
        SchedulerEndpoints(Place::Leader(Arc::new(Leader {
            connection: connection.clone(),
            namespace: namespace.to_owned(),
            connected: OnceCell::new(),
        })))
    }

    /// The view after its last cycle.
    pub(crate) async fn view(&self) -> anyhow::Result<ClusterView> {
        self.ask("/view", &[]).await
    }

    /// Its decisions of the last hour with larger numbers, newest first.
    pub(super) async fn decisions(&self, after: u64) -> anyhow::Result<Vec<Arc<Decision>>> {
        let mut decisions: Vec<Arc<Decision>> = self.ask("/decisions", &[("after", &after.to_string())]).await?;
        decisions.reverse();
        Ok(decisions)
    }

    /// What would let the pod start.
    pub(crate) async fn explain(&self, namespace: &str, pod: &str) -> anyhow::Result<ExplanationView> {
        let pod = format!("{namespace}/{pod}");
        self.ask("/explain", &[("pod", &pod), ("remedies", "true")]).await
    }

    async fn ask<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> anyhow::Result<T> {
        let (place, text) = match &self.0 {
            Place::Url(url) => (url.clone(), ask_url(url, path, query).await?),
            Place::Leader(leader) => leader.ask(path, query).await?,
        };
        serde_json::from_str(&text)
            .map_err(|error| anyhow::anyhow!("{place}{path} does not answer as a scheduler of this version: {error}"))
    }
}

async fn ask_url(url: &str, path: &str, query: &[(&str, &str)]) -> anyhow::Result<String> {
    let answer = async {
        let client = Client::connect(&ClientConfig::Url(url.to_owned())).await?;
        client.get_text(path, query).await
    };
    answer.await.map_err(|error| {
        let (cause, answers) = match &error {
            Error::Connect { message } => (message.clone(), false),
            Error::Call { message, code, .. } => (message.clone(), code.is_some()),
            Error::NotLeader { .. } => (error.to_string(), true),
        };
        match answers {
            true => anyhow::anyhow!("the scheduler at {url} can't tell: {}", cause.trim()),
            false => anyhow::anyhow!(
                "the scheduler at {url} does not answer: {cause}\n  \
                 its port is on the loopback interface of its pod; let kai forward it with --scheduler auto, or forward it first:\n  \
                 kubectl port-forward -n kai-scheduler deployment/kai-scheduler-default 8081"
            ),
        }
    })
}

impl Leader {
    /// The place of the endpoints, for messages, and their answer.
    async fn ask(&self, path: &str, query: &[(&str, &str)]) -> anyhow::Result<(String, String)> {
        let connected = self.connected.get_or_try_init(|| async {
            let client = connect(&self.connection).await?;
            let lease = self.connection.lease_name(&client).await?;
            anyhow::Ok((client, lease))
        });
        let (client, lease) = connected.await?;
        let pod = self.pod(client, lease).await?;
        let port = PodPort {
            namespace: &self.namespace,
            pod: &pod,
            port: DEBUG_PORT,
        };
        let answer = client.get_from_pod(port, path, query).await;
        let answer = answer.map_err(|error| anyhow::anyhow!("{}", refusal(port, &error)))?;
        match answer.code {
            200 => Ok((format!("{port}: "), answer.text)),
            _ => anyhow::bail!(
                "the scheduler in Pod {}/{pod} can't tell: {}",
                self.namespace,
                answer.text.trim()
            ),
        }
    }

    /// The pod that holds the lease.
    async fn pod(&self, client: &Client, lease: &str) -> anyhow::Result<String> {
        let namespace = &self.namespace;
        let holder = client.lease_holder(namespace, lease).await.map_err(|error| match &error {
            Error::Call { code: Some(403), .. } => anyhow::anyhow!(
                "who leads is unknown: {}\n  --scheduler auto needs the right to get leases.coordination.k8s.io of namespace {namespace}",
                plain(&error)
            ),
            Error::Connect { .. } | Error::Call { .. } | Error::NotLeader { .. } => {
                no_cluster(&self.connection, Some(client), &error)
            }
        })?;
        let holder = holder.ok_or_else(|| {
            anyhow::anyhow!(
                "no scheduler leads: nobody holds the lease {lease} of namespace {namespace}\n  \
                 is kai in another namespace (--scheduler-namespace), has its scheduler another name (--scheduler-name, --node-pool), or does it \
                 run without a lease?"
            )
        })?;
        Ok(host_of(&holder).to_owned())
    }
}

/// Why the port can't be forwarded, and what helps.
fn refusal(port: PodPort<'_>, error: &Error) -> String {
    let message = plain(error);
    let namespace = port.namespace;
    let remedy = match error {
        Error::Call { code: Some(403), .. } => format!(
            "--scheduler auto needs the rights get and create on pods/portforward of namespace {namespace}; \
             without --scheduler the objects are listed with your rights"
        ),
        Error::Call { code: Some(404), .. } => {
            format!(
                "the holder of the lease is no pod of namespace {namespace}; name the endpoints with --scheduler URL"
            )
        }
        Error::Connect { .. } | Error::Call { .. } | Error::NotLeader { .. } => format!(
            "the scheduler's debug endpoints are at port {DEBUG_PORT}, unless --plugin-server-port says otherwise"
        ),
    };
    format!("{port} can't be forwarded: {message}\n  {remedy}")
}
