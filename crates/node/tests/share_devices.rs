//! GPU shares on a node without NVIDIA's runtime: from Allocate of a share device to the CDI spec that its container starts with, against a
//! kubelet (device plugin and pod-resources APIs) and an API server.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::sync::Arc;

use kai_gpu::Driver;
use kai_gpu::fake::{FakeDriver, Settings};
use kai_node::driver_files::cdi::Spec;
use serde_json::json;
use support::api::Api;
use support::kubelet::{Kubelet, PodResourcesServer};
use support::{Agent, names, settings, until, within};

const SHARE: &str = "kai.scheduler/gpu-share";
const SHARE_DEVICES: usize = 512;

/// A node with three T4s: its agent, its kubelet and an API server.
struct World {
    api: Api,
    pod_resources: PodResourcesServer,
    kubelet: Kubelet,
    settings: kai_node::agent::Settings,
    driver: Arc<FakeDriver>,
    agent: Option<Agent>,
    _place: tempfile::TempDir,
}

impl World {
    async fn start() -> Self {
        let place = tempfile::tempdir().unwrap();
        let api = Api::start().await;
        let settings = settings(place.path(), &["--api-url", &api.url]);
        let kubelet = Kubelet::start(&settings.plugin_dir);
        let pod_resources = PodResourcesServer::serve(&settings.pod_resources_socket);
        let driver = Arc::new(FakeDriver::new(&"t4:3".parse::<Settings>().unwrap().seeded("n1")).unwrap());
        let mut world = World {
            api,
            pod_resources,
            kubelet,
            settings,
            driver,
            agent: None,
            _place: place,
        };
        world.start_agent().await;
        world
    }

    /// Starts the agent and waits until share devices are offered, the spec of whole GPUs is written and the API server has been reached.
    async fn start_agent(&mut self) {
        self.api.change(|world| world.labels.clear());
        self.agent = Some(Agent::start(self.settings.clone(), self.driver.clone()));
        let offered = |lists: &support::kubelet::Lists| matches!(lists.get(SHARE), Some(Some(share_devices)) if share_devices.len() == SHARE_DEVICES);
        until("share devices", &mut self.kubelet.lists, offered).await;
        until("the cluster", &mut self.api.world(), |world| !world.labels.is_empty()).await;
        let spec = self.settings.cdi_dir.join("kai.scheduler-gpu.json");
        within("the GPUs' spec", async {
            while !spec.exists() {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    async fn stop_agent(&mut self) {
        self.agent.take().unwrap().stop().await;
        until("the end of its stream", &mut self.kubelet.lists, |lists| {
            lists[SHARE].is_none()
        })
        .await;
    }

    fn gpu(&self, at: usize) -> String {
        self.driver.devices().unwrap().devices[at].uuid.clone()
    }

    /// A bound pod in namespace `team`, to which the kubelet has allocated a share device.
    fn bound(&self, name: &str, groups: &[&str], gpus: &[String], share_device: &str) {
        let labels = match groups {
            [only] => json!({ "runai-gpu-group": only }),
            several => several
                .iter()
                .map(|group| (format!("runai-gpu-group/{group}"), json!(group)))
                .collect(),
        };
        let annotations = json!({ "gpu-fraction": "0.5", "kai.scheduler/received-gpus": gpus.join(",") });
        let metadata =
            json!({ "name": name, "namespace": "team", "uid": name, "labels": labels, "annotations": annotations });
        self.api.put_pod(metadata);
        self.pod_resources.add(SHARE, "team", name, &[share_device]);
    }

    fn spec(&self, share_device: &str) -> Spec {
        read(&self.settings.cdi_dir.join(format!("kai.scheduler-{share_device}.json")))
    }

    fn share_devices(&self) -> Vec<String> {
        let all = names(&self.settings.cdi_dir);
        all.into_iter().filter(|name| name.contains("share-")).collect()
    }

    async fn refusal(&self, share_device: &str) -> String {
        let refused = self.kubelet.pre_start(SHARE, &[share_device]).await.unwrap_err();
        assert!(
            !self
                .share_devices()
                .contains(&format!("kai.scheduler-{share_device}.json")),
            "a refused share device names no device"
        );
        refused.message().to_owned()
    }
}

fn read(path: &Path) -> Spec {
    let spec: Spec = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(spec.problems(), Vec::<String>::new());
    spec
}

fn nodes(spec: &Spec) -> Vec<&str> {
    let nodes = &spec.devices[0].container_edits.device_nodes;
    nodes.iter().map(|node| node.path.as_str()).collect()
}

#[tokio::test]
async fn a_slot_becomes_the_gpus_of_its_pod_and_ends_with_it() {
    let mut world = World::start().await;
    let registration = world
        .kubelet
        .registrations
        .borrow()
        .iter()
        .find(|one| one.resource_name == SHARE)
        .cloned();
    let options = registration.unwrap().options.unwrap();
    assert!(options.pre_start_required && !options.get_preferred_allocation_available);

    let answer = world.kubelet.allocate(SHARE, &["share-17"]).await.unwrap();
    assert_eq!(answer.cdi_devices[0].name, "kai.scheduler/share=share-17");
    assert_eq!(answer.annotations["cdi.k8s.io/kai-gpu"], "kai.scheduler/share=share-17");
    assert!(world.share_devices().is_empty(), "it names no device yet");

    world.api.add_reservation("g1", &world.gpu(1));
    world.api.add_reservation("g2", &world.gpu(2));
    world.bound("half", &["g1"], &[world.gpu(1)], "share-17");
    world.bound("two-halves", &["g1", "g2"], &[world.gpu(1), world.gpu(2)], "share-3");
    world.kubelet.pre_start(SHARE, &["share-17"]).await.unwrap();
    world.kubelet.pre_start(SHARE, &["share-3"]).await.unwrap();

    let whole = read(&world.settings.cdi_dir.join("kai.scheduler-gpu.json"));
    let one = world.spec("share-17");
    assert_eq!(
        (one.kind.as_str(), one.devices[0].name.as_str()),
        ("kai.scheduler/share", "share-17")
    );
    assert_eq!(nodes(&one), ["/dev/nvidia1", "/dev/nvidiactl"]);
    assert_eq!(
        one.devices[0].container_edits.env,
        [format!("KAI_FAKE_VISIBLE_DEVICES={}", world.gpu(1))]
    );
    assert_eq!(
        one.container_edits, whole.container_edits,
        "the driver's files are those of a whole GPU"
    );
    let two = world.spec("share-3");
    assert_eq!(nodes(&two), ["/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia2"]);
    assert_eq!(
        two.devices[0].container_edits.env,
        [format!("KAI_FAKE_VISIBLE_DEVICES={},{}", world.gpu(1), world.gpu(2))]
    );

    // A restarted container gets the same spec; the spec of a share device whose pod is gone is removed.
    world.kubelet.pre_start(SHARE, &["share-17"]).await.unwrap();
    assert_eq!(world.spec("share-17"), one);
    world.pod_resources.remove("team", "half");
    within("the end of the share device's spec", async {
        while world.share_devices() != ["kai.scheduler-share-3.json"] {
            tokio::task::yield_now().await;
        }
    })
    .await;
    world.stop_agent().await;
}

#[tokio::test]
async fn what_does_not_fit_starts_no_container() {
    let mut world = World::start().await;
    let gpu = world.gpu(0);
    assert!(
        world
            .refusal("share-0")
            .await
            .contains("names no container that holds it")
    );

    world.pod_resources.add(SHARE, "team", "gone", &["share-0"]);
    assert!(
        world
            .refusal("share-0")
            .await
            .contains("pod team/gone is not in the cluster any more")
    );

    world
        .api
        .put_pod(json!({ "name": "by-hand", "namespace": "team", "uid": "1" }));
    world.pod_resources.add(SHARE, "team", "by-hand", &["share-1"]);
    assert!(
        world
            .refusal("share-1")
            .await
            .contains("pod team/by-hand has no GPU group")
    );

    world.bound("early", &["g1"], std::slice::from_ref(&gpu), "share-2");
    assert!(
        world
            .refusal("share-2")
            .await
            .contains("GPU group g1, which has no reservation pod on node n1")
    );
    world.api.add_reservation("g1", "");
    assert!(
        world
            .refusal("share-2")
            .await
            .contains("does not say yet which GPU it holds")
    );
    world.api.add_reservation("g1", &world.gpu(2));
    assert!(
        world
            .refusal("share-2")
            .await
            .contains(&format!("team/early was bound to GPU {gpu}"))
    );

    world.api.add_reservation("g3", "GPU-of-another-node");
    world.bound("stray", &["g3"], &["GPU-of-another-node".to_owned()], "share-3");
    assert!(
        world
            .refusal("share-3")
            .await
            .contains("GPU GPU-of-another-node of pod team/stray is not in this node's")
    );

    world.api.change(|world| world.fail = Some(403));
    assert!(world.refusal("share-2").await.contains("permissions"));
    world.api.change(|world| world.fail = None);
    // An earlier pod of the same name still holds its share device.
    world.api.add_reservation("g1", &gpu);
    world.pod_resources.add(SHARE, "team", "early", &["share-4"]);
    assert!(
        world
            .refusal("share-2")
            .await
            .contains("an earlier pod of that name has to end first")
    );
    world.pod_resources.remove("team", "early");
    world.pod_resources.add(SHARE, "team", "early", &["share-2"]);
    world.kubelet.pre_start(SHARE, &["share-2"]).await.unwrap();

    let two = world
        .kubelet
        .allocate(SHARE, &["share-5", "share-6"])
        .await
        .unwrap_err();
    assert!(two.message().contains("a container has one"), "{two}");
    assert!(world.kubelet.pre_start(SHARE, &["share-5", "share-6"]).await.is_err());
    assert!(world.kubelet.allocate(SHARE, &["share-512"]).await.is_err());
    world.stop_agent().await;
}

#[tokio::test]
async fn a_slot_never_stands_for_what_it_stood_for_before() {
    let mut world = World::start().await;
    world.api.add_reservation("g1", &world.gpu(0));
    world.api.add_reservation("g2", &world.gpu(1));
    world.bound("first", &["g1"], &[world.gpu(0)], "share-1");
    world.kubelet.pre_start(SHARE, &["share-1"]).await.unwrap();

    // After a restart of the agent, the next start of a container writes its spec again.
    world.stop_agent().await;
    assert_eq!(world.share_devices(), ["kai.scheduler-share-1.json"]);
    world.start_agent().await;
    assert!(world.share_devices().is_empty());
    world.kubelet.pre_start(SHARE, &["share-1"]).await.unwrap();
    assert_eq!(nodes(&world.spec("share-1")), ["/dev/nvidia0", "/dev/nvidiactl"]);

    // The share device goes to another pod before the first one's spec was removed.
    world.pod_resources.remove("team", "first");
    world.bound("second", &["g2"], &[world.gpu(1)], "share-1");
    world.kubelet.allocate(SHARE, &["share-1"]).await.unwrap();
    assert!(world.share_devices().is_empty());
    world.kubelet.pre_start(SHARE, &["share-1"]).await.unwrap();
    assert_eq!(nodes(&world.spec("share-1")), ["/dev/nvidia1", "/dev/nvidiactl"]);
    world.stop_agent().await;
}

#[tokio::test]
async fn without_a_spec_of_the_gpus_there_is_none_of_a_slot() {
    let mut world = World::start().await;
    world.api.add_reservation("g1", &world.gpu(0));
    world.bound("half", &["g1"], &[world.gpu(0)], "share-1");
    std::fs::remove_file(world.settings.cdi_dir.join("kai.scheduler-gpu.json")).unwrap();
    assert!(
        world
            .refusal("share-1")
            .await
            .contains("the CDI spec of this node's GPUs is not on disk")
    );
    world.stop_agent().await;
}
