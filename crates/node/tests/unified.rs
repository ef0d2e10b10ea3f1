//! Containers with a share of a GPU that uses the system's memory: the hook that limits their memory cgroup, from the agent's decision to the
//! file. The test takes the part of the container runtime.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use kai_gpu::Driver;
use kai_gpu::fake::{FakeDriver, Settings};
use kai_node::driver_files::cdi::{Hook, Spec};
use kai_node::enforcement::cgroup::{CgroupPlace, MountCheck};
use kai_node::enforcement::hook::{HookArgs, HookResult, SUBCOMMAND, run_with};
use kai_node::enforcement::receipt::{LimitedMemory, Receipt};
use serde_json::{Value, json};
use support::api::{Api, World as Cluster};
use support::kubelet::{Kubelet, PodResourcesServer};
use support::{Agent, settings, until, within};

const SHARE: &str = "kai.scheduler/gpu-share";
const TIER: &str = "kai.scheduler/gpu-enforcement";
const MIB: u64 = 1 << 20;

struct World {
    api: Api,
    pod_resources: PodResourcesServer,
    kubelet: Kubelet,
    settings: kai_node::agent::Settings,
    driver: Arc<FakeDriver>,
    agent: Agent,
    place: tempfile::TempDir,
}

impl World {
    /// A Jetson.
    async fn start(words: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let api = Api::start().await;
        let library = place.path().join("libnvidia-ml.so.1").display().to_string();
        let fixed = ["--api-url", &api.url, "--fake-library", &library];
        let settings = settings(place.path(), &[&fixed, words].concat());
        let mut kubelet = Kubelet::start(&settings.plugin_dir);
        let pod_resources = PodResourcesServer::serve(&settings.pod_resources_socket);
        let driver = Arc::new(FakeDriver::new(&"orin-agx".parse::<Settings>().unwrap().seeded("n1")).unwrap());
        let agent = Agent::start(settings.clone(), driver.clone());
        until("share devices", &mut kubelet.lists, |lists| {
            matches!(lists.get(SHARE), Some(Some(_)))
        })
        .await;
        let decided = |world: &Cluster| world.labels.contains_key(TIER);
        until("a tier", &mut api.world(), decided).await;
        World {
            api,
            pod_resources,
            kubelet,
            settings,
            driver,
            agent,
            place,
        }
    }

    /// The hooks of a container with these resources and 8 GiB of the GPU, after the kubelet announced its start.
    async fn hooks(&self, resources: Value) -> Vec<Hook> {
        let gpu = self.driver.devices().unwrap().devices[0].uuid.clone();
        self.api.add_reservation("g1", &gpu);
        self.api.put_pod(json!({
            "name": "eighth", "namespace": "team", "uid": "uid-1", "labels": { "runai-gpu-group": "g1" },
            "annotations": {
                "gpu-fraction": "0.125", "kai.scheduler/received-gpus": gpu, "kai.scheduler/gpu-enforcement-tier": "none",
                "kai.scheduler/gpu-limits": r#"{"container":"main","memoryMiB":8192}"#,
            },
        }));
        self.api.change(|world| {
            let pod = world.pods.get_mut("eighth").unwrap();
            pod["spec"]["containers"] = json!([{ "name": "main", "resources": resources }]);
        });
        self.pod_resources.remove("team", "eighth");
        self.pod_resources.add(SHARE, "team", "eighth", &["share-1"]);
        self.kubelet.pre_start(SHARE, &["share-1"]).await.unwrap();
        let bytes = fs::read(self.settings.cdi_dir.join("kai.scheduler-share-1.json")).unwrap();
        let mut spec: Spec = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(spec.problems(), Vec::<String>::new());
        spec.devices.remove(0).container_edits.hooks
    }

    /// What the runtime does with the hook, for a process whose cgroup file has these lines. `file` is that of the limit, below the mount.
    fn run(&self, hook: &Hook, lines: &str, file: &str, present: &str) -> (HookResult, Receipt, String) {
        let place = CgroupPlace {
            proc: self.place.path().join("proc"),
            root: self.place.path().join("cgroup"),
            check: MountCheck::Simulated,
        };
        let file = place.root.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, present).unwrap();
        fs::create_dir_all(place.proc.join("7")).unwrap();
        fs::write(place.proc.join("7/cgroup"), lines).unwrap();
        let mut args = HookArgs::of_words(&hook.args).unwrap();
        let receipt = self.place.path().join("receipt.json");
        args.receipt = Some(receipt.clone());
        let state = json!({ "ociVersion": "1.0.2", "id": "one", "pid": 7 }).to_string();
        let result = run_with(&args, state.as_bytes(), &*self.driver, &place, 1);
        let receipt = serde_json::from_slice(&fs::read(receipt).unwrap()).unwrap();
        (result, receipt, fs::read_to_string(file).unwrap())
    }
}

const V2: (&str, &str) = ("0::/pods/one\n", "pods/one/memory.max");
const V1: (&str, &str) = (
    "12:cpu,memory:/pods/one\n1:name=systemd:/x\n0::/y\n",
    "memory/pods/one/memory.limit_in_bytes",
);

#[tokio::test]
async fn the_share_is_added_to_the_memory_that_a_container_gets() {
    let world = World::start(&[]).await;
    for (resources, own_mib) in [(json!({ "requests": { "memory": "2Gi" } }), 2048), (json!({}), 1024)] {
        let hooks = world.hooks(resources.clone()).await;
        let [hook] = &hooks[..] else {
            panic!("one hook: {hooks:?}")
        };
        assert_eq!(hook.hook_name, "createRuntime");
        let args = HookArgs::of_words(&hook.args).unwrap();
        let bytes = (own_mib + 8192) * MIB;
        assert_eq!(
            (args.system_memory, args.gpus.len(), &args.nvml_library),
            (Some(bytes), 0, &None),
            "{resources}"
        );

        // "No limit" is a word on version 2, and a large number on version 1.
        for ((lines, file), none) in [(V2, "max\n"), (V1, "9223372036854771712\n")] {
            let (result, receipt, written) = world.run(hook, lines, file, none);
            assert_eq!((result.exit_code, result.line), (0, None));
            assert_eq!(written, bytes.to_string(), "{file}");
            assert_eq!((receipt.system_memory_bytes, receipt.failure), (Some(bytes), None));
            assert!(receipt.cgroup.ends_with("pods/one"), "{}", receipt.cgroup);
        }
        // The runtime or a parent program has limited the container by itself.
        let (result, receipt, written) = world.run(hook, V2.0, V2.1, "4096\n");
        assert_eq!(
            (result.exit_code, receipt.system_memory_bytes, written.as_str()),
            (0, None, "4096\n")
        );
        // It is no promise of the tier, so the container starts without it.
        let (result, receipt, _) = world.run(hook, "0::/gone\n", V2.1, "max");
        assert_eq!(result.exit_code, 0);
        let failure = receipt.failure.unwrap();
        assert!(
            failure.started && failure.memory == LimitedMemory::System,
            "{failure:?}"
        );
    }
    let own = world.hooks(json!({ "limits": { "memory": "2Gi" } })).await;
    assert_eq!(own, [], "the container has a limit of its own");

    // A failure is told on the pod.
    let hooks = world.hooks(json!({})).await;
    let (_, mut receipt, _) = world.run(&hooks[0], "0::/gone\n", V2.1, "max");
    receipt.at_seconds = u64::MAX >> 1;
    let path = HookArgs::of_words(&hooks[0].args).unwrap().receipt.unwrap();
    kai_node::enforcement::receipt_dir::write(&path, &receipt).unwrap();
    let told = |world: &Cluster| world.events.iter().any(|event| event["reason"] == "GPULimitFailed");
    let cluster = until("the failure's event", &mut world.api.world(), told).await;
    let event = cluster
        .events
        .iter()
        .find(|event| event["reason"] == "GPULimitFailed")
        .unwrap();
    assert!(event["message"].as_str().unwrap().contains("system memory"), "{event}");
    world.agent.stop().await;
}

#[tokio::test]
async fn it_can_be_switched_off() {
    let world = World::start(&["--unified-memory-limit=false"]).await;
    let hooks = within("a spec", world.hooks(json!({ "requests": { "memory": "2Gi" } }))).await;
    assert_eq!(hooks, []);
    assert!(
        !world.settings.state_dir.join("hook").exists(),
        "the hook's program is not needed"
    );
    world.agent.stop().await;
}

/// A memory cgroup of this test, below that of the test's process or, on version 2, below the root.
struct MemoryCgroup {
    directory: PathBuf,
    is_v1: bool,
}

impl MemoryCgroup {
    fn create() -> Result<Self, String> {
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let v1 = own.lines().find_map(|line| {
            line.split_once(":memory:")
                .map(|(_, path)| path.trim_start_matches('/'))
        });
        let parent = match v1 {
            Some(path) => PathBuf::from("/sys/fs/cgroup/memory").join(path),
            None => PathBuf::from("/sys/fs/cgroup"),
        };
        let made = Self {
            directory: parent.join(format!("kai-unified-{}", std::process::id())),
            is_v1: v1.is_some(),
        };
        let failed = |error: std::io::Error| format!("{}: {error}", made.directory.display());
        fs::create_dir(&made.directory).map_err(failed)?;
        let limit = made.directory.join(made.file("memory.limit_in_bytes", "memory.max"));
        let opened = fs::File::options().write(true).open(limit).map_err(failed);
        opened.map(|_| made)
    }

    fn file(&self, v1: &'static str, v2: &'static str) -> &'static str {
        if self.is_v1 { v1 } else { v2 }
    }

    fn read(&self, v1: &'static str, v2: &'static str) -> String {
        fs::read_to_string(self.directory.join(self.file(v1, v2))).unwrap()
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.directory);
    }
}

#[test]
fn the_kernel_holds_a_container_to_the_limit_of_the_hook() {
    const LIMIT: u64 = 64 * MIB;
    let cgroup = match MemoryCgroup::create() {
        Ok(cgroup) => cgroup,
        Err(reason) => {
            // The test harness keeps what the macros print.
            let words = format!("skipped: no memory cgroup can be made here: {reason}\n");
            std::io::stderr().write_all(words.as_bytes()).unwrap();
            return;
        }
    };
    // The container's process waits for the runtime, and then wants three times its limit.
    let mut container = Command::new("/bin/sh")
        .args([
            "-c",
            "read go; head -c 200000000 /dev/zero | tail -c 200000000 >/dev/null",
        ])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    fs::write(cgroup.directory.join("cgroup.procs"), container.id().to_string()).unwrap();
    let place = tempfile::tempdir().unwrap();
    let receipt = place.path().join("receipt.json");
    let (limit, path) = (LIMIT.to_string(), receipt.display().to_string());
    let words = [SUBCOMMAND, "--system-memory", &limit, "--receipt", &path];
    let args = HookArgs::of_words(&words.map(str::to_owned)).unwrap();
    let state = json!({ "ociVersion": "1.0.2", "id": "one", "pid": container.id() }).to_string();
    let driver = FakeDriver::new(&"orin-agx".parse::<Settings>().unwrap().seeded("n1")).unwrap();
    let result = run_with(&args, state.as_bytes(), &driver, &CgroupPlace::default(), 1);
    assert_eq!((result.exit_code, result.line), (0, None));
    let receipt: Receipt = serde_json::from_slice(&fs::read(receipt).unwrap()).unwrap();
    assert_eq!(receipt.system_memory_bytes, Some(LIMIT));
    assert_eq!(PathBuf::from(receipt.cgroup), cgroup.directory);
    assert_eq!(cgroup.read("memory.limit_in_bytes", "memory.max").trim(), limit);

    container.stdin.take().unwrap().write_all(b"go\n").unwrap();
    container.wait().unwrap();
    // How often the kernel refused memory above the limit. It ends a program then, unless it has swap.
    let refused = cgroup.read("memory.failcnt", "memory.events");
    let refused = refused
        .lines()
        .find_map(|line| line.strip_prefix("max ").unwrap_or(line).parse::<u64>().ok());
    assert!(refused.is_some_and(|times| times > 0), "{refused:?}");
    let used = fs::read_to_string(
        cgroup
            .directory
            .join(cgroup.file("memory.max_usage_in_bytes", "memory.peak")),
    );
    // Kernels before 5.19 do not keep the peak of version 2.
    if let Ok(used) = used {
        assert!(used.trim().parse::<u64>().unwrap() <= LIMIT, "{used}");
    }
}
