//! The project's own scenarios, and the world's rules between two cycles.

use std::path::Path;

use sim::outcome::Outcome;
use sim::run::Options;
use sim::scenario::{discover, load, load_case, load_manifests};

/// Everything under `scenarios/` at the root of the repository must come out as it says.
#[test]
fn all_scenarios_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let sources = discover(&[folder]).unwrap();
    assert!(!sources.is_empty(), "the project's scenarios are missing");
    let mut failed = Vec::new();
    for source in sources {
        let options = Options {
            check: true,
            ..Options::default()
        };
        match load(&source) {
            Ok(scenario) => {
                let told: Vec<String> = scenario.warnings.lines().collect();
                let outcome = sim::run::run(scenario, &options);
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
    assert_eq!(scenario.warnings.lines().collect::<Vec<_>>(), Vec::<String>::new());
    sim::run::run(
        scenario,
        &Options {
            cycles: Some(cycles),
            ..Options::default()
        },
    )
}

fn statuses(outcome: &Outcome) -> Vec<String> {
    let text = |pod: &sim::outcome::PodOutcome| {
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
fn bare_pods_of_manifests_get_a_gang_and_lists_are_opened() {
    let text = "kind: PodList\nitems:\n- metadata: { name: a }\n  spec: { schedulerName: kai-scheduler }\n---\n\
                kind: List\nitems:\n- kind: Queue\n  metadata: { name: default-queue }\n  spec: {}\n";
    let scenario = load_manifests(Path::new("m.yaml"), text).unwrap();
    assert_eq!(scenario.warnings.lines().collect::<Vec<_>>(), Vec::<String>::new());
    let gang = &scenario.objects.gangs[0];
    assert_eq!(
        (gang.key.to_string().as_str(), gang.queue.as_str()),
        ("default/pg-a", "default-queue")
    );
    assert_eq!((gang.priority, gang.preemptible, gang.min_member), (50, true, 1));
    assert_eq!(scenario.objects.pods[0].gang.as_ref(), Some(&gang.key));
}

#[test]
fn the_same_object_twice_is_worth_a_word() {
    let text = "kind: Node\nmetadata: { name: n }\n---\nkind: Node\nmetadata: { name: n }\n";
    let scenario = load_manifests(Path::new("m.yaml"), text).unwrap();
    let told: Vec<String> = scenario.warnings.lines().collect();
    assert_eq!(
        told,
        ["m.yaml: Node n: metadata.name: it is there twice (the later one counts)"]
    );
}
