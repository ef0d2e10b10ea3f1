//! Decides by what a node holds containers to their GPU share: the tier, and for each higher tier the reasons why it is not possible. Pure;
//! `facts` collects what it needs.

use std::path::PathBuf;

use kai_api::EnforcementTier;
use kai_gpu::MemoryLimitSupport;
use serde::{Deserialize, Serialize};

use super::cgroup::{CgroupVersion, LimitController};
use super::hold::EnforcePolicy;
use super::program::HookProgram;
use crate::allocator::inject::Mode;

/// Which tier the operator wants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Enforce {
    /// The driver's limits if the node can, else watch if it can, else none.
    #[default]
    Auto,
    /// The driver's limits if the node can, else none.
    Driver,
    /// A multi-process server if the node can have one, else watch if it can, else none.
    Mps,
    /// The agent reports containers above their share.
    Watch,
    /// Nothing.
    None,
}

impl Enforce {
    /// The flag's value.
    pub fn name(self) -> &'static str {
        match self {
            Enforce::Auto => "auto",
            Enforce::Driver => "driver",
            Enforce::Mps => "mps",
            Enforce::Watch => "watch",
            Enforce::None => "none",
        }
    }

    /// The tiers to try, best first.
    fn candidates(self) -> &'static [EnforcementTier] {
        use EnforcementTier::{Driver, Mps, Watch};
        match self {
            // A node that can't limit is at least watched.
            Enforce::Auto => &[Driver, Watch],
            // Who asks for limits is not content with less: the node has the tier, or none and the reason.
            Enforce::Driver => &[Driver],
            Enforce::Mps => &[Mps, Watch],
            Enforce::Watch => &[Watch],
            Enforce::None => &[],
        }
    }
}

/// What decides about one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuFacts {
    /// Its index, for messages.
    pub index: u32,
    /// Whether it has memory of its own.
    pub memory: OwnMemory,
    /// Whether it is divided into MIG partitions. Pods share whole GPUs only.
    pub partitioned: bool,
    /// Whether the driver keeps the GPU initialized without users; `None` if it does not say.
    pub persistence_mode: Option<bool>,
}

/// Whether a GPU has memory of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnMemory {
    /// It has.
    Dedicated,
    /// It uses the system's.
    Unified,
}

/// What decides about a node.
#[derive(Debug, Clone)]
pub struct TierFacts {
    /// What the operator wants.
    pub enforce: Enforce,
    /// What happens to a container that was promised a limit and can't get it.
    pub policy: EnforcePolicy,
    /// How GPUs are injected.
    pub mode: Mode,
    /// Number of share devices.
    pub share_devices: u32,
    /// Whether NVML has the calls.
    pub calls: MemoryLimitSupport,
    /// What is mounted for cgroups.
    pub cgroup: CgroupVersion,
    /// The kernel's controller that the driver counts with. `None` if the driver needs none.
    pub controller: Option<LimitController>,
    /// The GPUs.
    pub gpus: Vec<GpuFacts>,
    /// NVML's path on the host, if the CDI spec has it.
    pub library: Option<String>,
    /// The hook's program on the host, or why it can't run there. `None` if it was not needed.
    pub program: Option<Result<HookProgram, String>>,
    /// Why a multi-process server can't hold containers.
    pub mps: Result<(), String>,
    /// Why the agent can't see what containers use.
    pub watch: Result<(), String>,
    /// Why limits were given up: the driver refused them too often.
    pub given_up: Option<String>,
}

/// What the specs of containers need for the hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HookSetup {
    /// The program.
    pub program: HookProgram,
    /// NVML's path on the host; `None` where the hook limits system memory only.
    #[serde(default)]
    pub library: Option<String>,
    /// Environment of the hook, `KEY=value`.
    #[serde(default)]
    pub environment: Vec<String>,
    /// Directory of the receipts.
    pub receipts: PathBuf,
    /// What happens if a limit can't be set.
    pub policy: EnforcePolicy,
}

/// By what a node holds containers to their GPU share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeEnforcement {
    /// The tier.
    pub tier: EnforcementTier,
    /// Why it is not a higher one, most important first.
    pub why_not_higher: Vec<String>,
    /// What may break the tier.
    pub warnings: Vec<String>,
    /// How to run the hook: with tier driver, and where the system memory of containers is limited.
    #[serde(default)]
    pub hook: Option<HookSetup>,
    /// What happens to a container whose pod was bound while the node limited memory, if the node limits none now.
    #[serde(default)]
    pub lost_tier: EnforcePolicy,
}

impl NodeEnforcement {
    /// A node that was told to hold nothing.
    pub fn switched_off() -> Self {
        Self {
            tier: EnforcementTier::None,
            why_not_higher: vec!["--enforce none".to_owned()],
            warnings: Vec::new(),
            hook: None,
            lost_tier: EnforcePolicy::Open,
        }
    }

    /// The tier and the reasons in one sentence.
    pub fn summary(&self) -> String {
        let mut text = self.headline();
        for (word, notes) in [("not a higher tier", &self.why_not_higher), ("warning", &self.warnings)] {
            if !notes.is_empty() {
                text.push_str(&format!("; {word}: {}", notes.join("; ")));
            }
        }
        text
    }

    /// The tier, and what it holds.
    pub fn headline(&self) -> String {
        let holds = match self.tier {
            EnforcementTier::Driver => "the driver holds each container to its GPU memory",
            EnforcementTier::Mps => "a multi-process server holds each container to its multiprocessors",
            EnforcementTier::Watch => "containers above their GPU share are reported, not held",
            EnforcementTier::None => "containers are not held to their GPU share",
        };
        format!("tier {}: {holds}", self.tier.name())
    }
}

/// The tier of the node, with the reasons.
pub fn decide(facts: &TierFacts) -> NodeEnforcement {
    let mut why_not_higher = Vec::new();
    let mut chosen = EnforcementTier::None;
    for candidate in facts.enforce.candidates() {
        let obstacles = match candidate {
            EnforcementTier::Driver => driver_obstacles(facts),
            EnforcementTier::Mps => facts.mps.clone().err().into_iter().collect(),
            EnforcementTier::Watch => facts.watch.clone().err().into_iter().collect(),
            EnforcementTier::None => Vec::new(),
        };
        if obstacles.is_empty() {
            chosen = *candidate;
            break;
        }
        why_not_higher.extend(
            obstacles
                .into_iter()
                .map(|obstacle| format!("{}: {obstacle}", candidate.name())),
        );
    }
    match facts.enforce {
        Enforce::Auto | Enforce::Driver => {}
        Enforce::Mps | Enforce::Watch | Enforce::None => {
            why_not_higher.push(format!("--enforce {}", facts.enforce.name()))
        }
    }
    let warnings = match chosen {
        EnforcementTier::Driver => {
            let warning = persistence_warning(facts);
            warning
                .map(|(problem, remedy)| format!("{problem}; run {remedy}"))
                .into_iter()
                .collect()
        }
        EnforcementTier::Mps | EnforcementTier::Watch | EnforcementTier::None => Vec::new(),
    };
    NodeEnforcement {
        tier: chosen,
        why_not_higher,
        warnings,
        hook: None,
        lost_tier: match facts.enforce {
            Enforce::Auto | Enforce::Driver => facts.policy,
            // The operator does not want limits here.
            Enforce::Mps | Enforce::Watch | Enforce::None => EnforcePolicy::Open,
        },
    }
}

/// Whether the driver's answer is needed for a decision, and the driver does not answer. A driver that is away for a moment lowers no tier:
/// containers would start without the limits that they were promised.
pub fn awaits_driver(facts: &TierFacts) -> bool {
    let depends = match facts.enforce {
        Enforce::Auto | Enforce::Driver | Enforce::Watch => true,
        // The multi-process server has a service of its own that knows whether it serves.
        Enforce::Mps | Enforce::None => false,
    };
    depends && matches!(facts.calls, MemoryLimitSupport::Unknown { .. })
}

/// Whether the hook's program decides about the tier: nothing else is in the way.
pub fn needs_program(facts: &TierFacts) -> bool {
    facts.enforce.candidates().contains(&EnforcementTier::Driver) && other_driver_obstacles(facts).is_empty()
}

/// Why the driver can't limit memory here; empty if it can.
pub fn driver_obstacles(facts: &TierFacts) -> Vec<String> {
    let mut obstacles = other_driver_obstacles(facts);
    if let Some(Err(problem)) = &facts.program {
        obstacles.push(problem.clone());
    }
    obstacles
}

fn other_driver_obstacles(facts: &TierFacts) -> Vec<String> {
    let mut obstacles = Vec::new();
    if let Some(reason) = &facts.given_up {
        obstacles.push(reason.clone());
    }
    match facts.mode {
        Mode::Cdi if facts.share_devices == 0 => {
            obstacles.push("the node has no share devices; run the agent with --share-devices 512".to_owned());
        }
        Mode::Cdi => {}
        Mode::Mounts | Mode::Envvar => obstacles.push(
            "GPUs are not injected by CDI, which runs the hook; run the agent with --mode cdi and a runtime with CDI"
                .to_owned(),
        ),
    }
    let shared: Vec<&GpuFacts> = facts.gpus.iter().filter(|gpu| !gpu.partitioned).collect();
    if shared.is_empty() {
        obstacles.push(match facts.gpus.is_empty() {
            true => "the node has no GPU".to_owned(),
            false => "all GPUs are divided by MIG, whose partitions hold by themselves".to_owned(),
        });
    }
    let unified = shared.iter().find(|gpu| gpu.memory == OwnMemory::Unified);
    if let Some(gpu) = unified {
        obstacles.push(format!(
            "GPU {} has no memory of its own, and the driver limits no other",
            gpu.index
        ));
    } else if !shared.is_empty() {
        match &facts.calls {
            MemoryLimitSupport::Offered => {}
            MemoryLimitSupport::Missing { reason } | MemoryLimitSupport::Unknown { reason } => {
                obstacles.push(reason.clone());
            }
        }
        if facts.library.is_none() {
            obstacles.push(
                "libnvidia-ml.so.1 is not among the driver's files on the host; run kai doctor on the node".to_owned(),
            );
        }
    }
    match &facts.cgroup {
        CgroupVersion::V2 => obstacles.extend(facts.controller.as_ref().and_then(controller_obstacle)),
        CgroupVersion::V1 => obstacles.push(cgroup_remedy("the node has cgroup version 1")),
        CgroupVersion::Hybrid => obstacles.push(cgroup_remedy("the node has cgroup version 2 beside version 1 only")),
        CgroupVersion::Unknown(error) => obstacles.push(format!(
            "the node's cgroup version is not known (/sys/fs/cgroup: {error})"
        )),
    }
    obstacles
}

fn controller_obstacle(controller: &LimitController) -> Option<String> {
    match controller {
        LimitController::Dmem | LimitController::Misc => None,
        LimitController::Absent => Some(
            "the kernel has neither of the cgroup controllers that the driver counts with, DMEM and MISC; boot a kernel with \
             CONFIG_CGROUP_DMEM (6.14 or newer) or CONFIG_CGROUP_MISC, without cgroup_disable= for it"
                .to_owned(),
        ),
        LimitController::Unknown(error) => Some(format!(
            "the kernel's cgroup controllers are not known (/sys/fs/cgroup/cgroup.controllers: {error})"
        )),
    }
}

fn cgroup_remedy(problem: &str) -> String {
    format!("{problem}, and the driver needs version 2; boot it with systemd.unified_cgroup_hierarchy=1")
}

/// Without persistence mode the driver drops a GPU's limits when its last user closes it. The agent keeps the GPUs open, but not while it
/// restarts. The problem and the command against it.
pub fn persistence_warning(facts: &TierFacts) -> Option<(String, &'static str)> {
    let off: Vec<String> = facts
        .gpus
        .iter()
        .filter(|gpu| !gpu.partitioned && gpu.persistence_mode == Some(false))
        .map(|gpu| gpu.index.to_string())
        .collect();
    let problem = format!(
        "persistence mode is off on GPU {}, so the driver forgets limits when the GPU has no user",
        off.join(", ")
    );
    (!off.is_empty()).then_some((problem, "nvidia-smi -pm 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32) -> GpuFacts {
        GpuFacts {
            index,
            memory: OwnMemory::Dedicated,
            partitioned: false,
            persistence_mode: Some(true),
        }
    }

    fn able() -> TierFacts {
        TierFacts {
            policy: EnforcePolicy::Closed,
            enforce: Enforce::Auto,
            mode: Mode::Cdi,
            share_devices: 512,
            calls: MemoryLimitSupport::Offered,
            cgroup: CgroupVersion::V2,
            controller: Some(LimitController::Misc),
            gpus: vec![gpu(0), gpu(1)],
            library: Some("/usr/lib/libnvidia-ml.so.1".to_owned()),
            program: None,
            mps: Err("the multi-process server is not found".to_owned()),
            watch: Ok(()),
            given_up: None,
        }
    }

    #[test]
    fn auto_takes_the_best_tier_and_says_why_no_better_one() {
        use EnforcementTier::{Driver, None as Nothing, Watch};
        let missing = || MemoryLimitSupport::Missing {
            reason: "the library lacks nvmlDeviceSetMemoryLimits_v1".to_owned(),
        };
        let unified = |index| GpuFacts {
            memory: OwnMemory::Unified,
            ..gpu(index)
        };
        let mig = |index| GpuFacts {
            partitioned: true,
            ..gpu(index)
        };
        type Change<'a> = &'a dyn Fn(&mut TierFacts);
        let cases: &[(Change, EnforcementTier, &str)] = &[
            (&|_| {}, Driver, ""),
            (
                &|facts| facts.calls = missing(),
                Watch,
                "driver: the library lacks nvmlDeviceSet",
            ),
            (
                &|facts| facts.cgroup = CgroupVersion::V1,
                Watch,
                "driver: the node has cgroup version 1",
            ),
            (
                &|facts| facts.cgroup = CgroupVersion::Hybrid,
                Watch,
                "beside version 1 only",
            ),
            (
                &|facts| facts.cgroup = CgroupVersion::Unknown("gone".to_owned()),
                Watch,
                "not known (/sys/fs/cgroup: gone)",
            ),
            (&|facts| facts.controller = Some(LimitController::Dmem), Driver, ""),
            (&|facts| facts.controller = None, Driver, ""),
            (
                &|facts| facts.controller = Some(LimitController::Absent),
                Watch,
                "DMEM and MISC; boot a kernel with CONFIG_CGROUP_DMEM",
            ),
            (
                &|facts| facts.controller = Some(LimitController::Unknown("gone".to_owned())),
                Watch,
                "cgroup.controllers: gone",
            ),
            (
                &|facts| facts.mode = Mode::Mounts,
                Watch,
                "run the agent with --mode cdi",
            ),
            (
                &|facts| facts.mode = Mode::Envvar,
                Watch,
                "run the agent with --mode cdi",
            ),
            (&|facts| facts.share_devices = 0, Watch, "--share-devices"),
            (
                &|facts| facts.gpus = vec![gpu(0), unified(1)],
                Watch,
                "GPU 1 has no memory of its own",
            ),
            (&|facts| facts.gpus = vec![gpu(0), mig(1)], Driver, ""),
            (&|facts| facts.gpus = vec![mig(0)], Watch, "divided by MIG"),
            (&|facts| facts.gpus.clear(), Watch, "has no GPU"),
            (&|facts| facts.library = None, Watch, "libnvidia-ml.so.1"),
            (
                &|facts| facts.program = Some(Err("noexec".to_owned())),
                Watch,
                "driver: noexec",
            ),
            (
                &|facts| facts.given_up = Some("refused three times".to_owned()),
                Watch,
                "driver: refused three times",
            ),
            (
                &|facts| {
                    facts.calls = missing();
                    facts.watch = Err("the processes of the host are hidden".to_owned());
                },
                Nothing,
                "watch: the processes of the host are hidden",
            ),
            (&|facts| facts.enforce = Enforce::Driver, Driver, ""),
            (
                &|facts| {
                    facts.enforce = Enforce::Driver;
                    facts.calls = missing();
                },
                Nothing,
                "driver: the library lacks",
            ),
            (&|facts| facts.enforce = Enforce::Watch, Watch, "--enforce watch"),
            (&|facts| facts.enforce = Enforce::None, Nothing, "--enforce none"),
            (
                &|facts| facts.enforce = Enforce::Mps,
                Watch,
                "mps: the multi-process server is not found",
            ),
            (
                &|facts| {
                    facts.enforce = Enforce::Mps;
                    facts.mps = Ok(());
                },
                EnforcementTier::Mps,
                "--enforce mps",
            ),
        ];
        for (change, tier, reason) in cases {
            let mut facts = able();
            change(&mut facts);
            let decided = decide(&facts);
            assert_eq!(decided.tier, *tier, "{decided:?}");
            assert_eq!(decided.why_not_higher.is_empty(), reason.is_empty(), "{decided:?}");
            let summary = decided.summary();
            assert!(
                summary.contains(reason) && summary.starts_with(&format!("tier {}", tier.name())),
                "{summary}"
            );
        }
    }

    #[test]
    fn a_lost_tier_holds_up_containers_unless_the_operator_gave_it_up() {
        let lost = |enforce, policy| {
            let facts = TierFacts {
                enforce,
                policy,
                ..able()
            };
            decide(&facts).lost_tier
        };
        for enforce in [Enforce::Auto, Enforce::Driver] {
            assert_eq!(lost(enforce, EnforcePolicy::Closed), EnforcePolicy::Closed);
            assert_eq!(lost(enforce, EnforcePolicy::Open), EnforcePolicy::Open);
        }
        for enforce in [Enforce::Mps, Enforce::Watch, Enforce::None] {
            assert_eq!(lost(enforce, EnforcePolicy::Closed), EnforcePolicy::Open);
        }
    }

    #[test]
    fn a_driver_that_does_not_answer_decides_nothing() {
        for (enforce, awaits) in [
            (Enforce::Auto, true),
            (Enforce::Driver, true),
            (Enforce::Watch, true),
            (Enforce::Mps, false),
            (Enforce::None, false),
        ] {
            let mut facts = TierFacts { enforce, ..able() };
            assert!(!awaits_driver(&facts));
            facts.calls = MemoryLimitSupport::Unknown {
                reason: "Driver Not Loaded".to_owned(),
            };
            assert_eq!(awaits_driver(&facts), awaits, "{enforce:?}");
            assert!(!needs_program(&facts));
        }
    }

    #[test]
    fn the_program_is_copied_only_where_it_decides() {
        assert!(needs_program(&able()));
        for facts in [
            TierFacts {
                cgroup: CgroupVersion::V1,
                ..able()
            },
            TierFacts {
                enforce: Enforce::Watch,
                ..able()
            },
        ] {
            assert!(!needs_program(&facts));
        }
    }

    #[test]
    fn limits_that_the_driver_may_forget_are_warned_about() {
        let mut facts = able();
        facts.gpus[1].persistence_mode = Some(false);
        assert!(
            decide(&facts).warnings[0].contains("GPU 1") && decide(&facts).warnings[0].contains("nvidia-smi -pm 1")
        );
        facts.gpus[1].persistence_mode = None;
        assert!(decide(&facts).warnings.is_empty());
        facts.enforce = Enforce::Watch;
        facts.gpus[0].persistence_mode = Some(false);
        assert!(decide(&facts).warnings.is_empty(), "only limits can be forgotten");
    }
}
