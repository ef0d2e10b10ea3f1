//! The agent against an API server: labels, condition, events and the annotation of reservation pods.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kai_gpu::Driver;
use kai_gpu::fake::{FakeDriver, GpuState, Settings};
use kai_node::agent::setup_condition::{self, SetupCheck, SetupPace};
use kai_node::agent::state::{DriverProblem, Snapshot};
use kai_node::allocator::inject::Mode;
use kai_node::driver_files::collect::Search;
use serde_json::json;
use support::api::Api;
use support::kubelet::{Kubelet, PodResourcesServer};
use support::{Agent, settings, until};
use tokio::sync::watch;

fn fake(text: &str) -> Arc<FakeDriver> {
    Arc::new(FakeDriver::new(&text.parse::<Settings>().unwrap().seeded("n1")).unwrap())
}

#[tokio::test]
async fn labels_condition_and_events_follow_the_gpus() {
    let place = tempfile::tempdir().unwrap();
    let api = Api::start().await;
    let settings = settings(place.path(), &["--api-url", &api.url]);
    let _kubelet = Kubelet::start(&settings.plugin_dir);
    // The API server fails at first, and one label is owned by another field manager.
    api.change(|world| {
        world.fail = Some(503);
        world.managed_fields = vec![json!({
            "manager": "kubectl-label",
            "fieldsV1": { "f:metadata": { "f:labels": { "f:nvidia.com/gpu.machine": {} } } },
        })];
    });
    let driver = fake("orin-agx");
    let agent = Agent::start(settings, driver.clone());
    let mut world = api.world();
    api.change(|world| world.fail = None);
    let seen = until("labels and condition", &mut world, |world| {
        !world.labels.is_empty() && world.condition.is_some()
    })
    .await;
    let label = |labels: &BTreeMap<String, String>, key: &str| labels.get(key).cloned().unwrap_or_default();
    assert_eq!(label(&seen.labels, "nvidia.com/gpu.count"), "1");
    assert_eq!(label(&seen.labels, "kai.scheduler/gpu-memory-type"), "unified");
    assert!(label(&seen.labels, "nvidia.com/gpu.memory").parse::<u64>().unwrap() > 1000);
    assert!(
        !seen.labels.contains_key("nvidia.com/gpu.machine"),
        "labels of others are left alone"
    );
    assert_eq!(seen.condition.unwrap()["status"], "True");

    driver.set_state("0", GpuState::Lost);
    let lost = |world: &support::api::World| {
        world
            .condition
            .as_ref()
            .is_some_and(|condition| condition["status"] == "False")
            && world.events.len() == 1
    };
    let seen = until("a bad condition and an event", &mut world, lost).await;
    assert_eq!(seen.events[0]["reason"], "GPUUnhealthy");
    assert_eq!(seen.events[0]["involvedObject"]["uid"], "node-uid");
    assert!(
        seen.condition.unwrap()["message"]
            .as_str()
            .unwrap()
            .contains("GPU is lost")
    );

    driver.set_state("0", GpuState::Healthy);
    let good = |world: &support::api::World| {
        world
            .condition
            .as_ref()
            .is_some_and(|condition| condition["status"] == "True")
            && world.events.len() == 2
    };
    let seen = until("recovery", &mut world, good).await;
    assert_eq!(seen.events[1]["reason"], "GPURecovered");
    agent.stop().await;
}

#[tokio::test]
async fn labels_go_when_the_gpus_are_gone() {
    let place = tempfile::tempdir().unwrap();
    let api = Api::start().await;
    let settings = settings(place.path(), &["--api-url", &api.url]);
    let agent = Agent::start(settings.clone(), fake("t4"));
    let mut world = api.world();
    until("labels", &mut world, |world| !world.labels.is_empty()).await;
    agent.stop().await;
    let agent = Agent::start(
        settings.clone(),
        Arc::new(kai_gpu::NoGpu::new(kai_gpu::Inventory::default())),
    );
    until("no labels", &mut world, |world| world.labels.is_empty()).await;
    let spec = settings.cdi_dir.join("kai.scheduler-gpu.json");
    support::within("no CDI spec", async {
        while spec.exists() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    agent.stop().await;
}

#[tokio::test]
async fn reservation_pods_get_the_uuid_they_hold() {
    let place = tempfile::tempdir().unwrap();
    let api = Api::start().await;
    let settings = settings(place.path(), &["--api-url", &api.url, "--replicas", "2"]);
    let pod_resources = PodResourcesServer::serve(&settings.pod_resources_socket);
    let driver = fake("t4:2");
    let uuids: Vec<String> = driver
        .devices()
        .unwrap()
        .devices
        .into_iter()
        .map(|device| device.uuid)
        .collect();
    let replica = |gpu: usize, n: u32| format!("{}::{n}", uuids[gpu]);
    api.add_pod("gpu-reservation-1", "uid-1");
    let agent = Agent::start(settings, driver);
    let mut world = api.world();

    let (first, second) = (replica(0, 1), replica(1, 0));
    pod_resources.set(&[
        ("default", "gpu-reservation-1", &[&second]),
        ("kai-resource-reservation", "gpu-reservation-1", &[&first]),
    ]);
    let annotated = |name: &'static str| move |world: &support::api::World| Api::annotation(world, name).is_some();
    let seen = until("the first annotation", &mut world, annotated("gpu-reservation-1")).await;
    assert_eq!(Api::annotation(&seen, "gpu-reservation-1").as_ref(), Some(&uuids[0]));

    // A pod that is created later, while the API server refuses calls.
    api.change(|world| world.fail = Some(500));
    api.add_pod("gpu-reservation-2", "uid-2");
    pod_resources.set(&[("kai-resource-reservation", "gpu-reservation-2", &[&second])]);
    api.change(|world| world.fail = None);
    let seen = until("the second annotation", &mut world, annotated("gpu-reservation-2")).await;
    assert_eq!(Api::annotation(&seen, "gpu-reservation-2").as_ref(), Some(&uuids[1]));

    // Another pod of the same name on another GPU.
    api.add_pod("gpu-reservation-2", "uid-3");
    pod_resources.set(&[("kai-resource-reservation", "gpu-reservation-2", &[&first])]);
    let seen = until("the third annotation", &mut world, annotated("gpu-reservation-2")).await;
    assert_eq!(Api::annotation(&seen, "gpu-reservation-2").as_ref(), Some(&uuids[0]));
    agent.stop().await;
}

#[tokio::test]
async fn the_doctors_findings_are_a_node_condition() {
    let host = tempfile::tempdir().unwrap();
    let config = host.path().join("etc/containerd/config.toml");
    let write_config = |cdi: bool| {
        std::fs::create_dir_all(config.parent().unwrap()).unwrap();
        let text = format!("version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nenable_cdi = {cdi}\n");
        let new = config.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, &config).unwrap();
    };
    write_config(false);
    let api = Api::start().await;
    let access = kai_cluster::ClientConfig::Url(api.url.clone());
    let client = kai_cluster::Client::connect(&access).await.unwrap();
    let pace = SetupPace {
        interval: Duration::from_millis(20),
        confirm: Duration::from_millis(10),
        retry: Duration::from_millis(10),
    };
    let check = SetupCheck::new(Search::new(kai_gpu::Roots::under(host.path())), Mode::Cdi);
    let (snapshots, seen) = watch::channel(Arc::new(Snapshot::default()));
    tokio::spawn(setup_condition::run(client, "n1".to_owned(), check, pace, seen));
    // At first the driver does not answer.
    let mut world = api.world();
    snapshots.send_replace(Arc::new(Snapshot {
        driver_problem: Some(DriverProblem {
            reason: "starting NVML: Driver Not Loaded".to_owned(),
            remedy: "modprobe nvidia".to_owned(),
        }),
        ..Snapshot::default()
    }));
    let seen = until("a problem of the driver", &mut world, |world| world.setup.is_some()).await;
    let message = seen.setup.unwrap()["message"].as_str().unwrap().to_owned();
    let expect = "driver: starting NVML: Driver Not Loaded. Fix: modprobe nvidia; 1 more";
    assert!(message.starts_with(expect), "{message}");
    snapshots.send_replace(Arc::new(Snapshot {
        inventory: Arc::new(fake("t4").devices().unwrap()),
        confirmed: true,
        ..Snapshot::default()
    }));
    let seen = until("a problem of the runtime", &mut world, |world| world.setup_writes == 2).await;
    let message = seen.setup.unwrap()["message"].as_str().unwrap().to_owned();
    assert!(
        message.starts_with(
            "cdi: switched off in /etc/containerd/config.toml: containers would start without their GPU. Fix: sed -i "
        ),
        "{message}"
    );
    write_config(true);
    let good = |world: &support::api::World| world.setup.as_ref().is_some_and(|setup| setup["status"] == "True");
    let seen = until("no problem", &mut world, good).await;
    assert_eq!(seen.setup.unwrap()["reason"], "NoProblemFound");
    assert_eq!(seen.setup_writes, 3, "an unchanged result is not written again");
}

/// Without CDI the agent does not need what the runtime lacks.
#[tokio::test]
async fn a_runtime_without_cdi_is_no_problem_for_an_agent_that_mounts() {
    let host = tempfile::tempdir().unwrap();
    let config = host.path().join("etc/containerd/config.toml");
    std::fs::create_dir_all(config.parent().unwrap()).unwrap();
    std::fs::write(&config, "version = 2\n").unwrap();
    let api = Api::start().await;
    let access = kai_cluster::ClientConfig::Url(api.url.clone());
    let client = kai_cluster::Client::connect(&access).await.unwrap();
    let pace = SetupPace {
        confirm: Duration::from_millis(10),
        ..SetupPace::default()
    };
    let check = SetupCheck::new(Search::new(kai_gpu::Roots::under(host.path())), Mode::Mounts);
    let snapshot = Snapshot {
        inventory: Arc::new(fake("t4").devices().unwrap()),
        confirmed: true,
        ..Snapshot::default()
    };
    let (_snapshots, seen) = watch::channel(Arc::new(snapshot));
    tokio::spawn(setup_condition::run(client, "n1".to_owned(), check, pace, seen));
    let mut world = api.world();
    let seen = until("the condition", &mut world, |world| world.setup.is_some()).await;
    assert_eq!(seen.setup.unwrap()["status"], "True");
}
