//! `kai simulate`: what was typed, and what is printed.

mod table;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use engine::model::{Action, PlacementStrategy};
use rayon::prelude::*;
use sim::outcome::Outcome;
use sim::run::Options;
use sim::scenario::{self, Source};

/// How many scenarios are run before the first of them is printed: bounds memory, keeps all cores busy.
const BATCH: usize = 256;

/// What was typed.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Case files, Kubernetes manifests, or folders of them. Manifests named together make up one cluster.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Cycles to run [default: what the case says, 1 for manifests].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    cycles: Option<u32>,
    /// Actions of a cycle, in order: allocate, consolidation, reclaim, preempt, stalegangeviction.
    #[arg(long, value_delimiter = ',', value_parser = parse_action)]
    actions: Option<Vec<Action>>,
    /// Compare with what the cases expect; exit with 1 if any differs.
    #[arg(long)]
    check: bool,
    /// Fill nodes up, or even them out [default: what the case says, else binpack].
    #[arg(long, value_enum)]
    placement: Option<Placement>,
    /// How to print: tables for a person, or one JSON object per scenario and line.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For a person.
    Table,
    /// For a program.
    Json,
}

fn parse_action(name: &str) -> Result<Action, String> {
    Action::by_name(name).ok_or_else(|| {
        let known: Vec<&str> = Action::ALL.iter().map(|action| action.name()).collect();
        format!("known actions are {}", known.join(", "))
    })
}

/// What became of one scenario.
type Run = Result<Outcome, sim::Error>;

/// Runs it. The exit code is 0 if all is well, 1 if a check found a difference, 2 if something could not be read.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let options = Options {
        cycles: arguments.cycles,
        actions: arguments.actions,
        placement: arguments.placement.map(|placement| match placement {
            Placement::Binpack => PlacementStrategy::Binpack,
            Placement::Spread => PlacementStrategy::Spread,
        }),
        check: arguments.check,
    };
    let sources = scenario::discover(&arguments.paths)?;
    let colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let mut printer = Printer {
        output: arguments.output,
        check: arguments.check,
        colour,
        passed: 0,
        failed: 0,
        unread: 0,
    };
    for batch in sources.chunks(BATCH) {
        let runs: Vec<Run> = batch
            .par_iter()
            .map(|source| scenario::load(source).map(|scenario| sim::run::run(scenario, &options)))
            .collect();
        for (source, run) in batch.iter().zip(runs) {
            match printer.print(source, run) {
                // The reader of a pipe may have seen enough.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
                printed => printed?,
            }
        }
    }
    Ok(printer.finish())
}

struct Printer {
    output: Output,
    check: bool,
    colour: bool,
    passed: usize,
    failed: usize,
    unread: usize,
}

impl Printer {
    fn print(&mut self, source: &Source, run: Run) -> io::Result<()> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        let outcome = match run {
            Ok(outcome) => outcome,
            Err(error) => {
                eprintln!("error: {error}");
                self.unread += 1;
                self.failed += 1;
                return Ok(());
            }
        };
        for line in outcome.warnings.lines() {
            eprintln!("warning: {line}");
        }
        match &outcome.differences {
            Some(differences) if !differences.is_empty() => {
                self.failed += 1;
                if self.output == Output::Table {
                    for difference in differences {
                        writeln!(out, "{}: {difference}", source.path().display())?;
                    }
                }
            }
            Some(_) => self.passed += 1,
            None => {}
        }
        match self.output {
            Output::Json => {
                serde_json::to_writer(&mut out, &outcome)?;
                writeln!(out)?;
            }
            Output::Table if self.check => {}
            Output::Table => table::write(&mut out, &outcome, self.colour)?,
        }
        out.flush()
    }

    fn finish(self) -> ExitCode {
        if self.check {
            let summary = format!("{} passed, {} failed", self.passed, self.failed);
            match self.output {
                Output::Table => println!("{summary}"),
                // Standard output is JSON and nothing else.
                Output::Json => eprintln!("{summary}"),
            }
            return if self.failed > 0 {
                ExitCode::from(1)
            } else {
                ExitCode::SUCCESS
            };
        }
        if self.unread > 0 {
            ExitCode::from(2)
        } else {
            ExitCode::SUCCESS
        }
    }
}
