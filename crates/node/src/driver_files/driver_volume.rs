//! The driver volume: a directory with the driver's libraries and programs under the names that programs look for, mounted read-only into
//! containers where CDI is off. Every driver version gets its own directory, so a running container keeps the files it started with. A
//! volume is built under a temporary name and renamed when complete, and never changes afterwards.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::files::{DriverFiles, LibraryPlacement};
use super::host_root::HostRoot;
use crate::Error;

/// Mount point in containers: `PATH` and `LD_LIBRARY_PATH` of CUDA images contain it since NVIDIA's old volume plugin.
pub const CONTAINER_DIR: &str = "/usr/local/nvidia";
const PARTIAL_PREFIX: &str = ".partial-";

/// The directory that holds the volumes.
#[derive(Debug, Clone)]
pub struct DriverVolumes {
    directory: PathBuf,
}

/// One file of a volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// Path on the host.
    pub from: String,
    /// Path in the volume: `lib64/libcuda.so.1`.
    pub to: String,
}

/// The files of a volume.
pub fn parts(files: &DriverFiles) -> Vec<Part> {
    let mut parts = BTreeSet::new();
    for library in files
        .libraries
        .iter()
        .filter(|library| library.placement != LibraryPlacement::HostPath)
    {
        for name in &library.names {
            parts.insert(Part {
                from: library.path.clone(),
                to: format!("lib64/{name}"),
            });
        }
    }
    for binary in &files.binaries {
        let name = binary.rsplit('/').next().unwrap_or_default();
        parts.insert(Part {
            from: binary.clone(),
            to: format!("bin/{name}"),
        });
    }
    parts.into_iter().collect()
}

impl DriverVolumes {
    /// Reads and writes nothing.
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    /// Path of a volume, which is the same on the host and in the agent.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Builds the volume of these files unless it exists, and returns its name.
    pub fn prepare(&self, files: &DriverFiles, root: &HostRoot) -> Result<String, Error> {
        let parts = parts(files);
        let name = volume_name(files, &parts, root);
        let target = self.directory.join(&name);
        if target.is_dir() {
            return Ok(name);
        }
        let partial = self.directory.join(format!("{PARTIAL_PREFIX}{name}"));
        let built = build(&partial, &parts, root).and_then(|()| fs::rename(&partial, &target));
        built.map_err(|source| {
            let _ = fs::remove_dir_all(&partial);
            Error::DriverVolume { path: target, source }
        })?;
        Ok(name)
    }

    /// The complete volumes on disk.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let directories = entries.filter(|entry| entry.path().is_dir());
        let names = directories.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
        names.sort_unstable();
        names
    }

    /// Removes leftovers of interrupted builds and every volume that is not in `kept`.
    pub fn remove_except(&self, kept: &BTreeSet<String>) -> Result<(), Error> {
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let ours = name.starts_with(PARTIAL_PREFIX) || entry.path().join(MARKER_FILE).is_file();
            if ours && !kept.contains(&name) {
                let path = entry.path();
                fs::remove_dir_all(&path).map_err(|source| Error::DriverVolume { path, source })?;
            }
        }
        Ok(())
    }
}

/// File that marks a directory as a driver volume of ours.
const MARKER_FILE: &str = ".kai-driver-volume";

/// The driver's version and a digest of the files' sizes and times, so that files replaced within one version make a new volume.
fn volume_name(files: &DriverFiles, parts: &[Part], root: &HostRoot) -> String {
    let mut words: Vec<String> = Vec::new();
    for part in parts {
        let facts = fs::metadata(root.local_path(&part.from));
        let (size, changed) = facts.map_or((0, 0), |facts| (facts.size(), facts.mtime()));
        words.push(format!("{}:{}:{size}:{changed}", part.from, part.to));
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let digest = kai_gpu::stable_uuid(&words);
    format!("{}-{}", files.version.as_deref().unwrap_or("unknown"), &digest[..8])
}

fn build(partial: &Path, parts: &[Part], root: &HostRoot) -> io::Result<()> {
    if partial.exists() {
        fs::remove_dir_all(partial)?;
    }
    for directory in ["bin", "lib64"] {
        fs::create_dir_all(partial.join(directory))?;
    }
    for part in parts {
        let (from, to) = (root.local_path(&part.from), partial.join(&part.to));
        // A hard link costs no space and keeps the old file after an upgrade, but works only within one file system.
        if fs::hard_link(&from, &to).is_err() {
            fs::copy(&from, &to)?;
        }
    }
    fs::set_permissions(partial, fs::Permissions::from_mode(0o755))?;
    fs::write(partial.join(MARKER_FILE), "")
}

#[cfg(test)]
mod tests {
    use super::super::files::Library;
    use super::*;

    fn host(content: &str) -> (tempfile::TempDir, DriverFiles) {
        let host = tempfile::tempdir().unwrap();
        for (path, text) in [("usr/lib/libcuda.so.550.1", content), ("usr/bin/nvidia-smi", "smi")] {
            let path = host.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let files = DriverFiles {
            version: Some("550.1".into()),
            libraries: vec![Library {
                path: "/usr/lib/libcuda.so.550.1".into(),
                names: vec!["libcuda.so.550.1".into(), "libcuda.so.1".into()],
                links: Vec::new(),
                placement: LibraryPlacement::LinkerDirs,
            }],
            binaries: vec!["/usr/bin/nvidia-smi".into()],
            ..DriverFiles::default()
        };
        (host, files)
    }

    #[test]
    fn a_volume_is_built_once_and_again_for_new_files() {
        let (host, files) = host("one");
        let place = tempfile::tempdir().unwrap();
        let volumes = DriverVolumes::new(place.path());
        let root = HostRoot::new(host.path());
        let first = volumes.prepare(&files, &root).unwrap();
        assert!(first.starts_with("550.1-"));
        assert_eq!(volumes.prepare(&files, &root).unwrap(), first);
        assert_eq!(
            fs::read(volumes.path(&first).join("lib64/libcuda.so.1")).unwrap(),
            b"one"
        );
        assert_eq!(fs::read(volumes.path(&first).join("bin/nvidia-smi")).unwrap(), b"smi");

        // An upgrade replaces the file (a new inode); the old volume keeps the old content.
        let library = host.path().join("usr/lib/libcuda.so.550.1");
        fs::remove_file(&library).unwrap();
        fs::write(&library, "other").unwrap();
        let second = volumes.prepare(&files, &root).unwrap();
        assert_ne!(first, second);
        assert_eq!(
            fs::read(volumes.path(&first).join("lib64/libcuda.so.1")).unwrap(),
            b"one"
        );

        volumes.remove_except(&BTreeSet::from([second.clone()])).unwrap();
        assert_eq!(volumes.names(), [second]);
    }

    #[test]
    fn what_cannot_be_built_leaves_nothing() {
        let (host, mut files) = host("one");
        files.binaries.push("/usr/bin/missing".into());
        let place = tempfile::tempdir().unwrap();
        let volumes = DriverVolumes::new(place.path());
        assert!(volumes.prepare(&files, &HostRoot::new(host.path())).is_err());
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn foreign_directories_are_left_alone() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("somebody-else")).unwrap();
        fs::create_dir(place.path().join(".partial-1")).unwrap();
        DriverVolumes::new(place.path())
            .remove_except(&BTreeSet::new())
            .unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
