//! `kai simulate trace`: flags and runs. Several policies replay the same stream of pods side by side.

mod chart;
mod output;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use kai_engine::replay::Policy;
use kai_simulate::trace::read::TraceFiles;
use kai_simulate::trace::{self, POLICIES, Trace, TraceOutcome};
use rayon::prelude::*;

use crate::grid::{Screen, printable};
use crate::simulate::progress::Progress;

/// The policies that are compared if none is named.
const DEFAULT_POLICIES: &str = "fgd,binpack,frag";

/// The flags of `kai simulate trace`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Folder with NAME-SEED-pods.csv, NAME-SEED-nodes.csv and original-NAME.csv, each also as .csv.gz.
    #[arg(value_name = "FOLDER", required_unless_present = "pods")]
    folder: Option<PathBuf>,
    /// The name of the trace.
    #[arg(long, value_name = "NAME", default_value = "default")]
    trace: String,
    /// The seeds of the order of the pods, separated by commas; also that of policy random.
    #[arg(long, value_delimiter = ',', default_value = "42")]
    seed: Vec<u64>,
    /// The policies, separated by commas: random, dot-product, gpu-clustering, gpu-packing, best-fit, fgd (published), spread, binpack, frag
    /// (of the scheduler), frag-learned (frag that learns the mix of pods as they arrive).
    #[arg(long, value_delimiter = ',', default_value = DEFAULT_POLICIES, value_parser = parse_policy)]
    policy: Vec<Policy>,
    /// Pods in the order of their arrival, in place of a folder.
    #[arg(long, value_name = "FILE", requires = "nodes", conflicts_with = "folder")]
    pods: Option<PathBuf>,
    /// Nodes in the order in which ties are broken, for --pods.
    #[arg(long, value_name = "FILE", requires = "pods")]
    nodes: Option<PathBuf>,
    /// Pods that the typical mix is taken from, for --pods [default: those that arrive].
    #[arg(long, value_name = "FILE", requires = "pods")]
    typical: Option<PathBuf>,
    /// Output: tables for a person, one JSON object per run and line, or the curves as comma-separated values.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Draw allocation and fragmentation by load.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For a person.
    Table,
    /// For a program.
    Json,
    /// For a plot.
    Csv,
}

fn parse_policy(name: &str) -> Result<Policy, String> {
    trace::policy(name).ok_or_else(|| {
        let known: Vec<&str> = POLICIES.iter().map(|(name, _)| *name).collect();
        format!("known policies are {}", known.join(", "))
    })
}

/// Replays and prints the traces.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let traces = arguments.seed.iter().map(|seed| arguments.read(*seed));
    let traces: Vec<Trace> = traces.collect::<anyhow::Result<_>>()?;
    let runs: Vec<(&Trace, Policy)> = traces
        .iter()
        .flat_map(|trace| arguments.policy.iter().map(move |policy| (trace, *policy)))
        .collect();
    let progress = Progress::new(runs.iter().map(|(trace, _)| trace.pods.len()).sum(), "pods");
    let outcomes: Vec<TraceOutcome> = runs
        .par_iter()
        .map(|(trace, policy)| {
            let mut run = progress.run();
            trace::replay(trace, *policy, &mut |arrived| run.at(arrived))
        })
        .collect();
    progress.clear();
    let by_trace = outcomes.chunks(arguments.policy.len());
    let results: Vec<(&Trace, &[TraceOutcome])> = traces.iter().zip(by_trace).collect();
    let text = match arguments.output {
        Output::Table => output::tables(&results, Screen::of_standard_output()),
        Output::Json => output::json(&results)?,
        Output::Csv => output::csv(&results),
    };
    if let Some(file) = &arguments.svg {
        let written = std::fs::write(file, chart::svg(&results));
        written.map_err(|error| anyhow::anyhow!("{}: can't be written: {error}", file.display()))?;
    }
    crate::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

impl Arguments {
    fn read(&self, seed: u64) -> anyhow::Result<Trace> {
        let in_words = |error: kai_simulate::Error| anyhow::anyhow!("{}", printable(&error.to_string()));
        let files = match (&self.folder, &self.pods, &self.nodes) {
            (Some(folder), ..) => TraceFiles::in_folder(folder, &self.trace, seed).map_err(in_words)?,
            (None, Some(pods), Some(nodes)) => TraceFiles {
                pods: pods.clone(),
                nodes: nodes.clone(),
                typical: self.typical.clone(),
            },
            (None, ..) => anyhow::bail!("name a folder, or --pods and --nodes"),
        };
        files.read(self.trace.clone(), seed).map_err(in_words)
    }
}
