//! What the hook does for a container: it limits the GPU memory of the container's cgroup, and where GPU and CPU share memory, the system
//! memory. The result is a receipt. Everything comes in as an argument, so simulated kubelets run the same code with the fake driver.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kai_gpu::{Driver, MemoryLimitError, set_and_verify};

use super::cgroup::{CgroupError, CgroupPlace};
use super::limits::GpuLimit;
use super::receipt::{ContainerName, Failure, LimitedMemory, Receipt};
use super::state_document::{self, StateError};

/// A v1 memory limit at or above this is none: the kernel shows "no limit" as the largest number of whole pages.
const V1_NO_LIMIT_MIN: u64 = 1 << 60;

/// What a container that can't be held to its limits does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EnforcePolicy {
    /// It does not start.
    #[default]
    Closed,
    /// It starts without limits, and the agent reports it.
    Open,
}

impl EnforcePolicy {
    /// The flag's value.
    pub fn name(self) -> &'static str {
        match self {
            EnforcePolicy::Closed => "closed",
            EnforcePolicy::Open => "open",
        }
    }
}

/// What a container is to be held to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HoldRequest {
    /// The container.
    pub container: ContainerName,
    /// Its limits, one for each GPU.
    pub limits: Vec<GpuLimit>,
    /// The limit of its system memory, if it has none of its own.
    pub system_memory_bytes: Option<u64>,
    /// What happens if it can't be held.
    pub policy: EnforcePolicy,
}

impl HoldRequest {
    /// Which memory it is about, if all of it fails.
    pub fn memory(&self) -> LimitedMemory {
        match self.limits.is_empty() {
            true => LimitedMemory::System,
            false => LimitedMemory::Gpu,
        }
    }
}

/// Codes of a driver or a GPU that is absent or does not answer: they say nothing about limits.
const ABSENT: [&str; 7] = [
    "UNINITIALIZED",
    "DRIVER_NOT_LOADED",
    "TIMEOUT",
    "LIBRARY_NOT_FOUND",
    "GPU_IS_LOST",
    "RESET_REQUIRED",
    "LIB_RM_VERSION_MISMATCH",
];

/// Why a container can't be held to its limits.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// The runtime's document is of no use.
    #[error(transparent)]
    State(#[from] StateError),
    /// The container's cgroup was not found.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The driver refused.
    #[error("{}", .0.with_remedy())]
    Driver(#[from] MemoryLimitError),
    /// The driver did not answer in time.
    #[error("the GPU driver did not answer within {0:?}; look for NVRM lines in dmesg on the node")]
    Timeout(Duration),
    /// The system memory could not be limited.
    #[error("limiting the system memory by {}: {source}; or run the node agent with --unified-memory-limit=false", path.display())]
    SystemMemory {
        /// The file of the cgroup.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl HoldError {
    /// The driver's error constant, as a label of metrics.
    pub fn code(&self) -> Option<String> {
        match self {
            HoldError::Driver(error) => Some(error.code().constant().to_owned()),
            HoldError::Timeout(_) => Some("TIMEOUT".to_owned()),
            HoldError::State(_) | HoldError::Cgroup(_) | HoldError::SystemMemory { .. } => None,
        }
    }

    /// Whether the driver works, has the GPU, and refused.
    fn is_refusal(&self) -> bool {
        match self {
            HoldError::Driver(MemoryLimitError::Refused { code, .. }) => !ABSENT.contains(&code.constant()),
            HoldError::Driver(MemoryLimitError::NotKept { .. }) => true,
            HoldError::Driver(
                MemoryLimitError::Missing { .. } | MemoryLimitError::NoGpu { .. } | MemoryLimitError::Driver { .. },
            )
            | HoldError::Timeout(_)
            | HoldError::State(_)
            | HoldError::Cgroup(_)
            | HoldError::SystemMemory { .. } => false,
        }
    }
}

/// Holds the container whose state document is `input` to its limits. The receipt's failure says whether it may start nevertheless.
pub fn hold(
    request: &HoldRequest,
    input: impl Read,
    driver: &dyn Driver,
    place: &CgroupPlace,
    now_seconds: u64,
) -> Receipt {
    let mut receipt = Receipt {
        container: request.container.clone(),
        container_id: String::new(),
        cgroup: String::new(),
        at_seconds: now_seconds,
        limits: Vec::new(),
        system_memory_bytes: None,
        failure: None,
    };
    if let Err(error) = try_hold(request, input, driver, place, &mut receipt) {
        receipt.failure = Some(failure(&error, request));
    }
    receipt
}

/// The report of a failure.
pub fn failure(error: &HoldError, request: &HoldRequest) -> Failure {
    let of_system_memory = matches!(error, HoldError::SystemMemory { .. });
    Failure {
        code: error.code(),
        refused: error.is_refusal(),
        memory: match of_system_memory {
            true => LimitedMemory::System,
            false => request.memory(),
        },
        message: error.to_string(),
        // The limit of system memory is no promise of the tier: kubelet and kernel cope without it.
        started: request.policy == EnforcePolicy::Open || of_system_memory,
        promised: match of_system_memory {
            true => Vec::new(),
            false => request.limits.clone(),
        },
    }
}

fn try_hold(
    request: &HoldRequest,
    input: impl Read,
    driver: &dyn Driver,
    place: &CgroupPlace,
    receipt: &mut Receipt,
) -> Result<(), HoldError> {
    let state = state_document::read(input)?;
    receipt.container_id = state.id;
    if !request.limits.is_empty() {
        let cgroup = place.leaf(state.pid)?;
        receipt.cgroup = cgroup.display().to_string();
        limit_gpu_memory(driver, &cgroup, &request.limits)?;
        receipt.limits = request.limits.clone();
    }
    if let Some(bytes) = request.system_memory_bytes {
        let file = place.memory_limit_file(state.pid)?;
        if receipt.cgroup.is_empty() {
            receipt.cgroup = file.parent().unwrap_or(&file).display().to_string();
        }
        let limited =
            limit_system_memory(&file, bytes).map_err(|source| HoldError::SystemMemory { path: file, source })?;
        receipt.system_memory_bytes = limited;
    }
    Ok(())
}

/// Sets the limits of a cgroup, and checks that the driver reports the same numbers. Limits of all GPUs or of none: if one fails, those of
/// the others are lifted.
pub fn limit_gpu_memory(driver: &dyn Driver, cgroup: &Path, limits: &[GpuLimit]) -> Result<(), MemoryLimitError> {
    for (at, limit) in limits.iter().enumerate() {
        let set = match limit.hard_bytes {
            Some(_) => set_and_verify(driver, &limit.gpu, cgroup, limit.memory_limits()).map(drop),
            // A read of a cgroup without limits is an error with some drivers.
            None => driver.set_memory_limits(&limit.gpu, cgroup, limit.memory_limits()),
        };
        if let Err(error) = set {
            for done in &limits[..=at] {
                let _ = driver.set_memory_limits(&done.gpu, cgroup, GpuLimit::none(&done.gpu).memory_limits());
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Writes the limit unless the cgroup has one. Returns what was written.
fn limit_system_memory(file: &Path, bytes: u64) -> io::Result<Option<u64>> {
    let present = fs::read_to_string(file)?;
    let unlimited = match present.trim() {
        "max" => true,
        number => number.parse::<u64>().is_ok_and(|number| number >= V1_NO_LIMIT_MIN),
    };
    if !unlimited {
        return Ok(None);
    }
    fs::write(file, bytes.to_string())?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use kai_gpu::fake::{FakeDriver, Settings};
    use kai_gpu::{CgroupMemory, MemoryLimits, NvmlCode};

    use super::super::cgroup::MountCheck;
    use super::*;

    /// A simulated node: two GPUs with limits, and a process 7 in the cgroup of a container.
    struct Node {
        driver: FakeDriver,
        place: CgroupPlace,
        cgroup: PathBuf,
        _temporary: tempfile::TempDir,
    }

    impl Node {
        fn new() -> Self {
            let temporary = tempfile::tempdir().unwrap();
            let place = CgroupPlace {
                proc: temporary.path().join("proc"),
                root: temporary.path().join("cgroup"),
                check: MountCheck::Simulated,
            };
            let cgroup = place.root.join("kubepods/pod1/abc");
            fs::create_dir_all(&cgroup).unwrap();
            fs::create_dir_all(place.proc.join("7")).unwrap();
            fs::write(place.proc.join("7/cgroup"), "0::/kubepods/pod1/abc\n").unwrap();
            let driver = FakeDriver::new(&"a100-40:2".parse::<Settings>().unwrap().seeded("n1")).unwrap();
            driver.change(|control| control.memory_limit_calls = Some(kai_gpu::fake::MemoryLimitCalls::Both));
            Self {
                driver,
                place,
                cgroup,
                _temporary: temporary,
            }
        }

        fn gpu(&self, at: usize) -> String {
            self.driver.devices().unwrap().devices[at].uuid.clone()
        }

        fn request(&self, limits: Vec<GpuLimit>) -> HoldRequest {
            HoldRequest {
                limits,
                ..HoldRequest::default()
            }
        }

        fn hold(&self, request: &HoldRequest) -> Receipt {
            let state = r#"{"ociVersion":"1.0.2","id":"abc","status":"created","pid":7,"bundle":"/b"}"#;
            hold(request, state.as_bytes(), &self.driver, &self.place, 5)
        }

        fn limit(&self, at: usize) -> Option<MemoryLimits> {
            let read = self.driver.memory_limits(&self.gpu(at), &self.cgroup);
            read.ok()
                .map(|CgroupMemory { limits, .. }| limits)
                .filter(|limits| limits.hard_bytes.is_some())
        }
    }

    #[test]
    fn every_gpu_of_the_container_is_limited_and_the_receipt_says_so() {
        let node = Node::new();
        let limits = vec![
            GpuLimit::hard(&node.gpu(0), 1 << 30),
            GpuLimit::hard(&node.gpu(1), 2 << 30),
        ];
        let receipt = node.hold(&node.request(limits.clone()));
        assert_eq!((receipt.failure, &receipt.limits), (None, &limits));
        assert_eq!((receipt.container_id.as_str(), receipt.at_seconds), ("abc", 5));
        assert_eq!(receipt.cgroup, node.cgroup.display().to_string());
        assert_eq!(node.limit(0), Some(MemoryLimits::hard(1 << 30)));
        assert_eq!(node.limit(1), Some(MemoryLimits::hard(2 << 30)));
        let lifted = node.hold(&node.request(vec![GpuLimit::none(&node.gpu(0))]));
        assert_eq!((lifted.failure, node.limit(0)), (None, None));
    }

    #[test]
    fn if_one_gpu_refuses_no_gpu_keeps_a_limit() {
        for policy in [EnforcePolicy::Closed, EnforcePolicy::Open] {
            let node = Node::new();
            let limits = vec![GpuLimit::hard(&node.gpu(0), 1 << 30), GpuLimit::hard("GPU-none", 1)];
            let request = HoldRequest {
                policy,
                ..node.request(limits)
            };
            let receipt = node.hold(&request);
            let failure = receipt.failure.unwrap();
            assert_eq!(
                (failure.started, receipt.limits.len()),
                (policy == EnforcePolicy::Open, 0)
            );
            assert_eq!(failure.code.as_deref(), Some("NOT_FOUND"));
            assert!(failure.message.contains("GPU-none"), "{}", failure.message);
            assert_eq!(node.limit(0), None);
        }
    }

    #[test]
    fn a_limit_that_the_driver_does_not_keep_is_a_failure() {
        let node = Node::new();
        node.driver.change(|control| {
            let gpu = control.gpus.entry("*".to_owned()).or_default();
            gpu.memory_limits.get_or_insert_default().read_back_hard_mib = Some(1);
        });
        let receipt = node.hold(&node.request(vec![GpuLimit::hard(&node.gpu(0), 1 << 30)]));
        assert!(receipt.failure.unwrap().message.contains("then reported"));
    }

    #[test]
    fn a_driver_or_gpu_that_is_absent_refuses_nothing() {
        let refused = |error: MemoryLimitError| HoldError::Driver(error).is_refusal();
        let attempt = || "limiting".to_owned();
        let code = |code| MemoryLimitError::Refused {
            attempt: attempt(),
            code,
        };
        assert!(refused(code(NvmlCode::NO_PERMISSION)) && refused(code(NvmlCode::UNKNOWN)));
        // The cgroup lacks the controller: no container of the node can be limited.
        assert!(refused(code(NvmlCode::NOT_FOUND)));
        for absent in [1, 9, 10, 12, 15, 16, 18] {
            assert!(!refused(code(NvmlCode(absent))), "{absent}");
        }
        assert!(!refused(MemoryLimitError::NoGpu { attempt: attempt() }));
        assert!(!HoldError::Timeout(Duration::from_secs(8)).is_refusal());
    }

    #[test]
    fn what_is_not_the_drivers_fault_has_no_code() {
        let node = Node::new();
        fs::write(node.place.proc.join("7/cgroup"), "0::/\n").unwrap();
        let receipt = node.hold(&node.request(vec![GpuLimit::hard(&node.gpu(0), 1)]));
        let failure = receipt.failure.unwrap();
        assert_eq!((failure.code, failure.started), (None, false));
    }

    #[test]
    fn system_memory_is_limited_only_where_it_is_not() {
        let node = Node::new();
        let file = node.cgroup.join("memory.max");
        let request = HoldRequest {
            system_memory_bytes: Some(4096),
            ..node.request(Vec::new())
        };
        for (present, written, limited) in [
            ("max\n", "4096", Some(4096)),
            ("1024\n", "1024\n", None),
            ("9223372036854771712\n", "4096", Some(4096)),
        ] {
            fs::write(&file, present).unwrap();
            let receipt = node.hold(&request);
            assert_eq!((receipt.failure, receipt.system_memory_bytes), (None, limited));
            assert_eq!(fs::read_to_string(&file).unwrap(), written);
        }
        fs::remove_file(&file).unwrap();
        let failure = node.hold(&request).failure.unwrap();
        assert!(
            failure.started
                && failure.memory == LimitedMemory::System
                && failure.message.contains("--unified-memory-limit=false"),
            "{failure:?}"
        );
    }
}
