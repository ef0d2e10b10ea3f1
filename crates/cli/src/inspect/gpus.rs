//! `kai gpus`: the GPUs of all nodes and the pods on each.

use std::process::ExitCode;

use clap::Args;
use kai_view::{GpuState, Node};
use serde_json::json;

use super::words::{self, UserMemory};
use super::{Format, Origin, block_on, document, lines_or, load};
use crate::grid::{Align, Cell, Grid, Screen};

/// The flags of `kai gpus`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Only these nodes [default: all with GPUs].
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    origin: Origin,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let loaded = block_on(load::load(&arguments.origin, None))?;
    let view = loaded.view;
    for name in &arguments.nodes {
        if let Some(nodes) = view
            .nodes
            .as_ref()
            .filter(|nodes| !nodes.iter().any(|node| node.name == *name))
        {
            return Err(no_node(nodes, name));
        }
    }
    let is_chosen = |node: &&Node| match arguments.nodes.is_empty() {
        true => has_gpus(node),
        false => arguments.nodes.iter().any(|name| node.name == *name),
    };
    let nodes: Option<Vec<&Node>> = view
        .nodes
        .as_ref()
        .map(|nodes| nodes.iter().filter(is_chosen).collect());
    let value = document(&view, json!({ "nodes": nodes }));
    let wide = arguments.format.is_wide();
    arguments
        .format
        .print(&view, &value, |screen| lines(nodes.as_deref(), wide, screen))
}

/// A node that does not exist, and what may have been meant.
pub(super) fn no_node(nodes: &[Node], name: &str) -> anyhow::Error {
    let near = kai_yaml::suggestion(name, nodes.iter().map(|node| node.name.as_str()));
    anyhow::anyhow!("there is no node {name} in this node pool{near}; `kai gpus` lists them")
}

fn has_gpus(node: &Node) -> bool {
    !node.gpus.is_empty() || !node.slices.is_empty()
}

fn lines(nodes: Option<&[&Node]>, wide: bool, screen: Screen) -> Vec<String> {
    let Some(nodes) = nodes else {
        return vec!["the GPUs are unknown: nodes can't be listed".to_owned()];
    };
    let mut grid = table(wide);
    for node in nodes {
        rows(&mut grid, node, wide);
    }
    let mut lines = lines_or(&grid, screen, "no node has GPUs");
    lines.push(String::new());
    lines.push(summary(nodes));
    lines
}

/// An empty table of nodes and GPUs.
pub(super) fn table(wide: bool) -> Grid {
    let mut columns = vec![
        ("NODE", Align::Left),
        ("USED", Align::Left),
        ("MIB", Align::Right),
        ("PODS", Align::Left),
    ];
    if wide {
        columns.extend([
            ("CPU", Align::Right),
            ("MEMORY", Align::Right),
            ("LIMITS", Align::Left),
            ("UUID", Align::Left),
            ("GPU GROUP", Align::Left),
        ]);
    }
    Grid::new(&columns)
}

/// The row of a node, and one for each of its GPUs and kinds of slices.
pub(super) fn rows(grid: &mut Grid, node: &Node, wide: bool) {
    let mut first = vec![
        node.name.as_str().into(),
        Cell::default(),
        Cell::default(),
        words::node_notes(node),
    ];
    if wide {
        let (cpu, memory) = words::node_usage(node);
        let tier = words::tier(node);
        first.extend([cpu.into(), memory.into(), tier.into(), Cell::default(), Cell::default()]);
    }
    grid.row(first);
    for (at, gpu) in node.gpus.iter().enumerate() {
        let memory = match (gpu.state, wide) {
            (GpuState::Shared, true) => UserMemory::ShareAndLimit,
            (GpuState::Shared, false) => UserMemory::Share,
            (
                GpuState::Idle
                | GpuState::Whole
                | GpuState::TimeSliced
                | GpuState::Held
                | GpuState::Unhealthy
                | GpuState::Unknown,
                _,
            ) => UserMemory::Hidden,
        };
        let mut row = vec![
            format!("  {at}").into(),
            words::gpu_bar(gpu, node),
            words::gpu_memory(gpu, node).into(),
            words::users(&gpu.pods, memory).into(),
        ];
        if wide {
            row.extend([
                Cell::default(),
                Cell::default(),
                Cell::default(),
                gpu.uuid.as_deref().unwrap_or_default().into(),
                gpu.gpu_group.as_deref().unwrap_or_default().into(),
            ]);
        }
        grid.row(row);
    }
    for slices in &node.slices {
        let (name, bar, count) = words::slices(slices);
        let mut row = vec![
            format!("  {name}").into(),
            bar,
            count.into(),
            words::users(&slices.pods, UserMemory::Hidden).into(),
        ];
        if wide {
            row.extend(std::iter::repeat_n(Cell::default(), 5));
        }
        grid.row(row);
    }
}

/// The GPUs of the nodes by state. Unknown ones are not counted as free.
fn summary(nodes: &[&Node]) -> String {
    let all = || nodes.iter().flat_map(|node| &node.gpus);
    let count = |state: GpuState| all().filter(|gpu| gpu.state == state).count();
    let mut parts = vec![format!("{} GPUs", all().count())];
    for (state, word) in [
        (GpuState::Whole, "whole"),
        (GpuState::Shared, "shared"),
        (GpuState::TimeSliced, "time-sliced"),
        (GpuState::Held, "held"),
        (GpuState::Idle, "idle"),
        (GpuState::Unhealthy, "unhealthy"),
        (GpuState::Unknown, "unknown"),
    ] {
        match count(state) {
            0 => {}
            count => parts.push(format!("{count} {word}")),
        }
    }
    parts.join(", ")
}
