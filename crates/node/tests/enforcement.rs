//! Containers that are held to their GPU memory by the driver: from the tier's decision and the hook in the CDI spec to the audit of the
//! hook's receipts, against a kubelet and an API server. The test takes the part of the container runtime and runs the hook's work itself,
//! with the agent's own fake driver.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kai_gpu::Driver;
use kai_gpu::fake::{FakeDriver, LibraryFault, MemoryLimitCalls, Settings};
use kai_node::driver_files::cdi::{Hook, Spec};
use kai_node::enforcement::cgroup::{CgroupPlace, CgroupVersion, MountCheck};
use kai_node::enforcement::hook::{HookArgs, run_with};
use kai_node::enforcement::limits::GpuLimit;
use kai_node::enforcement::receipt::Receipt;
use kai_node::enforcement::receipt_dir;
use serde_json::{Value, json};
use support::api::{Api, World as Cluster};
use support::kubelet::{Kubelet, PodResourcesServer};
use support::{Agent, settings, until, within};

const SHARE: &str = "kai.scheduler/gpu-share";
const TIER: &str = "kai.scheduler/gpu-enforcement";

struct World {
    api: Api,
    pod_resources: PodResourcesServer,
    kubelet: Kubelet,
    settings: kai_node::agent::Settings,
    driver: Arc<FakeDriver>,
    agent: Option<Agent>,
    place: tempfile::TempDir,
}

/// A mount of cgroup v2 on this machine.
fn cgroup2() -> Option<PathBuf> {
    let places = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    places
        .map(PathBuf::from)
        .into_iter()
        .find(|path| CgroupVersion::at(path) == CgroupVersion::V2)
}

impl World {
    /// A node with two GPUs whose driver has memory limits. `None` if this machine has no cgroup v2.
    async fn start(words: &[&str]) -> Option<Self> {
        let Some(mount) = cgroup2() else {
            // The test harness keeps what the macros print.
            std::io::stderr()
                .write_all(b"skipped: this machine has no cgroup v2\n")
                .unwrap();
            return None;
        };
        let place = tempfile::tempdir().unwrap();
        let api = Api::start().await;
        let library = place.path().join("libnvidia-ml.so.615").display().to_string();
        let fixed = ["--api-url", &api.url, "--fake-library", &library];
        let settings = settings(place.path(), &[&fixed, words].concat());
        let cgroups = place.path().join("host/sys/fs");
        fs::create_dir_all(&cgroups).unwrap();
        std::os::unix::fs::symlink(mount, cgroups.join("cgroup")).unwrap();
        let kubelet = Kubelet::start(&settings.plugin_dir);
        let pod_resources = PodResourcesServer::serve(&settings.pod_resources_socket);
        let driver = FakeDriver::new(&"a100-40:2".parse::<Settings>().unwrap().seeded("n1")).unwrap();
        driver.change(|control| control.memory_limit_calls = Some(MemoryLimitCalls::Both));
        let mut world = World {
            api,
            pod_resources,
            kubelet,
            settings,
            driver: Arc::new(driver),
            agent: None,
            place,
        };
        world.start_agent();
        world.until_tier("driver").await;
        Some(world)
    }

    fn start_agent(&mut self) {
        self.agent = Some(Agent::start(self.settings.clone(), self.driver.clone()));
    }

    async fn stop_agent(&mut self) {
        self.agent.take().unwrap().stop().await;
        until("the end of its stream", &mut self.kubelet.lists, |lists| {
            lists.get(SHARE).is_none_or(Option::is_none)
        })
        .await;
    }

    async fn until_tier(&mut self, tier: &str) {
        let labelled = |world: &Cluster| world.labels.get(TIER).map(String::as_str) == Some(tier);
        until("the tier's label", &mut self.api.world(), labelled).await;
        until("share devices", &mut self.kubelet.lists, |lists| {
            matches!(lists.get(SHARE), Some(Some(_)))
        })
        .await;
    }

    /// Waits for an event, and returns its message.
    async fn event(&self, reason: &str) -> String {
        let of_reason = |event: &&Value| event["reason"] == reason;
        let world = until(reason, &mut self.api.world(), |world| {
            world.events.iter().any(|event| of_reason(&event))
        })
        .await;
        let event = world.events.iter().find(of_reason).unwrap();
        assert_eq!(event["involvedObject"]["name"], "half");
        event["message"].as_str().unwrap().to_owned()
    }

    fn gpu(&self, at: usize) -> String {
        self.driver.devices().unwrap().devices[at].uuid.clone()
    }

    /// The pod `half` with half of the first GPU, to which the kubelet has allocated `share-1`.
    fn bind(&self, annotations: Value) {
        self.bind_as("uid-1", annotations);
    }

    fn bind_as(&self, uid: &str, annotations: Value) {
        self.api.add_reservation("g1", &self.gpu(0));
        let mut all = json!({ "gpu-fraction": "0.5", "kai.scheduler/received-gpus": self.gpu(0) });
        for (key, value) in annotations.as_object().unwrap() {
            all[key] = value.clone();
        }
        let labels = json!({ "runai-gpu-group": "g1" });
        self.api.put_pod(json!({
            "name": "half", "namespace": "team", "uid": uid, "labels": labels, "annotations": all,
        }));
        self.pod_resources.remove("team", "half");
        self.pod_resources.add(SHARE, "team", "half", &["share-1"]);
    }

    fn bound() -> Value {
        json!({
            "kai.scheduler/gpu-limits": r#"{"container":"main","memoryMiB":20000}"#,
            "kai.scheduler/gpu-enforcement-tier": "driver",
        })
    }

    fn spec(&self, file: &str) -> Spec {
        let bytes = fs::read(self.settings.cdi_dir.join(file)).unwrap();
        let spec: Spec = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(spec.problems(), Vec::<String>::new());
        spec
    }

    /// The hook of the share device's container, after the kubelet announced its start.
    async fn hook(&self) -> Hook {
        self.kubelet.pre_start(SHARE, &["share-1"]).await.unwrap();
        let spec = self.spec("kai.scheduler-share-1.json");
        let [hook] = &spec.devices[0].container_edits.hooks[..] else {
            panic!("one hook: {spec:?}")
        };
        hook.clone()
    }

    /// What the runtime does with a hook for container `id`, with a process in a cgroup of its own.
    fn run(&self, hook: &Hook, id: &str) {
        let host = self.place.path().join("host");
        let place = CgroupPlace {
            proc: self.place.path().join("proc"),
            root: host.join("cgroups"),
            check: MountCheck::Simulated,
        };
        fs::create_dir_all(place.proc.join("7")).unwrap();
        fs::write(place.proc.join("7/cgroup"), format!("0::/pods/{id}\n")).unwrap();
        fs::create_dir_all(place.root.join("pods").join(id)).unwrap();
        let mut args = HookArgs::of_words(&hook.args).unwrap();
        let receipt_path = args.receipt.replace(self.place.path().join("receipt.json")).unwrap();
        let state = json!({ "ociVersion": "1.0.2", "id": id, "pid": 7 }).to_string();
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        run_with(&args, state.as_bytes(), &*self.driver, &place, now.as_secs());
        let written = fs::read(self.place.path().join("receipt.json")).unwrap();
        let mut receipt: Receipt = serde_json::from_slice(&written).unwrap();
        // The runtime sees the host's paths.
        if let Ok(inside) = Path::new(&receipt.cgroup).strip_prefix(&host) {
            receipt.cgroup = format!("/{}", inside.display());
        }
        receipt_dir::write(&receipt_path, &receipt).unwrap();
    }
}

fn option(hook: &Hook, name: &str) -> String {
    let at = hook.args.iter().position(|word| word == name).unwrap();
    hook.args[at + 1].clone()
}

#[tokio::test]
async fn a_share_is_held_audited_and_told() {
    let Some(mut world) = World::start(&["--enforce-repair", "evict"]).await else {
        return;
    };
    let limited = until("the condition", &mut world.api.world(), |world| {
        world.limits_condition.is_some()
    })
    .await;
    let condition = limited.limits_condition.unwrap();
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("True"), &json!("LimitedByDriver"))
    );
    until("KAI's condition", &mut world.api.world(), |world| {
        world.fractioning.is_some()
    })
    .await;

    world.bind(World::bound());
    let hook = world.hook().await;
    assert_eq!((hook.hook_name.as_str(), hook.timeout), ("createRuntime", Some(10)));
    assert!(Path::new(&hook.path).is_file() && hook.path.starts_with(&world.settings.state_dir.display().to_string()));
    assert_eq!(option(&hook, "--gpu"), format!("{}={}", world.gpu(0), 20000u64 << 20));
    assert_eq!(option(&hook, "--uid"), "uid-1");
    assert!(option(&hook, "--nvml-library").ends_with("libnvidia-ml.so.615"));

    // A container with a whole GPU has a hook that lifts limits, and the share does not inherit it.
    let hooks = async {
        while lifting_hooks(&world) != 2 {
            tokio::task::yield_now().await;
        }
    };
    within("hooks that lift limits", hooks).await;
    let whole = world.spec("kai.scheduler-gpu.json");
    let device = whole.devices.iter().find(|device| device.name == world.gpu(1)).unwrap();
    let lifting: Vec<String> = device
        .container_edits
        .hooks
        .iter()
        .map(|hook| option(hook, "--gpu"))
        .collect();
    assert_eq!(lifting, [GpuLimit::none(&world.gpu(1)).to_string()]);

    // What an earlier container left says nothing about this one.
    let receipt = PathBuf::from(option(&hook, "--receipt"));
    fs::write(&receipt, "the receipt of an earlier container").unwrap();
    let again = world.hook().await;
    assert!(!receipt.exists());
    world.run(&again, "first");
    assert!(world.event("GPULimitSet").await.contains("20000 MiB"));

    world.driver.change(|control| {
        let gpu = control.gpus.entry("*".to_owned()).or_default();
        gpu.memory_limits.get_or_insert_default().teardowns = 1;
    });
    assert!(world.event("GPULimitMissing").await.contains("the driver has no limit"));
    let missing = |world: &Cluster| {
        world
            .limits_condition
            .as_ref()
            .is_some_and(|condition| condition["status"] == "False")
    };
    let told = until("the condition", &mut world.api.world(), missing).await;
    assert!(
        told.limits_condition.unwrap()["message"]
            .as_str()
            .unwrap()
            .contains("team/half, container main")
    );
    until("the eviction", &mut world.api.world(), |world| {
        world.evicted.contains(&"half".to_owned())
    })
    .await;
    world.stop_agent().await;
}

#[tokio::test]
async fn nothing_that_a_pods_author_writes_changes_its_limit() {
    let Some(mut world) = World::start(&[]).await else {
        return;
    };
    let expect = format!("{}={}", world.gpu(0), 20000u64 << 20);
    let mut annotations = World::bound();
    for key in [
        "gpu-fraction",
        "gpu-memory",
        "nvidia.com/container.main.gpu-memory.limit",
        "nvidia.com/container.other.gpu-memory.limit",
        "kai.scheduler/container.main.gpu-memory.portion.limit",
    ] {
        annotations[key] = "39000".into();
    }
    world.bind(annotations);
    assert_eq!(option(&world.hook().await, "--gpu"), expect);

    // Links in place of the spec and of the receipt lead nowhere, and a spec of an earlier pod is replaced.
    let spec = world.settings.cdi_dir.join("kai.scheduler-share-1.json");
    let elsewhere = world.place.path().join("elsewhere");
    for content in [
        "precious",
        &fs::read_to_string(&spec).unwrap().replace("20971520000", "41943040000"),
    ] {
        fs::write(&elsewhere, content).unwrap();
        fs::remove_file(&spec).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &spec).unwrap();
        let receipt = world.settings.state_dir.join("limits/share-1.json");
        let _ = fs::remove_file(&receipt);
        std::os::unix::fs::symlink(&elsewhere, &receipt).unwrap();
        let hook = world.hook().await;
        assert_eq!(option(&hook, "--gpu"), expect);
        world.run(&hook, "one");
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), content);
        assert!(fs::symlink_metadata(&spec).unwrap().is_file() && fs::symlink_metadata(&receipt).unwrap().is_file());
    }

    // The limit of another container, or none at all, starts no container.
    for (limits, words) in [
        (r#"{"container":"other","memoryMiB":39000}"#, "limits container other"),
        (r#"{"container":"main","memoryMiB":"all"}"#, "no valid limit"),
    ] {
        let mut annotations = World::bound();
        annotations["kai.scheduler/gpu-limits"] = limits.into();
        world.bind(annotations);
        let refused = world.kubelet.pre_start(SHARE, &["share-1"]).await.unwrap_err();
        assert!(refused.message().contains(words), "{refused}");
    }
    world.bind(json!({ "kai.scheduler/gpu-enforcement-tier": "driver" }));
    let refused = world.kubelet.pre_start(SHARE, &["share-1"]).await.unwrap_err();
    assert!(
        refused.message().contains("but not kai.scheduler/gpu-limits"),
        "{refused}"
    );
    world.stop_agent().await;
}

#[tokio::test]
async fn refusals_of_three_pods_lower_the_tier_and_pods_that_require_it_wait() {
    let Some(mut world) = World::start(&[]).await else {
        return;
    };
    world.api.change(|world| world.fractioning_is_foreign = true);
    world.driver.change(|control| {
        let gpu = control.gpus.entry("*".to_owned()).or_default();
        gpu.memory_limits.get_or_insert_default().set_code = Some(4);
    });
    for attempt in ["a", "b", "c"] {
        world.bind_as(attempt, World::bound());
        let hook = world.hook().await;
        world.run(&hook, attempt);
        let told = |world: &Cluster| {
            let mut failures = world.events.iter().filter(|event| event["reason"] == "GPULimitFailed");
            failures.any(|event| {
                event["message"]
                    .as_str()
                    .is_some_and(|text| text.contains(&format!("/pods/{attempt} ")))
            })
        };
        until("the failure's event", &mut world.api.world(), told).await;
    }
    let lower = |world: &Cluster| world.labels.get(TIER).is_some_and(|tier| tier != "driver");
    let cluster = until("a lower tier", &mut world.api.world(), lower).await;
    assert!(["watch", "none"].contains(&cluster.labels[TIER].as_str()));
    let gave_up = |world: &Cluster| {
        let message = world
            .limits_condition
            .as_ref()
            .and_then(|condition| condition["message"].as_str());
        message.is_some_and(|text| text.contains("refused the limits of 3 pods in a row"))
    };
    until("the reason", &mut world.api.world(), gave_up).await;

    // A pod that was promised a limit does not start without it; a pod that was bound afterwards starts, unless it requires a limit.
    let refused = world.kubelet.pre_start(SHARE, &["share-1"]).await.unwrap_err();
    assert!(refused.message().contains("had tier driver"), "{refused}");
    let mut bound_afterwards = World::bound();
    bound_afterwards["kai.scheduler/gpu-enforcement-tier"] = "none".into();
    world.bind(bound_afterwards);
    world.kubelet.pre_start(SHARE, &["share-1"]).await.unwrap();
    assert!(
        world.spec("kai.scheduler-share-1.json").devices[0]
            .container_edits
            .hooks
            .is_empty()
    );
    let mut required = World::bound();
    required[TIER] = "required".into();
    world.bind(required);
    let refused = world.kubelet.pre_start(SHARE, &["share-1"]).await.unwrap_err();
    assert!(
        refused.message().contains("requires that its GPU memory is limited"),
        "{refused}"
    );
    world.stop_agent().await;
}

#[tokio::test]
async fn a_restarted_agent_holds_containers_before_its_driver_answers() {
    let Some(mut world) = World::start(&[]).await else {
        return;
    };
    world.bind(World::bound());
    let before = world.hook().await;
    world.stop_agent().await;
    world
        .driver
        .change(|control| control.library = Some(LibraryFault::DriverNotLoaded));
    world.start_agent();
    until("share devices", &mut world.kubelet.lists, |lists| {
        matches!(lists.get(SHARE), Some(Some(_)))
    })
    .await;
    // The API server may not have been reached yet.
    let after = loop {
        match world.kubelet.pre_start(SHARE, &["share-1"]).await {
            Ok(()) => break world.hook().await,
            Err(refused) => assert!(
                refused.message().contains("has not reached the API server"),
                "{refused}"
            ),
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(after, before);
    world.stop_agent().await;
}

/// How many hooks the GPUs of the whole spec have.
fn lifting_hooks(world: &World) -> usize {
    let whole = world.spec("kai.scheduler-gpu.json");
    let gpus = [world.gpu(0), world.gpu(1)];
    let devices = whole.devices.iter().filter(|device| gpus.contains(&device.name));
    devices.map(|device| device.container_edits.hooks.len()).sum()
}

#[tokio::test]
async fn the_tier_follows_what_the_driver_supports() {
    let Some(mut world) = World::start(&[]).await else {
        return;
    };
    for _ in 0..2 {
        let hooks = async {
            while lifting_hooks(&world) != 2 {
                tokio::task::yield_now().await;
            }
        };
        within("hooks that lift limits", hooks).await;
        world.bind(World::bound());
        assert!(option(&world.hook().await, "--gpu").starts_with(&world.gpu(0)));

        world
            .driver
            .change(|control| control.memory_limit_calls = Some(MemoryLimitCalls::None));
        let lower = |world: &Cluster| {
            let condition = world.limits_condition.as_ref();
            let told = condition.is_some_and(|condition| {
                condition["status"] == "False"
                    && condition["message"]
                        .as_str()
                        .is_some_and(|text| text.contains("nvmlDeviceSetMemoryLimits_v1"))
            });
            told && world.labels.get(TIER).is_some_and(|tier| tier != "driver")
        };
        until("a lower tier and its reason", &mut world.api.world(), lower).await;
        until("the end of KAI's condition", &mut world.api.world(), |world| {
            world.fractioning.is_none()
        })
        .await;
        let no_hooks = async {
            while lifting_hooks(&world) != 0 {
                tokio::task::yield_now().await;
            }
        };
        within("the end of the hooks", no_hooks).await;
        // The pod was promised a limit.
        let refused = world.kubelet.pre_start(SHARE, &["share-1"]).await.unwrap_err();
        assert!(refused.message().contains("had tier driver"), "{refused}");

        world
            .driver
            .change(|control| control.memory_limit_calls = Some(MemoryLimitCalls::Both));
        world.until_tier("driver").await;
    }
    world.stop_agent().await;
}

#[tokio::test]
async fn a_driver_that_is_away_for_a_while_lowers_no_tier() {
    let Some(mut world) = World::start(&[]).await else {
        return;
    };
    world.bind(World::bound());
    let before = world.hook().await;
    let answers = |reason: &'static str| {
        move |world: &Cluster| {
            let condition = world.condition.as_ref();
            condition.is_some_and(|condition| condition["reason"] == reason)
        }
    };
    for fault in [LibraryFault::DriverNotLoaded, LibraryFault::NoPermission] {
        world.driver.change(|control| {
            control.library = Some(fault);
            // An absent driver has no calls either, and that decides nothing.
            control.memory_limit_calls = Some(MemoryLimitCalls::None);
        });
        until(
            "the driver's absence",
            &mut world.api.world(),
            answers("DriverDoesNotAnswer"),
        )
        .await;
        for _ in 0..10 {
            // The agent decides again at least once meanwhile.
            tokio::time::sleep(world.settings.pace.refresh).await;
            let tier = world.api.world().borrow().labels.get(TIER).cloned();
            assert_eq!(tier.as_deref(), Some("driver"));
            assert_eq!(world.hook().await, before, "containers are held as before");
        }
        world.driver.change(|control| {
            control.library = None;
            control.memory_limit_calls = Some(MemoryLimitCalls::Both);
        });
        until("the driver's return", &mut world.api.world(), answers("AllGPUsAnswer")).await;
        assert_eq!(world.hook().await, before);
    }
    world.stop_agent().await;
}

#[tokio::test]
async fn a_container_whose_hook_did_not_run_is_told_and_evicted() {
    let Some(mut world) = World::start(&["--enforce-repair", "evict"]).await else {
        return;
    };
    world.bind(World::bound());
    let hook = world.hook().await;
    let running = |id: &str| {
        json!({ "containerStatuses": [{
            "name": "main", "containerID": format!("containerd://{id}"), "state": { "running": {} },
        }] })
    };
    let run_as = |world: &World, id: &str| {
        world.api.change(|world| {
            world.pods.get_mut("half").unwrap()["status"] = running(id);
        });
    };
    // One whose hook did run is held, and nothing is said against it.
    world.run(&hook, "held");
    run_as(&world, "held");
    assert!(world.event("GPULimitSet").await.contains("20000 MiB"));
    let next = world.hook().await;
    assert_eq!(next, hook, "the container starts again, and its runtime skips the hook");
    run_as(&world, "skipped");
    let told = world.event("GPULimitMissing").await;
    assert!(told.contains("did not run the hook"), "{told}");
    let named = |world: &Cluster| {
        let condition = world.limits_condition.as_ref();
        condition.is_some_and(|condition| {
            condition["reason"] == "LimitMissing"
                && condition["message"]
                    .as_str()
                    .is_some_and(|text| text.contains("team/half, container main"))
        })
    };
    until("the condition", &mut world.api.world(), named).await;
    until("the eviction", &mut world.api.world(), |world| {
        world.evicted.contains(&"half".to_owned())
    })
    .await;
    world.stop_agent().await;
}
