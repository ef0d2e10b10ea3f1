//! Waits until the status of the queues counts all pods. The status controllers lag behind by a moment, and a picture taken too early is
//! wrong.

use std::time::Duration;

use kai_api::{ObjectKey, keys};
use kai_engine::model::{GpuRequest, Millis};

use super::picture::amounts;
use super::world::World;

/// How long the picture waits for the status of the queues, and how often it polls.
const WAIT_MAX: Duration = Duration::from_secs(10);
const GLANCE: Duration = Duration::from_millis(50);
/// Tolerance of rounding, in hundredths of GPUs.
const ROUNDING: i64 = 5;

/// Amounts of GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Gpus {
    /// Requested hundredths of GPUs.
    asked: i64,
    /// Requested MiB of GPU memory.
    asked_mib: i64,
    /// Allocated hundredths of GPUs.
    used: i64,
}

/// Waits until the status of the queues counts all pods.
pub(super) async fn until_counted(world: &World) {
    let counted = async {
        while !agree(of_queues(world), of_pods(world)) {
            tokio::time::sleep(GLANCE).await;
        }
    };
    // After the time-out the picture shows the status as it is.
    let _ = tokio::time::timeout(WAIT_MAX, counted).await;
}

fn agree(queues: Gpus, pods: Gpus) -> bool {
    let near = |one: i64, other: i64| (one - other).abs() <= ROUNDING;
    near(queues.asked, pods.asked) && queues.asked_mib == pods.asked_mib && near(queues.used, pods.used)
}

/// The sums in the status of the leaf queues.
fn of_queues(world: &World) -> Gpus {
    let queues = world.context.informers.queues().all();
    let is_parent = |queue: &kai_api::Queue| {
        let name = queue.metadata.plain_name();
        queues.iter().any(|other| other.parent() == Some(name))
    };
    let mut gpus = Gpus::default();
    for queue in queues.iter().filter(|queue| !is_parent(queue)) {
        let status = queue.status();
        let (asked, asked_mib) = amounts(&status.requested);
        gpus.asked += asked;
        gpus.asked_mib += asked_mib;
        gpus.used += amounts(&status.allocated).0;
    }
    gpus
}

/// The sums over the pods.
fn of_pods(world: &World) -> Gpus {
    let informers = &world.context.informers;
    let mut gpus = Gpus::default();
    for pod in informers.pods().all() {
        if pod.scheduler_name() != keys::SCHEDULER_NAME || world.kubelets.reservation_pods().contains(&pod) {
            continue;
        }
        let Ok(read) = pod.read(&kai_api::PodIdentity::default(), Millis(0)) else {
            continue;
        };
        let node = pod
            .node_name()
            .and_then(|name| informers.nodes().get(&ObjectKey::new("", name)));
        let (asked, asked_mib) = match read.value.requests.gpu {
            GpuRequest::None | GpuRequest::Mig { .. } => (0, 0),
            GpuRequest::Whole { devices } => (devices * 100, 0),
            GpuRequest::Fraction { fraction, devices } => (fraction.nearest_hundredths() * devices, 0),
            GpuRequest::Memory { mib, devices } => (0, mib * devices),
        };
        gpus.asked += asked;
        gpus.asked_mib += asked_mib;
        if let Some(node) = node {
            let memory_mib = node.read().ok().and_then(|read| read.value.gpu_memory_mib);
            gpus.used += asked + asked_mib * 100 / memory_mib.unwrap_or(i64::MAX).max(1);
        }
    }
    gpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_that_lag_behind_are_noticed() {
        let pods = Gpus {
            asked: 200,
            asked_mib: 30_720,
            used: 224,
        };
        assert!(agree(Gpus { used: 225, ..pods }, pods));
        assert!(!agree(Gpus { used: 200, ..pods }, pods));
        assert!(!agree(Gpus { asked_mib: 0, ..pods }, pods));
        assert!(!agree(Gpus::default(), pods));
    }
}
