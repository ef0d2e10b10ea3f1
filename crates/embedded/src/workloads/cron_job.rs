//! CronJobs: a Job for each time of the schedule. Pure; `reconcile` carries the plan out.

use std::time::Duration;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use kai_api::Object;
use serde_json::{Value, json};

use super::objects::{CronJob, Job, Workload, copy_present};
use super::{conditions, job};

/// Job annotation: the scheduled time.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// The defaults of `successfulJobsHistoryLimit` and `failedJobsHistoryLimit`.
const SUCCESSFUL_KEPT: u64 = 3;
const FAILED_KEPT: u64 = 1;

/// The writes for a CronJob.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) create: Option<Value>,
    /// Jobs to delete.
    pub(super) delete: Vec<String>,
    pub(super) status: Value,
    /// Reason and message of an event for the user.
    pub(super) warning: Option<(&'static str, String)>,
    /// When the next time of the schedule comes.
    pub(super) requeue_after: Option<Duration>,
}

pub(super) fn plan(cron_job: &Workload, jobs: &[Workload], now: Timestamp) -> Plan {
    let mut plan = Plan {
        delete: surplus_history(cron_job, jobs),
        ..Plan::default()
    };
    let active: Vec<&Workload> = jobs.iter().filter(|job| !job::is_over(job)).collect();
    let mut started = None;
    match times(cron_job, now) {
        Err(warning) => plan.warning = Some(warning),
        Ok(_) if cron_job.spec["suspend"] == true => {}
        Ok(times) => {
            plan.requeue_after = times.next.map(|next| wait(now, next));
            if let Some(due) = times.due.filter(|due| is_in_time(cron_job, *due, now)) {
                let policy = cron_job.spec["concurrencyPolicy"].as_str().unwrap_or("Allow");
                match policy {
                    "Forbid" if !active.is_empty() => {
                        let message =
                            "Not starting job because prior execution is running and concurrency policy is Forbid";
                        plan.warning = Some(("JobAlreadyActive", message.to_owned()));
                    }
                    "Replace" => {
                        plan.delete.extend(active.iter().map(|job| job.name().to_owned()));
                        started = Some(due);
                    }
                    _ => started = Some(due),
                }
            }
        }
    }
    plan.create = started.map(|due| new_job(cron_job, due));
    plan.status = status(cron_job, jobs, &plan, started);
    plan
}

/// The scheduled times next to now.
struct Times {
    /// The latest scheduled time since the last started Job.
    due: Option<Timestamp>,
    next: Option<Timestamp>,
}

fn times(cron_job: &Workload, now: Timestamp) -> Result<Times, (&'static str, String)> {
    let text = cron_job.spec["schedule"].as_str().unwrap_or_default();
    let schedule = parse(text).map_err(|problem| {
        let message = format!("spec.schedule {text:?}: {problem}; write five fields: minute hour day month weekday");
        ("UnparseableSchedule", message)
    })?;
    let zone = match cron_job.spec["timeZone"].as_str() {
        None => TimeZone::UTC,
        Some(name) => TimeZone::get(name).map_err(|error| {
            let message =
                format!("spec.timeZone {name:?}: {error}; write a name such as Europe/Berlin, or leave it out for UTC");
            ("UnknownTimeZone", message)
        })?,
    };
    let since = cron_job.status["lastScheduleTime"]
        .as_str()
        .unwrap_or(cron_job.created());
    let since = since.parse().unwrap_or(now);
    let here: Zoned = now.to_zoned(zone);
    let latest = schedule
        .find_previous_occurrence(&here, true)
        .ok()
        .map(|time| time.timestamp());
    let next = schedule.find_next_occurrence(&here, false).ok();
    Ok(Times {
        due: latest.filter(|latest| *latest > since),
        next: next.map(|time| time.timestamp()),
    })
}

fn parse(text: &str) -> Result<Cron, String> {
    let parser = CronParser::builder()
        .seconds(Seconds::Disallowed)
        .year(Year::Disallowed)
        .build();
    parser.parse(text).map_err(|error| error.to_string())
}

fn is_in_time(cron_job: &Workload, due: Timestamp, now: Timestamp) -> bool {
    let late = now.as_second() - due.as_second();
    let bound = cron_job.spec["startingDeadlineSeconds"].as_i64();
    bound.is_none_or(|bound| late <= bound)
}

/// The time from `now` to `then`; at least a millisecond, so that the clock advances.
fn wait(now: Timestamp, then: Timestamp) -> Duration {
    let millis = then.as_millisecond().saturating_sub(now.as_millisecond());
    Duration::from_millis(u64::try_from(millis).unwrap_or(0).max(1))
}

fn new_job(cron_job: &Workload, due: Timestamp) -> Value {
    let template = &cron_job.spec["jobTemplate"];
    let mut metadata = cron_job.owner(&CronJob::RESOURCE);
    copy_present(&template["metadata"], &mut metadata, &["labels", "annotations"]);
    metadata["name"] = job_name(cron_job, due).into();
    metadata["annotations"][SCHEDULED] = due.to_string().into();
    json!({ "metadata": metadata, "spec": template["spec"] })
}

/// The name has the scheduled minute, so that one scheduled time never starts two Jobs.
fn job_name(cron_job: &Workload, due: Timestamp) -> String {
    format!("{}-{}", cron_job.name(), due.as_second() / 60)
}

/// Finished Jobs beyond the history limits, the oldest first.
fn surplus_history(cron_job: &Workload, jobs: &[Workload]) -> Vec<String> {
    let of = |kind: &str, limit: &Value, usual: u64| {
        let mut ended: Vec<&Workload> = jobs.iter().filter(|job| conditions::holds(&job.status, kind)).collect();
        ended.sort_by_key(|job| (job.created(), job.name()));
        let kept = usize::try_from(limit.as_u64().unwrap_or(usual)).unwrap_or(usize::MAX);
        let surplus = ended.len().saturating_sub(kept);
        ended
            .into_iter()
            .take(surplus)
            .map(|job| job.name().to_owned())
            .collect::<Vec<_>>()
    };
    let spec = &cron_job.spec;
    let mut surplus_history = of("Complete", &spec["successfulJobsHistoryLimit"], SUCCESSFUL_KEPT);
    surplus_history.extend(of("Failed", &spec["failedJobsHistoryLimit"], FAILED_KEPT));
    surplus_history
}

fn status(cron_job: &Workload, jobs: &[Workload], plan: &Plan, started: Option<Timestamp>) -> Value {
    let active = jobs
        .iter()
        .filter(|job| !job::is_over(job) && !plan.delete.contains(&job.name().to_owned()));
    let references = active.map(|job| {
        json!({ "apiVersion": "batch/v1", "kind": Job::RESOURCE.kind, "name": job.name(),
            "namespace": job.metadata.namespace(), "uid": job.uid() })
    });
    let mut status = json!({ "active": references.collect::<Value>() });
    if let Some(started) = started {
        status["lastScheduleTime"] = kai_cluster::whole_seconds(started).into();
    }
    let completed = jobs.iter().filter_map(|job| job.status["completionTime"].as_str());
    let before = cron_job.status["lastSuccessfulTime"].as_str();
    if let Some(latest) = completed.chain(before).max() {
        status["lastSuccessfulTime"] = latest.into();
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cron_job(spec: Value, last: Value) -> Workload {
        let mut object = json!({
            "metadata": { "name": "c", "uid": "u", "creationTimestamp": "2026-01-01T00:00:30Z" },
            "spec": { "schedule": "*/5 * * * *", "jobTemplate": { "spec": { "template": {} } } },
            "status": { "lastScheduleTime": last },
        });
        object["spec"]
            .as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        Workload::of(object).unwrap()
    }

    fn job(name: &str, ended: Option<&str>) -> Workload {
        let conditions: Vec<Value> = ended
            .iter()
            .map(|kind| json!({ "type": kind, "status": "True" }))
            .collect();
        Workload::of(json!({ "metadata": { "name": name }, "status": { "conditions": conditions } })).unwrap()
    }

    /// The time of the job that is started.
    fn started(plan: &Plan) -> Option<&str> {
        plan.create.as_ref()?["metadata"]["annotations"][SCHEDULED].as_str()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn each_time_of_the_schedule_starts_one_job() {
        let check = |last: Value, now: &str, expect: Option<&str>| {
            let plan = plan(&cron_job(json!({}), last), &[], at(now));
            assert_eq!(started(&plan), expect, "{now}");
            plan.requeue_after
        };
        let wait = check(Value::Null, "2026-01-01T00:01:00Z", None);
        assert_eq!(wait, Some(Duration::from_secs(240)));
        check(Value::Null, "2026-01-01T00:05:00Z", Some("2026-01-01T00:05:00Z"));
        check(json!("2026-01-01T00:05:00Z"), "2026-01-01T00:05:01Z", None);
        // Of several missed times only the latest starts a job.
        check(
            json!("2026-01-01T00:05:00Z"),
            "2026-01-01T00:17:00Z",
            Some("2026-01-01T00:15:00Z"),
        );
    }

    #[test]
    fn concurrency_suspension_and_deadline_hold_jobs_back() {
        let check = |spec: Value, expect: Option<&str>, deleted: &[&str]| {
            let jobs = [job("c-1", None)];
            let plan = plan(&cron_job(spec, Value::Null), &jobs, at("2026-01-01T00:05:20Z"));
            assert_eq!(
                (
                    started(&plan),
                    plan.delete.iter().map(String::as_str).collect::<Vec<_>>()
                ),
                (expect, deleted.to_vec())
            );
        };
        let due = Some("2026-01-01T00:05:00Z");
        check(json!({}), due, &[]);
        check(json!({ "concurrencyPolicy": "Forbid" }), None, &[]);
        check(json!({ "concurrencyPolicy": "Replace" }), due, &["c-1"]);
        check(json!({ "suspend": true }), None, &[]);
        check(json!({ "startingDeadlineSeconds": 10 }), None, &[]);
    }

    #[test]
    fn old_jobs_are_forgotten() {
        let jobs = [
            job("a", Some("Complete")),
            job("b", Some("Complete")),
            job("c", Some("Failed")),
        ];
        let limits = json!({ "successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 1 });
        let plan = plan(&cron_job(limits, Value::Null), &jobs, at("2026-01-01T00:01:00Z"));
        assert_eq!(plan.delete, ["a"]);
    }

    #[test]
    fn a_wrong_schedule_is_named_with_its_remedy() {
        let warning = |spec: Value| {
            plan(&cron_job(spec, Value::Null), &[], at("2026-01-01T00:05:00Z"))
                .warning
                .unwrap()
        };
        let (reason, message) = warning(json!({ "schedule": "every day" }));
        assert_eq!(reason, "UnparseableSchedule");
        assert!(
            message.contains("every day") && message.contains("five fields"),
            "{message}"
        );
        let (reason, message) = warning(json!({ "timeZone": "Mars/Olympus" }));
        assert_eq!(reason, "UnknownTimeZone");
        assert!(message.contains("Mars/Olympus"), "{message}");
    }
}
