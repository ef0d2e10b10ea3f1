//! `kai gpu-limit-hook`: the program that the container runtime runs as the host's root, after the container's process and cgroup exist and
//! before the container starts (OCI `createRuntime`). Its arguments come from the CDI spec that the agent wrote; its environment and working
//! directory may be anything. `hold` has the work; this file has the arguments, the deadline and the output.

use std::io::Read;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, FromArgMatches};
use kai_gpu::nvml::NvmlDriver;
use kai_gpu::platform::Detection;
use kai_gpu::{Driver, DriverChoice, MemoryLimitSupport, OpenOptions, Platform};

use super::cgroup::{CGROUP_ROOT, CgroupPlace, MountCheck};
use super::hold::{EnforcePolicy, HoldError, HoldRequest, failure, hold};
use super::limits::GpuLimit;
use super::receipt::{ContainerName, Receipt};
use super::receipt_dir;

/// Name of the subcommand.
pub const SUBCOMMAND: &str = "gpu-limit-hook";

/// After this the runtime ends the hook, in seconds (`timeout` in the CDI spec).
pub const TIMEOUT_SECONDS: u32 = 10;

/// How long the driver may take. Less than [`TIMEOUT_SECONDS`]: a hook that the runtime ends can leave no message.
const DRIVER_MAX: Duration = Duration::from_secs(8);

/// Options of the hook. The agent writes them; nobody else needs them.
#[derive(Debug, Clone, clap::Args)]
pub struct HookArgs {
    /// `<GPU UUID>=<hard bytes, or max>[:<soft bytes>]`, once for each GPU of the container.
    #[arg(long = "gpu")]
    pub gpus: Vec<GpuLimit>,
    /// Limit of the container's system memory in bytes, if it has none.
    #[arg(long)]
    pub system_memory: Option<u64>,
    /// File for the receipt.
    #[arg(long)]
    pub receipt: Option<PathBuf>,
    /// File for a receipt that is written only if something fails.
    #[arg(long)]
    pub receipt_on_failure: Option<PathBuf>,
    /// What happens if a limit can't be set.
    #[arg(long, value_enum, default_value_t)]
    pub policy: EnforcePolicy,
    /// NVML library of the host.
    #[arg(long)]
    pub nvml_library: Option<PathBuf>,
    /// Namespace of the pod.
    #[arg(long, default_value = "")]
    pub namespace: String,
    /// Name of the pod.
    #[arg(long, default_value = "")]
    pub pod: String,
    /// UID of the pod.
    #[arg(long, default_value = "")]
    pub uid: String,
    /// Name of the container.
    #[arg(long, default_value = "")]
    pub container: String,
    /// Where processes are listed.
    #[arg(long, default_value = "/proc")]
    pub proc: PathBuf,
    /// Where cgroups are mounted.
    #[arg(long, default_value = CGROUP_ROOT)]
    pub cgroup_root: PathBuf,
    /// Load the library, look for its calls, and change nothing.
    #[arg(long)]
    pub probe: bool,
}

impl HookArgs {
    /// The options in the words of a hook in a CDI spec, as its program reads them. For simulated runtimes.
    pub fn of_words(words: &[String]) -> Result<Self, String> {
        let at = words.iter().position(|word| word == SUBCOMMAND);
        let own = at
            .map(|at| &words[at..])
            .ok_or_else(|| format!("no word is {SUBCOMMAND}"))?;
        let matches = Self::augment_args(clap::Command::new(SUBCOMMAND)).try_get_matches_from(own);
        matches
            .and_then(|matches| Self::from_arg_matches(&matches))
            .map_err(|error| error.to_string())
    }

    /// What the container is to be held to.
    pub fn request(&self) -> HoldRequest {
        HoldRequest {
            container: ContainerName {
                namespace: self.namespace.clone(),
                pod: self.pod.clone(),
                uid: self.uid.clone(),
                container: self.container.clone(),
            },
            limits: self.gpus.clone(),
            system_memory_bytes: self.system_memory,
            policy: self.policy,
        }
    }

    /// NVML from the library that the agent found. The driver opens it when it is first called.
    fn driver(&self) -> NvmlDriver {
        let options = OpenOptions {
            driver: DriverChoice::Nvml,
            nvml_library: self.nvml_library.clone(),
            ..OpenOptions::default()
        };
        let detection = Detection {
            platform: Platform::default(),
            driver_version: None,
            kernel_gpus: Vec::new(),
            evidence: Vec::new(),
        };
        NvmlDriver::new(options, detection)
    }
}

/// What the hook says and returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookResult {
    /// One line for stderr, if something is wrong.
    pub line: Option<String>,
    /// Exit code: the runtime starts the container only after 0.
    pub exit_code: u8,
}

/// Runs the hook.
pub fn run(args: HookArgs, input: impl Read + Send + 'static) -> HookResult {
    let driver = args.driver();
    if args.probe {
        return probe(&args, &driver);
    }
    if let Some(refused) = without_work(&args) {
        return refused;
    }
    let place = CgroupPlace {
        proc: args.proc.clone(),
        root: args.cgroup_root.clone(),
        check: MountCheck::Version2,
    };
    run_within(DRIVER_MAX, &args, input, driver, place)
}

/// The result of a command line that limits nothing: the agent writes none, so the spec was damaged.
fn without_work(args: &HookArgs) -> Option<HookResult> {
    let has_none = args.gpus.is_empty() && args.system_memory.is_none();
    has_none.then(|| HookResult {
        line: Some(format!(
            "kai: the hook of {} has neither --gpu nor --system-memory, so it limits nothing; delete the pod, so that its spec is written anew",
            args.request().container.shown()
        )),
        exit_code: u8::from(args.policy != EnforcePolicy::Open),
    })
}

/// Runs the hook, and gives a driver up that does not answer before the deadline.
fn run_within(
    deadline: Duration,
    args: &HookArgs,
    input: impl Read + Send + 'static,
    driver: impl Driver + 'static,
    place: CgroupPlace,
) -> HookResult {
    let request = args.request();
    let (sender, receiver) = mpsc::channel();
    // A driver call that hangs can't be interrupted: the process ends without it.
    std::thread::spawn({
        let request = request.clone();
        move || {
            // Nobody receives a receipt after the deadline.
            let _ = sender.send(hold(&request, input, &driver, &place, now_seconds()));
        }
    });
    let receipt = receiver
        .recv_timeout(deadline)
        .unwrap_or_else(|_| unanswered(&request, deadline));
    finish(args, &receipt)
}

/// Runs the hook with this driver on these containers, without a deadline: for simulated container runtimes.
pub fn run_with(
    args: &HookArgs,
    input: impl Read,
    driver: &dyn Driver,
    place: &CgroupPlace,
    now_seconds: u64,
) -> HookResult {
    finish(args, &hold(&args.request(), input, driver, place, now_seconds))
}

fn unanswered(request: &HoldRequest, deadline: Duration) -> Receipt {
    Receipt {
        container: request.container.clone(),
        container_id: String::new(),
        cgroup: String::new(),
        at_seconds: now_seconds(),
        limits: Vec::new(),
        system_memory_bytes: None,
        failure: Some(failure(&HoldError::Timeout(deadline), request)),
    }
}

/// Writes the receipt. A container whose receipt can't be written is not in the audit, so it counts as not held.
fn finish(args: &HookArgs, receipt: &Receipt) -> HookResult {
    let name = receipt.container.shown();
    let written = match &args.receipt {
        Some(path) => receipt_dir::write(path, receipt).map_err(|error| error.to_string()),
        None => Ok(()),
    };
    if let (Some(path), Some(_)) = (&args.receipt_on_failure, &receipt.failure) {
        // Without this file too the container starts: its limits were to be lifted.
        let _ = receipt_dir::write(path, receipt);
    }
    let starts = |started: bool| u8::from(!started);
    match (&receipt.failure, written) {
        (None, Ok(())) => HookResult {
            line: None,
            exit_code: 0,
        },
        (Some(failure), _) => HookResult {
            line: Some(format!(
                "kai: the {} of {name} is not limited: {}",
                failure.memory.name(),
                failure.message
            )),
            exit_code: starts(failure.started),
        },
        (None, Err(error)) => HookResult {
            line: Some(format!(
                "kai: the {} of {name} is limited, but without a receipt: {error}",
                args.request().memory().name()
            )),
            exit_code: starts(args.policy == EnforcePolicy::Open),
        },
    }
}

/// Whether this program runs from where it was copied, and the library has the calls.
fn probe(args: &HookArgs, driver: &dyn Driver) -> HookResult {
    let support = match args.nvml_library {
        Some(_) => driver.memory_limit_support(),
        None => MemoryLimitSupport::Offered,
    };
    match support {
        MemoryLimitSupport::Offered => HookResult {
            line: None,
            exit_code: 0,
        },
        MemoryLimitSupport::Missing { reason } | MemoryLimitSupport::Unknown { reason } => HookResult {
            line: Some(reason),
            exit_code: 1,
        },
    }
}

fn now_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

#[cfg(test)]
mod tests {
    use kai_gpu::fake::{FakeDriver, MemoryLimitCalls, Settings};
    use serde_json::json;

    use super::*;

    /// A hook whose driver takes ten minutes to answer, for a container in a cgroup of its own. Its receipt is in the directory.
    fn run_with_slow_driver(dir: &std::path::Path, policy: &str) -> (HookResult, Receipt) {
        let driver = FakeDriver::new(&Settings::of("a100-40", 1)).unwrap();
        let gpu = driver.devices().unwrap().devices[0].uuid.clone();
        driver.change(|control| {
            control.memory_limit_calls = Some(MemoryLimitCalls::Both);
            let gpu = control.gpus.entry("*".to_owned()).or_default();
            gpu.memory_limits.get_or_insert_default().delay_ms = 600_000;
        });
        let place = CgroupPlace {
            proc: dir.join("proc"),
            root: dir.join("cgroup"),
            check: MountCheck::Simulated,
        };
        std::fs::create_dir_all(place.proc.join("7")).unwrap();
        std::fs::create_dir_all(place.root.join("pod/one")).unwrap();
        std::fs::write(place.proc.join("7/cgroup"), "0::/pod/one\n").unwrap();
        let receipt = dir.join("receipt.json");
        let (limit, path) = (GpuLimit::hard(&gpu, 1 << 30).to_string(), receipt.display().to_string());
        let words = [
            SUBCOMMAND,
            "--gpu",
            &limit,
            "--policy",
            policy,
            "--receipt",
            &path,
            "--namespace",
            "team",
            "--pod",
            "half",
        ];
        let args = HookArgs::of_words(&words.map(str::to_owned)).unwrap();
        let state = json!({ "ociVersion": "1.0.2", "id": "one", "pid": 7 }).to_string();
        let input = std::io::Cursor::new(state.into_bytes());
        let result = run_within(Duration::from_millis(50), &args, input, driver, place);
        (
            result,
            serde_json::from_slice(&std::fs::read(receipt).unwrap()).unwrap(),
        )
    }

    #[test]
    fn a_driver_that_does_not_answer_before_the_deadline_leaves_the_container_unstarted() {
        let dir = tempfile::tempdir().unwrap();
        let (result, receipt) = run_with_slow_driver(dir.path(), "closed");
        assert_eq!(result.exit_code, 1);
        let line = result.line.unwrap();
        assert!(
            line.contains("team/half") && line.contains("did not answer within 50ms") && line.contains("dmesg"),
            "{line}"
        );
        let failure = receipt.failure.unwrap();
        // The driver refused nothing, so the node keeps its tier.
        assert_eq!(
            (failure.code.as_deref(), failure.refused, failure.started),
            (Some("TIMEOUT"), false, false)
        );
        assert_eq!(receipt.limits, []);
    }

    #[test]
    fn with_the_open_policy_the_container_starts_and_the_receipt_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let (result, receipt) = run_with_slow_driver(dir.path(), "open");
        assert_eq!(result.exit_code, 0);
        assert!(result.line.unwrap().contains("is not limited"));
        assert!(receipt.failure.unwrap().started);
    }

    #[test]
    fn a_container_whose_receipt_cannot_be_written_counts_as_not_held() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("limits");
        std::fs::create_dir(&directory).unwrap();
        // Others could write receipts there.
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).unwrap();
        for (policy, exit_code) in [("closed", 1), ("open", 0)] {
            let path = directory.join("share-1.json").display().to_string();
            let words = [SUBCOMMAND, "--gpu", "GPU-1=5", "--policy", policy, "--receipt", &path];
            let args = HookArgs::of_words(&words.map(str::to_owned)).unwrap();
            let held = super::super::receipt_dir::tests::receipt("one");
            let result = finish(&args, &held);
            assert_eq!(result.exit_code, exit_code, "{policy}");
            let line = result.line.unwrap();
            assert!(
                line.contains("is limited, but without a receipt") && line.contains("writable by root only"),
                "{line}"
            );
        }
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    }

    #[test]
    fn a_hook_that_limits_nothing_fails() {
        for (policy, exit_code) in [("closed", 1), ("open", 0)] {
            let args =
                HookArgs::of_words(&[SUBCOMMAND, "--policy", policy, "--pod", "half"].map(str::to_owned)).unwrap();
            let result = run(args, std::io::empty());
            assert_eq!(result.exit_code, exit_code, "{policy}");
            assert!(result.line.unwrap().contains("neither --gpu nor --system-memory"));
        }
    }

    #[test]
    fn the_runtime_waits_longer_than_the_hook_waits_for_the_driver() {
        assert!(DRIVER_MAX < Duration::from_secs(TIMEOUT_SECONDS.into()));
    }
}
