//! The log of the roles that run for long: lines on standard error, as text or JSON. Tools print instead, and have no log.

use std::io::{self, IsTerminal};

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

const FILTER_DEFAULT: &str = "info";

/// The log flags of a role.
#[derive(Debug, Args)]
#[command(next_help_heading = "Log")]
pub(crate) struct LogArguments {
    /// Log filter: a level, or targets with levels such as warn,kai_node=debug.
    #[arg(long = "log", value_name = "FILTER", default_value = FILTER_DEFAULT, env = "RUST_LOG")]
    filter: String,
    /// Format of the lines.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Text, env = "KAI_LOG_FORMAT")]
    log_format: Format,
    #[command(flatten)]
    kai: KaiLogArguments,
}

/// The log flags of KAI's programs: klog's for some, zap's for others.
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

/// KAI logs debug messages from this verbosity on.
const VERBOSITY_DEBUG: u32 = 5;

impl KaiLogArguments {
    /// The level that the flags set.
    fn level(&self) -> Option<&'static str> {
        let number = self.verbosity.map(|verbosity| verbosity >= VERBOSITY_DEBUG);
        let zap = self.zap_log_level.as_deref();
        match (number, zap) {
            (Some(true), _) | (_, Some("debug")) => Some("debug"),
            (_, Some("error" | "panic")) => Some("error"),
            // zap's numbers continue below info.
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

/// Starts the log. Once per process.
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
        // Colour codes would stand between the name and the value of a field, and grep would not find the pair.
        .with_ansi(io::stderr().is_terminal() && !crate::grid::Screen::is_plain());
    match arguments.log_format {
        Format::Text if arguments.kai.is_json() => log.json().flatten_event(true).init(),
        Format::Text => log.init(),
        Format::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}

/// Starts the log of a tool that prints for people: only the filter, no other flags.
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
