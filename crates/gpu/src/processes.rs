//! The processes on the GPUs, and the compute mode that says how many of them a GPU admits.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::MigInstance;

/// The processes on one GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuProcesses {
    /// UUID of the physical GPU.
    pub uuid: String,
    /// What the driver says about them.
    pub processes: ProcessList,
}

/// What the driver says about the processes on a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessList {
    /// Those that are visible in this process's pid namespace, each once, in the order of their pids.
    Listed(Vec<GpuProcess>),
    /// The driver never lists the processes of this GPU.
    #[default]
    NotOffered,
    /// The GPU did not answer.
    Unanswered,
}

impl ProcessList {
    /// The processes; empty if they are not known.
    pub fn known(&self) -> &[GpuProcess] {
        match self {
            ProcessList::Listed(processes) => processes,
            ProcessList::NotOffered | ProcessList::Unanswered => &[],
        }
    }
}

/// A process with a context on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuProcess {
    /// Process id in the pid namespace of this process.
    pub pid: u32,
    /// GPU memory that it uses. `None`: the driver does not say.
    pub used_bytes: Option<u64>,
    /// What it does.
    pub kind: GpuProcessKind,
    /// The MIG device it runs on, if any.
    pub mig: Option<MigInstance>,
}

/// What a process does on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuProcessKind {
    /// It computes.
    Compute,
    /// It computes through a multi-process server.
    MpsClient,
    /// It renders.
    Graphics,
}

/// One entry per process and MIG device. NVML lists a process that computes and renders twice, with the same memory.
pub(crate) fn each_process_once(listed: impl IntoIterator<Item = GpuProcess>) -> Vec<GpuProcess> {
    let mut found: BTreeMap<(u32, Option<(u32, u32)>), GpuProcess> = BTreeMap::new();
    for process in listed {
        let mig = process.mig.map(|mig| (mig.gpu_instance_id, mig.compute_instance_id));
        let entry = found.entry((process.pid, mig)).or_insert(process);
        entry.used_bytes = entry.used_bytes.max(process.used_bytes);
        entry.kind = entry.kind.min(process.kind);
    }
    found.into_values().collect()
}

/// How many processes may have a context on a GPU: NVML's compute mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuComputeMode {
    /// Any number.
    Default,
    /// None.
    Prohibited,
    /// One. With a multi-process server this one is the server, and others have to be its clients.
    ExclusiveProcess,
}

impl fmt::Display for GpuComputeMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GpuComputeMode::Default => "DEFAULT",
            GpuComputeMode::Prohibited => "PROHIBITED",
            GpuComputeMode::ExclusiveProcess => "EXCLUSIVE_PROCESS",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_computes_and_renders_counts_once() {
        let process = |pid, used_bytes, kind, mig: Option<u32>| GpuProcess {
            pid,
            used_bytes,
            kind,
            mig: mig.map(|gpu_instance_id| MigInstance {
                gpu_instance_id,
                compute_instance_id: 0,
            }),
        };
        let listed = [
            process(9, Some(5), GpuProcessKind::Graphics, None),
            process(7, None, GpuProcessKind::Compute, None),
            process(9, Some(5), GpuProcessKind::Compute, None),
            process(8, Some(1), GpuProcessKind::Compute, Some(1)),
            process(8, Some(2), GpuProcessKind::Compute, Some(2)),
        ];
        assert_eq!(
            each_process_once(listed),
            [
                process(7, None, GpuProcessKind::Compute, None),
                process(8, Some(1), GpuProcessKind::Compute, Some(1)),
                process(8, Some(2), GpuProcessKind::Compute, Some(2)),
                process(9, Some(5), GpuProcessKind::Compute, None),
            ]
        );
    }
}
