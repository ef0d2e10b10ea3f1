//! Pods above their GPU share on a node of tier `watch`, from the driver's processes to events, evictions and metrics. Kubelet, API server and
//! `/proc` are the test's.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use kai_gpu::Driver;
use kai_gpu::fake::{FakeDriver, Process, Settings};
use serde_json::{Value, json};
use support::api::{Api, World as Cluster};
use support::kubelet::{Kubelet, PodResourcesServer};
use support::{Agent, proc_of_host, settings, until};

const SHARE: &str = "kai.scheduler/gpu-share";
const TIER: &str = "kai.scheduler/gpu-enforcement";
const CONTAINER_ID: &str = "4e5f6a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091";

struct World {
    api: Api,
    pod_resources: PodResourcesServer,
    driver: Arc<FakeDriver>,
    agent: Agent,
    _kubelet: Kubelet,
    place: tempfile::TempDir,
}

impl World {
    /// A node with two GPUs of 40 GiB whose agent sees the host's processes if it is to.
    async fn start(sees_host: bool, words: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let api = Api::start().await;
        let fixed = [
            "--api-url",
            &api.url,
            "--enforce",
            "watch",
            "--watch-grace-seconds",
            "0",
        ];
        let mut settings = settings(place.path(), &[&fixed, words].concat());
        let proc = proc_of_host(place.path());
        if !sees_host {
            fs::remove_file(proc.join("7/ns/pid")).unwrap();
        }
        settings.enforcement.processes.proc = proc;
        // Two paces without a measurement end an excess, and this machine may be busy.
        settings.pace.watch = Duration::from_millis(500);
        let kubelet = Kubelet::start(&settings.plugin_dir);
        let pod_resources = PodResourcesServer::serve(&settings.pod_resources_socket);
        let driver = Arc::new(FakeDriver::new(&"a100-40:2".parse::<Settings>().unwrap().seeded("n1")).unwrap());
        let agent = Agent::start(settings, driver.clone());
        World {
            api,
            pod_resources,
            driver,
            agent,
            _kubelet: kubelet,
            place,
        }
    }

    async fn until_tier(&self, tier: &str) -> Cluster {
        let labelled = |world: &Cluster| world.labels.get(TIER).map(String::as_str) == Some(tier);
        until("the tier's label", &mut self.api.world(), labelled).await
    }

    /// A pod with this share of a GPU, whose process has this id.
    fn add_pod(&self, name: &str, share_mib: u64, pid: u32) {
        let uid = uid(pid);
        let limits = format!(r#"{{"container":"main","memoryMiB":{share_mib}}}"#);
        self.api.put_pod(json!({
            "name": name, "namespace": "team", "uid": uid, "annotations": { "gpu-fraction": "0.25", "kai.scheduler/gpu-limits": limits },
        }));
        self.pod_resources.add(SHARE, "team", name, &[&format!("share-{pid}")]);
        let dir = self.place.path().join("proc-of-host").join(pid.to_string());
        fs::create_dir_all(&dir).unwrap();
        let scope = format!(
            "kubepods-burstable-pod{}.slice/cri-containerd-{CONTAINER_ID}.scope",
            uid.replace('-', "_")
        );
        fs::write(dir.join("cgroup"), format!("0::/kubepods.slice/{scope}\n")).unwrap();
    }

    /// What the processes on the first GPU use from now on: process id and MiB.
    fn use_memory(&self, processes: &[(u32, u64)]) {
        let process = |(pid, memory_mib): &(u32, u64)| Process {
            pid: *pid,
            memory_mib: *memory_mib,
            ..Process::default()
        };
        let processes = processes.iter().map(process).collect();
        self.driver
            .change(|control| control.gpus.entry("0".to_owned()).or_default().processes = Some(processes));
    }

    /// Waits for an event on the pod, and returns its message.
    async fn event(&self, reason: &str, pod: &str) -> String {
        let wanted = |event: &&Value| event["reason"] == reason && event["involvedObject"]["name"] == pod;
        let what = format!("{reason} of {pod}");
        let world = until(&what, &mut self.api.world(), |world| {
            world.events.iter().any(|event| wanted(&event))
        })
        .await;
        let event = world.events.iter().find(wanted).unwrap();
        event["message"].as_str().unwrap().to_owned()
    }

    fn gpu(&self) -> String {
        self.driver.devices().unwrap().devices[0].uuid.clone()
    }
}

fn uid(pid: u32) -> String {
    format!("0f9c8a52-3d1e-4c7b-9a6f-1b2c3d4e{pid:04}")
}

#[tokio::test]
async fn a_pod_above_its_share_is_told_and_evicted_and_its_neighbour_is_not() {
    let world = World::start(true, &["--enforce-repair", "evict"]).await;
    world.until_tier("watch").await;
    world.add_pod("modest", 10_240, 10);
    world.add_pod("greedy", 10_240, 11);
    world.use_memory(&[(10, 10_240), (11, 10_241), (7, 30_000)]);

    let told = world.event("GPUShareExceeded", "greedy").await;
    let share = format!("uses 10241 MiB of GPU {}, its share is 10240 MiB", world.gpu());
    assert!(told.contains(&share), "{told}");
    let evicting = world.event("GPUShareEviction", "greedy").await;
    assert!(
        evicting.contains("evicting the pod") && evicting.contains(&share),
        "{evicting}"
    );
    let cluster = until("the eviction", &mut world.api.world(), |world| {
        !world.evicted.is_empty()
    })
    .await;
    // Both pods were measured together, so the neighbour would have been told as well.
    assert_eq!(cluster.evicted, ["greedy"]);
    let about = |event: &&Value| event["involvedObject"]["name"] == "modest";
    assert_eq!(cluster.events.iter().filter(about).count(), 0, "{:?}", cluster.events);
    world.agent.stop().await;
}

#[tokio::test]
async fn without_that_option_it_is_told_and_not_evicted() {
    let world = World::start(true, &[]).await;
    world.until_tier("watch").await;
    world.add_pod("first", 1_000, 10);
    world.use_memory(&[(10, 2_000)]);
    world.event("GPUShareExceeded", "first").await;
    // An eviction of the first pod would come before the second pod's event.
    world.add_pod("second", 1_000, 11);
    world.use_memory(&[(10, 2_000), (11, 2_000)]);
    world.event("GPUShareExceeded", "second").await;
    assert_eq!(world.api.world().borrow().evicted, [] as [&str; 0]);
    world.agent.stop().await;
}

#[tokio::test]
async fn an_agent_that_does_not_see_the_hosts_processes_says_so() {
    let world = World::start(false, &[]).await;
    world.until_tier("none").await;
    let told = |world: &Cluster| {
        let condition = world.limits_condition.as_ref();
        condition.is_some_and(|condition| {
            condition["reason"] == "NotLimited"
                && condition["message"]
                    .as_str()
                    .is_some_and(|text| text.contains("run it with hostPID: true"))
        })
    };
    until("the reason", &mut world.api.world(), told).await;
    world.agent.stop().await;
}
