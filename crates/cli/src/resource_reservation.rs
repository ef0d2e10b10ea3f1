//! `kai resource-reservation`: the process in a reservation pod.

use std::process::ExitCode;

use clap::Args;

use crate::log::{self, LogArguments};

/// The flags of `kai resource-reservation`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    reservation: kai_node::reservation::Args,
    #[command(flatten)]
    log: LogArguments,
}

/// Runs until SIGTERM or SIGINT. The exit code is 1 if the GPU was not found or the pod could not be annotated.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    log::start(&arguments.log)?;
    if let Err(error) = kai_node::reservation::run(arguments.reservation) {
        eprintln!("error: {error}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
