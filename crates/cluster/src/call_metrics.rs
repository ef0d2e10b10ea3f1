//! The metrics of calls to the API server. The labels have few values: names of objects and kinds are in the log.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::Error;

/// The HTTP methods of calls; `WATCH` counts failures of watches only.
const METHODS: [&str; 6] = ["GET", "POST", "PUT", "PATCH", "DELETE", WATCH];
pub(crate) const WATCH: &str = "WATCH";
const OK: &str = "ok";
/// The results of calls that failed.
const FAILURES: [&str; 7] = [
    "refused",
    "unauthorized",
    "not_found",
    "conflict",
    "throttled",
    "server_error",
    "no_answer",
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    method: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabel {
    method: &'static str,
}

/// Numbers and durations of calls. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct CallMetrics {
    calls: Family<CallLabels, Counter>,
    seconds: Family<MethodLabel, Histogram, fn() -> Histogram>,
}

impl Default for CallMetrics {
    fn default() -> CallMetrics {
        let calls = Family::default();
        // Series begin at zero: Prometheus does not see the first increase of a series that appears with it.
        for method in METHODS {
            for result in FAILURES {
                drop(calls.get_or_create(&CallLabels { method, result }));
            }
        }
        CallMetrics {
            calls,
            seconds: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.002, 2.0, 14))),
        }
    }
}

impl CallMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "kai_api_calls",
            "Calls to the API server, by method and result",
            self.calls.clone(),
        );
        registry.register(
            "kai_api_call_duration_seconds",
            "Durations of calls to the API server",
            self.seconds.clone(),
        );
    }

    /// Records a call.
    pub(crate) fn record<T>(&self, method: &http::Method, answer: &Result<T, Error>, duration: Duration) {
        let method = METHODS
            .into_iter()
            .find(|known| *known == method.as_str())
            .unwrap_or("GET");
        let result = match answer {
            Ok(_) => OK,
            Err(Error::Call { code, .. }) => failure(*code),
            // These calls were not sent.
            Err(Error::Connect { .. } | Error::NotLeader { .. }) => return,
        };
        self.calls.get_or_create(&CallLabels { method, result }).inc();
        self.seconds
            .get_or_create(&MethodLabel { method })
            .observe(duration.as_secs_f64());
    }

    /// Records a failure of a watch, with the HTTP status if there was an answer.
    pub(crate) fn watch_failed(&self, code: Option<u16>) {
        let labels = CallLabels {
            method: WATCH,
            result: failure(code),
        };
        self.calls.get_or_create(&labels).inc();
    }
}

/// The result of a call that failed with this HTTP status.
fn failure(code: Option<u16>) -> &'static str {
    match code {
        Some(401 | 403) => "unauthorized",
        Some(404 | 410) => "not_found",
        Some(409) => "conflict",
        Some(429) => "throttled",
        Some(500..) => "server_error",
        Some(_) => "refused",
        None => "no_answer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_result_has_a_series_from_the_start() {
        for code in (400..=599).map(Some).chain([None]) {
            assert!(FAILURES.contains(&failure(code)), "{code:?}");
        }
        let metrics = CallMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let failed = Error::Call {
            attempt: String::new(),
            code: Some(503),
            message: String::new(),
        };
        metrics.record::<()>(&http::Method::PATCH, &Err(failed), Duration::from_millis(3));
        metrics.watch_failed(None);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            r#"kai_api_calls_total{method="PATCH",result="server_error"} 1"#,
            r#"kai_api_calls_total{method="PUT",result="conflict"} 0"#,
            r#"kai_api_calls_total{method="WATCH",result="no_answer"} 1"#,
            r#"kai_api_call_duration_seconds_count{method="PATCH"} 1"#,
        ] {
            assert!(
                text.lines().any(|exported| exported == line),
                "{line} is missing in\n{text}"
            );
        }
    }
}
