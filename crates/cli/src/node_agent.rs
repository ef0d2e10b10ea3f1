//! `kai node-agent`: the role, or with `--dry-run` what it would do.

use std::process::ExitCode;

use clap::Args;

use crate::log::{self, LogArguments};

/// What was typed.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    agent: kai_node::agent::Args,
    /// Print what this node would be labelled, serve and inject, and end. Nothing is changed and nobody is asked.
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
