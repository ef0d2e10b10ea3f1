//! Allocation and fragmentation by load as a picture: two panels, a line per run.

use kai_simulate::trace::curve::Point;
use kai_simulate::trace::policy_name;

use super::output::Results;
use crate::simulate::plot::{Panel, Plot, Side};

/// Allocation is drawn from this load on: below it all policies place nearly all pods.
const LOAD_FROM: usize = 80;
/// Below both panels.
const LOADS: &str = "GPUs requested, % of all";

/// The picture.
pub(super) fn svg(results: &Results<'_>) -> String {
    let outcomes = || {
        results
            .iter()
            .flat_map(|(trace, outcomes)| outcomes.iter().map(move |outcome| (*trace, outcome)))
    };
    let load_max = outcomes()
        .map(|(_, outcome)| outcome.curve.load_max())
        .max()
        .unwrap_or(0)
        .max(1);
    let from = LOAD_FROM.min(load_max / 2);
    let points = |from: usize| {
        outcomes().flat_map(move |(_, outcome)| (from..=load_max).filter_map(|load| outcome.curve.at(load)))
    };
    let lowest = points(from).map(|point| point.allocation_percent).fold(100.0, f64::min);
    let highest = points(0).map(|point| point.fragmentation_percent).fold(0.0, f64::max);
    let allocated = Panel {
        title: "GPUs allocated, % of all",
        side: Side::First,
        xs: (from as f64, load_max as f64),
        ys: ((lowest / 5.0).floor() * 5.0, 100.0),
        marks: marks(from, load_max),
        x_title: LOADS,
    };
    let fragmented = Panel {
        title: "GPUs fragmented, % of all",
        side: Side::Second,
        xs: (0.0, load_max as f64),
        ys: (0.0, (highest / 5.0).ceil().max(1.0) * 5.0),
        marks: marks(0, load_max),
        x_title: LOADS,
    };
    let values: [fn(Point) -> f64; 2] = [|point| point.allocation_percent, |point| point.fragmentation_percent];
    let panels = [(allocated, from), (fragmented, 0)];
    let mut plot = Plot::new("GPUs allocated and fragmented by load");
    for ((panel, from), value) in panels.iter().zip(values) {
        plot.frame(panel);
        for (at, (_, outcome)) in outcomes().enumerate() {
            let loads = *from..=load_max;
            let points = loads.filter_map(|load| Some((load as f64, value(outcome.curve.at(load)?))));
            plot.line(panel, at, points);
        }
    }
    let seeds = results.len() > 1;
    plot.finish(outcomes().map(|(trace, outcome)| {
        let name = policy_name(outcome.policy);
        match seeds {
            true => format!("{name} ({} {})", trace.name, trace.seed),
            false => name.to_owned(),
        }
    }))
}

fn marks(from: usize, to: usize) -> Vec<f64> {
    let step = if to - from > 60 { 20 } else { 10 };
    (from..=to)
        .filter(|load| load % step == 0)
        .map(|load| load as f64)
        .collect()
}
