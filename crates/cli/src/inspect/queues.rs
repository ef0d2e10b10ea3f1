//! `kai queues`: the tree of queues.

use std::process::ExitCode;

use clap::Args;
use kai_view::Queue;
use serde_json::json;

use super::{Format, Origin, block_on, document, lines_or, load, words};
use crate::draw::{YELLOW, bytes, number};
use crate::grid::{Align, Cell, Grid, Screen};

/// The flags of `kai queues`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    origin: Origin,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let view = block_on(load::load(&arguments.origin, None))?.view;
    let value = document(&view, json!({ "queues": view.queues }));
    let wide = arguments.format.is_wide();
    arguments
        .format
        .print(&view, &value, |screen| lines(view.queues.as_deref(), wide, screen))
}

fn lines(queues: Option<&[Queue]>, wide: bool, screen: Screen) -> Vec<String> {
    let Some(queues) = queues else {
        return vec!["the queues are unknown: they can't be listed".to_owned()];
    };
    let mut columns = vec![
        ("QUEUE", Align::Left),
        ("QUOTA", Align::Right),
        ("FAIR SHARE", Align::Right),
        ("USED", Align::Right),
        ("REQUESTED", Align::Right),
        ("WAITING", Align::Right),
        ("OVER QUOTA", Align::Left),
    ];
    let past = queues.iter().any(|queue| queue.past_usage.is_some());
    if past {
        columns.push(("PAST USAGE", Align::Right));
    }
    if wide {
        columns.extend([
            ("LIMIT", Align::Right),
            ("PRIORITY", Align::Right),
            ("NON-PREEMPTIBLE", Align::Right),
            ("RECLAIMABLE", Align::Right),
            ("CPU USED", Align::Right),
            ("CPU QUOTA", Align::Right),
            ("MEMORY USED", Align::Right),
            ("MEMORY QUOTA", Align::Right),
            ("BORROWS FROM", Align::Left),
        ]);
    }
    let mut grid = Grid::new(&columns);
    for queue in queues {
        grid.row(row(queue, past, wide));
    }
    lines_or(
        &grid,
        screen,
        "there are no queues; examples/README.md has some to apply",
    )
}

fn row(queue: &Queue, past: bool, wide: bool) -> Vec<Cell> {
    let gpus = words::texts(&queue.gpus, words::gpu_amount);
    let mut cells: Vec<Cell> = vec![
        format!("{}{}", "  ".repeat(queue.depth as usize), queue.name).into(),
        words::or_unlimited(gpus.quota).into(),
        words::or_unknown(gpus.fair_share).into(),
        words::or_unknown(gpus.used).into(),
        words::or_unknown(gpus.requested).into(),
        words::or_unknown(queue.gangs_waiting).into(),
        over_quota(queue),
    ];
    if past {
        cells.push(words::or_unknown(past_usage(queue)).into());
    }
    if wide {
        let cpu = words::texts(&queue.cpu_milli, words::cores);
        let memory = words::texts(&queue.memory_bytes, bytes);
        let more = [
            words::or_unlimited(gpus.limit),
            queue.priority.to_string(),
            words::or_unknown(gpus.non_preemptible),
            words::or_unknown(gpus.reclaimable),
            words::or_unknown(cpu.used),
            words::or_unlimited(cpu.quota),
            words::or_unknown(memory.used),
            words::or_unlimited(memory.quota),
        ];
        cells.extend(more.map(Cell::from));
        cells.push(lenders(queue).unwrap_or_default().into());
    }
    cells
}

/// `62 %` of the cluster's GPUs over time; `None` if the past does not count.
pub(crate) fn past_usage(queue: &Queue) -> Option<String> {
    let past = queue.past_usage?;
    Some(format!("{} %", number(past.gpus_millionths as f64 / 1e4)))
}

/// `team-b (1.63 GPUs)`: the siblings whose unused quota the queue's borrowed GPUs come from; `None` without any.
pub(super) fn lenders(queue: &Queue) -> Option<String> {
    let lenders = queue.lenders.iter();
    let lenders: Vec<String> = lenders
        .map(|lender| format!("{} ({} GPUs)", lender.queue, words::gpu_amount(lender.gpus)))
        .collect();
    (!lenders.is_empty()).then(|| lenders.join(", "))
}

/// The resources of which the queue holds more than its quota.
pub(crate) fn over_quota(queue: &Queue) -> Cell {
    let above = [
        (
            "GPUs",
            queue
                .gpus
                .borrowed
                .map(|amount| (amount.millionths, words::gpu_amount(amount))),
        ),
        (
            "CPU",
            queue.cpu_milli.borrowed.map(|amount| (amount, words::cores(amount))),
        ),
        (
            "memory",
            queue.memory_bytes.borrowed.map(|amount| (amount, bytes(amount))),
        ),
    ];
    match queue.over_quota {
        None => words::UNKNOWN.into(),
        Some(false) => Cell::default(),
        Some(true) => {
            let parts = above.into_iter().filter_map(|(name, amount)| {
                let (_, text) = amount.filter(|(amount, _)| *amount > 0)?;
                Some(format!("+{text} {name}"))
            });
            Cell::coloured(&parts.collect::<Vec<_>>().join(", "), YELLOW)
        }
    }
}
