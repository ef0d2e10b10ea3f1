//! Loads and runs mutated cases, manifests and annotations. Nothing may panic.
//!
//! The default run takes a second. `KAI_FUZZ_SECONDS=600 cargo test -p kai-simulate --release --test fuzz -- --ignored` runs for ten
//! minutes.

use std::path::Path;

use kai_fuzz::Fuzz;
use kai_simulate::run::Options;
use kai_simulate::scenario::{NotInstalled, load_case, load_manifests};
use proptest::prelude::*;
use proptest::test_runner::Config;
use serde_json::{Value, json};

/// A case with every kind, every form of GPU request and every field that is read.
fn seed_case() -> Value {
    let share = json!({"quota": 1, "limit": -1, "overQuotaWeight": 1});
    let resources = json!({"gpu": share, "cpu": share, "memory": share});
    let pod = |name: &str, annotations: Value, rest: Value| {
        let mut pod = json!({"kind": "Pod",
            "metadata": {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": "2026-01-01T11:00:00Z",
                         "labels": {"kai.scheduler/subgroup-name": "a", "kai.scheduler/task-priority": "1"},
                         "annotations": annotations},
            "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "main",
                     "ports": [{"containerPort": 80, "hostPort": 8080}],
                     "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {}}}]},
            "status": {"phase": "Pending"}});
        for (key, value) in rest.as_object().into_iter().flatten() {
            pod["spec"][key] = value.clone();
        }
        pod
    };
    json!({
        "id": "seed", "group": "cycle-fuzz", "now": "2026-01-01T12:00:00Z", "cycles": 2, "settleCycles": 1,
        "actions": ["allocate", "consolidation", "reclaim", "preempt", "stalegangeviction"],
        "params": {"maxNumberConsolidationPreemptees": -1, "defaultStalenessGracePeriod": "0s", "kValue": 1.0,
                   "placementStrategy": "binpack", "queueDepthPerAction": {"allocate": 5},
                   "queueUsage": {"team": {"gpu": 0.5}}},
        "holdReleasing": ["gang"],
        "objects": {
            "nodes": [{"kind": "Node", "metadata": {"name": "n0", "labels": {"nvidia.com/gpu.memory": "40960",
                        "nvidia.com/gpu.count": "2", "rack": "r0", "kai.scheduler/gpu-memory-type": "unified"}},
                       "spec": {"taints": [{"key": "k", "value": "v", "effect": "PreferNoSchedule"}]},
                       "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "2",
                                                  "nvidia.com/mig-1g.5gb": "2"},
                                  "conditions": [{"type": "Ready", "status": "True"}]}}],
            "queues": [{"kind": "Queue", "metadata": {"name": "root"}, "spec": {"resources": resources}},
                       {"kind": "Queue", "metadata": {"name": "team"},
                        "spec": {"parentQueue": "root", "priority": 100, "preemptMinRuntime": "1m", "resources": resources}}],
            "podGroups": [{"kind": "PodGroup", "metadata": {"name": "gang", "namespace": "ns",
                            "annotations": {"kai.scheduler/last-start-timestamp": "2026-01-01T11:59:00Z"}},
                           "spec": {"queue": "team", "minMember": 1, "priorityClassName": "train", "preemptionDelay": "1s",
                                    "topologyConstraint": {"topology": "t", "requiredTopologyLevel": "rack"},
                                    "subGroups": [{"name": "a", "minMember": 1}]}}],
            "pods": [
                pod("whole", json!({"pod-group-name": "gang"}),
                    json!({"nodeName": "n0", "containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]})),
                pod("fraction", json!({"pod-group-name": "gang", "gpu-fraction": "0.5", "gpu-fraction-num-devices": "1"}), json!({})),
                pod("memory", json!({"pod-group-name": "gang", "gpu-memory": "1000"}),
                    json!({"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}], "tolerations": [{"operator": "Exists"}], "nodeSelector": {"rack": "r0"}})),
                pod("mig", json!({"pod-group-name": "gang"}),
                    json!({"containers": [{"resources": {"requests": {"nvidia.com/mig-1g.5gb": "1"}}}],
                           "initContainers": [{"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}]})),
                pod("near", json!({"pod-group-name": "gang"}), json!({"affinity": {
                    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
                        [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r0"]}]}]}},
                    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                        [{"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "rack"}]}}}))],
            "priorityClasses": [{"kind": "PriorityClass", "metadata": {"name": "train"}, "value": 50}],
            "bindRequests": [{"kind": "BindRequest", "metadata": {"name": "fraction", "namespace": "ns"},
                              "spec": {"podName": "fraction", "selectedNode": "n0", "selectedGPUGroups": ["g"]}}],
            "topologies": [{"kind": "Topology", "metadata": {"name": "t"}, "spec": {"levels": [{"nodeLabel": "rack"}]}}],
            "persistentVolumes": [{"kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": {
                "claimRef": {"namespace": "ns", "name": "data"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions":
                    [{"key": "rack", "operator": "In", "values": ["r0"]}]}]}}}}],
            "persistentVolumeClaims": [{"kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "ns"},
                                        "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}}],
            "configMaps": [{"kind": "ConfigMap", "metadata": {"name": "settings", "namespace": "ns"}, "data": {"a": "b"}}]
        },
        "expect": {"pods": {"whole": {"status": "Running", "node": "n0"}}, "nodes": {"n0": {"idleGPUs": 1}}},
        "expectTotals": {"bound": 1, "gangAtomic": true}
    })
}

/// A workload of each kind that is expanded to pods.
fn seed_workloads() -> Vec<Value> {
    let template = json!({"metadata": {"labels": {"app": "a"}, "annotations": {"gpu-fraction": "0.5"}},
        "spec": {"schedulerName": "kai-scheduler", "nodeSelector": {"rack": "r0"},
                 "containers": [{"name": "main", "resources": {"limits": {"cpu": "1"}}}]}});
    let workload = |version: &str, kind: &str, rest: Value| {
        let mut object = json!({"apiVersion": version, "kind": kind,
            "metadata": {"name": kind.to_lowercase(), "namespace": "ns", "labels": {"kai.scheduler/queue": "team"},
                         "creationTimestamp": "2026-01-01T11:00:00Z", "generation": 1},
            "spec": {"selector": {"matchLabels": {"app": "a"}}, "template": template}});
        for (key, value) in rest.as_object().into_iter().flatten() {
            object["spec"][key] = value.clone();
        }
        object
    };
    let claims = json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]);
    vec![
        workload(
            "apps/v1",
            "Deployment",
            json!({"replicas": 2, "strategy": {"rollingUpdate": {"maxSurge": "25%"}}}),
        ),
        workload("apps/v1", "ReplicaSet", json!({"replicas": 2})),
        workload(
            "apps/v1",
            "StatefulSet",
            json!({"replicas": 2, "ordinals": {"start": 1}, "volumeClaimTemplates": claims}),
        ),
        workload(
            "apps/v1",
            "DaemonSet",
            json!({"updateStrategy": {"type": "RollingUpdate"}}),
        ),
        workload(
            "batch/v1",
            "Job",
            json!({"parallelism": 2, "completions": 3, "completionMode": "Indexed", "backoffLimit": 1}),
        ),
    ]
}

fn run_workloads(list: &Value) {
    if let Ok(scenario) = load_manifests(Path::new("fuzz.json"), &list.to_string(), &NotInstalled) {
        kai_simulate::run::run(scenario, &Options::default());
    }
}

fn run_case(text: &str) {
    // Few cycles: a mutated `cycles` may be a million.
    let options = Options {
        cycles: Some(2),
        check: false,
        ..Options::default()
    };
    if let Ok(scenario) = load_case(Path::new("fuzz.json"), text) {
        kai_simulate::run::run(scenario, &options);
    }
}

fn run_manifests(case: &Value) {
    let lists = case
        .get("objects")
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(|objects| objects.values());
    let items: Vec<&Value> = lists.filter_map(Value::as_array).flatten().collect();
    let text = json!({"kind": "List", "items": items}).to_string();
    if let Ok(scenario) = load_manifests(Path::new("fuzz.json"), &text, &NotInstalled) {
        kai_simulate::run::run(
            scenario,
            &Options {
                check: true,
                ..Options::default()
            },
        );
    }
}

#[test]
fn the_seed_itself_loads_without_a_word() {
    let scenario = load_case(Path::new("seed.json"), &seed_case().to_string()).unwrap();
    let outcome = kai_simulate::run::run(scenario, &Options::default());
    assert_eq!(outcome.warnings.lines().collect::<Vec<_>>(), Vec::<String>::new());
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::with_cases(200) })]

    #[test]
    fn broken_text_never_panics(cut in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let text = seed_case().to_string();
        run_case(&text[..cut.index(text.len())]);
        let mut bytes = text.into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(text) = String::from_utf8(bytes) {
            run_case(&text);
            let _ = load_case(Path::new("fuzz.yaml"), &text);
        }
    }

    #[test]
    fn any_text_never_panics(text in "\\PC*", yaml in "([a-z]+: [&*]?[a-z0-9{}\\[\\]'\"|>-]*\n){0,8}") {
        run_case(&text);
        for text in [text.as_str(), yaml.as_str()] {
            let _ = load_case(Path::new("fuzz.yaml"), text);
            let _ = load_manifests(Path::new("fuzz.yaml"), text, &NotInstalled);
        }
    }

    #[test]
    fn random_annotations_never_panic(fraction in "\\PC{0,20}", memory in "[-+0-9.eE]{0,30}", devices in "[-+0-9]{0,25}") {
        let mut case = seed_case();
        case["objects"]["pods"][1]["metadata"]["annotations"]["gpu-fraction"] = fraction.into();
        case["objects"]["pods"][1]["metadata"]["annotations"]["gpu-fraction-num-devices"] = devices.into();
        case["objects"]["pods"][2]["metadata"]["annotations"]["gpu-memory"] = memory.into();
        run_case(&case.to_string());
    }
}

fn cases(fuzz: Fuzz) {
    fuzz.json(&[seed_case()], |case| {
        run_case(&case.to_string());
        run_manifests(case);
    });
}

fn workloads(fuzz: Fuzz) {
    let node = seed_case()["objects"]["nodes"][0].clone();
    let seeds: Vec<Value> = seed_workloads()
        .into_iter()
        .map(|workload| json!({"kind": "List", "items": [node, workload]}))
        .collect();
    fuzz.json(&seeds, run_workloads);
}

#[test]
fn the_workloads_of_the_seed_become_pods() {
    let list = json!({"kind": "List", "items": seed_workloads()}).to_string();
    let scenario = load_manifests(Path::new("seed.json"), &list, &NotInstalled).unwrap();
    assert_eq!(scenario.objects.pods.len(), 8);
}

/// The paths of all fields and items.
fn paths(value: &Value, path: &str, found: &mut Vec<String>) {
    found.push(path.to_owned());
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                // As JSON pointers write it.
                let name = name.replace('~', "~0").replace('/', "~1");
                paths(value, &format!("{path}/{name}"), found);
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                paths(item, &format!("{path}/{at}"), found);
            }
        }
        _ => {}
    }
}

#[test]
fn no_value_of_any_field_of_a_workload_panics() {
    let values = [
        json!("x"),
        json!(""),
        json!(1),
        json!(-1),
        json!(1e300),
        json!(u64::MAX),
        json!([]),
        json!(["x"]),
        json!([[]]),
        json!({}),
        json!({"k": "v"}),
        json!(true),
        Value::Null,
    ];
    let node = seed_case()["objects"]["nodes"][0].clone();
    for workload in seed_workloads() {
        let mut found = Vec::new();
        paths(&workload, "", &mut found);
        for path in found {
            for value in &values {
                let mut changed = workload.clone();
                *changed.pointer_mut(&path).unwrap() = value.clone();
                run_workloads(&json!({"kind": "List", "items": [node, changed]}));
            }
        }
    }
}

#[test]
fn mutated_workloads_never_panic() {
    workloads(Fuzz::short("workloads").at_most(400));
}

#[test]
fn mutated_cases_never_panic() {
    cases(Fuzz::short("cases").at_most(200));
}

#[test]
#[ignore = "runs for KAI_FUZZ_SECONDS"]
fn long_run() {
    cases(Fuzz::long("cases"));
    workloads(Fuzz::long("workloads"));
}
