//! `kai mps-launch`: becomes a program of the host. The node agent starts the host's multi-process daemon by it.

use std::process::ExitCode;

use clap::Args;
use kai_node::enforcement::mps::launch::become_program;

/// The options of `kai mps-launch`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The program, as the host names it.
    program: String,
    /// Its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Returns only if the program can't be run.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { program, arguments } = arguments;
    Err(become_program(&program, &arguments).into())
}
