//! Invariants of a settled cluster: all controllers have handled the last change.

use std::collections::{BTreeMap, BTreeSet};

use kai_api::{ConditionStatus, PodCondition, keys};
use kai_engine::model::Millis;

use super::state::State;
use super::{Snapshot, Violation};

/// The relative tolerance for a queue's status: the scheduler rounds GPU memory.
const ROUNDING: f64 = 0.01;

pub(super) fn check(snapshot: &Snapshot, state: &State, found: &mut Vec<Violation>) {
    check_gangs(snapshot, state, found);
    check_pending_reasons(snapshot, found);
    check_reservations(snapshot, state, found);
    check_queue_usage(snapshot, state, found);
}

/// The status of a queue equals the GPUs of its pods, including those of its child queues.
fn check_queue_usage(snapshot: &Snapshot, state: &State, found: &mut Vec<Violation>) {
    let used = state.gpus_by_queue(|_| true);
    for queue in &snapshot.queues {
        let name = queue.metadata.plain_name();
        let used = used.get(name).copied().unwrap_or(0.0);
        let said = queue.status().allocated.get(keys::RESOURCE_GPU);
        let said = said.map_or(0.0, |quantity| units(quantity.as_str()));
        if (used - said).abs() > ROUNDING * (1.0 + used) {
            found.push(Violation(format!(
                "queue {name} says that {said:.3} GPUs are in use, its pods have {used:.3}"
            )));
        }
    }
}

/// A quantity in units. GPUs have no other suffixes.
fn units(text: &str) -> f64 {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'n')) => (&text[..at], 1e-9),
        Some((at, 'u')) => (&text[..at], 1e-6),
        Some((at, 'm')) => (&text[..at], 1e-3),
        Some(_) | None => (text, 1.0),
    };
    digits.parse::<f64>().map_or(f64::INFINITY, |number| number * unit)
}

/// A gang runs with at least its minimum, or not at all. A gang of which a pod has succeeded is finishing and may run with fewer.
fn check_gangs(snapshot: &Snapshot, state: &State, found: &mut Vec<Violation>) {
    let mut active: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for pod in state.bound().filter(|pod| !pod.terminating) {
        if let Some(gang) = &pod.spec.gang {
            *active.entry((&gang.namespace, &gang.name)).or_default() += 1;
        }
    }
    let succeeded = snapshot.succeeded_pods.iter();
    let finishing: BTreeSet<(&str, &str)> = succeeded
        .filter_map(|pod| Some((pod.metadata.namespace(), pod.pod_group()?)))
        .collect();
    for group in &snapshot.pod_groups {
        let (namespace, name) = (group.metadata.namespace(), group.metadata.plain_name());
        let Ok(read) = group.read(&kai_api::PriorityClasses::default(), Millis(0)) else {
            continue;
        };
        let min = read.value.min_member;
        let running = active.get(&(namespace, name)).copied().unwrap_or(0);
        // The minima of subgroups are checked by the tests that use them.
        let is_below = running > 0 && running < min && !finishing.contains(&(namespace, name));
        if read.value.sub_groups.is_empty() && is_below {
            found.push(Violation(format!(
                "gang {namespace}/{name} runs with {running} pods, its minimum is {min}"
            )));
        }
    }
}

/// Every pod of our scheduler without a node has a reason.
fn check_pending_reasons(snapshot: &Snapshot, found: &mut Vec<Violation>) {
    let bound: BTreeSet<(&str, &str)> = snapshot
        .bind_requests
        .iter()
        .map(|request| (request.metadata.namespace(), request.pod_name()))
        .collect();
    for pod in &snapshot.pods {
        let ours = pod.scheduler_name() == keys::SCHEDULER_NAME;
        let waits = pod.node_name().is_none() && pod.metadata.deletion_timestamp.is_none();
        let in_flight = bound.contains(&(pod.metadata.namespace(), pod.metadata.plain_name()));
        if !ours || !waits || in_flight || pod.pod_group().is_none() {
            continue;
        }
        let has_reason = pod
            .condition(PodCondition::SCHEDULED)
            .is_some_and(|condition| condition.status == ConditionStatus::False);
        if !has_reason && pod.scheduling_gates() == 0 {
            found.push(Violation(format!(
                "pod {} waits and does not say why",
                pod.metadata.qualified_name()
            )));
        }
    }
}

/// Each GPU group in use has exactly one reservation pod, and each reservation pod has a user.
fn check_reservations(snapshot: &Snapshot, state: &State, found: &mut Vec<Violation>) {
    let mut held: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for pod in state.bound().filter(|pod| pod.is_reservation && !pod.terminating) {
        if let Some(group) = &pod.group {
            *held.entry((&pod.node, group)).or_default() += 1;
        }
    }
    let mut used: BTreeSet<(&str, &str)> = BTreeSet::new();
    for pod in state.bound().filter(|pod| !pod.is_reservation) {
        used.extend(pod.spec.gpu_groups.iter().map(|group| (&*pod.node, &**group)));
    }
    for request in &snapshot.bind_requests {
        used.extend(
            request
                .gpu_groups()
                .iter()
                .map(|group| (request.selected_node(), &**group)),
        );
    }
    for ((node, group), count) in &held {
        if *count > 1 {
            found.push(Violation(format!(
                "{count} reservation pods hold group {group} on node {node}"
            )));
        }
        if !used.contains(&(*node, *group)) {
            found.push(Violation(format!(
                "a reservation pod holds group {group} on node {node} for nobody"
            )));
        }
    }
    let users = state.bound().filter(|pod| !pod.is_reservation && !pod.terminating);
    for pod in users {
        for group in &pod.spec.gpu_groups {
            if !held.contains_key(&(&*pod.node, group)) {
                found.push(Violation(format!(
                    "pod {} shares group {group} on node {}, which no reservation pod holds",
                    pod.name(),
                    pod.node
                )));
            }
        }
    }
}
