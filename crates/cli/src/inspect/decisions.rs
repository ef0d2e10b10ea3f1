//! `kai decisions`: what the scheduler decided in the last hour, and what it decides now.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use kai_cluster::Clock;
use kai_view::{Decision, DecisionKind, MissingList};
use serde_json::json;

use super::events::{self, DecisionLog};
use super::live::LiveCluster;
use super::load::{self, connect, no_cluster};
use super::remote::SchedulerEndpoints;
use super::{Format, Origin, Output, Scope, block_on, lines_or, words};
use crate::draw::{DIM, GREEN, RED, YELLOW};
use crate::grid::{Align, Cell, Colour, Grid, Screen};

/// How often the scheduler is asked for new decisions, and the shortest time between two looks at the cluster.
const PERIOD: Duration = Duration::from_secs(1);

/// The flags of `kai decisions`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Show further decisions as they are made, a line for each.
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    scope: Scope,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    origin: Origin,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    match (arguments.watch, arguments.origin.scheduler()) {
        (false, Some(scheduler)) => {
            let decisions = block_on(scheduler.decisions(0))?;
            show(&arguments, decisions, &[])
        }
        (false, None) => {
            let (decisions, missing) = block_on(listed(&arguments))?;
            show(&arguments, decisions, &missing)
        }
        (true, Some(scheduler)) => block_on(follow_scheduler(&arguments, &scheduler)),
        (true, None) => {
            // The view is computed on this thread while others keep the watches.
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?;
            runtime.block_on(follow_events(&arguments))
        }
    }
}

/// The decisions of the last hour from Events, with the caller's rights, and the lists that are missing.
async fn listed(arguments: &Arguments) -> anyhow::Result<(Vec<Arc<Decision>>, Vec<MissingList>)> {
    let connection = &arguments.origin.connection;
    let namespace = arguments.scope.namespace.as_deref();
    let loaded = load::load(&arguments.origin, namespace).await?;
    for missing in &loaded.view.missing {
        eprintln!("warning: {}", words::missing(missing));
    }
    let client = connect(connection).await?;
    let listed = match events::list(&client, namespace).await {
        Err(error) if error.is_forbidden() && namespace.is_none() => {
            eprintln!(
                "warning: Events of namespaces other than {} can't be listed ({})",
                loaded.namespace,
                load::plain(&error)
            );
            events::list(&client, Some(&loaded.namespace)).await
        }
        listed => listed,
    };
    let listed = listed.map_err(|error| match error.is_forbidden() {
        true => anyhow::anyhow!("decisions are unknown: {}", load::plain(&error)),
        false => no_cluster(connection, Some(&client), &error),
    })?;
    let mut log = DecisionLog::default();
    let scheduler_name = loaded.scheduler_name().unwrap_or(kai_api::keys::SCHEDULER_NAME);
    log.add(&listed, scheduler_name, &loaded.view);
    Ok((log.newest_first(), loaded.view.missing))
}

fn show(arguments: &Arguments, mut decisions: Vec<Arc<Decision>>, missing: &[MissingList]) -> anyhow::Result<ExitCode> {
    decisions.retain(|decision| arguments.scope.contains(&decision.namespace));
    let time = Clock::System.now_text();
    let value = json!({ "version": kai_view::VERSION, "time": time, "missing": missing, "decisions": decisions });
    let wide = arguments.format.is_wide();
    arguments
        .format
        .print_value(&value, |screen| lines(&decisions, wide, screen))
}

fn lines(decisions: &[Arc<Decision>], wide: bool, screen: Screen) -> Vec<String> {
    let mut columns = vec![
        ("TIME", Align::Left),
        ("DECISION", Align::Left),
        ("POD", Align::Left),
        ("NODE", Align::Left),
        ("REASON", Align::Left),
    ];
    if wide {
        columns.extend([
            ("WORKLOAD", Align::Left),
            ("QUEUE", Align::Left),
            ("GPUS", Align::Left),
            ("ACTION", Align::Left),
            ("FOR", Align::Left),
            ("WHY FAIR", Align::Left),
        ]);
    }
    let mut grid = Grid::new(&columns);
    for decision in decisions {
        let (word, colour) = verb(decision.kind);
        let mut row: Vec<Cell> = vec![
            words::time_of_day(decision.time).into(),
            Cell::coloured(word, colour),
            subject(decision).into(),
            decision.node.as_deref().unwrap_or_default().into(),
            decision.reason.as_deref().unwrap_or_default().into(),
        ];
        if wide {
            let beneficiary = decision.beneficiary.as_ref();
            row.extend([
                decision.workload.as_str().into(),
                decision.queue.as_deref().unwrap_or_default().into(),
                gpus(decision).unwrap_or_default().into(),
                decision.action.as_deref().unwrap_or_default().into(),
                beneficiary
                    .map(|gang| qualified(&gang.workload, &gang.namespace))
                    .unwrap_or_default()
                    .into(),
                fairness(decision).unwrap_or_default().into(),
            ]);
        }
        grid.row(row);
    }
    lines_or(&grid, screen, "no decisions in the last hour")
}

pub(crate) fn verb(kind: DecisionKind) -> (&'static str, Colour) {
    match kind {
        DecisionKind::Bind => ("bind", GREEN),
        DecisionKind::Promise => ("promise", YELLOW),
        DecisionKind::Evict => ("evict", RED),
    }
}

/// The pod; some Events about evictions only name the workload.
pub(crate) fn subject(decision: &Decision) -> String {
    match decision.pod.is_empty() {
        true => qualified(&decision.workload, &decision.namespace),
        false => format!("{}/{}", decision.namespace, decision.pod),
    }
}

/// `Deployment team/llm` of `Deployment llm`.
fn qualified(workload: &str, namespace: &str) -> String {
    match workload.rsplit_once(' ') {
        Some((kind, name)) => format!("{kind} {namespace}/{name}"),
        None => format!("{namespace}/{workload}"),
    }
}

fn gpus(decision: &Decision) -> Option<String> {
    let gpus = decision.gpus.as_ref()?;
    (*gpus != kai_view::PodGpus::None).then(|| words::pod_gpus(gpus))
}

/// The rule by which a pod was evicted, with its numbers.
fn fairness(decision: &Decision) -> Option<String> {
    decision.fairness.as_ref().map(ToString::to_string)
}

/// A decision in a line: time, verb, pod, and what else is of interest.
pub(crate) fn line(decision: &Decision) -> Cell {
    let (word, colour) = verb(decision.kind);
    let mut cell = Cell::coloured(&format!("{}  ", words::time_of_day(decision.time)), DIM);
    cell.push(&format!("{word:<7}"), Some(colour));
    cell.push(&format!("  {}", subject(decision)), None);
    let node = decision.node.as_deref().unwrap_or("its node");
    match decision.kind {
        DecisionKind::Bind => cell.push(&format!(" to {node}"), None),
        DecisionKind::Promise => cell.push(&format!(" a place on {node}"), None),
        DecisionKind::Evict => {}
    }
    if let Some(gpus) = gpus(decision) {
        cell.push(&format!(", {gpus}"), None);
    }
    if let Some(reason) = &decision.reason {
        cell.push(&format!(": {reason}"), None);
    }
    if let Some(fairness) = fairness(decision) {
        cell.push(&format!("; {fairness}"), Some(DIM));
    }
    cell
}

/// Prints each new decision once, the older ones first.
struct Follower<'a> {
    arguments: &'a Arguments,
    screen: Screen,
    /// The number of the newest decision that was printed.
    last: u64,
}

impl Follower<'_> {
    fn new(arguments: &Arguments) -> Follower<'_> {
        Follower {
            arguments,
            screen: Screen::of_standard_output(),
            last: 0,
        }
    }

    /// False once nobody reads the output any more.
    fn print(&mut self, newest_first: &[Arc<Decision>]) -> anyhow::Result<bool> {
        let Some(newest) = newest_first.first().map(|decision| decision.number) else {
            return Ok(true);
        };
        if newest < self.last {
            // The scheduler has started again and counts anew.
            self.last = 0;
        }
        let fresh = newest_first.iter().take_while(|decision| decision.number > self.last);
        let fresh: Vec<&Decision> = fresh.map(Arc::as_ref).collect();
        self.last = newest;
        let mut text = String::new();
        for decision in fresh.into_iter().rev() {
            if self.arguments.scope.contains(&decision.namespace) {
                text.push_str(&self.text(decision)?);
            }
        }
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn text(&self, decision: &Decision) -> anyhow::Result<String> {
        Ok(match self.arguments.format.output {
            Output::Table | Output::Wide => self.screen.lines(&line(decision)).join("\n") + "\n",
            Output::Json => serde_json::to_string(decision)? + "\n",
            Output::Yaml => format!("---\n{}", serde_saphyr::to_string(decision)?),
        })
    }
}

async fn follow_scheduler(arguments: &Arguments, scheduler: &SchedulerEndpoints) -> anyhow::Result<ExitCode> {
    let mut follower = Follower::new(arguments);
    loop {
        // The last known one is among the answer, unless it is old or the scheduler has started again and counts anew.
        let mut newest_first = scheduler.decisions(follower.last.saturating_sub(1)).await?;
        if newest_first.is_empty() && follower.last > 0 {
            newest_first = scheduler.decisions(0).await?;
        }
        if !follower.print(&newest_first)? {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::time::sleep(PERIOD).await;
    }
}

async fn follow_events(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let namespace = arguments.scope.namespace.as_deref();
    let live = LiveCluster::connect(&arguments.origin.connection, namespace).await?;
    let (mut live, followed) = live.with_decisions(namespace).await;
    followed.map_err(|error| anyhow::anyhow!("decisions are unknown: {}", load::plain(&error)))?;
    let mut follower = Follower::new(arguments);
    let changes = live.changes();
    loop {
        let view = tokio::task::block_in_place(|| live.view());
        if !follower.print(view.decisions.as_deref().unwrap_or_default())? {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::time::sleep(PERIOD).await;
        changes.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use kai_view::{Beneficiary, Fairness, PodGpus};

    use super::*;

    fn decision(kind: DecisionKind) -> Decision {
        Decision {
            number: 1,
            time: "2026-01-01T10:00:01Z".parse().unwrap(),
            kind,
            action: None,
            namespace: "team".to_owned(),
            pod: "llm-0".to_owned(),
            pod_group: Some("pg-llm".to_owned()),
            workload: "Deployment llm".to_owned(),
            queue: Some("team-a".to_owned()),
            node: Some("h100-1".to_owned()),
            gpus: Some(PodGpus::Whole { devices: 2 }),
            beneficiary: None,
            reason: None,
            fairness: None,
            waiting_since: None,
            waiting_reason: None,
        }
    }

    fn evicted() -> Decision {
        Decision {
            action: Some("reclaim".to_owned()),
            beneficiary: Some(Beneficiary {
                namespace: "red".to_owned(),
                pod_group: "pg-train".to_owned(),
                workload: "Job train".to_owned(),
                queue: None,
            }),
            reason: Some("reclaimed for Job red/train (2 pods in all)".to_owned()),
            fairness: Some(Fairness::Priority {
                victim: 50,
                beneficiary: 100,
            }),
            ..decision(DecisionKind::Evict)
        }
    }

    #[test]
    fn a_decision_is_told_in_a_line() {
        let check = |decision: Decision, expect: &str| assert_eq!(line(&decision).text(), expect);
        check(
            decision(DecisionKind::Bind),
            "10:00:01  bind     team/llm-0 to h100-1, 2 GPUs",
        );
        let promised = Decision {
            reason: Some("waits for pods to leave node h100-1".to_owned()),
            ..decision(DecisionKind::Promise)
        };
        check(
            promised,
            "10:00:01  promise  team/llm-0 a place on h100-1, 2 GPUs: waits for pods to leave node h100-1",
        );
        check(
            evicted(),
            "10:00:01  evict    team/llm-0, 2 GPUs: reclaimed for Job red/train (2 pods in all); its priority is 50, that of the other workload 100",
        );
        let of_event = Decision {
            pod: String::new(),
            node: None,
            gpus: Some(PodGpus::None),
            ..evicted()
        };
        check(
            of_event,
            "10:00:01  evict    Deployment team/llm: reclaimed for Job red/train (2 pods in all); its priority is 50, that of the other workload 100",
        );
    }

    #[test]
    fn the_wide_table_says_for_whom() {
        let screen = Screen {
            width_max: None,
            colours: false,
        };
        let shown = lines(&[evicted(), decision(DecisionKind::Bind)].map(Arc::new), true, screen).join("\n");
        insta::assert_snapshot!("decisions_wide", shown);
        assert_eq!(lines(&[], false, screen), ["no decisions in the last hour"]);
    }
}
