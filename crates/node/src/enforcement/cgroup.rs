//! The cgroup directory of a container, from the pid of its first process. The path is never built from pod or container ids, because
//! runtimes and cgroup drivers name directories differently: `/proc/<pid>/cgroup` is right for all of them.
//!
//! The driver takes directories of the cgroup v2 hierarchy at `/sys/fs/cgroup` only. On a hybrid machine, where v2 is mounted below it
//! (`/sys/fs/cgroup/unified`) without controllers, the driver has no controller to count with, so that hierarchy is refused as v1 is.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Where hosts mount cgroups.
pub const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// `f_type` of cgroup2 in statfs(2).
const CGROUP2_MAGIC: u64 = 0x6367_7270;

/// What is mounted at [`CGROUP_ROOT`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CgroupVersion {
    /// The v2 hierarchy.
    V2,
    /// Hierarchies of v1, one per controller.
    V1,
    /// Hierarchies of v1, and v2 without controllers below them.
    Hybrid,
    /// It can't be read, for this reason.
    Unknown(String),
}

impl CgroupVersion {
    /// Looks at the mount.
    pub fn at(root: &Path) -> Self {
        let is_v2 = |path: &Path| rustix::fs::statfs(path).map(|facts| facts.f_type as u64 == CGROUP2_MAGIC);
        match is_v2(root) {
            Ok(true) => CgroupVersion::V2,
            Ok(false) if is_v2(&root.join("unified")).unwrap_or(false) => CgroupVersion::Hybrid,
            Ok(false) => CgroupVersion::V1,
            Err(error) => CgroupVersion::Unknown(error.to_string()),
        }
    }
}

/// The kernel's controller with which the driver counts the memory of cgroups. The driver chooses when it is loaded: DMEM if the kernel has it,
/// else MISC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitController {
    /// Device memory.
    Dmem,
    /// Miscellaneous scalars.
    Misc,
    /// The kernel has neither, or they are disabled.
    Absent,
    /// The list can't be read, for this reason.
    Unknown(String),
}

impl LimitController {
    /// Reads the controllers of the v2 hierarchy at `root`. Those of the root are the kernel's.
    pub fn at(root: &Path) -> Self {
        match fs::read_to_string(root.join("cgroup.controllers")) {
            Ok(names) => Self::among(&names),
            Err(error) => LimitController::Unknown(error.to_string()),
        }
    }

    fn among(names: &str) -> Self {
        let has = |controller: &str| names.split_whitespace().any(|name| name == controller);
        match (has("dmem"), has("misc")) {
            (true, _) => LimitController::Dmem,
            (false, true) => LimitController::Misc,
            (false, false) => LimitController::Absent,
        }
    }
}

/// Why a container has no cgroup directory that the driver takes.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The process has ended, or is hidden.
    #[error("reading {}: {source}; the container's process has ended, or the runtime runs in another PID namespace", path.display())]
    NoProcess {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The process is in no v2 cgroup.
    #[error("process {0} is in no cgroup of version 2; boot the node with systemd.unified_cgroup_hierarchy=1")]
    NotVersion2(u32),
    /// The mount is not cgroup v2.
    #[error("{} is not cgroup version 2, which the GPU driver needs; boot the node with systemd.unified_cgroup_hierarchy=1", .0.display())]
    MountNotVersion2(PathBuf),
    /// The path leads to the root, or out of the hierarchy.
    #[error(
        "cgroup {path:?} of process {pid} is no container's cgroup; the runtime must give every container a cgroup of its own"
    )]
    NotAContainer {
        /// The process.
        pid: u32,
        /// The path in `/proc/<pid>/cgroup`.
        path: String,
    },
    /// The directory does not exist.
    #[error("opening cgroup {}: {source}; the runtime and this hook see different cgroup hierarchies", path.display())]
    NoDirectory {
        /// The directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

/// Whether the hierarchy has to be cgroup v2.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MountCheck {
    /// It has to be.
    #[default]
    Version2,
    /// Plain directories stand for it: simulated nodes and tests.
    Simulated,
}

/// Where `/proc` and the cgroup hierarchy are. Tests use directories of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupPlace {
    /// `/proc`.
    pub proc: PathBuf,
    /// [`CGROUP_ROOT`].
    pub root: PathBuf,
    /// Whether the hierarchy has to be cgroup v2.
    pub check: MountCheck,
}

impl Default for CgroupPlace {
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            root: CGROUP_ROOT.into(),
            check: MountCheck::Version2,
        }
    }
}

impl CgroupPlace {
    /// The v2 directory of a process.
    pub fn leaf(&self, pid: u32) -> Result<PathBuf, CgroupError> {
        let lines = self.lines(pid)?;
        let path = unified_path(&lines).ok_or(CgroupError::NotVersion2(pid))?;
        match self.check {
            MountCheck::Version2 if CgroupVersion::at(&self.root) != CgroupVersion::V2 => {
                return Err(CgroupError::MountNotVersion2(self.root.clone()));
            }
            MountCheck::Version2 | MountCheck::Simulated => {}
        }
        self.directory(&self.root, pid, path)
    }

    /// The directory that limits the system memory of a process, and the name of the limit's file: of v2, or of v1's memory controller.
    pub fn memory_limit_file(&self, pid: u32) -> Result<PathBuf, CgroupError> {
        let lines = self.lines(pid)?;
        match memory_path(&lines) {
            Some(path) => {
                let directory = self.directory(&self.root.join("memory"), pid, path)?;
                Ok(directory.join("memory.limit_in_bytes"))
            }
            None => Ok(self.leaf(pid)?.join("memory.max")),
        }
    }

    fn lines(&self, pid: u32) -> Result<String, CgroupError> {
        let path = self.proc.join(pid.to_string()).join("cgroup");
        fs::read_to_string(&path).map_err(|source| CgroupError::NoProcess { path, source })
    }

    fn directory(&self, mount: &Path, pid: u32, path: &str) -> Result<PathBuf, CgroupError> {
        let inside = below_root(path).ok_or_else(|| CgroupError::NotAContainer {
            pid,
            path: path.to_owned(),
        })?;
        let directory = mount.join(inside);
        match fs::symlink_metadata(&directory) {
            Ok(facts) if facts.is_dir() => Ok(directory),
            Ok(_) => Err(CgroupError::NoDirectory {
                path: directory,
                source: io::Error::from(io::ErrorKind::NotADirectory),
            }),
            Err(source) => Err(CgroupError::NoDirectory {
                path: directory,
                source,
            }),
        }
    }
}

/// The path on the line of the v2 hierarchy: `0::<path>`.
fn unified_path(lines: &str) -> Option<&str> {
    lines.lines().find_map(|line| line.strip_prefix("0::"))
}

/// The path on the line of v1's memory controller: `<n>:<controllers>:<path>`.
fn memory_path(lines: &str) -> Option<&str> {
    lines.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|name| name == "memory").then_some(path)
    })
}

/// The path without its leading `/`; `None` for the root, for paths with `..`, and for relative ones.
fn below_root(path: &str) -> Option<&Path> {
    let inside = Path::new(path.strip_prefix('/')?);
    let plain = inside.components().all(|part| matches!(part, Component::Normal(_)));
    (plain && inside.components().next().is_some()).then_some(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `/proc` with one process whose cgroup file has these lines.
    fn place(lines: &str) -> (tempfile::TempDir, CgroupPlace) {
        let temporary = tempfile::tempdir().unwrap();
        let proc = temporary.path().join("proc");
        fs::create_dir_all(proc.join("7")).unwrap();
        fs::write(proc.join("7/cgroup"), lines).unwrap();
        let root = temporary.path().join("cgroup");
        let check = MountCheck::Version2;
        (temporary, CgroupPlace { proc, root, check })
    }

    /// The leaf of a process whose cgroup file has these lines, where the hierarchy has this directory.
    fn leaf(lines: &str, directory: &str) -> Result<String, CgroupError> {
        let (_temporary, place) = place(lines);
        fs::create_dir_all(place.root.join(directory)).unwrap();
        let place = CgroupPlace {
            check: MountCheck::Simulated,
            ..place
        };
        let leaf = place.leaf(7)?;
        Ok(leaf.strip_prefix(&place.root).unwrap().display().to_string())
    }

    #[test]
    fn the_leaf_is_the_directory_of_the_v2_line_for_every_runtime_and_cgroup_driver() {
        const UID: &str = "0f9c8a52-3d1e-4c7b-9a6f-1b2c3d4e5f60";
        const ID: &str = "4e5f6a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091";
        let uid = UID.replace('-', "_");
        let burstable = format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice");
        let best_effort = format!("kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{uid}.slice");
        for (runtime, path) in [
            ("systemd, containerd", format!("{burstable}/cri-containerd-{ID}.scope")),
            (
                "systemd, containerd, best effort",
                format!("{best_effort}/cri-containerd-{ID}.scope"),
            ),
            (
                "systemd, containerd, guaranteed",
                format!("kubepods.slice/kubepods-pod{uid}.slice/cri-containerd-{ID}.scope"),
            ),
            (
                "systemd, containerd, crun",
                format!("{burstable}/cri-containerd-{ID}.scope/container"),
            ),
            ("systemd, CRI-O", format!("{burstable}/crio-{ID}.scope")),
            ("systemd, CRI-O, crun", format!("{burstable}/crio-{ID}.scope/container")),
            ("systemd, cri-dockerd", format!("{burstable}/docker-{ID}.scope")),
            ("cgroupfs", format!("kubepods/burstable/pod{UID}/{ID}")),
            ("cgroupfs, guaranteed", format!("kubepods/pod{UID}/{ID}")),
            (
                "k3s",
                format!("system.slice/k3s.service/kubepods/besteffort/pod{UID}/{ID}"),
            ),
            (
                "kind",
                format!("system.slice/docker-{ID}.scope/kubelet.slice/kubelet-{burstable}/cri-containerd-{ID}.scope"),
            ),
        ] {
            let found = leaf(&format!("0::/{path}\n"), &path).unwrap();
            assert_eq!(found, path, "{runtime}");
            // The lines of version 1 beside it name other directories.
            let hybrid = format!("12:memory:/elsewhere\n1:name=systemd:/elsewhere\n0::/{path}\n");
            assert_eq!(leaf(&hybrid, &path).unwrap(), path, "{runtime}, hybrid");
            let parent = Path::new(&path).parent().unwrap().display().to_string();
            let missing = leaf(&format!("0::/{path}\n"), &parent);
            assert!(matches!(missing, Err(CgroupError::NoDirectory { .. })), "{runtime}");
        }
    }

    #[test]
    fn a_process_without_a_directory_of_its_own_has_no_leaf() {
        for (lines, of_kind) in [
            ("0::/\n", "no container's cgroup"),
            ("0::/../other\n", "no container's cgroup"),
            ("0::/kubepods/../../etc\n", "no container's cgroup"),
            ("5:memory:/kubepods/pod1/abc\n", "no cgroup of version 2"),
        ] {
            let error = leaf(lines, "kubepods/pod1/abc").unwrap_err().to_string();
            assert!(error.contains(of_kind), "{lines}: {error}");
        }
        // A link leads out of the hierarchy.
        let (temporary, place) = place("0::/kubepods/abc\n");
        fs::create_dir_all(place.root.join("kubepods")).unwrap();
        std::os::unix::fs::symlink(temporary.path(), place.root.join("kubepods/abc")).unwrap();
        let place = CgroupPlace {
            check: MountCheck::Simulated,
            ..place
        };
        assert!(matches!(place.leaf(7), Err(CgroupError::NoDirectory { .. })));
    }

    #[test]
    fn lines_of_version_1_have_a_memory_path_and_no_v2_path() {
        let lines = "12:memory:/kubepods/pod1/abc\n4:cpu,cpuacct:/kubepods/pod1/abc\n1:name=systemd:/x:y\n";
        assert_eq!(
            (unified_path(lines), memory_path(lines)),
            (None, Some("/kubepods/pod1/abc"))
        );
        let hybrid = format!("{lines}0::/kubepods/pod1/abc\n");
        assert_eq!(unified_path(&hybrid), Some("/kubepods/pod1/abc"));
    }

    #[test]
    fn the_root_and_paths_out_of_the_hierarchy_are_refused() {
        for path in ["/", "", "kubepods/x", "/..", "/../x", "/a/../b", "/a/.."] {
            assert_eq!(below_root(path), None, "{path}");
        }
    }

    #[test]
    fn a_mount_of_version_1_is_refused_and_the_reason_has_a_remedy() {
        let (_temporary, place) = place("0::/kubepods/pod1/abc\n");
        fs::create_dir_all(place.root.join("kubepods/pod1/abc")).unwrap();
        let error = place.leaf(7).unwrap_err().to_string();
        assert!(
            error.contains("is not cgroup version 2") && error.contains("unified_cgroup_hierarchy"),
            "{error}"
        );
        let error = place.leaf(8).unwrap_err().to_string();
        assert!(error.contains("8/cgroup") && error.contains("has ended"), "{error}");
        assert!(matches!(CgroupVersion::at(&place.root), CgroupVersion::V1));
        assert!(matches!(
            CgroupVersion::at(Path::new("/nonexistent")),
            CgroupVersion::Unknown(_)
        ));
    }

    #[test]
    fn the_drivers_controller_is_in_the_kernels_list() {
        for (host, names, controller) in [
            (
                "kernel 6.14",
                "cpuset cpu io memory hugetlb pids rdma misc dmem",
                LimitController::Dmem,
            ),
            (
                "kernel 6.14 with cgroup_disable=dmem",
                "cpuset cpu io memory hugetlb pids rdma misc",
                LimitController::Misc,
            ),
            (
                "kernel 5.10",
                "cpuset cpu io memory hugetlb pids rdma",
                LimitController::Absent,
            ),
            ("version 2 beside version 1", "hugetlb", LimitController::Absent),
            ("no controller", "", LimitController::Absent),
        ] {
            let root = tempfile::tempdir().unwrap();
            fs::write(root.path().join("cgroup.controllers"), format!("{names}\n")).unwrap();
            assert_eq!(LimitController::at(root.path()), controller, "{host}");
        }
        let missing = LimitController::at(Path::new("/nonexistent"));
        assert!(matches!(missing, LimitController::Unknown(_)), "{missing:?}");
    }

    #[test]
    fn the_memory_limit_is_a_file_of_the_memory_controller() {
        let (_temporary, place) = place("12:memory:/kubepods/pod1/abc\n0::/\n");
        assert!(matches!(
            place.memory_limit_file(7),
            Err(CgroupError::NoDirectory { .. })
        ));
        fs::create_dir_all(place.root.join("memory/kubepods/pod1/abc")).unwrap();
        assert_eq!(
            place.memory_limit_file(7).unwrap(),
            place.root.join("memory/kubepods/pod1/abc/memory.limit_in_bytes")
        );
    }
}
