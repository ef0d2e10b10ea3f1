//! The prices on whole clusters.

use super::*;
use crate::cluster::Cluster;
use crate::clusters::{self, Case, NOW};
use crate::ids::NodeId;
use crate::intern::new_gpu_group_id;
use crate::model::{Config, Event, PlacementStrategies, PlacementStrategy};
use crate::replay::{TracePod, pod_spec};

/// A cluster with pods of many shapes in their places, by this strategy.
fn placed(strategy: PlacementStrategy) -> Case {
    let mut case = clusters::hostile::distinct(24);
    case.config.placement = PlacementStrategies {
        gpu: strategy,
        cpu: strategy,
    };
    case.cluster.cycle(NOW, &case.config);
    case
}

#[test]
fn known_profiles_are_those_of_the_nodes_as_they_are() {
    let case = placed(PlacementStrategy::Frag);
    let ledger = &case.cluster.ledger;
    let prices = case.cluster.prices.prices().unwrap();
    let anew = Prices {
        profiles: RefCell::default(),
        ..prices.clone()
    };
    let mut compared = 0;
    for node in (0..ledger.nodes.len()).map(NodeId::new) {
        for shape in &ledger.shapes {
            let cost = |prices: &Prices| {
                let place = prices.cheapest(ledger.node_at(node), shape);
                place.map(|place| (place.cost, place.joined))
            };
            assert_eq!(cost(prices), cost(&anew));
            compared += usize::from(cost(prices).is_some());
        }
    }
    assert!(compared > 100, "{compared}");
}

#[test]
fn what_is_taken_counts_as_on_a_node_that_has_less() {
    let case = placed(PlacementStrategy::Frag);
    let prices = case.cluster.prices.prices().unwrap();
    let potential = &prices.potential;
    let after =
        |node: &Node, cpu_milli: i64, taken: Taken| potential.after(0, &potential.profile(0, node), cpu_milli, taken);
    let example = clusters::nodes(1).cluster.ledger.nodes[0].clone();
    let mut less = example.clone();
    less.free.idle.cpu_milli -= 5000;
    less.free.idle.gpus -= 2;
    let two = Taken {
        gpus: 2,
        before: STEPS,
        after: 0,
    };
    assert_eq!(after(&example, 5000, two), after(&less, 0, Taken::default()));
    // A third GPU is opened for a share, which leaves 60 steps.
    let mut shared = less.clone();
    shared.free.idle.gpus -= 1;
    let mut group = GpuGroup::empty(new_gpu_group_id("pod", "node", 0));
    group.active_mib = shared.memory_mib * 2 / 5;
    shared.gpu_groups.push(group);
    let opened = Taken {
        gpus: 1,
        before: STEPS,
        after: 60,
    };
    assert_eq!(after(&less, 0, opened), after(&shared, 0, Taken::default()));
    let joined = Taken {
        gpus: 1,
        before: 60,
        after: 10,
    };
    assert_ne!(after(&shared, 0, joined), after(&shared, 0, Taken::default()));
}

#[test]
fn prices_are_computed_again_only_for_another_mix_or_other_nodes() {
    let mut case = clusters::fill(4);
    let frag = Config {
        placement: PlacementStrategies {
            gpu: PlacementStrategy::Frag,
            cpu: PlacementStrategy::Frag,
        },
        ..case.config.clone()
    };
    let cluster = &mut case.cluster;
    cluster.cycle(NOW, &case.config);
    assert!(cluster.prices.prices().is_none(), "binpack needs none");
    cluster.cycle(NOW, &frag);
    assert!(cluster.prices.prices().is_some());
    cluster.refresh_prices(&frag);
    let refresh = |cluster: &mut Cluster| {
        let before = format!("{:?}", cluster.prices.prices().unwrap().potential);
        cluster.refresh_prices(&frag);
        before != format!("{:?}", cluster.prices.prices().unwrap().potential)
    };
    assert!(!refresh(cluster), "nothing changed");
    let large = TracePod {
        cpu_milli: 1000,
        memory_mib: 1000,
        gpus: 4,
        gpu_milli: 1000,
        models: Vec::new(),
    };
    for at in 0..40 {
        cluster.apply(Event::Pod(pod_spec(at, &large)));
    }
    assert!(refresh(cluster), "half of the pods want four GPUs");
    cluster.cycle(NOW, &case.config);
    assert!(cluster.prices.prices().is_none());
    cluster.cycle(NOW, &frag);
    assert!(cluster.prices.prices().is_some(), "again without a new pod");
}
