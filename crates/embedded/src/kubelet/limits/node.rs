//! The limits of one node.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::Parser;
use kai_api::{EnforcementTier, ObjectKey, Pod};
use kai_gpu::fake::{FakeDriver, LibraryFault, MemoryLimitFaults, Settings};
use kai_gpu::{Driver, Inventory, MemoryKind, MemoryLimitSupport, MemoryLimits};
use kai_node::allocator::inject::Mode;
use kai_node::enforcement::audit::Audit;
use kai_node::enforcement::cgroup::{CgroupPlace, CgroupVersion, MountCheck};
use kai_node::enforcement::hold::EnforcePolicy;
use kai_node::enforcement::hook::{self, HookArgs};
use kai_node::enforcement::hook_edit::holding_hook;
use kai_node::enforcement::program::HookProgram;
use kai_node::enforcement::promise::{PromiseInputs, UnifiedMemoryLimit, promise};
use kai_node::enforcement::receipt_dir::ReceiptDir;
use kai_node::enforcement::tier::{self, Enforce, GpuFacts, HookSetup, NodeEnforcement, OwnMemory, TierFacts};
use kai_node::enforcement::watch::Repair;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use super::LimitFault;
use super::spec::{PreparedSpec, hook_options};

/// Share devices of a node, as many as the agent offers by default.
const SHARE_DEVICES: u32 = 512;
/// What messages have in place of the directories of this process, whose names are random.
pub(super) const ROOT: &str = "";

/// Whether the node's agent runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agent {
    Running,
    Dead,
}

/// Whether the node's driver answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Present,
    Away,
}

/// A container with a GPU share.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) pod: ObjectKey,
    pub(super) cgroup: PathBuf,
    pub(super) gpus: Vec<String>,
    pub(super) tier: EnforcementTier,
    pub(super) lost: BTreeSet<String>,
    pub(super) lost_at: Option<Instant>,
}

/// Limits of GPU memory on one node.
#[derive(Debug)]
pub(in crate::kubelet) struct NodeLimits {
    /// `proc`, `cgroup` and the receipts; `None` on a node whose driver limits nothing.
    pub(super) directory: Option<TempDir>,
    pub(super) driver: FakeDriver,
    pub(super) faults: MemoryLimitFaults,
    /// How often each GPU was torn down.
    pub(super) teardowns: BTreeMap<String, u32>,
    pub(super) enforce: Enforce,
    pub(super) enforcement: NodeEnforcement,
    /// Whether the driver answers.
    pub(super) presence: Presence,
    /// The tier that the agent decided when the driver last answered, or `none` since an administrator said so. The law of limits takes it
    /// for the node's, whatever else the agent decides while the driver is away.
    pub(super) due_tier: EnforcementTier,
    pub(super) agent: Agent,
    pub(super) slow_runtime_seconds: u64,
    /// By uid of the pod.
    pub(super) containers: BTreeMap<String, Container>,
    /// Share devices of pods that were admitted, by uid. The kubelet keeps them while the pod is on the node.
    pub(super) share_devices: BTreeMap<String, u32>,
    /// Processes so far.
    pub(super) pids: u32,
    pub(super) audit: Audit,
    /// Why the agent gave up limiting.
    pub(super) given_up: Option<String>,
    /// Since when nothing has kept the agent from noticing lost limits.
    pub(super) sees_since: Instant,
}

/// The command line of the hook's program.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct HookLine {
    #[command(flatten)]
    args: HookArgs,
}

impl NodeLimits {
    /// The limits of a node with these fake GPUs.
    pub(in crate::kubelet) fn new(settings: &Settings, now_seconds: u64) -> Result<NodeLimits, String> {
        let driver = FakeDriver::new(settings).map_err(|error| error.to_string())?;
        let directory = match driver.memory_limit_support() {
            MemoryLimitSupport::Offered => Some(directories()?),
            MemoryLimitSupport::Missing { .. } | MemoryLimitSupport::Unknown { .. } => None,
        };
        let mut limits = NodeLimits {
            directory,
            driver,
            faults: MemoryLimitFaults::default(),
            teardowns: BTreeMap::new(),
            enforce: Enforce::Auto,
            enforcement: NodeEnforcement::switched_off(),
            presence: Presence::Present,
            due_tier: EnforcementTier::None,
            agent: Agent::Running,
            slow_runtime_seconds: 0,
            containers: BTreeMap::new(),
            share_devices: BTreeMap::new(),
            pids: 0,
            audit: Audit::new(Repair::None, now_seconds),
            given_up: None,
            sees_since: Instant::now(),
        };
        limits.decide();
        Ok(limits)
    }

    /// What the agent has decided about the node.
    pub(in crate::kubelet) fn enforcement(&self) -> &NodeEnforcement {
        &self.enforcement
    }

    /// The pause between the agent's preparation and the hook.
    pub(in crate::kubelet) fn slow_runtime_seconds(&self) -> u64 {
        self.slow_runtime_seconds
    }

    pub(super) fn inventory(&self) -> &Inventory {
        self.driver.machine().inventory()
    }

    /// Decides the tier, as the agent does when it starts and when the driver changes.
    pub(super) fn decide(&mut self) {
        let devices = &self.inventory().devices;
        let gpus = devices.iter().map(|device| GpuFacts {
            index: device.index,
            memory: match device.memory_kind {
                MemoryKind::Unified => OwnMemory::Unified,
                MemoryKind::Dedicated => OwnMemory::Dedicated,
            },
            partitioned: !device.mig_devices.is_empty(),
            persistence_mode: self.driver.persistence_mode(&device.uuid).ok().flatten(),
        });
        let facts = TierFacts {
            policy: EnforcePolicy::Closed,
            enforce: self.enforce,
            mode: Mode::Cdi,
            share_devices: SHARE_DEVICES,
            calls: self.driver.memory_limit_support(),
            cgroup: CgroupVersion::V2,
            controller: None,
            gpus: gpus.collect(),
            library: Some("libnvidia-ml.so.1 of the fake GPUs".to_owned()),
            program: None,
            mps: Err("simulated nodes have no multi-process server".to_owned()),
            watch: Err("simulated containers use no GPU memory".to_owned()),
            given_up: self.given_up.clone(),
        };
        if tier::awaits_driver(&facts) {
            return;
        }
        let mut decided = tier::decide(&facts);
        let directory = self
            .directory
            .as_ref()
            .filter(|_| decided.tier == EnforcementTier::Driver);
        decided.hook = directory.map(|directory| self.hook_setup(directory.path()));
        self.enforcement = decided;
        // An administrator's `none` holds whatever the driver can do.
        if self.presence == Presence::Present || self.enforce == Enforce::None {
            self.due_tier = self.enforcement.tier;
        }
    }

    fn hook_setup(&self, directory: &Path) -> HookSetup {
        HookSetup {
            program: HookProgram {
                directory: "/simulated".into(),
                loader: "ld.so".to_owned(),
            },
            library: None,
            environment: Vec::new(),
            receipts: ReceiptDir::new(directory).path().to_owned(),
            policy: EnforcePolicy::Closed,
        }
    }

    pub(super) fn inject(&mut self, fault: &LimitFault, now_seconds: u64) {
        self.sees_since = Instant::now();
        match fault {
            LimitFault::AgentDies => self.agent = Agent::Dead,
            LimitFault::AgentStarts => self.start_agent(now_seconds),
            LimitFault::Driver(faults) => {
                self.faults = faults.clone();
                self.apply(&self.faults);
            }
            LimitFault::Teardown(index) => {
                let Some(uuid) = self.inventory().devices.get(*index).map(|device| device.uuid.clone()) else {
                    return;
                };
                self.tear_down(&uuid);
            }
            LimitFault::Enforce(enforce) => {
                self.enforce = *enforce;
                self.start_agent(now_seconds);
            }
            LimitFault::DriverGoes => self.set_presence(Presence::Away),
            LimitFault::DriverReturns => self.set_presence(Presence::Present),
            LimitFault::SlowRuntime(seconds) => self.slow_runtime_seconds = *seconds,
        }
    }

    /// Starts the agent again: it remembers nothing, and decides anew.
    fn start_agent(&mut self, now_seconds: u64) {
        self.agent = Agent::Running;
        self.audit = Audit::new(Repair::None, now_seconds);
        self.given_up = None;
        // A new agent decides nothing before the driver has answered. Until then the last run's decision holds.
        if self.presence == Presence::Present {
            self.decide();
        }
    }

    fn set_presence(&mut self, presence: Presence) {
        self.presence = presence;
        self.apply_presence(presence);
        if self.agent == Agent::Running {
            self.decide();
        }
    }

    fn apply_presence(&self, presence: Presence) {
        self.driver.change(|control| {
            control.library = match presence {
                Presence::Present => None,
                Presence::Away => Some(LibraryFault::DriverNotLoaded),
            };
        });
    }

    fn tear_down(&mut self, gpu: &str) {
        *self.teardowns.entry(gpu.to_owned()).or_default() += 1;
        self.apply(&self.faults);
        let users = self.containers.values_mut();
        for container in users.filter(|container| container.gpus.iter().any(|its| its == gpu)) {
            container.lost.insert(gpu.to_owned());
            container.lost_at.get_or_insert_with(Instant::now);
        }
    }

    /// Makes the driver misbehave like this, with the teardowns so far.
    fn apply(&self, faults: &MemoryLimitFaults) {
        self.driver.change(|control| {
            for device in &self.driver.machine().inventory().devices {
                let gpu = control.gpus.entry(device.uuid.clone()).or_default();
                gpu.memory_limits = Some(MemoryLimitFaults {
                    teardowns: self.teardowns.get(&device.uuid).copied().unwrap_or(0),
                    ..faults.clone()
                });
            }
        });
    }

    /// Calls the driver without its faults.
    pub(super) fn honestly<T>(&self, call: impl FnOnce(&FakeDriver) -> T) -> T {
        let honest = MemoryLimitFaults::default();
        let misbehaves = self.faults != honest;
        if misbehaves {
            self.apply(&honest);
        }
        if self.presence == Presence::Away {
            self.apply_presence(Presence::Present);
        }
        let answer = call(&self.driver);
        if misbehaves {
            self.apply(&self.faults);
        }
        if self.presence == Presence::Away {
            self.apply_presence(Presence::Away);
        }
        answer
    }

    /// The agent prepares a container: it decides what the pod was promised, and writes the spec. `Err` is the kubelet's message.
    pub(in crate::kubelet) fn prepare(
        &mut self,
        pod: &Pod,
        object: &Value,
        container: &str,
        gpus: &[String],
    ) -> Result<PreparedSpec, String> {
        if self.agent == Agent::Dead {
            return Err("rpc error: the device plugin of kai.scheduler/gpu-share does not answer".to_owned());
        }
        let promised = promise(&PromiseInputs {
            pod,
            object,
            container,
            gpus,
            inventory: self.inventory(),
            enforcement: &self.enforcement,
            unified: UnifiedMemoryLimit::Off,
        });
        let promised = promised.map_err(|error| error.to_string())?;
        let uid = pod.metadata.uid.as_deref().unwrap_or_default().to_owned();
        let share_device = self.share_device(&uid);
        let setup = self.enforcement.hook.as_ref();
        let hooks = setup
            .zip(promised.request.as_ref())
            .map(|(setup, request)| holding_hook(setup, &share_name(share_device), request));
        Ok(PreparedSpec {
            pod: ObjectKey::new(pod.metadata.namespace(), pod.metadata.plain_name()),
            gpus: gpus.to_vec(),
            tier: self.due_tier,
            hooks: hooks.into_iter().collect(),
        })
    }

    /// The share device of a pod: the one that it has, else the first that is free. Devices of pods that ended are used again.
    fn share_device(&mut self, uid: &str) -> u32 {
        if let Some(number) = self.share_devices.get(uid) {
            return *number;
        }
        let taken: BTreeSet<u32> = self.share_devices.values().copied().collect();
        let free = (0..SHARE_DEVICES).find(|number| !taken.contains(number));
        let number = free.unwrap_or_default();
        self.share_devices.insert(uid.to_owned(), number);
        number
    }

    /// The runtime creates the container, runs the hooks of its spec, and starts it. `Err` is the runtime's message; the container is gone
    /// then.
    pub(in crate::kubelet) fn start(&mut self, uid: &str, spec: PreparedSpec, now_seconds: u64) -> Result<(), String> {
        self.stop(uid);
        let Some(directory) = self.directory.as_ref().map(|directory| directory.path().to_owned()) else {
            return Ok(());
        };
        self.pids += 1;
        let pid = self.pids;
        let leaf = format!("kubepods.slice/pod{uid}.slice/cri-containerd-{pid}.scope");
        let cgroup = directory.join("cgroup").join(&leaf);
        let process = directory.join("proc").join(pid.to_string());
        let made = std::fs::create_dir_all(&cgroup)
            .and_then(|()| std::fs::create_dir(&process))
            .and_then(|()| std::fs::write(process.join("cgroup"), format!("0::/{leaf}\n")));
        made.map_err(|error| format!("a simulated container can't be made: {error}"))?;
        let ran = self.run_hooks(&directory, &spec, pid, now_seconds);
        // The container's process is not needed any more: only the hook looks for it.
        let _ = std::fs::remove_dir_all(process);
        if let Err(message) = ran {
            self.remove(&cgroup);
            return Err(message.replace(&directory.display().to_string(), ROOT));
        }
        let container = Container {
            pod: spec.pod,
            cgroup,
            gpus: spec.gpus,
            tier: spec.tier,
            lost: BTreeSet::new(),
            lost_at: None,
        };
        self.containers.insert(uid.to_owned(), container);
        Ok(())
    }

    fn run_hooks(&self, directory: &Path, spec: &PreparedSpec, pid: u32, now_seconds: u64) -> Result<(), String> {
        let place = CgroupPlace {
            proc: directory.join("proc"),
            root: directory.join("cgroup"),
            check: MountCheck::Simulated,
        };
        let document = json!({ "ociVersion": "1.2.1", "id": format!("container-{pid}"), "status": "creating", "pid": pid, "bundle": "/simulated" });
        for hook in &spec.hooks {
            let line = HookLine::try_parse_from(hook_options(hook)).map_err(|error| error.to_string())?;
            let result = hook::run_with(
                &line.args,
                document.to_string().as_bytes(),
                &self.driver,
                &place,
                now_seconds,
            );
            if result.exit_code != 0 {
                return Err(format!(
                    "error running {} hook: exit status {}: {}",
                    hook.hook_name,
                    result.exit_code,
                    result.line.unwrap_or_default()
                ));
            }
        }
        Ok(())
    }

    /// The containers of the pod end.
    pub(in crate::kubelet) fn stop(&mut self, uid: &str) {
        if let Some(container) = self.containers.remove(uid) {
            self.remove(&container.cgroup);
        }
    }

    /// Removes the cgroup of a container, and that of its pod if it was the last. The driver's record goes with it.
    fn remove(&self, cgroup: &Path) {
        let none = MemoryLimits {
            soft_bytes: 0,
            hard_bytes: None,
        };
        for device in &self.inventory().devices {
            let _ = self.honestly(|driver| driver.set_memory_limits(&device.uuid, cgroup, none));
        }
        let _ = std::fs::remove_dir(cgroup);
        if let Some(pod) = cgroup.parent() {
            let _ = std::fs::remove_dir(pod);
        }
    }

    /// The pod leaves the node.
    pub(in crate::kubelet) fn release(&mut self, uid: &str) {
        self.stop(uid);
        self.share_devices.remove(uid);
    }
}

/// The directories of simulated containers.
fn directories() -> Result<TempDir, String> {
    let failed = |error: std::io::Error| format!("a directory for simulated containers can't be made: {error}");
    let directory = TempDir::with_prefix("kai-simulated-node-").map_err(failed)?;
    for part in ["proc", "cgroup"] {
        std::fs::create_dir(directory.path().join(part)).map_err(failed)?;
    }
    ReceiptDir::new(directory.path())
        .create()
        .map_err(|error| error.to_string())?;
    Ok(directory)
}

pub(super) fn share_name(number: u32) -> String {
    format!("share-{number}")
}
