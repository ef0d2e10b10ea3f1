//! Jobs: runs pods until enough have succeeded. Pure; `reconcile` carries the plan out.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use kai_api::Object;
use serde_json::{Value, json};

use super::conditions::{self, Condition};
use super::objects::{Job, Workload};
use super::pods::{COMPLETION_INDEX, OwnedPod, Phase};
use super::replica_set::Plan;

/// Labels of a Job's pods.
pub(super) const JOB_UID: &str = "batch.kubernetes.io/controller-uid";
const JOB_NAME: &str = "batch.kubernetes.io/job-name";
/// The default of `spec.backoffLimit`.
const BACKOFF_LIMIT: i64 = 6;

/// The next step of a Job.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Create and delete pods, write the status.
    Apply(Plan),
    /// Delete the Job: its `ttlSecondsAfterFinished` is over.
    Delete,
    /// Wait for this time, or for a change if `None`.
    Wait(Option<Duration>),
}

/// The pods of a Job, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PodCounts {
    active: i64,
    ready: i64,
    terminating: i64,
    succeeded: i64,
    failed: i64,
}

/// The terminal condition of a Job.
struct JobEnd {
    kind: &'static str,
    reason: &'static str,
    message: String,
}

pub(super) fn plan(job: &Workload, pods: &[OwnedPod], now: Timestamp) -> Step {
    if let Some(ended) = ended_at(job) {
        return wait_or_delete(job, ended, now);
    }
    let counts = counts(job, pods);
    let suspended = job.spec["suspend"] == true;
    let seconds_left = seconds_left(job, now);
    let end = end(job, counts, seconds_left);
    let stops = suspended || end.is_some();
    let surplus = match stops {
        true => pods.len(),
        false => usize::try_from(counts.active - wanted(job, counts)).unwrap_or(0),
    };
    let mut active: Vec<&OwnedPod> = pods.iter().filter(|pod| pod.is_active()).collect();
    active.sort_by_key(|pod| (pod.is_ready(), pod.name.as_str()));
    let missing = if stops { 0 } else { wanted(job, counts) - counts.active };
    let create: Vec<Value> = match is_indexed(job) {
        true => free_indexes(job, pods)
            .take(usize::try_from(missing).unwrap_or(0))
            .map(|index| indexed_pod(job, index))
            .collect(),
        false => (0..missing).map(|_| pod(job)).collect(),
    };
    Step::Apply(Plan {
        create,
        delete: active.iter().take(surplus).map(|pod| pod.name.clone()).collect(),
        status: status(job, pods, counts, end, now),
        requeue_after: seconds_left.map(|rest| Duration::from_secs(u64::try_from(rest).unwrap_or(0))),
    })
}

fn pod(job: &Workload) -> Value {
    let mut pod = job.pod(&Job::RESOURCE);
    pod["metadata"]["generateName"] = format!("{}-", job.name()).into();
    pod["metadata"]["labels"][JOB_UID] = job.uid().into();
    pod["metadata"]["labels"][JOB_NAME] = job.name().into();
    pod
}

fn is_indexed(job: &Workload) -> bool {
    job.spec["completionMode"] == "Indexed"
}

/// The pod with this completion index, which its containers get as an environment variable.
fn indexed_pod(job: &Workload, index: i64) -> Value {
    let mut pod = pod(job);
    let name = format!("{}-{index}", job.name());
    pod["metadata"]["generateName"] = format!("{name}-").into();
    for field in ["labels", "annotations"] {
        pod["metadata"][field][COMPLETION_INDEX] = index.to_string().into();
    }
    pod["spec"]["hostname"] = name.into();
    let field = json!({ "fieldPath": format!("metadata.annotations['{COMPLETION_INDEX}']") });
    let variable = json!({ "name": "JOB_COMPLETION_INDEX", "valueFrom": { "fieldRef": field } });
    for list in ["containers", "initContainers"] {
        for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
            let mut variables = container["env"].as_array().cloned().unwrap_or_default();
            variables.retain(|present| present["name"] != variable["name"]);
            variables.push(variable.clone());
            container["env"] = variables.into();
        }
    }
    pod
}

/// Completion indexes without an active or succeeded pod, the lowest first.
fn free_indexes(job: &Workload, pods: &[OwnedPod]) -> impl Iterator<Item = i64> {
    let taken = pods
        .iter()
        .filter(|pod| pod.phase == Phase::Succeeded || pod.is_active());
    let taken: BTreeSet<i64> = taken.filter_map(|pod| pod.index).collect();
    (0..job.spec["completions"].as_i64().unwrap_or(0)).filter(move |index| !taken.contains(index))
}

/// Completion indexes whose pod has succeeded.
fn completed_indexes(pods: &[OwnedPod]) -> BTreeSet<i64> {
    let succeeded = pods.iter().filter(|pod| pod.phase == Phase::Succeeded);
    succeeded.filter_map(|pod| pod.index).collect()
}

/// The indexes as ranges, e.g. `0-2,4`.
fn ranges(indexes: &BTreeSet<i64>) -> String {
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    for index in indexes {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => ranges.push((*index, *index)),
        }
    }
    let texts = ranges.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    texts.collect::<Vec<_>>().join(",")
}

/// Whether the Job is complete or failed.
pub(super) fn is_over(job: &Workload) -> bool {
    ended_at(job).is_some()
}

/// When the Job completed or failed.
pub(super) fn ended_at(job: &Workload) -> Option<&str> {
    let ends = ["Complete", "Failed"];
    let kind = ends.into_iter().find(|kind| conditions::holds(&job.status, kind))?;
    Some(
        conditions::find(&job.status, kind)["lastTransitionTime"]
            .as_str()
            .unwrap_or_default(),
    )
}

fn wait_or_delete(job: &Workload, ended: &str, now: Timestamp) -> Step {
    let Some(seconds) = job.spec["ttlSecondsAfterFinished"].as_i64() else {
        return Step::Wait(None);
    };
    let ended = ended.parse().unwrap_or(now);
    let passed = now.as_second().saturating_sub(ended.as_second());
    match u64::try_from(seconds.saturating_sub(passed)) {
        Ok(rest) if rest > 0 => Step::Wait(Some(Duration::from_secs(rest))),
        _ => Step::Delete,
    }
}

fn counts(job: &Workload, pods: &[OwnedPod]) -> PodCounts {
    let mut counts = PodCounts::default();
    for pod in pods {
        match pod.phase {
            Phase::Succeeded => counts.succeeded += 1,
            Phase::Failed => counts.failed += 1,
            Phase::Pending | Phase::Running if pod.terminating => counts.terminating += 1,
            Phase::Pending | Phase::Running => {
                counts.active += 1;
                counts.ready += i64::from(pod.is_ready());
            }
        }
    }
    if is_indexed(job) {
        // Each completion index counts once.
        counts.succeeded = i64::try_from(completed_indexes(pods).len()).unwrap_or(i64::MAX);
    }
    counts
}

/// `spec.parallelism`.
pub(super) fn parallelism(job: &Workload) -> i64 {
    job.spec["parallelism"].as_i64().unwrap_or(1)
}

/// The wanted number of active pods.
fn wanted(job: &Workload, counts: PodCounts) -> i64 {
    match job.spec["completions"].as_i64() {
        Some(completions) => parallelism(job).min(completions - counts.succeeded),
        // A work queue: after the first success no pod is added.
        None if counts.succeeded > 0 => counts.active,
        None => parallelism(job),
    }
}

/// The rest of `activeDeadlineSeconds`.
fn seconds_left(job: &Workload, now: Timestamp) -> Option<i64> {
    let deadline = job.spec["activeDeadlineSeconds"].as_i64()?;
    let started = job.status["startTime"]
        .as_str()
        .and_then(|text| text.parse::<Timestamp>().ok());
    let passed = started.map_or(0, |started| now.as_second() - started.as_second());
    Some(deadline - passed)
}

fn end(job: &Workload, counts: PodCounts, seconds_left: Option<i64>) -> Option<JobEnd> {
    let failed = |reason, message: &str| {
        Some(JobEnd {
            kind: "Failed",
            reason,
            message: message.to_owned(),
        })
    };
    let complete = match job.spec["completions"].as_i64() {
        Some(completions) => counts.succeeded >= completions,
        None => counts.succeeded > 0 && counts.active == 0 && counts.terminating == 0,
    };
    if complete {
        return Some(JobEnd {
            kind: "Complete",
            reason: "CompletionsReached",
            message: "Reached expected number of succeeded pods".to_owned(),
        });
    }
    if counts.failed > job.spec["backoffLimit"].as_i64().unwrap_or(BACKOFF_LIMIT) {
        return failed("BackoffLimitExceeded", "Job has reached the specified backoff limit");
    }
    if seconds_left.is_some_and(|rest| rest <= 0) {
        return failed("DeadlineExceeded", "Job was active longer than specified deadline");
    }
    None
}

fn status(job: &Workload, pods: &[OwnedPod], counts: PodCounts, end: Option<JobEnd>, now: Timestamp) -> Value {
    let now = kai_cluster::whole_seconds(now);
    let suspended = job.spec["suspend"] == true;
    let mut status = json!({
        "active": counts.active, "ready": counts.ready, "terminating": counts.terminating,
        "succeeded": counts.succeeded, "failed": counts.failed,
    });
    if is_indexed(job) {
        status["completedIndexes"] = ranges(&completed_indexes(pods)).into();
    }
    // The start time of a suspended Job is set again when it resumes.
    status["startTime"] = match &job.status["startTime"] {
        _ if suspended => Value::Null,
        Value::Null => now.as_str().into(),
        started => started.clone(),
    };
    let mut list = Vec::new();
    if suspended || !conditions::find(&job.status, "Suspended").is_null() {
        let (status, reason, message) = match suspended {
            true => ("True", "JobSuspended", "Job suspended"),
            false => ("False", "JobResumed", "Job resumed"),
        };
        list.push(Condition {
            kind: "Suspended",
            status,
            reason,
            message: message.to_owned(),
        });
    }
    if let Some(JobEnd { kind, reason, message }) = end {
        let complete = kind == "Complete";
        if complete {
            status["completionTime"] = now.as_str().into();
        }
        for kind in [
            if complete {
                "SuccessCriteriaMet"
            } else {
                "FailureTarget"
            },
            kind,
        ] {
            list.push(Condition {
                kind,
                status: "True",
                reason,
                message: message.clone(),
            });
        }
        // This step deletes the active pods.
        status["active"] = 0.into();
        status["ready"] = 0.into();
    }
    if !list.is_empty() {
        status["conditions"] = conditions::list(&job.status, &list, &now);
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T00:01:00Z";

    fn job(spec: Value, status: Value) -> Workload {
        Workload::of(json!({ "metadata": { "name": "j" }, "spec": spec, "status": status })).unwrap()
    }

    fn pods(active: usize, succeeded: usize, failed: usize) -> Vec<OwnedPod> {
        let of = |phase, count| {
            let pod = move |number| OwnedPod {
                name: format!("{phase:?}-{number}"),
                phase,
                ..OwnedPod::default()
            };
            (0..count).map(pod)
        };
        of(Phase::Running, active)
            .chain(of(Phase::Succeeded, succeeded))
            .chain(of(Phase::Failed, failed))
            .collect()
    }

    /// Created, deleted, and the last condition.
    fn check(job: &Workload, pods: &[OwnedPod], expect: (usize, usize, Option<&str>)) {
        let Step::Apply(plan) = plan(job, pods, NOW.parse().unwrap()) else {
            panic!("{:?}: nothing to do", job.spec)
        };
        let last = plan.status["conditions"].as_array().and_then(|list| list.last());
        let last = last.and_then(|condition| condition["type"].as_str());
        assert_eq!((plan.create.len(), plan.delete.len(), last), expect, "{}", job.spec);
    }

    #[test]
    fn a_job_runs_pods_until_enough_have_succeeded() {
        let two_at_a_time = job(json!({ "parallelism": 2, "completions": 3 }), Value::Null);
        check(&two_at_a_time, &pods(0, 0, 0), (2, 0, None));
        check(&two_at_a_time, &pods(1, 2, 0), (0, 0, None));
        check(&two_at_a_time, &pods(0, 2, 1), (1, 0, None));
        check(&two_at_a_time, &pods(0, 3, 0), (0, 0, Some("Complete")));
        let brittle = job(
            json!({ "completions": 2, "parallelism": 2, "backoffLimit": 0 }),
            Value::Null,
        );
        check(&brittle, &pods(1, 0, 1), (0, 1, Some("Failed")));
    }

    #[test]
    fn an_indexed_job_runs_each_number_once() {
        let spec = json!({ "completionMode": "Indexed", "completions": 5, "parallelism": 3,
            "template": { "spec": { "containers": [{ "name": "main" }] } } });
        let job = job(spec, Value::Null);
        let pod = |index, phase| OwnedPod {
            index: Some(index),
            phase,
            ..OwnedPod::default()
        };
        let pods = [
            pod(0, Phase::Succeeded),
            pod(1, Phase::Failed),
            pod(2, Phase::Succeeded),
            pod(3, Phase::Running),
        ];
        let Step::Apply(plan) = plan(&job, &pods, NOW.parse().unwrap()) else {
            panic!("there is work")
        };
        let names: Vec<&Value> = plan.create.iter().map(|pod| &pod["metadata"]["generateName"]).collect();
        assert_eq!(names, ["j-1-", "j-4-"]);
        assert_eq!(
            plan.create[0]["spec"]["containers"][0]["env"][0]["name"],
            "JOB_COMPLETION_INDEX"
        );
        assert_eq!(plan.create[0]["metadata"]["annotations"][COMPLETION_INDEX], "1");
        assert_eq!(plan.status["completedIndexes"], "0,2");
        assert_eq!(ranges(&[0, 1, 2, 4].into()), "0-2,4");
    }

    #[test]
    fn a_suspended_job_gives_its_pods_up_and_comes_back() {
        let suspended = job(json!({ "completions": 1, "suspend": true }), Value::Null);
        check(&suspended, &pods(1, 0, 0), (0, 1, Some("Suspended")));
        let status = json!({ "conditions": [{ "type": "Suspended", "status": "True", "lastTransitionTime": NOW }] });
        let resumed = job(json!({ "completions": 1, "suspend": false }), status);
        check(&resumed, &pods(0, 0, 0), (1, 0, Some("Suspended")));
    }

    #[test]
    fn a_job_fails_when_its_time_is_over() {
        let late = job(
            json!({ "completions": 1, "activeDeadlineSeconds": 30 }),
            json!({ "startTime": "2026-01-01T00:00:00Z" }),
        );
        check(&late, &pods(1, 0, 0), (0, 1, Some("Failed")));
    }

    #[test]
    fn a_finished_job_is_deleted_after_its_time_to_live() {
        let check = |seconds: Value, expect: Step| {
            let status = json!({ "conditions": [{ "type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
            let job = job(json!({ "ttlSecondsAfterFinished": seconds }), status);
            assert_eq!(plan(&job, &[], NOW.parse().unwrap()), expect);
        };
        check(Value::Null, Step::Wait(None));
        check(json!(90), Step::Wait(Some(Duration::from_secs(30))));
        check(json!(60), Step::Delete);
        check(json!(0), Step::Delete);
    }
}
