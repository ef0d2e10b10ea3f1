//! The playground's cluster: API server, nodes, workload controllers, roles.

use std::net::SocketAddr;

use kai_cluster::{Client, Clock, Context};
use kai_embedded::kubelet::{Kubelets, NodesFile};
use kai_embedded::server::{Listening, Options, Server};
use kai_embedded::workloads::{OtherSchedulers, Workloads};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::embedded;
use crate::roles::{PageSlot, RoleSettings};

/// Where the roles run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Roles {
    /// In this process.
    InProcess,
    /// In processes that others start.
    Elsewhere,
}

/// A running cluster.
pub(super) struct World {
    pub(super) client: Client,
    pub(super) context: Context,
    pub(super) kubelets: Kubelets,
    /// The scheduler of this process, for the page.
    pub(super) scheduler: PageSlot,
    listening: Listening,
    /// Locked by the one caller that waits for the end.
    tasks: Mutex<JoinSet<anyhow::Error>>,
}

impl World {
    pub(super) async fn start(nodes: &NodesFile, address: SocketAddr, roles: Roles) -> anyhow::Result<World> {
        let server = Server::new(Options::default());
        let listening = server.listen(address).await;
        let listening = listening.map_err(|error| anyhow::anyhow!("{error}; choose another address with --listen"))?;
        embedded::install(&server)?;
        let client = Client::in_process(server.service());
        let context = Context::new(client.clone(), Clock::System);
        let of_nodes = Client::in_process(embedded::service_of_nodes(&server));
        let kubelets = Kubelets::new(&context.with_client(of_nodes), nodes.delays);
        for template in &nodes.nodes {
            kubelets.add(template).await.map_err(anyhow::Error::msg)?;
        }
        let mut tasks = JoinSet::new();
        let running = kubelets.clone();
        tasks.spawn(async move {
            running.run().await;
            anyhow::anyhow!("the simulated kubelets ended")
        });
        let workloads = Workloads::new(&context);
        tasks.spawn(async move {
            workloads.run().await;
            anyhow::anyhow!("the workload controllers ended")
        });
        let others = OtherSchedulers::new(&context, &[kai_api::keys::SCHEDULER_NAME]);
        tasks.spawn(async move {
            others.run().await;
            anyhow::anyhow!("the watch for pods of other schedulers ended")
        });
        let scheduler = PageSlot::default();
        match roles {
            Roles::InProcess => {
                let roles = Context::new(Client::in_process(embedded::service_of_roles(&server)), Clock::System);
                let settings = RoleSettings {
                    page: Some(scheduler.clone()),
                    ..RoleSettings::every_role()?
                };
                tasks.spawn(async move {
                    match embedded::run(server, roles, settings).await {
                        Ok(never) => match never {},
                        Err(error) => error,
                    }
                });
            }
            Roles::Elsewhere => {}
        }
        // The picture at the end reads it; a watch that starts then has no objects yet.
        context.informers.nodes().synced().await;
        let world = World {
            client,
            context,
            kubelets,
            scheduler,
            listening,
            tasks: Mutex::new(tasks),
        };
        Ok(world)
    }

    /// Where the API server listens.
    pub(super) fn address(&self) -> String {
        self.listening.url()
    }

    /// Waits until a part of the cluster fails.
    pub(super) async fn ended(&self) -> anyhow::Error {
        match self.tasks.lock().await.join_next().await {
            Some(Ok(error)) => error,
            Some(Err(error)) => anyhow::anyhow!("a part of the cluster died: {error}"),
            None => anyhow::anyhow!("nothing runs"),
        }
    }
}
