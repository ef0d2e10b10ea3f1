//! Writes what is on the board: conditions of pods and pod groups, annotations, events.

use std::sync::Arc;

use kai_api::crd::ResourceList;
use kai_api::{ObjectKey, PodCondition, PodGroup};
use kai_cluster::{Client, Clock, Error, EventRecorder, Informer, Part, Patch, Target, WorkResult};
use kai_engine::model::Millis;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::board::{Annotation, Board, NotScheduled, Subject, Unschedulable, Wanted};
use super::lanes::Lanes;
use super::pod_group::conditions;
use super::rate::Rate;
use crate::Settings;

/// Writes the board. Cheap to clone.
#[derive(Clone)]
struct StatusWriter {
    board: Board,
    client: Client,
    clock: Clock,
    events: EventRecorder,
    pods: Informer<kai_api::Pod>,
    groups: Informer<PodGroup>,
    pool: Arc<str>,
    rate: Arc<Rate>,
    lanes: Arc<Lanes>,
}

/// Writes what is on the board, for ever. Ends only if our credentials are no longer good.
pub(crate) async fn write_board(
    context: &kai_cluster::Context,
    settings: &Settings,
    board: &Board,
    lanes: &Arc<Lanes>,
) -> Error {
    let writer = StatusWriter {
        board: board.clone(),
        client: context.client.clone(),
        clock: context.clock,
        events: EventRecorder::new(&context.client, component(&settings.scheduler_name), context.clock),
        pods: context.informers.pods().clone(),
        groups: context.informers.pod_groups().clone(),
        pool: settings.partition.name().into(),
        rate: Arc::new(Rate::new(settings.status_rate)),
        lanes: Arc::clone(lanes),
    };
    let (refused, mut refusals) = mpsc::channel(1);
    let work = move |subject: Subject| {
        let (writer, refused) = (writer.clone(), refused.clone());
        async move {
            match writer.write(&subject).await {
                Ok(()) => WorkResult::Done,
                Err(error) if error.is_unauthorized() => {
                    // One refusal is enough; a full channel has it.
                    let _ = refused.try_send(error);
                    WorkResult::Retry
                }
                Err(error) => {
                    tracing::debug!(%error, "a status was not written; it is tried again");
                    WorkResult::Retry
                }
            }
        }
    };
    tokio::select! {
        biased;
        () = board.queue.run(settings.status_workers, work) => unreachable!("the queue runs for ever"),
        Some(error) = refusals.recv() => error,
    }
}

/// Events name their source for as long as the process runs; there is one name per process.
fn component(scheduler: &str) -> &'static str {
    if scheduler == kai_api::keys::SCHEDULER_NAME {
        return kai_api::keys::SCHEDULER_NAME;
    }
    Box::leak(scheduler.to_owned().into_boxed_str())
}

impl StatusWriter {
    async fn write(&self, subject: &Subject) -> Result<(), Error> {
        self.lanes.give_way().await;
        self.rate.one().await;
        let Some(wanted) = self.board.take(subject) else {
            return Ok(());
        };
        let result = match (subject, &wanted) {
            (Subject::Event(..), Wanted::Event(note)) => {
                self.events.record(note.clone()).await;
                Ok(())
            }
            (Subject::Pod(key), Wanted::Pod(condition)) => self.pod(key, condition).await,
            (Subject::Group(key), Wanted::Group(condition)) => self.group(key, condition.as_ref()).await,
            (Subject::Marks(key), Wanted::Marks(marks)) => self.marks(key, marks).await,
            (Subject::FairShare(queue), Wanted::FairShare(share)) => self.fair_share(queue, share).await,
            (
                Subject::Event(..) | Subject::Pod(_) | Subject::Group(_) | Subject::Marks(_) | Subject::FairShare(_),
                _,
            ) => Ok(()),
        };
        match result {
            // Gone, or another one by now: there is nothing to say about it.
            Err(error) if error.is_not_found() || error.is_refused() => {
                tracing::debug!(%error, "a status was not accepted");
                Ok(())
            }
            Err(error) => {
                self.board.put_back(subject, wanted);
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    async fn pod(&self, key: &ObjectKey, condition: &NotScheduled) -> Result<(), Error> {
        // The API server says of a bound pod that it is scheduled; that must stand.
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
                "lastTransitionTime": time(condition.since),
            }] },
        });
        let target = Target::of::<kai_api::Pod>(&key.namespace, &key.name);
        match self.client.patch(target, Part::Status, Patch::Strategic(body)).await {
            // A successor has the name. Other conflicts are tried again.
            Err(error) if error.is_conflict() && !self.is_present(key, &condition.uid) => Ok(()),
            result => result.map(|_| ()),
        }
    }

    /// Whether the pod of this name is still the one that is meant.
    fn is_present(&self, key: &ObjectKey, uid: &str) -> bool {
        let pod = self.pods.get(key);
        pod.is_some_and(|pod| pod.metadata.uid.as_deref() == Some(uid))
    }

    /// Written from the present list and only onto it: schedulers of other node pools write the same list.
    async fn group(&self, key: &ObjectKey, wanted: Option<&Unschedulable>) -> Result<(), Error> {
        let Some(group) = self.groups.get(key) else {
            return Ok(());
        };
        let present = group.scheduling_conditions();
        let Some(list) = conditions(present, wanted, &self.pool, &self.clock.now_text()) else {
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

    async fn fair_share(&self, queue: &str, share: &ResourceList) -> Result<(), Error> {
        let body = json!({ "status": { "fairShare": share } });
        let target = Target::of::<kai_api::Queue>("", queue);
        self.client
            .patch(target, Part::Status, Patch::Merge(body))
            .await
            .map(|_| ())
    }

    async fn marks(&self, key: &ObjectKey, marks: &[Annotation]) -> Result<(), Error> {
        let annotations: Map<String, Value> = marks
            .iter()
            .map(|mark| {
                (
                    mark.key.to_owned(),
                    mark.value.clone().map_or(Value::Null, Value::String),
                )
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

/// As most fields of the API have it.
pub(crate) fn time(at: Millis) -> String {
    let time = jiff::Timestamp::from_millisecond(at.0).unwrap_or_default();
    kai_cluster::whole_seconds(time)
}
