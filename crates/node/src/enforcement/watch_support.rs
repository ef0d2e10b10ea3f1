//! Whether this node can have the tiers `watch` and `mps`.

use std::fs;
use std::path::Path;

use kai_gpu::Driver;

use super::facts::EnforcementSettings;
use crate::driver_files::host_root::HostRoot;

/// Why the agent can't see what containers use.
pub fn watch(settings: &EnforcementSettings, driver: &dyn Driver) -> Result<(), String> {
    let listed = driver.processes().map_err(|error| error.with_remedy())?;
    if listed.iter().all(|gpu| gpu.processes.is_none()) {
        return Err("the driver does not list the processes on the GPUs".to_owned());
    }
    let proc = HostRoot::new(&settings.host_root).local_path("/proc");
    match sees_host_processes(&proc) {
        true => Ok(()),
        false => Err(
            "the agent does not see the host's processes; run its pod with hostPID: true (chart: nodeAgent.hostPID)"
                .to_owned(),
        ),
    }
}

/// Why a multi-process server can't hold containers.
pub fn mps(_settings: &EnforcementSettings) -> Result<(), String> {
    Err("this node agent has no multi-process server".to_owned())
}

/// Whether the PID namespace of this process is the one that `proc` was mounted in. `/proc/self` is the reader's pid in the namespace of
/// the mount, and does not exist if the reader is not in it.
fn sees_host_processes(proc: &Path) -> bool {
    let shown = fs::read_link(proc.join("self")).ok();
    shown.and_then(|pid| pid.to_str()?.parse().ok()) == Some(std::process::id())
}
