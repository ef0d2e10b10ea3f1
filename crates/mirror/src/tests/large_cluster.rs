//! How long changes in a large cluster take.

use super::*;

/// `cargo test -p kai-mirror --release --lib -- --ignored --nocapture large`
#[test]
#[ignore = "takes long without optimisation, and only prints"]
fn changes_in_a_large_cluster_are_cheap() {
    const NODES: usize = 4_000;
    const PODS_PER_NODE: usize = 35;
    const CHANGED: usize = 1_000;
    const ROUNDS: usize = 20;
    let mut world = World::new();
    (0..NODES).for_each(|at| world.node(&format!("n{at}"), json!({})));
    let in_phase = |at: usize, phase: &str| {
        json!({ "metadata": { "annotations": { "pod-group-name": format!("g{at}") } },
                "spec": { "nodeName": format!("n{}", at % NODES), "containers": [{ "resources": { "requests": { "cpu": "100m" } } }] },
                "status": { "phase": phase } })
    };
    for at in 0..NODES * PODS_PER_NODE {
        world.group(&format!("g{at}"), json!({}));
        world.pod(&format!("p{at}"), in_phase(at, "Running"));
    }
    world.decide();
    let changed = |phase: &str| -> Vec<Arc<kai_api::Pod>> {
        let pods = (0..CHANGED).map(|at| pod(&format!("p{at}"), in_phase(at, phase)));
        pods.map(Arc::new).collect()
    };
    let changed = [changed("Pending"), changed("Running")];
    let (mut taken_in, mut decided) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let start = std::time::Instant::now();
        for pod in &changed[round % 2] {
            world.mirror.apply_pod(&ObjectKey::of(&**pod), pod);
            world.mirror.drain_event_batch(|event| world.engine.apply(event));
        }
        world.sync();
        let applied = std::time::Instant::now();
        let report = world.engine.cycle(world.now, &Config::default());
        assert!(report.decisions.is_empty());
        taken_in.push(applied - start);
        decided.push(applied.elapsed());
    }
    for (name, mut times) in [("taken in", taken_in), ("decided", decided)] {
        times.sort();
        println!("{name}: median {:?}", times[ROUNDS / 2]);
    }
}
