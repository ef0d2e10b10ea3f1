//! Laws: a bound on the number of pods is never below the number of pods that fit one after the other.

use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;

use super::{FreedResources, PodRequest, fits, max_pods, max_pods_by_volume};
use crate::Cluster;
use crate::ids::{NodeId, PodId};
use crate::laws::world::cases;
use crate::ledger::Ledger;
use crate::model::{
    EnforcementTier, Event, FractioningCondition, GpuFraction, GpuRequest, Labels, MemoryKind, MigStrategy, Millis,
    NodeSpec, PlacementStrategies, PlacementStrategy, PodPhase, PodSpec, Requests,
};
use crate::place::{NodeScoring, choose_devices};
use crate::report::Status;
use crate::tables::{GpuGroupIds, When};

const NODE: &str = "node";
/// Pod slots of a node at most.
const SLOTS_MAX: i64 = 130;
/// Pods of the wanted shape: more than a node can take.
const WANTED: usize = SLOTS_MAX as usize + 1;

/// A pod that is on the node before pods of the wanted shape come.
#[derive(Clone, Debug)]
struct Resident {
    requests: Requests,
    /// Number of its first GPU group; the others follow.
    first_group: usize,
    state: State,
    /// Whether it becomes a victim.
    is_victim: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Releasing,
    Pipelined,
}

prop_compose! {
    fn nodes()(
        gpus in 0i64..5,
        replicas in 1i64..4,
        gpu_memory_mib in weighted(0.8, prop_oneof![Just(300), Just(1_000), Just(40_000), Just(40_960)]),
        is_unified in weighted(0.2, Just(())),
        cores in 0i64..20,
        gib in 0i64..40,
        pods in prop_oneof![0i64..20, Just(SLOTS_MAX)],
        slices in 0i64..4,
    ) -> NodeSpec {
        NodeSpec {
            name: NODE.to_owned(),
            labels: Labels::new(),
            taints: Vec::new(),
            unschedulable: false,
            conditions: Vec::new(),
            cpu_milli: cores * 1_000,
            memory_bytes: gib << 30,
            gpus: gpus * replicas,
            pods,
            extended: vec![(SLICE.to_owned(), slices), (CARD.to_owned(), slices)],
            gpu_count_label: Some(gpus),
            gpu_memory_mib,
            gpu_memory_kind: if is_unified.is_some() { MemoryKind::Unified } else { MemoryKind::Dedicated },
            mig_enabled: false,
            mig_strategy: MigStrategy::None,
            enforcement: EnforcementTier::None,
            fractioning: FractioningCondition::Met,
        }
    }
}

const SLICE: &str = "nvidia.com/mig-1g.5gb";
const CARD: &str = "example.com/card";

fn gpu_requests() -> impl Strategy<Value = GpuRequest> {
    let billionths = prop_oneof![
        1i64..=1_000_000_000,
        (1i64..=100).prop_map(|hundredths| hundredths * 10_000_000),
        prop_oneof![Just(5_000_000), Just(125_000_000), Just(333_333_333), Just(500_000_000)],
    ];
    let fractions = billionths.prop_map(GpuFraction::from_billionths);
    let mib = prop_oneof![
        Just(1i64),
        Just(100),
        Just(150),
        Just(10_000),
        Just(20_000),
        1i64..50_000
    ];
    prop_oneof![
        1 => Just(GpuRequest::None),
        2 => (1i64..4).prop_map(|devices| GpuRequest::Whole { devices }),
        4 => (fractions, 1i64..4).prop_map(|(fraction, devices)| GpuRequest::Fraction { fraction, devices }),
        3 => (mib, 1i64..4).prop_map(|(mib, devices)| GpuRequest::Memory { mib, devices }),
        1 => (1i64..3).prop_map(|count| GpuRequest::Mig { slices: vec![(SLICE.to_owned(), count)], legacy: false }),
    ]
}

prop_compose! {
    fn requests()(
        cores in prop_oneof![3 => Just(0i64), 1 => 1i64..6],
        gib in prop_oneof![3 => Just(0i64), 1 => 1i64..6],
        gpu in gpu_requests(),
        cards in prop_oneof![4 => Just(0i64), 1 => 1i64..3],
    ) -> Requests {
        let extended = if cards > 0 { vec![(CARD.to_owned(), cards)] } else { Vec::new() };
        Requests { cpu_milli: cores * 1_000, memory_bytes: gib << 30, gpu, extended }
    }
}

prop_compose! {
    fn residents()(
        requests in requests(),
        first_group in 0usize..4,
        state in prop_oneof![3 => Just(State::Running), 1 => Just(State::Releasing), 1 => Just(State::Pipelined)],
        is_victim in any::<bool>(),
    ) -> Resident {
        Resident { requests, first_group, state, is_victim }
    }
}

fn pod(name: String, requests: &Requests) -> PodSpec {
    PodSpec {
        requests: requests.clone(),
        ..PodSpec::new("ns", &name)
    }
}

fn resident_pod(name: String, resident: &Resident) -> PodSpec {
    let mut pod = pod(name, &resident.requests);
    if resident.state == State::Pipelined {
        return pod;
    }
    let devices = match resident.requests.gpu {
        GpuRequest::Fraction { devices, .. } | GpuRequest::Memory { devices, .. } => devices as usize,
        GpuRequest::None | GpuRequest::Whole { .. } | GpuRequest::Mig { .. } => 0,
    };
    pod.gpu_groups = (0..devices)
        .map(|at| format!("group-{}", (resident.first_group + at) % 4))
        .collect();
    pod.phase = PodPhase::Running;
    pod.node = Some(NODE.to_owned());
    pod.deletion = (resident.state == State::Releasing).then_some(Millis(0));
    pod
}

/// Pipelines the pod to the only node, if it fits there after all releases.
fn pipeline(ledger: &mut Ledger, pod: PodId, strategy: PlacementStrategy) -> bool {
    let (node, shape) = (NodeId::new(0), ledger.shape_of(pod));
    if fits(ledger.node(node), shape, When::AfterRelease).is_err() {
        return false;
    }
    let scoring = NodeScoring {
        strategies: PlacementStrategies {
            gpu: strategy,
            cpu: strategy,
        },
        prices: None,
    };
    let groups = if shape.is_shared() {
        choose_devices(ledger, pod, node, &scoring, true).map(|choice| choice.gpu_groups)
    } else {
        Some(GpuGroupIds::new())
    };
    let Some(groups) = groups else { return false };
    ledger.pipeline(pod, node, groups, None);
    true
}

/// How many of the pods fit one after the other. Leaves the ledger as it was.
fn count_fitting(ledger: &mut Ledger, pods: &[PodId], strategy: PlacementStrategy) -> i64 {
    let checkpoint = ledger.checkpoint();
    let fitting = pods.iter().take_while(|pod| pipeline(ledger, **pod, strategy)).count();
    ledger.rollback(checkpoint);
    fitting as i64
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn no_bound_is_below_the_number_of_pods_that_fit(
        node in nodes(),
        residents in vec(residents(), 0..6),
        wanted in requests(),
        spread in any::<bool>(),
    ) {
        let strategy = if spread { PlacementStrategy::Spread } else { PlacementStrategy::Binpack };
        let mut cluster = Cluster::new();
        cluster.apply(Event::Node(node));
        for (at, resident) in residents.iter().enumerate() {
            cluster.apply(Event::Pod(resident_pod(format!("resident-{at}"), resident)));
        }
        for at in 0..WANTED {
            cluster.apply(Event::Pod(pod(format!("wanted-{at}"), &wanted)));
        }
        let pods: Vec<PodId> = (0..WANTED).map(|at| cluster.pod_ids[format!("wanted-{at}").as_str()]).collect();
        let resident_ids: Vec<PodId> =
            (0..residents.len()).map(|at| cluster.pod_ids[format!("resident-{at}").as_str()]).collect();
        let ledger = &mut cluster.ledger;
        ledger.start_journal();
        for (id, resident) in resident_ids.iter().zip(&residents) {
            if resident.state == State::Pipelined {
                pipeline(ledger, *id, strategy);
            }
        }

        let bounds = |ledger: &Ledger, freed: &FreedResources| {
            let (node, shape) = (ledger.node(NodeId::new(0)), ledger.shape_of(pods[0]));
            (max_pods(node, shape, freed), max_pods_by_volume(node, &PodRequest::of(shape)))
        };
        let exact = count_fitting(ledger, &pods, strategy);
        let (bound, by_volume) = bounds(ledger, &FreedResources::default());
        prop_assert!(exact <= bound, "{exact} pods fit, at most {bound} by the bound");
        prop_assert!(exact <= by_volume, "{exact} pods fit, at most {by_volume} by volume");
        prop_assert!(bound <= by_volume || !wanted.extended.is_empty() || is_mig(&wanted), "{bound} > {by_volume}");

        let mut freed = FreedResources::default();
        let victims: Vec<PodId> = resident_ids
            .iter()
            .zip(&residents)
            .filter(|(id, resident)| resident.is_victim && ledger.pod(**id).placement.status.is_active_allocated())
            .map(|(id, _)| *id)
            .collect();
        for victim in &victims {
            let row = ledger.pod(*victim);
            freed.change(ledger.node(NodeId::new(0)), ledger.shape(row.shape), row.kind, &row.placement.gpu_groups, 1);
        }
        let before = bounds(ledger, &freed).0;
        victims.iter().for_each(|victim| ledger.evict(*victim));
        prop_assert!(victims.iter().all(|victim| ledger.pod(*victim).placement.status == Status::Releasing));
        let exact = count_fitting(ledger, &pods, strategy);
        let (bound, by_volume) = bounds(ledger, &FreedResources::default());
        prop_assert!(exact <= before, "{exact} pods fit without the victims, at most {before} by the bound");
        prop_assert!(exact <= bound && exact <= by_volume, "{exact} pods fit, bounds {bound} and {by_volume}");
    }
}

fn is_mig(requests: &Requests) -> bool {
    matches!(requests.gpu, GpuRequest::Mig { .. })
}
