//! Metrics of usage over time.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// The metrics of the source of past usage.
#[derive(Debug)]
pub(crate) struct UsageMetrics {
    query_latency: Histogram,
    failures: Counter,
    age_seconds: Gauge<f64, AtomicU64>,
    stale: Gauge,
}

impl UsageMetrics {
    pub(super) fn new(query_latency: Histogram) -> UsageMetrics {
        UsageMetrics {
            query_latency,
            failures: Counter::default(),
            age_seconds: Gauge::default(),
            stale: Gauge::default(),
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let latency = "usage_query_latency_milliseconds";
        let help = "A round of queries for past usage that Prometheus answered";
        registry.register(latency, help, self.query_latency.clone());
        let help = "Rounds of queries for past usage that failed, and reads or writes of the saved history";
        registry.register("usage_failures", help, self.failures.clone());
        let help = "Since the last update of past usage; 0 if it is not used";
        registry.register("usage_age_seconds", help, self.age_seconds.clone());
        let help = "1 if past usage is older than the staleness period: fair shares follow old data";
        registry.register("usage_stale", help, self.stale.clone());
    }

    /// Prometheus answered a round of queries after this time.
    pub(crate) fn answered_after(&self, time: Duration) {
        self.query_latency.observe(time.as_secs_f64() * 1e3);
    }

    /// A round of queries, or a read or write of the saved history, failed.
    pub(crate) fn failed(&self) {
        self.failures.inc();
    }

    /// The age of the usage that the engine has.
    pub(crate) fn set_age(&self, age: Duration, is_stale: bool) {
        self.age_seconds.set(age.as_secs_f64());
        self.stale.set(is_stale.into());
    }
}
