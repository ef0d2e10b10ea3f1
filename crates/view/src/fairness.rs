//! Why it was fair to evict a pod for another gang: the rule, and the numbers that it compared.

use std::fmt;

use kai_engine::model::Gpus;
use kai_engine::reasons::{self, Resource};
use serde::{Deserialize, Serialize};

use crate::GpuAmount;

/// The rule, with the numbers from before the evictions. The queues are those of the two gangs, or the ancestors of them that are siblings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "camelCase")]
pub enum Fairness {
    /// The victim's queue held more than its fair share and its quota.
    OverFairShare {
        /// The victim's queue.
        victim: HeldByQueue,
        /// The queue that the pods were taken for.
        beneficiary: HeldByQueue,
    },
    /// The victim's queue held more than its quota, and the other queue stays within its own.
    OverQuota {
        /// The victim's queue.
        victim: HeldByQueue,
        /// The queue that the pods were taken for.
        beneficiary: HeldByQueue,
    },
    /// A gang of the same queue has a higher priority.
    Priority {
        /// The victim's priority.
        victim: i32,
        /// The other gang's priority.
        beneficiary: i32,
    },
}

/// What a queue held of the resource of which the victim's queue held too much.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldByQueue {
    /// Name of the queue.
    pub queue: String,
    /// The resource and its amounts.
    #[serde(flatten)]
    pub held: Held,
}

/// The amounts of one resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Held {
    /// GPUs.
    Gpus(HeldAmount<GpuAmount>),
    /// CPU in milli-cores.
    CpuMilli(HeldAmount<i64>),
    /// Memory in bytes.
    MemoryBytes(HeldAmount<i64>),
}

/// The amounts of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldAmount<T> {
    /// What the queue's pods held.
    pub used: T,
    /// What the queue was due.
    pub fair_share: T,
    /// Its quota; `None` = unlimited.
    pub quota: Option<T>,
}

impl From<&reasons::Fairness> for Fairness {
    fn from(fairness: &reasons::Fairness) -> Fairness {
        match fairness {
            reasons::Fairness::OverFairShare(queues) => Fairness::OverFairShare {
                victim: held(&queues.victim, queues.resource),
                beneficiary: held(&queues.beneficiary, queues.resource),
            },
            reasons::Fairness::OverQuota(queues) => Fairness::OverQuota {
                victim: held(&queues.victim, queues.resource),
                beneficiary: held(&queues.beneficiary, queues.resource),
            },
            reasons::Fairness::Priority { victim, beneficiary } => Fairness::Priority {
                victim: *victim,
                beneficiary: *beneficiary,
            },
        }
    }
}

fn held(queue: &reasons::HeldByQueue, resource: Resource) -> HeldByQueue {
    let held = match resource {
        Resource::Gpu => Held::Gpus(amounts(queue, |amount| GpuAmount::from(Gpus(amount)))),
        Resource::Cpu => Held::CpuMilli(amounts(queue, |amount| amount)),
        Resource::Memory => Held::MemoryBytes(amounts(queue, |amount| amount)),
    };
    HeldByQueue {
        queue: queue.queue.clone(),
        held,
    }
}

fn amounts<T>(queue: &reasons::HeldByQueue, amount: impl Fn(i64) -> T) -> HeldAmount<T> {
    HeldAmount {
        used: amount(queue.used),
        fair_share: amount(queue.fair_share),
        quota: queue.quota.map(amount),
    }
}

impl fmt::Display for Fairness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fairness::OverFairShare { victim, beneficiary } => {
                write!(f, "queue {victim}, more than its fair share; queue {beneficiary}")
            }
            Fairness::OverQuota { victim, beneficiary } => {
                write!(
                    f,
                    "queue {victim}, more than its quota; queue {beneficiary}, and stays within its quota"
                )
            }
            Fairness::Priority { victim, beneficiary } => {
                write!(f, "its priority is {victim}, that of the other workload {beneficiary}")
            }
        }
    }
}

impl fmt::Display for HeldByQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HeldByQueue { queue, held } = self;
        match held {
            Held::Gpus(amount) => write_held(f, queue, "GPUs", amount, GpuAmount::to_string),
            Held::CpuMilli(amount) => write_held(f, queue, "CPUs", amount, |milli| thousandths(*milli)),
            Held::MemoryBytes(amount) => {
                write_held(f, queue, "MiB of memory", amount, |bytes| (bytes >> 20).to_string())
            }
        }
    }
}

fn write_held<T>(
    f: &mut fmt::Formatter<'_>,
    queue: &str,
    unit: &str,
    amount: &HeldAmount<T>,
    text: impl Fn(&T) -> String,
) -> fmt::Result {
    let quota = amount.quota.as_ref().map_or_else(|| "unlimited".to_owned(), &text);
    let (used, fair_share) = (text(&amount.used), text(&amount.fair_share));
    write!(f, "{queue} held {used} {unit} (fair share {fair_share}, quota {quota})")
}

/// Milli-cores as cores.
fn thousandths(milli: i64) -> String {
    GpuAmount {
        millionths: milli.saturating_mul(1_000),
    }
    .to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sides(resource: Resource, unit: i64) -> reasons::SiblingQueues {
        let side = |queue: &str, used: i64, fair_share: i64, quota: Option<i64>| reasons::HeldByQueue {
            queue: queue.to_owned(),
            used: used * unit,
            fair_share: fair_share * unit,
            quota: quota.map(|quota| quota * unit),
        };
        reasons::SiblingQueues {
            resource,
            victim: side("team-a", 3, 2, Some(1)),
            beneficiary: side("team-b", 0, 4, None),
        }
    }

    #[test]
    fn a_rule_is_told_with_its_numbers() {
        let check = |fairness: reasons::Fairness, expect: &str| {
            assert_eq!(Fairness::from(&fairness).to_string(), expect);
        };
        check(
            reasons::Fairness::OverFairShare(sides(Resource::Gpu, 1_000_000)),
            "queue team-a held 3 GPUs (fair share 2, quota 1), more than its fair share; \
             queue team-b held 0 GPUs (fair share 4, quota unlimited)",
        );
        check(
            reasons::Fairness::OverQuota(sides(Resource::Cpu, 500)),
            "queue team-a held 1.5 CPUs (fair share 1, quota 0.5), more than its quota; \
             queue team-b held 0 CPUs (fair share 2, quota unlimited), and stays within its quota",
        );
        check(
            reasons::Fairness::OverQuota(sides(Resource::Memory, 1 << 30)),
            "queue team-a held 3072 MiB of memory (fair share 2048, quota 1024), more than its quota; \
             queue team-b held 0 MiB of memory (fair share 4096, quota unlimited), and stays within its quota",
        );
        check(
            reasons::Fairness::Priority {
                victim: 50,
                beneficiary: 100,
            },
            "its priority is 50, that of the other workload 100",
        );
    }

    #[test]
    fn what_is_written_is_read_again() {
        for (resource, unit) in [
            (Resource::Gpu, 500_000),
            (Resource::Cpu, 100),
            (Resource::Memory, 1 << 40),
        ] {
            let fairness = Fairness::from(&reasons::Fairness::OverQuota(sides(resource, unit)));
            let text = serde_json::to_string(&fairness).unwrap();
            assert_eq!(serde_json::from_str::<Fairness>(&text).unwrap(), fairness, "{text}");
        }
        let priority = Fairness::Priority {
            victim: 1,
            beneficiary: -2,
        };
        let expect = json!({ "rule": "priority", "victim": 1, "beneficiary": -2 });
        assert_eq!(serde_json::to_value(&priority).unwrap(), expect);
    }
}
