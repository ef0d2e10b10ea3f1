//! Runs of many seeds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use crate::fault_run::{RunSummary, run_plan};
use crate::plan::Plan;
use crate::shrink::shrunk;

/// Seeds in an ordinary run of the tests.
const SEEDS: u64 = 4;
/// Failures that are printed with their details.
const FAILURES_SHOWN: usize = 5;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn random_lives_keep_the_laws() {
    match number("KAI_FAULT_SEED") {
        Some(seed) => replay(seed),
        None => many(
            number("KAI_FAULT_FIRST").unwrap_or(0),
            number("KAI_FAULT_SEEDS").unwrap_or(SEEDS),
        ),
    }
}

/// The digest covers all calls and deliveries with their times, and all objects at the end.
#[test]
fn a_life_replays_from_its_seed() {
    for seed in [7, 8] {
        let plan = Plan::drawn(seed);
        let (once, again) = (run_plan(&plan, false).unwrap(), run_plan(&plan, false).unwrap());
        assert_eq!(once, again, "seed {seed}");
    }
}

fn replay(seed: u64) {
    if std::env::var("RUST_LOG").is_ok() {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .without_time()
            .try_init();
    }
    let mut plan = Plan::drawn(seed);
    if number("KAI_FAULT_SHRINK").is_some() {
        plan = shrunk(&plan, |plan| run_plan(plan, false).is_err());
    }
    println!(
        "nodes {:?}\n{:?}",
        plan.nodes.iter().map(|node| &node.gpus).collect::<Vec<_>>(),
        plan.rates
    );
    match run_plan(&plan, true) {
        Ok(told) => println!("seed {seed}: {told:?}"),
        Err(problem) => panic!("seed {seed}: {problem}"),
    }
}

fn many(first: u64, count: u64) {
    let (next, started) = (AtomicU64::new(first), Instant::now());
    let told: Mutex<Vec<RunSummary>> = Mutex::default();
    let failed: Mutex<Vec<(u64, String)>> = Mutex::default();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    match run_plan(&Plan::drawn(seed), false) {
                        Ok(one) => told.lock().push(one),
                        Err(problem) => failed.lock().push((seed, problem)),
                    }
                }
            });
        }
    });
    let (told, mut failed) = (told.into_inner(), failed.into_inner());
    let sum = |of: fn(&RunSummary) -> u64| told.iter().map(of).sum::<u64>();
    let mut faults: BTreeMap<&str, u64> = BTreeMap::new();
    for (kind, times) in told.iter().flat_map(|one| &one.faults) {
        *faults.entry(kind).or_default() += times;
    }
    println!(
        "{count} seeds from {first} on in {:.1} s, {} failed; in the others {} steps, {} calls of roles, {} faults:",
        started.elapsed().as_secs_f64(),
        failed.len(),
        sum(|one| one.steps),
        sum(|one| one.requests),
        faults.values().sum::<u64>(),
    );
    for (kind, times) in &faults {
        println!("{times:>9} {kind}");
    }
    failed.sort();
    for (seed, problem) in failed.iter().take(FAILURES_SHOWN) {
        println!("seed {seed}: {problem}\n");
    }
    let seeds: Vec<u64> = failed.iter().map(|(seed, _)| *seed).collect();
    for (seed, problem) in &failed {
        println!("seed {seed}: {}", problem.lines().next().unwrap_or_default());
    }
    assert!(
        failed.is_empty(),
        "seeds {seeds:?} fail; this tells the story of one, with KAI_FAULT_SHRINK=1 a short one:\n\
         KAI_FAULT_SEED={} cargo test --profile faults -p kai-cli --test faults random_lives -- --nocapture",
        seeds[0]
    );
}
