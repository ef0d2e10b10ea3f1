//! Collects what decides about the tier: looks at the node, asks the driver, and puts the hook's program on the host if that is all that is
//! missing. Blocks; decides nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kai_gpu::{Device, Driver, Inventory, MemoryKind, MemoryLimitSupport, MigMode};

use super::cgroup::{CGROUP_ROOT, CgroupVersion, LimitController};
use super::hold::EnforcePolicy;
use super::mps::{self, MpsService};
use super::program::{HookProgram, InstalledProgram, ProgramDir, ProgramFiles};
use super::promise::UnifiedMemoryLimit;
use super::receipt_dir::ReceiptDir;
use super::tier::{
    Enforce, GpuFacts, HookSetup, NodeEnforcement, OwnMemory, TierFacts, awaits_driver, decide, needs_program,
};
use super::watch::{self, ProcessFiles};
use crate::allocator::inject::Mode;
use crate::driver_files::cdi::Spec;
use crate::driver_files::host_root::HostRoot;

/// File name of NVML among the driver's files.
const NVML: &str = "libnvidia-ml.so.1";

/// The agent's settings about limits.
#[derive(Debug, Clone)]
pub struct EnforcementSettings {
    /// Which tier the operator wants.
    pub enforce: Enforce,
    /// What happens to a container that can't be held.
    pub policy: EnforcePolicy,
    /// Whether system memory is limited on integrated GPUs.
    pub unified: UnifiedMemoryLimit,
    /// How GPUs are injected.
    pub mode: Mode,
    /// Number of share devices.
    pub share_devices: u32,
    /// Where the hook's program and the receipts are: the same path here and on the host.
    pub state_dir: PathBuf,
    /// The host's `/` in this process.
    pub host_root: PathBuf,
    /// Where the host's processes are described.
    pub processes: ProcessFiles,
    /// Environment of the hook: that of the fake library.
    pub environment: Vec<String>,
    /// The files of the hook's program. `None`: those of this process.
    pub program: Option<ProgramFiles>,
    /// The program that enters the host's mount namespace for the multi-process server: this one, except in tests.
    pub launcher: PathBuf,
}

/// What the agent knows beside the node and its driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Circumstances {
    /// Why limits were given up: the driver refused them too often.
    pub given_up: Option<String>,
    /// Why the driver does not answer, if it does not. Its library may still be open and have the calls.
    pub driver_problem: Option<String>,
}

/// What the decision follows from, for one driver.
#[derive(Debug)]
pub struct Decider {
    settings: EnforcementSettings,
    /// The program does not change while the agent runs, but its copies may be removed.
    installed: Option<InstalledProgram>,
    /// For which library and driver the program ran well. It is run again for others only.
    ran_for: Option<(Option<String>, Option<String>)>,
    /// Runs the multi-process server, where the operator wants one.
    mps: Option<Arc<MpsService>>,
}

impl Decider {
    /// Looks at nothing yet.
    pub fn new(settings: EnforcementSettings) -> Self {
        Self {
            settings,
            installed: None,
            ran_for: None,
            mps: None,
        }
    }

    /// Decides with this multi-process server.
    pub fn with_mps(self, mps: Option<Arc<MpsService>>) -> Self {
        Self { mps, ..self }
    }

    /// Decides by what this node holds containers. `spec` is that of the whole GPUs on disk. `None` if the driver does not answer: then the
    /// last decision stays.
    pub fn decide(
        &mut self,
        driver: &dyn Driver,
        inventory: &Inventory,
        spec: Option<&Spec>,
        circumstances: Circumstances,
    ) -> Option<NodeEnforcement> {
        let mut facts = self.facts(driver, inventory, spec, circumstances);
        if awaits_driver(&facts) {
            return None;
        }
        if let Some(mps) = &self.mps {
            facts.mps = mps.ability(inventory);
        }
        let limits_system_memory = self.limits_system_memory(inventory);
        if needs_program(&facts) {
            facts.program = Some(self.program(facts.library.as_deref(), inventory));
        }
        let mut decided = decide(&facts);
        // The driver may have gone since it was asked, so that the processes on its GPUs were not listed or the hook's program failed.
        if !decided.why_not_higher.is_empty() {
            facts.calls = answer_now(driver, inventory);
            if awaits_driver(&facts) {
                return None;
            }
        }
        let program = match (decided.tier.limits_memory(), &facts.program) {
            (true, Some(Ok(program))) => Some(program.clone()),
            (true, Some(Err(_)) | None) => None,
            (false, _) if limits_system_memory => match self.program(None, inventory) {
                Ok(program) => Some(program),
                Err(problem) => {
                    decided
                        .warnings
                        .push(format!("system memory is not limited: {problem}"));
                    None
                }
            },
            (false, _) => None,
        };
        if self.mps.is_none()
            && let Err(problem) = mps::modes::give_back(driver, &self.settings.state_dir)
        {
            decided.warnings.push(problem);
        }
        let receipts = ReceiptDir::new(&self.settings.state_dir);
        decided.hook = program.map(|program| HookSetup {
            program,
            library: facts.library.filter(|_| decided.tier.limits_memory()),
            environment: self.settings.environment.clone(),
            receipts: receipts.path().to_owned(),
            policy: self.settings.policy,
        });
        Some(decided)
    }

    /// The facts, without the hook's program. Reads only.
    pub fn facts(
        &self,
        driver: &dyn Driver,
        inventory: &Inventory,
        spec: Option<&Spec>,
        circumstances: Circumstances,
    ) -> TierFacts {
        let settings = &self.settings;
        let cgroups = HostRoot::new(&settings.host_root).local_path(CGROUP_ROOT);
        let Circumstances {
            given_up,
            driver_problem,
        } = circumstances;
        TierFacts {
            enforce: settings.enforce,
            policy: settings.policy,
            mode: settings.mode,
            share_devices: settings.share_devices,
            calls: match driver_problem {
                Some(reason) => MemoryLimitSupport::Unknown { reason },
                None => driver.memory_limit_support(),
            },
            cgroup: CgroupVersion::at(&cgroups),
            controller: driver.counts_by_controller().then(|| LimitController::at(&cgroups)),
            gpus: inventory
                .devices
                .iter()
                .map(|device| gpu_facts(driver, device))
                .collect(),
            library: spec.and_then(library_in),
            program: None,
            mps: match settings.enforce {
                Enforce::Mps => mps::ability(driver, inventory, &settings.host_root).plan().map(drop),
                Enforce::Auto | Enforce::Driver | Enforce::Watch | Enforce::None => {
                    Err("the agent runs a multi-process server only with --enforce mps".to_owned())
                }
            },
            watch: watch::ability(driver, &settings.processes),
            given_up,
        }
    }

    /// Whether the hook is wanted for containers on GPUs without memory of their own.
    fn limits_system_memory(&self, inventory: &Inventory) -> bool {
        let settings = &self.settings;
        let unified = inventory
            .devices
            .iter()
            .any(|device| device.memory_kind == MemoryKind::Unified);
        unified
            && settings.unified == UnifiedMemoryLimit::On
            && settings.enforce != Enforce::None
            && settings.mode == Mode::Cdi
            && settings.share_devices > 0
    }

    /// The program on the host, after it ran there once, and loaded `library` if one is named.
    fn program(&mut self, library: Option<&str>, inventory: &Inventory) -> Result<HookProgram, String> {
        let installed = match &self.installed {
            Some(installed) if installed.is_whole() => installed.program().clone(),
            // Space on a disk comes back, and mounts are corrected.
            Some(_) | None => {
                (self.installed, self.ran_for) = (None, None);
                let installed = self.install()?;
                self.installed.insert(installed).program().clone()
            }
        };
        let wanted = (library.map(str::to_owned), inventory.driver_version.clone());
        if self.ran_for.as_ref() == Some(&wanted) {
            return Ok(installed);
        }
        self.ran_for = None;
        let here = library.map(|path| HostRoot::new(&self.settings.host_root).local_path(path));
        installed
            .probe(here.as_deref(), &self.settings.environment)
            .map_err(|error| error.to_string())??;
        self.ran_for = Some(wanted);
        Ok(installed)
    }

    fn install(&self) -> Result<InstalledProgram, String> {
        let words = |error: super::program::ProgramError| error.to_string();
        ReceiptDir::new(&self.settings.state_dir)
            .create()
            .map_err(|error| error.to_string())?;
        let files = match &self.settings.program {
            Some(files) => files.clone(),
            None => ProgramFiles::of_this_process().map_err(words)?,
        };
        let program = ProgramDir::new(&self.settings.state_dir)
            .install(&files)
            .map_err(words)?;
        InstalledProgram::of(program).map_err(words)
    }
}

/// Whether the driver still answers, and has the calls.
fn answer_now(driver: &dyn Driver, inventory: &Inventory) -> MemoryLimitSupport {
    let probed = inventory.devices.first().map(|device| driver.probe(&device.uuid));
    match probed {
        Some(Err(error)) if error.is_driver_gone() => MemoryLimitSupport::Unknown {
            reason: error.to_string(),
        },
        Some(Ok(()) | Err(_)) | None => driver.memory_limit_support(),
    }
}

/// NVML's path on the host, from the spec that mounts it into containers.
fn library_in(spec: &Spec) -> Option<String> {
    let is_nvml = |path: &str| Path::new(path).file_name().is_some_and(|name| name == NVML);
    let mounts = spec.container_edits.mounts.iter();
    let mut found = mounts.filter(|mount| is_nvml(&mount.container_path));
    found.next().map(|mount| mount.host_path.clone())
}

/// The facts about one GPU.
pub fn gpu_facts(driver: &dyn Driver, device: &Device) -> GpuFacts {
    GpuFacts {
        index: device.index,
        memory: match device.memory_kind {
            MemoryKind::Dedicated => OwnMemory::Dedicated,
            MemoryKind::Unified => OwnMemory::Unified,
        },
        partitioned: device.mig_mode == Some(MigMode::Enabled),
        persistence_mode: driver.persistence_mode(&device.uuid).ok().flatten(),
    }
}
