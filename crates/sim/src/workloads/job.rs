//! Jobs: pods until enough have ended well.

use api::Object;
use cluster::{Error, Key, Selection, Target};
use serde_json::{Value, json};

use super::objects::{Job, Workload};
use super::{Inner, ignore_conflict, plan};

/// The label by which a job finds its pods, those that have ended included.
const JOB_UID: &str = "batch.kubernetes.io/controller-uid";
const JOB_NAME: &str = "batch.kubernetes.io/job-name";
/// Failures that a job bears, unless it says otherwise.
const BACKOFF_LIMIT: i64 = 6;

/// How a job's pods stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    active: i64,
    ready: i64,
    succeeded: i64,
    failed: i64,
}

impl Inner {
    pub(super) async fn job(&self, key: &Key, job: &Workload) -> Result<(), Error> {
        if is_over(job) {
            return Ok(());
        }
        // From a list and not from the watch: that one drops pods which have ended.
        let selection = Selection {
            namespace: Some(key.namespace.to_string()),
            labels: format!("{JOB_UID}={}", job.uid()),
            ..Selection::default()
        };
        let pods = self.context.client.list_values(&api::Pod::RESOURCE, &selection).await?;
        let tally = tally(&pods);
        let status = status(job, tally, &self.context.clock.now_text());
        for _ in 0..missing(job, tally) {
            let mut pod = plan::pod_of(job, "batch/v1", "Job");
            pod["metadata"]["generateName"] = format!("{}-", job.name()).into();
            pod["metadata"]["labels"][JOB_UID] = job.uid().into();
            pod["metadata"]["labels"][JOB_NAME] = job.name().into();
            ignore_conflict(
                self.context
                    .client
                    .create(&api::Pod::RESOURCE, &key.namespace, pod)
                    .await,
            )?;
        }
        self.write_status(Target::of::<Job>(&key.namespace, &key.name), job, status)
            .await
    }
}

fn is_over(job: &Workload) -> bool {
    let conditions = job.status["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["status"] == "True")
}

fn tally(pods: &[Value]) -> Tally {
    let mut tally = Tally::default();
    for pod in pods {
        match pod["status"]["phase"].as_str() {
            Some("Succeeded") => tally.succeeded += 1,
            Some("Failed") => tally.failed += 1,
            _ if pod["metadata"].get("deletionTimestamp").is_some() => {}
            phase => {
                tally.active += 1;
                tally.ready += i64::from(phase == Some("Running"));
            }
        }
    }
    tally
}

fn completions(job: &Workload) -> i64 {
    let parallelism = job.spec["parallelism"].as_i64().unwrap_or(1);
    job.spec["completions"].as_i64().unwrap_or(parallelism)
}

fn has_failed(job: &Workload, tally: Tally) -> bool {
    tally.failed > job.spec["backoffLimit"].as_i64().unwrap_or(BACKOFF_LIMIT)
}

fn missing(job: &Workload, tally: Tally) -> i64 {
    let suspended = job.spec["suspend"].as_bool().unwrap_or(false);
    if suspended || has_failed(job, tally) {
        return 0;
    }
    let parallelism = job.spec["parallelism"].as_i64().unwrap_or(1);
    parallelism.min(completions(job) - tally.succeeded) - tally.active
}

fn status(job: &Workload, tally: Tally, now: &str) -> Value {
    let mut status = json!({
        "active": tally.active, "ready": tally.ready, "succeeded": tally.succeeded, "failed": tally.failed,
    });
    let over = match () {
        () if tally.succeeded >= completions(job) => Some("Complete"),
        () if has_failed(job, tally) => Some("Failed"),
        () => None,
    };
    if let Some(over) = over {
        status["conditions"] = json!([{ "type": over, "status": "True", "lastTransitionTime": now }]);
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(spec: Value, tally: Tally, missing_pods: i64, over: Option<&str>) {
        let job: Workload = serde_json::from_value(json!({ "metadata": { "name": "j" }, "spec": spec })).unwrap();
        assert_eq!(missing(&job, tally), missing_pods, "{spec}");
        let status = status(&job, tally, "now");
        assert_eq!(status["conditions"][0]["type"].as_str(), over, "{spec}");
    }

    #[test]
    fn a_job_runs_pods_until_enough_have_succeeded() {
        let of = |active, succeeded, failed| Tally {
            active,
            ready: 0,
            succeeded,
            failed,
        };
        let spec = json!({ "parallelism": 2, "completions": 3 });
        check(spec.clone(), of(0, 0, 0), 2, None);
        check(spec.clone(), of(1, 2, 0), 0, None);
        check(spec.clone(), of(0, 2, 1), 1, None);
        check(spec, of(0, 3, 0), 0, Some("Complete"));
        check(json!({ "backoffLimit": 0 }), of(0, 0, 1), 0, Some("Failed"));
        check(json!({ "suspend": true }), of(0, 0, 0), 0, None);
    }
}
