//! The time of a view of a large cluster: 1,000 nodes with 8 GPUs and 10,000 pods, of which 2,000 wait.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../tests/support/mod.rs"]
mod support;

use divan::Bencher;
use kai_view::Knowledge;
use serde_json::json;
use support::{World, gang, node, pod, queue};

fn main() {
    divan::main();
}

fn large_cluster() -> World {
    let mut objects = vec![queue("all", None, 100)];
    objects.extend((0..50).map(|at| queue(&format!("team-{at}"), Some("all"), 100)));
    objects.extend((0..1_000).map(|at| node(&format!("node-{at:04}"), 8, json!({}))));
    for at in 0..10_000 {
        let name = format!("job-{at:05}");
        objects.push(gang(&name, "Job", &format!("team-{}", at % 50), 1));
        let place = (at < 8_000).then(|| format!("node-{:04}", at / 8));
        objects.push(pod(&name, &name, 1, place.as_deref(), json!({})));
    }
    World::new(&objects)
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn view_of_1000_nodes_and_10000_pods(bencher: Bencher<'_, '_>) {
    let mut world = large_cluster();
    bencher.bench_local(|| world.view(Knowledge::complete()));
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn view_as_json(bencher: Bencher<'_, '_>) {
    let view = large_cluster().view(Knowledge::complete());
    bencher.bench_local(|| serde_json::to_vec(&view).unwrap());
}
