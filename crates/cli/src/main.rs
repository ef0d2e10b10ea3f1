//! The `kai` program: argument parsing and printing only. Every role and tool is a subcommand.

mod simulate;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// GPU scheduling for Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "kai", version, about, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run clusters from files through the scheduler's engine, without a cluster.
    Simulate(simulate::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Command::Simulate(arguments) => simulate::run(arguments),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            // One sentence; our errors have their cause in it.
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
