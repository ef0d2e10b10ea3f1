//! Where this process finds the host's files. In a container the host's `/` may be mounted elsewhere, and in tests it is a recorded tree.
//! All code of this crate that reads the host's files takes the paths from here.

use std::path::{Path, PathBuf};

/// Prefixes of the host's directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// Host `/`: `/etc/nv_tegra_release`, `/etc/machine-id`.
    pub host: PathBuf,
    /// Host `/proc`.
    pub proc: PathBuf,
    /// Host `/sys`.
    pub sys: PathBuf,
    /// Host `/dev`.
    pub dev: PathBuf,
    /// Root of the driver's installation, if not `host` (driver containers).
    pub driver: PathBuf,
    /// The device tree. `/proc/device-tree` is masked in unprivileged pods, so it may be mounted anywhere.
    pub device_tree: PathBuf,
}

impl Roots {
    /// This process's own `/`.
    pub fn here() -> Self {
        Self::under(Path::new("/"))
    }

    /// Everything below one prefix, as in a recorded tree or a host mount.
    pub fn under(prefix: &Path) -> Self {
        let device_tree = ["proc/device-tree", "sys/firmware/devicetree/base"].map(|path| prefix.join(path));
        let device_tree = device_tree
            .iter()
            .find(|path| path.is_dir())
            .unwrap_or(&device_tree[1])
            .clone();
        Self {
            host: prefix.to_owned(),
            proc: prefix.join("proc"),
            sys: prefix.join("sys"),
            dev: prefix.join("dev"),
            driver: prefix.to_owned(),
            device_tree,
        }
    }

    /// Path in this process of the host's absolute `path`.
    pub fn in_host(&self, path: &str) -> PathBuf {
        self.host.join(path.trim_start_matches('/'))
    }

    /// Path in this process of an absolute `path` below the driver root.
    pub fn in_driver(&self, path: &str) -> PathBuf {
        self.driver.join(path.trim_start_matches('/'))
    }
}

impl Default for Roots {
    fn default() -> Self {
        Self::here()
    }
}
