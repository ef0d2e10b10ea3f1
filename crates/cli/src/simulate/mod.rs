//! `kai simulate`: flags and runs. Module `report` prints.

mod diff;
mod explain;
pub(crate) mod files;
pub(crate) mod installation;
mod junit;
mod plot;
mod progress;
mod redact;
mod report;
mod table;
mod trace;
mod usage;
mod watch;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use kai_engine::model::{Action, PlacementStrategy};
use kai_simulate::diff::OutcomeDiff;
use kai_simulate::outcome::Outcome;
use kai_simulate::run::Options;
use kai_simulate::scenario::{self, Change, Source};
use rayon::prelude::*;

use crate::grid::{Screen, printable};
use installation::Installed;
use report::{Output, Report, Run, Wishes};

/// Scenarios that run before the first of them is printed: bounds memory, keeps all cores busy.
const BATCH: usize = 256;

/// The flags of `kai simulate`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    stream: Option<Stream>,
    /// Case files, Kubernetes manifests, or folders of them; - is standard input. Manifests named together make up one
    /// cluster.
    #[arg(required_unless_present = "usage", value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Cycles to run [default: what the case says, 1 for manifests].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    cycles: Option<u32>,
    /// Actions of a cycle, in order: allocate, consolidation, reclaim, preempt, stalegangeviction.
    #[arg(long, value_delimiter = ',', value_parser = parse_action)]
    actions: Option<Vec<Action>>,
    /// Change the cluster first; may be given several times, in order: "add 4 nodes like NODE", "remove node NODE", "cordon node
    /// NODE", "uncordon node NODE", "queue QUEUE gpu.quota=16" (or .limit, .overQuotaWeight, of gpu, cpu or memory; or priority), "delete pod NS/NAME",
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
    /// Write the input without its names, for a bug report: node-1 in place of the node's name, without images, commands, environments
    /// and unknown fields. It decides as the original. For several files, FILE is a new folder.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["what_if", "check", "explain", "fail_on_pending", "watch"])]
    redact: Option<PathBuf>,
    /// Run again whenever a file changes, and print what that changes, until ctrl-c.
    #[arg(long)]
    watch: bool,
    /// Exit with 1 if a pod waits without a place after the last cycle, or admission refuses one.
    #[arg(long)]
    fail_on_pending: bool,
    /// Exit with 2 if there was a warning: something was skipped, ignored or changed.
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    usage: usage::OverTime,
    /// Output: tables for a person, one JSON object per scenario and line, or one JUnit report of all scenarios (which implies
    /// --check).
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum Stream {
    /// Replay a stream of pods from comma-separated values, by several placement policies.
    Trace(Box<trace::Arguments>),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Placement {
    /// The fullest node that fits.
    Binpack,
    /// The emptiest node; consolidation is left out.
    Spread,
    /// The node that loses least of what it is worth for the pods that are still to come.
    Frag,
}

fn parse_action(name: &str) -> Result<Action, String> {
    Action::by_name(name).ok_or_else(|| {
        let known: Vec<&str> = Action::ALL.iter().map(|action| action.name()).collect();
        format!("known actions are {}", known.join(", "))
    })
}

/// Runs the scenarios. The exit code is 0 if all is well, 1 if a check found a difference or, with `--fail-on-pending`, a pod waits, and 2
/// if a file could not be read or, with `--strict`, there was a warning.
pub(crate) fn run(mut arguments: Arguments) -> anyhow::Result<ExitCode> {
    if let Some(Stream::Trace(arguments)) = arguments.stream.take() {
        return trace::run(*arguments);
    }
    if let Some(file) = arguments.usage.usage.take() {
        return usage::run(&file, &arguments.usage, arguments.output);
    }
    if arguments.usage.draws() {
        anyhow::bail!("--csv and --svg are for --usage FILE; name one, or leave them out");
    }
    if arguments.diff && arguments.output == Output::Junit {
        anyhow::bail!("--diff has no JUnit report; use -o table or -o json");
    }
    let session = Session::new(arguments)?;
    match (&session.redact, session.watch) {
        (Some(file), _) => redact::run(&session, file),
        (None, true) => watch::run(&session),
        (None, false) => session.run(&session.sources()?, &mut |_, _| Ok(())),
    }
}

/// A command with its flags.
struct Session {
    paths: Vec<PathBuf>,
    options: Options,
    wishes: Wishes,
    what_if: Vec<Change>,
    diff: bool,
    redact: Option<PathBuf>,
    watch: bool,
    installed: Installed,
    screen: Screen,
}

impl Session {
    fn new(arguments: Arguments) -> anyhow::Result<Session> {
        // A report of tests that compares nothing would call every case passed.
        let check = arguments.check || arguments.output == Output::Junit;
        Ok(Session {
            paths: arguments.paths,
            options: Options {
                cycles: arguments.cycles,
                actions: arguments.actions,
                placement: arguments.placement.map(|placement| match placement {
                    Placement::Binpack => PlacementStrategy::Binpack,
                    Placement::Spread => PlacementStrategy::Spread,
                    Placement::Frag => PlacementStrategy::Frag,
                }),
                check,
                explain: arguments.explain,
            },
            wishes: Wishes {
                output: arguments.output,
                check,
                fail_on_pending: arguments.fail_on_pending,
                strict: arguments.strict,
            },
            what_if: arguments.what_if,
            diff: arguments.diff,
            redact: arguments.redact,
            watch: arguments.watch,
            installed: Installed::new()?,
            screen: Screen::of_standard_output(),
        })
    }

    /// The scenarios of the paths.
    fn sources(&self) -> anyhow::Result<Vec<Source>> {
        let sources = scenario::discover(&self.paths, io::stdin().lock());
        sources.map_err(|error| anyhow::anyhow!("{}", printable(&error.to_string())))
    }

    /// Runs and prints the scenarios, and passes on each outcome after it is printed.
    fn run(
        &self,
        sources: &[Source],
        ran: &mut dyn FnMut(&Source, &Outcome) -> io::Result<()>,
    ) -> anyhow::Result<ExitCode> {
        let mut report = Report::new(self.wishes, self.screen);
        for batch in sources.chunks(BATCH) {
            let runs: Vec<Run> = batch.par_iter().map(|source| self.run_one(source)).collect();
            for (source, run) in batch.iter().zip(runs) {
                let outcome = run.as_ref().ok().map(|(outcome, _)| outcome.clone());
                let printed = report.add(source, run);
                let printed = printed.and_then(|()| outcome.map_or(Ok(()), |outcome| ran(source, &outcome)));
                match printed {
                    // The reader may close the pipe early.
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
                    printed => printed?,
                }
            }
        }
        Ok(report.finish()?)
    }

    fn run_one(&self, source: &Source) -> Run {
        let run = |changes: &[Change]| -> Result<Outcome, kai_simulate::Error> {
            let scenario = scenario::load_changed(source, changes, &self.installed)?;
            Ok(kai_simulate::run::run(scenario, &self.options))
        };
        let before = self.diff.then(|| run(&[])).transpose()?;
        let after = run(&self.what_if)?;
        let diff = before.map(|before| {
            let changes = self.what_if.iter().map(Change::to_string).collect();
            OutcomeDiff::new(changes, &before, &after)
        });
        Ok((after, diff))
    }
}
