//! The plans of random clusters: small values that proptest generates and shrinks, so that a counterexample is readable. A number that
//! picks an object is taken modulo the number of objects.

use std::fmt;

use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;

use super::super::kai_engine::model::{
    ComputeMode, Enforcement, EnforcementTier, PlacementStrategy, Preemptibility, ShareTerms,
};

/// A cluster with its gangs, and the steps that change it.
#[derive(Clone)]
pub(crate) struct Scene {
    pub(crate) policy: Policy,
    pub(crate) nodes: Vec<NodePlan>,
    pub(crate) queues: Vec<QueuePlan>,
    pub(crate) gangs: Vec<GangPlan>,
    pub(crate) steps: Vec<Step>,
}

/// One line per part.
impl fmt::Debug for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scene {
            policy,
            nodes,
            queues,
            gangs,
            steps,
        } = self;
        writeln!(f, "{policy:?}")?;
        nodes.iter().try_for_each(|node| writeln!(f, "  {node:?}"))?;
        queues.iter().try_for_each(|queue| writeln!(f, "  {queue:?}"))?;
        gangs.iter().try_for_each(|gang| writeln!(f, "  {gang:?}"))?;
        steps.iter().try_for_each(|step| writeln!(f, "  {step:?}"))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub(crate) strategy: PlacementStrategy,
    pub(crate) any_number_of_moves: bool,
    pub(crate) no_staleness_grace: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct NodePlan {
    pub(crate) gpus: i64,
    pub(crate) memory_mib: Option<i64>,
    pub(crate) kind: NodeKind,
    pub(crate) cores: i64,
    pub(crate) memory_gib: i64,
    pub(crate) pods: i64,
    pub(crate) rack: u8,
    pub(crate) cordoned: bool,
    pub(crate) not_ready: bool,
    pub(crate) tier: EnforcementTier,
    /// Whether only pods with the toleration may use it.
    pub(crate) tainted: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum NodeKind {
    Plain,
    /// Units per GPU.
    TimeSliced(i64),
    Unified,
    /// Numbers of 1g and 3g slices, instead of GPUs.
    Mig(i64, i64),
}

#[derive(Clone, Debug)]
pub(crate) struct QueuePlan {
    /// One of the queues before this one, unless the tree becomes too deep.
    pub(crate) parent: Option<usize>,
    /// Hundredths of a GPU.
    pub(crate) deserved: Option<i64>,
    pub(crate) limit: Option<i64>,
    pub(crate) weight: i64,
    pub(crate) priority: i32,
    pub(crate) cores_deserved: Option<i64>,
    pub(crate) cores_limit: Option<i64>,
    /// Hundredths of the cluster.
    pub(crate) usage: Option<i64>,
    /// Whether its gangs are protected for some minutes after their start.
    pub(crate) protects: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct GangPlan {
    pub(crate) queue: usize,
    pub(crate) priority: i32,
    pub(crate) age: i64,
    /// Whether the gang runs from the start, if it fits.
    pub(crate) runs: bool,
    pub(crate) requests: Vec<Request>,
    pub(crate) shape: Shape,
    pub(crate) topology: Option<TopologyPlan>,
    /// The pods may use nodes of this rack only.
    pub(crate) rack: Option<u8>,
    /// The kind of the first pod, if it is not an ordinary one.
    pub(crate) special_pod: Option<SpecialPod>,
    pub(crate) share: ShareTerms,
    /// Whether its pods are background pods.
    pub(crate) background: bool,
    pub(crate) semi_preemptible: bool,
    pub(crate) rule: Option<Rule>,
    /// For how many seconds the gang may not evict others.
    pub(crate) delay: Option<i64>,
}

/// What only [`constrained_scenes`], [`volume_scenes`] and [`attach_scenes`] have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// The pods tolerate the taint.
    Tolerates,
    /// The pods use one of a few ports of their node.
    HostPort(u16),
    /// The pods run beside others with a rule, on a node or in a rack.
    Beside(Level),
    /// The pods run apart from others with a rule.
    Apart(Level),
    /// The pods have claims without volumes.
    Claims(ClaimPlan),
    /// The pods use volumes that are bound.
    Attached(AttachPlan),
}

/// The claims of a gang's pods.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClaimPlan {
    /// Each pod has a claim of a disk that exists.
    Disk,
    /// Each pod has a claim, for which a disk can be made in one rack.
    DiskOrNew,
    /// Each pod has two claims.
    Two,
    /// The pods have one claim, for one node at a time or for many.
    Shared { many_nodes: bool },
}

/// The bound volumes of a gang's pods.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AttachPlan {
    /// Each pod has this many volumes.
    Own(u8),
    /// The pods share a volume, and each has one more.
    Shared,
    /// The first pod uses one of a few claims that one pod alone can use.
    Exclusive(u8),
}

impl GangPlan {
    pub(crate) fn preemptibility(&self) -> Preemptibility {
        match (self.semi_preemptible, self.priority) {
            (true, _) => Preemptibility::SemiPreemptible,
            (false, ..100) => Preemptibility::Preemptible,
            (false, _) => Preemptibility::NonPreemptible,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum SpecialPod {
    Gated,
    Refused,
    Foreign,
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) millis: i64,
    pub(crate) mib: i64,
    pub(crate) gpu: Gpu,
}

#[derive(Clone, Debug)]
pub(crate) enum Gpu {
    None,
    Whole(i64),
    /// Hundredths, GPUs.
    Fraction(i64, i64),
    /// MiB, GPUs.
    Memory(i64, i64),
    /// Numbers of 1g and 3g slices.
    Mig(i64, i64),
}

#[derive(Clone, Debug)]
pub(crate) enum Shape {
    One,
    Gang {
        min: u32,
        more: u32,
    },
    Tree {
        min_sub_group: Option<u32>,
        branches: Vec<Branch>,
    },
}

/// A leaf subgroup, or a parent of several. Leaves are pairs of minimum and further pods.
#[derive(Clone, Debug)]
pub(crate) struct Branch {
    pub(crate) min_sub_group: Option<u32>,
    pub(crate) leaves: Vec<(u32, u32)>,
    pub(crate) together: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct TopologyPlan {
    pub(crate) required: Option<Level>,
    pub(crate) preferred: Option<Level>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Level {
    Rack,
    Host,
}

/// How fast decisions are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Bound pods run at once, evicted ones are replaced by pending pods.
    AtOnce,
    /// Bindings are in flight, evicted pods are still terminating.
    Slow,
    /// Like `Slow`, without events to the engine.
    Silent,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Cycle(Pace),
    Wait(i64),
    NodeGone(usize),
    Node(usize, NodePlan),
    Cordon(usize),
    PodGone(usize),
    PodEnds(usize),
    PodLeaves(usize),
    Gang(GangPlan),
    GangGone(usize),
    /// Sets another minimum.
    GangChanges(usize, u32),
    Queue(usize, QueuePlan),
}

/// The kinds of gangs that a scene may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Jobs of one pod.
    Single,
    /// Gangs with all pods required.
    Rigid,
    /// All kinds.
    Any,
}

/// Clusters with all kinds of gangs and steps.
pub(crate) fn scenes() -> impl Strategy<Value = Scene> {
    scenes_of(Class::Any, 0..12)
}

/// Clusters with gangs of one class.
pub(crate) fn scenes_of(class: Class, steps: std::ops::Range<usize>) -> impl Strategy<Value = Scene> {
    (
        policies(),
        vec(nodes(), 1..6),
        vec(queues(), 1..7),
        vec(gangs(class), 0..10),
        vec(self::steps(class), steps),
    )
        .prop_map(move |(policy, nodes, queues, gangs, mut steps)| {
            // A step that changes the minimum makes a gang elastic.
            steps.retain(|step| class == Class::Any || !matches!(step, Step::GangChanges(..)));
            Scene {
                policy,
                nodes,
                queues,
                gangs,
                steps,
            }
        })
}

/// [`scenes`] with taints, host ports, affinity between pods, delays and minimum runtimes here and there.
pub(crate) fn constrained_scenes() -> impl Strategy<Value = Scene> {
    let level = || prop_oneof![Just(Level::Rack), Just(Level::Host)];
    let rule = prop_oneof![
        1 => Just(Rule::Tolerates),
        4 => (0u16..2).prop_map(Rule::HostPort),
        2 => level().prop_map(Rule::Beside),
        2 => level().prop_map(Rule::Apart),
    ];
    let rules = vec((weighted(0.3, rule), weighted(0.4, 1i64..100)), 24);
    let flags = |weight: f64| vec(prop::bool::weighted(weight), 20);
    (scenes(), rules, flags(0.2), flags(0.5)).prop_map(|(mut scene, rules, taints, protects)| {
        let (mut rules, mut taints, mut protects) = (rules.into_iter(), taints.into_iter(), protects.into_iter());
        let mut constrain = |gang: &mut GangPlan| (gang.rule, gang.delay) = rules.next().unwrap_or_default();
        let mut taint = |node: &mut NodePlan| node.tainted = taints.next().unwrap_or_default();
        let mut protect = |queue: &mut QueuePlan| queue.protects = protects.next().unwrap_or_default();
        scene.gangs.iter_mut().for_each(&mut constrain);
        scene.nodes.iter_mut().for_each(&mut taint);
        scene.queues.iter_mut().for_each(&mut protect);
        for step in &mut scene.steps {
            match step {
                Step::Gang(gang) => constrain(gang),
                Step::Node(_, node) => taint(node),
                Step::Queue(_, queue) => protect(queue),
                Step::Cycle(_)
                | Step::Wait(_)
                | Step::NodeGone(_)
                | Step::Cordon(_)
                | Step::PodGone(_)
                | Step::PodEnds(_)
                | Step::PodLeaves(_)
                | Step::GangGone(_)
                | Step::GangChanges(..) => {}
            }
        }
        scene
    })
}

/// [`scenes`] in which most pods have claims without volumes.
pub(crate) fn volume_scenes() -> impl Strategy<Value = Scene> {
    let plan = prop_oneof![
        3 => Just(ClaimPlan::Disk),
        2 => Just(ClaimPlan::DiskOrNew),
        1 => Just(ClaimPlan::Two),
        1 => any::<bool>().prop_map(|many_nodes| ClaimPlan::Shared { many_nodes }),
    ];
    scenes_with(plan.prop_map(Rule::Claims))
}

/// [`scenes`] in which most pods use bound volumes. Nodes take one to three of them.
pub(crate) fn attach_scenes() -> impl Strategy<Value = Scene> {
    let plan = prop_oneof![
        3 => (1u8..4).prop_map(AttachPlan::Own),
        1 => Just(AttachPlan::Shared),
        2 => (0u8..3).prop_map(AttachPlan::Exclusive),
    ];
    scenes_with(plan.prop_map(Rule::Attached))
}

/// [`scenes`] in which most gangs have such a rule.
fn scenes_with(rule: impl Strategy<Value = Rule>) -> impl Strategy<Value = Scene> {
    (scenes(), vec(weighted(0.7, rule), 24)).prop_map(|(mut scene, rules)| {
        let mut rules = rules.into_iter();
        let mut set = |gang: &mut GangPlan| gang.rule = rules.next().flatten();
        scene.gangs.iter_mut().for_each(&mut set);
        for step in &mut scene.steps {
            if let Step::Gang(gang) = step {
                set(gang);
            }
        }
        scene
    })
}

fn policies() -> impl Strategy<Value = Policy> {
    (
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.3),
        prop::bool::weighted(0.2),
    )
        .prop_map(|(other, any_number_of_moves, no_staleness_grace)| Policy {
            strategy: match (other, any_number_of_moves) {
                (false, _) => PlacementStrategy::Binpack,
                (true, false) => PlacementStrategy::Spread,
                (true, true) => PlacementStrategy::Frag,
            },
            any_number_of_moves,
            no_staleness_grace,
        })
}

fn nodes() -> impl Strategy<Value = NodePlan> {
    let kind = prop_oneof![
        6 => Just(NodeKind::Plain),
        1 => (2i64..4).prop_map(NodeKind::TimeSliced),
        1 => Just(NodeKind::Unified),
        1 => (0i64..8, 0i64..3).prop_map(|(small, large)| NodeKind::Mig(small, large)),
    ];
    let memory_mib = prop_oneof![
        2 => Just(Some(16_000)), 2 => Just(Some(40_000)), 1 => Just(Some(81_920)), 1 => Just(None),
    ];
    let size = (
        prop_oneof![1 => Just(0i64), 6 => 1i64..=8],
        prop_oneof![4 => Just(64i64), 1 => 1i64..8],
        prop_oneof![4 => Just(256i64), 1 => 1i64..32],
        prop_oneof![4 => Just(110i64), 1 => 1i64..6],
    );
    (
        size,
        memory_mib,
        kind,
        0u8..3,
        prop::bool::weighted(0.05),
        prop::bool::weighted(0.05),
        tiers(),
    )
        .prop_map(
            |((gpus, cores, memory_gib, pods), memory_mib, kind, rack, cordoned, not_ready, tier)| NodePlan {
                gpus,
                memory_mib,
                kind,
                cores,
                memory_gib,
                pods,
                rack,
                cordoned,
                not_ready,
                tier,
                tainted: false,
            },
        )
}

fn tiers() -> impl Strategy<Value = EnforcementTier> {
    prop_oneof![
        3 => Just(EnforcementTier::None),
        1 => Just(EnforcementTier::Watch),
        2 => Just(EnforcementTier::Driver),
        3 => Just(EnforcementTier::Mps),
    ]
}

fn share_terms() -> impl Strategy<Value = ShareTerms> {
    let mode = prop_oneof![3 => Just(ComputeMode::TimeSlicing), 1 => Just(ComputeMode::SmSharing)];
    let enforcement = prop_oneof![5 => Just(Enforcement::Preferred), 1 => Just(Enforcement::Required)];
    (mode, enforcement).prop_map(|(compute_mode, enforcement)| ShareTerms {
        compute_mode,
        enforcement,
    })
}

fn queues() -> impl Strategy<Value = QueuePlan> {
    let hundredths = prop_oneof![4 => (0i64..9).prop_map(|gpus| gpus * 100), 1 => 0i64..800];
    (
        weighted(0.7, 0usize..6),
        weighted(0.9, hundredths.clone()),
        weighted(0.3, hundredths),
        0i64..4,
        prop_oneof![3 => Just(100), 1 => Just(200)],
        weighted(0.2, 0i64..64),
        weighted(0.1, 0i64..64),
        weighted(0.2, 0i64..100),
    )
        .prop_map(
            |(parent, deserved, limit, weight, priority, cores_deserved, cores_limit, usage)| QueuePlan {
                parent,
                deserved,
                limit,
                weight,
                priority,
                cores_deserved,
                cores_limit,
                usage,
                protects: false,
            },
        )
}

fn requests() -> impl Strategy<Value = Request> {
    let devices = || prop_oneof![5 => Just(1i64), 1 => 2i64..4];
    let fraction = prop_oneof![2 => Just(50i64), 1 => Just(25i64), 3 => 1i64..100];
    let memory = prop_oneof![2 => Just(8_000i64), 3 => 1i64..50_000];
    let gpu = prop_oneof![
        1 => Just(Gpu::None),
        4 => (1i64..5).prop_map(Gpu::Whole),
        3 => (fraction, devices()).prop_map(|(part, devices)| Gpu::Fraction(part, devices)),
        2 => (memory, devices()).prop_map(|(mib, devices)| Gpu::Memory(mib, devices)),
        1 => (0i64..3, 0i64..2).prop_map(|(small, large)| Gpu::Mig(small, large)),
    ];
    let millis = prop_oneof![4 => Just(100i64), 1 => 0i64..8_000];
    let mib = prop_oneof![4 => Just(100i64), 1 => 0i64..16_000];
    (millis, mib, gpu).prop_map(|(millis, mib, gpu)| Request { millis, mib, gpu })
}

fn gangs(class: Class) -> BoxedStrategy<GangPlan> {
    let one = Just(Shape::One);
    let rigid = (1u32..5).prop_map(|min| Shape::Gang { min, more: 0 });
    let elastic = (0u32..4, 0u32..4).prop_map(|(min, more)| Shape::Gang { min, more });
    let branch = (
        weighted(0.3, 1u32..3),
        vec((0u32..3, 0u32..2), 1..4),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(min_sub_group, leaves, together)| Branch {
            min_sub_group,
            leaves,
            together,
        });
    let tree = (weighted(0.3, 1u32..3), vec(branch, 1..4)).prop_map(|(min_sub_group, branches)| Shape::Tree {
        min_sub_group,
        branches,
    });
    let shape = match class {
        Class::Single => one.boxed(),
        Class::Rigid => prop_oneof![1 => one, 1 => rigid].boxed(),
        Class::Any => prop_oneof![3 => one, 2 => rigid, 2 => elastic, 2 => tree].boxed(),
    };
    let level = || prop_oneof![Just(Level::Rack), Just(Level::Host)];
    let topology = (weighted(0.6, level()), weighted(0.4, level()))
        .prop_map(|(required, preferred)| TopologyPlan { required, preferred });
    let special_pod = prop_oneof![
        Just(SpecialPod::Gated),
        Just(SpecialPod::Refused),
        Just(SpecialPod::Foreign)
    ];
    (
        0usize..6,
        prop_oneof![Just(50), Just(75), Just(100), Just(125)],
        0i64..5,
        prop::bool::weighted(0.4),
        vec(requests(), 1..3),
        shape,
        weighted(0.15, topology),
        weighted(0.1, 0u8..3),
        weighted(0.05, special_pod),
        (share_terms(), prop::bool::weighted(0.15), prop::bool::weighted(0.25)),
    )
        .prop_map(
            |(queue, priority, age, runs, requests, shape, topology, rack, special_pod, terms)| {
                let (share, background, semi_preemptible) = terms;
                GangPlan {
                    queue,
                    priority,
                    age,
                    runs,
                    requests,
                    shape,
                    topology,
                    rack,
                    special_pod,
                    share,
                    background,
                    semi_preemptible,
                    rule: None,
                    delay: None,
                }
            },
        )
        .boxed()
}

fn steps(class: Class) -> impl Strategy<Value = Step> {
    let pace = prop_oneof![3 => Just(Pace::AtOnce), 1 => Just(Pace::Slow), 1 => Just(Pace::Silent)];
    prop_oneof![
        8 => pace.prop_map(Step::Cycle),
        1 => (1i64..130).prop_map(Step::Wait),
        1 => any::<usize>().prop_map(Step::NodeGone),
        2 => (any::<usize>(), nodes()).prop_map(|(at, plan)| Step::Node(at, plan)),
        1 => any::<usize>().prop_map(Step::Cordon),
        1 => any::<usize>().prop_map(Step::PodGone),
        1 => any::<usize>().prop_map(Step::PodEnds),
        1 => any::<usize>().prop_map(Step::PodLeaves),
        4 => gangs(class).prop_map(Step::Gang),
        1 => any::<usize>().prop_map(Step::GangGone),
        1 => (any::<usize>(), 0u32..4).prop_map(|(at, min)| Step::GangChanges(at, min)),
        1 => (any::<usize>(), queues()).prop_map(|(at, plan)| Step::Queue(at, plan)),
    ]
}
