//! The cgroup v2 directory of a process, as the process that asks sees it.

use std::path::{Component, Path, PathBuf};

/// Where cgroups are described.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupRoots {
    /// `/proc`.
    pub proc: PathBuf,
    /// The mount of cgroup v2.
    pub cgroup: PathBuf,
}

impl CgroupRoots {
    /// `/sys/fs/cgroup`, or on a machine that has both versions `/sys/fs/cgroup/unified`.
    pub fn of_this_machine() -> Self {
        let unified = Path::new("/sys/fs/cgroup/unified");
        let has_both = unified.join("cgroup.controllers").exists();
        Self {
            proc: PathBuf::from("/proc"),
            cgroup: if has_both {
                unified.to_owned()
            } else {
                PathBuf::from("/sys/fs/cgroup")
            },
        }
    }
}

/// The directory of a process's cgroup v2; `process` is a pid or `self`. In a container with a cgroup namespace of its own the path is `/`,
/// and the directory is the mount itself: other than outside, but with the same inode.
pub fn cgroup_of(roots: &CgroupRoots, process: &str) -> Option<PathBuf> {
    let text = std::fs::read_to_string(roots.proc.join(process).join("cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    let below = Path::new(path.trim_start_matches('/'));
    let is_plain = below
        .components()
        .all(|component| matches!(component, Component::Normal(_)));
    is_plain.then(|| roots.cgroup.join(below))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_process_is_joined_to_the_mount() {
        let dir = tempfile::tempdir().unwrap();
        let roots = CgroupRoots {
            proc: dir.path().to_owned(),
            cgroup: PathBuf::from("/cg"),
        };
        std::fs::create_dir_all(dir.path().join("7")).unwrap();
        for (text, directory) in [
            ("0::/\n", Some("/cg")),
            (
                "9:memory:/x\n0::/kubepods.slice/a.scope\n",
                Some("/cg/kubepods.slice/a.scope"),
            ),
            ("0::/../other\n", None),
            ("9:memory:/x\n", None),
        ] {
            std::fs::write(dir.path().join("7/cgroup"), text).unwrap();
            assert_eq!(cgroup_of(&roots, "7").as_deref(), directory.map(Path::new), "{text}");
        }
        assert_eq!(cgroup_of(&roots, "8"), None);
    }
}
