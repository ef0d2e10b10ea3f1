//! The time of an explanation: `cargo bench -p kai-engine --bench explain`. docs/performance.md has the figures.
//!
//! The scheduler copies its cluster between two cycles; all else runs beside its loop.

mod clusters;

use clusters::{NOW, infeasible};
use kai_engine::Cluster;
use kai_engine::model::Config;
use kai_engine::remedies::ExplainBudget;
use kai_engine::report::Status;

fn main() {
    divan::main();
}

/// Full nodes and a gang of ten nodes that waits, after a cycle; with the uid of a pod of the gang.
fn waiting(nodes: usize) -> (Cluster, String) {
    let mut cluster = infeasible(nodes).cluster;
    cluster.cycle(NOW, &Config::default());
    let views = cluster.pods();
    let pod = views.iter().find(|view| view.status == Status::Pending);
    let uid = pod.expect("a gang waits").uid.to_owned();
    (cluster, uid)
}

#[divan::bench(args = [1000, 10_000], sample_count = 5, sample_size = 1)]
fn copy(bencher: divan::Bencher<'_, '_>, nodes: usize) {
    let (cluster, _) = waiting(nodes);
    bencher.bench_local(|| cluster.clone());
}

#[divan::bench(args = [1000, 10_000], sample_count = 5, sample_size = 1)]
fn cycle_on_a_copy(bencher: divan::Bencher<'_, '_>, nodes: usize) {
    let (cluster, _) = waiting(nodes);
    bencher
        .with_inputs(|| cluster.clone())
        .bench_local_values(|mut cluster| (cluster.cycle(NOW, &Config::default()), cluster));
}

#[divan::bench(args = [1000, 10_000], sample_count = 3, sample_size = 1)]
fn explanation(bencher: divan::Bencher<'_, '_>, nodes: usize) {
    let (cluster, uid) = waiting(nodes);
    bencher.bench_local(|| cluster.explain(&uid, &Config::default(), ExplainBudget::default()));
}
