//! Random pods of users: valid ones, malformed ones, and ones that never fit.

use serde_json::Value;

use crate::harness::manifest::{PodManifest, pod_group};
use crate::injector::REFUSED;
use crate::random::SeededRandom;

/// Malformed fractions. They must harm no other pod.
const ODD_FRACTIONS: [&str; 8] = ["NaN", "inf", "-1", "0", "1.5", "1e400", "0.00000000001", "half"];
/// More GPUs than any node has.
const DOOMED_GPUS: u32 = 64;

/// Priority classes whose pods are not preemptible.
const LASTING: [&str; 2] = ["build", "inference"];

/// Whether the scheduler may evict the pod for another one.
pub(crate) fn may_be_evicted(pod: &Value) -> bool {
    let class = &pod["metadata"]["labels"][kai_api::keys::PRIORITY_CLASS_NAME];
    !LASTING.iter().any(|lasting| class == lasting)
}

/// The objects that a user creates in one step, in order, with a description for the log.
pub(crate) fn drawn(random: &mut SeededRandom, number: usize) -> (String, Vec<Value>) {
    let mut name = format!("p{number:02}");
    if random.percent(12) {
        return gang(random, &name);
    }
    if random.percent(6) {
        name.push_str(REFUSED);
    }
    let (words, pod) = shape(random, PodManifest::new(&name));
    let (queue, pod) = in_some_queue(random, pod);
    let pod = match random.roll(6) {
        0 => pod.priority("build-preemptible"),
        1 => pod.priority("inference"),
        2 => pod.priority("build"),
        _ => pod,
    };
    let pod = match random.percent(12) {
        true => pod.annotation(kai_embedded::kubelet::RUN_SECONDS, &random.roll(30).to_string()),
        false => pod,
    };
    (format!("{name}: {words} in {queue}"), vec![pod.build()])
}

fn in_some_queue(random: &mut SeededRandom, pod: PodManifest) -> (&'static str, PodManifest) {
    match random.of(&["default-queue", "a", "b", "c"]) {
        "default-queue" => ("default-queue", pod),
        queue => (queue, pod.queue(queue)),
    }
}

fn shape(random: &mut SeededRandom, pod: PodManifest) -> (String, PodManifest) {
    match random.roll(100) {
        0..34 => {
            let fraction = format!("0.{}", 1 + random.roll(9));
            (format!("{fraction} GPU"), pod.fraction(&fraction))
        }
        34..46 => {
            let mib = (1 + random.roll(40)) * 1000;
            (format!("{mib} MiB"), pod.gpu_memory_mib(&mib.to_string()))
        }
        46..62 => ("1 GPU".to_owned(), pod.gpus(1)),
        62..67 => ("2 GPUs".to_owned(), pod.gpus(2)),
        67..74 => {
            let fraction = format!("0.{}", 2 + random.roll(6));
            let pod = pod.fraction(&fraction).annotation("gpu-fraction-num-devices", "2");
            (format!("{fraction} of 2 GPUs"), pod)
        }
        74..81 => {
            let slice = random.of(&["nvidia.com/mig-1g.5gb", "nvidia.com/mig-2g.10gb"]);
            (slice.to_owned(), pod.devices(slice, 1))
        }
        81..90 => ("no GPU".to_owned(), pod),
        90..95 => (format!("{DOOMED_GPUS} GPUs"), pod.gpus(DOOMED_GPUS)),
        _ => {
            let odd = random.of(&ODD_FRACTIONS);
            (format!("{odd:?} GPU"), pod.fraction(odd))
        }
    }
}

fn gang(random: &mut SeededRandom, name: &str) -> (String, Vec<Value>) {
    let members = 2 + u32::try_from(random.roll(2)).unwrap();
    let queue = random.of(&["default-queue", "a", "b", "c"]);
    let shared = random.percent(50);
    let pods = (0..members).map(|number| {
        let pod = PodManifest::new(&format!("{name}-{number}"))
            .member_of(name)
            .queue(queue);
        match shared {
            true => pod.fraction("0.5").build(),
            false => pod.gpus(1).build(),
        }
    });
    let objects: Vec<Value> = std::iter::once(pod_group(name, queue, members)).chain(pods).collect();
    let what = if shared { "0.5 GPU" } else { "1 GPU" };
    (format!("{name}: gang of {members} with {what} in {queue}"), objects)
}
