//! Compares the result of a cycle with the expectation of a case.

use std::collections::BTreeMap;

use kai_engine::model::{GangKey, GangSpec, GpuRequest, PodKind};
use kai_engine::report::Status;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::outcome::PodOutcome;
use crate::run::CycleResult;
use crate::scenario::{Expectation, ExpectedNode, ExpectedTotals, Scenario};

/// The differences, one line each, without the name of the case.
pub(crate) fn differences(result: &CycleResult, scenario: &Scenario) -> Vec<String> {
    let Some(expectation) = &scenario.expectation else {
        return Vec::new();
    };
    let mut found = Vec::new();
    check_pods(result, expectation, &mut found);
    for (name, expected) in &expectation.nodes {
        check_node(result, name, expected, &mut found);
    }
    check_totals(result, &expectation.totals, &mut found);
    if expectation.totals.gang_atomic == Some(true) {
        check_gangs(result, &mut found);
    }
    found
}

fn check_pods(result: &CycleResult, expectation: &Expectation, found: &mut Vec<String>) {
    let mut by_name: FxHashMap<&str, &PodOutcome> = FxHashMap::default();
    if !expectation.pods.is_empty() {
        by_name = result.pods.iter().map(|pod| (pod.name.as_str(), pod)).collect();
    }
    for (name, expected) in &expectation.pods {
        let qualified = || {
            let (namespace, name) = name.split_once('/')?;
            result
                .pods
                .iter()
                .find(|pod| pod.namespace == namespace && pod.name == name)
        };
        let Some(pod) = by_name.get(name.as_str()).copied().or_else(qualified) else {
            found.push(format!(
                "pod {name}: expected {}, but there is no such pod",
                expected.status
            ));
            continue;
        };
        let got = pod.status.name();
        let because = pod
            .reason
            .as_ref()
            .map_or(String::new(), |reason| format!(" ({reason})"));
        if got != expected.status {
            let on = pod.node.as_ref().map_or(String::new(), |node| format!(" on {node}"));
            found.push(format!(
                "pod {name}: expected {}, got {got}{on}{because}",
                expected.status
            ));
        } else if let Some(node) = &expected.node
            && pod.node.as_ref() != Some(node)
        {
            let on = pod.node.as_deref().unwrap_or("no node");
            found.push(format!("pod {name}: expected {got} on {node}, got it on {on}"));
        } else if let Some(words) = &expected.reason
            && !pod
                .reason
                .as_ref()
                .is_some_and(|reason| reason.contains(words.as_str()))
        {
            let got = pod.reason.as_deref().unwrap_or("none");
            found.push(format!("pod {name}: expected the reason {words:?}, got {got:?}"));
        }
    }
}

/// The whole GPUs of a node, counted from pods, independently of the engine's accounting.
#[derive(Debug, Default)]
struct WholeGpus {
    idle: i64,
    releasing: i64,
    /// GPU groups, each with whether all of its pods are terminating.
    groups: BTreeMap<String, bool>,
}

fn check_node(result: &CycleResult, name: &str, expected: &ExpectedNode, found: &mut Vec<String>) {
    let Some(node) = result.nodes.iter().find(|node| node.name == name) else {
        found.push(format!("node {name}: there is no such node"));
        return;
    };
    let mut whole = WholeGpus {
        idle: node.gpus,
        ..WholeGpus::default()
    };
    for view in &result.views {
        let Some(pod) = result.simulated.pod(view.uid) else {
            continue;
        };
        if pod.kind == PodKind::Reservation {
            continue;
        }
        let moved = view.status == Status::Pipelined && result.evicted.contains(view.uid);
        if moved && pod.node.as_deref() == Some(name) {
            whole.take(&pod.requests.gpu, &pod.gpu_groups, Status::Releasing);
        }
        if view.node == Some(name) {
            whole.take(&pod.requests.gpu, &view.gpu_groups, view.status);
        }
    }
    let leaving = whole.groups.values().filter(|leaving| **leaving).count() as i64;
    let (idle, releasing) = (whole.idle - whole.groups.len() as i64, whole.releasing + leaving);
    let parts = [
        ("idle", expected.idle_gpus, idle),
        ("releasing", expected.releasing_gpus, releasing),
    ];
    for (what, expected, got) in parts {
        if let Some(expected) = expected
            && expected != got
        {
            found.push(format!("node {name}: expected {expected} {what} GPUs, got {got}"));
        }
    }
}

impl WholeGpus {
    fn take(&mut self, request: &GpuRequest, groups: &[String], status: Status) {
        let leaving = match status {
            Status::Releasing => true,
            Status::Binding | Status::Bound | Status::Running | Status::StuckInReleasing => false,
            Status::Pipelined => {
                if let GpuRequest::Whole { devices } = request {
                    self.releasing -= devices;
                }
                return;
            }
            Status::Pending | Status::Gated | Status::Succeeded | Status::Failed | Status::Unknown => return,
        };
        match request {
            GpuRequest::Whole { devices } => {
                self.idle -= devices;
                self.releasing += if leaving { *devices } else { 0 };
            }
            GpuRequest::Fraction { .. } | GpuRequest::Memory { .. } => {
                for group in groups {
                    let all = self.groups.entry(group.clone()).or_insert(true);
                    *all = *all && leaving;
                }
            }
            GpuRequest::None | GpuRequest::Mig { .. } => {}
        }
    }
}

fn check_totals(result: &CycleResult, expected: &ExpectedTotals, found: &mut Vec<String>) {
    let totals = &result.totals;
    let exact = [
        ("bound", expected.bound, totals.bound),
        ("pipelined", expected.pipelined, totals.pipelined),
        ("evicted", expected.evicted, totals.evicted),
    ];
    for (what, expected, got) in exact {
        if let Some(expected) = expected
            && expected != got
        {
            found.push(format!("totals: expected {expected} {what}, got {got}"));
        }
    }
    if let Some(max) = expected.bound_max
        && totals.bound > max
    {
        found.push(format!("totals: expected at most {max} bound, got {}", totals.bound));
    }
}

/// The number of pods of a gang that must have a node if any has.
pub(crate) fn gang_minimum(gang: &GangSpec) -> u32 {
    let parents: FxHashSet<&str> = gang
        .sub_groups
        .iter()
        .filter_map(|group| group.parent.as_deref())
        .collect();
    let leaves = gang
        .sub_groups
        .iter()
        .filter(|group| !parents.contains(group.name.as_str()));
    match gang.sub_groups.is_empty() {
        true => gang.min_member,
        false if gang.min_sub_group.is_none() => {
            leaves.fold(0, |sum: u32, leaf| sum.saturating_add(leaf.min_member.unwrap_or(0)))
        }
        // With `minSubGroup` some subgroups may be absent, so the only certain minimum is one pod.
        false => 1,
    }
}

fn check_gangs(result: &CycleResult, found: &mut Vec<String>) {
    let mut placed: FxHashMap<&GangKey, u32> = FxHashMap::default();
    for view in &result.views {
        let has_place = matches!(
            view.status,
            Status::Binding | Status::Bound | Status::Running | Status::Pipelined
        );
        if let Some(gang) = view.gang.filter(|_| has_place) {
            *placed.entry(gang).or_default() += 1;
        }
    }
    for (gang, minimum) in result.simulated.gang_minimums() {
        match placed.get(gang) {
            Some(count) if *count < minimum => {
                found.push(format!(
                    "gang {gang}: {count} pods have a place, {minimum} must or none"
                ));
            }
            _ => {}
        }
    }
}
