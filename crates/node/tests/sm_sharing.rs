//! Containers with compute mode `sm-sharing`: what the agent gives them on a node with the multi-process server, and that they do not start
//! without it. The host's control program is a script; the server's supervisor has tests of its own.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kai_gpu::fake::{FakeDriver, Settings};
use kai_gpu::{Driver, GpuComputeMode};
use kai_node::driver_files::cdi::{Edits, Spec};
use serde_json::{Value, json};
use support::api::{Api, World as Cluster};
use support::kubelet::{Kubelet, PodResourcesServer};
use support::{Agent, proc_of_host, settings, until};

const SHARE: &str = "kai.scheduler/gpu-share";
const TIER: &str = "kai.scheduler/gpu-enforcement";
const TIME_SLICING: &str = r#"{"container":"main","memoryMiB":10240,"computeMode":"time-slicing"}"#;
const PROGRAM: &str = "usr/bin/nvidia-cuda-mps-control";

struct World {
    api: Api,
    pod_resources: PodResourcesServer,
    kubelet: Kubelet,
    cdi_dir: PathBuf,
    state_dir: PathBuf,
    driver: Arc<FakeDriver>,
    agent: Option<Agent>,
    place: tempfile::TempDir,
}

impl World {
    /// A node with two GPUs and this driver. `words` are the agent's options.
    async fn start(driver_version: &str, words: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let api = Api::start().await;
        let library = place.path().join("libnvidia-ml.so.1").display().to_string();
        let fixed = ["--api-url", &api.url, "--fake-library", &library];
        let mut settings = settings(place.path(), &[&fixed, words].concat());
        write_program(
            &place.path().join("host").join(PROGRAM),
            include_str!("../src/enforcement/mps/fake-control.sh"),
        );
        // In place of `kai mps-launch -- PROGRAM`, which enters the host's mount namespace.
        let launcher = place.path().join("launcher");
        let host = place.path().join("host").display().to_string();
        write_program(
            &launcher,
            &format!("#!/bin/sh\nprogram=$3\nshift 3\nexec \"{host}$program\" \"$@\"\n"),
        );
        settings.enforcement.launcher = launcher;
        settings.enforcement.processes.proc = proc_of_host(place.path());
        let kubelet = Kubelet::start(&settings.plugin_dir);
        let pod_resources = PodResourcesServer::serve(&settings.pod_resources_socket);
        let mut gpus = "a100-40:2".parse::<Settings>().unwrap().seeded("n1");
        gpus.driver_version = Some(driver_version.to_owned());
        let driver = Arc::new(FakeDriver::new(&gpus).unwrap());
        let (cdi_dir, state_dir) = (settings.cdi_dir.clone(), settings.state_dir.clone());
        let mut world = World {
            api,
            pod_resources,
            kubelet,
            cdi_dir,
            state_dir,
            agent: Some(Agent::start(settings, driver.clone())),
            driver,
            place,
        };
        until("share devices", &mut world.kubelet.lists, |lists| {
            matches!(lists.get(SHARE), Some(Some(_)))
        })
        .await;
        world
    }

    async fn until_tier(&self, tier: &str) {
        let labelled = |world: &Cluster| world.labels.get(TIER).map(String::as_str) == Some(tier);
        until("the tier's label", &mut self.api.world(), labelled).await;
    }

    fn gpu(&self, at: usize) -> String {
        self.driver.devices().unwrap().devices[at].uuid.clone()
    }

    /// A pod with a quarter of the first GPU in this compute mode, to which the kubelet has allocated `share-1`.
    fn bind(&self, compute_mode: &str, security_context: Value) {
        let limits = match compute_mode {
            "sm-sharing" => r#"{"container":"main","memoryMiB":10240,"computeMode":"sm-sharing","computePercent":25}"#,
            _ => TIME_SLICING,
        };
        self.bind_with(Some(limits), security_context);
    }

    /// The same with these limits of the binder, or those of a binder that wrote none.
    fn bind_with(&self, limits: Option<&str>, security_context: Value) {
        self.api.add_reservation("g1", &self.gpu(0));
        self.api.put_pod(json!({
            "name": "quarter", "namespace": "team", "uid": "uid-1", "labels": { "runai-gpu-group": "g1" },
            "annotations": {
                "gpu-fraction": "0.25", "kai.scheduler/received-gpus": self.gpu(0), "kai.scheduler/gpu-limits": limits,
                "kai.scheduler/gpu-enforcement-tier": "mps",
            },
        }));
        self.api.change(|world| {
            let pod = world.pods.get_mut("quarter").unwrap();
            if limits.is_none() {
                pod["metadata"]["annotations"]
                    .as_object_mut()
                    .unwrap()
                    .remove("kai.scheduler/gpu-limits");
            }
            // What the author sets does not count: the spec of the share device comes later.
            let env = json!([{ "name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "100" }]);
            pod["spec"]["containers"] = json!([{ "name": "main", "securityContext": security_context, "env": env }]);
        });
        self.pod_resources.remove("team", "quarter");
        self.pod_resources.add(SHARE, "team", "quarter", &["share-1"]);
    }

    fn edits(&self) -> Edits {
        let bytes = fs::read(self.cdi_dir.join("kai.scheduler-share-1.json")).unwrap();
        let mut spec: Spec = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(spec.problems(), Vec::<String>::new());
        spec.devices.remove(0).container_edits
    }

    async fn prepared(&self) -> Edits {
        self.kubelet.pre_start(SHARE, &["share-1"]).await.unwrap();
        self.edits()
    }

    async fn refused(&self) -> String {
        let refused = self.kubelet.pre_start(SHARE, &["share-1"]).await.unwrap_err();
        assert!(!self.cdi_dir.join("kai.scheduler-share-1.json").exists(), "{refused}");
        refused.message().to_owned()
    }

    fn modes(&self) -> Vec<Option<GpuComputeMode>> {
        [0, 1].map(|at| self.driver.compute_mode(&self.gpu(at)).unwrap()).into()
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.place.path().join("host/usr/bin/calls")).unwrap_or_default()
    }
}

fn write_program(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// What keeps the programs of a container from being root.
fn no_root() -> Value {
    json!({ "runAsNonRoot": true, "allowPrivilegeEscalation": false })
}

/// Mounts of the server's directories: host path and path in the container.
fn mps_mounts(edits: &Edits) -> Vec<(&str, &str)> {
    let mounts = edits.mounts.iter();
    let of_server = mounts.filter(|mount| mount.container_path.contains("mps") || mount.container_path == "/dev/shm");
    of_server
        .map(|mount| (mount.host_path.as_str(), mount.container_path.as_str()))
        .collect()
}

fn mps_environment(edits: &Edits) -> Vec<&str> {
    let all = edits.env.iter().map(String::as_str);
    all.filter(|variable| variable.starts_with("CUDA_MPS_")).collect()
}

#[tokio::test]
async fn a_container_gets_its_namespace_of_the_server_and_nothing_that_it_could_change() {
    let mut world = World::start("615.71.09", &["--enforce", "mps"]).await;
    world.until_tier("mps").await;
    assert_eq!(world.modes(), [Some(GpuComputeMode::ExclusiveProcess); 2]);

    world.bind("sm-sharing", no_root());
    let edits = world.prepared().await;
    let directory = world.state_dir.join("mps/pipe/kai/p_share_1");
    assert!(directory.is_dir(), "the namespace exists before the container");
    assert_eq!(
        mps_mounts(&edits),
        [(directory.display().to_string().as_str(), "/tmp/nvidia-mps")]
    );
    assert_eq!(mps_environment(&edits), ["CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps"]);
    assert!(edits.hooks.is_empty(), "this tier limits no memory of a cgroup");
    let calls = world.calls();
    assert!(
        calls.contains(
            "namespace set p_share_1 --server=kai --active-thread-percentage=25 --pinned-memory-limit=10240M"
        ),
        "{calls}"
    );

    // A restarted container, then root, then a pod with another mode on the same share device.
    assert_eq!(world.prepared().await, edits);
    world.kubelet.allocate(SHARE, &["share-1"]).await.unwrap();
    world.bind("sm-sharing", json!({}));
    let refused = world.refused().await;
    assert!(
        refused.contains("team/quarter") && refused.contains("may run as root"),
        "{refused}"
    );
    // Its second process would find the GPU busy.
    for limits in [Some(TIME_SLICING), None] {
        world.bind_with(limits, json!({}));
        let refused = world.refused().await;
        assert!(
            refused.contains("team/quarter has compute mode time-slicing") && refused.contains("delete the pod"),
            "{refused}"
        );
    }

    world.agent.take().unwrap().stop().await;
    assert_eq!(world.modes(), [Some(GpuComputeMode::Default); 2]);
    assert!(world.calls().contains("-p 3 -q"), "{}", world.calls());
}

#[tokio::test]
async fn with_an_older_driver_the_node_has_another_tier_and_says_why() {
    let mut world = World::start("570.133.20", &["--enforce", "mps"]).await;
    let words = "leaves its limits to the programs that it limits; install driver 615 or newer";
    let told = |world: &Cluster| {
        let condition = world.limits_condition.as_ref();
        condition.is_some_and(|condition| condition["message"].as_str().is_some_and(|text| text.contains(words)))
    };
    let cluster = until("the reason", &mut world.api.world(), told).await;
    assert_ne!(cluster.labels.get(TIER).map(String::as_str), Some("mps"));
    world.bind("sm-sharing", no_root());
    let refused = world.refused().await;
    assert!(refused.contains("this node has no multi-process server"), "{refused}");
    // Its GPUs are for everybody.
    world.bind("time-slicing", json!({}));
    let plain = world.prepared().await;
    assert_eq!((mps_mounts(&plain), mps_environment(&plain)), (Vec::new(), Vec::new()));
    world.agent.take().unwrap().stop().await;
    assert_eq!(world.calls(), "");
    assert_eq!(world.modes(), [Some(GpuComputeMode::Default); 2]);
}

#[tokio::test]
async fn without_the_server_it_does_not_start() {
    let mut world = World::start("615.71.09", &[]).await;
    let decided = |world: &Cluster| world.labels.get(TIER).is_some_and(|tier| tier != "mps");
    until("a tier", &mut world.api.world(), decided).await;
    world.bind("sm-sharing", no_root());
    let refused = world.refused().await;
    assert!(
        refused.contains("this node has no multi-process server") && refused.contains("--enforce mps"),
        "{refused}"
    );
    world.agent.take().unwrap().stop().await;
    assert_eq!(world.calls(), "");
    assert_eq!(world.modes(), [Some(GpuComputeMode::Default); 2]);
}

#[tokio::test]
async fn while_the_server_is_gone_it_does_not_start() {
    let mut world = World::start("615.71.09", &["--enforce", "mps"]).await;
    world.until_tier("mps").await;
    fs::write(world.place.path().join("host/usr/bin/behavior"), "die").unwrap();
    let pid = fs::read_to_string(world.state_dir.join("mps/pipe/pid")).unwrap();
    std::process::Command::new("kill")
        .args(["-9", pid.trim()])
        .status()
        .unwrap();
    let lower = |world: &Cluster| world.labels.get(TIER).is_some_and(|tier| tier != "mps");
    until("a lower tier", &mut world.api.world(), lower).await;
    world.bind("sm-sharing", no_root());
    let refused = world.refused().await;
    assert!(refused.contains("the multi-process server does not serve"), "{refused}");
    // The GPUs are still the server's, which is started again.
    world.bind("time-slicing", json!({}));
    let refused = world.refused().await;
    assert!(refused.contains("has compute mode time-slicing"), "{refused}");
    world.agent.take().unwrap().stop().await;
}
