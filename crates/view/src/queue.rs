//! Queues and their amounts.

use kai_engine::Cluster;
use kai_engine::model::Gpus;
use kai_engine::reasons::Resource;
use kai_engine::report::QueueView;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::{Gang, GpuAmount, Knowledge};

/// A queue. Its numbers include those of the queues below it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Queue {
    /// Name.
    pub name: String,
    /// The name to show to people.
    pub display_name: String,
    /// Parent.
    pub parent: Option<String>,
    /// Distance from its root.
    pub depth: u32,
    /// Priority.
    pub priority: i32,
    /// Whether its pods hold more of some resource than its quota. `None` = unknown.
    pub over_quota: Option<bool>,
    /// GPUs.
    pub gpus: Amounts<GpuAmount>,
    /// CPU in milli-cores.
    pub cpu_milli: Amounts<i64>,
    /// Memory in bytes.
    pub memory_bytes: Amounts<i64>,
    /// What its pods held over time, by which its share is lowered. `None` = unknown, or not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub past_usage: Option<PastUsage>,
    /// The siblings whose unused quota the borrowed GPUs come from, by name. Empty if the queue borrows no GPUs, if that is unknown, and
    /// for GPUs that are in no queue's quota.
    #[serde(default)]
    pub lenders: Vec<Lender>,
    /// Gangs of this queue itself that wait. `None` = unknown.
    pub gangs_waiting: Option<u32>,
    /// Gangs of this queue itself with running or starting pods. `None` = unknown.
    pub gangs_running: Option<u32>,
}

/// What the pods of a queue held over time, in millionths of what the cluster had in the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PastUsage {
    /// Of GPUs.
    pub gpus_millionths: i64,
    /// Of CPU.
    pub cpu_millionths: i64,
    /// Of memory.
    pub memory_millionths: i64,
}

/// A queue that leaves a part of its quota to another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lender {
    /// Name of the queue.
    pub queue: String,
    /// GPUs of its quota that the borrower holds.
    pub gpus: GpuAmount,
}

/// The amounts of one resource. Amounts of pods and shares are `None` if they are not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Amounts<T> {
    /// The deserved quota; `None` = unlimited.
    pub quota: Option<T>,
    /// The limit; `None` = none.
    pub limit: Option<T>,
    /// The amount that the queue is due now.
    pub fair_share: Option<T>,
    /// What its pods hold.
    pub used: Option<T>,
    /// What its pods held and requested at the start of the cycle.
    pub requested: Option<T>,
    /// The part of `used` held by non-preemptible gangs and by the cores of semi-preemptible ones.
    pub non_preemptible: Option<T>,
    /// The part of `used` above the quota.
    pub borrowed: Option<T>,
    /// The part of `borrowed` that queues below their quota can reclaim: what pods that may be evicted hold.
    pub reclaimable: Option<T>,
}

/// The synthetic root of an installation without hierarchical fairness: no object of the cluster.
const COMMON_ROOT: &str = "(root)";
/// Millionths in a hundredth of a GPU: queues are charged in hundredths.
const HUNDREDTH: i128 = 10_000;

pub(crate) fn queues(engine: &Cluster, gangs: &[Gang], knowledge: &Knowledge) -> Vec<Queue> {
    let mut counts: FxHashMap<&str, (u32, u32)> = FxHashMap::default();
    for gang in gangs {
        let (waiting, running) = counts.entry(&gang.queue).or_default();
        *waiting += u32::from(gang.waiting > 0);
        *running += u32::from(gang.running + gang.starting > 0);
    }
    let views = engine.queues();
    let mut by_parent: FxHashMap<Option<&str>, Vec<&QueueView<'_>>> = FxHashMap::default();
    for view in views.iter().filter(|view| view.name != COMMON_ROOT) {
        let parent = view.parent.filter(|parent| *parent != COMMON_ROOT);
        by_parent.entry(parent).or_default().push(view);
    }
    // Reversed, since the stack returns the last first.
    for children in by_parent.values_mut() {
        children.sort_by(|a, b| b.name.cmp(a.name));
    }
    let mut stack: Vec<(u32, &QueueView<'_>)> = Vec::new();
    stack.extend(by_parent.remove(&None).into_iter().flatten().map(|root| (0, root)));
    let mut queues = Vec::with_capacity(views.len());
    while let Some((depth, view)) = stack.pop() {
        queues.push(queue(
            view,
            depth,
            counts.get(view.name).copied().unwrap_or_default(),
            knowledge,
        ));
        let children = by_parent.remove(&Some(view.name)).into_iter().flatten();
        stack.extend(children.map(|child| (depth + 1, child)));
    }
    // A scheduler that knows the past knows it of all queues; one that does not has none of any.
    if queues.iter().all(|queue| queue.past_usage == Some(PastUsage::NONE)) {
        queues.iter_mut().for_each(|queue| queue.past_usage = None);
    }
    set_lenders(&mut queues);
    queues
}

impl PastUsage {
    const NONE: PastUsage = PastUsage {
        gpus_millionths: 0,
        cpu_millionths: 0,
        memory_millionths: 0,
    };

    fn of(view: &QueueView<'_>) -> PastUsage {
        let millionths = |resource| (view.usage_billionths[resource] + 500) / 1_000;
        PastUsage {
            gpus_millionths: millionths(Resource::Gpu),
            cpu_millionths: millionths(Resource::Cpu),
            memory_millionths: millionths(Resource::Memory),
        }
    }
}

fn queue(view: &QueueView<'_>, depth: u32, (waiting, running): (u32, u32), knowledge: &Knowledge) -> Queue {
    let gpus = |amount| GpuAmount::from(Gpus(amount));
    let known = knowledge.shares();
    let over = Resource::ALL.iter().any(|resource| {
        view.quota[*resource]
            .deserved
            .is_some_and(|quota| view.allocated[*resource] > quota)
    });
    Queue {
        name: view.name.to_owned(),
        display_name: view.display_name.to_owned(),
        parent: view.parent.filter(|parent| *parent != COMMON_ROOT).map(str::to_owned),
        depth,
        priority: view.priority,
        over_quota: known.then_some(over),
        gpus: amounts(view, Resource::Gpu, known, gpus),
        cpu_milli: amounts(view, Resource::Cpu, known, |amount| amount),
        memory_bytes: amounts(view, Resource::Memory, known, |amount| amount),
        past_usage: known.then(|| PastUsage::of(view)),
        lenders: Vec::new(),
        gangs_waiting: known.then_some(waiting),
        gangs_running: known.then_some(running),
    }
}

fn amounts<T>(view: &QueueView<'_>, of: Resource, known: bool, amount: impl Fn(i64) -> T) -> Amounts<T> {
    let quota = view.quota[of];
    let (used, fixed) = (view.allocated[of], view.allocated_non_preemptible[of]);
    let borrowed = quota.deserved.map_or(0, |quota| (used - quota).max(0));
    let if_known = |value: i64| known.then(|| amount(value));
    Amounts {
        quota: quota.deserved.map(&amount),
        limit: quota.limit.map(&amount),
        fair_share: if_known(view.fair_share[of]),
        used: if_known(used),
        requested: if_known(view.requested[of]),
        non_preemptible: if_known(fixed),
        borrowed: if_known(borrowed),
        reclaimable: if_known(borrowed.min((used - fixed).max(0))),
    }
}

/// Lenders of a queue that are listed. With an entry for each pair of a borrower and a lender, a view of thousands of sibling queues would
/// have millions.
const LENDERS_MAX: usize = 16;

/// Sets from whom each queue borrows GPUs. Nobody records whose unused GPUs a pod got: each borrower is counted as having the same part
/// of what every sibling leaves of its quota. What the siblings borrow beyond these parts is in no queue's quota.
fn set_lenders(queues: &mut [Queue]) {
    let mut siblings: FxHashMap<Option<String>, Siblings> = FxHashMap::default();
    // In the order of the list, which has siblings by name.
    for queue in queues.iter() {
        let Some(borrowed) = queue.gpus.borrowed else { continue };
        let family = siblings.entry(queue.parent.clone()).or_default();
        family.borrowed += i128::from(borrowed.millionths);
        let unused = queue.gpus.quota.zip(queue.gpus.used);
        let unused = unused.map_or(0, |(quota, used)| quota.millionths - used.millionths);
        family.add_lender(&queue.name, unused.into());
    }
    siblings.values_mut().for_each(Siblings::keep_largest);
    for queue in queues.iter_mut() {
        let borrowed = queue.gpus.borrowed.unwrap_or_default().millionths;
        if let Some(family) = siblings.get(&queue.parent).filter(|_| borrowed > 0) {
            queue.lenders = family.lenders(borrowed.into());
        }
    }
}

/// The queues below one parent.
#[derive(Default)]
struct Siblings {
    /// Millionths of GPUs above the quotas.
    borrowed: i128,
    /// Millionths of GPUs that all of them leave of their quotas.
    all_unused: i128,
    /// The ones that leave the most, by name.
    largest: Vec<Unused>,
}

/// What a queue leaves of its quota.
struct Unused {
    queue: String,
    millionths: i128,
    /// What the siblings before it leave.
    before: i128,
}

impl Siblings {
    /// Adds what a queue leaves of its quota. Called in the order of names.
    fn add_lender(&mut self, queue: &str, millionths: i128) {
        if millionths > 0 {
            self.largest.push(Unused {
                queue: queue.to_owned(),
                millionths,
                before: self.all_unused,
            });
            self.all_unused += millionths;
        }
    }

    fn keep_largest(&mut self) {
        if self.largest.len() > LENDERS_MAX {
            // Stable: of equal amounts the first names stay.
            self.largest.sort_by_key(|unused| std::cmp::Reverse(unused.millionths));
            self.largest.truncate(LENDERS_MAX);
            self.largest.sort_by_key(|unused| unused.before);
        }
    }

    /// The lenders of a queue that borrows `borrowed` millionths. Amounts are rounded to hundredths so that the sum of all is exact.
    fn lenders(&self, borrowed: i128) -> Vec<Lender> {
        let divisor = self.all_unused.max(self.borrowed).max(1);
        let up_to = |sum: i128| borrowed.saturating_mul(sum) / divisor / HUNDREDTH * HUNDREDTH;
        let lent = |unused: &Unused| up_to(unused.before + unused.millionths) - up_to(unused.before);
        let lenders = self.largest.iter().filter(|unused| lent(unused) > 0);
        let lenders = lenders.map(|unused| Lender {
            queue: unused.queue.clone(),
            gpus: GpuAmount {
                millionths: i64::try_from(lent(unused)).unwrap_or(i64::MAX),
            },
        });
        lenders.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(borrowed: &[i128], unused: &[i128]) -> Siblings {
        let mut family = Siblings {
            borrowed: borrowed.iter().sum(),
            ..Siblings::default()
        };
        for (at, amount) in unused.iter().enumerate() {
            family.add_lender(&format!("q{at}"), *amount);
        }
        family.keep_largest();
        family
    }

    fn lenders(borrowed: &[i128], unused: &[i128]) -> Vec<Vec<i64>> {
        let family = family(borrowed, unused);
        let of_each = borrowed.iter().map(|borrowed| {
            let lenders = family.lenders(*borrowed).into_iter();
            lenders.map(|lender| lender.gpus.millionths / 10_000).collect()
        });
        of_each.collect()
    }

    #[test]
    fn siblings_lend_in_proportion_to_what_they_leave() {
        let gpus = |number: i128| number * 1_000_000;
        assert_eq!(lenders(&[gpus(2)], &[gpus(3), gpus(1)]), [[150, 50]]);
        assert_eq!(
            lenders(&[gpus(1)], &[gpus(1), gpus(1), gpus(1)]),
            [[33, 33, 34]],
            "the sum is exact"
        );
        // Three GPUs are borrowed, two of them from the sibling; the third is in nobody's quota.
        assert_eq!(lenders(&[gpus(2), gpus(1)], &[gpus(2)]), [[133], [66]]);
        assert_eq!(lenders(&[gpus(2)], &[]), [Vec::<i64>::new()]);
        assert_eq!(lenders(&[i128::from(i64::MAX)], &[i128::from(i64::MAX)]).len(), 1);
    }

    #[test]
    fn of_thousands_of_lenders_the_largest_are_listed() {
        let gpus = |number: i128| number * 1_000_000;
        let mut unused = vec![gpus(1); 2_000];
        (unused[7], unused[1_900]) = (gpus(3), gpus(2));
        let listed = family(&[gpus(2_003)], &unused).lenders(gpus(2_003));
        let told: Vec<_> = listed
            .iter()
            .map(|lender| (lender.queue.as_str(), lender.gpus.to_string()))
            .collect();
        assert_eq!(told.len(), LENDERS_MAX);
        assert_eq!(told[7], ("q7", "3".to_owned()));
        assert_eq!(told[LENDERS_MAX - 1], ("q1900", "2".to_owned()));
        assert!(
            told.iter().filter(|(_, gpus)| gpus == "1").count() == LENDERS_MAX - 2,
            "{told:?}"
        );
    }
}
