//! The time of one cycle: `cargo bench -p kai-engine`. docs/performance.md describes the clusters and their targets.

mod clusters;

use clusters::{Case, NOW, fill, fractions, gangs, infeasible, reclaim_large, reclaim_many};

fn main() {
    divan::main();
}

/// Measures the first cycle, in which no index is built yet.
fn first_cycle(bencher: divan::Bencher<'_, '_>, case: &Case) {
    bencher
        .with_inputs(|| case.cluster.clone())
        .bench_local_values(|mut cluster| (cluster.cycle(NOW, &case.config), cluster));
}

#[divan::bench(args = [500, 1000, 2000, 5000, 10_000, 20_000], sample_count = 5, sample_size = 1)]
fn fill_nodes(bencher: divan::Bencher<'_, '_>, nodes: usize) {
    first_cycle(bencher, &fill(nodes));
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn gangs_of_8_on_1000_nodes(bencher: divan::Bencher<'_, '_>) {
    first_cycle(bencher, &gangs(1000, 8, 0));
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn gangs_of_4_in_50_racks_on_5000_nodes(bencher: divan::Bencher<'_, '_>) {
    first_cycle(bencher, &gangs(5000, 4, 50));
}

#[divan::bench(args = [100, 1000], sample_count = 5, sample_size = 1)]
fn fractions_on_nodes(bencher: divan::Bencher<'_, '_>, nodes: usize) {
    first_cycle(bencher, &fractions(nodes));
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn reclaim_many_on_500_nodes(bencher: divan::Bencher<'_, '_>) {
    first_cycle(bencher, &reclaim_many(500));
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn reclaim_large_on_1000_nodes(bencher: divan::Bencher<'_, '_>) {
    first_cycle(bencher, &reclaim_large(1000));
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn infeasible_on_1000_nodes(bencher: divan::Bencher<'_, '_>) {
    first_cycle(bencher, &infeasible(1000));
}
