//! Writes to the API server. Write commands (bind, evict, delete a bind request) run concurrently with cycles, a bounded number at a time,
//! and return their result to the driver. Conditions, annotations and events go through the [`StatusQueue`], so that they never delay a
//! binding.

mod bind;
mod evict;
mod pod_group;
mod rate_limiter;
mod status;
mod status_queue;
mod write_limiter;

use std::sync::Arc;

use kai_api::ObjectKey;
use kai_cluster::{Client, Deletion, Error, Target};
use kai_engine::report::Placed;

pub(crate) use status::{rfc3339, write_statuses};
pub(crate) use status_queue::{Annotation, NotScheduled, StatusQueue, Unschedulable};
pub(crate) use write_limiter::WriteLimiter;

use crate::settings::BindRequests;
use kai_mirror::StaleBindRequest;

/// A decision to write to the API server.
#[derive(Clone, Debug)]
pub(crate) enum WriteCommand {
    /// Bind a pod, or create its bind request.
    Bind(Bind),
    /// Delete a pod.
    Evict(Evict),
    /// Delete a bind request.
    DeleteBindRequest(StaleBindRequest),
}

/// A pod to bind.
#[derive(Clone, Debug)]
pub(crate) struct Bind {
    pub(crate) pod: ObjectKey,
    pub(crate) placed: Placed,
    /// The time of the decision, for the metric of bind latency.
    pub(crate) decided: tokio::time::Instant,
}

/// A pod to evict.
#[derive(Clone, Debug)]
pub(crate) struct Evict {
    pub(crate) pod: ObjectKey,
    pub(crate) uid: String,
    /// The reason, for the pod's condition.
    pub(crate) message: String,
}

/// A finished write command.
#[derive(Debug)]
pub(crate) struct WriteResult {
    pub(crate) command: WriteCommand,
    pub(crate) result: Result<(), Error>,
}

/// Executes write commands. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    client: Client,
    write_limiter: Arc<WriteLimiter>,
    settings: Arc<WriterSettings>,
}

#[derive(Debug)]
struct WriterSettings {
    bind_requests: BindRequests,
    /// The partition's label, which the writer sets on pods and bind requests.
    label: Option<(String, String)>,
    eviction_condition: bool,
    clock: kai_cluster::Clock,
}

impl Writer {
    pub(crate) fn new(
        context: &kai_cluster::Context,
        settings: &crate::Settings,
        write_limiter: &Arc<WriteLimiter>,
    ) -> Writer {
        let label = settings.partition.label();
        Writer {
            client: context.client.clone(),
            write_limiter: Arc::clone(write_limiter),
            settings: Arc::new(WriterSettings {
                bind_requests: settings.bind_requests,
                label: label.map(|(key, value)| (key.to_owned(), value.to_owned())),
                eviction_condition: settings.update_pod_eviction_condition,
                clock: context.clock,
            }),
        }
    }

    /// Executes the command once the write limiter has a permit.
    pub(crate) async fn execute(self, command: WriteCommand) -> WriteResult {
        let _permit = self.write_limiter.acquire().await;
        let result = match &command {
            WriteCommand::Bind(bind) => self.bind(bind).await,
            WriteCommand::Evict(evict) => self.evict(evict).await,
            WriteCommand::DeleteBindRequest(request) => self.delete_bind_request(request).await,
        };
        WriteResult { command, result }
    }

    async fn delete_bind_request(&self, request: &StaleBindRequest) -> Result<(), Error> {
        let deletion = Deletion {
            uid: Some(request.uid.clone()).filter(|uid| !uid.is_empty()),
            ..Deletion::default()
        };
        let target = Target::of::<kai_api::BindRequest>(&request.key.namespace, &request.key.name);
        match self.client.delete(target, &deletion).await {
            // The name belongs to a newer bind request by now.
            Err(error) if error.is_conflict() => Ok(()),
            result => result,
        }
    }
}
