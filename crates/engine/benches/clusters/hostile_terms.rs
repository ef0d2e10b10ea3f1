//! Clusters in which pods have as many affinity terms as a pod may have. Sizes are in nodes of eight GPUs.

use kai_engine::model::{
    Action, Affinity, Constraints, GpuRequest, LabelSelector, Labels, Operator, PodAffinityTerm, Requirement,
    WeightedPodAffinityTerm,
};

use super::{Case, GPUS, Job, idle};

/// Terms of a pod.
pub(crate) const TERMS: usize = 64;
/// One pod in this many has no terms and is in a namespace of its own tenant.
const PLAIN_EVERY: usize = 8;
/// The namespace of pods without terms.
pub(crate) const PLAIN: &str = "plain";
/// Labels that all pods of [`anti_crossed`] have.
const COMMON_LABELS: usize = 32;

fn requirement(key: &str, operator: Operator, values: &[&str]) -> Requirement {
    Requirement {
        key: key.to_owned(),
        operator,
        values: values.iter().map(|value| (*value).to_owned()).collect(),
    }
}

/// A term about pods of all namespaces.
fn term(topology_key: &str, requirements: Vec<Requirement>) -> PodAffinityTerm {
    PodAffinityTerm {
        selector: Some(LabelSelector { requirements }),
        namespaces: None,
        topology_key: topology_key.to_owned(),
    }
}

fn avoid(terms: impl Iterator<Item = PodAffinityTerm>) -> Constraints {
    Constraints {
        anti_affinity: Affinity {
            required: terms.collect(),
            preferred: Vec::new(),
        },
        ..Constraints::default()
    }
}

fn prefer_to_avoid(terms: impl Iterator<Item = PodAffinityTerm>) -> Constraints {
    let weighted = terms.map(|term| WeightedPodAffinityTerm { weight: 1, term });
    Constraints {
        anti_affinity: Affinity {
            required: Vec::new(),
            preferred: weighted.collect(),
        },
        ..Constraints::default()
    }
}

fn app(name: String) -> Labels {
    Labels::from([("app".to_owned(), name)])
}

/// As many pods as GPUs: some plain ones, the others with these labels and constraints.
fn mixed(nodes: usize, running: bool, terms: impl Fn(usize) -> (Labels, Constraints)) -> Case {
    let mut case = idle(nodes, &Action::ALL, 0);
    case.pods = Some(Vec::new());
    for at in 0..nodes * GPUS {
        let job = Job {
            at,
            ..Job::of(1, GpuRequest::Whole { devices: 1 })
        };
        if at % PLAIN_EVERY == 0 {
            case.job(&Job {
                namespace: PLAIN,
                queue: "queue-1".to_owned(),
                labels: app(format!("plain{at}")),
                ..job
            });
            continue;
        }
        let (labels, constraints) = terms(at);
        case.job(&Job {
            labels,
            constraints,
            running_on: (running && at.is_multiple_of(2)).then_some(at % nodes),
            ..job
        });
    }
    case
}

/// Pods with labels of their own that avoid all pods but those with labels that nobody has.
pub(crate) fn anti_not_in(nodes: usize) -> Case {
    mixed(nodes, false, |at| {
        let other = |number: usize| format!("x{at}-{number}");
        let terms = (0..TERMS).map(|number| {
            let not_in = requirement("app", Operator::NotIn, &[&other(number)]);
            term("host", vec![not_in])
        });
        (app(format!("a{at}")), avoid(terms))
    })
}

/// Pods with the same labels that avoid each other by many different terms.
pub(crate) fn anti_many_terms(nodes: usize) -> Case {
    mixed(nodes, false, |at| {
        let terms = (0..TERMS).map(|number| {
            let named = requirement("app", Operator::In, &["a", &format!("b{at}-{number}")]);
            term("host", vec![named])
        });
        (app("a".to_owned()), avoid(terms))
    })
}

/// Pods with many common labels and one of their own; every term names one of the common labels and a value of its own.
pub(crate) fn anti_crossed(nodes: usize) -> Case {
    mixed(nodes, false, |at| {
        let common = |number: usize| format!("common{}", number % COMMON_LABELS);
        let terms = (0..TERMS).map(|number| {
            let named = requirement(&common(number), Operator::In, &["a"]);
            let other = requirement("app", Operator::NotIn, &[&format!("x{at}-{number}")]);
            term("host", vec![named, other])
        });
        let mut labels = app(format!("a{at}"));
        labels.extend((0..COMMON_LABELS).map(|number| (common(number), "a".to_owned())));
        (labels, avoid(terms))
    })
}

/// Pods with the same labels that prefer to avoid each other by topology keys that no node has.
pub(crate) fn many_topology_keys(nodes: usize) -> Case {
    mixed(nodes, false, |at| {
        let terms = (0..TERMS).map(|number| {
            let named = requirement("app", Operator::In, &["a"]);
            term(&format!("key{at}-{number}"), vec![named])
        });
        (app("a".to_owned()), prefer_to_avoid(terms))
    })
}

/// Pods, half of them running on all nodes, that prefer to avoid all pods by the same terms.
pub(crate) fn preferred_everywhere(nodes: usize) -> Case {
    mixed(nodes, true, |_| {
        let terms = (0..TERMS).map(|number| {
            let not_in = requirement("app", Operator::NotIn, &[&format!("x{number}")]);
            term("host", vec![not_in])
        });
        (app("a".to_owned()), prefer_to_avoid(terms))
    })
}

/// Nodes full of background pods with many terms each, and a pending pod of the same tenant that has to be near a pod which does not exist.
/// A pending pod of another tenant needs a whole node.
pub(crate) fn background_terms(nodes: usize) -> Case {
    let mut case = idle(nodes, &Action::ALL, 0);
    for at in 0..nodes * GPUS {
        let named = |number| requirement("app", Operator::In, &[&format!("b{at}-{number}")]);
        let terms = (0..TERMS).map(|number| term("host", vec![named(number)]));
        case.job(&Job {
            at,
            background: true,
            running_on: Some(at % nodes),
            labels: app(format!("a{at}")),
            constraints: avoid(terms),
            ..Job::of(1, GpuRequest::Whole { devices: 1 })
        });
    }
    let absent = term("host", vec![requirement("app", Operator::In, &["absent"])]);
    case.job(&Job {
        constraints: Constraints {
            affinity: Affinity {
                required: vec![absent],
                preferred: Vec::new(),
            },
            ..Constraints::default()
        },
        ..Job::of(1, GpuRequest::Whole { devices: 1 })
    });
    case.job(&Job {
        at: 1,
        namespace: PLAIN,
        queue: "queue-1".to_owned(),
        ..Job::of(1, GpuRequest::Whole { devices: GPUS as i64 })
    });
    case
}
