//! Laws about what only the engine can see: taking back a what-if restores every number of the ledger.

use proptest::collection::vec;
use proptest::prelude::*;

use std::collections::BTreeMap;

use crate as kai_engine;
use crate::Cluster;
use crate::ids::{GangId, NodeId, PodId};
use crate::intern::fresh_group;
use crate::ledger::Ledger;
use crate::model::Action;
use crate::place::PlacementFailure;
use crate::report::Status;
use crate::tables::{Gang, GpuKind, Groups};

#[path = "../tests/world/mod.rs"]
pub(crate) mod world;

use world::plan::{Pace, scenes};
use world::{World, cases};

/// A change of the ledger; picks are taken modulo what there is.
#[derive(Clone, Copy, Debug)]
struct Change {
    kind: Kind,
    pod: usize,
    node: usize,
    /// Which shared devices of the node, fresh ones among them.
    devices: usize,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Bind,
    Pipeline,
    BindToPipeline,
    Evict,
    Keep,
    Unmove,
}

fn changes() -> impl Strategy<Value = Change> {
    let kind = prop_oneof![
        Just(Kind::Bind),
        Just(Kind::Pipeline),
        Just(Kind::BindToPipeline),
        Just(Kind::Evict),
        Just(Kind::Keep),
        Just(Kind::Unmove),
    ];
    (kind, any::<usize>(), any::<usize>(), 0usize..6).prop_map(|(kind, pod, node, devices)| Change {
        kind,
        pod,
        node,
        devices,
    })
}

/// Makes the change if the ledger allows it for one of the pods, from the picked one on.
fn make(ledger: &mut Ledger, change: Change) {
    let nodes: Vec<NodeId> = (0..ledger.nodes.len())
        .map(NodeId::new)
        .filter(|node| ledger.node(*node).present)
        .collect();
    let placeable = |pod: &PodId| {
        let legacy = matches!(ledger.shape_of(*pod).gpu, GpuKind::Mig { legacy: true });
        !nodes.is_empty() && !legacy && ledger.pod(*pod).gang.is_some()
    };
    let allowed = |pod: &PodId| {
        let row = ledger.pod(*pod);
        match change.kind {
            Kind::Bind => row.place.status == Status::Pending && placeable(pod),
            Kind::Pipeline => row.is_placeable() && placeable(pod),
            Kind::BindToPipeline => row.place.status == Status::Binding,
            Kind::Evict => row.place.status.is_active_allocated() && row.gang.is_some() && row.evicted_from.is_none(),
            Kind::Keep => row.place.status == Status::Releasing && row.evicted_from.is_some(),
            Kind::Unmove => {
                let was_there = row.evicted_from.is_some_and(|status| status != Status::Pipelined);
                row.place.status == Status::Pipelined && was_there && row.leaving.is_some()
            }
        }
    };
    let count = ledger.pods.len();
    let Some(pod) = (0..count)
        .map(|at| PodId::new((at + change.pod % count) % count))
        .find(allowed)
    else {
        return;
    };
    let node = || nodes[change.node % nodes.len()];
    let groups = || {
        let (row, shape) = (ledger.node(node()), ledger.shape_of(pod));
        let known = row.groups.iter().map(|group| group.id);
        let fresh = (0..).map(|ordinal| fresh_group(&ledger.pod(pod).uid, &row.name, ordinal));
        let devices = if shape.is_shared() { shape.devices() as usize } else { 0 };
        known
            .chain(fresh)
            .skip(change.devices)
            .take(devices)
            .collect::<Groups>()
    };
    match change.kind {
        Kind::Bind => ledger.bind(pod, node(), groups()),
        Kind::Pipeline => ledger.pipeline(pod, node(), groups()),
        Kind::BindToPipeline => ledger.bind_to_pipeline(pod),
        Kind::Evict => ledger.evict(pod),
        Kind::Keep => ledger.keep(pod),
        Kind::Unmove => ledger.unmove(pod),
    }
}

/// Everything a change can touch, as text.
fn numbers(ledger: &Ledger) -> String {
    let Ledger {
        nodes,
        pods,
        gangs,
        queues,
        ..
    } = ledger;
    // Who was touched is remembered even if nothing came of it.
    let at_rest = |gang: &Gang| Gang {
        stirred: false,
        ..gang.clone()
    };
    let gangs: Vec<Gang> = gangs.iter().map(at_rest).collect();
    format!("{nodes:#?}\n{pods:#?}\n{gangs:#?}\n{queues:#?}")
}

/// Gangs that could be tried, and whether the last cycle tried to place them.
fn waiting_gangs(cluster: &Cluster) -> Vec<(GangId, bool)> {
    let gangs = cluster.ledger.gangs.iter().enumerate();
    let waiting =
        gangs.filter(|(_, gang)| gang.queue.is_some() && gang.schedulable && gang.is_ready() && gang.waiting() > 0);
    let was_tried = |id: GangId, gang: &Gang| {
        let failure = cluster.explanations.failures.get(&id);
        // At the end of a round all have been tried.
        failure.is_some_and(|failure| *failure != PlacementFailure::OutOfWork)
            || gang.tried_by & 1 != 0
            || cluster.rounds.are_over()
    };
    waiting
        .map(|(at, gang)| (GangId::new(at), was_tried(GangId::new(at), gang)))
        .collect()
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn no_gang_starves_for_want_of_work(scene in scenes(), work in 1u64..30) {
        let mut world = World::new(&scene);
        world.config.work_per_cycle_max = Some(work);
        world.config.actions = vec![Action::Allocate];
        // Every cycle tries at least one gang, and a gang is tried again for every pod above its minimum.
        let patience = world.pods.len() + world.gangs.len() + 1;
        let mut waits: BTreeMap<GangId, usize> = BTreeMap::new();
        for _ in 0..2 * patience {
            let report = world.cycle();
            let waiting = waiting_gangs(&world.cluster);
            waits.retain(|gang, _| waiting.iter().any(|(other, _)| other == gang));
            for (gang, was_tried) in waiting {
                let cycles = waits.entry(gang).or_default();
                *cycles = if was_tried { 0 } else { *cycles + 1 };
                prop_assert!(*cycles <= patience, "{:?} waits for {} cycles", world.cluster.ledger.gang(gang).key, cycles);
            }
            world.carry_out(&report, Pace::AtOnce);
        }
    }

    #[test]
    fn rollback_restores_the_ledger(scene in scenes(), before in vec(changes(), 0..20), after in vec(changes(), 0..20)) {
        let mut world = World::new(&scene);
        for step in &scene.steps {
            world.step(step, &mut |_, _| {});
        }
        world.cluster.settle();
        let ledger = &mut world.cluster.ledger;
        prop_assume!(!ledger.pods.is_empty());
        let start = numbers(ledger);
        ledger.record();
        let first = ledger.checkpoint();
        before.into_iter().for_each(|change| make(ledger, change));
        let (middle, second) = (numbers(ledger), ledger.checkpoint());
        after.into_iter().for_each(|change| make(ledger, change));
        ledger.rollback(second);
        prop_assert_eq!(numbers(ledger), middle);
        ledger.rollback(first);
        prop_assert_eq!(numbers(ledger), start);
    }
}
