//! The engine's memory per node and per pod: `cargo bench -p kai-engine --bench memory`. The bytes in use after the cluster is built and
//! one cycle has run are `alloc` and `grow` less `dealloc` and `shrink`; `max alloc` includes the report of the cycle.

mod clusters;

use divan::AllocProfiler;

#[global_allocator]
static ALLOC: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

/// 10,000 nodes with eight GPUs, no pods.
#[divan::bench(sample_count = 1, sample_size = 1)]
fn nodes_10_000() -> impl Sized {
    after_a_cycle(clusters::nodes(10_000))
}

/// The same nodes and 80,000 pods, each in a gang of its own.
#[divan::bench(sample_count = 1, sample_size = 1)]
fn nodes_10_000_and_pods_80_000() -> impl Sized {
    after_a_cycle(clusters::fill(10_000))
}

/// The same nodes and 80,000 pods in gangs of eight.
#[divan::bench(sample_count = 1, sample_size = 1)]
fn nodes_10_000_and_pods_80_000_in_gangs() -> impl Sized {
    after_a_cycle(clusters::gangs(10_000, 8, 0))
}

fn after_a_cycle(mut case: clusters::Case) -> clusters::Case {
    drop(case.cluster.cycle(clusters::NOW, &case.config));
    case
}
