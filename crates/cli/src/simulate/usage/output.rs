//! What queues held over time as a table, JSON and comma-separated values.

use std::fmt::Write as _;

use kai_engine::model::Millis;
use kai_simulate::usage::UsageOutcome;
use serde::Serialize;

use super::leaves;
use crate::draw::{DIM, number};
use crate::grid::{Align, Cell, Grid, Screen};

/// A queue over the whole time.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'o> {
    queue: &'o str,
    weight: f64,
    deserved_gpus: f64,
    gpu_hours: f64,
    /// Of what all queues held.
    gpu_hours_percent: f64,
    fair_gpu_hours: f64,
    last_usage_percent: f64,
    jobs: u32,
    ended_jobs: u32,
    evictions: u32,
    mean_wait_seconds: Option<i64>,
}

fn rows(outcome: &UsageOutcome) -> Vec<Row<'_>> {
    let leaves = leaves(outcome);
    let sum: f64 = leaves.iter().map(|at| outcome.gpu_hours(*at)).sum();
    let hundredths = |value: f64| (value * 100.0).round() / 100.0;
    let row = |at: usize| {
        let state = &outcome.queues[at];
        let hours = outcome.gpu_hours(at);
        Row {
            queue: &state.queue.name,
            weight: state.queue.weight,
            deserved_gpus: state.queue.deserved_gpus,
            gpu_hours: hundredths(hours),
            gpu_hours_percent: if sum > 0.0 {
                hundredths(100.0 * hours / sum)
            } else {
                0.0
            },
            fair_gpu_hours: hundredths(outcome.fair_gpu_hours(at)),
            last_usage_percent: hundredths(outcome.points.last().map_or(0.0, |points| 100.0 * points[at].usage)),
            jobs: state.jobs,
            ended_jobs: state.ended,
            evictions: state.evictions,
            mean_wait_seconds: state.mean_wait().map(|wait| wait.0 / 1000),
        }
    };
    leaves.into_iter().map(row).collect()
}

/// A table for a person.
pub(super) fn table(outcome: &UsageOutcome, screen: Screen) -> String {
    let headings = [
        ("QUEUE", Align::Left),
        ("WEIGHT", Align::Right),
        ("QUOTA", Align::Right),
        ("GPU HOURS", Align::Right),
        ("OF ALL", Align::Right),
        ("FAIR HOURS", Align::Right),
        ("PAST USAGE", Align::Right),
        ("JOBS", Align::Right),
        ("ENDED", Align::Right),
        ("EVICTIONS", Align::Right),
        ("MEAN WAIT", Align::Right),
    ];
    let mut grid = Grid::new(&headings);
    for row in rows(outcome) {
        grid.row(vec![
            row.queue.into(),
            number(row.weight).into(),
            quota(row.deserved_gpus).into(),
            number(row.gpu_hours).into(),
            format!("{} %", number(row.gpu_hours_percent)).into(),
            number(row.fair_gpu_hours).into(),
            format!("{} %", number(row.last_usage_percent)).into(),
            row.jobs.to_string().into(),
            row.ended_jobs.to_string().into(),
            row.evictions.to_string().into(),
            row.mean_wait_seconds.map_or_else(|| "-".to_owned(), time).into(),
        ]);
    }
    let mut text = String::new();
    for line in grid.lines(screen) {
        let _ = writeln!(text, "{line}");
    }
    let length = Millis(outcome.step.0 * outcome.points.len() as i64);
    let note = format!(
        "{} GPUs for {}, in steps of {}. Past usage is that of the window at the end.",
        outcome.gpus,
        time(length.0 / 1000),
        time(outcome.step.0 / 1000)
    );
    text.push('\n');
    for line in screen.lines(&Cell::coloured(&note, DIM)) {
        let _ = writeln!(text, "{line}");
    }
    text
}

fn quota(gpus: f64) -> String {
    match gpus < 0.0 {
        true => "unlimited".to_owned(),
        false => number(gpus),
    }
}

/// The two largest units.
fn time(seconds: i64) -> String {
    let units = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];
    let mut rest = seconds;
    let mut parts = Vec::new();
    for (unit, length) in units {
        if rest >= length && parts.len() < 2 {
            parts.push(format!("{}{unit}", rest / length));
            rest %= length;
        }
    }
    match parts.is_empty() {
        true => "0s".to_owned(),
        false => parts.concat(),
    }
}

/// One JSON object.
pub(super) fn json(outcome: &UsageOutcome) -> anyhow::Result<String> {
    let text = serde_json::json!({
        "gpus": outcome.gpus,
        "stepSeconds": outcome.step.0 as f64 / 1000.0,
        "steps": outcome.points.len(),
        "queues": rows(outcome),
    });
    Ok(format!("{text}\n"))
}

/// A row per step and queue. The first four columns are those of KAI's simulator.
pub(super) fn csv(outcome: &UsageOutcome) -> String {
    let mut text = "Time,QueueID,Allocation,FairShare,Usage,Hours\n".to_owned();
    let hours = outcome.step.0 as f64 / 3_600_000.0;
    for (step, points) in outcome.points.iter().enumerate() {
        for (state, point) in outcome.queues.iter().zip(points) {
            let _ = writeln!(
                text,
                "{step},{},{:.6},{:.6},{:.6},{}",
                state.queue.name,
                point.allocated,
                point.fair_share,
                point.usage,
                number(step as f64 * hours)
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_two_units() {
        let texts = [0, 59, 60, 3_599, 90_000, 86_400].map(time);
        assert_eq!(texts, ["0s", "59s", "1m", "59m59s", "1d1h", "1d"]);
    }
}
