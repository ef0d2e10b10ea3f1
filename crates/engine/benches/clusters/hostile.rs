//! Clusters that take a scheduler much work: objects that tenants can write to make a cycle long. Sizes are in nodes of eight GPUs.

use kai_engine::model::{
    Action, Affinity, Constraints, Event, GpuFraction, GpuRequest, Gpus, Labels, NodeSelectorTerm, Operator,
    PodAffinityTerm, Requirement,
};

use super::hostile_terms::{
    anti_crossed, anti_many_terms, anti_not_in, background_terms, many_topology_keys, preferred_everywhere,
};
use super::{Case, GPUS, Job, idle, node};

/// Builds a cluster with this number of nodes.
pub(crate) type Build = fn(usize) -> Case;

/// All clusters, by name.
pub(crate) const ALL: [(&str, Build); 16] = [
    ("distinct", distinct),
    ("deep-queues", deep_queues),
    ("anti-host", anti_host),
    ("aff-rack", aff_rack),
    ("anti-rack-topology", anti_rack_topology),
    ("never-fit", never_fit),
    ("never-fit-anti", never_fit_anti),
    ("fragmented", fragmented),
    ("fragmented-fractions", fragmented_fractions),
    ("preempt-mixed", preempt_mixed),
    ("anti-notin", anti_not_in),
    ("anti-many-terms", anti_many_terms),
    ("anti-crossed", anti_crossed),
    ("many-topology-keys", many_topology_keys),
    ("preferred-everywhere", preferred_everywhere),
    ("background-terms", background_terms),
];

/// Racks of the clusters with pod affinity.
const RACKS: usize = 40;

fn whole(devices: usize) -> GpuRequest {
    GpuRequest::Whole {
        devices: devices as i64,
    }
}

fn fraction(thousandths: usize) -> GpuRequest {
    GpuRequest::Fraction {
        fraction: GpuFraction::from_billionths(thousandths as i64 * 1_000_000),
        devices: 1,
    }
}

fn app(name: String) -> Labels {
    Labels::from([("app".to_owned(), name)])
}

fn not_in(key: &str, values: Vec<String>) -> Requirement {
    Requirement {
        key: key.to_owned(),
        operator: Operator::NotIn,
        values,
    }
}

/// Required affinity to the pods of an app.
fn near(topology_key: &str, app: &str) -> Affinity {
    Affinity {
        required: vec![PodAffinityTerm {
            selector: Some(kai_engine::model::LabelSelector {
                requirements: vec![Requirement {
                    key: "app".to_owned(),
                    operator: Operator::In,
                    values: vec![app.to_owned()],
                }],
            }),
            namespaces: Some(vec!["bench".to_owned()]),
            topology_key: topology_key.to_owned(),
        }],
        preferred: Vec::new(),
    }
}

/// Sets further labels of nodes.
fn label(case: &mut Case, nodes: usize, labels: impl Fn(usize) -> Vec<(&'static str, String)>) {
    for at in 0..nodes {
        case.cluster.apply(Event::Node(node(at, labels(at))));
    }
}

/// As many pending pods as GPUs, all with different requests, labels and node affinity.
pub(crate) fn distinct(nodes: usize) -> Case {
    let mut case = idle(nodes, &Action::ALL, 0);
    label(&mut case, nodes, |at| {
        vec![("rack", format!("r{}", at % RACKS)), ("idx", at.to_string())]
    });
    for at in 0..nodes * GPUS {
        let gpu = match at % 3 {
            0 => whole(1),
            1 => GpuRequest::Memory {
                mib: 1000 + at as i64,
                devices: 1,
            },
            _ => fraction(100 + at % 800),
        };
        let racks = [at % RACKS, at * 7 % RACKS].map(|rack| format!("r{rack}"));
        let indexes = (0..3).map(|k| ((at * 13 + k) % nodes).to_string());
        case.job(&Job {
            at,
            queue: format!("queue-{}", at % 4),
            cpu_milli: 100 + at as i64,
            memory_bytes: (1000 + at as i64) << 20,
            labels: app(format!("a{at}")),
            constraints: Constraints {
                required_nodes: Some(vec![NodeSelectorTerm {
                    labels: vec![not_in("rack", racks.to_vec()), not_in("idx", indexes.collect())],
                    fields: Vec::new(),
                }]),
                ..Constraints::default()
            },
            ..Job::of(1, gpu)
        });
    }
    case
}

/// 444 queues in five levels, as many running as pending gangs.
pub(crate) fn deep_queues(nodes: usize) -> Case {
    let mut case = Case::new(nodes, &Action::ALL, 0);
    let gpus = nodes * GPUS;
    let mut leaves = Vec::new();
    let mut open: Vec<(String, Option<String>, usize, i64)> = (0..3)
        .map(|tree| (format!("t{tree}"), None, 4, Gpus::whole(gpus as i64).0 / 3))
        .collect();
    let mut count = 0;
    while let Some((name, parent, depth, quota)) = open.pop() {
        case.queue_of(&name, parent.as_deref(), Some(Gpus(quota)), (count * 7 + count / 5) % 3);
        count += 1;
        let children = match depth {
            0 => 0,
            1 => 4,
            _ => 3,
        };
        if children == 0 {
            leaves.push(name.clone());
        }
        open.extend((0..children).map(|child| (format!("{name}-{child}"), Some(name.clone()), depth - 1, quota / 3)));
    }
    leaves.sort();
    for at in 0..gpus {
        case.job(&Job {
            at,
            queue: leaves[at % 40].clone(),
            running_on: Some(at % nodes),
            ..Job::of(1, whole(1))
        });
    }
    for at in 0..gpus {
        case.job(&Job {
            at,
            queue: leaves[40 + at % (leaves.len() - 40)].clone(),
            ..Job::of(if at.is_multiple_of(5) { 4 } else { 1 }, whole(1))
        });
    }
    case
}

/// Gangs of eight with anti-affinity to pods of the same app on a host.
pub(crate) fn anti_host(nodes: usize) -> Case {
    neighbours(nodes, false, |app| Constraints {
        anti_affinity: near("host", app),
        ..Constraints::default()
    })
}

/// Gangs of eight with affinity to the rack of pods of the same app.
pub(crate) fn aff_rack(nodes: usize) -> Case {
    neighbours(nodes, false, |app| Constraints {
        affinity: near("rack", app),
        ..Constraints::default()
    })
}

/// Gangs of eight that must be in one rack, with anti-affinity to pods of the same app on a host.
pub(crate) fn anti_rack_topology(nodes: usize) -> Case {
    neighbours(nodes, true, |app| Constraints {
        anti_affinity: near("host", app),
        ..Constraints::default()
    })
}

fn neighbours(nodes: usize, in_rack: bool, constraints: impl Fn(&str) -> Constraints) -> Case {
    let mut case = idle(nodes, &Action::ALL, RACKS);
    for at in 0..nodes {
        let name = format!("a{}", at % 200);
        case.job(&Job {
            at,
            queue: format!("queue-{}", at % 4),
            in_rack,
            constraints: constraints(&name),
            labels: app(name),
            ..Job::of(8, whole(1))
        });
    }
    case
}

/// Two queues with a common parent, and as many running jobs of the first queue as GPUs.
fn full(nodes: usize, first: (usize, usize), second: (usize, usize)) -> Case {
    let mut case = two_queues(nodes, first, second);
    for at in 0..nodes * GPUS {
        case.job(&Job {
            at,
            running_on: Some(at % nodes),
            ..Job::of(1, whole(1))
        });
    }
    case
}

fn two_queues(nodes: usize, first: (usize, usize), second: (usize, usize)) -> Case {
    let mut case = Case::new(nodes, &Action::ALL, 0);
    case.queue("all", None, None, 1);
    case.queue("queue-0", Some("all"), Some(first.0), first.1);
    case.queue("queue-1", Some("all"), Some(second.0), second.1);
    case
}

/// Two different gangs per node that need more nodes than their pool has. The rules of reclaim would allow them.
pub(crate) fn never_fit(nodes: usize) -> Case {
    let mut case = full(nodes, (0, 0), (nodes * GPUS, 0));
    label(&mut case, nodes, |at| {
        vec![("pool", if at < 15 { "a" } else { "b" }.to_owned())]
    });
    for at in 0..2 * nodes {
        case.job(&Job {
            at,
            queue: "queue-1".to_owned(),
            cpu_milli: 1000 + at as i64,
            constraints: Constraints {
                node_selector: vec![("pool".to_owned(), "a".to_owned())],
                ..Constraints::default()
            },
            ..Job::of(16 + at % 5, whole(GPUS))
        });
    }
    case
}

/// Half as many gangs as nodes, each of ten pods with anti-affinity to each other by rack, on eight racks.
pub(crate) fn never_fit_anti(nodes: usize) -> Case {
    let mut case = full(nodes, (0, 0), (nodes * GPUS, 0));
    label(&mut case, nodes, |at| vec![("rack", format!("r{}", at % 8))]);
    for at in 0..nodes / 2 {
        let name = format!("g{at}");
        case.job(&Job {
            at,
            queue: "queue-1".to_owned(),
            cpu_milli: 1000 + at as i64,
            constraints: Constraints {
                anti_affinity: near("rack", &name),
                ..Constraints::default()
            },
            labels: app(name),
            ..Job::of(10, whole(1))
        });
    }
    case
}

/// One GPU of every node is free, and half as many gangs as nodes need whole nodes.
pub(crate) fn fragmented(nodes: usize) -> Case {
    let quota = (nodes * GPUS, 1);
    let mut case = two_queues(nodes, quota, quota);
    for at in 0..7 * nodes {
        case.job(&Job {
            at,
            running_on: Some(at / 7),
            ..Job::of(1, whole(1))
        });
    }
    for at in 0..nodes / 2 {
        case.job(&Job {
            at,
            queue: "queue-1".to_owned(),
            cpu_milli: 1000 + at as i64,
            ..Job::of(1 + at % 3, whole(GPUS))
        });
    }
    case
}

/// Every GPU holds a pod of 0.4 or 0.6, and half as many gangs as nodes need whole GPUs.
pub(crate) fn fragmented_fractions(nodes: usize) -> Case {
    let quota = (nodes * GPUS, 1);
    let mut case = two_queues(nodes, quota, quota);
    for at in 0..nodes * GPUS {
        let part = if (at / GPUS + at % GPUS).is_multiple_of(2) {
            400
        } else {
            600
        };
        case.job(&Job {
            at,
            running_on: Some(at / GPUS),
            gpu_group: Some(format!("gg-{at}")),
            ..Job::of(1, fraction(part))
        });
    }
    for at in 0..nodes / 2 {
        case.job(&Job {
            at,
            queue: "queue-1".to_owned(),
            ..Job::of(1 + at % 4, whole(1 + at % 8))
        });
    }
    case
}

/// Two gangs per node of high priority and mixed sizes on a full cluster.
pub(crate) fn preempt_mixed(nodes: usize) -> Case {
    let mut case = full(nodes, (nodes * GPUS, 1), (0, 1));
    for at in 0..2 * nodes {
        case.job(&Job {
            at,
            queue: "queue-0".to_owned(),
            priority: 90,
            ..Job::of(1 + at % 6, whole(1 + at % 8))
        });
    }
    case
}
