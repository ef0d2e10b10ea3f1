//! `kai uninstall`: removes the objects of kai that would be in the way once its processes are gone.

use std::process::ExitCode;

use clap::Args;
use kai_api::keys;
use kai_controllers::installation::{Installation, uninstall};

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
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = kai_cluster::Client::connect(&arguments.connection.access()).await?;
        let installation = Installation {
            namespace: arguments.namespace,
            reservation_namespace: arguments.resource_reservation_namespace,
        };
        uninstall(&client, &installation).await?;
        crate::print(
            "kai's webhooks, admission policies, leases and reservation pods are removed; workloads, queues and pod groups are as they were\n",
        )?;
        Ok(ExitCode::SUCCESS)
    })
}
