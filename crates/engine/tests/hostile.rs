//! Small versions of clusters that take a scheduler much work: bounds on steps of work, never on time. docs/performance.md has the times
//! on 1,000 nodes.

#[path = "../benches/clusters/mod.rs"]
mod clusters;

use clusters::{Case, NOW, hostile};
use kai_engine::model::{Config, Millis};
use kai_engine::reasons::Reason;
use kai_engine::report::{Decision, Report, Status};

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
