use super::*;
use crate::Cluster;
use crate::model::{
    Config, EnforcementTier, Event, FractioningCondition, GangKey, GangSpec, Labels, MemoryKind, MigStrategy, Millis,
    NodeSpec, PodPhase, PodSpec, Preemptibility, QueueSpec, Quota, Requests, SUB_GROUP_DEPTH_MAX, SUB_GROUPS_MAX,
    SubGroupSpec,
};
use crate::reasons::{Reason, SubGroupExcess};
use crate::report::Status;

fn key() -> GangKey {
    GangKey {
        namespace: "n".into(),
        name: "g".into(),
    }
}

fn gang(sub_groups: Vec<SubGroupSpec>) -> GangSpec {
    GangSpec {
        priority: 50,
        sub_groups,
        ..GangSpec::new(key(), "q")
    }
}

fn sub_group(name: &str, parent: Option<&str>, min: u32) -> SubGroupSpec {
    SubGroupSpec {
        name: name.to_owned(),
        parent: parent.map(str::to_owned),
        min_member: Some(min),
        min_sub_group: None,
        topology: None,
    }
}

fn name(at: usize) -> String {
    format!("s{at:06}")
}

/// A chain of subgroups. By name the deepest comes first, so that every child is listed before its parent.
fn chain(count: usize) -> Vec<SubGroupSpec> {
    let parent = |at: usize| (at + 1 < count).then(|| name(at + 1));
    (0..count)
        .map(|at| sub_group(&name(at), parent(at).as_deref(), 1))
        .collect()
}

fn flat(count: usize) -> Vec<SubGroupSpec> {
    (0..count).map(|at| sub_group(&name(at), None, 1)).collect()
}

fn pod(at: usize, node: Option<&str>, sub_group: &str) -> PodSpec {
    PodSpec {
        gang: Some(key()),
        sub_group: Some(sub_group.to_owned()),
        phase: if node.is_some() {
            PodPhase::Running
        } else {
            PodPhase::Pending
        },
        node: node.map(str::to_owned),
        requests: Requests {
            cpu_milli: 1,
            ..Requests::default()
        },
        ..PodSpec::new("n", &format!("p{at}"))
    }
}

fn cluster() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.apply(Event::Queue(QueueSpec {
        name: "q".into(),
        display_name: String::new(),
        parent: None,
        created: Millis(0),
        uid: "q".into(),
        priority: 0,
        quota: Quota::UNBOUNDED,
        preempt_min_runtime: None,
        reclaim_min_runtime: None,
    }));
    cluster
}

fn reason(cluster: &Cluster, uid: &str) -> Option<Reason> {
    cluster.pods_of([uid]).pop().and_then(|view| view.reason)
}

/// The tree as text: subgroups with their members, in order.
fn drawn(spec: &GangSpec) -> (String, Vec<String>) {
    let tree = build_tree(spec);
    let member = |member: &Member| match member {
        Member::Pods(set) => tree.pod_sets[*set as usize].name.to_string(),
        Member::SubGroup(group) => format!("#{group}"),
    };
    let line = |(at, group): (usize, &crate::tables::SubGroup)| {
        let members: Vec<String> = group.members.iter().map(member).collect();
        format!("#{at} = {}", members.join(" "))
    };
    let groups: Vec<String> = tree.sub_groups.iter().enumerate().map(line).collect();
    let problem = |problem: &tree::TreeProblem| format!("{}: {}", problem.sub_group, problem.problem);
    (groups.join("; "), tree.problems.iter().map(problem).collect())
}

#[test]
fn a_tree_has_its_members_in_order_of_names_and_leaves_out_what_hangs_nowhere() {
    let spec = gang(vec![
        sub_group("z", Some("M"), 1),
        sub_group("m", None, 0),
        sub_group("a", Some("m"), 1),
        sub_group("lonely", Some("nobody"), 1),
        sub_group("x", Some("y"), 1),
        sub_group("y", Some("x"), 1),
        sub_group("below-x", Some("x"), 1),
        sub_group("twice", None, 1),
        sub_group("twice", Some("m"), 1),
    ]);
    let (tree, problems) = drawn(&spec);
    assert_eq!(tree, "#0 = #1 twice; #1 = a z");
    assert_eq!(
        problems,
        [
            "below-x: its parents form a cycle, or lead into one",
            "lonely: its parent does not exist",
            "twice: appears twice",
            "x: its parents form a cycle, or lead into one",
            "y: its parents form a cycle, or lead into one",
        ]
    );
}

#[test]
fn required_pods_of_huge_minimums_do_not_wrap() {
    let mut cluster = cluster();
    cluster.apply(Event::Gang(gang(vec![
        sub_group("a", None, u32::MAX),
        sub_group("b", None, 2),
    ])));
    cluster.apply(Event::Pod(pod(0, None, "a")));
    cluster.cycle(Millis(0), &Config::default());
    let Some(Reason::GangNotReady {
        ready,
        required,
        lacking,
    }) = reason(&cluster, "p0")
    else {
        panic!("the gang is not ready");
    };
    assert_eq!((ready, required), (1, u32::MAX));
    assert_eq!(
        lacking.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "Waiting for 4294967295 pods for SubGroup a, currently 1 exist, 0 are gated",
            "Waiting for 2 pods for SubGroup b, currently 0 exist, 0 are gated",
        ]
    );
}

#[test]
fn a_gang_beyond_the_bounds_starts_nothing_and_says_why_and_others_go_on() {
    for (sub_groups, excess) in [
        (
            flat(SUB_GROUPS_MAX + 1),
            SubGroupExcess::Count(SUB_GROUPS_MAX as u32 + 1),
        ),
        (chain(SUB_GROUP_DEPTH_MAX + 1), SubGroupExcess::Depth),
        (chain(3_000), SubGroupExcess::Depth),
    ] {
        let mut cluster = cluster();
        cluster.apply(Event::Gang(gang(sub_groups)));
        cluster.apply(Event::Pod(pod(0, None, &name(0))));
        cluster.cycle(Millis(0), &Config::default());
        assert_eq!(reason(&cluster, "p0"), Some(Reason::SubGroupsExceeded(excess)));
        assert_eq!(cluster.anomalies().len(), 1);
        // Within the bounds again, the gang is scheduled like any other.
        cluster.apply(Event::Gang(gang(chain(SUB_GROUP_DEPTH_MAX))));
        cluster.cycle(Millis(0), &Config::default());
        assert!(matches!(
            reason(&cluster, "p0"),
            Some(Reason::NoNode(_) | Reason::GangShort { .. })
        ));
        assert!(cluster.anomalies().is_empty());
    }
}

#[test]
fn running_pods_of_a_gang_beyond_the_bounds_stay_and_are_charged() {
    let mut cluster = cluster();
    cluster.apply(Event::Node(NodeSpec {
        name: "node".into(),
        labels: Labels::new(),
        taints: Vec::new(),
        unschedulable: false,
        conditions: Vec::new(),
        cpu_milli: 10,
        memory_bytes: 0,
        gpus: 0,
        pods: 10,
        extended: Vec::new(),
        gpu_count_label: None,
        gpu_memory_mib: None,
        gpu_memory_kind: MemoryKind::Dedicated,
        mig_enabled: false,
        mig_strategy: MigStrategy::None,
        enforcement: EnforcementTier::None,
        fractioning: FractioningCondition::Met,
    }));
    for at in 0..2 {
        cluster.apply(Event::Pod(pod(at, Some("node"), &name(at))));
    }
    cluster.apply(Event::Gang(gang(chain(SUB_GROUP_DEPTH_MAX + 1))));
    let report = cluster.cycle(Millis::seconds(1), &Config::default());
    let later = cluster.cycle(Millis::seconds(100_000), &Config::default());
    assert_eq!((report.decisions.len(), later.decisions.len()), (0, 0));
    let row = &cluster.ledger.gangs[0];
    let allocated = QueueResources {
        cpu_milli: 2,
        ..QueueResources::ZERO
    };
    assert_eq!((row.count(Status::Running), row.allocated), (2, allocated));
    assert!(row.unmatched_pods.is_empty());
}

/// Chains of the largest allowed depth, side by side.
fn chains(count: usize) -> Vec<SubGroupSpec> {
    let last_of_chain = |at: usize| (at + 1).is_multiple_of(SUB_GROUP_DEPTH_MAX) || at + 1 == count;
    let parent = |at: usize| (!last_of_chain(at)).then(|| name(at + 1));
    (0..count)
        .map(|at| sub_group(&name(at), parent(at).as_deref(), 0))
        .collect()
}

/// The steps of building and rebuilding a gang with a pod per subgroup, and of finding the pods to start and to evict.
#[cfg(debug_assertions)]
fn steps_of(sub_groups: Vec<SubGroupSpec>, preemptibility: Preemptibility) -> u64 {
    let count = sub_groups.len();
    let spec = GangSpec {
        preemptibility,
        ..gang(sub_groups)
    };
    let mut cluster = cluster();
    let ((), steps) = steps::of(|| {
        for at in 0..count {
            cluster.apply(Event::Pod(pod(at, (at % 2 == 0).then_some("node"), &name(at))));
        }
        cluster.apply(Event::Gang(spec));
        cluster.cycle(Millis(0), &Config::default());
        for at in 0..count {
            cluster.apply(Event::Pod(pod(at, None, &name(at))));
        }
        let id = cluster.gang_ids[&key()];
        let taken: Vec<PodId> = (0..count / 2).map(PodId::new).collect();
        Evictable::new(&cluster.ledger, id, &taken).unit();
        cluster.ledger.pods_to_place(id, Candidates::Simulated, &mut Vec::new());
    });
    steps
}

#[cfg(debug_assertions)]
#[test]
fn work_on_a_gang_grows_with_its_subgroups_and_not_with_their_square() {
    let size = SUB_GROUPS_MAX / 2;
    let preemptibilities = [Preemptibility::Preemptible, Preemptibility::SemiPreemptible];
    for (shape, preemptibility) in [flat, chains]
        .into_iter()
        .flat_map(|shape| preemptibilities.map(|of| (shape, of)))
    {
        let steps = |size| steps_of(shape(size), preemptibility);
        let (half, whole) = (steps(size), steps(2 * size));
        // Sorts and binary searches add a logarithmic factor.
        assert!(
            whole <= half * 5 / 2,
            "{half} steps for {size} subgroups, {whole} for twice as many"
        );
        assert!(whole > size as u64, "steps are counted");
    }
}

#[cfg(debug_assertions)]
#[test]
fn events_about_a_semi_preemptible_gang_cost_by_its_pods_and_not_by_their_square() {
    let steps_of = |count: usize| {
        let mut cluster = cluster();
        let min_member = count as u32 / 2;
        let ((), steps) = steps::of(|| {
            cluster.apply(Event::Gang(GangSpec {
                preemptibility: Preemptibility::SemiPreemptible,
                min_member,
                ..gang(Vec::new())
            }));
            for _ in 0..2 {
                for at in 0..count {
                    let mut pod = pod(at, Some("node"), DEFAULT_SUB_GROUP);
                    pod.sub_group = None;
                    cluster.apply(Event::Pod(pod));
                }
                cluster.cycle(Millis(0), &Config::default());
            }
        });
        assert_eq!(cluster.ledger.core_of(cluster.gang_ids[&key()]).len(), count / 2);
        steps
    };
    let (half, whole) = (steps_of(500), steps_of(1_000));
    assert!(
        whole <= half * 5 / 2,
        "{half} steps for 500 pods, {whole} for twice as many"
    );
    assert!(half > 500, "steps are counted");
}

#[test]
fn the_core_of_specs_is_that_of_the_engine() {
    let with_minimum = |min_sub_group, sub_groups| GangSpec {
        preemptibility: Preemptibility::SemiPreemptible,
        min_sub_group,
        ..gang(sub_groups)
    };
    let replicas = || {
        flat(3)
            .into_iter()
            .map(|group| SubGroupSpec {
                min_member: Some(2),
                ..group
            })
            .collect()
    };
    let check = |spec: GangSpec, of_pods: &[usize], expect: &[usize]| {
        let mut cluster = cluster();
        cluster.apply(Event::Gang(spec.clone()));
        let pods: Vec<PodSpec> = (0..of_pods.len())
            .map(|at| pod(at, Some("node"), &name(of_pods[at])))
            .collect();
        pods.iter().for_each(|pod| cluster.apply(Event::Pod(pod.clone())));
        let of_specs = core_of(&spec, &pods.iter().collect::<Vec<_>>());
        let found: Vec<usize> = (0..pods.len()).filter(|at| of_specs[*at]).collect();
        assert_eq!(found, expect);
        let mut of_engine: Vec<String> = cluster
            .ledger
            .core_of(cluster.gang_ids[&key()])
            .into_iter()
            .map(|pod| cluster.ledger.pod(pod).uid.to_string())
            .collect();
        of_engine.sort();
        assert_eq!(of_engine, expect.iter().map(|at| format!("p{at}")).collect::<Vec<_>>());
    };
    // All three replicas, one pod too many in the second.
    check(
        with_minimum(None, replicas()),
        &[0, 0, 1, 1, 1, 2, 2],
        &[0, 1, 2, 3, 5, 6],
    );
    // The first that is whole; the part of another one is none of the core.
    check(with_minimum(Some(1), replicas()), &[0, 1, 1, 2, 2], &[1, 2]);
    // None is whole: no more than one in part.
    check(with_minimum(Some(1), replicas()), &[2, 1], &[1]);
    // A subgroup without a minimum needs no pod.
    let free = vec![sub_group(&name(0), None, 2), sub_group(&name(1), None, 0)];
    check(with_minimum(Some(1), free.clone()), &[0, 0, 1], &[]);
    check(with_minimum(Some(2), free), &[0, 0, 1], &[0, 1]);
    check(with_minimum(Some(0), replicas()), &[0, 0], &[]);
}
