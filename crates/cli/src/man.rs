//! `kai man`: manual pages, one for each command.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory};

/// The flags of `kai man`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Existing directory that gets the pages, such as ~/.local/share/man/man1.
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let directory = &arguments.directory;
    clap_mangen::generate_to(crate::Arguments::command(), directory).map_err(|error| {
        anyhow::anyhow!(
            "writing manual pages to {}: {error}; name an existing directory that you may write to",
            directory.display()
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
