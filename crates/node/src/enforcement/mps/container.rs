//! What a container with compute mode `sm-sharing` gets: its part of the multiprocessors, and the edits of its CDI spec. Pure.

use std::path::Path;

use kai_api::GpuLimits;
use serde_json::Value;

use super::plan::{MpsPlan, Namespace, Protocol, gpu_pipe_dir, namespace_dir, namespace_name};
use crate::driver_files::cdi::{Edits, Mount};

/// Where a container finds its namespace: the directory that CUDA uses by default.
const CONTAINER_DIR: &str = "/tmp/nvidia-mps";
/// Shared memory of the host, through which clients of the older protocol pass pinned memory.
const SHARED_MEMORY: &str = "/dev/shm";

/// A container's part of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MpsShare {
    /// The namespace, which has to exist before the container starts.
    pub namespace: Namespace,
    /// UUIDs of the GPUs.
    pub gpus: Vec<String>,
}

/// What a pod's container was promised.
#[derive(Debug, Clone, Copy)]
pub struct ShareRequest<'a> {
    /// Namespace and name of the pod, for messages.
    pub pod: &'a str,
    /// The pod as the API server sent it: the users of its containers.
    pub object: &'a Value,
    /// What the binder wrote.
    pub limits: &'a GpuLimits,
    /// The share device.
    pub share_device: &'a str,
    /// UUIDs of its GPUs.
    pub gpus: &'a [String],
    /// The memory of the smallest of them.
    pub gpu_memory_mib: u64,
}

/// The part of the server, or a sentence that says why the container can't have one.
pub fn share(plan: &MpsPlan, request: &ShareRequest) -> Result<MpsShare, String> {
    let ShareRequest { pod, limits, .. } = *request;
    if may_run_as_root(request.object, &limits.container) {
        return Err(format!(
            "container {} of pod {pod} may run as root, and root could lift its own share of the multi-process server; set \
             securityContext.runAsNonRoot: true or runAsUser, or use compute mode time-slicing",
            limits.container
        ));
    }
    match plan.protocol {
        Protocol::Legacy if request.gpus.len() > 1 => {
            return Err(format!(
                "pod {pod} shares {} GPUs, and the multi-process server of this driver serves one GPU per container; install driver 615 or \
                 newer, or use compute mode time-slicing",
                request.gpus.len()
            ));
        }
        Protocol::Legacy | Protocol::Namespaces => {}
    }
    Ok(MpsShare {
        namespace: Namespace {
            name: namespace_name(request.share_device),
            percent: percent(limits, request.gpu_memory_mib),
            memory_mib: limits.memory_mib,
        },
        gpus: request.gpus.to_vec(),
    })
}

/// The part of the multiprocessors: what the pod was told, else its part of the memory, rounded up.
fn percent(limits: &GpuLimits, gpu_memory_mib: u64) -> u8 {
    let of_memory = || (limits.memory_mib.saturating_mul(100)).div_ceil(gpu_memory_mib.max(1));
    let percent = limits.compute_percent.map_or_else(of_memory, u64::from);
    u8::try_from(percent.clamp(1, 100)).unwrap_or(100)
}

/// Whether nothing in the pod's spec keeps the container from running as root. The user of the image is not known here.
fn may_run_as_root(pod: &Value, container: &str) -> bool {
    let spec = &pod["spec"];
    let own = spec["containers"].as_array().into_iter().flatten();
    let own = own.chain(spec["initContainers"].as_array().into_iter().flatten());
    let own = own
        .into_iter()
        .find(|one| one["name"] == container)
        .map(|one| &one["securityContext"]);
    // A field of the container overrides that of the pod.
    let field = |name: &str| {
        let of_container = own.map(|own| &own[name]).filter(|value| !value.is_null());
        of_container.unwrap_or(&spec["securityContext"][name]).clone()
    };
    match (field("runAsUser").as_i64(), field("runAsNonRoot").as_bool()) {
        (Some(user), _) => user == 0,
        (None, non_root) => non_root != Some(true),
    }
}

/// The edits of the container's CDI spec. `state_dir` has the same path here and on the host.
pub fn edits(plan: &MpsPlan, state_dir: &Path, share: &MpsShare) -> Edits {
    let mount = |host: String, container: &str| Mount {
        host_path: host,
        container_path: container.to_owned(),
        options: ["rbind", "rw", "nosuid", "nodev", "noexec"].map(str::to_owned).into(),
    };
    let mut edits = Edits::default();
    edits.env.push(format!("CUDA_MPS_PIPE_DIRECTORY={CONTAINER_DIR}"));
    match plan.protocol {
        Protocol::Namespaces => {
            let directory = namespace_dir(state_dir, &share.namespace.name);
            edits.mounts.push(mount(directory.display().to_string(), CONTAINER_DIR));
        }
        Protocol::Legacy => {
            let gpu = share.gpus.first().map(String::as_str).unwrap_or_default();
            let directory = gpu_pipe_dir(state_dir, gpu);
            edits.mounts.push(mount(directory.display().to_string(), CONTAINER_DIR));
            edits.mounts.push(mount(SHARED_MEMORY.to_owned(), SHARED_MEMORY));
            edits
                .env
                .push(format!("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={}", share.namespace.percent));
            // By the GPU's position in the container, which has one GPU: an entry for an invisible GPU would lift all limits.
            edits.env.push(format!(
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={}M",
                share.namespace.memory_mib
            ));
        }
    }
    edits
}

#[cfg(test)]
mod tests {
    use super::*;
    use kai_api::ComputeMode;
    use serde_json::json;

    fn plan(protocol: Protocol) -> MpsPlan {
        MpsPlan {
            program: "/p".to_owned(),
            protocol,
            gpus: vec!["GPU-0".to_owned()],
        }
    }

    fn limits(memory_mib: u64, compute_percent: Option<u8>) -> GpuLimits {
        GpuLimits {
            container: "main".to_owned(),
            memory_mib,
            compute_mode: ComputeMode::SmSharing,
            compute_percent,
        }
    }

    fn asked(protocol: Protocol, limits: &GpuLimits, gpus: &[&str], object: &Value) -> Result<MpsShare, String> {
        let gpus: Vec<String> = gpus.iter().map(|gpu| (*gpu).to_owned()).collect();
        share(
            &plan(protocol),
            &ShareRequest {
                pod: "team/a",
                object,
                limits,
                share_device: "share-3",
                gpus: &gpus,
                gpu_memory_mib: 40_960,
            },
        )
    }

    fn non_root() -> Value {
        json!({"spec": {"securityContext": {"runAsNonRoot": true}, "containers": [{"name": "main"}]}})
    }

    #[test]
    fn the_percentage_is_what_was_told_or_the_part_of_the_memory() {
        for (memory_mib, told, percent) in [
            (20_480, None, 50),
            (20_480, Some(30), 30),
            (1, None, 1),
            (10_241, None, 26),
            (99_999, None, 100),
            (5, Some(0), 1),
        ] {
            let share = asked(Protocol::Namespaces, &limits(memory_mib, told), &["GPU-0"], &non_root()).unwrap();
            assert_eq!(share.namespace.percent, percent, "{memory_mib} {told:?}");
        }
    }

    #[test]
    fn containers_that_may_run_as_root_are_refused() {
        let pod = |pod: Value, container: Value| json!({"spec": {"securityContext": pod, "containers": [{"name": "side"}, {"name": "main", "securityContext": container}]}});
        for (object, refused) in [
            (pod(json!({}), json!({})), true),
            (pod(json!({"runAsNonRoot": true}), json!({})), false),
            (pod(json!({"runAsUser": 1000}), json!({})), false),
            (pod(json!({"runAsUser": 1000}), json!({"runAsUser": 0})), true),
            (pod(json!({"runAsNonRoot": true}), json!({"runAsNonRoot": false})), true),
            (pod(json!({"runAsUser": 0}), json!({"runAsUser": 7})), false),
            (json!({}), true),
        ] {
            let share = asked(Protocol::Namespaces, &limits(1, None), &["GPU-0"], &object);
            assert_eq!(share.is_err(), refused, "{object}");
            if let Err(refusal) = share {
                assert!(
                    refusal.contains("team/a") && refusal.contains("runAsNonRoot: true"),
                    "{refusal}"
                );
            }
        }
    }

    #[test]
    fn a_container_sees_its_namespace_alone() {
        let share = asked(
            Protocol::Namespaces,
            &limits(2048, None),
            &["GPU-0", "GPU-1"],
            &non_root(),
        )
        .unwrap();
        let edits = edits(&plan(Protocol::Namespaces), Path::new("/var/lib/kai"), &share);
        assert_eq!(edits.env, ["CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps"]);
        let [mount] = &edits.mounts[..] else {
            panic!("{edits:?}")
        };
        assert_eq!(mount.host_path, "/var/lib/kai/mps/pipe/kai/p_share_3");
        assert_eq!(mount.container_path, "/tmp/nvidia-mps");
    }

    #[test]
    fn the_older_protocol_puts_the_limits_into_the_environment_of_one_gpu() {
        let refusal = asked(Protocol::Legacy, &limits(2048, None), &["GPU-0", "GPU-1"], &non_root()).unwrap_err();
        assert!(
            refusal.contains("shares 2 GPUs") && refusal.contains("driver 615"),
            "{refusal}"
        );
        let share = asked(Protocol::Legacy, &limits(2048, Some(10)), &["GPU-0"], &non_root()).unwrap();
        let edits = edits(&plan(Protocol::Legacy), Path::new("/s"), &share);
        assert_eq!(
            edits.env,
            [
                "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=10",
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M"
            ]
        );
        assert_eq!(edits.mounts[0].host_path, "/s/mps/GPU-0");
        assert_eq!(edits.mounts[1].container_path, "/dev/shm");
    }
}
