//! The node condition `GPUSetupHealthy`: the doctor's findings about this node, written by the agent. The agent runs the doctor's checks
//! at its start, when the driver changes, and now and then. It passes the driver's last answer to them, so no second driver is opened.
//!
//! A changed result is written after a second run has confirmed it: a driver that is just being upgraded does not make the condition flap.

use std::sync::Arc;
use std::time::Duration;

use kai_cluster::{Client, Condition, ConditionStatus};
use tokio::sync::watch;

use super::state::{DriverProblem, Snapshot};
use crate::allocator::inject::Mode;
use crate::doctor::{self, Finding, Report, RuntimeVersion, Verdict};
use crate::driver_files::collect::Search;

/// The node condition that says whether the doctor found a problem.
pub const CONDITION: &str = "GPUSetupHealthy";

/// Field manager of this condition. Server-side apply removes what a manager no longer sends, and another task writes the other conditions.
pub const FIELD_MANAGER: &str = "kai-node-agent-setup";

/// Characters of the condition's message. `kubectl describe node` prints each condition in one line.
const MESSAGE_CHARS_MAX: usize = 400;

/// When the checks run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupPace {
    /// Between two runs without a reason. Files of a node change by administrators, who wait minutes, not hours, for the condition; a run
    /// reads a few hundred files.
    pub interval: Duration,
    /// Until a changed result is confirmed. Longer than an agent needs to write its CDI spec, and than most packages need to be installed.
    pub confirm: Duration,
    /// After a failed write.
    pub retry: Duration,
}

impl Default for SetupPace {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(600),
            confirm: Duration::from_secs(15),
            retry: Duration::from_secs(10),
        }
    }
}

/// Status, reason and message of the condition.
type Outcome = (ConditionStatus, &'static str, String);

/// The doctor's checks, as the agent runs them.
#[derive(Debug)]
pub struct SetupCheck {
    search: Search,
    mode: Mode,
    version: RuntimeVersion,
}

impl SetupCheck {
    /// Checks of the host that `search` describes.
    pub fn new(search: Search, mode: Mode) -> Self {
        Self {
            search,
            mode,
            version: RuntimeVersion::default(),
        }
    }

    /// The result; `None` on a node without GPUs, and until the driver has answered.
    fn run(&mut self, snapshot: &Snapshot) -> Option<Outcome> {
        let answer = match &snapshot.driver_problem {
            _ if snapshot.confirmed && snapshot.inventory.devices.is_empty() => return None,
            // A driver that fails later is the subject of the condition GPUsHealthy.
            _ if snapshot.confirmed => Ok((*snapshot.inventory).clone()),
            Some(DriverProblem { reason, remedy }) => Err((reason.clone(), remedy.clone())),
            None => return None,
        };
        let facts = doctor::collect_beside_agent(&self.search, self.mode, answer, &mut self.version);
        Some(outcome(&doctor::run_checks(&facts)))
    }
}

/// The condition for a report.
fn outcome(report: &Report) -> Outcome {
    let (problems, warnings) = (report.count(Verdict::Problem), report.count(Verdict::Warning));
    let warned = match warnings {
        0 => String::new(),
        1 => "; 1 warning".to_owned(),
        many => format!("; {many} warnings"),
    };
    let worst = report
        .findings
        .iter()
        .find(|finding| finding.verdict == Verdict::Problem);
    let Some(Finding { subject, saw, fix, .. }) = worst else {
        let message = format!("the doctor found no problem{warned}");
        return (ConditionStatus::True, "NoProblemFound", message);
    };
    let more = match problems {
        1 => String::new(),
        many => format!("; {} more", many - 1),
    };
    // The end says where to find the rest, so the start is what gets cut off.
    let end = format!("{more}{warned}; see kai doctor NODE");
    let fix = fix.as_deref().map(|fix| format!(" Fix: {fix}")).unwrap_or_default();
    let start = format!("{}: {saw}.{fix}", subject.trim());
    let room = MESSAGE_CHARS_MAX.saturating_sub(end.chars().count());
    (ConditionStatus::False, "ProblemFound", shortened(&start, room) + &end)
}

/// The text, or its first characters and three dots.
fn shortened(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    let kept: String = text.chars().take(chars_max.saturating_sub(3)).collect();
    kept + "..."
}

/// What to do with a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The condition has it.
    Rest,
    /// Run the checks again before it is written.
    Confirm,
    /// Write it.
    Write,
}

/// The results that decide the next step.
#[derive(Debug, Default)]
struct Results {
    written: Option<Outcome>,
    /// A changed result that waits for its confirmation.
    candidate: Option<Outcome>,
}

impl Results {
    fn step(&mut self, found: Option<Outcome>) -> Step {
        if found.is_none() || found == self.written {
            self.candidate = None;
            return Step::Rest;
        }
        if found == self.candidate {
            return Step::Write;
        }
        self.candidate = found;
        Step::Confirm
    }
}

/// What a run depends on beside files: a change of it is a reason to run again.
fn cause(snapshot: &Snapshot) -> (bool, Option<String>, usize, bool) {
    let inventory = &snapshot.inventory;
    let waits_for_driver = !snapshot.confirmed && snapshot.driver_problem.is_some();
    (
        snapshot.confirmed,
        inventory.driver_version.clone(),
        inventory.devices.len(),
        waits_for_driver,
    )
}

/// Runs until the agent stops.
pub async fn run(
    client: Client,
    node: String,
    check: SetupCheck,
    pace: SetupPace,
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
) {
    let mut results = Results::default();
    let mut since = jiff::Timestamp::now();
    let mut check = Some(check);
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        let Some(mut own) = check.take() else { return };
        // The checks read files, which can block; the agent's only thread serves the kubelet meanwhile.
        let ran = tokio::task::spawn_blocking({
            let snapshot = snapshot.clone();
            move || {
                let found = own.run(&snapshot);
                let _ = kai_gpu::code_pages::release();
                (own, found)
            }
        });
        let (own, found) = match ran.await {
            Ok(ran) => ran,
            // The runtime ends, or a check panicked: the agent goes on without this condition.
            Err(error) => {
                tracing::error!(%error, "the checks of this node's setup ended; the condition {CONDITION} is not updated any more");
                return;
            }
        };
        check = Some(own);
        let pause = match results.step(found) {
            Step::Rest => pace.interval,
            Step::Confirm => pace.confirm,
            Step::Write => match write(&client, &node, &mut results, &mut since).await {
                Ok(()) => pace.interval,
                Err(error) => {
                    tracing::warn!(%error, "could not write the node condition {CONDITION}; trying again");
                    pace.retry
                }
            },
        };
        let before = cause(&snapshot);
        tokio::select! {
            changed = snapshots.wait_for(|snapshot| cause(snapshot) != before) => if changed.is_err() { return },
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Writes the candidate.
async fn write(
    client: &Client,
    node: &str,
    results: &mut Results,
    since: &mut jiff::Timestamp,
) -> Result<(), kai_cluster::Error> {
    let Some((status, reason, message)) = results.candidate.clone() else {
        return Ok(());
    };
    if results.written.as_ref().is_none_or(|(before, ..)| *before != status) {
        *since = jiff::Timestamp::now();
    }
    let condition = Condition {
        kind: CONDITION.to_owned(),
        status,
        reason: reason.to_owned(),
        message: message.clone(),
        since: *since,
    };
    client.apply_node_conditions(node, FIELD_MANAGER, &[condition]).await?;
    match status {
        ConditionStatus::True => tracing::info!(message, "the setup of this node is in order"),
        ConditionStatus::False => tracing::warn!(message, "the setup of this node has a problem"),
    }
    results.written = results.candidate.take();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(findings: &[(Verdict, &str, &str)]) -> Report {
        let findings = findings.iter().map(|(verdict, saw, fix)| Finding {
            subject: "cdi".to_owned(),
            verdict: *verdict,
            saw: (*saw).to_owned(),
            fix: Some((*fix).to_owned()),
        });
        Report {
            findings: findings.collect(),
        }
    }

    #[test]
    fn the_message_has_the_first_problem_its_remedy_and_counts() {
        let (status, reason, message) = outcome(&report(&[(Verdict::Ok, "", "")]));
        assert_eq!((status, reason), (ConditionStatus::True, "NoProblemFound"));
        assert_eq!(message, "the doctor found no problem");
        let (_, _, message) = outcome(&report(&[(Verdict::Warning, "", ""), (Verdict::Warning, "", "")]));
        assert_eq!(message, "the doctor found no problem; 2 warnings");
        let (status, reason, message) = outcome(&report(&[
            (Verdict::Warning, "old", ""),
            (Verdict::Problem, "switched off", "switch it on"),
            (Verdict::Problem, "another", ""),
        ]));
        assert_eq!((status, reason), (ConditionStatus::False, "ProblemFound"));
        assert_eq!(
            message,
            "cdi: switched off. Fix: switch it on; 1 more; 1 warning; see kai doctor NODE"
        );
    }

    #[test]
    fn the_message_is_short_whatever_was_found() {
        let long = "ä".repeat(10_000);
        let (_, _, message) = outcome(&report(&[(Verdict::Problem, &long, &long)]));
        assert_eq!(message.chars().count(), MESSAGE_CHARS_MAX);
        assert!(message.ends_with("...; see kai doctor NODE"), "{message}");
    }

    #[test]
    fn a_changed_result_is_written_once_it_was_found_twice() {
        let good = || Some((ConditionStatus::True, "NoProblemFound", String::new()));
        let bad = || Some((ConditionStatus::False, "ProblemFound", String::new()));
        let mut results = Results::default();
        assert_eq!(results.step(None), Step::Rest, "a node without GPUs has no condition");
        assert_eq!(results.step(good()), Step::Confirm);
        assert_eq!(results.step(good()), Step::Write);
        assert_eq!(results.step(good()), Step::Write, "until the write succeeds");
        results.written = results.candidate.take();
        assert_eq!(results.step(good()), Step::Rest);
        // A package is being installed.
        assert_eq!(results.step(bad()), Step::Confirm);
        assert_eq!(results.step(good()), Step::Rest);
        assert_eq!(results.step(bad()), Step::Confirm, "the earlier doubt does not count");
        assert_eq!(results.step(bad()), Step::Write);
    }
}
