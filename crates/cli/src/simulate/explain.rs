//! `--explain`: why one pod waits and what would help, for a person.

use std::io::{self, Write};

use kai_simulate::explain::{ExplanationView, PodExplanation};

use crate::grid::{Align, Grid, Screen};

/// Writes an explanation below the tables of its scenario.
pub(super) fn write(out: &mut impl Write, pod: &PodExplanation, screen: Screen) -> io::Result<()> {
    let ExplanationView {
        position,
        needs,
        fits,
        remedies,
        no_remedy,
        cut,
        trials,
        ..
    } = &pod.explanation;
    let heading = match &pod.workload {
        Some(workload) => format!("{}/{} ({}, {workload})", pod.namespace, pod.name, pod.status),
        None => format!("{}/{} ({})", pod.namespace, pod.name, pod.status),
    };
    let mut grid = Grid::new(&[("EXPLAIN", Align::Left), (&heading, Align::Left)]);
    let position = position.as_ref().map(|position| &position.text);
    let facts = [
        ("reason", pod.reason.as_ref()),
        ("position", position),
        ("needs", needs.as_ref()),
        ("room", fits.as_ref()),
        ("remedy", no_remedy.as_ref()),
    ];
    for (label, text) in facts {
        if let Some(text) = text {
            grid.row(vec![label.into(), text.as_str().into()]);
        }
    }
    print(out, &grid, screen)?;
    if remedies.is_empty() {
        return Ok(());
    }
    let title = match remedies.len() {
        1 => "WHAT WOULD HELP",
        _ => "WHAT WOULD HELP (any one of these)",
    };
    let mut grid = Grid::new(&[("", Align::Right), (title, Align::Left)]);
    for (at, remedy) in remedies.iter().enumerate() {
        grid.row(vec![(at + 1).to_string().into(), remedy.text.as_str().into()]);
    }
    print(out, &grid, screen)?;
    if *cut {
        writeln!(out, " the search ended after {trials} trials; there may be others")?;
    }
    Ok(())
}

fn print(out: &mut impl Write, grid: &Grid, screen: Screen) -> io::Result<()> {
    writeln!(out)?;
    for line in grid.lines(screen) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
