//! The status of a Deployment: counters and conditions. Pure.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Plan, Rollout};
use crate::workloads::conditions::{self, Condition};

impl Rollout<'_> {
    pub(super) fn set_status(&self, plan: &mut Plan, now: Timestamp) {
        let sum = |field: &str| self.all().map(|set| set.counter(field)).sum::<i64>();
        let available = sum("availableReplicas");
        let mut status = json!({
            "observedGeneration": self.deployment.generation,
            "replicas": sum("replicas"),
            "updatedReplicas": self.new.map_or(0, |set| set.counter("replicas")),
            "readyReplicas": sum("readyReplicas"),
            "availableReplicas": available,
            "unavailableReplicas": (self.wanted_in_all() - available).max(0),
        });
        let mut list = vec![self.availability(available)];
        let (progress, requeue_after) = self.progress(plan, &status, now);
        list.extend(progress);
        list.extend(self.failure());
        let now_text = kai_cluster::whole_seconds(now);
        status["conditions"] = conditions::list_with_update_times(&self.deployment.status, &list, &now_text);
        plan.status = status;
        plan.requeue_after = requeue_after;
    }

    fn availability(&self, available: i64) -> Condition {
        let minimum = self.deployment.replicas() - self.unavailable;
        let (status, reason, message) = match available >= minimum {
            true => (
                "True",
                "MinimumReplicasAvailable",
                "Deployment has minimum availability.",
            ),
            false => (
                "False",
                "MinimumReplicasUnavailable",
                "Deployment does not have minimum availability.",
            ),
        };
        Condition {
            kind: "Available",
            status,
            reason,
            message: message.to_owned(),
        }
    }

    /// The condition `Progressing`, and the time until its deadline.
    fn progress(&self, plan: &Plan, status: &Value, now: Timestamp) -> (Option<Condition>, Option<Duration>) {
        let Some(deadline) = self.deployment.spec["progressDeadlineSeconds"].as_i64() else {
            return (None, None);
        };
        if self.deployment.spec["paused"] == true {
            return (
                progressing("Unknown", "DeploymentPaused", "Deployment is paused".to_owned()),
                None,
            );
        }
        let replicas = self.deployment.replicas();
        let set = self.new.map(|set| format!("ReplicaSet {:?}", set.name()));
        let Some(set) = set else {
            let name = plan
                .create
                .as_ref()
                .map_or(&Value::Null, |set| &set["metadata"]["name"]);
            let message = format!("Created new replica set {name}");
            return (progressing("True", "NewReplicaSetCreated", message), None);
        };
        let complete = ["replicas", "updatedReplicas", "availableReplicas"]
            .iter()
            .all(|field| status[field] == replicas);
        if complete {
            let message = format!("{set} has successfully progressed.");
            return (progressing("True", "NewReplicaSetAvailable", message), None);
        }
        self.progress_until_deadline(&set, status, deadline, now)
    }

    /// The same for a rollout that is not complete: it progresses or has exceeded its deadline.
    fn progress_until_deadline(
        &self,
        set: &str,
        status: &Value,
        deadline: i64,
        now: Timestamp,
    ) -> (Option<Condition>, Option<Duration>) {
        let replicas = self.deployment.replicas();
        let before = conditions::find(&self.deployment.status, "Progressing");
        let was_complete = before["reason"] == "NewReplicaSetAvailable";
        let grew = ["updatedReplicas", "readyReplicas", "availableReplicas"]
            .iter()
            .any(|field| status[field].as_i64() > Some(self.deployment.counter(field)));
        let moved = grew || self.deployment.counter("observedGeneration") != self.deployment.generation;
        let since = before["lastUpdateTime"]
            .as_str()
            .and_then(|text| text.parse::<Timestamp>().ok());
        let rest = since.map(|since| deadline - (now.as_second() - since.as_second()));
        match rest {
            Some(rest) if !moved && !was_complete && rest <= 0 => {
                let message = format!("{set} has timed out progressing.");
                (progressing("False", "ProgressDeadlineExceeded", message), None)
            }
            _ => {
                let counted = format!(
                    "{set} is progressing: {} of {replicas} updated, {} available.",
                    status["updatedReplicas"], status["availableReplicas"]
                );
                let rest = if moved || was_complete {
                    deadline
                } else {
                    rest.unwrap_or(deadline)
                };
                let requeue_after = Duration::from_secs(u64::try_from(rest).unwrap_or(0));
                (progressing("True", "ReplicaSetUpdated", counted), Some(requeue_after))
            }
        }
    }

    /// The condition `ReplicaFailure`, if a ReplicaSet has it.
    fn failure(&self) -> Option<Condition> {
        let mut failed = self.all().map(|set| conditions::find(&set.status, "ReplicaFailure"));
        let failed = failed.find(|condition| condition["status"] == "True")?;
        Some(Condition {
            kind: "ReplicaFailure",
            status: "True",
            reason: "FailedCreate",
            message: failed["message"].as_str().unwrap_or_default().to_owned(),
        })
    }
}

fn progressing(status: &'static str, reason: &'static str, message: String) -> Option<Condition> {
    Some(Condition {
        kind: "Progressing",
        status,
        reason,
        message,
    })
}
