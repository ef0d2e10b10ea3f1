//! Compares the affinity index with a scan of all pods, in random clusters with random changes.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;

use crate::Cluster;
use crate::ids::{NodeId, PodId};
use crate::laws::world::cases;
use crate::ledger::Ledger;
use crate::model::{
    Affinity, Config, Constraints, EnforcementTier, Event, FractioningCondition, LabelSelector, Labels, MemoryKind,
    MigStrategy, NodeSpec, Operator, PodAffinityTerm, PodKind, PodPhase, PodSpec, Requirement, WeightedPodAffinityTerm,
};
use crate::place::InterPodRules;
use crate::reasons::{Check, Refusal};
use crate::report::Status;

/// Namespace and app of a pod, the node it runs on, and its terms.
#[derive(Clone, Debug)]
struct PodPlan {
    namespace: u8,
    app: Option<u8>,
    node: Option<u8>,
    required_affinity: Vec<TermPlan>,
    required_anti_affinity: Vec<TermPlan>,
    preferred_affinity: Option<(i32, TermPlan)>,
    preferred_anti_affinity: Option<(i32, TermPlan)>,
}

#[derive(Clone, Debug)]
struct TermPlan {
    operator: Operator,
    apps: Vec<u8>,
    namespace: Option<u8>,
    key: u8,
}

#[derive(Clone, Debug)]
enum Step {
    Pod(u8, PodPlan),
    PodGone(u8),
    /// A node with a zone or without.
    Node(u8, Option<u8>),
    NodeGone(u8),
    /// Pipelines a pod in the ledger to a node.
    Place(u8, u8),
    Evict(u8),
}

fn terms() -> impl Strategy<Value = TermPlan> {
    let operator = prop_oneof![
        4 => Just(Operator::In),
        1 => Just(Operator::NotIn),
        1 => Just(Operator::Exists),
        1 => Just(Operator::DoesNotExist),
    ];
    (operator, vec(0u8..3, 1..3), weighted(0.5, 0u8..2), 0u8..3).prop_map(|(operator, apps, namespace, key)| TermPlan {
        operator,
        apps,
        namespace,
        key,
    })
}

fn pods() -> impl Strategy<Value = PodPlan> {
    (
        0u8..2,
        weighted(0.8, 0u8..3),
        weighted(0.6, 0u8..4),
        vec(terms(), 0..3),
        vec(terms(), 0..3),
        weighted(0.3, (1i32..5, terms())),
        weighted(0.3, (1i32..5, terms())),
    )
        .prop_map(
            |(
                namespace,
                app,
                node,
                required_affinity,
                required_anti_affinity,
                preferred_affinity,
                preferred_anti_affinity,
            )| PodPlan {
                namespace,
                app,
                node,
                required_affinity,
                required_anti_affinity,
                preferred_affinity,
                preferred_anti_affinity,
            },
        )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0u8..8, pods()).prop_map(|(name, plan)| Step::Pod(name, plan)),
        1 => (0u8..8).prop_map(Step::PodGone),
        2 => (0u8..4, weighted(0.7, 0u8..2)).prop_map(|(name, zone)| Step::Node(name, zone)),
        1 => (0u8..4).prop_map(Step::NodeGone),
    ];
    vec(step, 0..20)
}

fn changes() -> impl Strategy<Value = Vec<Step>> {
    let change = prop_oneof![
        3 => (0u8..8, 0u8..4).prop_map(|(pod, node)| Step::Place(pod, node)),
        1 => (0u8..8).prop_map(Step::Evict),
    ];
    vec(change, 0..10)
}

const KEYS: [&str; 3] = ["host", "zone", "missing"];

fn term(plan: &TermPlan) -> PodAffinityTerm {
    let named = matches!(plan.operator, Operator::In | Operator::NotIn);
    let values = plan.apps.iter().filter(|_| named).map(|app| format!("a{app}"));
    PodAffinityTerm {
        selector: Some(LabelSelector {
            requirements: vec![Requirement {
                key: "app".to_owned(),
                operator: plan.operator,
                values: values.collect(),
            }],
        }),
        namespaces: plan.namespace.map(|namespace| vec![format!("ns{namespace}")]),
        topology_key: KEYS[usize::from(plan.key)].to_owned(),
    }
}

fn affinity(required: &[TermPlan], preferred: Option<&(i32, TermPlan)>) -> Affinity {
    let weigh = |(weight, plan): &(i32, TermPlan)| WeightedPodAffinityTerm {
        weight: *weight,
        term: term(plan),
    };
    Affinity {
        required: required.iter().map(term).collect(),
        preferred: preferred.map(weigh).into_iter().collect(),
    }
}

fn pod(name: u8, plan: &PodPlan) -> PodSpec {
    let app = plan.app.map(|app| ("app".to_owned(), format!("a{app}")));
    PodSpec {
        kind: PodKind::Foreign,
        phase: if plan.node.is_some() {
            PodPhase::Running
        } else {
            PodPhase::Pending
        },
        node: plan.node.map(|node| format!("n{node}")),
        constraints: Constraints {
            affinity: affinity(&plan.required_affinity, plan.preferred_affinity.as_ref()),
            anti_affinity: affinity(&plan.required_anti_affinity, plan.preferred_anti_affinity.as_ref()),
            ..Constraints::default()
        },
        labels: app.into_iter().collect(),
        ..PodSpec::new(&format!("ns{}", plan.namespace), &format!("p{name}"))
    }
}

fn node(name: u8, zone: Option<u8>) -> NodeSpec {
    let mut labels = Labels::from([("host".to_owned(), format!("n{name}"))]);
    labels.extend(zone.map(|zone| ("zone".to_owned(), format!("z{zone}"))));
    NodeSpec {
        name: format!("n{name}"),
        labels,
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

fn apply(cluster: &mut Cluster, step: &Step) {
    let id = |cluster: &Cluster, name: u8| cluster.pod_ids.get(format!("p{name}").as_str()).copied();
    match step {
        Step::Pod(name, plan) => cluster.apply(Event::Pod(pod(*name, plan))),
        Step::PodGone(name) => cluster.apply(Event::PodGone(format!("p{name}"))),
        Step::Node(name, zone) => cluster.apply(Event::Node(node(*name, *zone))),
        Step::NodeGone(name) => cluster.apply(Event::NodeGone(format!("n{name}"))),
        Step::Place(name, at) => {
            let present = cluster.ledger.nodes.iter().enumerate().filter(|(_, node)| node.present);
            let nodes: Vec<NodeId> = present.map(|(at, _)| NodeId::new(at)).collect();
            let Some(pod) = id(cluster, *name).filter(|_| !nodes.is_empty()) else {
                return;
            };
            let node = nodes[usize::from(*at) % nodes.len()];
            let row = cluster.ledger.pod(pod);
            let is_evicted = row.placement.status == Status::Releasing && row.evicted_from.is_some();
            if row.placement.status == Status::Pending || is_evicted && row.old_placement.is_none() {
                cluster.ledger.pipeline(pod, node, Default::default(), None);
            }
        }
        Step::Evict(name) => {
            if let Some(pod) = id(cluster, *name)
                && cluster.ledger.pod(pod).placement.status.is_active_allocated()
                && cluster.ledger.pod(pod).evicted_from.is_none()
                && cluster.ledger.pod(pod).placement.node.is_some()
            {
                cluster.ledger.evict(pod);
            }
        }
    }
}

/// Whether a pod matches a term.
fn term_matches(ledger: &Ledger, term: &PodAffinityTerm, pod: PodId) -> bool {
    let row = ledger.pod(pod);
    let namespace = ledger.symbols.text(row.namespace);
    let in_namespace = term
        .namespaces
        .as_ref()
        .is_none_or(|names| names.iter().any(|name| name == namespace));
    let selector = term.selector.as_ref().expect("plans have selectors");
    in_namespace && selector.matches(|key| row.labels.get(key))
}

/// The check and score of a pod on a node, by a scan of all pods on all nodes.
fn by_brute_force(ledger: &Ledger, pod: PodId, node: NodeId) -> (Result<(), Check>, i64) {
    let Constraints {
        affinity,
        anti_affinity,
        ..
    } = &ledger.shape_of(pod).constraints;
    let label = |node: NodeId, key: &str| ledger.node(node).labels.get(key);
    let is_same = |other: NodeId, key: &str| label(other, key).is_some() && label(other, key) == label(node, key);
    let all = || (0..ledger.nodes.len()).map(NodeId::new);
    let others = || {
        all()
            .flat_map(|at| ledger.node(at).pods.iter().map(move |other| (at, *other)))
            .filter(|(_, other)| *other != pod)
    };
    let (mut excluded, mut points) = (false, 0);
    for (at, other) in others() {
        let theirs = &ledger.shape_of(other).constraints;
        let meets =
            |term: &PodAffinityTerm, meant: PodId| term_matches(ledger, term, meant) && is_same(at, &term.topology_key);
        excluded |= anti_affinity.required.iter().any(|term| meets(term, other));
        excluded |= theirs.anti_affinity.required.iter().any(|term| meets(term, pod));
        for (own, terms, meant) in [(1, affinity, other), (-1, anti_affinity, other)]
            .into_iter()
            .chain([(1, &theirs.affinity, pod), (-1, &theirs.anti_affinity, pod)])
        {
            let met = terms.preferred.iter().filter(|weighted| meets(&weighted.term, meant));
            points += own * met.map(|weighted| i64::from(weighted.weight)).sum::<i64>();
        }
    }
    let all_match = |meant: PodId| affinity.required.iter().all(|term| term_matches(ledger, term, meant));
    let has_labels = affinity
        .required
        .iter()
        .all(|term| label(node, &term.topology_key).is_some());
    let near = |term: &PodAffinityTerm| others().any(|(at, other)| all_match(other) && is_same(at, &term.topology_key));
    let labelled = |at: NodeId| {
        affinity
            .required
            .iter()
            .any(|term| label(at, &term.topology_key).is_some())
    };
    let is_first = all_match(pod) && !others().any(|(at, other)| all_match(other) && labelled(at));
    let result = if excluded {
        Err(Check::PodAntiAffinity)
    } else if has_labels && (is_first || affinity.required.iter().all(near)) {
        Ok(())
    } else {
        Err(Check::PodAffinity)
    };
    (result, points * 1_000_000)
}

fn check_all(cluster: &mut Cluster) -> Result<(), TestCaseError> {
    cluster.index_waiting_terms(&Config::default());
    let ledger = &cluster.ledger;
    for pod in cluster.pod_ids.values().copied() {
        let rules = InterPodRules::of(ledger, pod, true);
        let mut fits_anywhere = false;
        let near = rules.candidates();
        for (at, row) in ledger.nodes.iter().enumerate().filter(|(_, row)| row.present) {
            let node = NodeId::new(at);
            let (result, weight) = by_brute_force(ledger, pod, node);
            let name = (&ledger.pod(pod).name, &row.name);
            prop_assert_eq!(rules.check(node), result, "{:?}", name);
            prop_assert_eq!(rules.score(node), weight, "{:?}", name);
            prop_assert!(weight == 0 || rules.has_scores());
            fits_anywhere |= result.is_ok();
            let is_candidate = near.as_ref().is_none_or(|near| near.contains(&node));
            prop_assert!(is_candidate || result.is_err(), "{:?}", name);
        }
        prop_assert!(!fits_anywhere || !rules.rule_out_all_nodes());
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn the_index_of_affinity_terms_says_what_a_look_at_all_pods_says(
        steps in steps(), budget in weighted(0.5, 0u64..200), before in changes(), after in changes(),
    ) {
        let mut cluster = Cluster::new();
        for step in &steps {
            apply(&mut cluster, step);
            // A small budget leaves terms of which some are matched.
            budget.iter().for_each(|budget| cluster.ledger.index_waiting_terms(*budget));
        }
        check_all(&mut cluster)?;
        cluster.ledger.start_journal();
        let start = cluster.ledger.checkpoint();
        before.iter().for_each(|step| apply(&mut cluster, step));
        check_all(&mut cluster)?;
        let middle = cluster.ledger.checkpoint();
        after.iter().for_each(|step| apply(&mut cluster, step));
        check_all(&mut cluster)?;
        cluster.ledger.rollback(middle);
        check_all(&mut cluster)?;
        cluster.ledger.rollback(start);
        check_all(&mut cluster)?;
    }

    #[test]
    fn label_sets_and_terms_are_given_back_with_the_last_pod_that_has_them(steps in steps(), budget in 0u64..400) {
        let mut cluster = Cluster::new();
        for step in &steps {
            apply(&mut cluster, step);
            cluster.ledger.index_waiting_terms(budget);
        }
        (0..8).for_each(|name| apply(&mut cluster, &Step::PodGone(name)));
        let index = &cluster.ledger.affinity;
        prop_assert_eq!(index.sizes(), [0; 4]);
    }
}

#[test]
fn pods_with_labels_of_their_own_leave_nothing_behind() {
    let mut cluster = Cluster::new();
    let plan = PodPlan {
        namespace: 0,
        app: Some(0),
        node: None,
        required_affinity: Vec::new(),
        required_anti_affinity: vec![TermPlan {
            operator: Operator::In,
            apps: vec![0],
            namespace: None,
            key: 0,
        }],
        preferred_affinity: None,
        preferred_anti_affinity: None,
    };
    cluster.apply(Event::Pod(pod(0, &plan)));
    let mut rows = BTreeMap::new();
    for number in 1..1000 {
        let mut own = pod(1, &plan);
        own.labels.insert("job".to_owned(), number.to_string());
        cluster.apply(Event::Pod(own));
        cluster.index_waiting_terms(&Config::default());
        rows.insert(number, cluster.ledger.affinity.sizes());
    }
    assert_eq!(rows[&1], rows[&999], "label sets, selectors, keys, terms");
}

#[test]
fn a_pod_with_more_terms_than_are_looked_at_waits_with_that_as_its_reason() {
    let mut spec = pod(
        0,
        &PodPlan {
            namespace: 0,
            app: None,
            node: None,
            required_affinity: Vec::new(),
            required_anti_affinity: Vec::new(),
            preferred_affinity: None,
            preferred_anti_affinity: None,
        },
    );
    let app = |number: u32| {
        let mut term = term(&TermPlan {
            operator: Operator::In,
            apps: vec![0],
            namespace: None,
            key: 0,
        });
        term.topology_key = number.to_string();
        term
    };
    let mut refused = |terms: u32| {
        spec.constraints.affinity.required = (0..terms / 2).map(app).collect();
        spec.constraints.anti_affinity.required = (terms / 2..terms).map(app).collect();
        let mut cluster = Cluster::new();
        cluster.apply(Event::Pod(spec.clone()));
        cluster.index_waiting_terms(&Config::default());
        let id = cluster.pod_ids["p0"];
        let [.., terms] = cluster.ledger.affinity.sizes();
        (terms, cluster.ledger.pod(id).refused.as_deref().cloned())
    };
    assert_eq!(refused(64), (64, None));
    let expect = Refusal::AffinityTermsExceeded(20_000);
    assert_eq!(refused(20_000), (64, Some(expect)));
}
