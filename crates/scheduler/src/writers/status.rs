//! Writes the updates of the status queue: conditions of pods and pod groups, annotations, events, fair shares.

use std::sync::Arc;

use kai_api::crd::ResourceList;
use kai_api::{ObjectKey, PodCondition, PodGroup};
use kai_cluster::{Client, Clock, Error, EventRecorder, Informer, Part, Patch, Target, WorkResult};
use kai_engine::model::Millis;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::pod_group::next_conditions;
use super::rate_limiter::RateLimiter;
use super::status_queue::{Annotation, NotScheduled, StatusKey, StatusQueue, StatusUpdate, Unschedulable};
use super::write_limiter::WriteLimiter;
use crate::Settings;

/// Writes one update at a time. Each worker has a clone.
#[derive(Clone)]
struct StatusWriter {
    status_queue: StatusQueue,
    client: Client,
    clock: Clock,
    events: EventRecorder,
    pods: Informer<kai_api::Pod>,
    groups: Informer<PodGroup>,
    pool: Arc<str>,
    rate_limiter: Arc<RateLimiter>,
    write_limiter: Arc<WriteLimiter>,
}

/// Writes the updates of the queue until the API server rejects our credentials.
pub(crate) async fn write_statuses(
    context: &kai_cluster::Context,
    settings: &Settings,
    status_queue: &StatusQueue,
    write_limiter: &Arc<WriteLimiter>,
) -> Error {
    let writer = StatusWriter {
        status_queue: status_queue.clone(),
        client: context.client.clone(),
        clock: context.clock,
        events: EventRecorder::new(&context.client, component(&settings.scheduler_name), context.clock),
        pods: context.informers.pods().clone(),
        groups: context.informers.pod_groups().clone(),
        pool: settings.partition.name().into(),
        rate_limiter: Arc::new(RateLimiter::new(settings.status_rate)),
        write_limiter: Arc::clone(write_limiter),
    };
    let (rejected, mut rejections) = mpsc::channel(1);
    let work = move |key: StatusKey| {
        let (writer, rejected) = (writer.clone(), rejected.clone());
        async move {
            match writer.write(&key).await {
                Ok(()) => WorkResult::Done,
                Err(error) if error.is_unauthorized() => {
                    // A full channel holds an earlier error already.
                    let _ = rejected.try_send(error);
                    WorkResult::Retry
                }
                Err(error) => {
                    tracing::debug!(%error, "writing a status failed; it is retried");
                    WorkResult::Retry
                }
            }
        }
    };
    tokio::select! {
        biased;
        () = status_queue.queue.run(settings.status_workers, work) => unreachable!("the queue runs for ever"),
        Some(error) = rejections.recv() => error,
    }
}

/// The event source. Leaked once per process, since events need a static text.
fn component(scheduler: &str) -> &'static str {
    if scheduler == kai_api::keys::SCHEDULER_NAME {
        return kai_api::keys::SCHEDULER_NAME;
    }
    Box::leak(scheduler.to_owned().into_boxed_str())
}

impl StatusWriter {
    async fn write(&self, key: &StatusKey) -> Result<(), Error> {
        self.write_limiter.yield_to_bindings().await;
        self.rate_limiter.acquire().await;
        let Some(update) = self.status_queue.take(key) else {
            return Ok(());
        };
        let result = match (key, &update) {
            (StatusKey::Event(..), StatusUpdate::Event(note)) => {
                self.events.record(note.clone()).await;
                Ok(())
            }
            (StatusKey::Pod(pod), StatusUpdate::Pod(condition)) => self.write_pod_condition(pod, condition).await,
            (StatusKey::PodGroup(pod_group), StatusUpdate::PodGroup(condition)) => {
                self.write_pod_group_condition(pod_group, condition.as_ref()).await
            }
            (StatusKey::GangAnnotations(pod_group), StatusUpdate::GangAnnotations(annotations)) => {
                self.write_annotations(pod_group, annotations).await
            }
            (StatusKey::FairShare(queue), StatusUpdate::FairShare(share)) => self.write_fair_share(queue, share).await,
            (
                StatusKey::Event(..)
                | StatusKey::Pod(_)
                | StatusKey::PodGroup(_)
                | StatusKey::GangAnnotations(_)
                | StatusKey::FairShare(_),
                _,
            ) => Ok(()),
        };
        match result {
            // The object is gone or was replaced: the status has no object any more.
            Err(error) if error.is_not_found() || error.is_refused() => {
                tracing::debug!(%error, "the API server did not accept a status");
                Ok(())
            }
            Err(error) => {
                self.status_queue.put_back(key, update);
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    async fn write_pod_condition(&self, key: &ObjectKey, condition: &NotScheduled) -> Result<(), Error> {
        // The API server sets PodScheduled=True on a bound pod; the writer must not overwrite that.
        if self.pods.get(key).is_none_or(|pod| pod.node_name().is_some()) {
            return Ok(());
        }
        let body = json!({
            "metadata": { "uid": condition.uid },
            "status": { "conditions": [{
                "type": PodCondition::SCHEDULED,
                "status": "False",
                "reason": condition.reason,
                "message": condition.message,
                "lastTransitionTime": rfc3339(condition.since),
            }] },
        });
        let target = Target::of::<kai_api::Pod>(&key.namespace, &key.name);
        match self.client.patch(target, Part::Status, Patch::Strategic(body)).await {
            // A newer pod has the name. Other conflicts are retried.
            Err(error) if error.is_conflict() && !self.has_uid(key, &condition.uid) => Ok(()),
            result => result.map(|_| ()),
        }
    }

    /// Whether the pod of this name has this uid.
    fn has_uid(&self, key: &ObjectKey, uid: &str) -> bool {
        let pod = self.pods.get(key);
        pod.is_some_and(|pod| pod.metadata.uid.as_deref() == Some(uid))
    }

    /// Writes with the resource version of the list that it read: schedulers of other node pools write the same list.
    async fn write_pod_group_condition(&self, key: &ObjectKey, wanted: Option<&Unschedulable>) -> Result<(), Error> {
        let Some(group) = self.groups.get(key) else {
            return Ok(());
        };
        let present = group.scheduling_conditions();
        let Some(list) = next_conditions(present, wanted, &self.pool, &self.clock.now_text()) else {
            return Ok(());
        };
        let version = group.metadata.resource_version.as_deref();
        let body = json!({
            "metadata": { "resourceVersion": version },
            "status": { "schedulingConditions": list },
        });
        let target = Target::of::<PodGroup>(&key.namespace, &key.name);
        self.client
            .patch(target, Part::Status, Patch::Merge(body))
            .await
            .map(|_| ())
    }

    async fn write_fair_share(&self, queue: &str, share: &ResourceList) -> Result<(), Error> {
        let body = json!({ "status": { "fairShare": share } });
        let target = Target::of::<kai_api::Queue>("", queue);
        self.client
            .patch(target, Part::Status, Patch::Merge(body))
            .await
            .map(|_| ())
    }

    async fn write_annotations(&self, key: &ObjectKey, annotations: &[Annotation]) -> Result<(), Error> {
        let annotations: Map<String, Value> = annotations
            .iter()
            .map(|annotation| {
                let value = annotation.value.clone().map_or(Value::Null, Value::String);
                (annotation.key.to_owned(), value)
            })
            .collect();
        let body = json!({ "metadata": { "annotations": annotations } });
        let target = Target::of::<PodGroup>(&key.namespace, &key.name);
        self.client
            .patch(target, Part::Object, Patch::Merge(body))
            .await
            .map(|_| ())
    }
}

/// The time in the API's format, in whole seconds.
pub(crate) fn rfc3339(at: Millis) -> String {
    let time = jiff::Timestamp::from_millisecond(at.0).unwrap_or_default();
    kai_cluster::whole_seconds(time)
}
