//! The log of the roles that run for long: lines on standard error, as text or JSON. Tools print instead, and have no log.

use std::io::{self, IsTerminal};

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// How a role logs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Log")]
pub(crate) struct LogArguments {
    /// What is logged: a level, or targets with levels such as warn,node=debug.
    #[arg(long = "log", value_name = "FILTER", default_value = "info", env = "RUST_LOG")]
    filter: String,
    /// How a line looks.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Text, env = "KAI_LOG_FORMAT")]
    log_format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// For a person and for grep.
    Text,
    /// One JSON object per line.
    Json,
}

/// Begins to log. Once per process.
pub(crate) fn start(arguments: &LogArguments) -> anyhow::Result<()> {
    let filter: EnvFilter = arguments
        .filter
        .parse()
        .map_err(|error| anyhow!("reading the log filter {:?}: {error}", arguments.filter))?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        // Colours would come between the name and the value of a field, and no search would find it.
        .with_ansi(io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none());
    match arguments.log_format {
        Format::Text => log.init(),
        Format::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}

/// Logs what passes the filter and no more, for tools that print for people.
pub(crate) fn start_quietly(filter: &str) -> anyhow::Result<()> {
    start(&LogArguments {
        filter: filter.to_owned(),
        log_format: Format::Text,
    })
}
