//! `kai version`: the version, the commit and the build.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde::Serialize;

/// The flags of `kai version`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    /// For a person.
    Text,
    /// For a program.
    Json,
}

#[derive(Serialize)]
struct Version {
    version: &'static str,
    /// `None` if the build did not know it.
    commit: Option<&'static str>,
    target: &'static str,
    profile: &'static str,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let version = Version {
        version: env!("CARGO_PKG_VERSION"),
        commit: Some(env!("KAI_BUILD_COMMIT")).filter(|commit| !commit.is_empty()),
        target: env!("KAI_BUILD_TARGET"),
        profile: env!("KAI_BUILD_PROFILE"),
    };
    let text = match arguments.output {
        Output::Json => serde_json::to_string_pretty(&version)? + "\n",
        Output::Text => format!(
            "kai {}\ncommit:  {}\ntarget:  {}\nprofile: {}\n",
            version.version,
            version.commit.unwrap_or("unknown"),
            version.target,
            version.profile
        ),
    };
    crate::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
