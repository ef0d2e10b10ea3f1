//! The hook in a CDI spec: its command line and environment, from what a container was promised. Pure.

use super::hold::{EnforcePolicy, HoldRequest};
use super::hook::TIMEOUT_SECONDS;
use super::limits::GpuLimit;
use super::tier::HookSetup;
use crate::driver_files::cdi::Hook;

/// The point at which the container's cgroup exists and its program does not run yet.
const HOOK_NAME: &str = "createRuntime";

/// File name of a share device's receipt.
fn receipt_file(share_device: &str) -> String {
    format!("{share_device}.json")
}

/// The hook that holds the container of a share device.
pub fn holding_hook(setup: &HookSetup, share_device: &str, request: &HoldRequest) -> Hook {
    let mut options = Vec::new();
    let mut add = |name: &str, value: String| options.extend([format!("--{name}"), value]);
    for limit in &request.limits {
        add("gpu", limit.to_string());
    }
    if let Some(bytes) = request.system_memory_bytes {
        add("system-memory", bytes.to_string());
    }
    add("policy", request.policy.name().to_owned());
    add(
        "receipt",
        setup.receipts.join(receipt_file(share_device)).display().to_string(),
    );
    add("namespace", request.container.namespace.clone());
    add("pod", request.container.pod.clone());
    add("uid", request.container.uid.clone());
    add("container", request.container.container.clone());
    hook(setup, options)
}

/// The hook that lifts what the driver may still hold against the cgroup of a container with a whole GPU: one of its two ways to count
/// keys limits by the kernel's address of a cgroup, which a later cgroup may get. A container with a whole GPU starts even if this fails.
pub fn lifting_hook(setup: &HookSetup, gpu: &str) -> Hook {
    let options = [
        "--gpu".to_owned(),
        GpuLimit::none(gpu).to_string(),
        "--policy".to_owned(),
        EnforcePolicy::Open.name().to_owned(),
    ];
    hook(setup, options.into())
}

fn hook(setup: &HookSetup, mut options: Vec<String>) -> Hook {
    if let Some(library) = &setup.library {
        options.extend(["--nvml-library".to_owned(), library.clone()]);
    }
    Hook {
        hook_name: HOOK_NAME.to_owned(),
        path: setup.program.path().display().to_string(),
        args: setup.program.command(options),
        env: setup.environment.clone(),
        timeout: Some(TIMEOUT_SECONDS),
    }
}
