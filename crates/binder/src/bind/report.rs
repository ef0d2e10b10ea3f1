//! Reports the result of a bind: status of the BindRequest, condition and event of the pod.

use kai_api::{BindRequest, EVENT_LIMIT_NOT_ENFORCED, Object, ObjectReference, Pod};
use kai_cluster::{EventRecorder, ObjectEvent, Part, Patch, Severity, Target};
use serde_json::{Value, json};

use crate::shell::run::Binder;

/// Reporting component of the events.
pub(crate) const COMPONENT: &str = "binder";
/// Characters of a reason: longer ones are cut, since status, condition and event repeat them.
const REASON_CHARS_MAX: usize = 512;

/// The attempts of a BindRequest after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempts {
    /// Failed attempts so far.
    pub(crate) failed: i32,
    /// Whether another attempt follows.
    pub(crate) another: bool,
}

/// Counts a failed attempt. A request without `backoffLimit` has one attempt; `for_good` spends all remaining attempts.
pub(crate) fn count_attempt(request: &BindRequest, for_good: bool) -> Attempts {
    let failed = request.failed_attempts().saturating_add(1).max(1);
    match request.backoff_limit() {
        None => Attempts { failed, another: false },
        Some(limit) if for_good => Attempts {
            failed: failed.max(limit),
            another: false,
        },
        Some(limit) => Attempts {
            failed,
            another: failed < limit,
        },
    }
}

impl Binder {
    /// Reports that the pod is bound.
    pub(crate) async fn report_bound(&self, request: &BindRequest, pod: &Pod) -> Result<(), kai_cluster::Error> {
        let message = format!("Pod bound to node {}", request.selected_node());
        self.write_status(request, json!({ "phase": "Succeeded", "reason": "" }))
            .await?;
        self.write_condition_and_event(pod, true, message).await;
        Ok(())
    }

    /// Reports that the attempt failed. The caller has rolled it back.
    pub(crate) async fn report_failed(
        &self,
        request: &BindRequest,
        pod: Option<&Pod>,
        reason: &str,
        attempts: Attempts,
    ) -> Result<(), kai_cluster::Error> {
        let reason: String = reason.chars().take(REASON_CHARS_MAX).collect();
        let status = json!({ "phase": "Failed", "reason": reason, "failedAttempts": attempts.failed });
        self.write_status(request, status).await?;
        tracing::warn!(request = %kai_api::ObjectKey::of(request), node = request.selected_node(), reason, "a bind failed");
        if let Some(pod) = pod {
            let message = format!("Failed to bind to node {}: {reason}", request.selected_node());
            self.write_condition_and_event(pod, false, message).await;
        }
        Ok(())
    }

    async fn write_status(&self, request: &BindRequest, status: Value) -> Result<(), kai_cluster::Error> {
        let target = Target::of::<BindRequest>(request.metadata.namespace(), request.metadata.plain_name());
        // The UID keeps the status off a later BindRequest of the same name.
        let body = json!({ "metadata": { "uid": request.metadata.uid.as_deref() }, "status": status });
        match self.client.patch(target, Part::Status, Patch::Merge(body)).await {
            Ok(_) => Ok(()),
            // The BindRequest was deleted with its pod.
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Writes the pod's condition and event. Both are for people: a failure to write them is only logged.
    async fn write_condition_and_event(&self, pod: &Pod, bound: bool, message: String) {
        let (status, reason, severity) = match bound {
            true => ("True", "Bound", Severity::Normal),
            false => ("False", "BindingError", Severity::Warning),
        };
        let condition = json!({
            "type": kai_api::PodCondition::BOUND, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": self.clock.now_text(),
        });
        let body =
            json!({ "metadata": { "uid": pod.metadata.uid.as_deref() }, "status": { "conditions": [condition] } });
        let target = Target::of::<Pod>(pod.metadata.namespace(), pod.metadata.plain_name());
        let write = self.client.patch(target, Part::Status, Patch::Strategic(body));
        let note = ObjectEvent {
            about: reference_to(pod),
            severity,
            reason,
            message,
            annotations: Vec::new(),
        };
        let (written, ()) = tokio::join!(write, self.events.record(note));
        if let Err(error) = written {
            tracing::debug!(%error, "writing a pod condition failed");
        }
    }

    /// Records a warning on a pod whose GPU memory nothing limits. The node agent uses the same reason.
    pub(crate) async fn warn_of_missing_limit(&self, pod: &Pod, message: String) {
        let note = ObjectEvent {
            about: reference_to(pod),
            severity: Severity::Warning,
            reason: EVENT_LIMIT_NOT_ENFORCED,
            message,
            annotations: Vec::new(),
        };
        self.events.record(note).await;
    }

    /// Records a warning on a pod whose GPU is no longer reserved.
    pub(crate) async fn warn_pod(events: &EventRecorder, pod: ObjectReference, message: String) {
        let note = ObjectEvent {
            about: pod,
            severity: Severity::Warning,
            reason: "GPUReservationMismatch",
            message,
            annotations: Vec::new(),
        };
        events.record(note).await;
    }
}

pub(crate) fn reference_to(pod: &Pod) -> ObjectReference {
    ObjectReference {
        api_version: Pod::RESOURCE.api_version(),
        kind: Pod::RESOURCE.kind.to_string(),
        namespace: pod.metadata.namespace().to_owned(),
        name: pod.metadata.plain_name().to_owned(),
        uid: pod.metadata.uid.as_deref().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(limit: Option<i32>, failed_before: i32, for_good: bool, failed: i32, another: bool) {
        let request = json!({ "spec": { "backoffLimit": limit }, "status": { "failedAttempts": failed_before } });
        let request: BindRequest = serde_json::from_value(request).unwrap();
        let found = count_attempt(&request, for_good);
        assert_eq!(
            found,
            Attempts { failed, another },
            "{limit:?} {failed_before} {for_good}"
        );
    }

    #[test]
    fn attempts_count_up_to_the_limit() {
        check(None, 0, false, 1, false);
        check(Some(3), 0, false, 1, true);
        check(Some(3), 1, false, 2, true);
        check(Some(3), 2, false, 3, false);
        check(Some(3), 0, true, 3, false);
        check(Some(0), 0, false, 1, false);
        check(Some(i32::MAX), i32::MAX, false, i32::MAX, false);
    }
}
