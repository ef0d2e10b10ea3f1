//! What a container with compute mode `sm-sharing` gets: its part of the multiprocessors, and the edits of its CDI spec. Pure.

use std::path::Path;

use kai_api::{GpuLimits, keys};
use serde_json::Value;

use super::plan::{Namespace, namespace_dir, namespace_name};
use crate::driver_files::cdi::{Edits, Mount};

/// Where a container finds its namespace: the directory that CUDA uses by default.
const CONTAINER_DIR: &str = "/tmp/nvidia-mps";

/// What a pod's container was promised.
#[derive(Debug, Clone, Copy)]
pub struct ShareRequest<'a> {
    /// Namespace and name of the pod, for messages.
    pub pod: &'a str,
    /// The pod as the API server sent it: the users of its containers.
    pub object: &'a Value,
    /// The container that holds the share device.
    pub container: &'a str,
    /// What the binder wrote.
    pub limits: &'a GpuLimits,
    /// The share device.
    pub share_device: &'a str,
}

/// The namespace of the container, which has to exist before it starts, or a sentence that says why the container can't have one.
pub fn namespace(request: &ShareRequest) -> Result<Namespace, String> {
    let ShareRequest {
        pod, container, limits, ..
    } = *request;
    if may_run_as_root(request.object, container) {
        return Err(format!(
            "container {container} of pod {pod} may run as root, and root could lift its own share of the multi-process server; set \
             securityContext.allowPrivilegeEscalation: false, and runAsNonRoot: true or runAsUser, or use compute mode time-slicing"
        ));
    }
    // The binder rounds it so that the parts of one GPU never exceed it; another rule here would contradict it.
    let Some(percent) = limits.compute_percent else {
        return Err(format!(
            "annotation {} of pod {pod} has no computePercent: the node lacked the label nvidia.com/gpu.memory when the pod was bound; delete \
             the pod, so that it is bound anew",
            keys::GPU_LIMITS
        ));
    };
    Ok(Namespace {
        name: namespace_name(request.share_device),
        percent: percent.clamp(1, 100),
        memory_mib: limits.memory_mib,
    })
}

/// Whether nothing in the pod's spec keeps the programs of the container from being root. The user of the image is not known here, and a
/// program of the image may belong to root and change to its owner.
fn may_run_as_root(pod: &Value, container: &str) -> bool {
    let spec = &pod["spec"];
    let own = spec["containers"].as_array().into_iter().flatten();
    let own = own.chain(spec["initContainers"].as_array().into_iter().flatten());
    let own = own
        .into_iter()
        .find(|one| one["name"] == container)
        .map(|one| &one["securityContext"]);
    if own.is_none_or(|own| own["allowPrivilegeEscalation"] != false) {
        return true;
    }
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
pub fn edits(state_dir: &Path, namespace: &Namespace) -> Edits {
    let mut edits = Edits::default();
    edits.env.push(format!("CUDA_MPS_PIPE_DIRECTORY={CONTAINER_DIR}"));
    edits.mounts.push(Mount {
        host_path: namespace_dir(state_dir, &namespace.name).display().to_string(),
        container_path: CONTAINER_DIR.to_owned(),
        options: ["rbind", "rw", "nosuid", "nodev", "noexec"].map(str::to_owned).into(),
    });
    edits
}

#[cfg(test)]
mod tests {
    use super::*;
    use kai_api::ComputeMode;
    use serde_json::json;

    fn asked(percent: Option<u8>, object: &Value) -> Result<Namespace, String> {
        let limits = GpuLimits {
            container: "main".to_owned(),
            memory_mib: 2048,
            compute_mode: ComputeMode::SmSharing,
            compute_percent: percent,
        };
        namespace(&ShareRequest {
            pod: "team/a",
            object,
            container: "main",
            limits: &limits,
            share_device: "share-3",
        })
    }

    fn pod(pod: Value, container: Value) -> Value {
        json!({"spec": {"securityContext": pod, "containers": [{"name": "side"}, {"name": "main", "securityContext": container}]}})
    }

    fn non_root() -> Value {
        pod(
            json!({"runAsNonRoot": true}),
            json!({"allowPrivilegeEscalation": false}),
        )
    }

    #[test]
    fn the_percentage_is_what_the_binder_promised() {
        for (told, percent) in [(30, 30), (0, 1), (200, 100)] {
            assert_eq!(asked(Some(told), &non_root()).unwrap().percent, percent);
        }
        let refusal = asked(None, &non_root()).unwrap_err();
        assert!(refusal.contains("team/a has no computePercent"), "{refusal}");
    }

    #[test]
    fn containers_that_may_run_as_root_are_refused() {
        let with = |field: &str, value: i64| json!({field: value, "allowPrivilegeEscalation": false});
        let plain = || json!({"allowPrivilegeEscalation": false});
        let non_root = |yes: bool| json!({"runAsNonRoot": yes, "allowPrivilegeEscalation": false});
        for (object, refused) in [
            (pod(json!({}), plain()), true),
            (pod(json!({"runAsNonRoot": true}), plain()), false),
            (pod(json!({"runAsUser": 1000}), plain()), false),
            (pod(json!({"runAsUser": 1000}), with("runAsUser", 0)), true),
            (pod(json!({"runAsNonRoot": true}), non_root(false)), true),
            (pod(json!({"runAsUser": 0}), with("runAsUser", 7)), false),
            // A program that belongs to root and has the mode setuid.
            (pod(json!({"runAsUser": 1000}), json!({})), true),
            (
                pod(json!({"runAsUser": 1000}), json!({"allowPrivilegeEscalation": true})),
                true,
            ),
            (json!({}), true),
        ] {
            let namespace = asked(Some(5), &object);
            assert_eq!(namespace.is_err(), refused, "{object}");
            if let Err(refusal) = namespace {
                assert!(
                    refusal.contains("team/a") && refusal.contains("runAsNonRoot: true"),
                    "{refusal}"
                );
            }
        }
    }

    #[test]
    fn a_container_sees_its_namespace_alone() {
        let namespace = asked(Some(5), &non_root()).unwrap();
        let edits = edits(Path::new("/var/lib/kai"), &namespace);
        assert_eq!(edits.env, ["CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps"]);
        let [mount] = &edits.mounts[..] else {
            panic!("{edits:?}")
        };
        assert_eq!(mount.host_path, "/var/lib/kai/mps/pipe/kai/p_share_3");
        assert_eq!(mount.container_path, "/tmp/nvidia-mps");
    }
}
