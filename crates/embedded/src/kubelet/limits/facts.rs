//! What the driver and the runtime know about a node's containers, for the law of limits. Faults of the driver do not change these facts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kai_gpu::Driver;
use kai_gpu::fake::FakeDriver;

use super::LimitedContainer;
use super::node::{Agent, Container, NodeLimits, Presence};

impl NodeLimits {
    /// The running containers with what the driver has for them.
    pub(super) fn running(&self, node: &str) -> Vec<LimitedContainer> {
        self.honestly(|driver| {
            let shown = self.containers.iter().map(|(uid, container)| LimitedContainer {
                pod: container.pod.clone(),
                uid: uid.clone(),
                node: node.to_owned(),
                tier: container.tier,
                limits: container
                    .gpus
                    .iter()
                    .map(|gpu| (gpu.clone(), recorded(driver, gpu, &container.cgroup)))
                    .collect(),
                lost: container.lost.clone(),
                noticeable_for: self.noticeable_for(container),
            });
            shown.collect()
        })
    }

    /// How long the agent has been able to notice that the container lost a limit.
    fn noticeable_for(&self, container: &Container) -> Option<Duration> {
        let lost_at = container.lost_at?;
        let reads = self.presence == Presence::Present && self.faults.get_code.is_none();
        let sees = self.agent == Agent::Running && reads;
        sees.then(|| lost_at.max(self.sees_since).elapsed())
    }

    /// Limits on GPUs that a container does not have, and of directories above containers.
    pub(super) fn strays(&self) -> Vec<String> {
        let Some(directory) = &self.directory else {
            return Vec::new();
        };
        let root = directory.path().join("cgroup");
        let slice = root.join("kubepods.slice");
        let above: Vec<PathBuf> = pods_of(&slice).chain([root, slice.clone()]).collect();
        self.honestly(|driver| {
            let mut strays = Vec::new();
            for device in &self.inventory().devices {
                let gpu = &device.uuid;
                for container in self
                    .containers
                    .values()
                    .filter(|container| !container.gpus.contains(gpu))
                {
                    if let Some(bytes) = recorded(driver, gpu, &container.cgroup) {
                        let pod = &container.pod;
                        strays.push(format!(
                            "{pod} is limited to {bytes} bytes on GPU {gpu}, which it does not have"
                        ));
                    }
                }
                for bytes in above.iter().filter_map(|directory| recorded(driver, gpu, directory)) {
                    strays.push(format!(
                        "a cgroup above containers is limited to {bytes} bytes on GPU {gpu}"
                    ));
                }
            }
            strays
        })
    }
}

/// The hard limit of a cgroup on a GPU in the driver's record.
fn recorded(driver: &FakeDriver, gpu: &str, cgroup: &Path) -> Option<u64> {
    let read = driver.memory_limits(gpu, cgroup);
    read.ok().and_then(|memory| memory.limits.hard_bytes)
}

/// The pods' cgroups.
fn pods_of(slice: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(slice).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}
