//! Finds the pod and the container of a process in the lines of `/proc/<pid>/cgroup`. Pure. The runtimes name cgroups differently, and the
//! lines are relative to the cgroup namespace of the reader, so only the end of a path is trusted: the pod's directory and the one below it.

/// Where a process runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContainerPlace {
    /// UID of the pod.
    pub pod_uid: String,
    /// The runtime's id of the container; `None` for a process in the pod's own cgroup.
    pub container_id: Option<String>,
}

/// Names before the id in the scope of a container, by runtime.
const SCOPE_PREFIXES: [&str; 4] = ["cri-containerd-", "crio-", "docker-", "libpod-"];
/// Shortest container id: runtimes use 64 hexadecimal digits, and some tools 32.
const ID_DIGITS_MIN: usize = 12;

/// The place that the lines name: those of version 2 first, then any controller of version 1. `None` for a process of no pod.
pub fn place_of(lines: &str) -> Option<ContainerPlace> {
    let paths = |unified: bool| {
        lines.lines().filter_map(move |line| {
            let (number, rest) = line.split_once(':')?;
            let (_, path) = rest.split_once(':')?;
            ((number == "0") == unified).then_some(path)
        })
    };
    paths(true).chain(paths(false)).find_map(place_in_path)
}

fn place_in_path(path: &str) -> Option<ContainerPlace> {
    // containerd with the systemd driver of another configuration: kubepods-burstable-pod<uid>.slice:cri-containerd:<id>.
    let parts: Vec<&str> = path.split(['/', ':']).filter(|part| !part.is_empty()).collect();
    let (at, pod_uid) = parts
        .iter()
        .enumerate()
        .rev()
        .find_map(|(at, part)| Some((at, pod_uid(part)?)))?;
    let container_id = parts[at + 1..].iter().find_map(|part| container_id(part));
    Some(ContainerPlace { pod_uid, container_id })
}

/// `kubepods-burstable-pod<uid with _>.slice` with the systemd driver, `pod<uid>` with the cgroupfs driver.
fn pod_uid(part: &str) -> Option<String> {
    let uid = match part.strip_suffix(".slice") {
        Some(slice) => slice.rsplit_once("-pod").map(|(_, uid)| uid.replace('_', "-"))?,
        None => part.strip_prefix("pod")?.to_owned(),
    };
    let is_uid = uid.len() >= 32 && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_uid.then_some(uid)
}

fn container_id(part: &str) -> Option<String> {
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let id = SCOPE_PREFIXES
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name);
    let is_id = id.len() >= ID_DIGITS_MIN && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0f9c8a52-3d1e-4c7b-9a6f-1b2c3d4e5f60";
    const ID: &str = "4e5f6a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091";

    #[track_caller]
    fn check(lines: &str, container_id: Option<&str>) {
        let lines = lines
            .replace("UID", UID)
            .replace("U_ID", &UID.replace('-', "_"))
            .replace("ID64", ID);
        let place = place_of(&lines).unwrap_or_else(|| panic!("no pod in {lines}"));
        assert_eq!(place.pod_uid, UID, "{lines}");
        assert_eq!(place.container_id.as_deref(), container_id, "{lines}");
    }

    #[test]
    fn every_runtime_and_cgroup_driver_is_understood() {
        for path in [
            // systemd: containerd, CRI-O, crun's group below the scope, a guaranteed pod, cri-dockerd.
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_ID.slice/cri-containerd-ID64.scope",
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_ID.slice/crio-ID64.scope",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_ID.slice/crio-ID64.scope/container",
            "/kubepods.slice/kubepods-podU_ID.slice/cri-containerd-ID64.scope",
            "/kubepods.slice/kubepods-podU_ID.slice/docker-ID64.scope",
            // cgroupfs.
            "/kubepods/burstable/podUID/ID64",
            "/kubepods/podUID/ID64",
            "/kubepods/besteffort/podUID/crio-ID64",
            // k3s, kind: a prefix in front.
            "/system.slice/k3s.service/kubepods/burstable/podUID/ID64",
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podU_ID.slice/cri-containerd-ID64.scope",
            "/docker/0123456789abcdef/kubelet/kubepods/burstable/podUID/ID64",
            // The agent in a cgroup namespace of its own.
            "/../../../kubepods-burstable.slice/kubepods-burstable-podU_ID.slice/cri-containerd-ID64.scope",
            "/../../podUID/ID64",
            // systemd inside of the container.
            "/kubepods.slice/kubepods-podU_ID.slice/cri-containerd-ID64.scope/init.scope",
            // containerd and kubelet that disagree about the driver.
            "/system.slice/containerd.service/kubepods-burstable-podU_ID.slice:cri-containerd:ID64",
        ] {
            check(&format!("0::{path}\n"), Some(ID));
            // Version 1: the same paths, once per controller.
            check(
                &format!("12:memory:{path}\n3:cpu,cpuacct:{path}\n1:name=systemd:{path}\n"),
                Some(ID),
            );
            // Hybrid: the version 2 line may lead elsewhere.
            check(
                &format!("12:memory:{path}\n0::/system.slice/containerd.service\n"),
                Some(ID),
            );
        }
    }

    #[test]
    fn a_process_in_the_pods_own_group_has_no_container() {
        check("0::/kubepods/burstable/podUID\n", None);
        check("0::/kubepods.slice/kubepods-podU_ID.slice/init.scope\n", None);
    }

    #[test]
    fn processes_of_the_host_belong_to_no_pod() {
        for lines in [
            "",
            "0::/\n",
            "0::/init.scope\n",
            "0::/system.slice/nvidia-persistenced.service\n",
            "0::/user.slice/user-1000.slice/session-2.scope\n",
            "0::/machine.slice/libpod-4e5f6a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091.scope\n",
            "0::/podman.slice/podcast\n",
            "0::/kubepods/burstable/podshort/4e5f6a7b8c9d\n",
            "nonsense",
        ] {
            assert_eq!(place_of(lines), None, "{lines}");
        }
    }
}
