//! Memory limits per cgroup on the fake machine. As in the driver's own table, a limit belongs to the inode of the cgroup's directory: that
//! is the same inside and outside of a container, where the paths differ.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::cgroup::{CgroupRoots, cgroup_of};
use super::{Control, FakeGpu, Machine, MemoryLimitCalls, MemoryLimitFaults, MemoryLimitLookup};
use crate::{CgroupMemory, GpuComputeMode, MemoryKind, MemoryLimits, MigMode, NvmlCode};

/// The first driver with memory limits per cgroup.
const FIRST_DRIVER: u32 = 615;
/// File system type of cgroup v2.
const CGROUP2_MAGIC: u64 = 0x6367_7270;
/// The inode of the root cgroup.
const ROOT_INODE: u64 = 1;
/// `CAP_SYS_ADMIN` in the masks of `/proc/<pid>/status`.
const CAP_SYS_ADMIN: u64 = 1 << 21;
const MIB: u64 = 1 << 20;

/// One limit as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitRecord {
    /// The directory, as the process that set the limit named it.
    pub cgroup: PathBuf,
    /// The limits.
    #[serde(flatten)]
    pub limits: MemoryLimits,
    /// How often the GPU had been torn down when the limit was set. A teardown loses the limit.
    pub teardowns: u32,
}

impl LimitRecord {
    /// The name of its file in a shared record directory: the GPU's UUID and the inode of the cgroup's directory.
    pub fn file_name(gpu: &str, inode: u64) -> String {
        format!("{gpu}.limit.{inode}")
    }
}

impl Machine {
    /// Which of the two calls the library has. Without an answer in the control value, the driver's version decides.
    pub fn memory_limit_calls(&self, control: &Control) -> MemoryLimitCalls {
        let version = self.inventory().driver_version.as_deref();
        let major: Option<u32> = version.and_then(|version| version.split('.').next()?.parse().ok());
        control.memory_limit_calls.unwrap_or(match major {
            Some(major) if major >= FIRST_DRIVER => MemoryLimitCalls::Both,
            Some(_) | None => MemoryLimitCalls::None,
        })
    }

    /// Keeps the limits of a cgroup, or refuses as the driver does.
    pub fn set_memory_limits(
        &self,
        gpu: &FakeGpu,
        control: &Control,
        cgroup: &Path,
        limits: MemoryLimits,
    ) -> Result<(), NvmlCode> {
        let faults = self.limit_faults(gpu, control);
        match self.memory_limit_calls(control) {
            MemoryLimitCalls::Both | MemoryLimitCalls::SetOnly => {}
            MemoryLimitCalls::GetOnly | MemoryLimitCalls::None => return Err(NvmlCode::FUNCTION_NOT_FOUND),
        }
        std::thread::sleep(std::time::Duration::from_millis(faults.delay_ms));
        if let Some(code) = faults.set_code {
            return Err(NvmlCode(code));
        }
        if faults.needs_administrator && !is_administrator() {
            return Err(NvmlCode::NO_PERMISSION);
        }
        check_kind(gpu)?;
        let inode = inode_of(cgroup)?;
        if is_root(cgroup, inode) {
            return Err(NvmlCode::NOT_SUPPORTED);
        }
        let total_bytes = gpu.memory_mib * MIB;
        let above_hard = limits.hard_bytes.is_some_and(|hard| limits.soft_bytes > hard);
        if above_hard || limits.soft_bytes.max(limits.hard_bytes.unwrap_or(0)) > total_bytes {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        let record = LimitRecord {
            cgroup: cgroup.to_owned(),
            limits,
            teardowns: faults.teardowns,
        };
        let text = serde_json::to_string(&record).map_err(|_| NvmlCode::UNKNOWN)?;
        let key = LimitRecord::file_name(&gpu.device.uuid, inode);
        self.record().write(&key, text).map_err(|error| {
            tracing::warn!("the fake GPUs can't keep a memory limit: {error}");
            NvmlCode::UNKNOWN
        })
    }

    /// The limits of a cgroup, and what the processes in it and below it use.
    pub fn memory_limits(&self, gpu: &FakeGpu, control: &Control, cgroup: &Path) -> Result<CgroupMemory, NvmlCode> {
        let faults = self.limit_faults(gpu, control);
        match self.memory_limit_calls(control) {
            MemoryLimitCalls::Both | MemoryLimitCalls::GetOnly => {}
            MemoryLimitCalls::SetOnly | MemoryLimitCalls::None => return Err(NvmlCode::FUNCTION_NOT_FOUND),
        }
        std::thread::sleep(std::time::Duration::from_millis(faults.delay_ms));
        if let Some(code) = faults.get_code {
            return Err(NvmlCode(code));
        }
        check_kind(gpu)?;
        let inode = inode_of(cgroup)?;
        let mut limits = self
            .limits_in_force(gpu, control, cgroup)
            .ok_or_else(|| no_limit(control))?;
        if let Some(hard_mib) = faults.read_back_hard_mib {
            limits.hard_bytes = Some(hard_mib * MIB);
        }
        Ok(CgroupMemory {
            limits,
            used_bytes: self.used_bytes(gpu, control, inode),
        })
    }

    /// The memory of a GPU as a process in this cgroup is told it: total and used bytes. `None` if its cgroup has no hard limit.
    pub fn memory_within(&self, gpu: &FakeGpu, control: &Control, cgroup: &Path) -> Option<(u64, u64)> {
        check_kind(gpu).ok()?;
        let hard_bytes = self.limits_in_force(gpu, control, cgroup)?.hard_bytes?;
        let used_bytes = self.used_bytes(gpu, control, inode_of(cgroup).ok()?);
        Some((hard_bytes, used_bytes.min(hard_bytes)))
    }

    /// The compute mode, as it was last set.
    pub fn compute_mode(&self, gpu: &FakeGpu) -> GpuComputeMode {
        let text = self.record().read(&compute_mode_key(gpu)).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or(GpuComputeMode::Default)
    }

    /// Sets the compute mode.
    pub fn set_compute_mode(&self, gpu: &FakeGpu, mode: GpuComputeMode) -> Result<(), NvmlCode> {
        let text = serde_json::to_string(&mode).map_err(|_| NvmlCode::UNKNOWN)?;
        let written = self.record().write(&compute_mode_key(gpu), text);
        written.map_err(|_| NvmlCode::UNKNOWN)
    }

    fn limit_faults(&self, gpu: &FakeGpu, control: &Control) -> MemoryLimitFaults {
        let control = control.gpu(gpu.device.index, &gpu.device.uuid);
        control.memory_limits.unwrap_or_default()
    }

    fn limits_in_force(&self, gpu: &FakeGpu, control: &Control, cgroup: &Path) -> Option<MemoryLimits> {
        let depth = match control.memory_limit_lookup {
            MemoryLimitLookup::Nearest => usize::MAX,
            MemoryLimitLookup::Leaf => 1,
        };
        let teardowns = self.limit_faults(gpu, control).teardowns;
        cgroup.ancestors().take(depth).find_map(|directory| {
            let key = LimitRecord::file_name(&gpu.device.uuid, inode_of(directory).ok()?);
            let record: LimitRecord = serde_json::from_str(&self.record().read(&key)?).ok()?;
            (record.teardowns == teardowns).then_some(record.limits)
        })
    }

    /// Memory of the control value's processes in the cgroup with this inode, or below it.
    fn used_bytes(&self, gpu: &FakeGpu, control: &Control, inode: u64) -> u64 {
        let roots = CgroupRoots::of_this_machine();
        let control = control.gpu(gpu.device.index, &gpu.device.uuid);
        let within = |directory: &Path| {
            let inodes: BTreeSet<u64> = directory.ancestors().filter_map(|dir| inode_of(dir).ok()).collect();
            inodes.contains(&inode)
        };
        let processes = control.processes.iter().flatten();
        let here = processes.filter(|process| {
            let told = process.cgroup.clone();
            told.or_else(|| cgroup_of(&roots, &process.pid.to_string()))
                .is_some_and(|directory| within(&directory))
        });
        here.map(|process| process.memory_mib * MIB).sum()
    }
}

fn compute_mode_key(gpu: &FakeGpu) -> String {
    format!("{}.compute-mode", gpu.device.uuid)
}

/// A partition limits by itself, and memory that the GPU shares with the machine is not accounted.
fn check_kind(gpu: &FakeGpu) -> Result<(), NvmlCode> {
    let partitioned = gpu.device.mig_mode == Some(MigMode::Enabled);
    if partitioned || gpu.device.memory_kind == MemoryKind::Unified {
        return Err(NvmlCode::NOT_SUPPORTED);
    }
    Ok(())
}

/// What a read answers where there is no limit, by back end.
fn no_limit(control: &Control) -> NvmlCode {
    match control.memory_limit_lookup {
        MemoryLimitLookup::Nearest => NvmlCode::NOT_SUPPORTED,
        MemoryLimitLookup::Leaf => NvmlCode::NOT_FOUND,
    }
}

fn inode_of(directory: &Path) -> Result<u64, NvmlCode> {
    match std::fs::metadata(directory) {
        Ok(metadata) if metadata.is_dir() => Ok(metadata.ino()),
        Ok(_) | Err(_) => Err(NvmlCode::OPERATING_SYSTEM),
    }
}

fn is_root(directory: &Path, inode: u64) -> bool {
    let is_cgroup2 =
        || rustix::fs::statfs(directory).is_ok_and(|file_system| file_system.f_type as u64 == CGROUP2_MAGIC);
    directory.parent().is_none() || (inode == ROOT_INODE && is_cgroup2())
}

fn is_administrator() -> bool {
    has_cap_sys_admin(&std::fs::read_to_string("/proc/self/status").unwrap_or_default())
}

/// Whether the capability is in effect by the lines of `/proc/<pid>/status`.
fn has_cap_sys_admin(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & CAP_SYS_ADMIN != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Process, Settings};

    const GIB: u64 = 1 << 30;

    struct Stage {
        machine: Machine,
        dir: tempfile::TempDir,
    }

    impl Stage {
        fn new(gpus: &str) -> Stage {
            let mut settings: Settings = gpus.parse().unwrap();
            settings.driver_version = Some("615.71.09".to_owned());
            let machine = Machine::new(&settings).unwrap();
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(dir.path().join("pod/container")).unwrap();
            Stage { machine, dir }
        }

        fn cgroup(&self, path: &str) -> PathBuf {
            self.dir.path().join(path)
        }

        fn set(&self, path: &str, limits: MemoryLimits) -> Result<(), NvmlCode> {
            let control = self.machine.control();
            self.machine
                .set_memory_limits(&self.machine.gpus()[0], &control, &self.cgroup(path), limits)
        }

        fn get(&self, path: &str) -> Result<CgroupMemory, NvmlCode> {
            let control = self.machine.control();
            self.machine
                .memory_limits(&self.machine.gpus()[0], &control, &self.cgroup(path))
        }

        fn faults(&self, change: impl FnOnce(&mut MemoryLimitFaults)) {
            self.machine.change(|control| {
                let gpu = control.gpus.entry("0".to_owned()).or_default();
                change(gpu.memory_limits.get_or_insert_default());
            });
        }
    }

    fn limits(soft_bytes: u64, hard_bytes: Option<u64>) -> MemoryLimits {
        MemoryLimits { soft_bytes, hard_bytes }
    }

    #[test]
    fn what_is_set_is_read_by_inode_not_by_path() {
        let stage = Stage::new("a100-40");
        stage.set("pod/container", MemoryLimits::hard(4 * GIB)).unwrap();
        assert_eq!(stage.get("pod/container").unwrap().limits, MemoryLimits::hard(4 * GIB));
        std::fs::rename(stage.cgroup("pod"), stage.cgroup("moved")).unwrap();
        assert_eq!(
            stage.get("moved/container").unwrap().limits,
            MemoryLimits::hard(4 * GIB)
        );
        assert_eq!(stage.get("moved"), Err(NvmlCode::NOT_SUPPORTED));
        stage.set("moved/container", MemoryLimits::default()).unwrap();
        assert_eq!(stage.get("moved/container").unwrap().limits, MemoryLimits::default());
    }

    #[test]
    fn the_back_end_decides_whether_an_ancestor_counts() {
        let stage = Stage::new("a100-40");
        stage.set("pod", MemoryLimits::hard(GIB)).unwrap();
        assert_eq!(stage.get("pod/container").unwrap().limits, MemoryLimits::hard(GIB));
        stage
            .machine
            .change(|control| control.memory_limit_lookup = MemoryLimitLookup::Leaf);
        assert_eq!(stage.get("pod/container"), Err(NvmlCode::NOT_FOUND));
        assert_eq!(stage.get("pod").unwrap().limits, MemoryLimits::hard(GIB));
    }

    #[test]
    fn an_administrator_is_a_process_with_cap_sys_admin() {
        for (effective, administrator) in [
            ("000001ffffffffff", true),
            ("0000000000200000", true),
            // Root in a container with the default capabilities.
            ("00000000a80425fb", false),
            ("0000000000000000", false),
            ("", false),
        ] {
            let status =
                format!("Name:\tkai\nCapPrm:\t000001ffffffffff\nCapEff:\t{effective}\nCapBnd:\t000001ffffffffff\n");
            assert_eq!(has_cap_sys_admin(&status), administrator, "{effective}");
        }
        assert!(!has_cap_sys_admin(""));
        let stage = Stage::new("a100-40");
        stage.faults(|faults| faults.needs_administrator = true);
        let expected = match is_administrator() {
            true => Ok(()),
            false => Err(NvmlCode::NO_PERMISSION),
        };
        assert_eq!(stage.set("pod", MemoryLimits::hard(GIB)), expected);
        // Reading needs no privilege.
        stage.faults(|faults| faults.needs_administrator = false);
        stage.set("pod", MemoryLimits::hard(GIB)).unwrap();
        stage.faults(|faults| faults.needs_administrator = true);
        assert_eq!(stage.get("pod").unwrap().limits, MemoryLimits::hard(GIB));
    }

    #[test]
    fn limits_that_make_no_sense_are_refused() {
        let stage = Stage::new("a100-40");
        let total = 40_960 * MIB;
        for (path, limits, answer) in [
            ("pod", limits(0, Some(total)), Ok(())),
            ("pod", limits(GIB, Some(GIB)), Ok(())),
            ("pod", limits(GIB, None), Ok(())),
            ("pod", limits(GIB + 1, Some(GIB)), Err(NvmlCode::INVALID_ARGUMENT)),
            ("pod", limits(0, Some(total + 1)), Err(NvmlCode::INVALID_ARGUMENT)),
            ("pod", limits(total + 1, None), Err(NvmlCode::INVALID_ARGUMENT)),
            ("gone", limits(0, Some(GIB)), Err(NvmlCode::OPERATING_SYSTEM)),
            ("/", limits(0, Some(GIB)), Err(NvmlCode::NOT_SUPPORTED)),
        ] {
            assert_eq!(stage.set(path, limits), answer, "{path} {limits}");
        }
        std::fs::write(stage.cgroup("file"), "").unwrap();
        assert_eq!(
            stage.set("file", MemoryLimits::hard(1)),
            Err(NvmlCode::OPERATING_SYSTEM)
        );
        for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
            if Path::new(root).join("cgroup.controllers").exists() && inode_of(Path::new(root)) == Ok(ROOT_INODE) {
                assert_eq!(stage.set(root, MemoryLimits::hard(1)), Err(NvmlCode::NOT_SUPPORTED));
            }
        }
    }

    #[test]
    fn partitions_and_shared_memory_have_no_limits() {
        for gpus in ["a100-40/1g.5gb", "gb10", "thor", "orin-agx"] {
            let stage = Stage::new(gpus);
            assert_eq!(
                stage.set("pod", MemoryLimits::hard(1)),
                Err(NvmlCode::NOT_SUPPORTED),
                "{gpus}"
            );
        }
    }

    #[test]
    fn older_drivers_lack_the_calls_unless_told_otherwise() {
        let stage = Stage::new("a100-40");
        for (calls, set, get) in [
            (MemoryLimitCalls::None, false, false),
            (MemoryLimitCalls::SetOnly, true, false),
            (MemoryLimitCalls::GetOnly, false, true),
            (MemoryLimitCalls::Both, true, true),
        ] {
            stage.machine.change(|control| control.memory_limit_calls = Some(calls));
            assert_eq!(
                stage.set("pod", MemoryLimits::hard(1)) != Err(NvmlCode::FUNCTION_NOT_FOUND),
                set
            );
            assert_eq!(stage.get("pod") != Err(NvmlCode::FUNCTION_NOT_FOUND), get);
        }
        for (version, calls) in [("570.1", MemoryLimitCalls::None), ("615.71.09", MemoryLimitCalls::Both)] {
            let mut settings = Settings::of("t4", 1);
            settings.driver_version = Some(version.to_owned());
            let machine = Machine::new(&settings).unwrap();
            assert_eq!(machine.memory_limit_calls(&machine.control()), calls, "{version}");
        }
    }

    #[test]
    fn it_fails_and_forgets_on_request() {
        let stage = Stage::new("a100-40");
        stage.set("pod", MemoryLimits::hard(GIB)).unwrap();
        for code in [3, 4, 6, 17, 999] {
            stage.faults(|faults| faults.set_code = Some(code));
            assert_eq!(stage.set("pod", MemoryLimits::hard(1)), Err(NvmlCode(code)));
            stage.faults(|faults| (faults.set_code, faults.get_code) = (None, Some(code)));
            assert_eq!(stage.get("pod"), Err(NvmlCode(code)));
            stage.faults(|faults| faults.get_code = None);
        }
        stage.faults(|faults| faults.read_back_hard_mib = Some(5));
        assert_eq!(stage.get("pod").unwrap().limits, MemoryLimits::hard(5 * MIB));
        stage.faults(|faults| (faults.read_back_hard_mib, faults.teardowns) = (None, 1));
        assert_eq!(stage.get("pod"), Err(NvmlCode::NOT_SUPPORTED), "the limit is lost");
        stage.set("pod", MemoryLimits::hard(GIB)).unwrap();
        assert_eq!(stage.get("pod").unwrap().limits, MemoryLimits::hard(GIB));
    }

    #[test]
    fn a_cgroup_uses_what_its_processes_use() {
        let stage = Stage::new("a100-40");
        let process = |pid, memory_mib, path: &str| Process {
            pid,
            memory_mib,
            cgroup: Some(stage.cgroup(path)),
            ..Process::default()
        };
        let processes = vec![
            process(1, 100, "pod/container"),
            process(2, 20, "pod"),
            process(3, 3, ""),
        ];
        stage
            .machine
            .change(|control| control.gpus.entry("0".into()).or_default().processes = Some(processes));
        stage.set("pod", MemoryLimits::hard(64 * MIB)).unwrap();
        assert_eq!(stage.get("pod").unwrap().used_bytes, 120 * MIB);
        assert_eq!(stage.get("pod/container").unwrap().used_bytes, 100 * MIB);
        let (machine, control) = (&stage.machine, stage.machine.control());
        let within = |path: &str| machine.memory_within(&machine.gpus()[0], &control, &stage.cgroup(path));
        assert_eq!(
            within("pod/container"),
            Some((64 * MIB, 64 * MIB)),
            "never more than the limit"
        );
        assert_eq!(within(""), None);
    }

    #[test]
    fn processes_that_name_one_directory_share_the_limits() {
        let record = tempfile::tempdir().unwrap();
        let mut stages = [Stage::new("a100-40:2"), Stage::new("a100-40:2")];
        for stage in &mut stages {
            let mut settings: Settings = "a100-40:2".parse().unwrap();
            settings.driver_version = Some("615.1".to_owned());
            settings.record_dir = Some(record.path().to_owned());
            stage.machine = Machine::new(&settings).unwrap();
        }
        let [one, other] = &stages;
        one.set("pod", MemoryLimits::hard(GIB)).unwrap();
        let gpus = other.machine.gpus();
        let get = |gpu| {
            other
                .machine
                .memory_limits(gpu, &other.machine.control(), &one.cgroup("pod"))
        };
        assert_eq!(get(&gpus[0]).unwrap().limits, MemoryLimits::hard(GIB));
        assert!(get(&gpus[1]).is_err(), "limits are per GPU");
        one.machine
            .set_compute_mode(&gpus[0], GpuComputeMode::ExclusiveProcess)
            .unwrap();
        assert_eq!(other.machine.compute_mode(&gpus[0]), GpuComputeMode::ExclusiveProcess);
        assert_eq!(other.machine.compute_mode(&gpus[1]), GpuComputeMode::Default);
    }
}
