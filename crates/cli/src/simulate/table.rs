//! The outcome of a scenario as tables for a person.

use std::io::{self, Write};

use kai_engine::model::Gpus;
use kai_engine::report::Status;
use kai_simulate::outcome::{Device, NodeOutcome, Outcome, PodOutcome, QueueOutcome, ShareOutcome};

use crate::draw::{self, DIM, GREEN, RED, YELLOW, bytes, number};
use crate::grid::{Align, Cell, Colour, Grid, Screen};

/// Rows beyond this are counted, not shown: a person reads the first ones and asks for JSON.
pub(super) const ROWS_MAX: usize = 60;
/// Devices beyond this get one letter each instead of a bar.
const BARS_MAX: usize = 8;
/// Letters per bar.
const BAR_WIDTH: usize = 4;

pub(super) fn write(out: &mut impl Write, outcome: &Outcome, screen: Screen) -> io::Result<()> {
    let totals = &outcome.totals;
    let cycles = outcome.timing.cycle_ms.len();
    let refused = match totals.refused {
        0 => String::new(),
        refused => format!(", {refused} refused"),
    };
    let mut heading = Cell::coloured(&outcome.id, BOLD);
    let sum = format!(
        " ({}): {} bound, {} pipelined, {} evicted, {} pending{refused} after {cycles} cycle{}",
        outcome.file_names(),
        totals.bound,
        totals.pipelined,
        totals.evicted,
        totals.pending,
        if cycles == 1 { "" } else { "s" }
    );
    heading.push(&sum, None);
    for line in screen.lines(&heading) {
        writeln!(out, "{line}")?;
    }
    write_nodes(out, &outcome.nodes, screen)?;
    write_pods(out, &outcome.pods, screen)?;
    write_queues(out, &outcome.queues, screen)?;
    let decided: f64 = outcome.timing.cycle_ms.iter().sum();
    writeln!(
        out,
        "\nread in {:.1} ms, decided in {decided:.1} ms",
        outcome.timing.load_ms
    )
}

const BOLD: Colour = "1";
const CYAN: Colour = "36";

fn status(status: Status) -> Cell {
    let colour = match status {
        Status::Binding | Status::Bound | Status::Running | Status::Succeeded => GREEN,
        Status::Pipelined | Status::Releasing | Status::Gated => YELLOW,
        Status::Pending => CYAN,
        Status::StuckInReleasing | Status::Failed | Status::Unknown => RED,
    };
    Cell::coloured(status.name(), colour)
}

fn print(out: &mut impl Write, grid: &Grid, screen: Screen, shown: usize, all: usize, what: &str) -> io::Result<()> {
    writeln!(out)?;
    for line in grid.lines(screen) {
        writeln!(out, "{line}")?;
    }
    if all > shown {
        writeln!(out, " ... and {} more {what} (-o json has all)", all - shown)?;
    }
    Ok(())
}

fn write_nodes(out: &mut impl Write, nodes: &[NodeOutcome], screen: Screen) -> io::Result<()> {
    if nodes.is_empty() {
        return Ok(());
    }
    let mut grid = Grid::new(&[
        ("NODE", Align::Left),
        ("GPUS", Align::Left),
        ("FREE", Align::Right),
        ("CPU FREE", Align::Right),
        ("MEMORY FREE", Align::Right),
        ("", Align::Left),
    ]);
    for node in nodes.iter().take(ROWS_MAX) {
        let mut notes = Vec::new();
        if !node.ready {
            notes.push("not ready".to_owned());
        }
        if node.releasing_gpus > Gpus::ZERO {
            notes.push(format!("{} being freed", number(node.releasing_gpus.as_f64())));
        }
        for (name, free, all) in &node.mig {
            notes.push(format!(
                "{}: {free} of {all} free",
                name.trim_start_matches("nvidia.com/")
            ));
        }
        grid.row(vec![
            node.name.as_str().into(),
            bars(&node.devices),
            number(node.idle_gpus.as_f64()).into(),
            number(node.cpu_milli.0 as f64 / 1e3).into(),
            bytes(node.memory_bytes.0).into(),
            notes.join(", ").into(),
        ]);
    }
    print(out, &grid, screen, nodes.len().min(ROWS_MAX), nodes.len(), "nodes")
}

/// A bar per device; eighths of a letter show the part that is taken.
fn bars(devices: &[Device]) -> Cell {
    let letters = if devices.len() > BARS_MAX { 1 } else { BAR_WIDTH };
    let mut cell = Cell::default();
    for (at, device) in devices.iter().enumerate() {
        let (percent, colour) = match device {
            Device::Idle => (0, DIM),
            Device::Whole => (100, GREEN),
            Device::Shared(percent) => (usize::from(*percent), YELLOW),
        };
        // A shared device is never drawn as free, nor as full while something is left.
        let eighths = match device {
            Device::Shared(_) => (percent * letters * 8 / 100).clamp(1, letters * 8),
            Device::Idle | Device::Whole => percent * letters * 8 / 100,
        };
        if at > 0 && letters > 1 {
            cell.push(" ", None);
        }
        draw::bar(&mut cell, eighths, letters, colour);
    }
    cell
}

fn write_pods(out: &mut impl Write, pods: &[PodOutcome], screen: Screen) -> io::Result<()> {
    if pods.is_empty() {
        return Ok(());
    }
    let headings = ["POD", "STATUS", "NODE", "GPU GROUPS", "REASON"];
    let mut grid = Grid::new(&headings.map(|heading| (heading, Align::Left)));
    for pod in pods.iter().take(ROWS_MAX) {
        grid.row(vec![
            format!("{}/{}", pod.namespace, pod.name).into(),
            status(pod.status),
            pod.node.as_deref().unwrap_or_default().into(),
            pod.gpu_groups.join(" ").into(),
            pod.reason.as_deref().unwrap_or_default().into(),
        ]);
    }
    print(out, &grid, screen, pods.len().min(ROWS_MAX), pods.len(), "pods")
}

fn write_queues(out: &mut impl Write, queues: &[QueueOutcome], screen: Screen) -> io::Result<()> {
    if queues.is_empty() {
        return Ok(());
    }
    let mut grid = Grid::new(&[
        ("QUEUE", Align::Left),
        ("GPU QUOTA", Align::Right),
        ("FAIR SHARE", Align::Right),
        ("USED", Align::Right),
        ("ASKED", Align::Right),
        ("CPU USED", Align::Right),
        ("MEMORY USED", Align::Right),
    ]);
    let mut depths: Vec<(&str, usize)> = Vec::new();
    for queue in queues.iter().take(ROWS_MAX) {
        let above = queue
            .parent
            .as_deref()
            .and_then(|parent| depths.iter().find(|(name, _)| *name == parent));
        let depth = above.map_or(0, |(_, depth)| depth + 1);
        depths.push((&queue.name, depth));
        let ShareOutcome {
            quota,
            fair_share,
            allocated,
            requested,
            ..
        } = queue.gpu;
        grid.row(vec![
            format!("{}{}", "  ".repeat(depth), queue.name).into(),
            unlimited(quota).into(),
            unlimited(fair_share).into(),
            number(allocated).into(),
            number(requested).into(),
            number(queue.cpu.allocated / 1e3).into(),
            bytes((queue.memory.allocated * 1e6) as i64).into(),
        ]);
    }
    print(out, &grid, screen, queues.len().min(ROWS_MAX), queues.len(), "queues")
}

pub(super) fn unlimited(amount: f64) -> String {
    if amount < 0.0 {
        "unlimited".to_owned()
    } else {
        number(amount)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_eighths() {
        let drawn = |devices: &[Device]| bars(devices).text();
        let devices = [
            Device::Whole,
            Device::Shared(50),
            Device::Shared(1),
            Device::Shared(90),
            Device::Idle,
        ];
        insta::assert_snapshot!(drawn(&devices), @"████ ██░░ ▏░░░ ███▌ ░░░░");
        assert_eq!(drawn(&[Device::Whole; 16]), "\u{2588}".repeat(16));
    }
}
