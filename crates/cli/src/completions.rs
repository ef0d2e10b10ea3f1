//! `kai completions`: the completion script of a shell.

use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// The flags of `kai completions`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut crate::Arguments::command(), "kai", &mut script);
    crate::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
