//! Limits of GPU memory in a plan: nodes whose driver can limit, and faults of agents, drivers and runtimes. They come from random numbers of
//! their own, so that the other steps of a seed stay as they are.

use kai_embedded::kubelet::{Enforce, LimitFault, MemoryLimitFaults, NodeTemplate};

use crate::harness::manifest::PodManifest;
use crate::plan::Step;
use crate::random::SeededRandom;

/// The first driver that limits GPU memory, in nodes of a plan.
const DRIVER: &str = "615.71.09";
/// Most faults of limits in a plan.
const STEPS_MAX: u64 = 12;
/// The codes with which NVML refuses: not supported, no permission, not found, operating system, unknown.
const CODES: [u32; 5] = [3, 4, 6, 17, 999];
/// Distinguishes these random numbers from those of the other steps.
const SALT: u64 = 0x6c69_6d69_7473;

/// The random numbers of the limits of a seed.
pub(crate) fn random(seed: u64) -> SeededRandom {
    SeededRandom::new(seed ^ SALT)
}

/// Gives some of the nodes a driver that limits GPU memory.
pub(crate) fn equip(random: &mut SeededRandom, nodes: &mut [NodeTemplate]) {
    for node in nodes.iter_mut().filter(|node| can_limit(node)) {
        node.driver = random.percent(60).then(|| DRIVER.to_owned());
    }
}

/// Whether the GPUs have memory of their own and are not divided.
fn can_limit(node: &NodeTemplate) -> bool {
    node.mig_strategy.is_none() && ["h100", "l40s"].iter().any(|model| node.gpus.starts_with(model))
}

/// Puts faults of limits between the steps.
pub(crate) fn insert_faults(random: &mut SeededRandom, nodes: &[NodeTemplate], steps: &mut Vec<(Step, u64)>) {
    let able: Vec<usize> = (0..nodes.len()).filter(|at| nodes[*at].driver.is_some()).collect();
    if able.is_empty() {
        return;
    }
    for number in 0..random.roll(STEPS_MAX + 1) {
        let node = random.of(&able);
        let step = match random.roll(12) {
            0 | 1 => Step::RestartContainers(random.roll(1000)),
            2 | 3 => pod_that_requires_a_limit(random, number),
            _ => Step::Limits {
                node,
                fault: fault(random),
            },
        };
        let at = usize::try_from(random.roll(steps.len() as u64 + 1)).unwrap();
        steps.insert(at, (step, random.roll(2) * random.roll(3000)));
    }
}

fn pod_that_requires_a_limit(random: &mut SeededRandom, number: u64) -> Step {
    let (name, fraction) = (format!("required-{number}"), random.of(&["0.25", "0.5"]));
    let pod = PodManifest::new(&name)
        .queue(random.of(&["a", "b", "c"]))
        .fraction(fraction);
    Step::Create {
        words: format!("{name}: {fraction} of a GPU whose memory is limited"),
        objects: vec![pod.annotation(kai_api::keys::GPU_ENFORCEMENT, "required").build()],
    }
}

fn fault(random: &mut SeededRandom) -> LimitFault {
    match random.roll(15) {
        0 | 1 => LimitFault::AgentDies,
        2 => LimitFault::AgentStarts,
        3 => LimitFault::Enforce(random.of(&[Enforce::Watch, Enforce::None])),
        4 => LimitFault::Enforce(Enforce::Auto),
        5 | 6 => LimitFault::Teardown(usize::try_from(random.roll(2)).unwrap()),
        7 | 8 => LimitFault::SlowRuntime(random.roll(2) * random.roll(20)),
        9 => LimitFault::Driver(MemoryLimitFaults::default()),
        10 | 11 => LimitFault::DriverGoes,
        12 => LimitFault::DriverReturns,
        _ => LimitFault::Driver(misbehaviour(random)),
    }
}

fn misbehaviour(random: &mut SeededRandom) -> MemoryLimitFaults {
    let none = MemoryLimitFaults::default();
    match random.roll(4) {
        0 | 1 => MemoryLimitFaults {
            set_code: Some(random.of(&CODES)),
            ..none
        },
        2 => MemoryLimitFaults {
            get_code: Some(random.of(&CODES)),
            ..none
        },
        _ => MemoryLimitFaults {
            read_back_hard_mib: Some(random.of(&[0, 1, 1_000_000])),
            ..none
        },
    }
}

/// The fault's kind, for the summary; `None` if it repairs something.
pub(crate) fn kind(fault: &LimitFault) -> Option<&'static str> {
    match fault {
        LimitFault::AgentDies => Some("node agents killed"),
        LimitFault::AgentStarts
        | LimitFault::Enforce(Enforce::Auto)
        | LimitFault::SlowRuntime(0)
        | LimitFault::DriverReturns => None,
        LimitFault::DriverGoes => Some("drivers away for a while"),
        LimitFault::Enforce(_) => Some("nodes with a lower tier"),
        LimitFault::Teardown(_) => Some("GPU teardowns that lose limits"),
        LimitFault::SlowRuntime(_) => Some("runtimes slow between agent and hook"),
        LimitFault::Driver(faults) if *faults == MemoryLimitFaults::default() => None,
        LimitFault::Driver(_) => Some("drivers that refuse or lie about limits"),
    }
}
