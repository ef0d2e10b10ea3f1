//! The log of the roles that run for long: lines on standard error, as text or JSON. Tools print instead, and have no log.

use std::io::{self, IsTerminal};

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

const FILTER_DEFAULT: &str = "info";

/// How a role logs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Log")]
pub(crate) struct LogArguments {
    /// What is logged: a level, or targets with levels such as warn,kai_node=debug.
    #[arg(long = "log", value_name = "FILTER", default_value = FILTER_DEFAULT, env = "RUST_LOG")]
    filter: String,
    /// How a line looks.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Text, env = "KAI_LOG_FORMAT")]
    log_format: Format,
    #[command(flatten)]
    kai: KaiLogArguments,
}

/// The same, as KAI's programs have it: klog's flags for some of them, zap's for others.
#[derive(Debug, Default, Args)]
struct KaiLogArguments {
    #[arg(long, hide = true, default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    log_json: bool,
    #[arg(long = "v", visible_alias = "log-level", hide = true)]
    verbosity: Option<u32>,
    #[arg(long, hide = true)]
    zap_encoder: Option<String>,
    #[arg(long, hide = true)]
    zap_log_level: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    zap_devel: Option<bool>,
    #[arg(long, hide = true)]
    zap_stacktrace_level: Option<String>,
    #[arg(long, hide = true)]
    zap_time_encoding: Option<String>,
}

/// From this verbosity on KAI tells what only its developers read.
const VERBOSITY_DEBUG: u32 = 5;

impl KaiLogArguments {
    /// The level they ask for.
    fn level(&self) -> Option<&'static str> {
        let number = self.verbosity.map(|verbosity| verbosity >= VERBOSITY_DEBUG);
        let zap = self.zap_log_level.as_deref();
        match (number, zap) {
            (Some(true), _) | (_, Some("debug")) => Some("debug"),
            (_, Some("error" | "panic")) => Some("error"),
            // zap's numbers begin where info ends.
            (_, Some(level)) if level.parse::<u32>().is_ok_and(|level| level > 0) => Some("debug"),
            _ => None,
        }
    }

    fn is_json(&self) -> bool {
        let encoder = self.zap_encoder.as_deref();
        self.log_json || encoder == Some("json") || (encoder.is_none() && self.zap_devel == Some(false))
    }
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
    let filter = match arguments.kai.level() {
        Some(level) if arguments.filter == FILTER_DEFAULT => level,
        Some(_) | None => &arguments.filter,
    };
    let parsed = filter.parse::<EnvFilter>();
    let filter = parsed.map_err(|error| anyhow!("reading the log filter {filter:?}: {error}"))?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        // Colours would come between the name and the value of a field, and no search would find it.
        .with_ansi(io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none());
    match arguments.log_format {
        Format::Text if arguments.kai.is_json() => log.json().flatten_event(true).init(),
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
        kai: KaiLogArguments::default(),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        log: LogArguments,
    }

    #[test]
    fn flags_of_kai_set_level_and_format() {
        let check = |line: &str, expect: (Option<&str>, bool)| {
            let kai = Program::parse_from(line.split(' ')).log.kai;
            assert_eq!((kai.level(), kai.is_json()), expect, "{line}");
        };
        check("scheduler --v=3", (None, false));
        check("scheduler --v=6 --log-json", (Some("debug"), true));
        check("binder --zap-devel=false", (None, true));
        check(
            "binder --zap-devel=false --zap-encoder=console --zap-log-level=error",
            (Some("error"), false),
        );
        check("controllers --log-level=5", (Some("debug"), false));
        check("binder --zap-log-level=2", (Some("debug"), false));
    }
}
