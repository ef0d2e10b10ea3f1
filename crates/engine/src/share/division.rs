//! Fair division of a resource among sibling queues: first the deserved quotas, then the rest by priority and weight in whole units,
//! then the remainders. All arithmetic is exact, in integers.

use std::cmp::{Ordering, Reverse};

use crate::ids::QueueId;
use crate::model::{Gpus, PerResource, QueueResources, QueueSpec};
use crate::reasons::Resource;
use crate::tables::Queue;

/// The units in which resources above the quotas are divided: a milli-core, a byte, a whole GPU.
const UNITS: QueueResources = QueueResources {
    cpu_milli: 1,
    memory_bytes: 1,
    gpus: Gpus::ONE,
};

/// Sets the fair share of every connected queue, from the roots down: the children of a queue divide its fair share.
pub(crate) fn divide_tree(
    queues: &mut [Queue],
    roots: &[QueueId],
    total: QueueResources,
    usage_weight_millionths: i64,
) {
    let mut level: Vec<(Vec<QueueId>, QueueResources)> = vec![(roots.to_vec(), total)];
    while let Some((siblings, total)) = level.pop() {
        for resource in Resource::ALL {
            let claims: Vec<Claim<'_>> = siblings
                .iter()
                .map(|id| Claim::of(&queues[id.index()], resource))
                .collect();
            let shares = divide(total[resource], UNITS[resource], usage_weight_millionths, &claims);
            for (id, share) in siblings.iter().zip(shares) {
                queues[id.index()].fair_share[resource] = share;
            }
        }
        for id in siblings {
            let queue = &queues[id.index()];
            if !queue.children.is_empty() {
                level.push((queue.children.clone(), queue.fair_share));
            }
        }
    }
    for queue in queues {
        queue.allocatable = PerResource::from_fn(|resource| allocatable_share(queue, resource));
    }
}

/// See [`Queue::allocatable`].
fn allocatable_share(queue: &Queue, resource: Resource) -> Option<i64> {
    let quota = queue.quota[resource];
    let Some(deserved) = quota.deserved else {
        return quota.limit;
    };
    let share = deserved.max(queue.fair_share[resource]);
    Some(quota.limit.map_or(share, |limit| limit.min(share)))
}

/// A queue with what it asks for, in a division without a cluster.
#[derive(Clone, Debug)]
pub struct ShareRequest {
    /// The queue; its parent has no meaning here.
    pub queue: QueueSpec,
    /// What its pods hold and ask for.
    pub requested: QueueResources,
    /// What its pods held over time, in billionths of the cluster.
    pub usage_billionths: PerResource<i64>,
}

/// The fair shares of sibling queues, as a cycle computes them.
pub fn fair_shares(
    total: QueueResources,
    usage_weight_millionths: i64,
    requests: &[ShareRequest],
) -> Vec<QueueResources> {
    let mut shares = vec![QueueResources::ZERO; requests.len()];
    for resource in Resource::ALL {
        let claims: Vec<Claim<'_>> = requests
            .iter()
            .map(|request| Claim::of_request(request, resource))
            .collect();
        let divided = divide(total[resource], UNITS[resource], usage_weight_millionths, &claims);
        for (share, amount) in shares.iter_mut().zip(divided) {
            share[resource] = amount;
        }
    }
    shares
}

/// The claim of one queue in the division of one resource.
#[derive(Clone, Debug)]
struct Claim<'a> {
    deserved: Option<i64>,
    /// The request, at most the limit.
    requestable: i64,
    weight: i64,
    priority: i32,
    usage_billionths: i64,
    /// Creation time, uid, name.
    tie_break: (crate::model::Millis, &'a str, &'a str),
}

impl Claim<'_> {
    fn of_request(request: &ShareRequest, resource: Resource) -> Claim<'_> {
        let (queue, requested) = (&request.queue, request.requested[resource]);
        let quota = queue.quota[resource];
        Claim {
            deserved: quota.deserved,
            requestable: quota.limit.map_or(requested, |limit| limit.min(requested)).max(0),
            weight: quota.weight_millionths.max(0),
            priority: queue.priority,
            usage_billionths: request.usage_billionths[resource],
            tie_break: (queue.created, &queue.uid, &queue.name),
        }
    }

    fn of(queue: &Queue, resource: Resource) -> Claim<'_> {
        let quota = queue.quota[resource];
        let requested = (queue.requested[resource] - queue.background[resource]).max(0);
        Claim {
            deserved: quota.deserved,
            requestable: quota.limit.map_or(requested, |limit| limit.min(requested)),
            weight: quota.weight_millionths.max(0),
            priority: queue.priority,
            usage_billionths: queue.usage_billionths[resource],
            tie_break: (queue.created, &queue.uid, &queue.name),
        }
    }
}

fn divide(total: i64, unit: i64, usage_weight: i64, claims: &[Claim<'_>]) -> Vec<i64> {
    let mut fair: Vec<i64> = claims
        .iter()
        .map(|claim| claim.deserved.unwrap_or(total).min(claim.requestable))
        .collect();
    let mut rest = fair.iter().fold(total, |rest, share| rest.saturating_sub(*share));
    if rest <= 0 {
        // The deserved quotas alone exceed the total: every queue keeps its own.
        return fair;
    }
    let mut priorities: Vec<i32> = claims.iter().map(|claim| claim.priority).collect();
    priorities.sort_unstable_by_key(|priority| Reverse(*priority));
    priorities.dedup();
    let mut remainders_by_priority = Vec::new();
    for priority in priorities {
        let members: Vec<usize> = (0..claims.len())
            .filter(|at| claims[*at].priority == priority)
            .collect();
        remainders_by_priority.push(water_fill(&mut rest, unit, usage_weight, claims, &members, &mut fair));
    }
    for mut remainders in remainders_by_priority {
        remainders.sort_by(|a, b| {
            b.1.cmp(&a.1)
                .then_with(|| claims[a.0].tie_break.cmp(&claims[b.0].tie_break))
        });
        for (at, _) in remainders {
            let give = unit.min(rest);
            fair[at] += give;
            rest -= give;
        }
    }
    fair
}

/// The part of a unit that a queue did not get because units are whole: `numerator / denominator`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Remainder {
    numerator: i128,
    denominator: i128,
}

impl Ord for Remainder {
    fn cmp(&self, other: &Remainder) -> Ordering {
        compare_fractions((self.numerator, self.denominator), (other.numerator, other.denominator))
    }
}

/// Compares two non-negative fractions exactly. Cross products could overflow, so the integer parts are compared first and then the
/// reciprocals of the rests, as in Euclid's algorithm.
fn compare_fractions((a, b): (i128, i128), (c, d): (i128, i128)) -> Ordering {
    let (mut left, mut right) = ((a, b), (c, d));
    let mut reversed = false;
    loop {
        let parts = (left.0 / left.1).cmp(&(right.0 / right.1));
        let rests = (left.0 % left.1, right.0 % right.1);
        let order = match (parts, rests) {
            (Ordering::Equal, (0, _) | (_, 0)) => (rests.0 != 0).cmp(&(rests.1 != 0)),
            (Ordering::Equal, (rest, other)) => {
                (left, right) = ((left.1, rest), (right.1, other));
                reversed = !reversed;
                continue;
            }
            (order, _) => order,
        };
        return if reversed { order.reverse() } else { order };
    }
}

impl PartialOrd for Remainder {
    fn partial_cmp(&self, other: &Remainder) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The part of a queue in one round of the division.
struct Part {
    give: i64,
    remainder: Option<Remainder>,
    /// The queue needs less than its part.
    leaves_surplus: bool,
}

impl Part {
    /// Of a queue that needs `need` and whose part is `weighted / sum`; compared and rounded in integers.
    fn of(need: i64, unit: i64, weighted: i128, sum: i128) -> Part {
        let needed = i128::from(need) * sum;
        if needed <= weighted {
            return Part {
                give: need,
                remainder: None,
                leaves_surplus: needed < weighted,
            };
        }
        let give = (weighted / (sum * i128::from(unit))) as i64 * unit;
        let numerator = weighted - i128::from(give) * sum;
        Part {
            give,
            remainder: (numerator > 0).then_some(Remainder {
                numerator,
                denominator: sum,
            }),
            leaves_surplus: false,
        }
    }
}

/// Divides `rest` in whole units by weight. It takes several rounds, because a queue that needs less than its part leaves the rest of it
/// to the other queues. Within a round all parts are computed from the same budget, so the order of queues does not matter.
/// Returns the remainders by claim.
fn water_fill(
    rest: &mut i64,
    unit: i64,
    usage_weight: i64,
    claims: &[Claim<'_>],
    members: &[usize],
    fair: &mut [i64],
) -> Vec<(usize, Remainder)> {
    let mut remainders: Vec<(usize, Remainder)> = Vec::new();
    loop {
        let budget = i128::from(*rest);
        let unsatisfied: Vec<usize> = members
            .iter()
            .copied()
            .filter(|at| claims[*at].requestable > fair[*at])
            .collect();
        let weights = effective_weights(claims, &unsatisfied, usage_weight);
        let sum: i128 = weights.iter().sum();
        if sum == 0 {
            return remainders;
        }
        let mut has_surplus = false;
        for (at, weight) in unsatisfied.into_iter().zip(weights) {
            if *rest == 0 {
                break;
            }
            if claims[at].weight == 0 {
                continue;
            }
            let need = claims[at].requestable - fair[at];
            let part = Part::of(need, unit, budget * weight, sum);
            remainders.retain(|(of, _)| *of != at);
            remainders.extend(part.remainder.map(|remainder| (at, remainder)));
            fair[at] += part.give;
            *rest -= part.give;
            has_surplus |= part.leaves_surplus;
        }
        if !has_surplus || *rest == 0 {
            return remainders;
        }
    }
}

/// Weights corrected by historic usage: for a relative weight `w` and a usage `u`, `w + k (w - u)`, at least 0.
fn effective_weights(claims: &[Claim<'_>], unsatisfied: &[usize], usage_weight: i64) -> Vec<i128> {
    let plain: Vec<i128> = unsatisfied.iter().map(|at| i128::from(claims[*at].weight)).collect();
    let total: i128 = plain.iter().sum();
    if usage_weight <= 0 || total == 0 || unsatisfied.iter().all(|at| claims[*at].usage_billionths == 0) {
        return plain;
    }
    let k = i128::from(usage_weight);
    let corrected = plain.iter().zip(unsatisfied).map(|(weight, at)| {
        let usage = i128::from(claims[*at].usage_billionths);
        let weighted = weight * (1_000_000 + k) * 1_000 - k * usage * total / 1_000_000;
        if *weight == 0 { 0 } else { weighted.max(0) }
    });
    let mut corrected: Vec<i128> = corrected.collect();
    // Products of a weight, or of the sum of all weights, with a budget must fit 128 bits.
    let bits = |number: i128| 128 - number.leading_zeros();
    let largest = corrected.iter().max().copied().unwrap_or(0);
    let excess = bits(largest)
        .saturating_sub(60)
        .max(bits(corrected.iter().sum()).saturating_sub(63));
    corrected.iter_mut().for_each(|weight| *weight >>= excess);
    corrected
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Millis;

    const GPU: i64 = Gpus::ONE.0;

    /// `deserved weight request [limit] [priority] [usage%]` per queue, older first, against the expected shares.
    #[track_caller]
    fn check(total: f64, queues: &[&str], expect: &[f64]) {
        let gpus = |text: &str| (text.parse::<f64>().unwrap() * GPU as f64).round() as i64;
        let claims: Vec<Claim<'_>> = queues
            .iter()
            .enumerate()
            .map(|(at, text)| {
                let word: Vec<&str> = text.split_whitespace().collect();
                let limit = word.get(3).filter(|limit| **limit != "-").map(|limit| gpus(limit));
                let request = gpus(word[2]);
                Claim {
                    deserved: (word[0] != "-").then(|| gpus(word[0])),
                    weight: gpus(word[1]),
                    requestable: limit.map_or(request, |limit| limit.min(request)),
                    priority: word.get(4).map_or(100, |priority| priority.parse().unwrap()),
                    usage_billionths: word
                        .get(5)
                        .map_or(0, |usage| usage.parse::<i64>().unwrap() * 10_000_000),
                    tie_break: (Millis(at as i64), "", ""),
                }
            })
            .collect();
        let shares = divide(gpus(&total.to_string()), GPU, 1_000_000, &claims);
        let expect: Vec<i64> = expect.iter().map(|share| gpus(&share.to_string())).collect();
        assert_eq!(shares, expect);
    }

    #[test]
    fn fractions_are_compared_exactly_and_without_overflow() {
        let fractions = [(0, 5), (1, 3), (2, 6), (1, 2), (5, 7), (1, 1), (7, 5), (14, 10), (9, 2)];
        for (a, b) in fractions {
            for (c, d) in fractions {
                assert_eq!(
                    compare_fractions((a, b), (c, d)),
                    (a * d).cmp(&(c * b)),
                    "{a}/{b} {c}/{d}"
                );
            }
        }
        let (huge, large) = (i128::MAX / 3, i128::MAX / 2);
        assert_eq!(compare_fractions((huge, large), (huge - 1, large)), Ordering::Greater);
        assert_eq!(compare_fractions((huge, large), (huge, large - 1)), Ordering::Less);
    }

    #[test]
    fn deserved_first_then_by_weight() {
        check(8.0, &["2 1 10", "2 3 10"], &[3.0, 5.0]);
        check(15.0, &["2 1 2", "2 1 3"], &[2.0, 3.0]);
    }

    #[test]
    fn leftovers_go_to_the_larger_remainder_then_to_the_older_queue() {
        check(11.0, &["2 1 10", "2 4 10"], &[3.0, 8.0]);
        check(11.0, &["2 1 10", "2 1 10"], &[6.0, 5.0]);
        check(5.0, &["2 1 10", "2 1 10", "0 1 0"], &[3.0, 2.0, 0.0]);
    }

    #[test]
    fn priority_decides_before_weight_but_not_on_what_is_deserved() {
        check(11.0, &["2 100 10", "2 1 10 - 200"], &[2.0, 9.0]);
        check(3.0, &["2 1 10", "2 1 10 - 200"], &[2.0, 2.0]);
    }

    #[test]
    fn limits_cap_and_pass_on() {
        check(12.0, &["2 1 10 5", "2 1 6"], &[5.0, 6.0]);
    }

    #[test]
    fn guarantees_hold_even_when_over_subscribed() {
        check(1.0, &["2 1 2"], &[2.0]);
        check(8.0, &["1.5 0 9"], &[1.5]);
    }

    #[test]
    fn fractions_survive_only_at_the_end() {
        check(9.0, &["0 6 99", "0 2 99", "0 1 99"], &[6.0, 2.0, 1.0]);
        check(45.0, &["0 1 32.55", "0 1 9.5", "0 1 1.65"], &[32.55, 9.5, 1.65]);
        check(3.5, &["3 1 5"], &[3.5]);
    }

    #[test]
    fn unlimited_quota_is_everything_asked_for() {
        check(10.0, &["- 0 7", "0 1 9"], &[7.0, 3.0]);
    }

    #[test]
    fn past_usage_shifts_what_is_above_the_quota() {
        check(10.0, &["0 1 10 - 100 50", "0 1 10"], &[3.0, 7.0]);
        check(10.0, &["0 1 10 - 100 100", "0 1 10"], &[0.0, 10.0]);
    }

    #[test]
    fn without_weight_nothing_above_the_quota() {
        check(10.0, &["1 0 10", "1 0 10"], &[1.0, 1.0]);
    }
}
