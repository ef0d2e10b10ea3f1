//! The hook in a CDI spec: its command line and environment, from what a container was promised. Pure.

use super::hold::{EnforcePolicy, HoldRequest};
use super::hook::TIMEOUT_SECONDS;
use super::limits::GpuLimit;
use super::receipt_dir;
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
/// keys limits by the kernel's address of a cgroup, which a later cgroup may get. A container with a whole GPU starts even if this fails, and the
/// receipt of the failure is for the agent's log and metrics. Each GPU has a hook of its own: a GPU that is lost holds up no other's containers.
pub fn lifting_hook(setup: &HookSetup, gpu: &str) -> Hook {
    let options = [
        "--gpu".to_owned(),
        GpuLimit::none(gpu).to_string(),
        "--policy".to_owned(),
        EnforcePolicy::Open.name().to_owned(),
        "--receipt-on-failure".to_owned(),
        setup.receipts.join(receipt_dir::lift_file(gpu)).display().to_string(),
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

#[cfg(test)]
mod tests {
    use super::super::hook::HookArgs;
    use super::super::program::HookProgram;
    use super::super::receipt::ContainerName;
    use super::*;

    #[test]
    fn the_hook_reads_what_the_agent_writes() {
        let setup = HookSetup {
            program: HookProgram {
                directory: "/var/lib/kai/hook/abc".into(),
                loader: "ld.so".to_owned(),
            },
            library: Some("/usr/lib/libnvidia-ml.so.615".to_owned()),
            environment: vec!["A=b".to_owned()],
            receipts: "/var/lib/kai/limits".into(),
            policy: EnforcePolicy::Closed,
        };
        let request = HoldRequest {
            container: ContainerName {
                namespace: "team".to_owned(),
                pod: "half".to_owned(),
                uid: "uid-1".to_owned(),
                container: "main".to_owned(),
            },
            limits: vec![GpuLimit::hard("GPU-1", 5), GpuLimit::hard("GPU-2", 7)],
            system_memory_bytes: Some(9),
            policy: EnforcePolicy::Open,
        };
        let hook = holding_hook(&setup, "share-1", &request);
        assert_eq!(
            (hook.path.as_str(), hook.env.as_slice()),
            ("/var/lib/kai/hook/abc/ld.so", &["A=b".to_owned()][..])
        );
        let read = HookArgs::of_words(&hook.args).unwrap();
        assert_eq!(read.request(), request);
        assert_eq!(
            read.receipt.as_deref(),
            Some("/var/lib/kai/limits/share-1.json".as_ref())
        );
        assert_eq!(
            read.nvml_library.as_deref(),
            Some("/usr/lib/libnvidia-ml.so.615".as_ref())
        );

        let lifting = HookArgs::of_words(&lifting_hook(&setup, "GPU-1").args).unwrap();
        assert_eq!(
            (lifting.gpus, lifting.policy),
            (vec![GpuLimit::none("GPU-1")], EnforcePolicy::Open)
        );
        assert_eq!(lifting.receipt, None);
        assert_eq!(
            lifting.receipt_on_failure.as_deref(),
            Some("/var/lib/kai/limits/GPU-1.lift".as_ref())
        );
        assert!(HookArgs::of_words(&["kai".to_owned()]).is_err());
    }
}
