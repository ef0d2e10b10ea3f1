//! Small versions of clusters that take a scheduler much work: bounds on steps of work, never on time. docs/performance.md has the times
//! on 1,000 nodes.

#[path = "../benches/clusters/mod.rs"]
mod clusters;

use clusters::{Case, NOW, hostile, hostile_terms};
use kai_engine::model::{Action, Config, Event, Millis, PodPhase};
use kai_engine::reasons::Reason;
use kai_engine::report::{ActionStats, Decision, Report, Status};

/// Cycles of a run; later cycles have other work than the first.
const CYCLES: usize = 3;

fn run(case: &mut Case, cycles: usize) -> Vec<Report> {
    let now = |cycle: usize| Millis(NOW.0 + 1000 * cycle as i64);
    (0..cycles)
        .map(|cycle| case.cluster.cycle(now(cycle), &case.config))
        .collect()
}

fn steps(report: &Report) -> u64 {
    report.action_stats.iter().map(|stats| stats.steps).sum()
}

/// Steps that allocate takes in the first cycle.
fn steps_to_allocate(build: hostile::Build, nodes: usize) -> u64 {
    run(&mut build(nodes), 1)[0].action_stats[0].steps
}

#[test]
fn every_cycle_of_every_hostile_cluster_keeps_to_a_budget_that_grows_with_its_size() {
    for (name, build) in hostile::ALL {
        for nodes in [50, 100, 200] {
            let mut case = build(nodes);
            let work = case.config.work_for(nodes, case.cluster.pods().len());
            for report in run(&mut case, 2) {
                let steps = steps(&report);
                assert!(
                    steps <= work + work / 20,
                    "{name} on {nodes} nodes: {steps} steps of {work}"
                );
            }
        }
    }
}

#[test]
fn a_small_budget_is_kept_by_every_hostile_cluster() {
    for (name, build) in hostile::ALL {
        for work in [10_000, 100_000] {
            let mut case = build(50);
            case.config.work_per_cycle_max = Some(work);
            for report in run(&mut case, CYCLES) {
                let steps = steps(&report);
                // An action whose budget is used up completes what it has begun: at most one simulation.
                assert!(steps <= work + 20_000, "{name}: {steps} steps of {work}");
            }
        }
    }
}

#[test]
fn neighbours_of_a_pod_are_found_without_a_look_at_all_pods() {
    for (name, build) in [
        ("anti-host", hostile::anti_host as hostile::Build),
        ("aff-rack", hostile::aff_rack),
    ] {
        for nodes in [50, 100, 200] {
            let (steps, pods) = (steps_to_allocate(build, nodes), 8 * nodes as u64);
            assert!(steps <= 40 * pods, "{name}: {steps} steps for {pods} pods");
        }
    }
}

#[test]
fn a_shape_per_pod_costs_no_look_at_all_nodes_per_pod() {
    for nodes in [50, 100, 200] {
        let (steps, pods) = (steps_to_allocate(hostile::distinct, nodes), 8 * nodes as u64);
        assert!(steps <= pods * (10 + nodes as u64 / 8), "{steps} steps for {pods} pods");
    }
}

#[test]
fn gangs_that_a_small_budget_leaves_out_start_in_later_cycles() {
    for (name, build) in [
        ("anti-host", hostile::anti_host as hostile::Build),
        ("aff-rack", hostile::aff_rack),
        ("distinct", hostile::distinct),
    ] {
        let count = |reports: &[Report]| {
            let decisions = reports.iter().flat_map(|report| &report.decisions);
            decisions
                .filter(|decision| matches!(decision, Decision::Bind(_)))
                .count()
        };
        let mut whole = build(40);
        whole.config.work_per_cycle_max = Some(u64::MAX);
        let expect = count(&run(&mut whole, 1));
        let mut case = build(40);
        case.config.work_per_cycle_max = Some(2_000);
        let first = run(&mut case, 1);
        assert!(count(&first) < expect, "{name}: the budget is small enough to matter");
        assert!(first[0].action_stats.iter().any(|stats| stats.exhausted), "{name}");
        let waits = case
            .cluster
            .pods()
            .into_iter()
            .filter(|pod| pod.status == Status::Pending);
        let reasons: Vec<Option<Reason>> = waits.map(|pod| pod.reason).collect();
        assert!(reasons.contains(&Some(Reason::CutShort)), "{name}: {reasons:?}");
        let gangs = 8 * 40;
        let rest = run(&mut case, gangs);
        assert_eq!(count(&first) + count(&rest), expect, "{name}");
    }
}

const WITH_TERMS: [(&str, hostile::Build); 5] = [
    ("anti-notin", hostile_terms::anti_not_in),
    ("anti-many-terms", hostile_terms::anti_many_terms),
    ("anti-crossed", hostile_terms::anti_crossed),
    ("many-topology-keys", hostile_terms::many_topology_keys),
    ("preferred-everywhere", hostile_terms::preferred_everywhere),
];

/// Steps that events take.
fn steps_to_apply(case: &mut Case, events: Vec<Event>) -> u64 {
    let before = case.cluster.steps();
    events.into_iter().for_each(|event| case.cluster.apply(event));
    case.cluster.steps() - before
}

#[test]
fn events_of_pods_with_many_terms_take_steps_by_their_number() {
    for (name, build) in WITH_TERMS {
        for nodes in [50, 100, 200] {
            let mut case = build(nodes);
            let specs = case.pods.take().expect("the pods are recorded");
            let (pods, work) = (specs.len() as u64, 100_000);
            case.config.work_per_cycle_max = Some(work);
            let first = case.cluster.steps();
            assert!(first <= 100 * pods, "{name} on {nodes} nodes, all new: {first}");
            let cycle = |case: &mut Case| {
                let before = case.cluster.steps();
                run(case, 1);
                let steps = case.cluster.steps() - before;
                // As above, and one selector that is matched with all pods.
                let most = work + 20_000 + 10 * pods;
                assert!(steps <= most, "{name} on {nodes} nodes: {steps} steps of {work}");
            };
            cycle(&mut case);
            let again = specs.iter().cloned().map(Event::Pod).collect();
            let again = steps_to_apply(&mut case, again);
            assert!(again <= 2_000 * pods, "{name} on {nodes} nodes, unchanged: {again}");
            cycle(&mut case);
            let relabelled = specs.iter().cloned().map(|mut pod| {
                pod.labels.insert("step".to_owned(), pod.name.clone());
                Event::Pod(pod)
            });
            let relabelled = relabelled.collect();
            let relabelled = steps_to_apply(&mut case, relabelled);
            assert!(
                relabelled <= 2_000 * pods,
                "{name} on {nodes} nodes, relabelled: {relabelled}"
            );
            cycle(&mut case);
            let replaced = specs.iter().cloned().flat_map(|pod| {
                let gone = Event::PodGone(pod.uid.clone());
                [gone, Event::Pod(pod)]
            });
            let replaced = replaced.collect();
            let replaced = steps_to_apply(&mut case, replaced);
            assert!(
                replaced <= 2_000 * pods,
                "{name} on {nodes} nodes, replaced: {replaced}"
            );
            cycle(&mut case);
        }
    }
}

#[test]
fn an_event_that_changes_no_label_and_no_term_of_a_pending_pod_costs_a_few_steps() {
    for (name, build) in WITH_TERMS {
        let mut case = build(50);
        let specs = case.pods.take().expect("the pods are recorded");
        case.cluster.cycle(
            NOW,
            &Config {
                actions: Vec::new(),
                ..Config::default()
            },
        );
        let pending = specs.into_iter().filter(|pod| pod.phase == PodPhase::Pending);
        let events: Vec<Event> = pending.map(Event::Pod).collect();
        let pods = events.len() as u64;
        let steps = steps_to_apply(&mut case, events);
        assert!(steps <= 12 * pods, "{name}: {steps} steps for {pods} pods");
    }
}

#[test]
fn many_terms_of_a_tenant_keep_no_pod_of_others_waiting() {
    for (name, build) in WITH_TERMS {
        let mut case = build(50);
        let reports = run(&mut case, 4);
        let views = case.cluster.pods();
        let plain = views.iter().filter(|pod| pod.namespace == hostile_terms::PLAIN);
        let waiting = plain.filter(|pod| pod.status == Status::Pending).count();
        let binds = reports.iter().map(|report| report.decisions.len());
        assert_eq!(waiting, 0, "{name}: decisions by cycle {:?}", binds.collect::<Vec<_>>());
    }
}

#[test]
fn background_pods_with_many_terms_take_a_part_of_the_budget_and_still_make_room() {
    for nodes in [50, 100, 200] {
        let mut case = hostile_terms::background_terms(nodes);
        let work = case.config.work_for(nodes, case.cluster.pods().len());
        let reports = run(&mut case, 20);
        let mut evicted = 0;
        for report in &reports {
            let of_background = |stats: &&ActionStats| stats.action == Action::BackgroundPods;
            let steps: u64 = report
                .action_stats
                .iter()
                .filter(of_background)
                .map(|stats| stats.steps)
                .sum();
            assert!(steps <= work / 2, "{nodes} nodes: {steps} steps of {work}");
            let is_eviction = |decision: &&Decision| matches!(decision, Decision::Evict { .. });
            evicted += report.decisions.iter().filter(is_eviction).count();
        }
        assert_eq!(evicted, 8, "{nodes} nodes: one node is emptied");
        let mut case = hostile_terms::background_terms(nodes);
        let work = 20_000;
        case.config.work_per_cycle_max = Some(work);
        let start = case.cluster.steps();
        run(&mut case, 1);
        // As above, and what every cycle counts of gangs and pods.
        let most = work + 20_000 + 2 * 8 * nodes as u64;
        let steps = case.cluster.steps() - start;
        assert!(steps <= most, "{nodes} nodes: {steps} steps of {work}");
    }
}

#[test]
fn the_default_budget_grows_with_the_cluster() {
    let config = Config::default();
    assert!(config.work_for(1_000, 8_000) < 2 * config.work_for(100, 800) + 2_000_000);
    assert_eq!(config.work_for(20, 20) - config.work_for(10, 10), 20 * 100);
    assert_eq!(config.work_for(usize::MAX, usize::MAX), u64::MAX);
    let fixed = Config {
        work_per_cycle_max: Some(7),
        ..Config::default()
    };
    assert_eq!(fixed.work_for(1_000, 8_000), 7);
}
