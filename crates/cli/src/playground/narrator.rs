//! Tells what happens in the cluster: a line for each decision, and for each gang that begins to wait.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use kai_page::Source;
use kai_view::{ClusterView, Gang, Text, Time};

use crate::draw::{DIM, YELLOW};
use crate::grid::{Cell, Screen};
use crate::inspect::{decisions, words};

/// How often the narrator looks.
const PERIOD: Duration = Duration::from_secs(1);
/// Lines for one look. More than a person can read; the rest is counted.
const LINES_MAX: usize = 20;
/// Texts that wait for a slow reader. Further ones are left out: the cluster does not wait for its output.
const TEXTS_MAX: usize = 64;

/// What was told already.
#[derive(Debug, Default)]
struct Told {
    /// The number of the last decision.
    decision: u64,
    /// Gangs that wait.
    waiting: BTreeSet<(Text, Text)>,
}

impl Told {
    /// The lines that are new in this view.
    fn news(&mut self, view: &ClusterView) -> Vec<Cell> {
        let newest_first = view.decisions.as_deref().unwrap_or_default();
        let fresh = newest_first
            .iter()
            .take_while(|decision| decision.number > self.decision);
        let mut lines: Vec<Cell> = fresh.map(|decision| decisions::line(decision)).collect();
        lines.reverse();
        if let Some(newest) = newest_first.first() {
            self.decision = newest.number;
        }
        let mut waiting = BTreeSet::new();
        for gang in view.waiting_gangs() {
            // The reason is not known before the first cycle that tried the gang.
            let Some(reason) = &gang.reason else { continue };
            let key = (gang.namespace.clone(), gang.pod_group.clone());
            if !self.waiting.contains(&key) {
                lines.push(waits(gang, reason, view.time));
            }
            waiting.insert(key);
        }
        self.waiting = waiting;
        let more = lines.len().saturating_sub(LINES_MAX);
        if more > 0 {
            lines.truncate(LINES_MAX);
            lines.push(Cell::coloured(&format!("          and {more} more"), DIM));
        }
        lines
    }
}

fn waits(gang: &Gang, reason: &str, time: Time) -> Cell {
    let mut cell = Cell::coloured(&format!("{}  ", words::time_of_day(time)), DIM);
    cell.push("waits  ", Some(YELLOW));
    let Gang {
        namespace,
        workload_kind,
        workload_name,
        ..
    } = gang;
    cell.push(
        &format!("  {workload_kind} {namespace}/{workload_name}: {reason}"),
        None,
    );
    cell
}

/// The narrator of a cluster.
pub(super) struct Narrator {
    source: Arc<dyn Source>,
    told: Told,
}

impl Narrator {
    /// Begins after what has happened so far.
    pub(super) async fn after_now(source: Arc<dyn Source>) -> Narrator {
        let mut told = Told::default();
        if let Some(view) = source.view().await {
            told.news(&view);
        }
        Narrator { source, told }
    }

    /// Tells until the output is closed. The lines are written by a thread of its own, since a terminal may be stopped.
    pub(super) async fn tell(mut self, screen: Screen) {
        let texts = writer();
        loop {
            tokio::time::sleep(PERIOD).await;
            let Some(view) = self.source.view().await else { continue };
            let lines = self.told.news(&view);
            if lines.is_empty() {
                continue;
            }
            let text: String = lines
                .iter()
                .flat_map(|line| screen.lines(line))
                .map(|line| line + "\n")
                .collect();
            if let Err(TrySendError::Disconnected(_)) = texts.try_send(text) {
                return;
            }
        }
    }
}

/// Writes texts to standard output on a thread, until nobody reads them.
fn writer() -> SyncSender<String> {
    use std::io::Write as _;
    let (sender, receiver) = sync_channel::<String>(TEXTS_MAX);
    std::thread::spawn(move || {
        let mut out = std::io::stdout();
        for text in receiver {
            if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
                return;
            }
        }
    });
    sender
}

#[cfg(test)]
mod tests {
    use kai_view::{Decision, DecisionKind, PodGpus};
    use serde_json::json;

    use super::*;

    fn decision(number: u64) -> Decision {
        Decision {
            number,
            time: "2026-01-01T10:00:01Z".parse().unwrap(),
            kind: DecisionKind::Bind,
            action: Some("allocate".to_owned()),
            namespace: "default".to_owned(),
            pod: format!("p{number}"),
            pod_group: None,
            workload: format!("Pod p{number}"),
            queue: None,
            node: Some("h100-0".to_owned()),
            gpus: Some(PodGpus::Whole { devices: 1 }),
            beneficiary: None,
            reason: None,
            fairness: None,
            waiting_since: None,
            waiting_reason: None,
        }
    }

    fn view(decisions: impl Iterator<Item = u64>, waiting: Option<&str>) -> ClusterView {
        let gang = waiting.map(|reason| {
            json!({
                "namespace": "default", "podGroup": "pg-big", "workloadKind": "Pod", "workloadName": "big", "queue": "q",
                "priority": 50, "preemptible": true, "min": 1, "pods": 1, "running": 0, "starting": 0, "waiting": 1, "releasing": 0,
                "needed": 1, "position": 1, "created": "2026-01-01T00:00:00Z", "waitingSince": null, "lastStart": null, "lastEviction": null,
                "staleSince": null, "reason": reason, "reasonSource": "engine",
            })
        });
        let gangs: Vec<_> = gang.into_iter().collect();
        let view = json!({
            "version": "v1", "time": "2026-01-01T10:00:02Z", "missing": [], "nodes": null, "queues": null, "pods": [],
            "gangs": gangs, "decisions": null, "hidden": null,
        });
        let mut view: ClusterView = serde_json::from_value(view).unwrap();
        view.decisions = Some(decisions.map(decision).map(Arc::new).collect());
        view
    }

    fn texts(told: &mut Told, view: &ClusterView) -> Vec<String> {
        told.news(view).iter().map(Cell::text).collect()
    }

    #[test]
    fn each_decision_is_told_once_and_in_order() {
        let mut told = Told::default();
        let lines = texts(&mut told, &view([2, 1].into_iter(), None));
        assert_eq!(
            lines,
            [
                "10:00:01  bind     default/p1 to h100-0, 1 GPU",
                "10:00:01  bind     default/p2 to h100-0, 1 GPU"
            ]
        );
        assert!(texts(&mut told, &view([2, 1].into_iter(), None)).is_empty());
        assert_eq!(texts(&mut told, &view([3, 2, 1].into_iter(), None)).len(), 1);
    }

    #[test]
    fn a_gang_that_waits_is_told_once_though_its_reason_changes() {
        let mut told = Told::default();
        let lines = texts(&mut told, &view([].into_iter(), Some("no room")));
        assert_eq!(lines, ["10:00:02  waits    Pod default/big: no room"]);
        assert!(texts(&mut told, &view([].into_iter(), Some("less room"))).is_empty());
        assert!(texts(&mut told, &view([].into_iter(), None)).is_empty());
        assert_eq!(texts(&mut told, &view([].into_iter(), Some("no room"))).len(), 1);
    }

    #[test]
    fn a_flood_is_counted() {
        let lines = texts(&mut Told::default(), &view((1..=100).rev(), None));
        assert_eq!(lines.len(), LINES_MAX + 1);
        assert_eq!(lines[LINES_MAX], "          and 80 more");
    }
}
