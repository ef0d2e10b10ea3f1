//! Loads and runs random trees of subgroups: deep, wide, with loops, with missing, duplicate or self-referring parents, and with pods in
//! some of them. Nothing may panic, and every cycle must end.
//! `KAI_FUZZ_SECONDS=600 cargo test -p kai-simulate --test fuzz_pod_groups -- --ignored` runs for ten minutes.

use std::path::Path;

use kai_fuzz::{Fuzz, Random};
use kai_simulate::run::Options;
use kai_simulate::scenario::load_case;
use serde_json::{Value, json};

/// Subgroups per pod group: enough for deep and wide trees. The API allows more.
const SUB_GROUPS_MAX: usize = 200;
const PODS_MAX: usize = 12;

/// The shape of the tree.
#[derive(Clone, Copy)]
enum Shape {
    Chain,
    Star,
    Forest,
    Loop,
    Anything,
}

fn tree(random: &mut Random) -> Value {
    let shape = *random.pick(&[Shape::Chain, Shape::Star, Shape::Forest, Shape::Loop, Shape::Anything]);
    let count = match random.below(4) {
        0 => random.below(SUB_GROUPS_MAX),
        _ => random.below(8),
    };
    let name = |at: usize| format!("g{at}");
    let sub_groups: Vec<Value> = (0..count)
        .map(|at| {
            let parent = match shape {
                Shape::Chain => at.checked_sub(1),
                Shape::Star => (at > 0).then_some(0),
                Shape::Forest => (at > 0 && random.chance(80)).then(|| random.below(at)),
                Shape::Loop => Some((at + 1) % count),
                Shape::Anything => random.chance(70).then(|| random.below(count + 2)),
            };
            let own = match random.chance(3) {
                true => name(random.below(count)),
                false => name(at),
            };
            let mut sub_group = json!({ "name": own });
            if let Some(parent) = parent {
                sub_group["parent"] = name(parent).into();
            }
            for field in ["minMember", "minSubGroup"] {
                if random.chance(40) {
                    sub_group[field] =
                        (*random.pick(&[0, 1, 1, 1, 2, 3, -1, i64::from(i32::MAX), i64::from(u32::MAX)])).into();
                }
            }
            if random.chance(20) {
                sub_group["topologyConstraint"] = constraint(random);
            }
            sub_group
        })
        .collect();
    let mut spec = json!({ "queue": "team", "subGroups": sub_groups });
    for field in ["minMember", "minSubGroup"] {
        if random.chance(50) {
            spec[field] = (*random.pick(&[0, 1, 1, 2, 4, -1, i64::MAX])).into();
        }
    }
    if random.chance(30) {
        spec["topologyConstraint"] = constraint(random);
    }
    let pods: Vec<Value> = (0..random.below(PODS_MAX)).map(|at| pod(at, count, random)).collect();
    case(&spec, &pods)
}

fn constraint(random: &mut Random) -> Value {
    let level = |random: &mut Random| *random.pick(&["rack", "host", "", "nowhere"]);
    json!({
        "topology": random.pick(&["t", "", "none"]),
        "requiredTopologyLevel": level(random),
        "preferredTopologyLevel": level(random),
    })
}

fn pod(at: usize, sub_groups: usize, random: &mut Random) -> Value {
    let mut labels = json!({});
    if random.chance(85) {
        labels["kai.scheduler/subgroup-name"] = format!("g{}", random.below(sub_groups + 1)).into();
    }
    let mut spec = json!({
        "schedulerName": "kai-scheduler",
        "containers": [{ "resources": { "requests": { "nvidia.com/gpu": "1", "cpu": "1" } } }],
    });
    let mut status = json!({ "phase": "Pending" });
    if random.chance(30) {
        spec["nodeName"] = "n0".into();
        status = json!({ "phase": "Running" });
    }
    json!({
        "kind": "Pod",
        "metadata": { "name": format!("p{at}"), "namespace": "ns", "uid": format!("u{at}"), "labels": labels,
                      "creationTimestamp": "2026-01-01T11:00:00Z", "annotations": { "pod-group-name": "gang" } },
        "spec": spec, "status": status,
    })
}

fn case(spec: &Value, pods: &[Value]) -> Value {
    let share = json!({ "quota": 4, "limit": -1, "overQuotaWeight": 1 });
    let node = |name: &str, rack: &str| {
        json!({ "kind": "Node", "metadata": { "name": name, "labels": { "rack": rack, "host": name, "nvidia.com/gpu.memory": "40960" } },
                "status": { "allocatable": { "cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "4" },
                            "conditions": [{ "type": "Ready", "status": "True" }] } })
    };
    json!({
        "id": "tree", "group": "cycle-fuzz", "now": "2026-01-01T12:00:00Z", "cycles": 2,
        "actions": ["allocate", "consolidation", "reclaim", "preempt", "stalegangeviction"],
        "objects": {
            "nodes": [node("n0", "r0"), node("n1", "r0"), node("n2", "r1")],
            "queues": [{ "kind": "Queue", "metadata": { "name": "root" }, "spec": { "resources": { "gpu": share, "cpu": share, "memory": share } } },
                       { "kind": "Queue", "metadata": { "name": "team" }, "spec": { "parentQueue": "root", "resources": { "gpu": share, "cpu": share, "memory": share } } }],
            "podGroups": [{ "kind": "PodGroup", "metadata": { "name": "gang", "namespace": "ns" }, "spec": spec }],
            "pods": pods,
            "topologies": [{ "kind": "Topology", "metadata": { "name": "t" }, "spec": { "levels": [{ "nodeLabel": "rack" }, { "nodeLabel": "host" }] } }],
        },
    })
}

fn run(case: &Value) {
    let options = Options {
        check: true,
        ..Options::default()
    };
    if let Ok(scenario) = load_case(Path::new("fuzz.json"), &case.to_string()) {
        kai_simulate::run::run(scenario, &options);
    }
}

fn trees(fuzz: Fuzz) {
    fuzz.run(tree, Value::to_string, run);
}

/// Found by the long run.
#[test]
fn minimums_of_subgroups_that_add_up_to_more_than_a_number_holds() {
    let sub_groups: Vec<Value> = (0..3)
        .map(|at| json!({ "name": format!("g{at}"), "minMember": i32::MAX }))
        .collect();
    run(&case(&json!({ "queue": "team", "subGroups": sub_groups }), &[]));
}

#[test]
fn random_trees_of_subgroups_never_panic() {
    trees(Fuzz::short("pod group trees").at_most(300));
}

#[test]
#[ignore = "runs for KAI_FUZZ_SECONDS"]
fn long_run_of_trees() {
    trees(Fuzz::long("pod group trees"));
}
