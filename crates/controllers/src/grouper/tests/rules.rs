//! Declared rules: those of an administrator, and the shipped ones with objects as Grove and Volcano write them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::PodOrigin;
use super::super::rules::{RuleOfKind, RuleSet};
use super::{Fixture, check, labelled, object, pod};

fn with_rules(rules: &[(&str, &str)]) -> Fixture {
    let mut fixture = Fixture::default();
    let set = RuleSet::load(rules.iter().copied(), &RuleSet::default());
    assert_eq!(set.problems(), []);
    fixture.options.rules = Arc::new(set);
    fixture
}

const FARM: &str = r#"
apiVersion: example.com/v1
kind: Farm
minimum: [{annotation: example.com/minimum}, {sum: "spec.workers[*]", of: [minimum, replicas], times: spec.hosts}]
queue: {path: spec.team, except: [none]}
priorityClass: [spec.urgency, {value: low}]
preemptibility: spec.preemptibility
topology: {name: {value: racks}, required: spec.rack}
subgroups:
  - name: {value: head}
    minimum: {value: 1}
    pods: {label: example.com/head, equals: {value: "yes"}}
  - list: spec.workers
    name: role
    minimum: [minimum, replicas]
    topology: {preferred: near}
    pods: {label: example.com/role}
"#;

fn farm(spec: Value) -> Value {
    object("example.com/v1", "Farm", "f", json!({ "spec": spec }))
}

#[test]
fn values_come_from_the_fields_of_the_rule() {
    let fixture = with_rules(&[("farm", FARM)]);
    let workers = json!([{ "role": "a", "replicas": 2, "minimum": 1 }, { "role": "b", "replicas": 3, "near": "host" }]);
    let spec = json!({ "workers": workers, "team": "vision", "urgency": "high", "rack": "rack" });
    let mut whole = farm(spec.clone());
    whole["metadata"]["annotations"] = json!({ "example.com/minimum": "5" });
    fixture.check(
        &[whole.clone()],
        &labelled(json!({ "example.com/role": "b" })),
        "pg-f-u-f of Farm/f queue=vision priority=high min=5 racks(rack/) [head:1, a:1, b:3 racks(/host)] -> b",
    );
    fixture.check(
        &[whole.clone()],
        &labelled(json!({ "example.com/head": "yes" })),
        "pg-f-u-f of Farm/f queue=vision priority=high min=5 racks(rack/) [head:1, a:1, b:3 racks(/host)] -> head",
    );
    // Without the annotation the minimum is 4, which is not that of the subgroups.
    fixture.check(
        &[farm(spec)],
        &pod(json!({})),
        "pg-f-u-f of Farm/f queue=vision priority=high min=4 racks(rack/)",
    );
    fixture.check(
        &[farm(
            json!({ "workers": workers_of(3), "hosts": 2, "team": "none", "urgency": "unknown" }),
        )],
        &pod(json!({})),
        "pg-f-u-f of Farm/f queue=default-queue priority=low min=6",
    );
    fixture.check(
        &[whole],
        &labelled(json!({ "example.com/role": "c" })),
        "Pod ns/p: metadata: it is in no subgroup of Farm f (head, a, b); rule farm looks for label example.com/head, else label \
         example.com/role",
    );
}

fn workers_of(replicas: i32) -> Value {
    json!([{ "role": "a", "replicas": replicas }])
}

#[test]
fn a_wrong_field_of_a_workload_is_named() {
    let fixture = with_rules(&[("farm", FARM)]);
    let told = |spec: Value, expect: &str| fixture.check(&[farm(spec)], &pod(json!({})), expect);
    told(
        json!({ "workers": [{ "role": "a", "replicas": "many" }] }),
        "Farm ns/f: spec.workers[0].replicas: \"many\" is not a number of pods; write a whole number of zero or more",
    );
    told(
        json!({ "workers": [{ "role": "A b", "replicas": 1 }] }),
        "Farm ns/f: spec.workers[0].role: \"A b\" is no name of a subgroup; use up to 63 lower-case letters, digits and dashes",
    );
    told(
        json!({ "workers": [{ "replicas": 1 }] }),
        "Farm ns/f: spec.workers[0]: it has no name for a subgroup: role is missing",
    );
    told(
        json!({ "workers": [{ "role": "head", "replicas": 1 }] }),
        "Farm ns/f: spec.workers[0].role: two subgroups have the name head; rename one",
    );
    told(
        json!({ "workers": {}, "preemptibility": "maybe" }),
        "Farm ns/f: spec.preemptibility: \"maybe\" is neither preemptible, semi-preemptible nor non-preemptible; write one of them",
    );
    told(
        json!({ "workers": [{ "role": "a", "replicas": 2_000_000_000 }, { "role": "b", "replicas": 2_000_000_000 }] }),
        "Farm ns/f: spec.workers[1]: so many pods are no workload",
    );
    told(
        json!({ "team": { "a": 1 } }),
        "Farm ns/f: spec.team: it has fields and is not one value; the grouping rule has to name one",
    );
}

#[test]
fn origins_say_where_values_come_from() {
    let fixture = with_rules(&[("farm", FARM)]);
    let spec = json!({ "workers": workers_of(2), "team": "vision", "rack": "rack" });
    let desired = fixture.desired(&[farm(spec)], &pod(json!({}))).unwrap();
    let origins = desired.origins;
    assert_eq!(origins.rule, "farm");
    assert_eq!(origins.minimum, "sum over spec.workers[*]");
    assert_eq!(origins.queue, "spec.team");
    assert_eq!(origins.priority_class, "constant of the rule");
    assert_eq!(origins.topology, "spec.rack");
    assert_eq!(
        origins.sub_groups,
        "none: their minimums sum up to 3, and the minimum of all is 2"
    );
    let built_in = fixture
        .desired(&[object("batch/v1", "Job", "j", json!({}))], &pod(json!({})))
        .unwrap();
    assert_eq!(built_in.origins.rule, "built in for Job");
    assert_eq!(built_in.origins.queue, "default");
}

const BASIC: &str = "minimum: {value: 7}\n";

#[test]
fn the_rule_is_found_along_the_chain_of_owners() {
    let farm_rule = format!("apiVersion: example.com/*\nkind: Farm\n{BASIC}");
    let fixture = with_rules(&[("farm", &farm_rule)]);
    let farm = || object("example.com/v3", "Farm", "f", json!({}));
    let set = || object("apps/v1", "StatefulSet", "s", json!({}));
    let seven = "pg-f-u-f of Farm/f queue=default-queue priority=train min=7";
    fixture.check(&[set(), farm()], &pod(json!({})), seven);
    // An owner above that nobody knows, and one that the code skips.
    let above = object("other.com/v1", "Pipeline", "x", json!({}));
    fixture.check(&[set(), farm(), above.clone()], &pod(json!({})), seven);
    let workflow = object("argoproj.io/v1alpha1", "Workflow", "w", json!({}));
    fixture.check(&[set(), farm(), workflow.clone()], &pod(json!({})), seven);
    fixture.check(&[farm(), above, workflow], &pod(json!({})), seven);
    // A kind of the code above wins.
    let job = object("batch/v1", "Job", "j", json!({}));
    fixture.check(
        &[farm(), job],
        &pod(json!({})),
        "pg-j-u-j of Job/j queue=default-queue priority=train min=1",
    );
}

#[test]
fn the_code_wins_unless_the_rule_says_otherwise() {
    let job = |more: &str| format!("apiVersion: batch/v1\nkind: Job\n{BASIC}{more}");
    let plain = job("");
    let set = RuleSet::load([("job", plain.as_str())], &RuleSet::default());
    assert_eq!(
        set.problems()[0].to_string(),
        "rule job: override: kai groups Job of batch/v1 by its own rule; write override: true to replace it, or delete this one"
    );
    let mut fixture = Fixture::default();
    fixture.options.rules = Arc::new(set);
    let owners = [object("batch/v1", "Job", "j", json!({}))];
    let line = |min: i32| format!("pg-j-u-j of Job/j queue=default-queue priority=train min={min}");
    fixture.check(&owners, &pod(json!({})), &line(1));
    with_rules(&[("job", &job("override: true\n"))]).check(&owners, &pod(json!({})), &line(7));
}

#[test]
fn a_broken_rule_concerns_its_kind_only() {
    let good = |kind: &str| format!("apiVersion: example.com/v1\nkind: {kind}\n{BASIC}");
    let bad = "apiVersion: example.com/v1\nkind: Farm\nminimun: 1\n";
    let (farm, mill) = (good("Farm"), good("Mill"));
    let mut fixture = Fixture::default();
    let check = |fixture: &Fixture, kind: &str, expect: &str| {
        fixture.check(
            &[object("example.com/v1", kind, "x", json!({}))],
            &pod(json!({})),
            expect,
        );
    };
    let line = |kind: &str, min: i32| format!("pg-x-u-x of {kind}/x queue=default-queue priority=train min={min}");
    let problem = "rule farm: minimun: there is no such field here; did you mean minimum?";
    // Never valid so far: its pods wait.
    let set = RuleSet::load([("farm", bad), ("mill", mill.as_str())], &RuleSet::default());
    assert!(set.problems()[0].to_string().starts_with(problem));
    fixture.options.rules = Arc::new(set);
    check(&fixture, "Mill", &line("Mill", 7));
    let told = fixture
        .desired(&[object("example.com/v1", "Farm", "x", json!({}))], &pod(json!({})))
        .unwrap_err();
    assert!(
        told.starts_with(&format!(
            "Pod ns/p: metadata.ownerReferences: pods of Farm x wait for a valid rule: {problem}"
        )),
        "{told}"
    );
    // Valid before: that version holds, also if the text is no YAML.
    let before = RuleSet::load([("farm", farm.as_str()), ("mill", mill.as_str())], &RuleSet::default());
    for text in [bad, "kind: ["] {
        let after = RuleSet::load([("farm", text), ("mill", mill.as_str())], &before);
        assert!(after.problems()[0].keeps_last);
        assert!(matches!(
            after.rule_of_kind("example.com/v1", "Farm"),
            Some(RuleOfKind::Valid(_))
        ));
        let later = RuleSet::load([("farm", text)], &after);
        fixture.options.rules = Arc::new(later);
        check(&fixture, "Farm", &line("Farm", 7));
        check(&fixture, "Mill", &line("Mill", 1));
    }
    // The second rule for a kind is refused, and the first holds.
    let twice = RuleSet::load([("a", farm.as_str()), ("b", farm.as_str())], &RuleSet::default());
    assert_eq!(
        twice.problems()[0].to_string(),
        "rule b: kind: rule a groups Farm of example.com/v1 already; delete one"
    );
    fixture.options.rules = Arc::new(twice);
    check(&fixture, "Farm", &line("Farm", 7));
}

#[test]
fn an_administrator_s_rule_replaces_a_shipped_one() {
    let rule = format!("apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\n{BASIC}");
    with_rules(&[("mine", &rule)]).check(
        &[object("batch.volcano.sh/v1alpha1", "Job", "j", json!({}))],
        &pod(json!({})),
        "pg-j-u-j of Job/j queue=default-queue priority=train min=7",
    );
    // The other kinds of a shipped rule keep it.
    let rule = format!("apiVersion: grove.io/v1alpha1\nkind: PodClique\n{BASIC}");
    let fixture = with_rules(&[("mine", &rule)]);
    let told = fixture.desired(
        &[object("grove.io/v1alpha1", "PodCliqueSet", "s", json!({}))],
        &pod(json!({})),
    );
    assert!(
        told.unwrap_err()
            .contains("shipped rule grove.yaml takes the name of its PodGang")
    );
}

/// As Grove's operator writes it for a set with a stand-alone clique and a scaling group of two.
fn pod_gang() -> Value {
    let references = |clique: &str, count: i32| {
        let names = (0..count).map(|index| json!({ "namespace": "ns", "name": format!("{clique}-{index}x") }));
        names.collect::<Vec<_>>()
    };
    let group = |clique: &str, min: i32| json!({ "name": clique, "podReferences": references(clique, min), "minReplicas": min });
    let mut leader = group("llm-0-decode-0-leader", 1);
    leader["topologyConstraint"] = json!({ "packConstraint": { "required": "kubernetes.io/hostname" } });
    object(
        "scheduler.grove.io/v1alpha1",
        "PodGang",
        "llm-0",
        json!({
            "metadata": { "labels": { "app.kubernetes.io/managed-by": "grove-operator" }, "annotations": { "grove.io/topology-name": "grove" } },
            "spec": {
                "podgroups": [group("llm-0-router", 2), leader, group("llm-0-decode-0-worker", 3)],
                "topologyConstraint": { "packConstraint": { "preferred": "rack" } },
                "topologyConstraintGroupConfigs": [
                    { "name": "llm-0-decode-0", "podGroupNames": ["llm-0-decode-0-leader", "llm-0-decode-0-worker"],
                      "topologyConstraint": { "packConstraint": { "required": "rack" } } },
                    { "name": "empty", "podGroupNames": [] },
                ],
                "priorityClassName": "high",
            },
        }),
    )
}

fn pod_clique_set() -> Value {
    let labels = json!({ "kai.scheduler/queue": "serving" });
    object(
        "grove.io/v1alpha1",
        "PodCliqueSet",
        "llm",
        json!({ "metadata": { "labels": labels } }),
    )
}

fn grove_owners() -> Vec<Value> {
    let clique = object("grove.io/v1alpha1", "PodClique", "llm-0-decode-0-worker", json!({}));
    let group = object("grove.io/v1alpha1", "PodCliqueScalingGroup", "llm-0-decode", json!({}));
    vec![clique, group, pod_clique_set()]
}

const GROVE: &str = "pg-llm-0-u-llm-0 of PodGang/llm-0 queue=serving priority=high min=6 grove(/rack) [llm-0-decode-0=2 grove(rack/), \
                     llm-0-router:2, llm-0-decode-0/llm-0-decode-0-leader:1 grove(kubernetes.io/hostname/), \
                     llm-0-decode-0/llm-0-decode-0-worker:3]";

#[test]
fn grove() {
    let fixture = Fixture::default().with_object(pod_gang());
    let member = |labels: Value| labelled(json!({ "grove.io/podgang": "llm-0" })).merged(labels);
    fixture.check(
        &grove_owners(),
        &member(json!({ "metadata": { "labels": { "grove.io/podclique": "llm-0-decode-0-worker" } } })),
        &format!("{GROVE} -> llm-0-decode-0-worker"),
    );
    // By the references of the gang, too.
    fixture.check(
        &grove_owners(),
        &member(json!({ "metadata": { "name": "llm-0-router-1x" } })),
        &format!("{GROVE} -> llm-0-router"),
    );
    fixture.check(
        &[object(
            "grove.io/v1alpha1",
            "PodGangSet",
            "llm",
            json!({ "metadata": { "labels": { "kai.scheduler/queue": "serving" } } }),
        )],
        &member(json!({ "metadata": { "labels": { "grove.io/podclique": "llm-0-router" } } })),
        &format!("{GROVE} -> llm-0-router"),
    );
    // Dynamo's graphs own the sets.
    let mut owners = grove_owners();
    owners.push(object("nvidia.com/v1alpha1", "DynamoGraphDeployment", "d", json!({})));
    fixture.check(
        &owners,
        &member(json!({ "metadata": { "labels": { "grove.io/podclique": "llm-0-router" } } })),
        &format!("{GROVE} -> llm-0-router"),
    );
    check(
        &grove_owners(),
        &labelled(json!({ "grove.io/podgang": "llm-0" })),
        "needs PodGang llm-0",
    );
    check(
        &grove_owners(),
        &pod(json!({})),
        "Pod ns/p: metadata: shipped rule grove.yaml takes the name of its PodGang from label grove.io/podgang of the pod, and there is \
         none (yet); check that the operator of PodCliqueSet runs",
    );
}

#[test]
fn grove_without_a_topology_name() {
    let mut gang = pod_gang();
    gang["metadata"]["annotations"] = json!({});
    let member = labelled(json!({ "grove.io/podgang": "llm-0", "grove.io/podclique": "llm-0-router" }));
    Fixture::default().with_object(gang).check(
        &grove_owners(),
        &member,
        "PodGang ns/llm-0: spec.topologyConstraint.packConstraint.preferred: a topology level needs the name of the topology; annotate \
         PodGang llm-0 with kai.scheduler/topology",
    );
}

trait Merged {
    fn merged(self, other: Value) -> Value;
}

impl Merged for Value {
    fn merged(mut self, other: Value) -> Value {
        super::merge(&mut self, other);
        self
    }
}

fn volcano_job(spec: Value) -> Value {
    object("batch.volcano.sh/v1alpha1", "Job", "mpi", json!({ "spec": spec }))
}

/// As Volcano's controller labels its pods.
fn volcano_pod(task: &str) -> Value {
    labelled(json!({ "volcano.sh/job-name": "mpi", "volcano.sh/task-spec": task, "volcano.sh/queue-name": "default" }))
}

#[test]
fn volcano_jobs() {
    let tasks = json!([{ "name": "master", "replicas": 1 }, { "name": "worker", "replicas": 4, "minAvailable": 2 }]);
    let groups = "min=3 [master:1, worker:2] -> worker";
    let line = |queue: &str, rest: &str| format!("pg-mpi-u-mpi of Job/mpi queue={queue} priority=train {rest}");
    check(
        &[volcano_job(
            json!({ "minAvailable": 3, "queue": "default", "tasks": tasks }),
        )],
        &volcano_pod("worker"),
        &line("default-queue", groups),
    );
    check(
        &[volcano_job(
            json!({ "minAvailable": 0, "queue": "research", "tasks": tasks }),
        )],
        &volcano_pod("worker"),
        &line("research", groups),
    );
    // Any two pods, as under Volcano.
    check(
        &[volcano_job(json!({ "minAvailable": 2, "tasks": tasks }))],
        &volcano_pod("worker"),
        &line("default-queue", "min=2"),
    );
    let mut job =
        volcano_job(json!({ "minAvailable": 3, "queue": "research", "priorityClassName": "high", "tasks": tasks }));
    job["metadata"]["labels"] = json!({ "kai.scheduler/queue": "own" });
    check(
        &[job],
        &volcano_pod("master"),
        "pg-mpi-u-mpi of Job/mpi queue=own priority=high min=3 [master:1, worker:2] -> master",
    );
}

#[test]
fn a_template_needs_no_subgroup() {
    let job = volcano_job(json!({ "tasks": [{ "name": "a", "replicas": 1 }] }));
    let fixture = Fixture::default();
    let template = fixture.with_workload(std::slice::from_ref(&job), &pod(json!({})), |workload| {
        super::desired_pod_group(&super::Workload {
            pod_origin: PodOrigin::Template,
            ..*workload
        })
    });
    assert_eq!(
        template.unwrap().to_string(),
        "pg-mpi-u-mpi of Job/mpi queue=default-queue priority=train min=1 [a:1]"
    );
}

/// Nothing that a tenant writes costs more than a step per element of a list.
#[test]
fn a_large_list_takes_no_longer_than_its_length() {
    let count = kai_api::SUB_GROUPS_MAX + 1;
    let tasks: Vec<Value> = (0..count)
        .map(|at| json!({ "name": format!("t{at}"), "replicas": 1 }))
        .collect();
    let told = Fixture::default().desired(&[volcano_job(json!({ "tasks": tasks }))], &volcano_pod("t0"));
    assert!(told.unwrap_err().contains("subgroups; use fewer"));
    let tasks = vec![json!({ "name": "t", "replicas": 1 }); 20_000];
    let told = Fixture::default().desired(&[volcano_job(json!({ "tasks": tasks }))], &volcano_pod("t"));
    assert!(told.unwrap_err().contains("selects more than 10000 values"));
}

/// Whatever a rule or a workload says: a pod group whose subgroups are a tree of leaves with minimums, or an error.
fn holds(rules: Arc<RuleSet>, owners: &[Value], pod: &Value) {
    let mut fixture = Fixture::default().with_object(pod_gang());
    fixture.options.rules = rules;
    let Ok(desired) = fixture.desired(owners, pod) else {
        return;
    };
    let groups = &desired.spec.sub_groups;
    let of_pod = desired
        .sub_group
        .iter()
        .all(|name| groups.iter().any(|group| group.name == *name));
    assert!(of_pod, "{desired}");
    let minimums: i64 = groups.iter().filter_map(|group| group.min_member).map(i64::from).sum();
    assert!(
        groups.is_empty() || desired.spec.min_member.map(i64::from) == Some(minimums),
        "{desired}"
    );
    for group in groups {
        let count = groups.iter().filter(|other| other.name == group.name).count();
        let has_parent = group
            .parent
            .iter()
            .all(|parent| groups.iter().any(|other| other.name == *parent));
        let is_leaf = group.min_sub_group.is_none();
        let has_members = groups.iter().any(|other| other.parent.as_ref() == Some(&group.name));
        assert!(count == 1 && has_parent && is_leaf != has_members, "{desired}");
    }
}

fn mutated_rules(fuzz: kai_fuzz::Fuzz) {
    let workers = json!([{ "role": "a", "replicas": 2, "minimum": 1 }, { "role": "b", "replicas": 3, "near": "host" }]);
    let owners = [farm(
        json!({ "workers": workers, "team": "vision", "urgency": "high", "rack": "rack" }),
    )];
    let member = labelled(json!({ "example.com/role": "b", "grove.io/podgang": "llm-0" }));
    let words = [
        "[*]",
        "{sum: ",
        "members: ",
        "spec.workers[*].role",
        "- ",
        "override: true\n",
        "\n",
        "[\"",
        "except: [1]",
    ];
    let grove = include_str!("../rules/shipped/grove.yaml");
    fuzz.texts(&[FARM, grove], &words, |text| {
        let rules = RuleSet::load([("rule", text)], &RuleSet::default());
        holds(Arc::new(rules), &owners, &member);
    });
}

fn mutated_workloads(fuzz: kai_fuzz::Fuzz) {
    let tasks = json!([{ "name": "master", "replicas": 1 }, { "name": "worker", "replicas": 4, "minAvailable": 2 }]);
    let seeds = [
        volcano_job(json!({ "minAvailable": 3, "queue": "default", "tasks": tasks })),
        pod_gang(),
    ];
    let shipped = Arc::new(RuleSet::shipped());
    fuzz.json(&seeds, |object| {
        let mut object = object.clone();
        if !object.is_object() {
            return;
        }
        // The API server writes these.
        let (api_version, kind, name) = match object["spec"].get("podgroups") {
            Some(_) => ("scheduler.grove.io/v1alpha1", "PodGang", "llm-0"),
            None => ("batch.volcano.sh/v1alpha1", "Job", "mpi"),
        };
        object["apiVersion"] = api_version.into();
        object["kind"] = kind.into();
        object["metadata"] = json!({ "name": name, "namespace": "ns", "uid": "u" });
        if kind == "Job" {
            return holds(Arc::clone(&shipped), &[object], &volcano_pod("worker"));
        }
        let mut fixture = Fixture::default().with_object(object);
        fixture.options.rules = Arc::clone(&shipped);
        let member = labelled(json!({ "grove.io/podgang": "llm-0", "grove.io/podclique": "llm-0-router" }));
        let _ = fixture.desired(&grove_owners(), &member);
    });
}

#[test]
fn mutated_rules_make_whole_gangs_or_errors() {
    mutated_rules(kai_fuzz::Fuzz::short("grouping rules").at_most(2_000));
}

#[test]
fn mutated_workloads_make_whole_gangs_or_errors() {
    mutated_workloads(kai_fuzz::Fuzz::short("workloads of grouping rules").at_most(2_000));
}

#[test]
#[ignore = "runs for KAI_FUZZ_SECONDS"]
fn long_run_of_rules() {
    mutated_rules(kai_fuzz::Fuzz::long("grouping rules"));
}

#[test]
#[ignore = "runs for KAI_FUZZ_SECONDS"]
fn long_run_of_workloads() {
    mutated_workloads(kai_fuzz::Fuzz::long("workloads of grouping rules"));
}
