//! The binder's metrics.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

/// How a bind ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum BindResult {
    /// The pod is bound.
    Bound,
    /// The bind failed.
    Failed,
}

/// An operation on a reservation pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Operation {
    /// Created for a bind or as a placeholder.
    Created,
    /// Created again for running pods whose reservation pod was lost.
    Restored,
    /// Deleted, because it was unused or unusable.
    Removed,
    /// Found with another GPU than the pods of its group use.
    Mismatched,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: BindResult,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabel {
    operation: Operation,
}

/// The metrics. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    binds: Family<ResultLabel, Counter>,
    reservations: Family<OperationLabel, Counter>,
    /// Seconds from a bind's first wait for a reservation pod to its GPU.
    pub(crate) wait_seconds: Histogram,
    /// BindRequests that are queued or in work.
    pub(crate) queue_length: Gauge,
}

/// Upper bounds in seconds: a kubelet takes about one, the default timeout is 40.
const WAIT_BUCKETS_SECONDS: [f64; 9] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0];

impl Metrics {
    /// New metrics, registered.
    pub(crate) fn new(registered: &kai_cluster::Metrics) -> Metrics {
        let metrics = Metrics {
            binds: Family::default(),
            reservations: Family::default(),
            wait_seconds: Histogram::new(WAIT_BUCKETS_SECONDS),
            queue_length: Gauge::default(),
        };
        // Series begin at zero: Prometheus does not see the first increase of a series that appears with it.
        for result in [BindResult::Bound, BindResult::Failed] {
            drop(metrics.binds.get_or_create(&ResultLabel { result }));
        }
        for operation in [
            Operation::Created,
            Operation::Restored,
            Operation::Removed,
            Operation::Mismatched,
        ] {
            drop(metrics.reservations.get_or_create(&OperationLabel { operation }));
        }
        let mut registry = registered.registry();
        let registry = registry.sub_registry_with_prefix("kai_binder");
        registry.register("binds", "Bind requests by result", metrics.binds.clone());
        registry.register(
            "reservations",
            "Operations on reservation pods",
            metrics.reservations.clone(),
        );
        registry.register(
            "reservation_wait_seconds",
            "From a reservation pod's creation to its GPU",
            metrics.wait_seconds.clone(),
        );
        registry.register(
            "queue_length",
            "Bind requests that are queued or in work",
            metrics.queue_length.clone(),
        );
        metrics
    }

    pub(crate) fn bind(&self, result: BindResult) {
        self.binds.get_or_create(&ResultLabel { result }).inc();
    }

    pub(crate) fn reservation(&self, operation: Operation) {
        self.reservations.get_or_create(&OperationLabel { operation }).inc();
    }
}
