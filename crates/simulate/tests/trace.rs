//! The published policies: compared arrival by arrival with a replay that shares no code with the engine, and with the published results
//! where their data is there.
#![allow(clippy::unwrap_used)] // The helpers are test code too.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kai_engine::model::PlacementStrategy;
use kai_engine::replay::{Policy, PublishedPolicy, Replay, TraceNode, TracePod};
use kai_simulate::trace::read::TraceFiles;
use kai_simulate::trace::{load_bound_percent, policy, replay};
use proptest::prelude::*;

/// The deterministic published policies.
const PUBLISHED: [(&str, PublishedPolicy); 5] = [
    ("BestFit", PublishedPolicy::BestFit),
    ("DotProd", PublishedPolicy::DotProduct),
    ("GpuPacking", PublishedPolicy::GpuPacking),
    ("GpuClustering", PublishedPolicy::GpuClustering),
    ("FGD", PublishedPolicy::Fgd),
];

/// A node of the plain replay.
#[derive(Clone)]
struct Plain {
    cpu: i64,
    memory: i64,
    model: String,
    gpus: Vec<i64>,
    /// The kinds of GPU pods on it: 0 = shares, else the number of GPUs.
    kinds: Vec<u32>,
}

impl Plain {
    fn fits(&self, pod: &TracePod) -> bool {
        let need = i64::from(pod.gpu_milli);
        let allowed = pod.models.is_empty() || pod.models.contains(&self.model);
        self.cpu >= pod.cpu_milli
            && self.memory >= pod.memory_mib
            && (pod.gpus == 0
                || (allowed && self.gpus.iter().filter(|free| **free >= need).count() >= pod.gpus as usize))
    }

    fn with(&self, pod: &TracePod, gpu: usize) -> Plain {
        let mut after = self.clone();
        after.cpu -= pod.cpu_milli;
        after.memory -= pod.memory_mib;
        if pod.gpus == 1 && pod.gpu_milli < 1000 {
            after.gpus[gpu] -= i64::from(pod.gpu_milli);
            after.kinds.push(0);
        } else if pod.gpus > 0 {
            let mut left = pod.gpus;
            for free in after.gpus.iter_mut().filter(|free| **free == 1000) {
                if left > 0 {
                    *free = 0;
                    left -= 1;
                }
            }
            after.kinds.push(pod.gpus);
        }
        after
    }

    fn fragments(&self, typical: &[(TracePod, f64)]) -> f64 {
        let all: i64 = self.gpus.iter().sum();
        // By reason, in the order in which the published simulator adds them up: the last bit decides ties.
        let [mut both, mut gpu, mut cpu, mut cpu_pod, mut cpu_pod_without, mut model] = [0.0; 6];
        for (pod, part) in typical {
            let need = i64::from(pod.gpu_milli);
            let small: i64 = self.gpus.iter().filter(|free| **free < need).sum();
            let has_gpus = self.gpus.iter().filter(|free| **free >= need).count() >= pod.gpus as usize;
            let allowed = pod.models.is_empty() || pod.models.contains(&self.model);
            let sum = match (pod.gpus > 0, allowed, has_gpus, self.cpu >= pod.cpu_milli) {
                (false, _, _, true) => &mut cpu_pod,
                (false, _, _, false) => &mut cpu_pod_without,
                (true, false, _, _) => &mut model,
                (true, true, false, false) => &mut both,
                (true, true, true, false) => &mut cpu,
                (true, true, false, true) => &mut gpu,
                (true, true, true, true) => {
                    gpu += part * small as f64;
                    continue;
                }
            };
            *sum += part * all as f64;
        }
        both + gpu + cpu + cpu_pod + cpu_pod_without + model
    }
}

/// The most frequent types of pods until they are 95 % of all.
fn typical(pods: &[TracePod]) -> Vec<(TracePod, f64)> {
    let mut counts: BTreeMap<(i64, u32, u32, String), (u32, TracePod)> = BTreeMap::new();
    for pod in pods {
        let key = (pod.cpu_milli, pod.gpu_milli, pod.gpus, pod.models.join("|"));
        counts.entry(key).or_insert((0, pod.clone())).0 += 1;
    }
    let mut types: Vec<_> = counts.into_iter().collect();
    types.sort_by(|(a, (count_a, _)), (b, (count_b, _))| (count_b, b).cmp(&(count_a, a)));
    let all = pods.len() as f64;
    let mut chosen = Vec::new();
    let mut sum = 0;
    for (_, (count, pod)) in types {
        if f64::from(sum) < 0.95 * pods.len() as f64 {
            sum += count;
            chosen.push((pod, f64::from(count)));
        }
    }
    chosen
        .into_iter()
        .map(|(pod, count)| (pod, count / all / (f64::from(sum) / all)))
        .collect()
}

/// The score of a node and the GPU for a pod that shares one, by the rules as they are published.
fn score(policy: PublishedPolicy, node: &Plain, pod: &TracePod, typical: &[(TracePod, f64)]) -> (i64, usize) {
    let shares = pod.gpus == 1 && pod.gpu_milli < 1000;
    let need = i64::from(pod.gpu_milli);
    let fitting: Vec<usize> = (0..node.gpus.len()).filter(|gpu| node.gpus[*gpu] >= need).collect();
    let tightest = fitting
        .iter()
        .copied()
        .min_by_key(|gpu| (node.gpus[*gpu], *gpu))
        .unwrap_or(0);
    let (left, all) = (node.gpus.iter().sum::<i64>(), i64::from(pod.gpus) * need);
    match policy {
        PublishedPolicy::Random => unreachable!("it has no scores"),
        PublishedPolicy::BestFit => {
            let (cpu, gpus) = ((node.cpu - pod.cpu_milli) as f64 / 128e3, (left - all) as f64 / 8e3);
            ((100.0 * (1.0 - (0.5 * cpu + 0.5 * gpus))) as i64, tightest)
        }
        PublishedPolicy::DotProduct => {
            let cpu = node.cpu as f64 / 128e3 * (pod.cpu_milli as f64 / 128e3);
            let gpus = left as f64 / 8e3 * (all as f64 / 8e3);
            ((100.0 * (1.0 - 0.5 * (cpu + gpus))) as i64, tightest)
        }
        PublishedPolicy::GpuPacking if pod.gpus == 0 => (0, 0),
        PublishedPolicy::GpuPacking => {
            let free = node.gpus.iter().filter(|free| **free == 1000).count() as i64;
            let mut chosen: Vec<i64> = fitting.iter().map(|gpu| node.gpus[*gpu]).collect();
            chosen.sort_unstable();
            chosen.truncate(pod.gpus as usize);
            let opened = chosen.iter().filter(|free| **free == 1000).count() as i64;
            let points = if free == node.gpus.len() as i64 {
                (33 - free).max(free)
            } else if opened > 0 {
                (50 - opened).max(33)
            } else {
                (100 - chosen.iter().map(|left| left / 10).sum::<i64>() / 10).max(50)
            };
            (points, tightest)
        }
        PublishedPolicy::GpuClustering if pod.gpus == 0 => (0, 0),
        PublishedPolicy::GpuClustering => {
            let base = 25 * (8000 - left) / 8000;
            let own = if shares { 0 } else { pod.gpus };
            let has = node.kinds.contains(&own);
            let points = match (has, node.kinds.iter().all(|kind| *kind == own)) {
                (true, true) => 75,
                (true, false) => 50,
                (false, _) if node.kinds.is_empty() => 25,
                (false, _) => 0,
            };
            (base + points, tightest)
        }
        PublishedPolicy::Fgd => {
            let before = node.fragments(typical);
            let points = |gpu: usize| {
                let shrinks = (before - node.with(pod, gpu).fragments(typical)) / 1000.0;
                (100.0 / (1.0 + (-shrinks).exp())) as i64
            };
            if !shares {
                return (points(0), 0);
            }
            let mut best = (-1, 0);
            for gpu in fitting {
                if points(gpu) > best.0 {
                    best = (points(gpu), gpu);
                }
            }
            best
        }
    }
}

/// Used thousandths and fragments after each arrival.
fn plain_replay(nodes: &[TraceNode], pods: &[TracePod], policy: PublishedPolicy) -> Vec<(i64, f64)> {
    let typical = typical(pods);
    let mut nodes: Vec<Plain> = nodes
        .iter()
        .map(|node| Plain {
            cpu: node.cpu_milli,
            memory: node.memory_mib,
            model: node.model.clone(),
            gpus: vec![1000; node.gpus as usize],
            kinds: Vec::new(),
        })
        .collect();
    let mut used = 0;
    let after = |pod: &TracePod| {
        let mut best: Option<(i64, usize, usize)> = None;
        for (at, node) in nodes.iter().enumerate().filter(|(_, node)| node.fits(pod)) {
            let (points, gpu) = score(policy, node, pod, &typical);
            if best.is_none_or(|(most, ..)| points > most) {
                best = Some((points, at, gpu));
            }
        }
        if let Some((_, at, gpu)) = best {
            nodes[at] = nodes[at].with(pod, gpu);
            used += i64::from(pod.gpus) * i64::from(pod.gpu_milli);
        }
        (used, nodes.iter().map(|node| node.fragments(&typical)).sum())
    };
    pods.iter().map(after).collect()
}

fn nodes() -> impl Strategy<Value = Vec<TraceNode>> {
    let node = (1u32..=8, 1i64..=4, prop::sample::select(vec!["A", "B"])).prop_map(|(gpus, cpu, model)| TraceNode {
        name: String::new(),
        cpu_milli: cpu * 8_000,
        memory_mib: 64_000,
        gpus,
        model: model.to_owned(),
    });
    prop::collection::vec(node, 1..8)
}

fn pods() -> impl Strategy<Value = Vec<TracePod>> {
    let gpus = prop_oneof![
        Just((0u32, 0u32)),
        prop::sample::select(vec![110u32, 250, 470, 500, 810]).prop_map(|milli| (1, milli)),
        prop::sample::select(vec![1u32, 2, 4, 8]).prop_map(|gpus| (gpus, 1000)),
    ];
    let models = prop::sample::select(vec![vec![], vec![], vec!["A"], vec!["B", "A", "A"]]);
    let pod = (gpus, 1i64..=6, models).prop_map(|((gpus, gpu_milli), cpu, models)| TracePod {
        cpu_milli: cpu * 1_500,
        memory_mib: cpu * 4_000,
        gpus,
        gpu_milli,
        models: if gpus == 0 {
            Vec::new()
        } else {
            models.into_iter().map(str::to_owned).collect()
        },
    });
    prop::collection::vec(pod, 1..60)
}

/// Used thousandths and fragments after each arrival, by the engine.
fn engine_replay(nodes: &[TraceNode], pods: &[TracePod], policy: Policy) -> Vec<(i64, f64)> {
    let mut replay = Replay::new(nodes, pods, policy, 1);
    let after = |pod: &TracePod| {
        replay.place(pod);
        (replay.used_milli(), replay.fragmented_milli())
    };
    pods.iter().map(after).collect()
}

proptest! {
    #[test]
    fn published_policies_place_as_their_rules_say(nodes in nodes(), pods in pods()) {
        for (name, policy) in PUBLISHED {
            let expect = plain_replay(&nodes, &pods, policy);
            let found = engine_replay(&nodes, &pods, Policy::Published(policy));
            for (at, (expect, found)) in expect.into_iter().zip(found).enumerate() {
                let is_same = expect.0 == found.0 && (expect.1 - found.1).abs() < 1e-6;
                prop_assert!(is_same, "{name}, arrival {at}: {found:?}, by the rules {expect:?}");
            }
        }
    }

    #[test]
    fn every_policy_places_what_fits_and_no_more(nodes in nodes(), pods in pods()) {
        use PlacementStrategy::{Binpack, Frag, Spread};
        let policies = [Binpack, Spread, Frag].map(Policy::Engine);
        for policy in policies.into_iter().chain([Policy::FragLearned, Policy::Published(PublishedPolicy::Random)]) {
            let once = engine_replay(&nodes, &pods, policy);
            prop_assert_eq!(&once, &engine_replay(&nodes, &pods, policy), "a second run differs");
            let capacity: i64 = nodes.iter().map(|node| i64::from(node.gpus) * 1000).sum();
            prop_assert!(once.iter().all(|(used, _)| *used <= capacity));
            // The first pod finds empty nodes.
            let empty = Plain { cpu: 0, memory: 0, model: String::new(), gpus: Vec::new(), kinds: Vec::new() };
            let fits = nodes.iter().any(|node| {
                let gpus = vec![1000; node.gpus as usize];
                Plain { cpu: node.cpu_milli, memory: node.memory_mib, model: node.model.clone(), gpus, ..empty.clone() }.fits(&pods[0])
            });
            prop_assert_eq!(once[0].0, if fits { pods[0].gpu_milli_in_all() } else { 0 });
        }
    }
}

/// The folder of the published data; `None` = it is not there. `KAI_TRACE_DATA` names another one.
fn data() -> Option<PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/openb");
    let folder = std::env::var_os("KAI_TRACE_DATA").map_or_else(|| PathBuf::from(beside), PathBuf::from);
    let is_there = folder.join("expected.csv").exists();
    if !is_there {
        eprintln!(
            "skipped: {} is not there; KAI_TRACE_DATA names the folder with the published data",
            folder.display()
        );
    }
    is_there.then_some(folder)
}

/// The order of the default trace with seed 42; `KAI_TRACES=all` runs all that are there.
#[test]
fn published_results_are_reproduced() {
    let Some(folder) = data() else { return };
    let all = std::env::var_os("KAI_TRACES").is_some_and(|traces| traces == "all");
    let expected = std::fs::read_to_string(folder.join("expected.csv")).unwrap();
    let mut compared = 0;
    for line in expected.lines().skip(1) {
        let values: Vec<&str> = line.split(',').collect();
        let (name, seed) = (values[0], values[1].parse().unwrap());
        if !all && (name, seed) != ("default", 42) {
            continue;
        }
        let Ok(files) = TraceFiles::in_folder(&folder, name, seed) else {
            continue;
        };
        let trace = files.read(name.to_owned(), seed).unwrap();
        let (_, published) = PUBLISHED.into_iter().find(|(known, _)| *known == values[2]).unwrap();
        let outcome = replay(&trace, Policy::Published(published), &mut |_| {});
        for (load, expect) in [80, 90, 95, 100, 110, 120, 130].into_iter().zip(&values[3..]) {
            let expect: f64 = expect.parse().unwrap();
            let found = outcome.curve.at(load).unwrap().allocation_percent;
            assert!((found - expect).abs() < 0.0101, "{line}: {found} at {load}");
        }
        compared += 1;
    }
    assert!(compared >= 5, "{compared} results compared");
}

#[test]
fn frag_allocates_more_than_the_best_published_policy() {
    let Some(folder) = data() else { return };
    let trace = TraceFiles::in_folder(&folder, "default", 42).unwrap();
    let trace = trace.read("default".to_owned(), 42).unwrap();
    let allocation = |name: &str| {
        let outcome = replay(&trace, policy(name).unwrap(), &mut |_| {});
        outcome.curve.at(130).unwrap().allocation_percent
    };
    // FGD has 95.29.
    let found = [allocation("frag"), allocation("frag-learned")];
    assert!(found.iter().all(|allocation| *allocation > 96.0), "{found:?}");
    let bound = load_bound_percent(&trace).unwrap();
    assert!((96.0..97.0).contains(&bound), "{bound}");
}
