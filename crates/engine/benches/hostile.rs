//! The table of hostile clusters in docs/performance.md: `cargo bench -p kai-engine --bench hostile -- [NODES|NAME]...`.
//!
//! Prints, for each cluster, the processor time of all its events and of the longest of five cycles, the steps of that cycle, and the
//! pods that were bound. Times are those that Linux counts for the thread, so that other programs disturb them little.

mod clusters;

use clusters::{Case, NOW, hostile};
use kai_engine::model::Millis;
use kai_engine::report::Decision;

const CYCLES: i64 = 5;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with('-')).collect();
    let sizes: Vec<usize> = arguments.iter().filter_map(|it| it.parse().ok()).collect();
    let names: Vec<&String> = arguments.iter().filter(|it| it.parse::<usize>().is_err()).collect();
    let sizes = if sizes.is_empty() {
        vec![250, 500, 1000, 2000]
    } else {
        sizes
    };
    println!("| shape | nodes | events, ms | longest cycle, ms | its steps | bound |\n|---|---|---|---|---|---|");
    for (name, build) in hostile::ALL {
        if names.is_empty() || names.iter().any(|it| *it == name) {
            sizes.iter().for_each(|nodes| measure(name, build, *nodes));
        }
    }
}

fn measure(name: &str, build: hostile::Build, nodes: usize) {
    let before = processor_micros();
    let mut case = build(nodes);
    let events = processor_micros() - before;
    let (mut longest, mut bound) = ((0, 0), 0);
    for number in 0..CYCLES {
        longest = longest.max(cycle(&mut case, number, &mut bound));
    }
    let (micros, steps) = longest;
    println!(
        "| `{name}` | {nodes} | {} | {:.1} | {steps} | {bound} |",
        events / 1000,
        micros as f64 / 1000.0
    );
}

/// Processor time and steps of a cycle.
fn cycle(case: &mut Case, number: i64, bound: &mut usize) -> (u64, u64) {
    let (before, steps) = (processor_micros(), case.cluster.steps());
    let report = case.cluster.cycle(Millis(NOW.0 + 1000 * number), &case.config);
    let micros = processor_micros() - before;
    let binds = |decision: &&Decision| matches!(decision, Decision::Bind(_));
    *bound += report.decisions.iter().filter(binds).count();
    (micros, case.cluster.steps() - steps)
}

/// Processor time of this thread; 0 where Linux does not say.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures; the engine does no I/O")]
fn processor_micros() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split_whitespace().next().and_then(|it| it.parse::<u64>().ok());
    nanos.unwrap_or_default() / 1000
}
