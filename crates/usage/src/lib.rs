//! Usage over time: how much of the cluster each queue had in a window of the past. The engine lowers the share of a queue by it.
//!
//! ```text
//! usage(queue, resource) = sum of the queue's allocation over the window / sum of the cluster's capacity over the same window
//! ```
//!
//! Both sums are weighted by the half-life, if there is one. They come from the embedded [`History`], which the scheduler feeds with its own
//! allocation, or from Prometheus, by the queries of module [`prometheus`].
//!
//! | step | module |
//! |---|---|
//! | read `usageDBConfig` | [`settings`] |
//! | where the window begins | [`window`] |
//! | weights of the past | [`decay`] |
//! | sums in bounded memory | [`history`] |
//! | the history as text, for restarts | [`saved`] |
//! | queries and answers | [`prometheus`] |
//!
//! The crate has no clock and does no I/O: the caller passes the time in, writes the saved history and sends the queries. Decay is irrational,
//! so that sums are floating-point numbers here; the engine gets whole billionths.

pub mod decay;
pub mod history;
pub mod prometheus;
pub mod saved;
pub mod settings;
pub mod window;

use std::collections::BTreeMap;

use kai_engine::model::{PerResource, Usage};
use kai_engine::reasons::Resource;

pub use history::{History, Observation};
pub use prometheus::PrometheusSettings;
pub use settings::{Source, UsageSettings};
pub use window::Window;

/// Usage by queue, in billionths of the cluster.
pub type UsageByQueue = BTreeMap<String, PerResource<i64>>;

/// The largest usage that is passed on. A queue that is charged for more than the cluster has, for a time in which nodes were gone, is far
/// below; anything above is a wrong metric.
const BILLIONTHS_MAX: f64 = 1e12;

/// The quotient of two sums, in billionths. A cluster without the resource has no usage of it.
fn billionths(allocated: f64, capacity: f64) -> i64 {
    let ratio = allocated / capacity * 1e9;
    match ratio.is_finite() && capacity > 0.0 {
        true => ratio.clamp(0.0, BILLIONTHS_MAX).round() as i64,
        false => 0,
    }
}

/// The events that bring the engine from the usage that it has to a new one. A queue without new usage gets zero.
pub fn changes(present: &UsageByQueue, new: &UsageByQueue) -> Vec<Usage> {
    let zero = PerResource::default();
    let gone = present.keys().filter(|queue| !new.contains_key(*queue));
    let changed = new.iter().filter(|(queue, usage)| present.get(*queue) != Some(usage));
    let event = |queue: &String, usage: &PerResource<i64>| Usage {
        queue: queue.clone(),
        cpu_billionths: usage[Resource::Cpu],
        memory_billionths: usage[Resource::Memory],
        gpu_billionths: usage[Resource::Gpu],
    };
    let changed = changed.map(|(queue, usage)| event(queue, usage));
    changed.chain(gone.map(|queue| event(queue, &zero))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(billionths: i64) -> PerResource<i64> {
        PerResource {
            gpu: billionths,
            ..PerResource::default()
        }
    }

    #[test]
    fn a_quotient_without_meaning_is_no_usage() {
        assert_eq!(billionths(1.0, 4.0), 250_000_000);
        for (allocated, capacity) in [
            (1.0, 0.0),
            (0.0, 0.0),
            (f64::NAN, 1.0),
            (-1.0, 1.0),
            (1.0, f64::INFINITY),
        ] {
            assert_eq!(billionths(allocated, capacity), 0, "{allocated} of {capacity}");
        }
        assert_eq!(billionths(1e30, 1.0), 1_000_000_000_000);
    }

    #[test]
    fn the_engine_hears_what_is_new_and_what_is_gone() {
        let present = UsageByQueue::from([
            ("a".to_owned(), gpu(1)),
            ("b".to_owned(), gpu(2)),
            ("c".to_owned(), gpu(3)),
        ]);
        let new = UsageByQueue::from([
            ("a".to_owned(), gpu(1)),
            ("b".to_owned(), gpu(5)),
            ("d".to_owned(), gpu(4)),
        ]);
        let told: Vec<_> = changes(&present, &new)
            .into_iter()
            .map(|usage| (usage.queue, usage.gpu_billionths))
            .collect();
        let expect = [("b", 5), ("d", 4), ("c", 0)].map(|(queue, usage)| (queue.to_owned(), usage));
        assert_eq!(told, expect);
    }
}
