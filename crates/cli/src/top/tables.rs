//! The tables of the screen: rows of cells with what they sort by.

use std::cmp::Ordering;

use kai_view::{ClusterView, Decision, Gang, GpuState, Node, Pod, PodStatus, Queue, Text, Time};
use rustc_hash::FxHashSet;

use super::changes::Changes;
use crate::draw::{DIM, GREEN, RED, YELLOW, bar_of};
use crate::grid::{Align, Cell};
use crate::inspect::{decisions, pending, queues, words};

/// The widest bar of a GPU in the table of nodes.
const BAR_MAX: usize = 10;
/// The widest column but the last, where not all of them have room.
const COLUMN_MAX: usize = 32;
/// A column that is made narrower for the last one keeps this.
const COLUMN_MIN: usize = 12;
/// The last column has this many letters where its texts are longer and others can be cut.
const LAST_MIN: usize = 26;
/// The same, for pods.
const LAST_MIN_OF_PODS: usize = 12;
/// Columns of a screen that shows the pods of a node beside its bars.
const PODS_FROM: usize = 120;

/// A table of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tab {
    Nodes,
    Queues,
    Waiting,
    Pods,
    Decisions,
}

impl Tab {
    pub(super) const ALL: [Tab; 5] = [Tab::Nodes, Tab::Queues, Tab::Waiting, Tab::Pods, Tab::Decisions];

    pub(super) fn title(self) -> &'static str {
        match self {
            Tab::Nodes => "GPUs",
            Tab::Queues => "Queues",
            Tab::Waiting => "Waiting",
            Tab::Pods => "Pods",
            Tab::Decisions => "Decisions",
        }
    }

    pub(super) fn columns(self) -> &'static [(&'static str, Align)] {
        use Align::{Left, Right};
        match self {
            Tab::Nodes => &[("NODE", Left), ("MODEL", Left), ("FREE", Right), ("GPUS", Left)],
            Tab::Queues => &[
                ("QUEUE", Left),
                ("QUOTA", Right),
                ("SHARE", Right),
                ("USED", Right),
                ("ASKED", Right),
                ("WAITING", Right),
                ("PAST", Right),
                ("OVER QUOTA", Left),
            ],
            Tab::Waiting => &[
                ("QUEUE", Left),
                ("#", Right),
                ("WORKLOAD", Left),
                ("PODS", Left),
                ("SINCE", Right),
                ("REASON", Left),
            ],
            Tab::Pods => &[
                ("POD", Left),
                ("STATUS", Left),
                ("GPUS", Left),
                ("NODE", Left),
                ("SINCE", Right),
                ("REASON", Left),
            ],
            Tab::Decisions => &[
                ("TIME", Left),
                ("WHAT", Left),
                ("POD", Left),
                ("NODE", Left),
                ("REASON", Left),
            ],
        }
    }

    /// The width of each column on a screen of this width: of its widest cell if all have room. Else the last column, of reasons, has room for a
    /// few words, and the widest of the others are made narrower.
    pub(super) fn widths(self, widest: &[usize], width: usize) -> Vec<usize> {
        let columns = self.columns().iter().enumerate();
        // A heading may have the mark of the sort order. A table without rows has no widest cells.
        let natural = columns.map(|(at, (name, _))| widest.get(at).copied().unwrap_or(0).max(name.len() + 1));
        let mut widths: Vec<usize> = natural.collect();
        let last = widths.len() - 1;
        let others = |widths: &[usize]| widths[..last].iter().map(|width| width + 2).sum::<usize>();
        // Bars are as wide as the names leave room for.
        let wanted = match self {
            Tab::Nodes => 0,
            // Few of the pods have a reason, and people look for names.
            Tab::Pods => widths[last].min(LAST_MIN_OF_PODS),
            Tab::Queues | Tab::Waiting | Tab::Decisions => widths[last].min(LAST_MIN),
        };
        if others(&widths) + widths[last] > width {
            widths[..last]
                .iter_mut()
                .for_each(|width| *width = (*width).min(COLUMN_MAX));
            while others(&widths) + wanted > width {
                match widths[..last].iter_mut().max() {
                    Some(widest) if *widest > COLUMN_MIN => *widest -= 1,
                    _ => break,
                }
            }
        }
        widths[last] = width.saturating_sub(others(&widths)).max(1);
        widths
    }

    /// Lines below the table for what it leaves out of the selected row: a line between, then names and reason.
    pub(super) fn selected_lines(self) -> u16 {
        match self {
            Tab::Nodes => 0,
            Tab::Queues => 3,
            Tab::Pods => 6,
            Tab::Waiting | Tab::Decisions => 8,
        }
    }

    /// Said in place of an empty table.
    pub(super) fn nothing(self, view: &ClusterView) -> &'static str {
        match self {
            Tab::Nodes => "no node has GPUs",
            Tab::Queues => "there are no queues",
            Tab::Waiting => "nothing waits",
            Tab::Pods => "this scheduler has no pods",
            Tab::Decisions if view.decisions.is_some() => "no decisions in the last hour",
            Tab::Decisions => "nothing has changed since kai top was started",
        }
    }
}

/// What a row is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Node(Text),
    Queue(String),
    /// Namespace and pod group.
    Gang(Text, Text),
    /// Namespace and name.
    Pod(Text, Text),
    /// A pod in a decision or change: the number of that, namespace and name.
    Decision(u64, Text, Text),
}

/// A row of a table.
pub(super) struct Row {
    pub(super) subject: Subject,
    pub(super) cells: Vec<Cell>,
    /// A number by column, where the text does not sort as people expect.
    numbers: Vec<Option<i64>>,
}

impl Row {
    fn new(subject: Subject, cells: Vec<Cell>) -> Row {
        Row {
            subject,
            numbers: vec![None; cells.len()],
            cells,
        }
    }

    fn number(mut self, column: usize, number: Option<i64>) -> Row {
        self.numbers[column] = Some(number.unwrap_or(i64::MIN));
        self
    }

    /// Whether one of the cells contains the text, without regard to case. `filter` is in lower case.
    pub(super) fn contains(&self, filter: &str) -> bool {
        self.cells
            .iter()
            .any(|cell| cell.text().to_lowercase().contains(filter))
    }

    /// The order by a column.
    pub(super) fn compare(&self, other: &Row, column: usize) -> Ordering {
        match (self.numbers[column], other.numbers[column]) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => self.cells[column].text().cmp(&other.cells[column].text()),
        }
    }
}

/// The rows as they are shown.
pub(super) struct Table {
    pub(super) rows: Vec<Row>,
    /// The width of the widest cell of each column.
    pub(super) widest: Vec<usize>,
}

impl Table {
    pub(super) fn new(rows: Vec<Row>) -> Table {
        let columns = rows.first().map_or(0, |row| row.cells.len());
        let widest = |at: usize| rows.iter().map(|row| row.cells[at].width()).max().unwrap_or(0);
        Table {
            widest: (0..columns).map(widest).collect(),
            rows,
        }
    }
}

/// The rows of a table; `None` if the list is missing. `width` is that of the screen.
pub(super) fn rows(tab: Tab, view: &ClusterView, changes: &Changes, width: usize) -> Option<Vec<Row>> {
    match tab {
        Tab::Nodes => {
            let nodes: Vec<&Node> = view
                .nodes
                .as_ref()?
                .iter()
                .filter(|node| !node.gpus.is_empty() || !node.slices.is_empty())
                .collect();
            let has_pods = width >= PODS_FROM;
            // A third of the screen is for the pods.
            let bar = bar_width(&nodes, if has_pods { width - width / 3 } else { width });
            let bars: Vec<Cell> = nodes.iter().map(|node| bars(node, bar)).collect();
            let widest = bars.iter().map(Cell::width).max().unwrap_or(0);
            let with_bars = nodes.into_iter().zip(bars).map(|(node, mut gpus)| {
                if has_pods {
                    gpus.push(&" ".repeat(widest - gpus.width() + 1), None);
                    gpus.push(&pods_of(node), Some(DIM));
                }
                node_row(node, gpus)
            });
            Some(with_bars.collect())
        }
        Tab::Queues => Some(view.queues.as_ref()?.iter().map(queue_row).collect()),
        Tab::Waiting => {
            view.gangs.as_ref()?;
            let waiting = view.waiting_gangs();
            Some(waiting.into_iter().map(|gang| gang_row(view, gang)).collect())
        }
        Tab::Pods => Some(view.pods.as_ref()?.iter().map(|pod| pod_row(view, pod)).collect()),
        Tab::Decisions => Some(match &view.decisions {
            Some(decisions) => decisions.iter().map(|decision| decision_row(decision)).collect(),
            None => changes.newest_first.iter().map(change_row).collect(),
        }),
    }
}

/// Letters of a GPU's bar, so that the node with the most GPUs fits.
fn bar_width(nodes: &[&Node], width: usize) -> usize {
    let most = nodes.iter().map(|node| node.gpus.len()).max().unwrap_or(1).max(1);
    let names = nodes
        .iter()
        .map(|node| node.name.chars().count() + model(node).chars().count());
    let left = width.saturating_sub(names.max().unwrap_or(0) + 14);
    (left / most).saturating_sub(1).clamp(1, BAR_MAX)
}

/// The model without the words that all models have.
fn model(node: &Node) -> &str {
    let model = node.gpu_model.as_deref().unwrap_or(words::UNKNOWN);
    model.trim_start_matches("NVIDIA-")
}

/// The pods on the node's GPUs and slices, each once, in the order of the GPUs.
fn pods_of(node: &Node) -> String {
    let on_gpus = node.gpus.iter().flat_map(|gpu| &gpu.pods);
    let on_slices = node.slices.iter().flat_map(|slices| &slices.pods);
    let mut seen = FxHashSet::default();
    let once = on_gpus
        .chain(on_slices)
        .filter(|user| seen.insert((&user.namespace, &user.name)));
    let names: Vec<String> = once.map(|user| format!("{}/{}", user.namespace, user.name)).collect();
    names.join(" ")
}

/// A bar for each GPU, and the slices in numbers.
fn bars(node: &Node, bar: usize) -> Cell {
    let mut gpus = Cell::default();
    if !node.ready {
        gpus.push("not ready ", Some(RED));
    }
    if node.cordoned {
        gpus.push("cordoned ", Some(YELLOW));
    }
    for gpu in &node.gpus {
        let full = node.gpu_memory_mib.filter(|mib| *mib > 0);
        let cell = match (gpu.state, gpu.used_mib, full) {
            (GpuState::Idle, ..) => bar_of(0, 1, bar, DIM),
            (GpuState::Whole, ..) => bar_of(1, 1, bar, GREEN),
            (GpuState::Held, ..) => bar_of(1, 1, bar, YELLOW),
            (GpuState::Shared, Some(used), Some(full)) => bar_of(used, full, bar, GREEN),
            (GpuState::Shared | GpuState::Unknown, ..) => Cell::coloured(&"?".repeat(bar), YELLOW),
            (GpuState::TimeSliced, ..) => Cell::coloured(&"~".repeat(bar), DIM),
            (GpuState::Unhealthy, ..) => Cell::coloured(&"x".repeat(bar), RED),
        };
        gpus.append(cell);
        gpus.push(" ", None);
    }
    for slices in &node.slices {
        let (name, _, count) = words::slices(slices);
        gpus.push(&format!("{count} {name} "), None);
    }
    gpus
}

fn node_row(node: &Node, gpus: Cell) -> Row {
    let idle = node.gpus.iter().filter(|gpu| gpu.state == GpuState::Idle).count();
    let known = node.gpus.iter().all(|gpu| gpu.state != GpuState::Unknown);
    let idle = known.then(|| i64::try_from(idle).unwrap_or(i64::MAX));
    Row::new(
        Subject::Node(node.name.clone()),
        vec![
            node.name.as_str().into(),
            model(node).into(),
            words::or_unknown(idle).into(),
            gpus,
        ],
    )
    .number(2, idle)
}

fn queue_row(queue: &Queue) -> Row {
    let gpus = words::texts(&queue.gpus, words::gpu_amount);
    let amount = |amount: Option<kai_view::GpuAmount>| amount.map(|amount| amount.millionths);
    Row::new(
        Subject::Queue(queue.name.clone()),
        vec![
            format!("{}{}", "  ".repeat(queue.depth as usize), queue.name).into(),
            words::or_unlimited(gpus.quota).into(),
            words::or_unknown(gpus.fair_share).into(),
            words::or_unknown(gpus.used).into(),
            words::or_unknown(gpus.requested).into(),
            words::or_unknown(queue.gangs_waiting).into(),
            queues::past_usage(queue).unwrap_or_default().into(),
            queues::over_quota(queue),
        ],
    )
    .number(1, Some(amount(queue.gpus.quota).unwrap_or(i64::MAX)))
    .number(2, amount(queue.gpus.fair_share))
    .number(3, amount(queue.gpus.used))
    .number(4, amount(queue.gpus.requested))
    .number(5, queue.gangs_waiting.map(i64::from))
    .number(6, queue.past_usage.map(|past| past.gpus_millionths))
}

fn gang_row(view: &ClusterView, gang: &Gang) -> Row {
    Row::new(
        Subject::Gang(gang.namespace.clone(), gang.pod_group.clone()),
        vec![
            gang.queue.as_str().into(),
            gang.position
                .map(|position| position.to_string())
                .unwrap_or_default()
                .into(),
            format!("{} {}/{}", gang.workload_kind, gang.namespace, gang.workload_name).into(),
            pending::progress(gang).into(),
            words::age(gang.waiting_since, view.time).into(),
            words::or_unknown(gang.reason.as_deref()).into(),
        ],
    )
    .number(1, Some(gang.position.map_or(i64::MAX, i64::from)))
    .number(4, gang.waiting_since.map(Time::millis))
}

fn pod_row(view: &ClusterView, pod: &Pod) -> Row {
    let colour = match pod.status {
        PodStatus::Running => GREEN,
        PodStatus::Failed | PodStatus::StuckInReleasing => RED,
        PodStatus::Succeeded => DIM,
        _ => YELLOW,
    };
    // `50% of a GPU (40,750 MiB)`: the details have the memory.
    let gpus = words::pod_gpus(&pod.gpus);
    let gpus = gpus.split_once(" (").map_or(gpus.as_str(), |(short, _)| short);
    Row::new(
        Subject::Pod(pod.namespace.clone(), pod.name.clone()),
        vec![
            format!("{}/{}", pod.namespace, pod.name).into(),
            Cell::coloured(pod.status.name(), colour),
            gpus.into(),
            pod.node.as_deref().unwrap_or_default().into(),
            words::age(pod.since, view.time).into(),
            pod.reason.as_deref().unwrap_or_default().into(),
        ],
    )
    .number(4, pod.since.map(Time::millis))
}

fn decision_row(decision: &Decision) -> Row {
    let (word, colour) = decisions::verb(decision.kind);
    let pod = &*decision.pod;
    let subject = match &decision.pod_group {
        // Some decisions are known for a whole gang only.
        Some(group) if pod.is_empty() => Subject::Gang(decision.namespace.as_str().into(), group.as_str().into()),
        Some(_) | None => Subject::Decision(decision.number, decision.namespace.as_str().into(), pod.into()),
    };
    let cells = vec![
        words::time_of_day(decision.time).into(),
        Cell::coloured(word, colour),
        decisions::subject(decision).into(),
        decision.node.as_deref().unwrap_or_default().into(),
        decision.reason.as_deref().unwrap_or_default().into(),
    ];
    Row::new(subject, cells).number(0, i64::try_from(decision.number).ok())
}

fn change_row(change: &super::changes::Change) -> Row {
    use super::changes::What;
    let colour = match change.what {
        What::Bound => GREEN,
        What::Promised | What::Waits => YELLOW,
        What::Releasing => RED,
        What::Ended => DIM,
    };
    let time = words::time_of_day(change.time);
    Row::new(
        Subject::Decision(change.number, change.namespace.clone(), change.pod.clone()),
        vec![
            time.into(),
            Cell::coloured(change.what.word(), colour),
            format!("{}/{}", change.namespace, change.pod).into(),
            change.node.as_deref().unwrap_or_default().into(),
            change.reason.as_deref().unwrap_or_default().into(),
        ],
    )
    .number(0, i64::try_from(change.number).ok())
}

#[cfg(test)]
pub(super) mod tests {
    use kai_view::PodGpus;

    use super::*;

    /// A pod with one GPU.
    pub(in crate::top) fn pod(name: &str, status: PodStatus) -> Pod {
        let waits = matches!(status, PodStatus::Pending | PodStatus::Pipelined);
        Pod {
            namespace: "team".into(),
            name: name.into(),
            uid: name.into(),
            pod_group: None,
            status,
            node: (status != PodStatus::Pending).then(|| "h100-0".into()),
            gpus: PodGpus::Whole { devices: 1 },
            gpu_limit: None,
            gpu_groups: Vec::new(),
            created: "2026-01-31T12:00:00Z".parse().unwrap(),
            since: Some("2026-01-31T12:00:00Z".parse().unwrap()),
            reason: waits.then(|| "no nodes with enough resources were found".into()),
            reason_source: None,
        }
    }

    /// A cluster of pods only.
    pub(in crate::top) fn view_of(pods: Vec<Pod>) -> ClusterView {
        ClusterView {
            version: kai_view::VERSION.to_owned(),
            time: "2026-01-31T12:34:56Z".parse().unwrap(),
            missing: Vec::new(),
            nodes: None,
            queues: None,
            gangs: None,
            pods: Some(pods),
            decisions: None,
            hidden: None,
        }
    }

    #[test]
    fn rows_sort_by_what_their_text_means() {
        let mut old = pod("old", PodStatus::Running);
        old.since = Some("2026-01-29T12:00:00Z".parse().unwrap());
        let view = view_of(vec![pod("new", PodStatus::Running), old]);
        let rows = rows(Tab::Pods, &view, &Changes::default(), 80).unwrap();
        assert_eq!(rows[0].cells[4].text(), "34m");
        assert_eq!(rows[1].cells[4].text(), "2d");
        assert_eq!(rows[1].compare(&rows[0], 4), Ordering::Less, "the oldest is first");
        assert!(rows[0].contains("team/new") && rows[0].contains("run") && !rows[0].contains("old"));
    }

    #[test]
    fn a_list_that_is_missing_is_not_an_empty_table() {
        assert!(rows(Tab::Nodes, &view_of(Vec::new()), &Changes::default(), 80).is_none());
    }
}
