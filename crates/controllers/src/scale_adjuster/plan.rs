//! Which scaling pods have to go, and which are missing. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kai_api::{ConditionStatus, ObjectKey, Pod, PodCondition};
use kai_engine::model::Constraints;

use super::scaling_pod;
use super::waiting::WaitingPod;

/// Scaling pods at a time. An autoscaler needs minutes for a node, and the adjuster adds more when these are done.
const SCALING_PODS_MAX: usize = 100;
const BILLION: i64 = 1_000_000_000;

/// A scaling pod in the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ScalingPod {
    pub(super) name: String,
    pub(super) uid: Option<String>,
    /// The pod that it was created for.
    pub(super) origin: Option<ObjectKey>,
    pub(super) gpus: i64,
    pub(super) progress: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It has no node, and says so in a condition, which autoscalers look for.
    Unschedulable,
    /// It has no node, and no condition yet.
    Fresh,
    /// It has a node or has ended: an autoscaler has nothing to do for it any more.
    Done,
    /// It is being deleted.
    Leaving,
}

impl ScalingPod {
    pub(super) fn of(pod: &Pod) -> ScalingPod {
        let is_unschedulable = |condition: &PodCondition| condition.status == ConditionStatus::False;
        let progress = if pod.is_terminating() {
            Progress::Leaving
        } else if pod.node_name().is_some() || kai_api::Object::is_terminal(pod) {
            Progress::Done
        } else if pod.condition(PodCondition::SCHEDULED).is_some_and(is_unschedulable) {
            Progress::Unschedulable
        } else {
            Progress::Fresh
        };
        let milli = pod.requests_milli();
        ScalingPod {
            name: pod.metadata.plain_name().to_owned(),
            uid: pod.metadata.uid.as_deref().map(str::to_owned),
            origin: pod.scaling_origin(),
            gpus: milli.get(kai_api::keys::RESOURCE_GPU).map_or(0, |milli| milli / 1000),
            progress,
        }
    }

    /// Whether the pod still makes an autoscaler act for a pod that waits.
    pub(super) fn is_needed(&self, waiting: &[WaitingPod]) -> bool {
        let waits = |origin: &ObjectKey| waiting.iter().any(|pod| pod.key == *origin);
        match self.progress {
            Progress::Unschedulable | Progress::Fresh => self.origin.as_ref().is_some_and(waits),
            Progress::Done | Progress::Leaving => false,
        }
    }
}

/// A scaling pod to create for a waiting pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Missing<'a> {
    pub(super) name: String,
    pub(super) origin: &'a WaitingPod,
}

/// The pods that may run on the same nodes.
#[derive(Debug, Default)]
struct Alike<'a> {
    pods: Vec<&'a WaitingPod>,
    billionths: i64,
    /// Shares of more than half a GPU, of which a GPU holds one.
    large: i64,
}

impl Alike<'_> {
    /// At least these many GPUs hold the shares. Once they are there, pods that still wait get further ones.
    fn gpus_needed(&self) -> i64 {
        (self.billionths.saturating_add(BILLION - 1) / BILLION).max(self.large)
    }
}

/// The scaling pods that are missing. `present` are those that are needed, and those that leave, whose names are taken.
pub(super) fn missing<'a>(waiting: &'a [WaitingPod], present: &[ScalingPod]) -> Vec<Missing<'a>> {
    let active = || present.iter().filter(|pod| pod.progress != Progress::Leaving);
    let gpus_for: BTreeMap<&ObjectKey, i64> = active()
        .filter_map(|pod| Some((pod.origin.as_ref()?, pod.gpus)))
        .collect();
    let mut names: BTreeSet<String> = present.iter().map(|pod| pod.name.clone()).collect();
    let mut room = SCALING_PODS_MAX.saturating_sub(active().count());
    let mut missing = Vec::new();
    for alike in alike(waiting) {
        let present = || alike.pods.iter().filter_map(|pod| gpus_for.get(&pod.key).copied());
        let (mut asked, mut most) = (present().sum::<i64>(), present().max().unwrap_or(0));
        let needed = alike.gpus_needed();
        for pod in alike.pods {
            let is_enough = needed <= asked && pod.gpus <= most;
            if is_enough || room == 0 || gpus_for.contains_key(&pod.key) {
                continue;
            }
            let Some(name) = scaling_pod::names(&pod.key)
                .into_iter()
                .find(|name| !names.contains(name))
            else {
                continue;
            };
            names.insert(name.clone());
            (asked, most, room) = (asked + pod.gpus, most.max(pod.gpus), room - 1);
            missing.push(Missing { name, origin: pod });
        }
    }
    missing
}

/// The pods by their constraints. The pods of a set that need most come first: the scaling pod of the first one has to fit a node that the
/// others fit too. Sets are in the order of their oldest pods.
fn alike(waiting: &[WaitingPod]) -> Vec<Alike<'_>> {
    let mut order: Vec<&WaitingPod> = waiting.iter().collect();
    order.sort_by_key(|pod| (pod.created, pod.key.clone()));
    let mut sets: Vec<Alike<'_>> = Vec::new();
    let mut at: HashMap<&Constraints, usize> = HashMap::new();
    for pod in order {
        let at = *at.entry(&pod.constraints).or_insert_with(|| {
            sets.push(Alike::default());
            sets.len() - 1
        });
        let set = &mut sets[at];
        set.pods.push(pod);
        set.billionths = set
            .billionths
            .saturating_add(pod.share_billionths.saturating_mul(pod.gpus));
        if pod.share_billionths > BILLION / 2 {
            set.large = set.large.saturating_add(pod.gpus);
        }
    }
    for set in &mut sets {
        // The sort is stable: among equals the oldest comes first.
        let size = |pod: &WaitingPod| (pod.gpus, pod.share_billionths, pod.cpu_milli, pod.memory_bytes);
        set.pods.sort_by_key(|pod| std::cmp::Reverse(size(pod)));
    }
    sets
}

#[cfg(test)]
mod tests {
    use kai_engine::model::Millis;
    use proptest::prelude::*;

    use super::*;

    fn pod(name: &str, share: f64, gpus: i64, pool: &str) -> WaitingPod {
        WaitingPod {
            key: ObjectKey::new("a", name),
            created: Millis(0),
            share_billionths: (share * 1e9) as i64,
            gpus,
            cpu_milli: 0,
            memory_bytes: 0,
            constraints: Constraints {
                node_selector: vec![("pool".to_owned(), pool.to_owned())],
                ..Constraints::default()
            },
        }
    }

    fn scaling(origin: &str, gpus: i64, progress: Progress) -> ScalingPod {
        ScalingPod {
            name: format!("a-{origin}"),
            uid: None,
            origin: Some(ObjectKey::new("a", origin)),
            gpus,
            progress,
        }
    }

    fn check(waiting: &[WaitingPod], present: &[ScalingPod], expect: &[&str]) {
        let names: Vec<String> = missing(waiting, present)
            .into_iter()
            .map(|missing| missing.name)
            .collect();
        assert_eq!(names, expect, "{waiting:?} {present:?}");
    }

    #[test]
    fn pods_that_share_a_gpu_need_one_scaling_pod() {
        let two = [pod("x", 0.5, 1, ""), pod("y", 0.5, 1, "")];
        check(&two, &[], &["a-x"]);
        check(&two, &[scaling("y", 1, Progress::Unschedulable)], &[]);
        check(
            &[pod("x", 0.5, 1, ""), pod("y", 0.5, 1, ""), pod("z", 0.1, 1, "")],
            &[],
            &["a-x", "a-y"],
        );
    }

    #[test]
    fn two_large_shares_need_two_gpus() {
        check(
            &[pod("x", 0.6, 1, ""), pod("y", 0.6, 1, ""), pod("z", 0.6, 1, "")],
            &[],
            &["a-x", "a-y", "a-z"],
        );
    }

    #[test]
    fn pods_for_other_nodes_need_scaling_pods_of_their_own() {
        check(&[pod("x", 0.3, 1, "a"), pod("y", 0.3, 1, "b")], &[], &["a-x", "a-y"]);
    }

    #[test]
    fn a_pod_with_several_gpus_needs_a_node_with_as_many() {
        let pods = [pod("x", 0.1, 1, ""), pod("y", 0.1, 4, "")];
        check(&pods, &[], &["a-y"]);
        check(&pods, &[scaling("x", 1, Progress::Unschedulable)], &["a-y"]);
    }

    #[test]
    fn names_that_are_taken_are_not_used_twice() {
        let mut other = pod("c", 0.6, 1, "");
        other.key = ObjectKey::new("a-b", "c");
        let mut same = pod("b-c", 0.6, 1, "");
        same.key = ObjectKey::new("a", "b-c");
        let pods = [other, same];
        let found = missing(&pods, &[]);
        assert_eq!(found.len(), 2);
        assert_ne!(found[0].name, found[1].name);
        // A pod of this name is still leaving.
        let pods = [pod("x", 0.5, 1, "")];
        let found = missing(&pods, &[scaling("x", 1, Progress::Leaving)]);
        assert!(found.len() == 1 && found[0].name != "a-x", "{found:?}");
    }

    #[test]
    fn a_scaling_pod_is_needed_while_it_and_its_pod_wait() {
        let waiting = [pod("x", 0.5, 1, "")];
        for (origin, progress, needed) in [
            ("x", Progress::Unschedulable, true),
            ("x", Progress::Fresh, true),
            ("x", Progress::Done, false),
            ("x", Progress::Leaving, false),
            ("gone", Progress::Unschedulable, false),
        ] {
            assert_eq!(
                scaling(origin, 1, progress).is_needed(&waiting),
                needed,
                "{origin} {progress:?}"
            );
        }
    }

    proptest! {
        /// Scaling pods ask for enough GPUs and for no more than each waiting pod would need alone; asking again adds nothing.
        #[test]
        fn asked_once_for_enough(pods in proptest::collection::vec((1i64..=20, 1i64..=3, 0u8..3), 0..30)) {
            let waiting: Vec<WaitingPod> = pods
                .iter()
                .enumerate()
                .map(|(at, (share, gpus, pool))| pod(&format!("p{at}"), *share as f64 / 20.0, *gpus, &pool.to_string()))
                .collect();
            let found = missing(&waiting, &[]);
            let present: Vec<ScalingPod> = found
                .iter()
                .map(|missing| scaling(&missing.origin.key.name, missing.origin.gpus, Progress::Unschedulable))
                .collect();
            prop_assert_eq!(missing(&waiting, &present), vec![]);
            for pool in 0..3 {
                let of_pool = |pod: &&WaitingPod| pod.constraints.node_selector[0].1 == pool.to_string();
                let billionths: i64 = waiting.iter().filter(of_pool).map(|pod| pod.share_billionths * pod.gpus).sum();
                let alone: i64 = waiting.iter().filter(of_pool).map(|pod| pod.gpus).sum();
                let asked: i64 = found.iter().map(|missing| missing.origin).filter(of_pool).map(|pod| pod.gpus).sum();
                prop_assert!(asked * BILLION >= billionths && asked <= alone, "{} of {}", asked, alone);
            }
        }

        #[test]
        fn there_are_never_too_many(count in 0usize..300) {
            let waiting: Vec<WaitingPod> = (0..count).map(|at| pod(&format!("p{at}"), 0.9, 1, "")).collect();
            prop_assert_eq!(missing(&waiting, &[]).len(), count.min(SCALING_PODS_MAX));
        }
    }
}
