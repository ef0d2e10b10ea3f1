//! The outcome of a scenario as tables for a person.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table};
use engine::model::Gpus;
use engine::report::Status;
use sim::outcome::{Device, NodeOutcome, Outcome, PodOutcome, QueueOutcome, ShareOutcome};

/// Rows beyond this are counted, not shown: a person reads the first ones and asks for JSON.
const ROWS_MAX: usize = 60;
/// Devices beyond this get one letter each instead of a bar.
const BARS_MAX: usize = 8;
/// Letters per bar.
const BAR_WIDTH: usize = 4;

pub(super) fn write(out: &mut impl Write, outcome: &Outcome, colour: bool) -> io::Result<()> {
    let paint = Paint { colour };
    let totals = &outcome.totals;
    let cycles = outcome.timing.cycle_ms.len();
    writeln!(
        out,
        "{}: {} bound, {} pipelined, {} evicted, {} pending after {cycles} cycle{}",
        paint.bold(&outcome.id),
        totals.bound,
        totals.pipelined,
        totals.evicted,
        totals.pending,
        if cycles == 1 { "" } else { "s" }
    )?;
    write_nodes(out, &outcome.nodes, paint)?;
    write_pods(out, &outcome.pods, paint)?;
    write_queues(out, &outcome.queues)?;
    let decided: f64 = outcome.timing.cycle_ms.iter().sum();
    writeln!(
        out,
        "\nread in {:.1} ms, decided in {decided:.1} ms",
        outcome.timing.load_ms
    )
}

#[derive(Clone, Copy)]
struct Paint {
    colour: bool,
}

impl Paint {
    fn with(self, code: &str, text: &str) -> String {
        if self.colour {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }
    fn bold(self, text: &str) -> String {
        self.with("1", text)
    }
    fn status(self, status: Status) -> String {
        let code = match status {
            Status::Binding | Status::Bound | Status::Running | Status::Succeeded => "32",
            Status::Pipelined | Status::Releasing | Status::Gated => "33",
            Status::Pending => "36",
            Status::StuckInReleasing | Status::Failed | Status::Unknown => "31",
        };
        self.with(code, status.name())
    }
}

fn new_table(header: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(header);
    for at in right {
        if let Some(column) = table.column_mut(*at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn print(out: &mut impl Write, table: &Table, shown: usize, all: usize, what: &str) -> io::Result<()> {
    writeln!(out)?;
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    if all > shown {
        writeln!(out, " ... and {} more {what} (-o json has all)", all - shown)?;
    }
    Ok(())
}

fn write_nodes(out: &mut impl Write, nodes: &[NodeOutcome], paint: Paint) -> io::Result<()> {
    if nodes.is_empty() {
        return Ok(());
    }
    let mut table = new_table(&["NODE", "GPUS", "FREE", "CPU FREE", "MEMORY FREE", ""], &[2, 3, 4]);
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
        table.add_row([
            node.name.clone(),
            bars(&node.devices, paint),
            number(node.idle_gpus.as_f64()),
            number(node.cpu_milli.0 as f64 / 1e3),
            bytes(node.memory_bytes.0),
            notes.join(", "),
        ]);
    }
    print(out, &table, nodes.len().min(ROWS_MAX), nodes.len(), "nodes")
}

/// A bar per device; eighths of a letter show the part that is taken.
fn bars(devices: &[Device], paint: Paint) -> String {
    const EIGHTHS: [&str; 8] = [
        "", "\u{258f}", "\u{258e}", "\u{258d}", "\u{258c}", "\u{258b}", "\u{258a}", "\u{2589}",
    ];
    let letters = if devices.len() > BARS_MAX { 1 } else { BAR_WIDTH };
    let bar = |device: &Device| {
        let (percent, code) = match device {
            Device::Idle => (0, "2"),
            Device::Whole => (100, "32"),
            Device::Shared(percent) => (usize::from(*percent), "33"),
        };
        // A shared device is never drawn as free, nor as full while something is left.
        let eighths = match device {
            Device::Shared(_) => (percent * letters * 8 / 100).clamp(1, letters * 8),
            Device::Idle | Device::Whole => percent * letters * 8 / 100,
        };
        let full = "\u{2588}".repeat(eighths / 8);
        let part = EIGHTHS[eighths % 8];
        let free = letters - eighths.div_ceil(8);
        format!(
            "{}{}",
            paint.with(code, &format!("{full}{part}")),
            paint.with("2", &"\u{2591}".repeat(free))
        )
    };
    let separator = if letters == 1 { "" } else { " " };
    devices.iter().map(bar).collect::<Vec<_>>().join(separator)
}

fn write_pods(out: &mut impl Write, pods: &[PodOutcome], paint: Paint) -> io::Result<()> {
    if pods.is_empty() {
        return Ok(());
    }
    let mut table = new_table(&["POD", "STATUS", "NODE", "GPU GROUPS", "REASON"], &[]);
    for pod in pods.iter().take(ROWS_MAX) {
        table.add_row([
            format!("{}/{}", pod.namespace, pod.name),
            paint.status(pod.status),
            pod.node.clone().unwrap_or_default(),
            pod.gpu_groups.join(" "),
            pod.reason.clone().unwrap_or_default(),
        ]);
    }
    print(out, &table, pods.len().min(ROWS_MAX), pods.len(), "pods")
}

fn write_queues(out: &mut impl Write, queues: &[QueueOutcome]) -> io::Result<()> {
    if queues.is_empty() {
        return Ok(());
    }
    let header = [
        "QUEUE",
        "GPU QUOTA",
        "FAIR SHARE",
        "USED",
        "ASKED",
        "CPU USED",
        "MEMORY USED",
    ];
    let mut table = new_table(&header, &[1, 2, 3, 4, 5, 6]);
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
        table.add_row([
            format!("{}{}", "  ".repeat(depth), queue.name),
            unlimited(quota),
            unlimited(fair_share),
            number(allocated),
            number(requested),
            number(queue.cpu.allocated / 1e3),
            bytes((queue.memory.allocated * 1e6) as i64),
        ]);
    }
    print(out, &table, queues.len().min(ROWS_MAX), queues.len(), "queues")
}

fn unlimited(amount: f64) -> String {
    if amount < 0.0 {
        "unlimited".to_owned()
    } else {
        number(amount)
    }
}

/// Two decimals at most, none that are zero.
fn number(amount: f64) -> String {
    let text = format!("{amount:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn bytes(amount: i64) -> String {
    let units = [("Ti", 1i64 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];
    match units.into_iter().find(|(_, unit)| amount.abs() >= *unit) {
        Some((name, unit)) => format!("{}{name}", number((amount as f64 / unit as f64 * 10.0).round() / 10.0)),
        None => amount.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_eighths() {
        let plain = Paint { colour: false };
        let devices = [
            Device::Whole,
            Device::Shared(50),
            Device::Shared(1),
            Device::Shared(90),
            Device::Idle,
        ];
        insta::assert_snapshot!(bars(&devices, plain), @"████ ██░░ ▏░░░ ███▌ ░░░░");
        assert_eq!(bars(&[Device::Whole; 16], plain), "\u{2588}".repeat(16));
    }

    #[test]
    fn numbers_are_short() {
        let texts = [
            number(2.0),
            number(0.5),
            number(1.255),
            bytes(0),
            bytes(1536 << 20),
            bytes(20_000_000_000_000),
        ];
        assert_eq!(texts, ["2", "0.5", "1.25", "0", "1.5Gi", "18.2Ti"]);
    }
}
