//! What queues held over time as a picture: GPUs on the left, past usage on the right, a line per queue.

use kai_simulate::usage::{Point, UsageOutcome};

use super::leaves;
use crate::simulate::plot::{Panel, Plot, Side};

/// Points of a line: more than there are pixels. A point is the mean of the steps that it stands for.
const POINTS_MAX: usize = 400;
/// The numbers below an axis, about.
const MARKS: f64 = 8.0;

/// The picture.
pub(super) fn svg(outcome: &UsageOutcome) -> String {
    let step_hours = outcome.step.0 as f64 / 3_600_000.0;
    let hours = step_hours * outcome.points.len() as f64;
    // Days read better than a hundred hours, and seconds better than a thousandth of one.
    let (x_title, unit) = match hours {
        hours if hours > 72.0 => ("days", 24.0),
        hours if hours >= 1.0 => ("hours", 1.0),
        _ => ("seconds", 1.0 / 3_600.0),
    };
    let end = hours / unit;
    let panel = |title, side, top: f64| Panel {
        title,
        side,
        xs: (0.0, end),
        ys: (0.0, top),
        marks: marks(end),
        x_title,
    };
    let leaves = leaves(outcome);
    let stride = outcome.points.len().div_ceil(POINTS_MAX).max(1);
    let line = |queue: usize, value: fn(&Point) -> f64| {
        let chunks = outcome.points.chunks(stride).enumerate();
        chunks.map(move |(at, points)| {
            let mean = points.iter().map(|points| value(&points[queue])).sum::<f64>() / points.len() as f64;
            ((at * stride) as f64 * step_hours / unit, mean)
        })
    };
    let values: [fn(&Point) -> f64; 2] = [|point| point.allocated, |point| 100.0 * point.usage];
    let panels = [
        panel("GPUs held", Side::First, outcome.gpus.max(1) as f64),
        panel("Past usage, % of all GPUs", Side::Second, 100.0),
    ];
    let mut plot = Plot::new("GPUs held and past usage of queues over time");
    for (panel, value) in panels.iter().zip(values) {
        plot.frame(panel);
        for (at, queue) in leaves.iter().enumerate() {
            plot.line(panel, at, line(*queue, value));
        }
    }
    plot.finish(leaves.iter().map(|at| outcome.queues[*at].queue.name.clone()))
}

/// Round numbers up to the end.
fn marks(end: f64) -> Vec<f64> {
    let raw = (end / MARKS).max(f64::MIN_POSITIVE);
    let power = 10_f64.powf(raw.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= raw);
    let step = factor.unwrap_or(10.0) * power;
    (0..)
        .map(|number| f64::from(number) * step)
        .take_while(|mark| *mark <= end)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round() {
        assert_eq!(marks(7.0), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        assert_eq!(marks(100.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(marks(0.0), [0.0]);
    }
}
