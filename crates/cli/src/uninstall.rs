//! `kai uninstall`: removes the objects of kai that would be in the way once its processes are gone.

use std::process::ExitCode;

use clap::Args;
use kai_api::keys;
use kai_controllers::installation::{Installation, ReservationPods, uninstall};

use crate::roles::Connection;

/// The flags of `kai uninstall`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    connection: Connection,
    /// Namespace of kai, which has the leases.
    #[arg(long, default_value = keys::SYSTEM_NAMESPACE, env = "NAMESPACE")]
    namespace: String,
    /// Namespace of the reservation pods.
    #[arg(long, default_value = keys::RESERVATION)]
    resource_reservation_namespace: String,
    /// Namespace of the scaling pods of the node-scale adjuster.
    #[arg(long, default_value = keys::SCALE_ADJUST_NAMESPACE)]
    scale_adjust_namespace: String,
    /// Keep the reservation pods, for a return to KAI-Scheduler: it deletes running pods with a part of a GPU that no reservation pod holds.
    #[arg(long)]
    keep_reservation_pods: bool,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = kai_cluster::Client::connect(&arguments.connection.access()).await?;
        let installation = Installation {
            namespace: arguments.namespace,
            reservation_namespace: arguments.resource_reservation_namespace,
            scale_adjust_namespace: arguments.scale_adjust_namespace,
        };
        let (reservation_pods, done) = match arguments.keep_reservation_pods {
            true => (
                ReservationPods::Keep,
                "webhooks, admission policies, leases and scaling pods are removed; reservation pods,",
            ),
            false => (
                ReservationPods::Delete,
                "webhooks, admission policies, leases, scaling pods and reservation pods are removed;",
            ),
        };
        uninstall(&client, &installation, reservation_pods).await?;
        crate::print(&format!(
            "kai's {done} workloads, queues and pod groups are as they were\n"
        ))?;
        Ok(ExitCode::SUCCESS)
    })
}
