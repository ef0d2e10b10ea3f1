//! Carries decisions out. Orders (bind, evict, clean up) run beside the cycle, a bounded number at a time, and report back what came of
//! them. Conditions, annotations and events go another way ([`Board`]), so that they never keep a pod from being bound.

mod bind;
mod board;
mod evict;
mod lanes;
mod pod_group;
mod rate;
mod status;

use std::sync::Arc;

use kai_api::ObjectKey;
use kai_cluster::{Client, Deletion, Error, Target};
use kai_engine::report::Placed;

pub(crate) use board::{Annotation, Board, NotScheduled, Unschedulable};
pub(crate) use lanes::Lanes;
pub(crate) use status::{time, write_board};

use crate::settings::BindRequests;
use kai_mirror::StaleRequest;

/// Something to carry out.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// Bind a pod.
    Bind(Bind),
    /// Delete a pod.
    Evict(Evict),
    /// Delete a bind request.
    CleanUp(StaleRequest),
}

/// A pod to bind.
#[derive(Clone, Debug)]
pub(crate) struct Bind {
    pub(crate) pod: ObjectKey,
    pub(crate) placed: Placed,
    /// Decided then; how long the write took is measured from here.
    pub(crate) decided: tokio::time::Instant,
}

/// A pod to evict.
#[derive(Clone, Debug)]
pub(crate) struct Evict {
    pub(crate) pod: ObjectKey,
    pub(crate) uid: String,
    /// Why, for the pod's condition.
    pub(crate) message: String,
}

/// What came of an order.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) order: Order,
    pub(crate) result: Result<(), Error>,
}

/// How orders are carried out.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    client: Client,
    lanes: Arc<Lanes>,
    rules: Arc<Rules>,
}

#[derive(Debug)]
struct Rules {
    bind_requests: BindRequests,
    /// The label of the partition, for pods and bind requests.
    label: Option<(String, String)>,
    eviction_condition: bool,
    clock: kai_cluster::Clock,
}

impl Writer {
    pub(crate) fn new(context: &kai_cluster::Context, settings: &crate::Settings, lanes: &Arc<Lanes>) -> Writer {
        let label = settings.partition.label();
        Writer {
            client: context.client.clone(),
            lanes: Arc::clone(lanes),
            rules: Arc::new(Rules {
                bind_requests: settings.bind_requests,
                label: label.map(|(key, value)| (key.to_owned(), value.to_owned())),
                eviction_condition: settings.update_pod_eviction_condition,
                clock: context.clock,
            }),
        }
    }

    /// Carries the order out.
    pub(crate) async fn carry_out(self, order: Order) -> Outcome {
        let _permit = self.lanes.order().await;
        let result = match &order {
            Order::Bind(bind) => self.bind(bind).await,
            Order::Evict(evict) => self.evict(evict).await,
            Order::CleanUp(request) => self.clean_up(request).await,
        };
        Outcome { order, result }
    }

    async fn clean_up(&self, request: &StaleRequest) -> Result<(), Error> {
        let deletion = Deletion {
            uid: Some(request.uid.clone()).filter(|uid| !uid.is_empty()),
            ..Deletion::default()
        };
        let target = Target::of::<kai_api::BindRequest>(&request.key.namespace, &request.key.name);
        match self.client.delete(target, &deletion).await {
            // Another one of the same name is there by now.
            Err(error) if error.is_conflict() => Ok(()),
            result => result,
        }
    }
}
