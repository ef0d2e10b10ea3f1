//! `kai simulate`: flags and runs. Module `report` prints.

mod diff;
mod explain;
mod files;
mod installation;
mod junit;
mod report;
mod table;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use kai_engine::model::{Action, PlacementStrategy};
use kai_simulate::diff::OutcomeDiff;
use kai_simulate::outcome::Outcome;
use kai_simulate::run::Options;
use kai_simulate::scenario::{self, Change};
use rayon::prelude::*;

use crate::grid::{Screen, printable};
use installation::Installed;
use report::{Output, Report, Run, Wishes};

/// Scenarios that run before the first of them is printed: bounds memory, keeps all cores busy.
const BATCH: usize = 256;

/// The flags of `kai simulate`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Case files, Kubernetes manifests, or folders of them; - is standard input. Manifests named together make up one
    /// cluster.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Cycles to run [default: what the case says, 1 for manifests].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    cycles: Option<u32>,
    /// Actions of a cycle, in order: allocate, consolidation, reclaim, preempt, stalegangeviction.
    #[arg(long, value_delimiter = ',', value_parser = parse_action)]
    actions: Option<Vec<Action>>,
    /// Change the cluster first; may be given several times, in order: "add 4 nodes like NODE", "remove node NODE", "cordon node
    /// NODE", "queue QUEUE gpu.quota=16" (or .limit, .overQuotaWeight, of gpu, cpu or memory; or priority), "delete pod NS/NAME",
    /// "delete podgroup NS/NAME" (with its pods), "submit FILE".
    #[arg(long, value_name = "CHANGE")]
    what_if: Vec<Change>,
    /// Run the unchanged cluster, too, and print only what --what-if makes different: pods, queues and nodes.
    #[arg(long, requires = "what_if", conflicts_with_all = ["check", "fail_on_pending"])]
    diff: bool,
    /// Compare with what the cases expect; exit with 1 if any differs.
    #[arg(long)]
    check: bool,
    /// Fill nodes up, or even them out [default: what the case says, else binpack].
    #[arg(long, value_enum)]
    placement: Option<Placement>,
    /// After the last cycle, say why this pod or pod group waits and what would let it start; a name without its namespace
    /// will do if there is only one.
    #[arg(long, value_name = "NAMESPACE/POD")]
    explain: Option<String>,
    /// Exit with 1 if a pod waits without a place after the last cycle, or admission refuses one.
    #[arg(long)]
    fail_on_pending: bool,
    /// Exit with 2 if there was a warning: something was skipped, ignored or changed.
    #[arg(long)]
    strict: bool,
    /// Output: tables for a person, one JSON object per scenario and line, or one JUnit report of all scenarios (which implies
    /// --check).
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Placement {
    /// The fullest node that fits.
    Binpack,
    /// The emptiest node; consolidation is left out.
    Spread,
}

fn parse_action(name: &str) -> Result<Action, String> {
    Action::by_name(name).ok_or_else(|| {
        let known: Vec<&str> = Action::ALL.iter().map(|action| action.name()).collect();
        format!("known actions are {}", known.join(", "))
    })
}

/// Runs the scenarios. The exit code is 0 if all is well, 1 if a check found a difference or, with `--fail-on-pending`, a pod waits, and 2
/// if a file could not be read or, with `--strict`, there was a warning.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    if arguments.diff && arguments.output == Output::Junit {
        anyhow::bail!("--diff has no JUnit report; use -o table or -o json");
    }
    // A report of tests that compares nothing would call every case passed.
    let check = arguments.check || arguments.output == Output::Junit;
    let options = Options {
        cycles: arguments.cycles,
        actions: arguments.actions,
        placement: arguments.placement.map(|placement| match placement {
            Placement::Binpack => PlacementStrategy::Binpack,
            Placement::Spread => PlacementStrategy::Spread,
        }),
        check,
        explain: arguments.explain,
    };
    let sources = scenario::discover(&arguments.paths, io::stdin().lock())
        .map_err(|error| anyhow::anyhow!("{}", printable(&error.to_string())))?;
    let installed = Installed::new()?;
    let wishes = Wishes {
        output: arguments.output,
        check,
        fail_on_pending: arguments.fail_on_pending,
        strict: arguments.strict,
    };
    let mut report = Report::new(wishes, Screen::of_standard_output());
    for batch in sources.chunks(BATCH) {
        let runs: Vec<Run> = batch
            .par_iter()
            .map(|source| {
                let run = |changes: &[Change]| -> Result<Outcome, kai_simulate::Error> {
                    let scenario = scenario::load_changed(source, changes, &installed)?;
                    Ok(kai_simulate::run::run(scenario, &options))
                };
                let before = arguments.diff.then(|| run(&[])).transpose()?;
                let after = run(&arguments.what_if)?;
                let diff = before.map(|before| {
                    let changes = arguments.what_if.iter().map(Change::to_string).collect();
                    OutcomeDiff::new(changes, &before, &after)
                });
                Ok((after, diff))
            })
            .collect();
        for (source, run) in batch.iter().zip(runs) {
            match report.add(source, run) {
                // The reader may close the pipe early.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
                printed => printed?,
            }
        }
    }
    Ok(report.finish()?)
}
