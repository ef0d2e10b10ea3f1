//! The law of remedies: what an explanation says would start a gang does start it. The steps are carried out by events that are made
//! from the objects of the random cluster, never from the engine's tables.

extern crate kai_engine;

mod world;

use std::collections::BTreeMap;

use kai_engine::Cluster;
use kai_engine::model::{
    ComputeMode, Constraints, Enforcement, Event, GangKey, GpuFraction, GpuRequest, Millis, NodeSpec, PodKind,
    PodPhase, PodSpec, Preemptibility, QueueSpec, Quota, Requests,
};
use kai_engine::reasons::{Reason, Resource};
use kai_engine::remedies::{Ask, Constraint, ExplainBudget, Explanation, RaisedBound, Step, Wait};
use kai_engine::report::Status;
use proptest::prelude::*;
use world::plan::{Pace, Scene, Step as Change, constrained_scenes};
use world::{World, cases};

/// Runs a scene and calls `law` after each cycle. The world has recorded the decisions by then; the engine has seen no event since.
fn watch(scene: &Scene, mut law: impl FnMut(&World)) {
    let mut world = World::new(scene);
    for step in scene.steps.iter().chain([&Change::Cycle(Pace::AtOnce)]) {
        if matches!(step, Change::Cycle(_)) {
            let mut after = world.clone();
            let report = after.cycle();
            after.carry_out(&report, Pace::Silent);
            law(&after);
        }
        world.step(step, &mut |_, _| {});
    }
}

/// The gangs with waiting pods, each with the uid of one.
fn waiting(cluster: &Cluster) -> Vec<(GangKey, String)> {
    let mut found: Vec<(GangKey, String)> = Vec::new();
    for view in cluster.pods() {
        let waits = matches!(view.status, Status::Pending | Status::Gated | Status::Pipelined);
        if let Some(gang) = view.gang.filter(|_| waits)
            && !found.iter().any(|(known, _)| known == gang)
        {
            found.push((gang.clone(), view.uid.to_owned()));
        }
    }
    found
}

fn explain(world: &World, uid: &str) -> Explanation {
    let budget = ExplainBudget::default();
    let explained = world.cluster.explain(uid, &world.config, budget);
    explained.expect("the pod exists")
}

/// The pods of the gang that have no node and none coming.
fn waiting_pods(world: &World, gang: &GangKey) -> Vec<String> {
    let waits = |pod: &&PodSpec| {
        let is_free = pod.node.is_none() && pod.bind_in_flight.is_none() && pod.deletion.is_none();
        pod.gang.as_ref() == Some(gang) && is_free && pod.phase == PodPhase::Pending
    };
    world.pods.values().filter(waits).map(|pod| pod.uid.clone()).collect()
}

/// Carries out a step by events; returns the time until which it waits.
fn carry_out(world: &mut World, gang: &GangKey, waiting: &[String], step: &Step) -> Option<Millis> {
    match step {
        Step::End { gang: ended, .. } => {
            let pods = world.pods.values().filter(|pod| pod.gang.as_ref() == Some(&**ended));
            let uids: Vec<String> = pods.map(|pod| pod.uid.clone()).collect();
            uids.into_iter().for_each(|uid| world.apply(Event::PodGone(uid)));
            world.apply(Event::GangGone((**ended).clone()));
        }
        Step::Raise {
            queue,
            bound,
            resource,
            from,
            to,
        } => {
            let mut spec = world.queues[queue].clone();
            let quota = match resource {
                Resource::Cpu => &mut spec.quota.cpu,
                Resource::Memory => &mut spec.quota.memory,
                Resource::Gpu => &mut spec.quota.gpu,
            };
            let changed = match bound {
                RaisedBound::Limit => &mut quota.limit,
                RaisedBound::Quota => &mut quota.deserved,
            };
            assert_eq!(*changed, Some(*from));
            assert!(from < to);
            *changed = Some(*to);
            world.apply(Event::Queue(spec));
        }
        Step::MakePreemptible => change_gang(world, gang, |spec| {
            assert!(spec.preemptibility != Preemptibility::Preemptible);
            spec.preemptibility = Preemptibility::Preemptible;
        }),
        Step::LowerMinimum {
            sub_group: None, to, ..
        } => change_gang(world, gang, |spec| {
            assert!(spec.sub_groups.is_empty() && spec.min_member > *to);
            spec.min_member = *to;
        }),
        Step::LowerMinimum {
            sub_group: Some(name),
            to,
            ..
        } => change_gang(world, gang, |spec| {
            let part = spec.sub_groups.iter_mut().find(|part| part.name == *name);
            part.expect("the subgroup exists").min_member = Some(*to);
        }),
        Step::Relax(Constraint::Topology) => change_gang(world, gang, |spec| {
            spec.topology = None;
            spec.sub_groups.iter_mut().for_each(|part| part.topology = None);
        }),
        Step::AskAtMost(ask) => change_pods(world, waiting, |pod| ask_at_most(&mut pod.requests, *ask)),
        Step::Relax(constraint) => {
            change_pods(world, waiting, |pod| drop_constraint(&mut pod.constraints, *constraint))
        }
        Step::RemoveGates { .. } => change_pods(world, waiting, |pod| std::mem::take(&mut pod.gated)),
        Step::Uncordon(name) => change_node(world, name, |node| assert!(std::mem::take(&mut node.unschedulable))),
        Step::MakeReady { node, .. } => change_node(world, node, |node| node.conditions.clear()),
        Step::AddNodes { count, like } => {
            for number in 1..=*count {
                let mut node = world.nodes[&**like].clone();
                node.name = format!("{like}-copy-{number}");
                world.apply(Event::Node(node));
            }
        }
        Step::Wait(Wait::PreemptionDelay(until) | Wait::MinRuntime(until)) => return Some(*until),
        Step::Wait(Wait::NextCycle | Wait::Release { .. }) => {}
        Step::CreatePods { .. }
        | Step::CreateGang(_)
        | Step::CreateQueue(_)
        | Step::NameLeafQueue(_)
        | Step::ChangeParent(_)
        | Step::NameSubGroup(_)
        | Step::CreateTopology { .. }
        | Step::Correct
        | Step::Wait(Wait::LaterCycles | Wait::BackOff) => panic!("can't be tried: {step:?}"),
    }
    None
}

/// Whether this lowers a request. Not by [`Ask::reduce`], which is what the engine tries.
fn ask_at_most(requests: &mut Requests, ask: Ask) -> bool {
    fn lower(amount: &mut i64, most: i64) -> bool {
        let is_lower = most < *amount;
        *amount = most.min(*amount);
        is_lower
    }
    match (ask, &mut requests.gpu) {
        (Ask::Gpus(most), GpuRequest::Whole { devices }) => lower(devices, most),
        (Ask::GpuMemoryMib(most), GpuRequest::Memory { mib, .. }) => lower(mib, most),
        (Ask::GpuHundredths(most), GpuRequest::Fraction { fraction, .. }) => {
            let is_lower = most * 10_000_000 < fraction.billionths();
            if is_lower {
                *fraction = GpuFraction::from_hundredths(most);
            }
            is_lower
        }
        (Ask::CpuMilli(most), _) => lower(&mut requests.cpu_milli, most),
        (Ask::MemoryBytes(most), _) => lower(&mut requests.memory_bytes, most),
        (Ask::Gpus(_) | Ask::GpuMemoryMib(_) | Ask::GpuHundredths(_), _) => false,
    }
}

/// Whether the pod had the constraint. Not by [`Constraint::drop_from`], which is what the engine tries.
fn drop_constraint(constraints: &mut Constraints, constraint: Constraint) -> bool {
    let before = constraints.clone();
    match constraint {
        Constraint::NodeAffinity => (constraints.node_selector, constraints.required_nodes) = Default::default(),
        Constraint::Taints => constraints.tolerations.push(world::toleration()),
        Constraint::HostPorts => constraints.host_ports = Vec::new(),
        Constraint::PodAffinity => constraints.affinity.required = Vec::new(),
        Constraint::PodAntiAffinity => constraints.anti_affinity.required = Vec::new(),
        Constraint::Enforcement => constraints.share.enforcement = Enforcement::Preferred,
        Constraint::ComputeMode => constraints.share.compute_mode = ComputeMode::TimeSlicing,
        Constraint::Topology => unreachable!("a constraint of the gang"),
    }
    *constraints != before
}

fn change_gang(world: &mut World, gang: &GangKey, change: impl FnOnce(&mut kai_engine::model::GangSpec)) {
    let mut spec = world.gangs[gang].clone();
    change(&mut spec);
    world.apply(Event::Gang(spec));
}

fn change_node(world: &mut World, name: &str, change: impl FnOnce(&mut NodeSpec)) {
    let mut spec = world.nodes[name].clone();
    change(&mut spec);
    world.apply(Event::Node(spec));
}

/// Changes the waiting pods; `change` says whether it changed the pod. At least one pod must change.
fn change_pods(world: &mut World, pods: &[String], change: impl Fn(&mut PodSpec) -> bool) {
    let mut changed = false;
    for uid in pods {
        let mut spec = world.pods[uid].clone();
        changed |= change(&mut spec);
        world.apply(Event::Pod(spec));
    }
    assert!(changed, "the step changes nothing");
}

/// Whether a cycle gives one of these pods a place.
fn starts(cluster: &mut Cluster, world: &World, now: Millis, waiting: &[String]) -> bool {
    cluster.cycle(now, &world.config);
    let views = cluster.pods_of(waiting.iter().map(String::as_str));
    let placed = |status| matches!(status, Status::Binding | Status::Pipelined);
    views.iter().any(|view| placed(view.status))
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn a_tried_remedy_starts_the_gang(scene in constrained_scenes()) {
        watch(&scene, |world| {
            for (gang, uid) in waiting(&world.cluster) {
                let explanation = explain(world, &uid);
                let waiting = waiting_pods(world, &gang);
                for remedy in explanation.remedies.iter().filter(|remedy| remedy.tried) {
                    let mut changed = world.clone();
                    let steps = remedy.steps.iter();
                    let until = steps.filter_map(|step| carry_out(&mut changed, &gang, &waiting, step)).max();
                    let now = until.map_or(world.now, |until| until.max(world.now));
                    let mut same_engine = changed.cluster.clone();
                    prop_assert_starts(&mut same_engine, world, now, &waiting, &explanation, remedy, "the same engine");
                    let mut fresh = Cluster::new();
                    changed.snapshot().into_iter().for_each(|event| fresh.apply(event));
                    prop_assert_starts(&mut fresh, world, now, &waiting, &explanation, remedy, "a fresh engine");
                }
            }
        });
    }

    #[test]
    fn an_explanation_is_complete_and_repeatable(scene in constrained_scenes()) {
        watch(&scene, |world| {
            for (_, uid) in waiting(&world.cluster) {
                let explanation = explain(world, &uid);
                let reason = world.cluster.pods_of([uid.as_str()])[0].reason.clone();
                assert_eq!(explanation.reason, reason);
                assert!(explanation.remedies.is_empty() == explanation.no_remedy.is_some(), "{explanation:#?}");
                assert!(explanation.remedies.iter().all(|remedy| !remedy.steps.is_empty()));
                let copy = world.clone();
                assert_eq!(explanation, explain(&copy, &uid));
            }
        });
    }

    /// Another engine that gets the same objects in another order explains the same.
    #[test]
    fn the_order_of_objects_does_not_matter(scene in constrained_scenes(), seed in any::<u64>()) {
        let mut world = World::new(&scene);
        for step in &scene.steps {
            world.step(step, &mut |_, _| {});
        }
        let mut events = world.snapshot();
        world::shuffle(&mut events, seed);
        let mut other = Cluster::new();
        events.into_iter().for_each(|event| other.apply(event));
        world.cycle();
        other.cycle(world.now, &world.config);
        for (_, uid) in waiting(&world.cluster) {
            let explained = other.explain(&uid, &world.config, ExplainBudget::default());
            prop_assert_eq!(explain(&world, &uid), explained.expect("the pod exists"));
        }
    }

    #[test]
    fn explanations_change_no_decision(scene in constrained_scenes()) {
        let (mut silent, mut asked) = (World::new(&scene), World::new(&scene));
        let few = ExplainBudget { trials_max: 6, steps_max: None };
        for step in &scene.steps {
            let (mut reports, mut others) = (Vec::new(), Vec::new());
            silent.step(step, &mut |_, report| reports.push(report.clone()));
            asked.step(step, &mut |world, report| {
                for (_, uid) in waiting(&world.cluster) {
                    world.cluster.explain(&uid, &world.config, few);
                }
                others.push(report.clone());
            });
            prop_assert_eq!(reports, others);
        }
        prop_assert_eq!(silent.cluster.steps(), asked.cluster.steps());
    }

    #[test]
    fn a_budget_is_kept(scene in constrained_scenes(), trials_max in 0u32..8) {
        watch(&scene, |world| {
            for (_, uid) in waiting(&world.cluster) {
                let budget = ExplainBudget { trials_max, steps_max: None };
                let explanation = world.cluster.explain(&uid, &world.config, budget).expect("the pod exists");
                assert!(explanation.trials <= trials_max);
            }
        });
    }
}

proptest! {
    #![proptest_config(cases(32))]

    /// A trial takes at least a step for each object, which it copies. The last trial may end beyond the budget, and none begins there.
    #[test]
    fn a_budget_of_steps_is_kept(scene in constrained_scenes(), steps_max in 0u64..400) {
        watch(&scene, |world| {
            let objects = (world.nodes.len() + world.pods.len()) as u64;
            for (_, uid) in waiting(&world.cluster) {
                let budget = ExplainBudget { steps_max: Some(steps_max), ..ExplainBudget::default() };
                let explanation = world.cluster.explain(&uid, &world.config, budget).expect("the pod exists");
                let before_the_last = u64::from(explanation.trials).saturating_sub(1) * objects;
                assert!(before_the_last < steps_max.max(1), "{explanation:#?}");
                assert!(explanation.trials == 0 || steps_max > 0, "{explanation:#?}");
                let unbounded = explain(world, &uid);
                assert!(explanation.trials <= unbounded.trials);
                assert!(explanation.is_cut || explanation.remedies == unbounded.remedies, "{explanation:#?}\n{unbounded:#?}");
            }
        });
    }
}

/// Carries out a step that creates something, with the least that the step says. False for steps that leave open what to create or correct.
fn create(world: &mut World, waiting: &[String], step: &Step) -> bool {
    match step {
        Step::CreateQueue(name) => world.apply(Event::Queue(QueueSpec {
            name: name.clone(),
            display_name: String::new(),
            parent: None,
            created: Millis(0),
            uid: name.clone(),
            priority: 100,
            quota: Quota::UNBOUNDED,
            preempt_min_runtime: None,
            reclaim_min_runtime: None,
        })),
        Step::CreatePods { sub_group, count } => {
            let Some(like) = waiting.first().map(|uid| world.pods[uid].clone()) else {
                return false;
            };
            for number in 0..*count {
                let name = format!("{}-created-{number}", like.name);
                world.apply(Event::Pod(PodSpec {
                    uid: name.clone(),
                    name,
                    kind: PodKind::Workload,
                    sub_group: sub_group.clone(),
                    gated: false,
                    refused: None,
                    ..like.clone()
                }));
            }
        }
        Step::RemoveGates { .. } => change_pods(world, waiting, |pod| std::mem::take(&mut pod.gated)),
        _ => return false,
    }
    true
}

/// Carries out the remedies that are not tried, as far as they say what to create. Returns the number of steps of a kind.
fn check_untried(world: &World, gang: &GangKey, uid: &str, is: fn(&Step) -> bool) -> usize {
    let explanation = explain(world, uid);
    let waiting = waiting_pods(world, gang);
    let mut count = 0;
    for remedy in explanation.remedies.iter().filter(|remedy| !remedy.tried) {
        let mut changed = world.clone();
        if !remedy.steps.iter().all(|step| create(&mut changed, &waiting, step)) {
            continue;
        }
        count += remedy.steps.iter().filter(|step| is(step)).count();
        changed.cluster.cycle(world.now, &world.config);
        // Another obstacle may come to light.
        let after = changed.cluster.pods_of([uid])[0].reason.clone();
        let kind = |reason: &Option<Reason>| reason.as_ref().map(std::mem::discriminant);
        let is_gone = after.is_none() || kind(&after) != kind(&explanation.reason);
        assert!(is_gone, "{after:?} after {remedy:#?}\nof {explanation:#?}");
    }
    count
}

/// A step that can't be tried is no promise that the gang starts, but it removes the obstacle that the reason names.
#[test]
fn what_is_to_be_created_is_no_longer_missing() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{TestRng, TestRunner};
    let config = cases(1);
    let rng = TestRng::from_seed(config.rng_algorithm, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let (mut queues, mut pods) = (0, 0);
    for _ in 0..120 {
        let scenes = constrained_scenes().new_tree(&mut runner);
        let scene = scenes.expect("nothing is filtered").current();
        watch(&scene, |world| {
            for (gang, uid) in waiting(&world.cluster) {
                pods += check_untried(world, &gang, &uid, |step| matches!(step, Step::CreatePods { .. }));
                // Its queue is gone.
                let Some(spec) = world.gangs.get(&gang) else { continue };
                let mut changed = world.clone();
                changed.apply(Event::QueueGone(spec.queue.clone()));
                changed.cluster.cycle(world.now, &world.config);
                queues += check_untried(&changed, &gang, &uid, |step| matches!(step, Step::CreateQueue(_)));
            }
        });
    }
    assert!(
        queues > 0 && pods > 0,
        "{queues} queues and {pods} times pods were created"
    );
}

#[allow(clippy::too_many_arguments)]
#[track_caller]
fn prop_assert_starts(
    cluster: &mut Cluster,
    world: &World,
    now: Millis,
    waiting: &[String],
    explanation: &Explanation,
    remedy: &kai_engine::remedies::Remedy,
    engine: &str,
) {
    let started = starts(cluster, world, now, waiting);
    assert!(
        started,
        "{engine} does not start the gang by {remedy:#?}\nof {explanation:#?}"
    );
}

/// Each kind of step occurs in random clusters, so the law is tested on all of them.
#[test]
fn every_kind_of_step_is_tried() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{TestRng, TestRunner};
    let config = cases(1);
    let rng = TestRng::from_seed(config.rng_algorithm, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for _ in 0..240 {
        let scene = constrained_scenes()
            .new_tree(&mut runner)
            .expect("nothing is filtered")
            .current();
        watch(&scene, |world| {
            for (_, uid) in waiting(&world.cluster) {
                for remedy in explain(world, &uid).remedies.iter().filter(|remedy| remedy.tried) {
                    for step in &remedy.steps {
                        *counts.entry(kind(step)).or_default() += 1;
                    }
                }
            }
        });
    }
    println!("{counts:#?}");
    let missing: Vec<_> = KINDS.into_iter().filter(|kind| !counts.contains_key(kind)).collect();
    assert!(missing.is_empty(), "{missing:?} of {counts:?}");
    assert_eq!(counts.len(), KINDS.len(), "{counts:?}");
}

/// The kinds of steps that can be tried.
const KINDS: [&str; 21] = [
    "end",
    "raise limit",
    "raise quota",
    "make preemptible",
    "ask at most",
    "lower minimum",
    "uncordon",
    "make ready",
    "add nodes",
    "remove gates",
    "without node affinity",
    "without taints",
    "without host ports",
    "without pod affinity",
    "without pod anti-affinity",
    "without topology",
    "without enforcement",
    "without compute mode",
    "wait for a delay",
    "wait for a minimum runtime",
    "wait for a cycle or a release",
];

fn kind(step: &Step) -> &'static str {
    match step {
        Step::End { .. } => "end",
        Step::Raise {
            bound: RaisedBound::Limit,
            ..
        } => "raise limit",
        Step::Raise {
            bound: RaisedBound::Quota,
            ..
        } => "raise quota",
        Step::MakePreemptible => "make preemptible",
        Step::AskAtMost(_) => "ask at most",
        Step::LowerMinimum { .. } => "lower minimum",
        Step::Uncordon(_) => "uncordon",
        Step::MakeReady { .. } => "make ready",
        Step::AddNodes { .. } => "add nodes",
        Step::RemoveGates { .. } => "remove gates",
        Step::Relax(constraint) => match constraint {
            Constraint::NodeAffinity => "without node affinity",
            Constraint::Taints => "without taints",
            Constraint::HostPorts => "without host ports",
            Constraint::PodAffinity => "without pod affinity",
            Constraint::PodAntiAffinity => "without pod anti-affinity",
            Constraint::Topology => "without topology",
            Constraint::Enforcement => "without enforcement",
            Constraint::ComputeMode => "without compute mode",
        },
        Step::Wait(Wait::PreemptionDelay(_)) => "wait for a delay",
        Step::Wait(Wait::MinRuntime(_)) => "wait for a minimum runtime",
        Step::Wait(Wait::NextCycle | Wait::Release { .. }) => "wait for a cycle or a release",
        Step::CreatePods { .. }
        | Step::CreateGang(_)
        | Step::CreateQueue(_)
        | Step::NameLeafQueue(_)
        | Step::ChangeParent(_)
        | Step::NameSubGroup(_)
        | Step::CreateTopology { .. }
        | Step::Correct
        | Step::Wait(Wait::LaterCycles | Wait::BackOff) => panic!("can't be tried: {step:?}"),
    }
}
