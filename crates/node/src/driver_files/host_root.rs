//! Reads the host's files below a prefix: the host's `/` is mounted in our container, or is a recorded tree. Symbolic links are followed as
//! on the host: an absolute target starts at the prefix, never at our own `/`.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// More links in a row than this are a loop, as in the kernel.
const LINKS_MAX: usize = 40;

/// The directory at which the host's `/` is mounted.
#[derive(Debug, Clone)]
pub struct HostRoot {
    prefix: PathBuf,
}

impl HostRoot {
    /// `prefix` is the path of the host's `/` in this process.
    pub fn new(prefix: &Path) -> Self {
        Self {
            prefix: prefix.to_owned(),
        }
    }

    /// Path in this process of the host's `path`. Links are not followed.
    pub fn local_path(&self, path: &str) -> PathBuf {
        self.prefix.join(path.trim_start_matches('/'))
    }

    /// Host path of the file that `path` leads to, links followed; `None` if there is no such file.
    pub fn resolve(&self, path: &str) -> Option<String> {
        self.link_chain(path)?.pop()
    }

    /// All paths from `path` to the file it leads to: `path` itself, each link's target, the file last.
    pub fn link_chain(&self, path: &str) -> Option<Vec<String>> {
        let mut steps = vec![path.to_owned()];
        for _ in 0..LINKS_MAX {
            let (real, through_link) = self.step(steps.last()?)?;
            if !through_link {
                // Links of directories may have been resolved, so the file's real path may differ from the last step.
                if steps.last() != Some(&real) {
                    steps.push(real);
                }
                return Some(steps);
            }
            steps.push(real);
        }
        None
    }

    /// Follows the links of the directories in `path`, and one link in its last component. The flag says whether the last component was a
    /// link.
    fn step(&self, path: &str) -> Option<(String, bool)> {
        let mut done = PathBuf::from("/");
        let mut links = 0;
        let mut todo: Vec<_> = components(Path::new(path));
        todo.reverse();
        while let Some(name) = todo.pop() {
            if name == ".." {
                done.pop();
                continue;
            }
            let here = done.join(&name);
            let Ok(target) = fs::read_link(self.local_path(here.to_str()?)) else {
                done = here;
                continue;
            };
            links += 1;
            if links > LINKS_MAX {
                return None;
            }
            if todo.is_empty() {
                let target = if target.is_absolute() {
                    target
                } else {
                    done.join(target)
                };
                return Some((normal(&target)?, true));
            }
            if target.is_absolute() {
                done = PathBuf::from("/");
            }
            todo.extend(components(&target).into_iter().rev());
        }
        let real = done.to_str()?.to_owned();
        self.local_path(&real)
            .symlink_metadata()
            .is_ok()
            .then_some((real, false))
    }

    /// Names in a directory, sorted; empty if it can't be read.
    pub fn list(&self, directory: &str) -> Vec<String> {
        let Some(real) = self.resolve(directory) else {
            return Vec::new();
        };
        let Ok(entries) = fs::read_dir(self.local_path(&real)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }

    /// The text of a file, links followed.
    pub fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.local_path(&self.resolve(path)?)).ok()
    }

    /// The bytes of a file, links followed.
    pub fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        fs::read(self.local_path(&self.resolve(path)?)).ok()
    }

    /// Whether the path exists, links followed.
    pub fn exists(&self, path: &str) -> bool {
        self.resolve(path).is_some()
    }
}

fn components(path: &Path) -> Vec<String> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => name.to_str().map(str::to_owned),
            Component::ParentDir => Some("..".to_owned()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

/// Removes `.` and `..`. Correct only if the directories before a `..` are no links, which holds for driver packages.
fn normal(path: &Path) -> Option<String> {
    let mut out = PathBuf::from("/");
    for name in components(path) {
        if name == ".." {
            out.pop();
        } else {
            out.push(name);
        }
    }
    out.to_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_inside_the_prefix() {
        let host = tempfile::tempdir().unwrap();
        let lib = host.path().join("usr/lib/aarch64-linux-gnu/nvidia");
        fs::create_dir_all(&lib).unwrap();
        fs::write(lib.join("libcuda.so.1.1"), "x").unwrap();
        symlink("libcuda.so.1.1", lib.join("libcuda.so.1")).unwrap();
        symlink(
            "/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1",
            host.path().join("usr/lib/libcuda.so"),
        )
        .unwrap();
        symlink("usr/lib", host.path().join("lib")).unwrap();
        symlink("../lib/loop", lib.join("../../loop")).unwrap();

        let root = HostRoot::new(host.path());
        let real = "/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1.1";
        assert_eq!(root.resolve("/usr/lib/libcuda.so").as_deref(), Some(real));
        assert_eq!(root.resolve("/lib/libcuda.so").as_deref(), Some(real));
        assert_eq!(
            root.link_chain("/usr/lib/libcuda.so").unwrap(),
            [
                "/usr/lib/libcuda.so",
                "/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1",
                real
            ]
        );
        assert_eq!(root.resolve("/usr/lib/loop"), None);
        assert_eq!(root.resolve("/usr/lib/missing"), None);
        assert_eq!(
            root.list("/lib/aarch64-linux-gnu/nvidia"),
            ["libcuda.so.1", "libcuda.so.1.1"]
        );
        assert_eq!(root.text("/lib/libcuda.so").as_deref(), Some("x"));
    }

    #[test]
    fn the_real_root_is_a_root_too() {
        assert!(HostRoot::new(Path::new("/")).exists("/proc/self/status"));
    }
}
