//! `kai simulate --usage`: queues that compete over days. Module `output` prints, `chart` draws.

mod chart;
mod output;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use kai_simulate::usage::read::UsageFile;
use kai_simulate::usage::{self, UsageOutcome};

use super::progress::Progress;
use super::report::Output;
use crate::grid::{Screen, printable};

/// The flags of `kai simulate --usage`.
#[derive(Debug, Args)]
pub(crate) struct OverTime {
    /// Let queues compete over days, with usage over time: nodes, queues, jobs and their arrivals are in the file, also one of KAI's simulators;
    /// - is standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["paths", "cycles", "actions", "what_if", "check", "placement", "explain", "redact", "watch", "fail_on_pending", "strict"])]
    pub(super) usage: Option<PathBuf>,
    /// Write what each queue held and was due after each step of --usage, as comma-separated values.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw what each queue held over the time of --usage.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl OverTime {
    /// Whether a file with what happened is wanted.
    pub(super) fn draws(&self) -> bool {
        self.csv.is_some() || self.svg.is_some()
    }
}

/// Runs the file and prints what happened.
pub(super) fn run(file: &Path, arguments: &OverTime, format: Output) -> anyhow::Result<ExitCode> {
    let read = usage::read::read(file).map_err(|error| anyhow::anyhow!("{}", printable(&error.to_string())))?;
    let run = match read {
        UsageFile::Run(run) => run,
        UsageFile::Division(division) => {
            crate::print(&format!("{}\n", serde_json::to_string_pretty(&division.shares())?))?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let progress = Progress::new(usize::try_from(run.steps)?, "steps");
    let mut bar = progress.run();
    let outcome = usage::run(&run, &mut |step| bar.at(usize::try_from(step).unwrap_or_default()));
    progress.clear();
    write(arguments.csv.as_deref(), || output::csv(&outcome))?;
    write(arguments.svg.as_deref(), || chart::svg(&outcome))?;
    let text = match format {
        Output::Table => output::table(&outcome, Screen::of_standard_output()),
        Output::Json => output::json(&outcome)?,
        Output::Junit => anyhow::bail!("--usage has no JUnit report; use -o table or -o json"),
    };
    crate::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn write(file: Option<&Path>, text: impl FnOnce() -> String) -> anyhow::Result<()> {
    let Some(file) = file else { return Ok(()) };
    let text = text();
    if file.as_os_str() == "-" {
        return Ok(crate::print(&text)?);
    }
    std::fs::write(file, text).map_err(|error| anyhow::anyhow!("{}: can't be written: {error}", file.display()))
}

/// The places of the queues that have jobs of their own.
fn leaves(outcome: &UsageOutcome) -> Vec<usize> {
    (0..outcome.queues.len())
        .filter(|at| outcome.queues[*at].is_leaf)
        .collect()
}
