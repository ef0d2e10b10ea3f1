//! Writes and removes CDI specs. Other processes read the files at any time, so a file is replaced as a whole. Only files with our prefix
//! are changed or removed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::cdi::Spec;
use crate::Error;
use crate::share_devices::offer::ID_PREFIX as SHARE_DEVICE_PREFIX;

/// Where runtimes look for specs that are generated at run time.
pub const CDI_DIR: &str = "/var/run/cdi";
const SPEC_PREFIX: &str = "kai.scheduler-";
const SPEC_FILE: &str = "kai.scheduler-gpu.json";
const TEMPORARY_PREFIX: &str = ".kai.scheduler-";
const SPEC_SUFFIX: &str = ".json";

/// What [`CdiDir::write`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The file already had this content.
    Unchanged,
    /// The file is new or replaced.
    Changed,
}

/// The directory of CDI specs.
#[derive(Debug, Clone)]
pub struct CdiDir {
    directory: PathBuf,
}

impl CdiDir {
    /// Reads and writes nothing.
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    /// Path of the spec of whole GPUs.
    pub fn spec_path(&self) -> PathBuf {
        self.directory.join(SPEC_FILE)
    }

    /// The spec of whole GPUs, if there is a readable one.
    pub fn read(&self) -> Option<Spec> {
        let bytes = fs::read(self.spec_path()).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Whether the spec of whole GPUs on disk has `device`, so that a runtime can resolve it.
    pub fn has(&self, device: &str) -> bool {
        self.read()
            .is_some_and(|spec| spec.devices.iter().any(|known| known.name == device))
    }

    /// Writes the spec of whole GPUs and removes all other files of ours, except the specs of share devices.
    pub fn write(&self, spec: &Spec) -> Result<Written, Error> {
        self.remove_where(|name| name != SPEC_FILE && !is_share_device_spec(name))?;
        self.put(&self.spec_path(), spec)
    }

    /// Writes the spec of a share device.
    pub fn write_share_device(&self, share_device: &str, spec: &Spec) -> Result<Written, Error> {
        self.put(&self.share_device_path(share_device), spec)
    }

    fn put(&self, path: &Path, spec: &Spec) -> Result<Written, Error> {
        let problems = spec.problems();
        if !problems.is_empty() {
            return Err(Error::InvalidCdi {
                path: path.to_owned(),
                problems: problems.join("; "),
            });
        }
        let text = render(spec);
        // A link is replaced even if it leads to the same content: its target may change later.
        let is_file = fs::symlink_metadata(path).is_ok_and(|facts| facts.is_file());
        if is_file && fs::read(path).is_ok_and(|current| current == text.as_bytes()) {
            return Ok(Written::Unchanged);
        }
        fs::create_dir_all(&self.directory).map_err(|source| Error::write_cdi(path, source))?;
        replace(path, text.as_bytes()).map_err(|source| Error::write_cdi(path, source))?;
        Ok(Written::Changed)
    }

    fn share_device_path(&self, share_device: &str) -> PathBuf {
        self.directory.join(format!("{SPEC_PREFIX}{share_device}{SPEC_SUFFIX}"))
    }

    /// The share devices that have a spec.
    pub fn share_devices(&self) -> Vec<String> {
        let share_device = |name: &str| {
            let share_device = name.strip_prefix(SPEC_PREFIX)?.strip_suffix(SPEC_SUFFIX)?;
            share_device
                .starts_with(SHARE_DEVICE_PREFIX)
                .then(|| share_device.to_owned())
        };
        self.names().iter().filter_map(|name| share_device(name)).collect()
    }

    /// The spec of a share device, if there is a readable one.
    pub fn read_share_device(&self, share_device: &str) -> Option<Spec> {
        serde_json::from_slice(&fs::read(self.share_device_path(share_device)).ok()?).ok()
    }

    /// Paths of the programs that the hooks of our specs run.
    pub fn hooks(&self) -> BTreeSet<String> {
        let shares = self.share_devices();
        let specs = shares
            .iter()
            .filter_map(|share_device| self.read_share_device(share_device));
        let specs: Vec<Spec> = specs.chain(self.read()).collect();
        let edits = specs.iter().flat_map(|spec| {
            let devices = spec.devices.iter().map(|device| &device.container_edits);
            devices.chain([&spec.container_edits])
        });
        edits
            .flat_map(|edits| edits.hooks.iter().map(|hook| hook.path.clone()))
            .collect()
    }

    /// Removes the spec of a share device.
    pub fn remove_share_device(&self, share_device: &str) -> Result<(), Error> {
        remove(&self.share_device_path(share_device))
    }

    /// Removes the specs of all share devices.
    pub fn remove_share_devices(&self) -> Result<(), Error> {
        self.remove_where(is_share_device_spec)
    }

    /// Removes every spec of ours.
    pub fn remove(&self) -> Result<(), Error> {
        self.remove_where(|_| true)
    }

    fn remove_where(&self, wanted: impl Fn(&str) -> bool) -> Result<(), Error> {
        let ours = |name: &str| name.starts_with(SPEC_PREFIX) || name.starts_with(TEMPORARY_PREFIX);
        let names = self.names();
        let mut names = names.iter().filter(|name| ours(name) && wanted(name));
        names.try_for_each(|name| remove(&self.directory.join(name)))
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }
}

/// Whether the name is that of a share device's spec or of its temporary file.
fn is_share_device_spec(name: &str) -> bool {
    let rest = name.strip_prefix(SPEC_PREFIX).or(name.strip_prefix(TEMPORARY_PREFIX));
    rest.is_some_and(|rest| rest.starts_with(SHARE_DEVICE_PREFIX))
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(Error::write_cdi(path, source)),
    }
}

/// The text of a spec file.
pub fn render(spec: &Spec) -> String {
    let mut text = serde_json::to_string_pretty(spec).expect("a spec has only string keys");
    text.push('\n');
    text
}

/// Writes a temporary file and renames it: a reader sees the old file or the new one, never a part. On failure no file is left. The
/// temporary file is in the same directory, because runtimes that watch the directory notice the file that is renamed away, not the file
/// that gets the name.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with(path, |file| file.write_all(bytes))
}

/// Separate for tests: `fill` may fail as a full disk does.
fn replace_with(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("file");
    let name = name.strip_prefix(SPEC_PREFIX).unwrap_or(name);
    let temporary = path.with_file_name(format!("{TEMPORARY_PREFIX}{name}.{}", std::process::id()));
    // A new file: one with this name may be a link.
    let _ = fs::remove_file(&temporary);
    let written = File::create_new(&temporary).and_then(|mut file| {
        fill(&mut file)?;
        file.sync_all()
    });
    let done = written.and_then(|()| fs::rename(&temporary, path));
    if done.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::super::cdi::{Device, DeviceNode, Edits};
    use super::*;

    fn spec(names: &[&str]) -> Spec {
        let node = DeviceNode {
            path: "/dev/nvidia0".into(),
            host_path: None,
            permissions: None,
            gid: None,
        };
        let edits = Edits {
            device_nodes: vec![node],
            ..Edits::default()
        };
        let device = |name: &&str| Device {
            name: (*name).into(),
            container_edits: edits.clone(),
        };
        Spec {
            cdi_version: "0.5.0".into(),
            kind: "kai.scheduler/gpu".into(),
            devices: names.iter().map(device).collect(),
            container_edits: Edits::default(),
        }
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn only_our_own_stale_files_go() {
        let place = tempfile::tempdir().unwrap();
        for name in [
            "kai.scheduler-old.json",
            ".kai.scheduler-gpu.json.1",
            "nvidia.yaml",
            "vendor.json",
        ] {
            fs::write(place.path().join(name), "{}").unwrap();
        }
        let directory = CdiDir::new(place.path());
        assert_eq!(directory.write(&spec(&["0"])).unwrap(), Written::Changed);
        assert_eq!(
            names(place.path()),
            ["kai.scheduler-gpu.json", "nvidia.yaml", "vendor.json"]
        );
        assert_eq!(directory.write(&spec(&["0"])).unwrap(), Written::Unchanged);
        assert_eq!(directory.write(&spec(&["0", "1"])).unwrap(), Written::Changed);
        assert!(directory.has("1") && !directory.has("2"));
        directory.remove().unwrap();
        assert_eq!(names(place.path()), ["nvidia.yaml", "vendor.json"]);
    }

    #[test]
    fn slots_come_and_go_by_themselves() {
        let place = tempfile::tempdir().unwrap();
        let directory = CdiDir::new(place.path());
        directory.write_share_device("share-0", &spec(&["share-0"])).unwrap();
        directory.write_share_device("share-12", &spec(&["share-12"])).unwrap();
        fs::write(place.path().join(".kai.scheduler-share-1.json.7"), "").unwrap();
        directory.write(&spec(&["0"])).unwrap();
        let mut share_devices = directory.share_devices();
        share_devices.sort_unstable();
        assert_eq!(share_devices, ["share-0", "share-12"]);
        directory.remove_share_device("share-0").unwrap();
        directory.remove_share_device("share-5").unwrap();
        assert_eq!(directory.share_devices(), ["share-12"]);
        directory.remove_share_devices().unwrap();
        assert_eq!(names(place.path()), ["kai.scheduler-gpu.json"]);
    }

    #[test]
    fn a_spec_that_runtimes_refuse_is_an_error_and_nothing_is_written() {
        let place = tempfile::tempdir().unwrap();
        let dir = CdiDir::new(place.path());
        let error = dir.write(&spec(&["gpu 0"])).unwrap_err().to_string();
        assert!(
            error.contains("kai.scheduler-gpu.json") && error.contains("\"gpu 0\"") && error.contains("--mode"),
            "{error}"
        );
        let error = dir
            .write_share_device("share device-0", &spec(&[]))
            .unwrap_err()
            .to_string();
        assert!(error.contains("there is no device"), "{error}");
        assert_eq!(names(place.path()), Vec::<String>::new());
        dir.write(&spec(&["gpu-0"])).unwrap();
        dir.write(&spec(&["gpu-0", "gpu-0"])).unwrap_err();
        assert!(dir.has("gpu-0"), "the spec from before stays");
    }

    #[test]
    fn links_are_replaced_and_their_targets_stay() {
        let place = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let target = elsewhere.path().join("target");
        let directory = CdiDir::new(place.path());
        for content in [render(&spec(&["share-0"])), "precious".to_owned()] {
            fs::write(&target, &content).unwrap();
            for name in [
                "kai.scheduler-share-0.json".to_owned(),
                format!(".kai.scheduler-share-0.json.{}", std::process::id()),
            ] {
                let link = place.path().join(name);
                let _ = fs::remove_file(&link);
                std::os::unix::fs::symlink(&target, &link).unwrap();
            }
            assert_eq!(
                directory.write_share_device("share-0", &spec(&["share-0"])).unwrap(),
                Written::Changed
            );
            assert_eq!(fs::read_to_string(&target).unwrap(), content);
            assert_eq!(directory.read_share_device("share-0"), Some(spec(&["share-0"])));
            let written = fs::symlink_metadata(place.path().join("kai.scheduler-share-0.json")).unwrap();
            assert!(written.is_file());
        }
    }

    #[test]
    fn a_full_disk_leaves_the_old_file_and_no_leftover() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("kai.scheduler-gpu.json");
        replace(&path, b"old").unwrap();
        let full = replace_with(&path, |file| {
            file.write_all(b"half")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        });
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(place.path()), ["kai.scheduler-gpu.json"]);
    }
}
