//! `kai uninstall`: removes webhooks and policies, which would block the API once kai's processes are gone.

use std::process::ExitCode;

use clap::Args;

use crate::roles::Connection;

/// The flags of `kai uninstall`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    connection: Connection,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = kai_cluster::Client::connect(&arguments.connection.access()).await?;
        kai_controllers::admission::uninstall(&client).await?;
        crate::print(
            "kai's webhooks and admission policies are removed; workloads, queues and pod groups are as they were\n",
        )?;
        Ok(ExitCode::SUCCESS)
    })
}
