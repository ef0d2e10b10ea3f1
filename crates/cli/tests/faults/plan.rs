//! The plan of a run, derived from its seed: nodes, queues, steps, and the rates of faults.

use kai_embedded::kubelet::{LimitFault, NodeTemplate};
use serde_json::Value;

use crate::harness::manifest::queue;
use crate::injector::Rates;
use crate::limits;
use crate::pods;
use crate::processes::Layout;
use crate::random::SeededRandom;
use crate::volumes;

/// Fewest and most steps of a plan.
const STEPS: (u64, u64) = (20, 40);

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) layout: Layout,
    pub(crate) nodes: Vec<NodeTemplate>,
    pub(crate) queues: Vec<Value>,
    pub(crate) steps: Vec<(Step, u64)>,
    pub(crate) rates: Rates,
}

/// A step of a plan. The number beside it in a plan is the pause after it, in milliseconds.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A user creates these objects.
    Create { words: String, objects: Vec<Value> },
    /// A user deletes one of the pods.
    Delete(u64),
    /// The containers of one of the pods end.
    End(u64),
    /// A GPU fails or recovers.
    Gpu { node: usize, index: usize, healthy: bool },
    /// A node is removed, with its pods.
    RemoveNode(usize),
    /// A node is added again.
    AddNode(usize),
    /// A node is cordoned or uncordoned.
    Cordon(usize, bool),
    /// A kubelet stops or resumes its heartbeat.
    Ready(usize, bool),
    /// A user deletes one of the reservation pods.
    LoseReservation(u64),
    /// A kubelet evicts one of the reservation pods.
    EvictReservation(u64),
    /// Another scheduler preempts one of the reservation pods for a pod of its own with a GPU.
    PreemptReservation(u64),
    /// A node runs out of memory; its kubelet evicts the pod that is first in its order.
    Pressure(usize),
    /// One of the processes is killed, and restarted after this many milliseconds.
    Restart { process: u64, pause: u64 },
    /// All processes are killed, and restarted after this many milliseconds.
    RestartAll(u64),
    /// A second replica of one of the processes starts.
    Double(u64),
    /// All second replicas end.
    EndDoubles,
    /// The token of one of the processes is revoked or restored.
    Revoke { process: u64, revoked: bool },
    /// A kubelet rejects this many of the next pods.
    Reject { node: usize, count: u32 },
    /// The API server stops or resumes answering the roles.
    Outage(bool),
    /// The API server forgets its history: all watches start over.
    Forget,
    /// The limits of GPU memory on a node misbehave, or are repaired.
    Limits { node: usize, fault: LimitFault },
    /// Somebody else takes one of the volumes that no claim has.
    TakeVolume(u64),
    /// The containers of one of the pods end, and their kubelet starts them again.
    RestartContainers(u64),
}

impl Step {
    /// The fault of the step, if it is one.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        match self {
            Step::Create { .. } | Step::Delete(_) | Step::End(_) | Step::AddNode(_) | Step::Cordon(..) => None,
            Step::Limits { fault, .. } => limits::kind(fault),
            Step::RestartContainers(_) => Some("containers restarted"),
            Step::TakeVolume(_) => Some("volumes taken by somebody else"),
            Step::EndDoubles
            | Step::Gpu { healthy: true, .. }
            | Step::Ready(_, true)
            | Step::Revoke { revoked: false, .. }
            | Step::Outage(false) => None,
            Step::Gpu { healthy: false, .. } => Some("GPUs failed"),
            Step::RemoveNode(_) => Some("nodes removed"),
            Step::Ready(_, false) => Some("kubelets silent"),
            Step::LoseReservation(_) => Some("reservation pods deleted"),
            Step::EvictReservation(_) => Some("reservation pods evicted by kubelets"),
            Step::PreemptReservation(_) => Some("reservation pods preempted by another scheduler"),
            Step::Pressure(_) => Some("nodes short of memory"),
            Step::Restart { .. } => Some("processes killed"),
            Step::RestartAll(_) => Some("kills of all processes"),
            Step::Double(_) => Some("processes run twice"),
            Step::Revoke { revoked: true, .. } => Some("credentials revoked"),
            Step::Reject { .. } => Some("kubelets that reject"),
            Step::Outage(true) => Some("outages"),
            Step::Forget => Some("histories forgotten"),
        }
    }
}

impl Plan {
    pub(crate) fn drawn(seed: u64) -> Plan {
        let mut random = SeededRandom::new(seed);
        let mut nodes = nodes(&mut random);
        let mut of_limits = limits::random(seed);
        limits::equip(&mut of_limits, &mut nodes);
        let queues = vec![
            queue("team", None, 3.0, random.of(&[-1.0, 3.0, 4.0])),
            queue("a", Some("team"), 1.0, -1.0),
            queue("b", Some("team"), 1.0, random.of(&[1.0, 2.0, 2.5])),
            queue("c", None, random.of(&[0.0, 1.0]), -1.0),
        ];
        let layout = random.of(&[Layout::Together, Layout::Apart]);
        let rates = Rates::drawn(&mut random);
        let count = STEPS.0 + random.roll(STEPS.1 - STEPS.0 + 1);
        let steps = (0..usize::try_from(count).unwrap()).map(|number| step(&mut random, number, &nodes));
        let mut steps: Vec<(Step, u64)> = steps.collect();
        limits::insert_faults(&mut of_limits, &nodes, &mut steps);
        volumes::insert(seed, &nodes, &mut steps);
        Plan {
            seed,
            layout,
            steps,
            nodes,
            queues,
            rates,
        }
    }
}

fn nodes(random: &mut SeededRandom) -> Vec<NodeTemplate> {
    let mut nodes = vec![NodeTemplate::new("n0", "h100:2")];
    for number in 1..2 + random.roll(3) {
        let name = format!("n{number}");
        nodes.push(match random.roll(6) {
            0 => NodeTemplate {
                replicas: Some(4),
                ..NodeTemplate::new(&name, "l40s:1")
            },
            1 => NodeTemplate {
                mig_strategy: Some("mixed".to_owned()),
                ..NodeTemplate::new(&name, "a100-40:1/1g.5gb*2/2g.10gb")
            },
            2 => NodeTemplate {
                replicas: Some(100),
                memory: "128Gi".to_owned(),
                ..NodeTemplate::new(&name, "thor:1")
            },
            3 => NodeTemplate::new(&name, ""),
            4 => NodeTemplate::new(&name, "l40s:2"),
            _ => NodeTemplate::new(&name, "h100:1"),
        });
    }
    nodes
}

fn step(random: &mut SeededRandom, number: usize, nodes: &[NodeTemplate]) -> (Step, u64) {
    let node = usize::try_from(random.roll(nodes.len() as u64)).unwrap();
    let step = match random.roll(100) {
        0..44 => {
            let (words, objects) = pods::drawn(random, number);
            Step::Create { words, objects }
        }
        44..53 => Step::Delete(random.roll(1000)),
        53..57 => Step::End(random.roll(1000)),
        57..62 => Step::Gpu {
            node,
            index: usize::try_from(random.roll(2)).unwrap(),
            healthy: random.percent(50),
        },
        62..65 => Step::RemoveNode(node),
        65..69 => Step::AddNode(node),
        69..72 => Step::Cordon(node, random.percent(50)),
        72..75 => Step::Ready(node, random.percent(60)),
        75..77 => Step::LoseReservation(random.roll(1000)),
        77..79 => Step::EvictReservation(random.roll(1000)),
        79..80 => match random.roll(2) {
            0 => Step::PreemptReservation(random.roll(1000)),
            _ => Step::Pressure(node),
        },
        80..84 => Step::Restart {
            process: random.roll(1000),
            pause: random.roll(2) * random.roll(4000),
        },
        84..86 => Step::RestartAll(random.roll(2) * random.roll(4000)),
        86..89 => Step::Double(random.roll(1000)),
        89..90 => Step::EndDoubles,
        90..93 => Step::Revoke {
            process: random.roll(1000),
            revoked: random.percent(60),
        },
        93..95 => Step::Reject {
            node,
            count: 1 + u32::try_from(random.roll(3)).unwrap(),
        },
        95..98 => Step::Outage(random.percent(40)),
        _ => Step::Forget,
    };
    let pause = match random.roll(4) {
        0 => 0,
        1 => random.roll(200),
        2 => random.roll(3000),
        _ => random.roll(9000),
    };
    (step, pause)
}
