//! Reads what the pods of this node use on its GPUs: the processes from the driver (on a Jetson from nvmap), their pods from `/proc`. Only
//! reads; `decide` judges.

use std::path::{Path, PathBuf};

use kai_gpu::{Driver, GpuProcess, GpuProcessKind, GpuProcesses, ProcessList, Roots};

use super::decide::{Usage, UsedMemory};
use super::nvmap;
use super::place::{ContainerPlace, place_of, pods_around};

/// The inode of the machine's first pid namespace, which the kernel gives it always.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";
/// The program that holds the namespaces of a pod.
const PAUSE: &str = "pause";

/// Where processes are described. Tests use directories of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessFiles {
    /// `/proc` of this process's pid namespace.
    pub proc: PathBuf,
    /// nvmap's file with the memory of each process.
    pub nvmap: PathBuf,
}

impl ProcessFiles {
    /// The files of this machine. `/proc` is that of the agent itself: the driver gives pids in the agent's pid namespace.
    pub fn of(roots: &Roots) -> Self {
        Self {
            proc: PathBuf::from("/proc"),
            nvmap: nvmap::clients_file(&roots.sys),
        }
    }
}

/// Whether this node can see what its pods use; the error says why not, and what would help. Reads files and asks the driver, so an async
/// caller wraps it in a blocking task.
pub fn ability(driver: &dyn Driver, files: &ProcessFiles) -> Result<(), String> {
    host_processes(files)?;
    let listed = match driver.processes() {
        Ok(listed) => listed,
        Err(error) => {
            return Err(format!(
                "the processes on the GPUs are not known: {}",
                error.with_remedy()
            ));
        }
    };
    let hidden: Vec<&str> = listed
        .iter()
        .filter(|gpu| gpu.processes == ProcessList::NotOffered)
        .map(|gpu| gpu.uuid.as_str())
        .collect();
    if hidden.is_empty() || nvmap::read(&files.nvmap).is_ok() {
        return Ok(());
    }
    Err(format!(
        "the driver does not list the processes on GPU {}, and {} can't be read, which has the memory of processes on a Jetson",
        hidden.join(", "),
        files.nvmap.display()
    ))
}

/// Whether this process sees the processes of the host; the error says what would help.
pub fn host_processes(files: &ProcessFiles) -> Result<(), String> {
    match sees_processes_of_host(&files.proc) {
        true => Ok(()),
        false => Err(
            "the agent does not see the processes of the host, by whose ids the driver names them; run it with hostPID: true (chart value \
             nodeAgent.hostPID)"
                .to_owned(),
        ),
    }
}

/// What is known about the pid namespace of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Namespace {
    /// `pid:[<inode>]`.
    link: String,
    own_pid: u32,
    own_cgroup: String,
    /// Name and cgroup of the namespace's first process.
    first_name: String,
    first_cgroup: String,
}

/// The first process of a pod's namespace is a container's program or the pod's pause program. With the host's namespace it is the host's
/// init, also where the host is itself a container.
fn is_of_host(namespace: &Namespace) -> bool {
    let has_own_init = namespace.own_pid == 1
        || namespace.first_name == PAUSE
        || namespace.first_cgroup.is_empty()
        || namespace.first_cgroup == namespace.own_cgroup;
    namespace.link == FIRST_PID_NAMESPACE || !has_own_init
}

fn sees_processes_of_host(proc: &Path) -> bool {
    let text = |path: &str| std::fs::read_to_string(proc.join(path)).unwrap_or_default();
    let link = |path: &str| std::fs::read_link(proc.join(path)).unwrap_or_default();
    is_of_host(&Namespace {
        link: link("self/ns/pid").display().to_string(),
        own_pid: link("self").display().to_string().parse().unwrap_or(1),
        own_cgroup: text("self/cgroup"),
        first_name: text("1/comm").trim().to_owned(),
        first_cgroup: text("1/cgroup"),
    })
}

/// What the pods of this node use on each GPU. Blocks as long as the driver does.
pub fn usage(driver: &dyn Driver, files: &ProcessFiles) -> Result<Usage, kai_gpu::GpuError> {
    let mut listed = driver.processes()?;
    add_nvmap(&mut listed, files);
    let cgroup_of = |process: &str| std::fs::read_to_string(files.proc.join(process).join("cgroup")).ok();
    let around = pods_around(&cgroup_of("self").unwrap_or_default());
    Ok(by_pod(&listed, |pid| place_of(&cgroup_of(&pid.to_string())?, &around)))
}

/// Gives nvmap's processes to the GPU whose processes the driver does not list. A Jetson has one integrated GPU; with several such GPUs the
/// file does not say which of them a process uses, so none gets them.
fn add_nvmap(listed: &mut [GpuProcesses], files: &ProcessFiles) {
    let mut hidden = listed.iter_mut().filter(|gpu| gpu.processes == ProcessList::NotOffered);
    let (Some(gpu), None) = (hidden.next(), hidden.next()) else {
        return;
    };
    let Ok(bytes) = nvmap::read(&files.nvmap) else { return };
    let process = |(pid, bytes)| GpuProcess {
        pid,
        used_bytes: Some(bytes),
        kind: GpuProcessKind::Compute,
        mig: None,
    };
    gpu.processes = ProcessList::Listed(bytes.into_iter().map(process).collect());
}

/// Sums by pod. Processes in MIG partitions do not count: a partition holds by itself.
fn by_pod(listed: &[GpuProcesses], place: impl Fn(u32) -> Option<ContainerPlace>) -> Usage {
    let mut usage = Usage::default();
    for gpu in listed {
        if gpu.processes == ProcessList::Unanswered {
            usage.unanswered.insert(gpu.uuid.clone());
        }
        for process in gpu.processes.known().iter().filter(|process| process.mig.is_none()) {
            let Some(place) = place(process.pid) else {
                continue;
            };
            let used: &mut UsedMemory = usage.used.entry((place.pod_uid, gpu.uuid.clone())).or_default();
            match process.used_bytes {
                Some(bytes) => used.bytes = used.bytes.saturating_add(bytes),
                None => used.unmeasured += 1,
            }
        }
    }
    usage
}

#[cfg(test)]
mod tests {
    use super::*;
    use kai_gpu::fake::{FakeDriver, GpuState, Settings};

    const UID: &str = "0f9c8a52-3d1e-4c7b-9a6f-1b2c3d4e5f60";
    const MIB: u64 = 1 << 20;

    fn driver(gpus: &str, control: &str) -> FakeDriver {
        FakeDriver::new(&gpus.parse::<Settings>().unwrap().controlled(control).unwrap()).unwrap()
    }

    /// `/proc` as a process of the host's namespace sees it.
    fn host(dir: &Path) -> ProcessFiles {
        let proc = dir.join("proc");
        std::fs::create_dir_all(proc.join("77/ns")).unwrap();
        std::os::unix::fs::symlink("77", proc.join("self")).unwrap();
        std::os::unix::fs::symlink(FIRST_PID_NAMESPACE, proc.join("77/ns/pid")).unwrap();
        ProcessFiles {
            proc,
            nvmap: nvmap::clients_file(&dir.join("sys")),
        }
    }

    fn add_process(files: &ProcessFiles, pid: u32, cgroup: &str) {
        let dir = files.proc.join(pid.to_string());
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("cgroup"), cgroup).unwrap();
    }

    #[test]
    fn memory_is_summed_by_pod_and_gpu() {
        let dir = tempfile::tempdir().unwrap();
        let files = host(dir.path());
        for (pid, container) in [
            (10, "aaaaaaaaaaaaaaaa"),
            (11, "bbbbbbbbbbbbbbbb"),
            (12, "bbbbbbbbbbbbbbbb"),
        ] {
            add_process(&files, pid, &format!("0::/kubepods/burstable/pod{UID}/{container}\n"));
        }
        add_process(&files, 20, "0::/system.slice/display.service\n");
        let control = "{gpus: {0: {processes: [{pid: 10, memoryMib: 100}, {pid: 11, memoryMib: 20}, {pid: 12, memoryUnavailable: true}, \
                       {pid: 20, memoryMib: 7}, {pid: 99, memoryMib: 8}]}, 1: {processes: [{pid: 10, memoryMib: 3}]}}}";
        let driver = driver("h100:2", control);
        let gpus: Vec<String> = driver
            .devices()
            .unwrap()
            .devices
            .into_iter()
            .map(|gpu| gpu.uuid)
            .collect();
        let key = |gpu: usize| (UID.to_owned(), gpus[gpu].clone());
        let used = |bytes, unmeasured| UsedMemory { bytes, unmeasured };
        assert_eq!(
            usage(&driver, &files).unwrap().used,
            [(key(0), used(120 * MIB, 1)), (key(1), used(3 * MIB, 0))].into()
        );
        assert_eq!(ability(&driver, &files), Ok(()));
        driver.set_state("1", GpuState::Lost);
        let now = usage(&driver, &files).unwrap();
        assert_eq!(now.used, [(key(0), used(120 * MIB, 1))].into());
        assert_eq!(now.unanswered, [gpus[1].clone()].into());
        assert_eq!(ability(&driver, &files), Ok(()), "the other GPU is still watched");
    }

    #[test]
    fn a_jetson_is_watched_by_nvmap_and_only_by_it() {
        let dir = tempfile::tempdir().unwrap();
        let files = host(dir.path());
        let driver = driver("orin-agx", "{}");
        let refusal = ability(&driver, &files).unwrap_err();
        assert!(refusal.contains("nvmap/iovmm/clients can't be read"), "{refusal}");
        assert_eq!(usage(&driver, &files).unwrap(), Usage::default());
        std::fs::create_dir_all(files.nvmap.parent().unwrap()).unwrap();
        std::fs::write(&files.nvmap, nvmap::tests::file(&[("python3", 10, 2048)])).unwrap();
        add_process(&files, 10, &format!("12:memory:/kubepods/pod{UID}/aaaaaaaaaaaaaaaa\n"));
        assert_eq!(ability(&driver, &files), Ok(()));
        let gpu = driver.devices().unwrap().devices[0].uuid.clone();
        assert_eq!(
            usage(&driver, &files).unwrap().used[&(UID.to_owned(), gpu)].bytes,
            2 * MIB
        );
    }

    #[test]
    fn partitions_hold_by_themselves() {
        let dir = tempfile::tempdir().unwrap();
        let files = host(dir.path());
        add_process(&files, 10, &format!("0::/kubepods/pod{UID}/aaaaaaaaaaaaaaaa\n"));
        let driver = driver("a100-40/1g.5gb", "{gpus: {0: {processes: [{pid: 10, memoryMib: 9}]}}}");
        assert_eq!(usage(&driver, &files).unwrap(), Usage::default());
    }

    #[test]
    fn a_driver_that_does_not_answer_is_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let files = host(dir.path());
        let refusal = ability(&driver("t4", "{library: driver-not-loaded}"), &files).unwrap_err();
        assert!(
            refusal.contains("Driver Not Loaded") && refusal.contains("modprobe"),
            "{refusal}"
        );
    }

    #[test]
    fn the_pid_namespace_of_a_pod_is_told_from_the_hosts() {
        let pod = Namespace {
            link: "pid:[4026532700]".to_owned(),
            own_pid: 1,
            own_cgroup: "0::/\n".to_owned(),
            first_name: "kai".to_owned(),
            first_cgroup: "0::/\n".to_owned(),
        };
        let with = |change: &dyn Fn(&mut Namespace)| {
            let mut namespace = pod.clone();
            change(&mut namespace);
            namespace
        };
        let init = |namespace: &mut Namespace| {
            namespace.own_pid = 4242;
            namespace.first_name = "systemd".to_owned();
            namespace.first_cgroup = "0::/../../../init.scope\n".to_owned();
        };
        for (namespace, of_host, why) in [
            (pod.clone(), false, "a container's own namespace"),
            (
                with(&|namespace| namespace.own_pid = 7),
                false,
                "an init program in the container",
            ),
            (
                with(&|namespace| {
                    init(namespace);
                    namespace.first_name = "pause".to_owned();
                }),
                false,
                "containers of a pod that share a namespace",
            ),
            (
                with(&|namespace| namespace.link = FIRST_PID_NAMESPACE.to_owned()),
                true,
                "hostPID",
            ),
            (with(&init), true, "hostPID where the host is a container, as with kind"),
        ] {
            assert_eq!(is_of_host(&namespace), of_host, "{why}");
        }
        let dir = tempfile::tempdir().unwrap();
        let refusal = ability(
            &driver("t4", "{}"),
            &ProcessFiles {
                proc: dir.path().to_owned(),
                nvmap: dir.path().join("none"),
            },
        );
        assert!(refusal.unwrap_err().contains("hostPID: true"));
    }
}
