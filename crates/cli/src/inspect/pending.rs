//! `kai pending`: the gangs that wait.

use std::process::ExitCode;

use clap::Args;
use kai_view::{ClusterView, Gang, Preemptibility};
use serde_json::json;

use super::{Format, Origin, Scope, block_on, document, lines_or, load, words};
use crate::grid::{Align, Cell, Grid, Screen};

/// The flags of `kai pending`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Only gangs of this queue.
    #[arg(short, long, value_name = "QUEUE")]
    queue: Option<String>,
    #[command(flatten)]
    scope: Scope,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    origin: Origin,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let namespace = arguments.scope.namespace.as_deref();
    let view = block_on(load::load(&arguments.origin, namespace))?.view;
    let mut gangs = view.waiting_gangs();
    gangs.retain(|gang| arguments.scope.contains(&gang.namespace));
    gangs.retain(|gang| arguments.queue.as_ref().is_none_or(|queue| gang.queue == *queue));
    let known = view.gangs.is_some();
    let value = document(&view, json!({ "gangs": known.then_some(&gangs) }));
    let wide = arguments.format.is_wide();
    arguments.format.print(&view, &value, |screen| match known {
        true => lines(&view, &gangs, wide, screen),
        false => vec!["what waits is unknown: pod groups can't be listed".to_owned()],
    })
}

fn lines(view: &ClusterView, gangs: &[&Gang], wide: bool, screen: Screen) -> Vec<String> {
    let mut columns = vec![
        ("QUEUE", Align::Left),
        ("#", Align::Right),
        ("WORKLOAD", Align::Left),
        ("PODS", Align::Left),
        ("SINCE", Align::Right),
        ("REASON", Align::Left),
    ];
    if wide {
        columns.extend([
            ("PRIORITY", Align::Right),
            ("PREEMPTIBLE", Align::Left),
            ("POD GROUP", Align::Left),
        ]);
    }
    let mut grid = Grid::new(&columns);
    for gang in gangs {
        let mut row: Vec<Cell> = vec![
            gang.queue.as_str().into(),
            gang.position
                .map(|position| position.to_string())
                .unwrap_or_default()
                .into(),
            format!("{} {}/{}", gang.workload_kind, gang.namespace, gang.workload_name).into(),
            progress(gang).into(),
            words::age(gang.waiting_since, view.time).into(),
            words::or_unknown(gang.reason.as_deref()).into(),
        ];
        if wide {
            row.extend([
                gang.priority.to_string().into(),
                match gang.preemptibility() {
                    Preemptibility::Preemptible => "yes",
                    Preemptibility::SemiPreemptible => "partly",
                    Preemptibility::NonPreemptible => "no",
                }
                .into(),
                gang.pod_group.as_str().into(),
            ]);
        }
        grid.row(row);
    }
    lines_or(&grid, screen, "nothing waits")
}

/// `2 of 4, min 3`: pods with a place, all pods, and the minimum of the gang.
pub(crate) fn progress(gang: &Gang) -> String {
    let placed = gang.running + gang.starting;
    match gang.min {
        0 | 1 => format!("{placed} of {}", gang.pods),
        min => format!("{placed} of {}, min {min}", gang.pods),
    }
}
