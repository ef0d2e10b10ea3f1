//! The difference between two outcomes as tables for a person.

use std::io::{self, Write};

use kai_simulate::diff::{NodeDiff, NodeGpus, OutcomeDiff, PodDiff, PodState, QueueDiff};
use kai_simulate::outcome::{ShareOutcome, Totals};

use super::table::{ROWS_MAX, unlimited};
use crate::draw::number;
use crate::grid::{Align, Cell, Grid, Screen};

pub(super) fn write(out: &mut impl Write, diff: &OutcomeDiff, screen: Screen) -> io::Result<()> {
    for change in &diff.changes {
        write_line(out, screen, &format!("what if: {change}"))?;
    }
    let sum = |totals: &Totals| {
        let Totals {
            bound,
            pipelined,
            evicted,
            pending,
            ..
        } = totals;
        format!("{bound} bound, {pipelined} pipelined, {evicted} evicted, {pending} pending")
    };
    write_line(out, screen, &format!("before: {}", sum(&diff.totals.before)))?;
    write_line(out, screen, &format!("after:  {}", sum(&diff.totals.after)))?;
    if diff.is_empty() {
        return writeln!(out, "\nno pod, queue or node differs");
    }
    write_pods(out, &diff.pods, screen)?;
    write_queues(out, &diff.queues, screen)?;
    write_nodes(out, &diff.nodes, screen)
}

fn write_line(out: &mut impl Write, screen: Screen, text: &str) -> io::Result<()> {
    let mut cell = Cell::default();
    cell.push(text, None);
    screen.lines(&cell).iter().try_for_each(|line| writeln!(out, "{line}"))
}

fn print(out: &mut impl Write, grid: &Grid, screen: Screen, all: usize, what: &str) -> io::Result<()> {
    writeln!(out)?;
    for line in grid.lines(screen) {
        writeln!(out, "{line}")?;
    }
    match all.saturating_sub(ROWS_MAX) {
        0 => Ok(()),
        more => writeln!(out, " ... and {more} more {what} (-o json has all)"),
    }
}

const ABSENT: &str = "-";

fn write_pods(out: &mut impl Write, pods: &[PodDiff], screen: Screen) -> io::Result<()> {
    if pods.is_empty() {
        return Ok(());
    }
    let mut grid = Grid::new(&["POD", "BEFORE", "AFTER", "REASON"].map(|heading| (heading, Align::Left)));
    let state = |pod: &Option<PodState>| match pod {
        Some(PodState {
            status,
            node: Some(node),
            ..
        }) => format!("{status} on {node}"),
        Some(PodState { status, node: None, .. }) => (*status).to_owned(),
        None => ABSENT.to_owned(),
    };
    for PodDiff { namespace, name, sides } in pods.iter().take(ROWS_MAX) {
        let reason = |pod: &Option<PodState>| pod.as_ref().and_then(|pod| pod.reason.clone());
        // The reason of the changed cluster; of a pod that no longer waits, why it did.
        let reason = match (reason(&sides.after), reason(&sides.before)) {
            (Some(after), _) => after,
            (None, Some(before)) => format!("before: {before}"),
            (None, None) => String::new(),
        };
        grid.row(vec![
            format!("{namespace}/{name}").into(),
            state(&sides.before).into(),
            state(&sides.after).into(),
            reason.into(),
        ]);
    }
    print(out, &grid, screen, pods.len(), "pods")
}

/// `before -> after`, or the value if both are the same.
fn arrow<T>(before: Option<&T>, after: Option<&T>, show: impl Fn(&T) -> String) -> String {
    let show = |value: Option<&T>| value.map_or_else(|| ABSENT.to_owned(), &show);
    match (show(before), show(after)) {
        (before, after) if before == after => after,
        (before, after) => format!("{before} -> {after}"),
    }
}

fn write_queues(out: &mut impl Write, queues: &[QueueDiff], screen: Screen) -> io::Result<()> {
    if queues.is_empty() {
        return Ok(());
    }
    let mut grid = Grid::new(&[
        ("QUEUE", Align::Left),
        ("GPU QUOTA", Align::Right),
        ("FAIR SHARE", Align::Right),
        ("USED", Align::Right),
        ("ASKED", Align::Right),
    ]);
    for QueueDiff { name, gpu } in queues.iter().take(ROWS_MAX) {
        let column = |of: fn(&ShareOutcome) -> String| arrow(gpu.before.as_ref(), gpu.after.as_ref(), of);
        grid.row(vec![
            name.as_str().into(),
            column(|gpu| unlimited(gpu.quota)).into(),
            column(|gpu| unlimited(gpu.fair_share)).into(),
            column(|gpu| number(gpu.allocated)).into(),
            column(|gpu| number(gpu.requested)).into(),
        ]);
    }
    print(out, &grid, screen, queues.len(), "queues")
}

fn write_nodes(out: &mut impl Write, nodes: &[NodeDiff], screen: Screen) -> io::Result<()> {
    if nodes.is_empty() {
        return Ok(());
    }
    let mut grid = Grid::new(&[
        ("NODE", Align::Left),
        ("GPUS", Align::Right),
        ("FREE", Align::Right),
        ("", Align::Left),
    ]);
    for NodeDiff { name, gpus } in nodes.iter().take(ROWS_MAX) {
        let column = |of: fn(&NodeGpus) -> String| arrow(gpus.before.as_ref(), gpus.after.as_ref(), of);
        let note = match (gpus.before, gpus.after) {
            (None, Some(_)) => "new",
            (Some(_), None) => "removed",
            (_, Some(NodeGpus { ready: false, .. })) => "not ready",
            _ => "",
        };
        grid.row(vec![
            name.as_str().into(),
            column(|gpus| gpus.gpus.to_string()).into(),
            column(|gpus| number(gpus.idle_gpus)).into(),
            note.into(),
        ]);
    }
    print(out, &grid, screen, nodes.len(), "nodes")
}
