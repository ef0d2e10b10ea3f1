//! The `kai` program: argument parsing and printing only. Every role and tool is a subcommand.

mod doctor;
mod log;
mod node_agent;
mod resource_reservation;
mod simulate;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// GPU scheduling for Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "kai", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run clusters from files through the scheduler's engine, without a cluster.
    Simulate(simulate::Arguments),
    /// Serve the GPUs of this node: offer them to the kubelet, inject the driver, label the node, watch health.
    NodeAgent(Box<node_agent::Arguments>),
    /// Write on this reservation pod which GPU it was given, and hold it. For nodes without the agent.
    ResourceReservation(Box<resource_reservation::Arguments>),
    /// Look at this machine and say what will not work, why, and what repairs it. Changes nothing.
    Doctor(Box<doctor::Arguments>),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Command::Simulate(arguments) => simulate::run(arguments),
        Command::NodeAgent(arguments) => node_agent::run(*arguments),
        Command::ResourceReservation(arguments) => resource_reservation::run(*arguments),
        Command::Doctor(arguments) => doctor::run(*arguments),
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

/// Prints a text that is all a command has to say. The reader of a pipe may have seen enough; that is no error.
fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}
