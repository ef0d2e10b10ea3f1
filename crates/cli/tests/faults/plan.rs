//! A life before it is lived: nodes, queues, what happens and how often things fail. All of it from one number.

use kai_embedded::kubelet::NodeTemplate;
use serde_json::Value;

use crate::dice::Dice;
use crate::harness::manifest::queue;
use crate::pods;
use crate::processes::Layout;
use crate::trouble::Rates;

/// Fewest and most things that happen.
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

/// Something that happens; the number beside it says how many milliseconds pass afterwards.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Somebody creates these.
    Create { words: String, objects: Vec<Value> },
    /// Somebody deletes one of the pods.
    Delete(u64),
    /// One of the pods ends.
    End(u64),
    /// A GPU fails or recovers.
    Gpu { node: usize, index: usize, healthy: bool },
    /// A node leaves, with its pods.
    RemoveNode(usize),
    /// A node is there again.
    AddNode(usize),
    /// A node takes no more pods, or does again.
    Cordon(usize, bool),
    /// A kubelet stops or goes on to answer.
    Ready(usize, bool),
    /// Somebody deletes one of the reservation pods.
    LoseReservation(u64),
    /// A kubelet ends one of the reservation pods.
    EvictReservation(u64),
    /// Another scheduler ends one of the reservation pods in favour of a pod of its own with a GPU.
    PreemptReservation(u64),
    /// A node runs out of memory; its kubelet ends the pod that comes first.
    Pressure(usize),
    /// One of the processes dies, and comes back after so many milliseconds.
    Restart { process: u64, pause: u64 },
    /// All of them do.
    RestartAll(u64),
    /// One of the processes runs a second time.
    Double(u64),
    /// No process runs twice any more.
    EndDoubles,
    /// The credentials of one of the processes are no good, or good again.
    Revoke { process: u64, revoked: bool },
    /// A kubelet rejects so many of the pods that come next.
    Reject { node: usize, count: u32 },
    /// The API does not answer the roles, or does again.
    Outage(bool),
    /// The API forgets its history: all watches start over.
    Forget,
}

impl Step {
    /// What goes wrong in it, if anything does.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        match self {
            Step::Create { .. } | Step::Delete(_) | Step::End(_) | Step::AddNode(_) | Step::Cordon(..) => None,
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
        let mut dice = Dice::new(seed);
        let nodes = nodes(&mut dice);
        let queues = vec![
            queue("team", None, 3.0, dice.of(&[-1.0, 3.0, 4.0])),
            queue("a", Some("team"), 1.0, -1.0),
            queue("b", Some("team"), 1.0, dice.of(&[1.0, 2.0, 2.5])),
            queue("c", None, dice.of(&[0.0, 1.0]), -1.0),
        ];
        let layout = dice.of(&[Layout::Together, Layout::Apart]);
        let rates = Rates::drawn(&mut dice);
        let count = STEPS.0 + dice.roll(STEPS.1 - STEPS.0 + 1);
        let steps = (0..usize::try_from(count).unwrap()).map(|number| step(&mut dice, number, &nodes));
        Plan {
            seed,
            layout,
            steps: steps.collect(),
            nodes,
            queues,
            rates,
        }
    }
}

fn nodes(dice: &mut Dice) -> Vec<NodeTemplate> {
    let mut nodes = vec![NodeTemplate::new("n0", "h100:2")];
    for number in 1..2 + dice.roll(3) {
        let name = format!("n{number}");
        nodes.push(match dice.roll(6) {
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

fn step(dice: &mut Dice, number: usize, nodes: &[NodeTemplate]) -> (Step, u64) {
    let node = usize::try_from(dice.roll(nodes.len() as u64)).unwrap();
    let step = match dice.roll(100) {
        0..44 => {
            let (words, objects) = pods::drawn(dice, number);
            Step::Create { words, objects }
        }
        44..53 => Step::Delete(dice.roll(1000)),
        53..57 => Step::End(dice.roll(1000)),
        57..62 => Step::Gpu {
            node,
            index: usize::try_from(dice.roll(2)).unwrap(),
            healthy: dice.percent(50),
        },
        62..65 => Step::RemoveNode(node),
        65..69 => Step::AddNode(node),
        69..72 => Step::Cordon(node, dice.percent(50)),
        72..75 => Step::Ready(node, dice.percent(60)),
        75..77 => Step::LoseReservation(dice.roll(1000)),
        77..79 => Step::EvictReservation(dice.roll(1000)),
        79..80 => match dice.roll(2) {
            0 => Step::PreemptReservation(dice.roll(1000)),
            _ => Step::Pressure(node),
        },
        80..84 => Step::Restart {
            process: dice.roll(1000),
            pause: dice.roll(2) * dice.roll(4000),
        },
        84..86 => Step::RestartAll(dice.roll(2) * dice.roll(4000)),
        86..89 => Step::Double(dice.roll(1000)),
        89..90 => Step::EndDoubles,
        90..93 => Step::Revoke {
            process: dice.roll(1000),
            revoked: dice.percent(60),
        },
        93..95 => Step::Reject {
            node,
            count: 1 + u32::try_from(dice.roll(3)).unwrap(),
        },
        95..98 => Step::Outage(dice.percent(40)),
        _ => Step::Forget,
    };
    let pause = match dice.roll(4) {
        0 => 0,
        1 => dice.roll(200),
        2 => dice.roll(3000),
        _ => dice.roll(9000),
    };
    (step, pause)
}
