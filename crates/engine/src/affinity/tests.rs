//! Bounds on the terms in the index, and what events and cycles do with terms.

use crate::Cluster;
use crate::affinity::TermsState;
use crate::affinity::buckets::{TERMS_OF_ALL_MAX, TERMS_OF_NAMESPACE_MAX};
use crate::model::{
    Affinity, Config, EnforcementTier, Event, FractioningCondition, LabelSelector, Labels, MemoryKind, MigStrategy,
    Millis, NodeSpec, Operator, PodAffinityTerm, PodKind, PodPhase, PodSpec, Requirement,
};
use crate::reasons::AffinityTermBound;
use crate::steps;

/// The terms of a pod of [`avoiding`].
const TERMS: u32 = 64;

/// A pod with a label of its own and no terms.
fn pod(namespace: &str, number: u32) -> PodSpec {
    PodSpec {
        uid: format!("{namespace}/{number}"),
        created: Millis(i64::from(number)),
        kind: PodKind::Foreign,
        labels: Labels::from([("app".to_owned(), format!("a{number}"))]),
        ..PodSpec::new(namespace, &number.to_string())
    }
}

/// A pod that avoids all pods of these namespaces by terms of its own without a value.
fn avoiding(namespace: &str, number: u32, namespaces: Option<&[&str]>) -> PodSpec {
    let term = |at: u32| PodAffinityTerm {
        selector: Some(LabelSelector {
            requirements: vec![Requirement {
                key: "app".to_owned(),
                operator: Operator::NotIn,
                values: vec![format!("x{number}-{at}")],
            }],
        }),
        namespaces: namespaces.map(|names| names.iter().map(|name| (*name).to_owned()).collect()),
        topology_key: "host".to_owned(),
    };
    let mut pod = pod(namespace, number);
    pod.constraints.anti_affinity = Affinity {
        required: (0..TERMS).map(term).collect(),
        preferred: Vec::new(),
    };
    pod
}

fn node() -> NodeSpec {
    NodeSpec {
        name: "n".to_owned(),
        labels: Labels::from([("host".to_owned(), "n".to_owned())]),
        taints: Vec::new(),
        unschedulable: false,
        conditions: Vec::new(),
        cpu_milli: 1000,
        memory_bytes: 1 << 30,
        gpus: 0,
        pods: 110,
        extended: Vec::new(),
        gpu_count_label: None,
        gpu_memory_mib: None,
        gpu_memory_kind: MemoryKind::Dedicated,
        mig_enabled: false,
        mig_strategy: MigStrategy::None,
        enforcement: EnforcementTier::None,
        fractioning: FractioningCondition::Met,
    }
}

fn cycle(cluster: &mut Cluster) {
    cluster.cycle(Millis(0), &Config::default());
}

fn state(cluster: &Cluster, uid: &str) -> TermsState {
    cluster.ledger.pod(cluster.pod_ids[uid]).terms
}

#[test]
fn events_match_no_terms_and_the_next_cycle_does() {
    let mut cluster = Cluster::new();
    for number in 0..50 {
        cluster.apply(Event::Pod(pod("a", number)));
    }
    let ((), counted) = steps::of(|| cluster.apply(Event::Pod(avoiding("a", 50, None))));
    assert_eq!(counted, 0);
    assert_eq!(state(&cluster, "a/50"), TermsState::New);
    let ((), counted) = steps::of(|| cycle(&mut cluster));
    assert!(counted >= 50 * u64::from(TERMS), "{counted}");
    assert_eq!(state(&cluster, "a/50"), TermsState::Indexed);
}

#[test]
fn a_pod_that_is_applied_again_with_its_labels_and_terms_costs_no_matching() {
    let mut cluster = Cluster::new();
    cluster.apply(Event::Node(node()));
    for number in 0..3 {
        cluster.apply(Event::Pod(avoiding("a", number, None)));
    }
    cycle(&mut cluster);
    let sizes = cluster.ledger.affinity.sizes();
    let mut again = avoiding("a", 1, None);
    (again.phase, again.node) = (PodPhase::Running, Some("n".to_owned()));
    let ((), counted) = steps::of(|| {
        for _ in 0..10 {
            cluster.apply(Event::Pod(avoiding("a", 1, None)));
            cluster.apply(Event::Pod(again.clone()));
        }
        cycle(&mut cluster);
    });
    assert_eq!(counted, 0);
    assert_eq!(cluster.ledger.affinity.sizes(), sizes);
    assert_eq!(state(&cluster, "a/1"), TermsState::Indexed);
}

#[test]
fn terms_beyond_the_bound_of_a_namespace_wait_until_others_are_gone() {
    let most = TERMS_OF_NAMESPACE_MAX / TERMS;
    let mut cluster = Cluster::new();
    // The order of events does not matter: the youngest pod waits.
    for number in (0..=most).rev() {
        cluster.apply(Event::Pod(avoiding("a", number, Some(&["a"]))));
    }
    cluster.apply(Event::Pod(avoiding("b", 0, Some(&["b"]))));
    cycle(&mut cluster);
    let last = format!("a/{most}");
    assert_eq!(
        state(&cluster, &last),
        TermsState::Exceeded(AffinityTermBound::Namespace)
    );
    assert_eq!(state(&cluster, "a/0"), TermsState::Indexed);
    assert_eq!(state(&cluster, "b/0"), TermsState::Indexed);
    cluster.apply(Event::Pod(avoiding("a", most, Some(&["a"]))));
    cycle(&mut cluster);
    assert_eq!(
        state(&cluster, &last),
        TermsState::Exceeded(AffinityTermBound::Namespace)
    );
    cluster.apply(Event::PodGone("a/0".to_owned()));
    cycle(&mut cluster);
    assert_eq!(state(&cluster, &last), TermsState::Indexed);
}

#[test]
fn terms_about_other_namespaces_have_a_bound_that_leaves_terms_within_a_namespace_alone() {
    let (tenants, pods) = (
        TERMS_OF_ALL_MAX / TERMS_OF_NAMESPACE_MAX + 1,
        TERMS_OF_NAMESPACE_MAX / TERMS,
    );
    let mut cluster = Cluster::new();
    for tenant in 0..tenants {
        for number in 0..pods {
            cluster.apply(Event::Pod(avoiding(&format!("t{tenant}"), number, None)));
        }
    }
    cluster.apply(Event::Pod(avoiding("own", 0, Some(&["own"]))));
    (0..3).for_each(|_| cycle(&mut cluster));
    let states = (0..tenants).flat_map(|tenant| (0..pods).map(move |number| format!("t{tenant}/{number}")));
    let states: Vec<TermsState> = states.map(|uid| state(&cluster, &uid)).collect();
    let waiting = states
        .iter()
        .filter(|state| **state == TermsState::Exceeded(AffinityTermBound::Cluster));
    assert_eq!(waiting.count() as u32, pods, "{states:?}");
    assert_eq!(state(&cluster, "own/0"), TermsState::Indexed);
}

#[test]
fn terms_that_come_and_go_leave_nothing_in_the_lists_of_other_pods() {
    let mut cluster = Cluster::new();
    cluster.apply(Event::Pod(pod("a", 0)));
    let mut most = 0;
    for number in 1..500 {
        cluster.apply(Event::Pod(avoiding("a", number, None)));
        cycle(&mut cluster);
        cluster.apply(Event::PodGone(format!("a/{number}")));
        let member = cluster.ledger.pod(cluster.pod_ids["a/0"]).label_set;
        let set = member.expect("a pod with terms was seen").set;
        most = most.max(cluster.ledger.affinity.label_sets.row(set).selectors.len());
    }
    assert!(most <= 4 * TERMS as usize, "{most}");
}
