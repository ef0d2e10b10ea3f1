//! `kai node-agent`: runs the node agent, or prints with `--dry-run` what it would do.

use std::process::ExitCode;

use clap::Args;

use crate::log::{self, LogArguments};

/// The flags of `kai node-agent`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    agent: kai_node::agent::Args,
    /// Print the labels, devices and driver files of this node, and exit. Changes nothing and needs no cluster.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    log: LogArguments,
}

/// Runs until SIGTERM or SIGINT, which is exit code 0.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    if arguments.dry_run {
        crate::print(&kai_node::agent::dry_run(&arguments.agent)?)?;
    } else {
        log::start(&arguments.log)?;
        kai_node::agent::run(arguments.agent)?;
    }
    Ok(ExitCode::SUCCESS)
}
