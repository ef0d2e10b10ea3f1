//! `--explain`: why one pod waits and what would help, for a person.

use std::io::{self, Write};

use kai_simulate::explain::PodExplanation;

use crate::grid::{Align, Grid, Screen};
use crate::remedies;

/// Writes an explanation below the tables of its scenario.
pub(super) fn write(out: &mut impl Write, pod: &PodExplanation, screen: Screen) -> io::Result<()> {
    let heading = match &pod.workload {
        Some(workload) => format!("{}/{} ({}, {workload})", pod.namespace, pod.name, pod.status),
        None => format!("{}/{} ({})", pod.namespace, pod.name, pod.status),
    };
    let mut grid = Grid::new(&[("EXPLAIN", Align::Left), (&heading, Align::Left)]);
    if let Some(reason) = &pod.reason {
        grid.row(vec!["reason".into(), reason.as_str().into()]);
    }
    for (name, text) in remedies::facts(&pod.explanation) {
        grid.row(vec![name.into(), text.as_ref().into()]);
    }
    writeln!(out)?;
    for line in grid.lines(screen) {
        writeln!(out, "{line}")?;
    }
    for line in remedies::lines(&pod.explanation, screen) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
