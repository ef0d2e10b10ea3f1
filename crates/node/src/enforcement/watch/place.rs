//! Finds the pod and the container of a process in the lines of `/proc/<pid>/cgroup`. Pure. The runtimes name cgroups differently, and the
//! lines are relative to the cgroup namespace of the reader, so a pod is known by the name of its directory. A container may create groups
//! below its own and name them like another pod: the outermost pod counts. Where the node is itself in a pod, its pods are below that one.

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

/// The pods around this node, outermost first: those around the agent but for its own, by the agent's own lines.
pub fn pods_around(own_lines: &str) -> Vec<String> {
    let mut pods = paths(own_lines)
        .map(|path| pods_in(&parts(path)).map(|(_, uid)| uid).collect::<Vec<_>>())
        .find(|pods| !pods.is_empty())
        .unwrap_or_default();
    pods.pop();
    pods
}

/// The place that the lines name, below the pods around the node. `None` for a process of no pod.
pub fn place_of(lines: &str, around: &[String]) -> Option<ContainerPlace> {
    paths(lines).find_map(|path| place_in_path(path, around))
}

/// The paths of version 2 first, then those of the controllers of version 1.
fn paths(lines: &str) -> impl Iterator<Item = &str> {
    let of_version = |unified: bool| {
        lines.lines().filter_map(move |line| {
            let (number, rest) = line.split_once(':')?;
            let (_, path) = rest.split_once(':')?;
            ((number == "0") == unified).then_some(path)
        })
    };
    of_version(true).chain(of_version(false))
}

/// The directories of a path. containerd with the systemd driver of another configuration: kubepods-burstable-pod<uid>.slice:cri-containerd:<id>.
fn parts(path: &str) -> Vec<&str> {
    path.split(['/', ':']).filter(|part| !part.is_empty()).collect()
}

/// The directories with the names of pods, outermost first.
fn pods_in(parts: &[&str]) -> impl Iterator<Item = (usize, String)> {
    let parts = parts.iter().enumerate();
    parts.filter_map(|(at, part)| Some((at, pod_uid(part)?)))
}

fn place_in_path(path: &str, around: &[String]) -> Option<ContainerPlace> {
    let parts = parts(path);
    let mut around = around.iter();
    let (at, pod_uid) = pods_in(&parts).find(|(_, uid)| around.next() != Some(uid))?;
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
        let place = place_of(&lines, &[]).unwrap_or_else(|| panic!("no pod in {lines}"));
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
    fn a_group_that_a_container_names_like_another_pod_belongs_to_the_container() {
        for driver in ["/kubepods/podUID/ID64/pod", "/kubepods/podUID/ID64/kubepods-pod"] {
            let forged = match driver.contains('-') {
                true => "11111111_2222_3333_4444_555555555555.slice",
                false => "11111111-2222-3333-4444-555555555555",
            };
            check(&format!("0::{driver}{forged}/cri-containerd-ID64.scope\n"), Some(ID));
        }
    }

    #[test]
    fn a_node_that_is_itself_in_a_pod_has_its_own_pods() {
        const OUTER: &str = "aaaaaaaa-2222-3333-4444-555555555555";
        let kind = format!("12:memory:/kubepods/pod{OUTER}/{ID}/kubelet/kubepods");
        let around = pods_around(&format!("{kind}/burstable/pod{UID}/{ID}\n"));
        assert_eq!(around, [OUTER]);
        let inner = "11111111-2222-3333-4444-555555555555";
        let place = |lines: String| place_of(&lines, &around).map(|place| place.pod_uid);
        assert_eq!(place(format!("{kind}/pod{inner}/{ID}\n")).as_deref(), Some(inner));
        assert_eq!(
            place(format!("{kind}/pod{inner}/{ID}/pod{UID}/{ID}\n")).as_deref(),
            Some(inner)
        );
        assert_eq!(
            place(format!("12:memory:/kubepods/pod{OUTER}/{ID}\n")),
            None,
            "a process of the node"
        );
        assert_eq!(pods_around(&format!("0::/kubepods/pod{UID}/{ID}\n")), [] as [&str; 0]);
        assert_eq!(pods_around("0::/\n"), [] as [&str; 0]);
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
            assert_eq!(place_of(lines, &[]), None, "{lines}");
        }
    }
}
