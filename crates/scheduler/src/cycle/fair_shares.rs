//! Selects the queues whose fair share has to be written to their status. Fair shares change with all demand in the cluster, so each queue is
//! written rarely; the metrics have every value.

use std::time::Duration;

use kai_api::crd::ResourceList;
use kai_api::{QuantityText, keys};
use kai_engine::model::QueueResources;
use kai_engine::report::QueueView;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

/// The minimum time between two writes of one queue.
const WRITE_PERIOD: Duration = Duration::from_secs(30);

/// When each queue was last written.
#[derive(Debug, Default)]
pub(super) struct FairShares {
    written: FxHashMap<String, Instant>,
}

impl FairShares {
    /// The fair shares to write, by queue. `present` returns the fair share in a queue's status.
    pub(super) fn due<'q>(
        &mut self,
        queues: &[QueueView<'q>],
        present: impl Fn(&str) -> Option<ResourceList>,
        now: Instant,
    ) -> Vec<(&'q str, ResourceList)> {
        self.written
            .retain(|_, at| now.saturating_duration_since(*at) < WRITE_PERIOD);
        let mut due = Vec::new();
        for queue in queues {
            if self.written.contains_key(queue.name) {
                continue;
            }
            // The common root of the engine is not a Queue object.
            let Some(present) = present(queue.name) else { continue };
            let share = resource_list(queue.fair_share);
            if share != present {
                self.written.insert(queue.name.to_owned(), now);
                due.push((queue.name, share));
            }
        }
        due
    }
}

/// Converts amounts to quantities, with memory in whole MiB.
fn resource_list(amounts: QueueResources) -> ResourceList {
    let entry = |name: &str, text: QuantityText| (name.to_owned(), text);
    let gpu_milli = (amounts.gpus.0 + 500).div_euclid(1_000);
    ResourceList::from([
        entry(keys::RESOURCE_CPU, QuantityText::of_milli(amounts.cpu_milli.into())),
        entry(
            keys::RESOURCE_MEMORY,
            format!("{}Mi", amounts.memory_bytes >> 20).into(),
        ),
        entry(keys::RESOURCE_GPU, QuantityText::of_milli(gpu_milli.into())),
    ])
}

#[cfg(test)]
mod tests {
    use kai_engine::model::{Gpus, PerResource, Quota};

    use super::*;

    fn queue(name: &'static str, gpu_millionths: i64) -> QueueView<'static> {
        QueueView {
            name,
            display_name: name,
            parent: None,
            priority: 100,
            quota: Quota::UNBOUNDED,
            fair_share: QueueResources {
                cpu_milli: 1_500,
                memory_bytes: 3 << 20,
                gpus: Gpus(gpu_millionths),
            },
            allocated: QueueResources::ZERO,
            allocated_non_preemptible: QueueResources::ZERO,
            usage_billionths: PerResource::default(),
            requested: QueueResources::ZERO,
        }
    }

    #[test]
    fn a_share_is_written_when_it_is_another_one_and_not_too_often() {
        let start = Instant::now();
        let mut shares = FairShares::default();
        let first = [queue("q", 2_500_000), queue("(root)", 1)];
        let none = |name: &str| (name == "q").then(ResourceList::default);
        let due = shares.due(&first, none, start);
        let texts: Vec<(&str, &str)> = due[0].1.iter().map(|(name, text)| (&**name, text.as_str())).collect();
        assert_eq!(due.len(), 1);
        assert_eq!(
            texts,
            [("cpu", "1500m"), ("memory", "3Mi"), ("nvidia.com/gpu", "2500m")]
        );
        let written = due[0].1.clone();
        let present = |_: &str| Some(written.clone());
        let later = start + WRITE_PERIOD;
        assert_eq!(shares.due(&first[..1], present, later), []);
        let changed = [queue("q", 4_000_000)];
        assert_eq!(shares.due(&changed, present, later).len(), 1);
        assert_eq!(shares.due(&first[..1], present, later + Duration::from_secs(1)), []);
        assert_eq!(shares.due(&changed, present, later + WRITE_PERIOD).len(), 1);
    }
}
