//! The stages of a pod on a simulated node, from the binding to the removal, and what the kubelet writes at each.

use std::sync::Arc;
use std::time::Duration;

use kai_api::{ObjectKey, ObjectReference, keys};
use kai_cluster::{Deletion, ObjectEvent, Part, Patch, Severity, Target, WorkResult};
use kai_engine::model::PodPhase;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::node::{self, Rejection};
use super::{EXIT_CODE, Inner, PodRecord, RUN_SECONDS, Stage, pod_gpus, pod_status};

/// The pause before the kubelet checks again for a missing ConfigMap, or for a node that is not ready.
const RETRY_PERIOD: Duration = Duration::from_secs(1);
/// The longest run time. A pod with a longer one never ends by itself: larger times overflow the clock.
const RUN_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl Inner {
    pub(super) async fn reconcile(&self, key: &ObjectKey) -> Result<WorkResult, kai_cluster::Error> {
        let pod = self.context.informers.pods().get(key);
        let uid = pod
            .as_deref()
            .and_then(|pod| pod.metadata.uid.as_deref())
            .unwrap_or_default();
        self.release_replaced_pod(key, uid);
        let Some(pod) = &pod else { return Ok(WorkResult::Done) };
        let Some(node) = pod.node_name() else {
            return Ok(WorkResult::Done);
        };
        match self.lock().nodes.get(node) {
            Some(node) if node.ready => {}
            Some(_) => return Ok(WorkResult::RequeueAfter(RETRY_PERIOD)),
            None => return Ok(WorkResult::Done),
        }
        if pod.metadata.deletion_timestamp.is_some() {
            return self.stop(key, uid).await;
        }
        let record = self.lock().pods.get(key).cloned();
        match record {
            None => self.admit_pod(key, pod, node).await,
            Some(record) => {
                self.resize(&record, pod);
                self.advance(key, &record).await
            }
        }
    }

    /// Takes up what the pod counts with by its spec and status. A simulated kubelet decides nothing about resizes: tests write the status.
    fn resize(&self, record: &PodRecord, pod: &kai_api::Pod) {
        let Ok(read) = pod.read(&self.identity, kai_engine::model::Millis(0)) else {
            return;
        };
        if let Some(node) = self.lock().nodes.get_mut(&record.node) {
            node.resize(&record.uid, &read.value.requests);
        }
    }

    /// Releases the pod of this name if it is gone or replaced by a pod with another uid.
    fn release_replaced_pod(&self, key: &ObjectKey, uid: &str) {
        let mut state = self.lock();
        let Some(record) = state.pods.get(key) else { return };
        if record.uid == uid {
            return;
        }
        let (node, uid) = (record.node.clone(), record.uid.clone());
        state.pods.remove(key);
        if let Some(node) = state.nodes.get_mut(&node) {
            node.release(&uid);
        }
    }

    async fn admit_pod(
        &self,
        key: &ObjectKey,
        slim: &kai_api::Pod,
        node: &str,
    ) -> Result<WorkResult, kai_cluster::Error> {
        let target = Target::of::<kai_api::Pod>(&key.namespace, &key.name);
        let Some(object) = self.context.client.get_value(target).await? else {
            return Ok(WorkResult::Done);
        };
        let now = kai_engine::model::Millis(0);
        let Ok(spec) = slim.read(&self.identity, now).map(|read| read.value) else {
            return Ok(WorkResult::Done);
        };
        let admitted = {
            let mut state = self.lock();
            let Some(node) = state.nodes.get_mut(node) else {
                return Ok(WorkResult::Done);
            };
            node.admit(&spec).map(drop)
        };
        if let Err(rejection) = admitted {
            return self.reject(key, &rejection).await;
        }
        let runs = slim.phase() == PodPhase::Running;
        let mut state = self.lock();
        state.addresses = state.addresses.wrapping_add(1);
        let [_, a, b, c] = state.addresses.to_be_bytes();
        let since = Instant::now();
        let record = PodRecord {
            uid: spec.uid,
            node: node.to_owned(),
            object: Arc::new(object),
            stage: if runs {
                Stage::Running { since }
            } else {
                Stage::Starting { since }
            },
            stopping: None,
            address: format!("10.{a}.{b}.{c}"),
        };
        state.pods.insert(key.clone(), record);
        Ok(WorkResult::RequeueAfter(Duration::from_secs_f64(
            self.delays.start_seconds.max(0.0),
        )))
    }

    async fn reject(&self, key: &ObjectKey, rejection: &Rejection) -> Result<WorkResult, kai_cluster::Error> {
        tracing::info!(%key, reason = rejection.reason, "a simulated kubelet rejects a pod");
        self.write_terminal_status(key, pod_status::rejected(rejection)).await?;
        Ok(WorkResult::Done)
    }

    async fn advance(&self, key: &ObjectKey, record: &PodRecord) -> Result<WorkResult, kai_cluster::Error> {
        match record.stage {
            Stage::Starting { since } => {
                let start = since + Duration::from_secs_f64(self.delays.start_seconds.max(0.0));
                if let Some(rest) = start
                    .checked_duration_since(Instant::now())
                    .filter(|rest| !rest.is_zero())
                {
                    return Ok(WorkResult::RequeueAfter(rest));
                }
                self.start(key, record).await
            }
            Stage::Running { since } => {
                self.annotate_reservation_pod(key, record).await?;
                let Some(run) = annotation(&record.object, RUN_SECONDS).and_then(run_time) else {
                    return Ok(WorkResult::Done);
                };
                let end = since + run;
                if let Some(rest) = end
                    .checked_duration_since(Instant::now())
                    .filter(|rest| !rest.is_zero())
                {
                    return Ok(WorkResult::RequeueAfter(rest));
                }
                let code = annotation(&record.object, EXIT_CODE).and_then(exit_code).unwrap_or(0);
                self.exit(key, record, code).await?;
                Ok(WorkResult::Done)
            }
            Stage::Ended => Ok(WorkResult::Done),
        }
    }

    async fn start(&self, key: &ObjectKey, record: &PodRecord) -> Result<WorkResult, kai_cluster::Error> {
        let now = self.context.clock.now_text();
        let mut shared = Vec::new();
        for name in pod_status::needed_config_maps(&record.object) {
            let target = Target::of::<kai_api::ConfigMap>(&key.namespace, &name);
            if let Some(map) = self.context.client.get_value(target).await? {
                shared.extend(pod_gpus::visible_gpus(&record.object, &name, &map));
            } else {
                let message = format!("configmap \"{name}\" not found");
                self.write(
                    key,
                    pod_status::waiting(&record.object, &now, "CreateContainerConfigError", &message),
                )
                .await?;
                return Ok(WorkResult::RequeueAfter(RETRY_PERIOD));
            }
        }
        if let Err(message) = self.start_containers(record, &shared).await {
            // The messages of two attempts differ, so that the watch shows each: only the time may start the next one.
            let since = Instant::now() + RETRY_PERIOD;
            self.set_stage(key, record, Stage::Starting { since });
            let status = pod_status::waiting(&record.object, &now, "RunContainerError", &message);
            self.write(key, status).await?;
            return Ok(WorkResult::RequeueAfter(RETRY_PERIOD));
        }
        {
            let mut state = self.lock();
            let node = state.nodes.get_mut(&record.node);
            // A slow runtime may still start the containers of a pod that was evicted meanwhile. A terminal phase stays.
            let Some(node) = node.filter(|node| node.admitted_pod(&record.uid).is_some()) else {
                return Ok(WorkResult::Done);
            };
            node.share(&record.uid, shared);
        }
        self.write(key, pod_status::running(&record.object, &now, &record.address))
            .await?;
        self.report_ignored_annotations(key, record).await;
        self.set_stage(key, record, Stage::Running { since: Instant::now() });
        self.annotate_reservation_pod(key, record).await?;
        Ok(WorkResult::RequeueAfter(Duration::ZERO))
    }

    /// Starts the containers of a pod that shares GPUs on a node with limits: the agent prepares, and the runtime runs the hook. `Err` is
    /// the message of the container that does not start.
    async fn start_containers(&self, record: &PodRecord, shared: &[String]) -> Result<(), String> {
        let prepared = {
            let mut state = self.lock();
            let limits = state.nodes.get_mut(&record.node).and_then(|node| node.limits.as_mut());
            let (Some(limits), false) = (limits, shared.is_empty()) else {
                return Ok(());
            };
            let pod: kai_api::Pod =
                serde_json::from_value((*record.object).clone()).map_err(|error| error.to_string())?;
            let container = pod_gpus::sharing_container(&record.object);
            let spec = limits.prepare(&pod, &record.object, container, shared)?;
            (spec, limits.slow_runtime_seconds())
        };
        let (spec, pause) = prepared;
        if pause > 0 {
            tokio::time::sleep(Duration::from_secs(pause)).await;
        }
        let mut state = self.lock();
        let node = state.nodes.get_mut(&record.node);
        // The node or the pod may have gone meanwhile.
        let node = node.filter(|node| node.admitted_pod(&record.uid).is_some());
        match node.and_then(|node| node.limits.as_mut()) {
            Some(limits) => limits.start(&record.uid, spec, self.now_seconds()),
            None => Ok(()),
        }
    }

    pub(super) fn now_seconds(&self) -> u64 {
        u64::try_from(self.context.clock.now().as_second()).unwrap_or(0)
    }

    /// Records an event for each annotation whose value has no effect.
    async fn report_ignored_annotations(&self, key: &ObjectKey, record: &PodRecord) {
        for message in ignored_annotations(&record.object) {
            let event = ObjectEvent {
                about: ObjectReference {
                    api_version: "v1".to_owned(),
                    kind: "Pod".to_owned(),
                    namespace: key.namespace.to_string(),
                    name: key.name.to_string(),
                    uid: record.uid.clone(),
                },
                severity: Severity::Warning,
                reason: "IgnoredAnnotation",
                message,
                annotations: Vec::new(),
            };
            self.events.record(event).await;
        }
    }

    /// Annotates a reservation pod with its GPU, as the node agent does.
    async fn annotate_reservation_pod(&self, key: &ObjectKey, record: &PodRecord) -> Result<(), kai_cluster::Error> {
        if annotation(&record.object, keys::RESERVED_GPU).is_some() {
            return Ok(());
        }
        let uuids = {
            let mut state = self.lock();
            let admitted = state
                .nodes
                .get_mut(&record.node)
                .filter(|node| node.template.agent)
                .and_then(|node| node.admitted_pod(&record.uid))
                .filter(|admitted| admitted.is_reservation);
            admitted.map(node::AdmittedPod::gpu_uuids).unwrap_or_default()
        };
        let [uuid] = &uuids[..] else { return Ok(()) };
        let body = json!({ "metadata": { "uid": record.uid, "annotations": { keys::RESERVED_GPU: uuid } } });
        let target = Target::of::<kai_api::Pod>(&key.namespace, &key.name);
        self.context
            .client
            .patch(target, Part::Object, Patch::Merge(body))
            .await
            .map(drop)
    }

    pub(super) async fn exit(
        &self,
        key: &ObjectKey,
        record: &PodRecord,
        exit_code: i64,
    ) -> Result<(), kai_cluster::Error> {
        let now = self.context.clock.now_text();
        self.end(key, record, pod_status::ended(&record.object, &now, exit_code))
            .await
    }

    /// Ends a pod with this status.
    pub(super) async fn end(
        &self,
        key: &ObjectKey,
        record: &PodRecord,
        status: Value,
    ) -> Result<(), kai_cluster::Error> {
        self.release(record);
        self.write_terminal_status(key, status).await?;
        self.set_stage(key, record, Stage::Ended);
        Ok(())
    }

    /// Stops a deleted pod, then removes its object.
    async fn stop(&self, key: &ObjectKey, uid: &str) -> Result<WorkResult, kai_cluster::Error> {
        if let Some(rest) = self.remaining_stop_time(key, uid) {
            return Ok(WorkResult::RequeueAfter(rest));
        }
        // Before the removal: the scheduler's watch may show the removal before this watch does.
        let record = self.lock().pods.get(key).filter(|record| record.uid == uid).cloned();
        if let Some(record) = record {
            self.release(&record);
        }
        self.remove_pod_object(key, uid).await?;
        Ok(WorkResult::Done)
    }

    async fn remove_pod_object(&self, key: &ObjectKey, uid: &str) -> Result<(), kai_cluster::Error> {
        let target = Target::of::<kai_api::Pod>(&key.namespace, &key.name);
        let deletion = Deletion {
            uid: Some(uid.to_owned()),
            grace_seconds: Some(0),
            ..Deletion::default()
        };
        match self.context.client.delete(target, &deletion).await {
            Err(error) if !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }

    /// The time until the pod has stopped; `None` if it has.
    fn remaining_stop_time(&self, key: &ObjectKey, uid: &str) -> Option<Duration> {
        let mut state = self.lock();
        let record = state.pods.get_mut(key).filter(|record| record.uid == uid)?;
        let since = *record.stopping.get_or_insert_with(Instant::now);
        let end = since + Duration::from_secs_f64(self.delays.stop_seconds.max(0.0));
        end.checked_duration_since(Instant::now())
            .filter(|rest| !rest.is_zero())
    }

    /// Frees the resources of the pod.
    fn release(&self, record: &PodRecord) {
        if let Some(node) = self.lock().nodes.get_mut(&record.node) {
            node.release(&record.uid);
        }
    }

    /// Writes a terminal status. Removes a pod that was deleted meanwhile: the watch does not show terminal pods.
    async fn write_terminal_status(&self, key: &ObjectKey, status: Value) -> Result<(), kai_cluster::Error> {
        let written = self.write(key, status).await?;
        let metadata = written.as_ref().map(|pod| &pod["metadata"]);
        match metadata.filter(|metadata| !metadata["deletionTimestamp"].is_null()) {
            Some(metadata) => {
                self.remove_pod_object(key, metadata["uid"].as_str().unwrap_or_default())
                    .await
            }
            None => Ok(()),
        }
    }

    /// Writes a status and returns the pod; `None` if the pod is gone.
    async fn write(&self, key: &ObjectKey, status: Value) -> Result<Option<Value>, kai_cluster::Error> {
        let target = Target::of::<kai_api::Pod>(&key.namespace, &key.name);
        let written = self
            .context
            .client
            .patch(target, Part::Status, Patch::Strategic(status))
            .await;
        match written {
            Ok(pod) => Ok(Some(pod)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn set_stage(&self, key: &ObjectKey, record: &PodRecord, stage: Stage) {
        if let Some(present) = self
            .lock()
            .pods
            .get_mut(key)
            .filter(|present| present.uid == record.uid && present.stage != Stage::Ended)
        {
            present.stage = stage;
        }
    }
}

/// The run time of a pod; `None` for an invalid or too long one, which means forever.
fn run_time(text: &str) -> Option<Duration> {
    let run = Duration::try_from_secs_f64(text.parse().ok()?).ok()?;
    (run <= RUN_MAX).then_some(run)
}

/// The exit code of a pod; `None` for an invalid one, which means 0.
fn exit_code(text: &str) -> Option<i64> {
    text.parse::<i32>().ok().map(i64::from)
}

/// Messages about annotations with invalid values.
fn ignored_annotations(pod: &Value) -> Vec<String> {
    let mut messages = Vec::new();
    if let Some(text) = annotation(pod, RUN_SECONDS).filter(|text| run_time(text).is_none()) {
        let most = RUN_MAX.as_secs();
        messages.push(format!(
            "annotation {RUN_SECONDS} is {text:?}, which has no effect: the pod runs until it is deleted; write seconds from 0 to {most}"
        ));
    }
    if let Some(text) = annotation(pod, EXIT_CODE).filter(|text| exit_code(text).is_none()) {
        messages.push(format!(
            "annotation {EXIT_CODE} is {text:?}, which has no effect: the exit code is 0; write a whole number, as in 1"
        ));
    }
    messages
}

fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][key].as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_time_that_no_clock_reaches_is_for_ever() {
        assert_eq!(run_time("2.5"), Some(Duration::from_millis(2500)));
        for text in ["1e300", "1e19", "-1", "NaN", "soon"] {
            assert_eq!(run_time(text), None, "{text}");
        }
    }

    #[test]
    fn annotations_without_effect_are_reported() {
        let pod =
            |run: &str, code: &str| json!({ "metadata": { "annotations": { RUN_SECONDS: run, EXIT_CODE: code } } });
        assert_eq!(ignored_annotations(&json!({ "metadata": {} })), Vec::<String>::new());
        assert_eq!(ignored_annotations(&pod("2.5", "137")), Vec::<String>::new());
        for run in ["1e300", "-5", "soon"] {
            let messages = ignored_annotations(&pod(run, "x"));
            assert!(
                messages[0].contains(RUN_SECONDS) && messages[0].contains(run),
                "{messages:?}"
            );
            assert!(
                messages[1].contains(EXIT_CODE) && messages[1].contains("\"x\""),
                "{messages:?}"
            );
        }
    }
}
