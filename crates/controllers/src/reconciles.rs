//! The metric that counts reconciliations by result.

use kai_cluster::Metrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

/// A counter of reconciliations, by result. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reconciles {
    by_result: Family<[(&'static str, &'static str); 1], Counter>,
}

impl Reconciles {
    /// Registers the counter as `kai_<controller>_reconciles`. The series of these results begin at zero: Prometheus does not see the
    /// first increase of a series that appears with it.
    pub(crate) fn registered(metrics: &Metrics, controller: &str, results: &[&'static str]) -> Reconciles {
        let reconciles = Reconciles::default();
        for result in results {
            drop(reconciles.by_result.get_or_create(&[("result", *result)]));
        }
        metrics.registry().register(
            format!("kai_{controller}_reconciles"),
            "Reconciled objects, by result",
            reconciles.by_result.clone(),
        );
        reconciles
    }

    pub(crate) fn count(&self, result: &'static str) {
        self.by_result.get_or_create(&[("result", result)]).inc();
    }
}
