//! `kai resource-reservation`: the process in a reservation pod.

use std::process::ExitCode;

use clap::Args;

use crate::log::{self, LogArguments};

/// What was typed.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    reservation: kai_node::reservation::Args,
    #[command(flatten)]
    log: LogArguments,
}

/// Runs until SIGTERM or SIGINT. The exit code is 1 if the GPU could not be found or written down.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    log::start(&arguments.log)?;
    if let Err(error) = kai_node::reservation::run(arguments.reservation) {
        eprintln!("error: {error}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
