//! The agent with fake GPUs against a kubelet with real gRPC over unix sockets: registration, streams, allocation, and common failures. The
//! tests wait for conditions and do not depend on time.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use kai_gpu::fake::{FakeDriver, GpuState, LibraryFault, Settings};
use kai_gpu::{Driver, DriverKind, GpuError, HealthEvent, Inventory, Sample};
use parking_lot::{Condvar, Mutex};
use support::kubelet::{Kubelet, Lists};
use support::{Agent, names, settings, sockets, until, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const GPU: &str = "nvidia.com/gpu";

fn fake(text: &str) -> Arc<FakeDriver> {
    Arc::new(FakeDriver::new(&text.parse::<Settings>().unwrap().seeded("n1")).unwrap())
}

/// The list of whole GPUs has `total` entries, `healthy` of them healthy.
fn counts(total: usize, healthy: usize) -> impl Fn(&Lists) -> bool {
    move |lists| {
        let list = lists.get(GPU).and_then(Option::as_ref);
        list.is_some_and(|list| list.len() == total && list.iter().filter(|(_, fine)| *fine).count() == healthy)
    }
}

fn ids(lists: &Lists, resource: &str) -> Vec<String> {
    let list = lists.get(resource).and_then(Option::as_ref).expect("a list");
    list.iter().map(|(id, _)| id.clone()).collect()
}

/// Allocates until it succeeds: right after the start the driver may not have answered yet.
async fn allocated(kubelet: &Kubelet, id: &str) -> kai_node::kubelet::deviceplugin::ContainerAllocateResponse {
    let attempt = async {
        loop {
            match kubelet.allocate(GPU, &[id]).await {
                Ok(answer) => return answer,
                Err(status) => assert!(status.message().contains("has not answered yet"), "{status}"),
            }
            tokio::task::yield_now().await;
        }
    };
    within("an allocation", attempt).await
}

#[tokio::test]
async fn registers_lists_and_allocates_what_the_cdi_spec_names() {
    let place = tempfile::tempdir().unwrap();
    let driver = fake("a100-40:2");
    let settings = settings(place.path(), &["--no-cluster"]);
    let mut kubelet = Kubelet::start(&settings.plugin_dir);
    let agent = Agent::start(settings.clone(), driver.clone());

    let lists = until("two GPUs", &mut kubelet.lists, counts(2, 2)).await;
    let expected: Vec<String> = driver
        .devices()
        .unwrap()
        .devices
        .into_iter()
        .map(|device| device.uuid)
        .collect();
    assert_eq!(ids(&lists, GPU), expected);
    let registration = kubelet.registrations.borrow()[0].clone();
    assert_eq!(
        (registration.version.as_str(), registration.resource_name.as_str()),
        ("v1beta1", GPU)
    );
    assert!(registration.options.unwrap().get_preferred_allocation_available);

    let answer = allocated(&kubelet, &expected[0]).await;
    assert_eq!(answer.cdi_devices[0].name, format!("kai.scheduler/gpu={}", expected[0]));
    let spec: kai_node::driver_files::cdi::Spec =
        serde_json::from_slice(&std::fs::read(settings.cdi_dir.join("kai.scheduler-gpu.json")).unwrap()).unwrap();
    assert_eq!(spec.problems(), Vec::<String>::new());
    assert!(spec.devices.iter().any(|device| device.name == expected[0]));

    assert_eq!(kubelet.preferred(GPU, &expected, 1).await.len(), 1);
    let unknown = kubelet.allocate(GPU, &["GPU-unknown"]).await.unwrap_err();
    assert!(unknown.message().contains("not on this node"), "{unknown}");

    agent.stop().await;
    assert!(
        sockets(&settings.plugin_dir).is_empty(),
        "sockets are removed at the end"
    );
    assert!(
        settings.cdi_dir.join("kai.scheduler-gpu.json").exists(),
        "running containers may restart without us"
    );
}

#[tokio::test]
async fn several_resources_have_several_plugins() {
    let place = tempfile::tempdir().unwrap();
    let settings = settings(
        place.path(),
        &["--no-cluster", "--mig-strategy", "mixed", "--replicas", "2"],
    );
    let mut kubelet = Kubelet::start(&settings.plugin_dir);
    let agent = Agent::start(settings.clone(), fake("a100-40:1/1g.5gb*2/3g.20gb,a100-40"));
    let all = |lists: &Lists| lists.len() == 3 && lists.values().all(Option::is_some);
    let lists = until("three resources", &mut kubelet.lists, all).await;
    assert_eq!(ids(&lists, GPU).len(), 2, "one whole GPU, twice");
    assert_eq!(ids(&lists, "nvidia.com/mig-1g.5gb").len(), 2);
    assert_eq!(ids(&lists, "nvidia.com/mig-3g.20gb").len(), 1);
    assert_eq!(sockets(&settings.plugin_dir).len(), 3);
    agent.stop().await;
}

#[tokio::test]
async fn ten_kubelet_restarts_leave_one_socket_and_the_same_devices() {
    let place = tempfile::tempdir().unwrap();
    let settings = settings(place.path(), &["--no-cluster"]);
    let agent = Agent::start(settings.clone(), fake("t4:4"));
    let mut first = None;
    for round in 0..10 {
        let mut kubelet = Kubelet::start(&settings.plugin_dir);
        let lists = until(&format!("restart {round}"), &mut kubelet.lists, counts(4, 4)).await;
        let ids = ids(&lists, GPU);
        assert_eq!(*first.get_or_insert(ids.clone()), ids);
        allocated(&kubelet, &ids[0]).await;
        assert_eq!(sockets(&settings.plugin_dir).len(), 1);
        kubelet.stop().await;
    }
    assert!(agent.runs());
    agent.stop().await;
}

#[tokio::test]
async fn a_dropped_stream_leads_to_a_new_registration_on_a_fresh_socket() {
    let place = tempfile::tempdir().unwrap();
    let settings = settings(place.path(), &["--no-cluster"]);
    let mut kubelet = Kubelet::start(&settings.plugin_dir);
    let agent = Agent::start(settings.clone(), fake("t4"));
    until("the GPU", &mut kubelet.lists, counts(1, 1)).await;
    let before = kubelet.endpoint(GPU);
    kubelet.drop_streams().await;
    until("a second registration", &mut kubelet.registrations, |all| all.len() > 1).await;
    until("the GPU again", &mut kubelet.lists, counts(1, 1)).await;
    // A kubelet that still holds the old connection would refuse the old socket's name.
    assert_ne!(kubelet.endpoint(GPU), before);
    assert_eq!(sockets(&settings.plugin_dir).len(), 1);
    agent.stop().await;
}

#[tokio::test]
async fn leftovers_of_a_killed_agent_and_a_removed_socket_are_repaired() {
    let place = tempfile::tempdir().unwrap();
    let settings = settings(place.path(), &["--no-cluster"]);
    let mut kubelet = Kubelet::start(&settings.plugin_dir);
    let leftover = settings.plugin_dir.join("kai-nvidia.com-gpu-0-0.sock");
    drop(std::os::unix::net::UnixListener::bind(&leftover).unwrap());
    let foreign = settings.plugin_dir.join("other-vendor.sock");
    drop(std::os::unix::net::UnixListener::bind(&foreign).unwrap());
    let agent = Agent::start(settings.clone(), fake("t4"));
    until("the GPU", &mut kubelet.lists, counts(1, 1)).await;
    assert!(!leftover.exists() && foreign.exists());
    std::fs::remove_file(settings.plugin_dir.join(kubelet.endpoint(GPU))).unwrap();
    until("a second registration", &mut kubelet.registrations, |all| all.len() > 1).await;
    until("the GPU again", &mut kubelet.lists, counts(1, 1)).await;
    agent.stop().await;
}

/// Kubelets before 1.26 sent the socket's path as the authority, which HTTP/2 forbids: that connection fails, no other.
#[tokio::test]
async fn a_bad_authority_fails_alone() {
    let place = tempfile::tempdir().unwrap();
    let settings = settings(place.path(), &["--no-cluster"]);
    let mut kubelet = Kubelet::start(&settings.plugin_dir);
    let agent = Agent::start(settings.clone(), fake("t4"));
    let lists = until("the GPU", &mut kubelet.lists, counts(1, 1)).await;

    let socket = settings.plugin_dir.join(kubelet.endpoint(GPU));
    let mut raw = tokio::net::UnixStream::connect(&socket).await.unwrap();
    let mut headers = vec![0x83, 0x86];
    for (name_index, value) in [
        (4u8, "/v1beta1.DevicePlugin/ListAndWatch"),
        (1, "/var/lib/kubelet/x y.sock"),
    ] {
        headers.extend([name_index, value.len() as u8]);
        headers.extend(value.bytes());
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    bytes.extend([0, 0, headers.len() as u8, 1, 5, 0, 0, 0, 1]);
    bytes.extend(headers);
    raw.write_all(&bytes).await.unwrap();
    let mut answer = Vec::new();
    let reset = async {
        let mut buffer = [0; 1024];
        loop {
            let read = raw.read(&mut buffer).await.unwrap_or(0);
            answer.extend_from_slice(&buffer[..read]);
            // RST_STREAM (3) or GOAWAY (7) among the frames, or the end of the connection.
            if read == 0 || frames(&answer).iter().any(|kind| [3, 7].contains(kind)) {
                return;
            }
        }
    };
    within("a refusal", reset).await;

    allocated(&kubelet, &ids(&lists, GPU)[0]).await;
    assert!(counts(1, 1)(&kubelet.lists.borrow()), "the real stream is untouched");
    agent.stop().await;
}

fn frames(bytes: &[u8]) -> Vec<u8> {
    let (mut kinds, mut at) = (Vec::new(), 0);
    while let Some(header) = bytes.get(at..at + 9) {
        kinds.push(header[3]);
        at += 9 + usize::from(header[0]) * 65_536 + usize::from(header[1]) * 256 + usize::from(header[2]);
    }
    kinds
}

#[tokio::test]
async fn a_failed_gpu_takes_all_its_replicas_and_brings_them_back() {
    let place = tempfile::tempdir().unwrap();
    let settings = settings(place.path(), &["--no-cluster", "--replicas", "3"]);
    let driver = fake("t4:2");
    let mut kubelet = Kubelet::start(&settings.plugin_dir);
    let agent = Agent::start(settings.clone(), driver.clone());
    let before = until("six replicas", &mut kubelet.lists, counts(6, 6)).await;
    driver.set_state("1", GpuState::Lost);
    let lists = until("three of them", &mut kubelet.lists, counts(6, 3)).await;
    assert_eq!(ids(&lists, GPU), ids(&before, GPU), "ids never change with health");
    let failed = ids(&lists, GPU)[3].clone();
    let refused = kubelet.allocate(GPU, &[&failed]).await.unwrap_err();
    assert!(refused.message().contains("unhealthy"), "{refused}");
    driver.set_state("1", GpuState::Healthy);
    until("all again", &mut kubelet.lists, counts(6, 6)).await;
    assert_eq!(
        kubelet.registrations.borrow().len(),
        1,
        "health never costs the registration"
    );

    // A hard error without a reset stays; an application's error never counts.
    driver.raise_xid("0", 31);
    driver.raise_xid("0", 48);
    until("three of them", &mut kubelet.lists, counts(6, 3)).await;
    agent.stop().await;
}

#[tokio::test]
async fn nvml_may_disappear_and_return() {
    let place = tempfile::tempdir().unwrap();
    let settings = settings(place.path(), &["--no-cluster"]);
    let driver = fake("t4:2");
    let mut kubelet = Kubelet::start(&settings.plugin_dir);
    let agent = Agent::start(settings.clone(), driver.clone());
    let before = until("two GPUs", &mut kubelet.lists, counts(2, 2)).await;
    for _ in 0..3 {
        driver.change(|control| control.library = Some(LibraryFault::DriverNotLoaded));
        let lists = until("none of them", &mut kubelet.lists, counts(2, 0)).await;
        assert_eq!(
            ids(&lists, GPU),
            ids(&before, GPU),
            "the kubelet's allocations stay as they are"
        );
        driver.change(|control| control.library = None);
        until("both again", &mut kubelet.lists, counts(2, 2)).await;
    }
    // One GPU is removed: it stays in the kubelet's list as unhealthy.
    driver.set_state("0", GpuState::Removed);
    until("one of two", &mut kubelet.lists, counts(2, 1)).await;
    driver.set_state("0", GpuState::Healthy);
    until("both again", &mut kubelet.lists, counts(2, 2)).await;
    assert_eq!(kubelet.registrations.borrow().len(), 1);
    agent.stop().await;
}

/// A driver that takes long to start.
#[derive(Debug)]
struct Slow {
    inner: Arc<FakeDriver>,
    gate: Arc<(Mutex<bool>, Condvar)>,
}

impl Slow {
    fn pass(&self) {
        let mut open = self.gate.0.lock();
        self.gate.1.wait_while(&mut open, |open| !*open);
    }
}

impl Driver for Slow {
    fn kind(&self) -> DriverKind {
        DriverKind::Fake
    }
    fn devices(&self) -> Result<Inventory, GpuError> {
        self.pass();
        self.inner.devices()
    }
    fn samples(&self) -> Result<Vec<Sample>, GpuError> {
        self.inner.samples()
    }
    fn probe(&self, uuid: &str) -> Result<(), GpuError> {
        self.inner.probe(uuid)
    }
    fn wait_events(&self, timeout: Duration) -> Result<Vec<HealthEvent>, GpuError> {
        self.inner.wait_events(timeout)
    }
}

#[tokio::test]
async fn the_last_inventory_is_served_before_the_driver_answers() {
    let place = tempfile::tempdir().unwrap();
    let settings = settings(place.path(), &["--no-cluster"]);
    let driver = fake("t4:2");
    {
        let mut kubelet = Kubelet::start(&settings.plugin_dir);
        let agent = Agent::start(settings.clone(), driver.clone());
        let lists = until("two GPUs", &mut kubelet.lists, counts(2, 2)).await;
        allocated(&kubelet, &ids(&lists, GPU)[0]).await;
        agent.stop().await;
        kubelet.stop().await;
    }
    assert!(names(&settings.state_dir).contains(&"inventory.json".to_owned()));
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let slow = Slow {
        inner: driver,
        gate: gate.clone(),
    };
    let mut kubelet = Kubelet::start(&settings.plugin_dir);
    let agent = Agent::start(settings.clone(), Arc::new(slow));
    until("two GPUs from the last run", &mut kubelet.lists, counts(2, 2)).await;
    *gate.0.lock() = true;
    gate.1.notify_all();
    let id = ids(&kubelet.lists.borrow(), GPU)[0].clone();
    allocated(&kubelet, &id).await;
    assert_eq!(kubelet.registrations.borrow().len(), 1);
    agent.stop().await;
}
