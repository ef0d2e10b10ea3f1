//! `kai doctor`: prints the findings.

use std::process::ExitCode;

use clap::{Args, ValueEnum};

/// The flags of `kai doctor`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    doctor: kai_node::doctor::Args,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    /// For a person.
    Table,
    /// For a program.
    Json,
}

/// Checks the machine. The exit code is 1 if something will not work.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let report = kai_node::doctor::run(arguments.doctor)?;
    let text = match arguments.output {
        Output::Table => report.table(),
        Output::Json => report.json() + "\n",
    };
    crate::print(&text)?;
    Ok(ExitCode::from(report.exit_code()))
}
