//! The scenarios of the project, the simulated cluster between two cycles, and the messages about mistakes in files.

use std::collections::BTreeMap;
use std::path::Path;

use kai_engine::report::Status;
use kai_mirror::StepView;
use kai_simulate::outcome::{Outcome, PodOutcome, Totals};
use kai_simulate::run::Options;
use kai_simulate::scenario::{Change, NotInstalled, Scenario, discover, load, load_case, load_changed, load_manifests};

/// All scenarios in the folder `scenarios/` of the repository must have their expected result.
#[test]
fn all_scenarios_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let sources = discover(&[folder], std::io::empty()).unwrap();
    assert!(!sources.is_empty(), "the project's scenarios are missing");
    let mut failed = Vec::new();
    for source in sources {
        let options = Options {
            check: true,
            ..Options::default()
        };
        match load(&source, &NotInstalled) {
            Ok(scenario) => {
                let told: Vec<String> = scenario.warnings.lines().collect();
                let outcome = kai_simulate::run::run(scenario, &options);
                let differences = outcome.differences.unwrap_or_default();
                let name = source.path().display();
                failed.extend(
                    differences
                        .iter()
                        .map(|difference| format!("{name}: {difference} {told:?}")),
                );
            }
            Err(error) => failed.push(error.to_string()),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Every pod of every scenario of the project has a remedy after the run, or the explanation says why there is none.
#[test]
fn every_pod_of_the_scenarios_is_explained() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let (mut waiting, mut tried, mut unexplained) = (0, 0, Vec::new());
    for source in discover(&[folder], std::io::empty()).unwrap() {
        let run = |explain: Option<String>| {
            let options = Options {
                explain,
                ..Options::default()
            };
            kai_simulate::run::run(load(&source, &NotInstalled).unwrap(), &options)
        };
        let file = source.path().display().to_string();
        let pods = run(None).pods;
        let ended = |pod: &&PodOutcome| !matches!(pod.status, Status::Succeeded | Status::Failed);
        let mut explained = 0;
        for pod in pods.iter().filter(ended) {
            let name = format!("{}/{}", pod.namespace, pod.name);
            let Ok(explanation) = run(Some(name.clone())).explanation.unwrap() else {
                unexplained.push(format!("{file}: {name}"));
                continue;
            };
            let (remedies, none) = (&explanation.explanation.remedies, &explanation.explanation.no_remedy);
            assert_eq!(remedies.is_empty(), none.is_some(), "{file}: {explanation:#?}");
            let texts = remedies.iter().map(|remedy| &remedy.text).chain(none);
            texts.for_each(|text| assert!(!text.is_empty(), "{file}: {name}"));
            explained += 1;
            if pod.status == Status::Pending {
                assert_eq!(explanation.reason, pod.reason, "{file}: {name}");
                waiting += 1;
                tried += usize::from(remedies.iter().any(|remedy| remedy.tried));
            }
        }
        assert!(explained > 0, "{file}: no pod is explained");
    }
    assert_eq!(unexplained, Vec::<String>::new());
    assert!(
        waiting > 100 && tried > 60,
        "{waiting} pods wait, {tried} with a tried remedy"
    );
}

/// The words of `--what-if` for a step that they can express.
fn in_words(step: &StepView) -> Option<String> {
    let bound = |field: &str| {
        let (resource, unit) = match &*step.resource.clone()? {
            "GPU" => ("gpu", 1e6),
            "CPU" => ("cpu", 1.0),
            "memory" => ("memory", 1e6),
            other => panic!("{other}"),
        };
        let amount = step.to? as f64 / unit;
        Some(format!("queue {} {resource}.{field}={amount}", step.queue.as_ref()?))
    };
    match &*step.kind {
        "end" => Some(format!("delete podgroup {}", step.pod_group.as_ref()?)),
        "raiseQuota" => bound("quota"),
        "raiseLimit" => bound("limit"),
        "uncordon" => Some(format!("uncordon node {}", step.node.as_ref()?)),
        "addNodes" => Some(format!("add {} nodes like {}", step.to?, step.node.as_ref()?)),
        _ => None,
    }
}

/// What an explanation says is carried out on the objects of the scenario, as a user would, and starts a pod of the gang. Only where the
/// first cycle evicts nothing.
#[test]
fn remedies_of_the_scenarios_start_the_gang_when_carried_out() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let (mut counts, mut others, mut failed) = (BTreeMap::<String, u32>::new(), 0, Vec::new());
    for source in discover(&[folder], std::io::empty()).unwrap() {
        let run = |changes: &[Change], explain: Option<String>| {
            let options = Options {
                explain,
                cycles: Some(1),
                ..Options::default()
            };
            load_changed(&source, changes, &NotInstalled).map(|scenario| kai_simulate::run::run(scenario, &options))
        };
        let plain = run(&[], None).unwrap();
        // An eviction would have to be carried out first: the explanation is of the cluster after it.
        let Totals { evicted, pipelined, .. } = plain.totals;
        if evicted + pipelined > 0 {
            others += 1;
            continue;
        }
        let pending = plain.pods.iter().filter(|pod| pod.status == Status::Pending);
        let mut explained = BTreeMap::new();
        for pod in pending {
            let explanation = run(&[], Some(format!("{}/{}", pod.namespace, pod.name)))
                .unwrap()
                .explanation;
            let explanation = explanation.unwrap().unwrap();
            let gang = (pod.namespace.clone(), explanation.workload.clone());
            let (pods, _) = explained.entry(gang).or_insert_with(|| (Vec::new(), explanation));
            pods.push(pod.name.clone());
        }
        for ((namespace, gang), (pods, explanation)) in explained {
            for remedy in explanation.explanation.remedies.iter().filter(|remedy| remedy.tried) {
                let words: Option<Vec<String>> = remedy.steps.iter().map(in_words).collect();
                let Some(words) = words else { continue };
                let changes: Vec<Change> = words.iter().map(|words| words.parse().unwrap()).collect();
                let after = run(&changes, None).unwrap();
                let starts = |pod: &PodOutcome| {
                    let was_waiting = pod.namespace == namespace && pods.contains(&pod.name);
                    was_waiting && !matches!(pod.status, Status::Pending | Status::Gated)
                };
                if !after.pods.iter().any(starts) {
                    failed.push(format!("{}: {gang:?}: {words:?}", source.path().display()));
                }
                for step in &remedy.steps {
                    *counts.entry(step.kind.to_string()).or_default() += 1;
                }
            }
        }
    }
    println!("{counts:?}, {} failed, {others} scenarios decide more", failed.len());
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    for kind in ["end", "raiseQuota", "raiseLimit", "uncordon", "addNodes"] {
        assert!(counts.contains_key(kind), "{kind}: {counts:?}");
    }
}

/// A node of two GPUs, a guaranteed queue `mine` and a queue `theirs` without a guarantee.
fn case(group: &str, rest: &str, groups: &str, pods: &str) -> String {
    let quota = |gpu: i32| {
        format!(
            "{{ resources: {{ gpu: {{ quota: {gpu}, limit: -1, overQuotaWeight: 1 }}, \
             cpu: {{ quota: -1, limit: -1, overQuotaWeight: 1 }}, memory: {{ quota: -1, limit: -1, overQuotaWeight: 1 }} }} }}"
        )
    };
    let (mine, theirs) = (quota(2), quota(0));
    format!(
        "group: {group}\nnow: '2026-01-01T12:00:00Z'\n{rest}\nobjects:\n  nodes:\n  - {{ metadata: {{ name: node, \
         labels: {{ nvidia.com/gpu.memory: '1000' }} }}, status: {{ allocatable: {{ cpu: '8', memory: 8Gi, pods: '10', \
         nvidia.com/gpu: '2' }} }} }}\n  queues:\n  - {{ metadata: {{ name: mine }}, spec: {mine} }}\n  - {{ metadata: {{ \
         name: theirs }}, spec: {theirs} }}\n  podGroups:\n{groups}  pods:\n{pods}"
    )
}

fn group(name: &str, queue: &str) -> String {
    format!("  - {{ metadata: {{ name: {name}, namespace: ns }}, spec: {{ queue: {queue}, minMember: 1 }} }}\n")
}

fn pod(name: &str, gpus: u32, node: Option<&str>) -> String {
    let (placed, phase) = node.map_or((String::new(), "Pending"), |node| {
        (format!("nodeName: {node}, "), "Running")
    });
    format!(
        "  - {{ metadata: {{ name: {name}, namespace: ns, annotations: {{ pod-group-name: {name} }} }}, \
         spec: {{ schedulerName: kai-scheduler, {placed}containers: [{{ resources: {{ limits: {{ nvidia.com/gpu: {gpus} }} }} }}] }}, \
         status: {{ phase: {phase} }} }}\n"
    )
}

fn run(text: &str, cycles: u32) -> Outcome {
    let scenario = load_case(Path::new("case.yaml"), text).expect("a valid case");
    let outcome = kai_simulate::run::run(
        scenario,
        &Options {
            cycles: Some(cycles),
            ..Options::default()
        },
    );
    assert_eq!(outcome.warnings.lines().collect::<Vec<_>>(), Vec::<String>::new());
    outcome
}

/// The names of the pods.
fn pod_names(scenario: &Scenario) -> Vec<&str> {
    let pods = scenario.objects.pods.iter();
    pods.map(|pod| pod.metadata.plain_name()).collect()
}

fn statuses(outcome: &Outcome) -> Vec<String> {
    let text = |pod: &kai_simulate::outcome::PodOutcome| {
        let on = pod.node.as_ref().map_or(String::new(), |node| format!(" on {node}"));
        format!("{} {}{on}", pod.name, pod.status.name())
    };
    outcome.pods.iter().map(text).collect()
}

fn reclaim(group_of_case: &str, rest: &str) -> String {
    let groups = group("victim", "theirs") + &group("owner", "mine");
    case(
        group_of_case,
        rest,
        &groups,
        &(pod("victim", 2, Some("node")) + &pod("owner", 2, None)),
    )
}

#[test]
fn decisions_are_shown_raw_in_action_cases() {
    let outcome = run(&reclaim("action-reclaim", ""), 1);
    assert_eq!(
        statuses(&outcome),
        ["owner Pipelined on node", "victim Releasing on node"]
    );
    assert_eq!(
        (outcome.totals.evicted, outcome.totals.pipelined, outcome.totals.bound),
        (1, 1, 0)
    );
}

#[test]
fn in_other_cases_the_evicted_return_and_the_promised_wait() {
    let text = reclaim("cycle-reclaim", "");
    assert_eq!(statuses(&run(&text, 1)), ["owner Pending", "victim Pending"]);
    assert_eq!(statuses(&run(&text, 2)), ["owner Running on node", "victim Pending"]);
    assert_eq!(statuses(&run(&text, 5)), ["owner Running on node", "victim Pending"]);
}

#[test]
fn held_pods_never_leave() {
    let text = reclaim("cycle-reclaim", "holdReleasing: [victim]");
    assert_eq!(statuses(&run(&text, 4)), ["owner Pending", "victim Releasing on node"]);
}

#[test]
fn times_are_measured_per_cycle_and_action() {
    let timing = run(&reclaim("cycle-reclaim", "actions: [allocate, reclaim]"), 3).timing;
    assert_eq!(timing.cycle_ms.len(), 3);
    assert_eq!(
        timing.action_ms.keys().copied().collect::<Vec<_>>(),
        ["allocate", "reclaim"]
    );
}

#[test]
fn lists_of_manifests_are_opened() {
    let text = "kind: PodList\nitems:\n- metadata: { name: a }\n  spec: { schedulerName: kai-scheduler }\n---\n\
                kind: List\nitems:\n- kind: Queue\n  metadata: { name: default-queue }\n  spec: {}\n";
    let scenario = load_manifests(Path::new("m.yaml"), text, &NotInstalled).unwrap();
    assert_eq!(pod_names(&scenario), ["a"]);
    assert_eq!(scenario.objects.queues[0].metadata.plain_name(), "default-queue");
}

#[test]
fn the_same_object_twice_is_worth_a_word() {
    let text = "kind: Node\nmetadata: { name: n }\n---\nkind: Node\nmetadata: { name: n }\n";
    let scenario = load_manifests(Path::new("m.yaml"), text, &NotInstalled).unwrap();
    let told: Vec<String> = scenario.warnings.lines().collect();
    assert_eq!(
        told,
        ["m.yaml: Node n: metadata.name: it is there twice (the later one counts)"]
    );
}

fn error(name: &str, text: &str) -> String {
    load_case(Path::new(name), text).expect_err("a wrong case").to_string()
}

/// In JSON and YAML, at every level: a case whose expectation is misspelt must not pass.
#[test]
fn unknown_keys_of_a_case_are_refused_with_the_nearest_known_one() {
    let check = |key: &str, value: &str, expect: &str| {
        assert_eq!(
            error("c.yaml", &format!("objects: {{}}\n{key}: {value}\n")),
            format!("c.yaml: {expect}")
        );
        let json = serde_saphyr::from_str::<serde_json::Value>(value).unwrap();
        let text = serde_json::json!({ "objects": {}, key: json }).to_string();
        assert_eq!(error("c.json", &text), format!("c.json: {expect}"));
    };
    check(
        "expects",
        "{ pods: {} }",
        "case: expects: there is no field \"expects\" here; did you mean expect?",
    );
    check(
        "expect",
        "{ pod: {} }",
        "case: expect.pod: there is no field \"pod\" here; did you mean pods?",
    );
    check(
        "expect",
        "{ pods: { a: { status: Running, nod: x } } }",
        "case: expect.pods.a.nod: there is no field \"nod\" here; did you mean node?",
    );
    check(
        "expectTotals",
        "{ bounds: 3 }",
        "case: expectTotals.bounds: there is no field \"bounds\" here; did you mean bound?",
    );
    check(
        "params",
        "{ kvalue: 3 }",
        "case: params.kvalue: there is no such parameter; did you mean kValue?",
    );
    let lists = error("c.yaml", "objects: { podgroup: [] }\n");
    assert_eq!(
        lists,
        "c.yaml: case: objects: there is no field \"podgroup\" here; did you mean podGroups?"
    );
}

#[test]
fn unknown_fields_of_objects_are_warned_of() {
    let object = "{ metadata: { name: q }, spec: { resources: { gpu: { qouta: 1 } } } }";
    let expect = "Queue q: spec.resources.gpu.qouta: Queue has no such field (it is ignored); did you mean quota?";
    let case = load_case(Path::new("c.yaml"), &format!("objects: {{ queues: [{object}] }}")).unwrap();
    assert_eq!(case.warnings.lines().collect::<Vec<_>>(), [format!("c.yaml: {expect}")]);
    let json = r#"{"objects":{"queues":[{"metadata":{"name":"q"},"spec":{"resources":{"gpu":{"qouta":1}}}}]}}"#;
    let case = load_case(Path::new("c.json"), json).unwrap();
    assert_eq!(case.warnings.lines().collect::<Vec<_>>(), [format!("c.json: {expect}")]);
    let manifest = format!("{{ kind: Queue, {}", object.trim_start_matches('{'));
    let scenario = load_manifests(Path::new("m.yaml"), &manifest, &NotInstalled).unwrap();
    assert_eq!(
        scenario.warnings.lines().collect::<Vec<_>>(),
        [format!("m.yaml: {expect}")]
    );
}

#[test]
fn a_text_that_is_no_scenario_is_not_echoed() {
    let text = "just words ".repeat(10_000);
    for told in [error("notes.yaml", &text), error("notes.txt", &text)] {
        assert!(told.contains("is neither a case"), "{told}");
        assert!(told.len() < 300, "{told}");
    }
    let told = error("c.yaml", &format!("objects: \"{text}\"\n"));
    assert!(
        told.len() < 300 && told.ends_with("expected lists of objects by kind"),
        "{told}"
    );
}

#[test]
fn messages_are_about_the_file_and_not_about_the_program() {
    let told = error("c.yaml", "objects: {}\nobjects: {}\n");
    assert!(told.contains("duplicate") && told.contains("line 2"), "{told}");
    for word in ["Policy", "Options", "struct"] {
        assert!(!told.contains(word), "{told}");
    }
    let told = error("c.yaml", "objects: {}\nexpect: 3\n");
    assert_eq!(
        told,
        "c.yaml: case: expect: invalid type: integer `3`, expected fields with values"
    );
}

#[test]
fn pods_on_unknown_nodes_and_overfull_nodes_are_warned_of() {
    let pods = pod("a", 2, Some("node")) + &pod("b", 1, Some("node")) + &pod("c", 1, Some("nowhere"));
    let groups = group("a", "mine") + &group("b", "mine") + &group("c", "mine");
    let scenario = load_case(Path::new("c.yaml"), &case("x", "", &groups, &pods)).unwrap();
    let outcome = kai_simulate::run::run(scenario, &Options::default());
    let told: Vec<String> = outcome.warnings.lines().collect();
    assert_eq!(
        told,
        [
            "c.yaml: Pod ns/c: spec.nodeName: there is no node \"nowhere\"; add it or correct the name (what the pod uses counts \
             nowhere)",
            "c.yaml: Node node: its pods hold 1 GPUs more than it has; correct status.allocatable of the node, or spec.nodeName or \
             status.phase of pods",
        ]
    );
}

#[test]
fn rounding_of_gpu_memory_is_told_where_pods_ask_for_memory() {
    let nodes = |memory: &str| case("x", "", "", "").replace("'1000'", &format!("'{memory}'"));
    let notes = |text: &str| {
        let scenario = load_case(Path::new("c.yaml"), text).unwrap();
        kai_simulate::run::run(scenario, &Options::default()).notes
    };
    let by_memory = "  - { metadata: { name: p, namespace: ns, annotations: { gpu-memory: '500' } }, spec: { schedulerName: kai-scheduler } }\n";
    assert_eq!(notes(&nodes("1050")), Vec::<String>::new());
    assert_eq!(notes(&(nodes("1000") + by_memory)), Vec::<String>::new());
    assert_eq!(
        notes(&(nodes("1050") + by_memory)),
        [
            "c.yaml: Node node: metadata.labels.nvidia.com/gpu.memory: 1050 counts as 1000 MiB (whole hundreds, as in KAI)"
        ]
    );
}

#[test]
fn workloads_become_pods_and_too_many_are_refused() {
    let template = "template: { spec: { schedulerName: kai-scheduler } }";
    let text = format!(
        "kind: Deployment\nmetadata: {{ name: web, namespace: ns }}\nspec: {{ replicas: 2, {template} }}\n---\n\
         kind: StatefulSet\nmetadata: {{ name: db, namespace: ns }}\nspec: {{ {template} }}\n---\n\
         kind: Job\nmetadata: {{ name: train, namespace: ns }}\nspec: {{ parallelism: 2, {template} }}\n---\n\
         kind: ReplicaSet\nmetadata: {{ name: huge, namespace: ns }}\nspec: {{ replicas: 2000000000, {template} }}\n"
    );
    let scenario = load_manifests(Path::new("m.yaml"), &text, &NotInstalled).unwrap();
    let names = pod_names(&scenario);
    let [web_0, web_1, "db-0", "train-0", "train-1"] = names[..] else {
        panic!("{names:?}")
    };
    assert!(web_0.starts_with("web-") && web_0.ends_with("-0") && web_1.ends_with("-1"));
    let told = scenario.warnings.lines().next().unwrap();
    assert!(
        told.starts_with("m.yaml: ReplicaSet ns/huge: spec.replicas: 2000000000 pods are more than"),
        "{told}"
    );
}

#[test]
fn an_expected_reason_is_compared() {
    let differences = |reason: &str| {
        let expect = format!("expect: {{ pods: {{ a: {{ status: Pending, reason: {reason} }} }} }}");
        let text = case("x", &expect, &group("a", "mine"), &pod("a", 3, None));
        let options = Options {
            check: true,
            ..Options::default()
        };
        let outcome = kai_simulate::run::run(load_case(Path::new("c.yaml"), &text).unwrap(), &options);
        outcome.differences.unwrap()
    };
    assert_eq!(differences("didn't have enough resources"), Vec::<String>::new());
    let told = differences("too hot");
    assert!(
        told[0].starts_with("pod a: expected the reason \"too hot\", got \"no nodes"),
        "{told:?}"
    );
}

#[test]
fn kinds_of_other_projects_are_not_taken_for_ours() {
    let text = "kind: Node\nmetadata: { name: n }\n---\napiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: { name: j }\n\
                spec: { template: { spec: { schedulerName: kai-scheduler } } }\n";
    let scenario = load_manifests(Path::new("m.yaml"), text, &NotInstalled).unwrap();
    assert!(scenario.objects.pods.is_empty());
    let told = scenario.warnings.lines().next().unwrap();
    assert!(
        told.starts_with(
            "m.yaml: Job.batch.volcano.sh j: kind: kai simulate does not read \"Job.batch.volcano.sh\" (it is skipped)"
        ),
        "{told}"
    );
}

#[test]
fn standard_input_is_a_file_like_others() {
    let input = "kind: Node\nmetadata: { name: n }\n";
    let sources = discover(&["-".into()], input.as_bytes()).unwrap();
    let scenario = load(&sources[0], &NotInstalled).unwrap();
    assert_eq!(scenario.objects.nodes[0].metadata.plain_name(), "n");
    assert_eq!(scenario.files, [Path::new("standard input")]);
    let case = discover(&["-".into()], &b"{\"objects\":{}}"[..]).unwrap();
    assert!(matches!(case[0], kai_simulate::scenario::Source::Case(_)));
    let twice = discover(&["-".into(), "-".into()], input.as_bytes()).unwrap_err();
    assert_eq!(twice.to_string(), "-: standard input is named twice; name it once");
}

#[test]
fn a_number_that_is_too_large_is_told_its_bounds() {
    let text = "kind: PodGroup\nmetadata: { name: g }\nspec: { minMember: 2147483648 }\n";
    let told = match load_manifests(Path::new("m.yaml"), text, &NotInstalled) {
        Ok(scenario) => scenario.warnings.lines().collect::<Vec<_>>().join("\n"),
        Err(error) => error.to_string(),
    };
    assert!(
        told.contains("expected a whole number from -2147483648 to 2147483647"),
        "{told}"
    );
}

/// An error or the warnings about manifests.
fn told(text: &str) -> String {
    match load_manifests(Path::new("m.yaml"), text, &NotInstalled) {
        Ok(scenario) => {
            let outcome = kai_simulate::run::run(scenario, &Options::default());
            outcome.warnings.lines().collect::<Vec<_>>().join("\n")
        }
        Err(error) => format!("error: {error}"),
    }
}

#[test]
fn fields_of_the_wrong_type_are_errors_in_every_workload() {
    let wrong = [
        ("spec: foo", "spec"),
        ("spec: { selector: { matchLabels: [a] } }", "spec.selector.matchLabels"),
        ("spec: { template: foo }", "spec.template"),
        ("spec: { template: { spec: [] } }", "spec.template.spec"),
        (
            "spec: { template: { metadata: { labels: foo } } }",
            "spec.template.metadata.labels",
        ),
        (
            "spec: { template: { metadata: { annotations: [1] } } }",
            "spec.template.metadata.annotations",
        ),
        (
            "spec: { template: { spec: { containers: [x] } } }",
            "spec.template.spec.containers[0]",
        ),
    ];
    for kind in ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job"] {
        for (spec, field) in wrong {
            let text =
                format!("kind: Node\nmetadata: {{ name: n }}\n---\nkind: {kind}\nmetadata: {{ name: w }}\n{spec}\n");
            let told = told(&text);
            assert!(
                told.starts_with(&format!("error: m.yaml: {kind} w: {field}: invalid type: ")),
                "{told}"
            );
        }
        let labels = told(&format!(
            "kind: {kind}\nmetadata: {{ name: w, labels: [a] }}\nspec: {{}}\n"
        ));
        assert!(
            labels.starts_with(&format!(
                "error: m.yaml: {kind} w: metadata.labels: invalid type: a list"
            )),
            "{labels}"
        );
        let unnamed = told(&format!("kind: {kind}\nspec: {{}}\n"));
        assert!(
            unnamed.starts_with(&format!(
                "error: m.yaml: {kind} (no name): metadata.name: it is missing"
            )),
            "{unnamed}"
        );
    }
}

#[test]
fn numbers_of_pods_that_no_api_server_takes_are_errors() {
    for (kind, field, value) in [
        ("Deployment", "replicas", "'3'"),
        ("Deployment", "replicas", "2.5"),
        ("StatefulSet", "replicas", "-2"),
        ("Job", "parallelism", "-2"),
        ("Job", "parallelism", "[1]"),
    ] {
        let told = told(&format!(
            "kind: {kind}\nmetadata: {{ name: w }}\nspec: {{ {field}: {value} }}\n"
        ));
        assert!(
            told.starts_with(&format!("error: m.yaml: {kind} w: spec.{field}: ")),
            "{told}"
        );
    }
}

#[test]
fn a_list_where_fields_belong_is_an_error() {
    for (text, expect) in [
        (
            "kind: Queue\nmetadata: { name: q }\nspec: { resources: [{ gpu: { quota: 2 } }] }\n",
            "Queue q: spec.resources",
        ),
        (
            "kind: Queue\nmetadata: { name: q }\nspec: { resources: { gpu: [1, 2] } }\n",
            "Queue q: spec.resources.gpu",
        ),
        ("kind: Queue\nmetadata: { name: q }\nspec: [parent]\n", "Queue q: spec"),
        (
            "kind: Pod\nmetadata: { name: p }\nspec: { affinity: { nodeAffinity: [] } }\n",
            "Pod p: spec.affinity.nodeAffinity",
        ),
    ] {
        let told = told(text);
        assert_eq!(
            told,
            format!("error: m.yaml: {expect}: invalid type: a list, expected fields with values")
        );
    }
    let queue = r#"{"metadata":{"name":"q"},"spec":{"resources":[{"gpu":{"quota":2}}]}}"#;
    let expect = "Queue q: spec.resources: invalid type: a list, expected fields with values";
    let case = format!(r#"{{"objects":{{"queues":[{queue}]}}}}"#);
    assert_eq!(error("c.json", &case), format!("c.json: {expect}"));
    assert_eq!(error("c.yaml", &case), format!("c.yaml: {expect}"));
    for (field, value) in [
        ("expect", "[]"),
        ("expectTotals", "[1, 0]"),
        ("expect.pods.a", "{ pods: { a: [Running] } }"),
        ("expect.nodes.n", "{ nodes: { n: [1] } }"),
    ] {
        let key = field.split('.').next().unwrap();
        let told = error("c.yaml", &format!("objects: {{}}\n{key}: {value}\n"));
        assert_eq!(
            told,
            format!("c.yaml: case: {field}: invalid type: a list, expected fields with values")
        );
    }
    let json = error("c.json", r#"{"objects":{},"expect":[]}"#);
    assert!(json.contains("case: expect: invalid type"), "{json}");
}

#[test]
fn a_list_of_manifests_without_a_list_of_items_is_an_error() {
    let told_of = |items: &str| told(&format!("kind: List\n{items}\n"));
    assert_eq!(
        told_of("items: { kind: Node, metadata: { name: n } }"),
        "error: m.yaml: List: items: invalid type: fields with values, expected a list"
    );
    assert_eq!(
        told_of("item: []"),
        "error: m.yaml: List: items: it is missing; a list has its objects there"
    );
}

#[test]
fn parameters_of_the_wrong_type_are_told_in_words() {
    let case = "objects: { queues: [{ metadata: { name: q }, spec: {} }] }\nparams: { placementStrategy: [gpu], queueUsage: { q: [1] } }\n";
    let scenario = load_case(Path::new("c.yaml"), case).unwrap();
    let told: Vec<String> = scenario.warnings.lines().collect();
    assert_eq!(
        told,
        [
            "c.yaml: case: params.placementStrategy: invalid type: a list, expected fields with values (the default is used)",
            "c.yaml: case: params.queueUsage: invalid type: a list, expected fields with values (the default is used)",
        ]
    );
}

#[test]
fn names_without_effect_in_a_case_are_warned_of() {
    let text = case(
        "actions-reclaim",
        "holdReleasing: [victm]\nparams: { queueUsage: { mein: { gpu: 0.5 } } }",
        &group("victim", "theirs"),
        "",
    );
    let scenario = load_case(Path::new("c.yaml"), &text).unwrap();
    let told: Vec<String> = scenario.warnings.lines().collect();
    assert_eq!(
        told,
        [
            "c.yaml: case: holdReleasing: there is no pod group \"victm\" (the name is ignored); did you mean victim?",
            "c.yaml: case: params.queueUsage: there is no queue \"mein\" (its usage is ignored); did you mean mine?",
            "c.yaml: case: group: \"actions-reclaim\" is unknown (statuses are those after the decisions were carried out); did you \
             mean action-reclaim?",
        ]
    );
}

#[test]
fn warnings_between_objects_name_the_file_of_the_object() {
    let folder = std::env::temp_dir().join(format!("kai-simulate-files-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let nodes = write(
        "nodes.yaml",
        "kind: Node\nmetadata: { name: n }\nstatus: { allocatable: { cpu: '8', memory: 8Gi, pods: '9', nvidia.com/gpu: '1' } }\n",
    );
    let pods = write(
        "pods.yaml",
        "kind: Pod\nmetadata: { name: p, uid: u }\nspec: { nodeName: nowhere }\nstatus: { phase: Running }\n---\n\
         kind: PodGroup\nmetadata: { name: g }\nspec: { queue: gone }\n---\n\
         kind: Pod\nmetadata: { name: full, uid: v }\nspec: { nodeName: n, containers: [{ resources: { limits: { nvidia.com/gpu: 2 } } }] }\n\
         status: { phase: Running }\n",
    );
    let sources = discover(&[nodes.clone(), pods.clone()], std::io::empty()).unwrap();
    let scenario = load(&sources[0], &NotInstalled).unwrap();
    let outcome = kai_simulate::run::run(scenario, &Options::default());
    std::fs::remove_dir_all(&folder).unwrap();
    let told: Vec<String> = outcome.warnings.lines().collect();
    for (file, words) in [
        (&pods, "PodGroup default/g: spec.queue"),
        (&pods, "Pod default/p: spec.nodeName"),
        (&nodes, "Node n: its pods hold 1 GPUs more"),
    ] {
        let expect = format!("{}: {words}", file.display());
        assert!(told.iter().any(|line| line.starts_with(&expect)), "{expect}: {told:#?}");
    }
}

/// The same names as in events of a cluster.
#[test]
fn reasons_name_the_workload_of_a_pod_group() {
    let owned = "  - { metadata: { name: a, namespace: ns, ownerReferences: [{ apiVersion: batch/v1, kind: Job, name: train, uid: u }] }, \
                 spec: { queue: mine, minMember: 1 } }\n";
    let text = case(
        "x",
        "",
        &(owned.to_owned() + &group("b", "mine")),
        &(pod("a", 2, Some("node")) + &pod("b", 2, None)),
    );
    let outcome = run(&text, 1);
    let reason = outcome.pods[1].reason.clone().unwrap_or_default();
    assert!(reason.ends_with("held by Job ns/train (2 GPUs)"), "{reason}");
}

#[test]
fn a_minimum_of_subgroups_above_their_number_is_warned_of() {
    let text = "kind: Queue\nmetadata: { name: q }\nspec: {}\n---\nkind: PodGroup\nmetadata: { name: g }\n\
                spec: { queue: q, minSubGroup: 3, subGroups: [{ name: a, minMember: 1 }] }\n";
    // `PodGroup::read` has the check; this crate prints its problems.
    let group: kai_api::PodGroup = serde_json::from_str(
        r#"{"metadata":{"name":"g"},"spec":{"queue":"q","minSubGroup":3,"subGroups":[{"name":"a","minMember":1}]}}"#,
    )
    .unwrap();
    let classes = kai_api::PriorityClasses::installed();
    let read = group.read(&classes, kai_engine::model::Millis(0)).unwrap();
    let expect: Vec<String> = read
        .problems
        .iter()
        .map(|problem| format!("m.yaml: {problem}"))
        .collect();
    assert_eq!(told(text), expect.join("\n"));
}

#[test]
fn workloads_with_a_generated_name_get_one() {
    let job = "kind: Job\nmetadata: { generateName: train- }\nspec: { template: { spec: { schedulerName: kai-scheduler } } }\n";
    let scenario = load_manifests(Path::new("m.yaml"), &format!("{job}---\n{job}"), &NotInstalled).unwrap();
    assert_eq!(pod_names(&scenario), ["train-0-0", "train-1-0"]);
}
