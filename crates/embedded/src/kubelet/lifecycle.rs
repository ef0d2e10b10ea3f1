//! A pod on a simulated node, from being bound to being gone: what the kubelet writes at which stage.

use std::sync::Arc;
use std::time::Duration;

use kai_api::{ObjectKey, keys};
use kai_cluster::{Deletion, Part, Patch, Target, WorkResult};
use kai_engine::model::PodPhase;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::machine::{self, Rejection};
use super::{EXIT_CODE, Inner, Life, RUN_SECONDS, Stage, holdings, status};

/// How often a kubelet looks again for a ConfigMap that a pod needs.
const MISSING_RETRY: Duration = Duration::from_secs(1);
/// A pod that is to run for longer runs for ever: clocks can't count to every number that people write.
const RUN_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl Inner {
    pub(super) async fn reconcile(&self, key: &ObjectKey) -> Result<WorkResult, kai_cluster::Error> {
        let pod = self.context.informers.pods().get(key);
        let uid = pod
            .as_deref()
            .and_then(|pod| pod.metadata.uid.as_deref())
            .unwrap_or_default();
        self.forget_predecessor(key, uid);
        let Some(pod) = &pod else { return Ok(WorkResult::Done) };
        let Some(node) = pod.node_name() else {
            return Ok(WorkResult::Done);
        };
        match self.lock().machines.get(node) {
            Some(machine) if machine.ready => {}
            Some(_) => return Ok(WorkResult::RequeueAfter(MISSING_RETRY)),
            None => return Ok(WorkResult::Done),
        }
        if pod.metadata.deletion_timestamp.is_some() {
            return self.stop(key, uid).await;
        }
        let life = self.lock().pods.get(key).cloned();
        match life {
            None => self.take_in(key, pod, node).await,
            Some(life) => self.advance(key, &life).await,
        }
    }

    /// A pod that is gone, or was followed by another of the same name, leaves its machine.
    fn forget_predecessor(&self, key: &ObjectKey, uid: &str) {
        let mut state = self.lock();
        let Some(life) = state.pods.get(key) else { return };
        if life.uid == uid {
            return;
        }
        let (node, uid) = (life.node.clone(), life.uid.clone());
        state.pods.remove(key);
        if let Some(machine) = state.machines.get_mut(&node) {
            machine.release(&uid);
        }
    }

    async fn take_in(
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
            let Some(machine) = state.machines.get_mut(node) else {
                return Ok(WorkResult::Done);
            };
            machine.admit(&spec).map(drop)
        };
        if let Err(rejection) = admitted {
            return self.reject(key, &rejection).await;
        }
        let runs = slim.phase() == PodPhase::Running;
        let mut state = self.lock();
        state.addresses = state.addresses.wrapping_add(1);
        let [_, a, b, c] = state.addresses.to_be_bytes();
        let since = Instant::now();
        let life = Life {
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
        state.pods.insert(key.clone(), life);
        Ok(WorkResult::RequeueAfter(Duration::from_secs_f64(
            self.delays.start_seconds.max(0.0),
        )))
    }

    async fn reject(&self, key: &ObjectKey, rejection: &Rejection) -> Result<WorkResult, kai_cluster::Error> {
        tracing::info!(%key, reason = rejection.reason, "a simulated kubelet rejects a pod");
        self.write_last(key, status::rejected(rejection)).await?;
        Ok(WorkResult::Done)
    }

    async fn advance(&self, key: &ObjectKey, life: &Life) -> Result<WorkResult, kai_cluster::Error> {
        match life.stage {
            Stage::Starting { since } => {
                let start = since + Duration::from_secs_f64(self.delays.start_seconds.max(0.0));
                if let Some(rest) = start
                    .checked_duration_since(Instant::now())
                    .filter(|rest| !rest.is_zero())
                {
                    return Ok(WorkResult::RequeueAfter(rest));
                }
                self.start(key, life).await
            }
            Stage::Running { since } => {
                self.reserve(key, life).await?;
                let Some(run) = annotation(&life.object, RUN_SECONDS).and_then(run_time) else {
                    return Ok(WorkResult::Done);
                };
                let end = since + run;
                if let Some(rest) = end
                    .checked_duration_since(Instant::now())
                    .filter(|rest| !rest.is_zero())
                {
                    return Ok(WorkResult::RequeueAfter(rest));
                }
                let code = annotation(&life.object, EXIT_CODE)
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(0);
                self.exit(key, life, code).await?;
                Ok(WorkResult::Done)
            }
            Stage::Ended => Ok(WorkResult::Done),
        }
    }

    async fn start(&self, key: &ObjectKey, life: &Life) -> Result<WorkResult, kai_cluster::Error> {
        let now = self.context.clock.now_text();
        let mut shared = Vec::new();
        for name in status::needed_config_maps(&life.object) {
            let target = Target::of::<kai_api::ConfigMap>(&key.namespace, &name);
            if let Some(map) = self.context.client.get_value(target).await? {
                shared.extend(holdings::visible_gpus(&life.object, &name, &map));
            } else {
                let message = format!("configmap \"{name}\" not found");
                self.write(
                    key,
                    status::waiting(&life.object, &now, "CreateContainerConfigError", &message),
                )
                .await?;
                return Ok(WorkResult::RequeueAfter(MISSING_RETRY));
            }
        }
        if let Some(machine) = self.lock().machines.get_mut(&life.node) {
            machine.share(&life.uid, shared);
        }
        self.write(key, status::running(&life.object, &now, &life.address))
            .await?;
        self.set_stage(key, life, Stage::Running { since: Instant::now() });
        self.reserve(key, life).await?;
        Ok(WorkResult::RequeueAfter(Duration::ZERO))
    }

    /// The node agent's duty: a reservation pod is told which GPU it holds.
    async fn reserve(&self, key: &ObjectKey, life: &Life) -> Result<(), kai_cluster::Error> {
        let ours =
            *key.namespace == *keys::RESERVATION && life.object["metadata"]["labels"][keys::APP] == keys::RESERVATION;
        if !ours || annotation(&life.object, keys::RESERVED_GPU).is_some() {
            return Ok(());
        }
        let uuids = {
            let mut state = self.lock();
            let tenant = state
                .machines
                .get_mut(&life.node)
                .and_then(|machine| machine.tenant(&life.uid));
            tenant.map(machine::Tenant::gpu_uuids).unwrap_or_default()
        };
        let [uuid] = &uuids[..] else { return Ok(()) };
        let body = json!({ "metadata": { "uid": life.uid, "annotations": { keys::RESERVED_GPU: uuid } } });
        let target = Target::of::<kai_api::Pod>(&key.namespace, &key.name);
        self.context
            .client
            .patch(target, Part::Object, Patch::Merge(body))
            .await
            .map(drop)
    }

    pub(super) async fn exit(&self, key: &ObjectKey, life: &Life, exit_code: i64) -> Result<(), kai_cluster::Error> {
        let now = self.context.clock.now_text();
        self.end(key, life, status::ended(&life.object, &now, exit_code)).await
    }

    /// The pod is over, with this status.
    pub(super) async fn end(&self, key: &ObjectKey, life: &Life, status: Value) -> Result<(), kai_cluster::Error> {
        self.release(life);
        self.write_last(key, status).await?;
        self.set_stage(key, life, Stage::Ended);
        Ok(())
    }

    /// Stops a pod that was asked to go, then takes its object away.
    async fn stop(&self, key: &ObjectKey, uid: &str) -> Result<WorkResult, kai_cluster::Error> {
        if let Some(rest) = self.time_to_stop(key, uid) {
            return Ok(WorkResult::RequeueAfter(rest));
        }
        // Before others can know that the pod is gone: the scheduler may hear of it sooner than this watch does.
        let life = self.lock().pods.get(key).filter(|life| life.uid == uid).cloned();
        if let Some(life) = life {
            self.release(&life);
        }
        self.take_away(key, uid).await?;
        Ok(WorkResult::Done)
    }

    async fn take_away(&self, key: &ObjectKey, uid: &str) -> Result<(), kai_cluster::Error> {
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

    /// How long it still takes the pod to stop.
    fn time_to_stop(&self, key: &ObjectKey, uid: &str) -> Option<Duration> {
        let mut state = self.lock();
        let life = state.pods.get_mut(key).filter(|life| life.uid == uid)?;
        let since = *life.stopping.get_or_insert_with(Instant::now);
        let end = since + Duration::from_secs_f64(self.delays.stop_seconds.max(0.0));
        end.checked_duration_since(Instant::now())
            .filter(|rest| !rest.is_zero())
    }

    /// What the pod had is free.
    fn release(&self, life: &Life) {
        if let Some(machine) = self.lock().machines.get_mut(&life.node) {
            machine.release(&life.uid);
        }
    }

    /// Writes how the pod ended. One that was asked to go meanwhile goes at once: the watch no longer shows pods that have ended.
    async fn write_last(&self, key: &ObjectKey, status: Value) -> Result<(), kai_cluster::Error> {
        let written = self.write(key, status).await?;
        let metadata = written.as_ref().map(|pod| &pod["metadata"]);
        match metadata.filter(|metadata| !metadata["deletionTimestamp"].is_null()) {
            Some(metadata) => self.take_away(key, metadata["uid"].as_str().unwrap_or_default()).await,
            None => Ok(()),
        }
    }

    /// The pod as it is then, unless it is gone.
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

    fn set_stage(&self, key: &ObjectKey, life: &Life, stage: Stage) {
        if let Some(present) = self.lock().pods.get_mut(key).filter(|present| present.uid == life.uid) {
            present.stage = stage;
        }
    }
}

/// How long a pod runs. Nonsense means for ever, and so does a time that no clock reaches.
fn run_time(text: &str) -> Option<Duration> {
    let run = Duration::try_from_secs_f64(text.parse().ok()?).ok()?;
    (run <= RUN_MAX).then_some(run)
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
}
