//! `kai snapshot`: the scheduler's objects as a zip file, for `kai simulate`, bug reports and KAI's snapshot tool.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use kai_cluster::Clock;
use kai_engine::model::Millis;

use super::{Connection, block_on, load};

/// The flags of `kai snapshot`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// File to write. An existing file is replaced.
    #[arg(value_name = "FILE", default_value = "snapshot.zip")]
    file: PathBuf,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let zip = block_on(async {
        let client = load::connect(&arguments.connection).await?;
        let settings = arguments.connection.settings(&client).await?;
        let now = Millis(Clock::System.now().as_millisecond());
        let zip = kai_scheduler::take_snapshot(&client, &settings, now).await;
        zip.map_err(|message| {
            anyhow::anyhow!("{message} (a snapshot needs the right to list all of the scheduler's kinds)")
        })
    })?;
    let file = arguments.file.display();
    std::fs::write(&arguments.file, &zip)
        .map_err(|error| anyhow::anyhow!("writing {file}: {error}; name a file that you may write"))?;
    crate::print(&format!(
        "{file}: {} bytes. It has names, labels, annotations and environments of all pods: look at it before you pass it on.\n",
        zip.len()
    ))?;
    Ok(ExitCode::SUCCESS)
}
