//! The agent, the reservation process and the doctor as one small program, for trying them without the `kai` binary:
//! `cargo run -p node --example node -- agent --driver fake:t4:2 --no-cluster --dry-run`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// The node agent.
    Agent {
        #[command(flatten)]
        args: Box<node::agent::Args>,
        /// Print what would be done, and end.
        #[arg(long)]
        dry_run: bool,
    },
    /// The process in a reservation pod.
    Reservation {
        #[command(flatten)]
        args: node::reservation::Args,
    },
    /// What works here and what does not.
    Doctor {
        #[command(flatten)]
        args: node::doctor::Args,
        /// Output: table or json.
        #[arg(short, long, default_value = "table")]
        output: String,
    },
}

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let done = match Cli::parse().role {
        Role::Agent { args, dry_run: true } => node::agent::dry_run(&args).map(|text| {
            print!("{text}");
            0
        }),
        Role::Agent { args, dry_run: false } => node::agent::run(*args).map(|()| 0),
        Role::Reservation { args } => node::reservation::run(args).map(|()| 0),
        Role::Doctor { args, output } => node::doctor::run(args).map(|report| {
            println!(
                "{}",
                if output == "json" {
                    report.json()
                } else {
                    report.table()
                }
            );
            report.exit_code()
        }),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
