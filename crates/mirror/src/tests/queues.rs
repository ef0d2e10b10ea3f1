//! Queues with hierarchical fairness off.

use super::*;

#[test]
fn without_the_tree_leaves_are_equals() {
    let settings = MirrorSettings {
        full_hierarchy_fairness: false,
        ..MirrorSettings::default()
    };
    let mut world = World::with(&settings);
    world.sync();
    let report = world.engine.cycle(world.now, &Config::default());
    assert!(report.decisions.is_empty());
    let queues: Vec<_> = world
        .engine
        .queues()
        .iter()
        .map(|queue| (queue.name, queue.parent))
        .collect();
    assert_eq!(queues, [("(root)", None), ("q", Some("(root)"))]);
}
