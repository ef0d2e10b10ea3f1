//! Laws about the engine's internal state: a rollback restores every number of the ledger, and no gang starves.

use proptest::collection::vec;
use proptest::prelude::*;

use std::collections::BTreeMap;

use crate as kai_engine;
use crate::Cluster;
use crate::gangs::Evictable;
use crate::ids::{GangId, NodeId, PodId};
use crate::intern::new_gpu_group_id;
use crate::ledger::Ledger;
use crate::model::Action;
use crate::place::PlacementFailure;
use crate::report::Status;
use crate::tables::{ChosenVolume, ChosenVolumes, Gang, GpuGroupIds, GpuKind};
use crate::work::RoundOf;

#[path = "../tests/world/mod.rs"]
pub(crate) mod world;

use world::plan::{Pace, attach_scenes, scenes};
use world::{World, cases};

/// A random change of the ledger. `pod` and `node` are taken modulo the number of pods and nodes.
#[derive(Clone, Copy, Debug)]
struct Change {
    kind: Kind,
    pod: usize,
    node: usize,
    /// How many GPU groups of the node to skip, before the pod's GPU groups are taken from the rest and from new ones.
    skipped_groups: usize,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Bind,
    Pipeline,
    BindToPipeline,
    Evict,
    UndoEviction,
    UndoMove,
}

fn changes() -> impl Strategy<Value = Change> {
    let kind = prop_oneof![
        Just(Kind::Bind),
        Just(Kind::Pipeline),
        Just(Kind::BindToPipeline),
        Just(Kind::Evict),
        Just(Kind::UndoEviction),
        Just(Kind::UndoMove),
    ];
    (kind, any::<usize>(), any::<usize>(), 0usize..6).prop_map(|(kind, pod, node, skipped_groups)| Change {
        kind,
        pod,
        node,
        skipped_groups,
    })
}

/// Makes the change for the first pod that allows it, from `change.pod` on.
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
            Kind::Bind => row.placement.status == Status::Pending && placeable(pod),
            Kind::Pipeline => row.is_placeable() && placeable(pod),
            Kind::BindToPipeline => row.placement.status == Status::Binding,
            Kind::Evict => {
                row.placement.status.is_active_allocated() && row.gang.is_some() && row.evicted_from.is_none()
            }
            Kind::UndoEviction => row.placement.status == Status::Releasing && row.evicted_from.is_some(),
            Kind::UndoMove => {
                let was_there = row.evicted_from.is_some_and(|status| status != Status::Pipelined);
                row.placement.status == Status::Pipelined && was_there && row.old_placement.is_some()
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
    let gpu_groups = || {
        let (row, shape) = (ledger.node(node()), ledger.shape_of(pod));
        let known = row.gpu_groups.iter().map(|group| group.id);
        let new = (0..).map(|ordinal| new_gpu_group_id(&ledger.pod(pod).uid, &row.name, ordinal));
        let devices = if shape.is_shared() { shape.devices() as usize } else { 0 };
        known
            .chain(new)
            .skip(change.skipped_groups)
            .take(devices)
            .collect::<GpuGroupIds>()
    };
    // One claim of several pods, and volumes that several claims take: the amounts must be right in any case.
    let volumes = || -> ChosenVolumes {
        let volume = change
            .skipped_groups
            .checked_sub(1)
            .map(|at| format!("v{}", at % 3).into());
        change.skipped_groups.is_multiple_of(2).then(|| {
            let claim = |name: String| ChosenVolume {
                claim: name.into(),
                volume: volume.clone(),
                storage: volume.is_none().then(|| ("class".into(), 3)),
            };
            [
                claim(format!("c{}", change.pod % 3)),
                claim(ledger.pod(pod).uid.to_string()),
            ]
            .into()
        })
    };
    match change.kind {
        Kind::Bind => {
            let volumes = volumes();
            ledger.bind(pod, node(), gpu_groups(), volumes);
        }
        Kind::Pipeline => {
            let volumes = volumes();
            ledger.pipeline(pod, node(), gpu_groups(), volumes);
        }
        Kind::BindToPipeline => ledger.bind_to_pipeline(pod),
        Kind::Evict => ledger.evict(pod),
        Kind::UndoEviction => ledger.undo_eviction(pod),
        Kind::UndoMove => ledger.undo_move(pod),
    }
}

/// Everything that a change can affect, as text. The charges of cores are compared as settled ones.
fn numbers(ledger: &Ledger) -> String {
    let mut ledger = ledger.clone();
    ledger.settle_cores();
    let mut from_scratch = ledger.clone();
    for at in 0..ledger.gangs.len() {
        from_scratch.withdraw_core(GangId::new(at));
    }
    from_scratch.settle_cores();
    assert_eq!(format!("{:?}", from_scratch.queues), format!("{:?}", ledger.queues));
    let Ledger {
        nodes,
        pods,
        gangs,
        queues,
        volumes,
        attachments,
        ..
    } = &ledger;
    // A rollback does not restore the dirty flag.
    let clean = |gang: &Gang| Gang {
        dirty: false,
        ..gang.clone()
    };
    let gangs: Vec<Gang> = gangs.iter().map(clean).collect();
    format!(
        "{nodes:#?}\n{pods:#?}\n{gangs:#?}\n{queues:#?}\n{:?}\n{:?}\n{:?}",
        volumes.sorted(),
        volumes.sorted_storage(),
        attachments.sorted()
    )
}

/// Gangs that a cycle can try to place, each with whether the last cycle tried it.
fn waiting_gangs(cluster: &Cluster) -> Vec<(GangId, bool)> {
    let gangs = cluster.ledger.gangs.iter().enumerate();
    let waiting =
        gangs.filter(|(_, gang)| gang.queue.is_some() && gang.schedulable && gang.is_ready() && gang.waiting() > 0);
    let was_tried = |id: GangId, gang: &Gang| {
        let failure = cluster.explanations.failures.get(&id);
        let round = RoundOf::Action(if gang.is_background() {
            Action::BackgroundPods
        } else {
            Action::Allocate
        });
        // At the end of a round all gangs have been tried.
        failure.is_some_and(|failure| *failure != PlacementFailure::OutOfWork)
            || gang.tried_by & round.bit() != 0
            || cluster.rounds.is_complete(round)
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
    fn rollback_restores_the_ledger(scene in prop_oneof![scenes(), attach_scenes()], before in vec(changes(), 0..20), after in vec(changes(), 0..20)) {
        let mut world = World::new(&scene);
        for step in &scene.steps {
            world.step(step, &mut |_, _| {});
        }
        world.cluster.revert_pipelined();
        let ledger = &mut world.cluster.ledger;
        prop_assume!(!ledger.pods.is_empty());
        let start = numbers(ledger);
        ledger.start_journal();
        let first = ledger.checkpoint();
        before.into_iter().for_each(|change| make(ledger, change));
        let (middle, second) = (numbers(ledger), ledger.checkpoint());
        for (at, change) in after.into_iter().enumerate() {
            make(ledger, change);
            if at % 3 == 0 {
                ledger.settle_cores();
            }
        }
        ledger.rollback(second);
        prop_assert_eq!(numbers(ledger), middle);
        ledger.rollback(first);
        prop_assert_eq!(numbers(ledger), start);
    }

    #[test]
    fn the_core_is_what_no_unit_evicts(scene in scenes(), changes in vec(changes(), 0..20)) {
        let mut world = World::new(&scene);
        for step in &scene.steps {
            world.step(step, &mut |_, _| {});
        }
        world.cluster.revert_pipelined();
        let ledger = &mut world.cluster.ledger;
        prop_assume!(!ledger.pods.is_empty());
        ledger.start_journal();
        changes.into_iter().for_each(|change| make(ledger, change));
        let semi_preemptible = |at: &GangId| ledger.gang(*at).is_semi_preemptible();
        let gangs: Vec<GangId> = (0..ledger.gangs.len()).map(GangId::new).filter(semi_preemptible).collect();
        for gang in gangs {
            let mut core = ledger.core_of(gang);
            core.sort_unstable();
            let pods: Vec<PodId> = ledger.gang(gang).pod_sets.iter().flat_map(|set| &set.pods).copied().collect();
            let has_place = |ledger: &Ledger, pod: &PodId| ledger.pod(*pod).placement.status.is_active_allocated();
            let mut taken = Vec::new();
            while Evictable::new(ledger, gang, &taken).has_unit() {
                let unit = Evictable::new(ledger, gang, &taken).unit();
                prop_assert!(!unit.is_empty(), "{:?}", ledger.gang(gang));
                taken.extend(unit);
            }
            prop_assert_eq!(Evictable::new(ledger, gang, &taken).unit(), Vec::new());
            let mut left: Vec<PodId> = pods.iter().copied().filter(|pod| has_place(ledger, pod)).collect();
            left.retain(|pod| !taken.contains(pod));
            left.sort_unstable();
            prop_assert_eq!(&left, &core, "{:?}", ledger.gang(gang));
            // Without any of the other pods it is the same.
            for pod in taken {
                ledger.evict(pod);
                let mut now = ledger.core_of(gang);
                now.sort_unstable();
                prop_assert_eq!(&now, &core, "{:?}", ledger.gang(gang));
            }
        }
    }
}
