//! The outcomes of replays as tables, JSON and comma-separated values.

use std::fmt::Write as _;

use kai_simulate::trace::curve::Point;
use kai_simulate::trace::{Trace, TraceOutcome, load_bound_percent, policy_name};
use serde::{Serialize, Serializer};

use crate::draw::DIM;
use crate::grid::{Align, Cell, Grid, Screen};

/// The loads of tables and JSON, in percent of all GPUs.
const LOADS: [usize; 3] = [80, 100, 130];

/// The outcomes by trace.
pub(super) type Results<'r> = [(&'r Trace, &'r [TraceOutcome])];

/// Tables for a person.
pub(super) fn tables(results: &Results<'_>, screen: Screen) -> String {
    let parts: Vec<String> = results
        .iter()
        .map(|(trace, outcomes)| table(trace, outcomes, screen))
        .collect();
    parts.join("\n")
}

fn table(trace: &Trace, outcomes: &[TraceOutcome], screen: Screen) -> String {
    let mut text = format!(
        "{} {}: {} pods arrive at {} nodes with {} GPUs\n\n",
        trace.name,
        trace.seed,
        trace.pods.len(),
        trace.nodes.len(),
        trace.capacity_milli() / 1000
    );
    let headings = [
        ("POLICY", Align::Left),
        ("ALLOCATED", Align::Right),
        ("FRAGMENTED", Align::Right),
        ("AT 100 %", Align::Right),
        ("AT 80 %", Align::Right),
        ("FAILED PODS", Align::Right),
        ("FIRST FAILURE", Align::Right),
        ("PODS/S", Align::Right),
    ];
    let mut grid = Grid::new(&headings);
    for outcome in outcomes {
        let last = outcome.curve.at(outcome.curve.load_max());
        let allocated = |load: usize| percent(outcome.curve.at(load).map(|point| point.allocation_percent));
        grid.row(vec![
            policy_name(outcome.policy).into(),
            percent(last.map(|point| point.allocation_percent)).into(),
            percent(last.map(|point| point.fragmentation_percent)).into(),
            allocated(100).into(),
            allocated(80).into(),
            outcome.failed_pods.to_string().into(),
            percent(outcome.first_refusal_percent).into(),
            format!("{:.0}", outcome.decisions_per_second()).into(),
        ]);
    }
    for line in grid.lines(screen) {
        let _ = writeln!(text, "{line}");
    }
    text.push('\n');
    for line in bounds(trace, outcomes) {
        for line in screen.lines(&Cell::coloured(&line, DIM)) {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

fn percent(percent: Option<f64>) -> String {
    percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.2} %"))
}

/// What no policy can exceed, and how far the best one is from it.
fn bounds(trace: &Trace, outcomes: &[TraceOutcome]) -> Vec<String> {
    let load = outcomes.first().map_or(0, |outcome| outcome.curve.load_max());
    let best = |value: &dyn Fn(&TraceOutcome) -> Option<f64>| {
        let values = outcomes.iter().filter_map(|outcome| Some((value(outcome)?, outcome)));
        values.max_by(|(a, _), (b, _)| a.total_cmp(b))
    };
    let mut lines = Vec::new();
    let allocated = |outcome: &TraceOutcome| Some(outcome.curve.at(load)?.allocation_percent);
    if let Some((allocation, outcome)) = best(&allocated) {
        let bound = load.min(100) as f64;
        lines.push(format!(
            "Allocation at {load} % of load: no policy exceeds {bound:.2} %, all GPUs or all that is requested; {} is {:.2} below.",
            policy_name(outcome.policy),
            bound - allocation
        ));
    }
    if let Some(bound) = load_bound_percent(trace) {
        let first = |outcome: &TraceOutcome| Some(outcome.first_refusal_percent.unwrap_or(load as f64));
        let best = best(&first).map_or_else(String::new, |(load, outcome)| {
            format!(
                "; {} places all pods up to {load:.2} %, {:.2} below",
                policy_name(outcome.policy),
                bound - load
            )
        });
        lines.push(format!(
            "Load without a failed pod: no policy exceeds {bound:.2} % with pods in the proportions of the mix, by CPU and GPUs of each kind of node{best}."
        ));
    }
    lines
}

/// A run as a JSON object.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Run<'r> {
    trace: &'r str,
    seed: u64,
    policy: &'static str,
    allocation_percent: ByLoad,
    fragmentation_percent: ByLoad,
    failed_pods: usize,
    decisions_per_second: f64,
    wall_ms: f64,
}

/// A value for each of [`LOADS`] that arrived, in this order.
struct ByLoad(Vec<(usize, f64)>);

impl Serialize for ByLoad {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}

impl<'r> Run<'r> {
    fn of(trace: &'r Trace, outcome: &TraceOutcome) -> Run<'r> {
        let by_load = |value: fn(Point) -> f64| {
            let points = LOADS.iter().filter_map(|load| Some((*load, outcome.curve.at(*load)?)));
            ByLoad(points.map(|(load, point)| (load, value(point))).collect())
        };
        Run {
            trace: &trace.name,
            seed: trace.seed,
            policy: policy_name(outcome.policy),
            allocation_percent: by_load(|point| point.allocation_percent),
            fragmentation_percent: by_load(|point| point.fragmentation_percent),
            failed_pods: outcome.failed_pods,
            decisions_per_second: outcome.decisions_per_second().round(),
            wall_ms: (outcome.wall.as_secs_f64() * 1e6).round() / 1e3,
        }
    }
}

/// One object per run and line.
pub(super) fn json(results: &Results<'_>) -> anyhow::Result<String> {
    let mut text = String::new();
    for (trace, outcomes) in results {
        for outcome in *outcomes {
            text.push_str(&serde_json::to_string(&Run::of(trace, outcome))?);
            text.push('\n');
        }
    }
    Ok(text)
}

/// A row per run and percent of load.
pub(super) fn csv(results: &Results<'_>) -> String {
    let mut text = "trace,seed,policy,load_percent,allocation_percent,fragmentation_percent\n".to_owned();
    for (trace, outcomes) in results {
        for outcome in *outcomes {
            for load in 0..=outcome.curve.load_max() {
                let Some(point) = outcome.curve.at(load) else { continue };
                let _ = writeln!(
                    text,
                    "{},{},{},{load},{},{}",
                    trace.name,
                    trace.seed,
                    policy_name(outcome.policy),
                    point.allocation_percent,
                    point.fragmentation_percent
                );
            }
        }
    }
    text
}
