//! The idle memory of the installed `kai all` and of the agent, as the kernel counts it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::machine::Machine;
use crate::pods::fraction;
use crate::releases;
use crate::scenes::scene;

/// The time without work before the measurement. kai releases code every minute.
const IDLE: Duration = Duration::from_secs(130);
/// The limit of `kai all` on a small cluster.
const ALL_MIB_MAX: f64 = 30.0;

const MIB: f64 = 1024.0 * 1024.0;

/// Installs the chart, runs a pod, and measures after two minutes without work.
pub(crate) async fn measure_idle(machine: &mut Machine) {
    scene("idle memory of the installed program");
    releases::install(machine, "all-in-one");
    machine.create(&fraction("half", "0.5")).await;
    machine.seen("half").await;
    machine.delete(&["half"], 0).await;
    tokio::time::sleep(IDLE).await;
    let all = Memory::of_process("all");
    println!("kai all: {all}");
    println!("kai node-agent: {}", Memory::of_process("node-agent"));
    releases::uninstall(machine);
    assert!(
        all.resident_mib() < ALL_MIB_MAX && all.working_set_mib < ALL_MIB_MAX,
        "kai all takes more than {ALL_MIB_MAX} MiB"
    );
}

struct Memory {
    /// The lines of `/proc/PID/status`.
    status: BTreeMap<String, String>,
    /// Memory of the container without files that the kernel can drop, which is what the kubelet calls its working set.
    working_set_mib: f64,
}

impl Memory {
    /// The memory of the only container that runs this subcommand of kai.
    fn of_process(subcommand: &str) -> Memory {
        let directory = process_of(subcommand);
        let status = fs::read_to_string(directory.join("status")).unwrap();
        let lines = status.lines().filter_map(|line| line.split_once(':'));
        Memory {
            status: lines
                .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
                .collect(),
            working_set_mib: working_set(&directory) as f64 / MIB,
        }
    }

    fn status_mib(&self, name: &str) -> f64 {
        let kib = self.status[name].strip_suffix(" kB").unwrap();
        kib.parse::<f64>().unwrap() / 1024.0
    }

    fn resident_mib(&self) -> f64 {
        self.status_mib("VmRSS")
    }
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "working set {:.1} MiB", self.working_set_mib)?;
        for name in ["VmRSS", "RssAnon", "RssFile", "VmHWM"] {
            write!(f, ", {name} {:.1} MiB", self.status_mib(name))?;
        }
        write!(f, ", {} threads", self.status["Threads"])
    }
}

/// The directory in `/proc` of the only process with these arguments.
fn process_of(subcommand: &str) -> PathBuf {
    let found: Vec<PathBuf> = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|directory| {
            let line = fs::read(directory.join("cmdline")).unwrap_or_default();
            let arguments: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            arguments.first() == Some(&&b"/usr/bin/kai"[..]) && arguments.get(1) == Some(&subcommand.as_bytes())
        })
        .collect();
    assert_eq!(found.len(), 1, "processes of kai {subcommand}: {found:?}");
    found.into_iter().next().unwrap()
}

/// The working set of a process' cgroup, of version 1 or 2.
fn working_set(process: &Path) -> u64 {
    let groups = fs::read_to_string(process.join("cgroup")).unwrap();
    let of_controller = |controller: &str| {
        groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let controllers = parts.next()?;
            let path = parts.next()?.trim_start_matches('/');
            controllers
                .split(',')
                .any(|name| name == controller)
                .then(|| path.to_owned())
        })
    };
    let (directory, usage, inactive) = match of_controller("memory") {
        Some(path) => (
            Path::new("/sys/fs/cgroup/memory").join(path),
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
        None => (
            Path::new("/sys/fs/cgroup").join(of_controller("").unwrap()),
            "memory.current",
            "inactive_file",
        ),
    };
    let read = |file: &str| fs::read_to_string(directory.join(file)).unwrap();
    let counted = read("memory.stat");
    let inactive = counted
        .lines()
        .find_map(|line| line.strip_prefix(inactive)?.trim().parse::<u64>().ok())
        .unwrap();
    read(usage).trim().parse::<u64>().unwrap().saturating_sub(inactive)
}
