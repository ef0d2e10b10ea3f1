//! Compares the outcomes of an original and its redacted form: the law of this module, checked for each file that is written.

use std::collections::BTreeMap;

use super::names::{NameClass, Replacements};
use crate::outcome::{NodeOutcome, Outcome, PodOutcome, QueueOutcome};

/// The beginning of entries that count pods; no name has a space.
const COUNTED: &str = "of ";
/// Differences that a message lists.
const DIFFERENCES_MAX: usize = 10;

/// What the redacted input decides otherwise than the original, in words with the redacted names.
pub fn redaction_differences(original: &Outcome, redacted: &Outcome, names: &Replacements) -> Vec<String> {
    let mut found = Vec::new();
    if original.totals != redacted.totals {
        found.push(format!("totals: {:?} became {:?}", original.totals, redacted.totals));
    }
    let before = pods(original, Some(names));
    // The original has no names for pods that were created from workloads.
    let mut after = pods(redacted, None);
    after.retain(|pod, _| pod.starts_with(COUNTED) || before.contains_key(pod));
    compare(&mut found, "pod", before, after);
    compare(
        &mut found,
        "queue",
        queues(original, Some(names)),
        queues(redacted, None),
    );
    compare(&mut found, "node", nodes(original, Some(names)), nodes(redacted, None));
    let more = found.len().saturating_sub(DIFFERENCES_MAX);
    found.truncate(DIFFERENCES_MAX);
    if more > 0 {
        found.push(format!("and {more} more"));
    }
    found
}

fn compare(
    found: &mut Vec<String>,
    what: &str,
    original: BTreeMap<String, String>,
    redacted: BTreeMap<String, String>,
) {
    let names: std::collections::BTreeSet<&String> = original.keys().chain(redacted.keys()).collect();
    let none = "nothing".to_owned();
    for name in names {
        let (before, after) = (original.get(name).unwrap_or(&none), redacted.get(name).unwrap_or(&none));
        if before != after {
            found.push(format!("{what} {name}: {before} became {after}"));
        }
    }
}

fn name(names: Option<&Replacements>, class: NameClass, name: &str) -> String {
    names.map_or_else(|| name.to_owned(), |names| names.of(class, name))
}

fn pods(outcome: &Outcome, names: Option<&Replacements>) -> BTreeMap<String, String> {
    // Names of pods that were created from workloads differ; they are compared by what becomes of them.
    let is_written = |pod: &PodOutcome| names.is_none_or(|names| names.contains(NameClass::Pod, &pod.name));
    let mut described = BTreeMap::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for pod in &outcome.pods {
        let namespace = name(names, NameClass::Namespace, &pod.namespace);
        let node = pod.node.as_deref().map(|node| name(names, NameClass::Node, node));
        let state = format!("{} on {}", pod.status.name(), node.as_deref().unwrap_or("no node"));
        *counts.entry(format!("{COUNTED}{namespace} {state}")).or_default() += 1;
        if is_written(pod) {
            described.insert(format!("{namespace}/{}", name(names, NameClass::Pod, &pod.name)), state);
        }
    }
    described.extend(counts.into_iter().map(|(state, count)| (state, count.to_string())));
    described
}

fn queues(outcome: &Outcome, names: Option<&Replacements>) -> BTreeMap<String, String> {
    let describe = |queue: &QueueOutcome| {
        let parent = queue
            .parent
            .as_deref()
            .map(|parent| name(names, NameClass::Queue, parent));
        let state = format!("{parent:?} {:?} {:?} {:?}", queue.gpu, queue.cpu, queue.memory);
        (name(names, NameClass::Queue, &queue.name), state)
    };
    outcome.queues.iter().map(describe).collect()
}

fn nodes(outcome: &Outcome, names: Option<&Replacements>) -> BTreeMap<String, String> {
    let describe = |node: &NodeOutcome| {
        // Not the order of shared GPUs: new GPU groups are named after uids.
        let gpus = node.devices.len();
        let state = format!("{:?} {gpus} {:?} {:?}", node.ready, node.idle_gpus, node.releasing_gpus);
        (name(names, NameClass::Node, &node.name), state)
    };
    outcome.nodes.iter().map(describe).collect()
}
