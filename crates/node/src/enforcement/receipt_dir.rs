//! Reads and writes receipts. The directory is root's alone, and no symbolic link is followed: neither as the directory nor in place of a
//! file can a link make the hook, which runs as the host's root, write elsewhere.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags};

use super::receipt::Receipt;

/// The longest receipt that is read. One has a few hundred bytes for each GPU.
const BYTES_MAX: u64 = 256 * 1024;

const SUFFIX: &str = ".json";
/// End of the name of what a hook leaves that could not lift limits.
const LIFT_SUFFIX: &str = ".lift";

/// A hook is ended long before its temporary file has this age.
const TEMPORARY_MAX: Duration = Duration::from_secs(60);

/// Why a receipt could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReceiptError {
    /// The path has no directory or no plain file name.
    #[error("{} is no absolute path of a receipt; the node agent writes it into the CDI spec: restart the agent", .0.display())]
    Path(PathBuf),
    /// The directory belongs to somebody else, or others may write to it.
    #[error("{} belongs to user {owner} and has mode {mode:o}; it must be root's and writable by root only: remove it and restart the node agent", path.display())]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permissions.
        mode: u32,
    },
    /// The system refused.
    #[error("writing the receipt {}: {source}; keep space on the node agent's state directory", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

/// File name of what a hook leaves that could not lift the limits of a container with this GPU.
pub fn lift_file(gpu: &str) -> String {
    format!("{gpu}{LIFT_SUFFIX}")
}

/// Replaces a receipt as a whole.
pub fn write(path: &Path, receipt: &Receipt) -> Result<(), ReceiptError> {
    let wrong = || ReceiptError::Path(path.to_owned());
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Err(wrong());
    };
    if !path.is_absolute() {
        return Err(wrong());
    }
    let failed = |source: io::Error| ReceiptError::Io {
        path: path.to_owned(),
        source,
    };
    let directory = open_directory(directory)?;
    let temporary = format!(".{name}.{}", std::process::id());
    let written = create(&directory, &temporary).and_then(|mut file| {
        file.write_all(&serde_json::to_vec(receipt).expect("a receipt is JSON"))?;
        file.sync_all()
    });
    let done = written
        .and_then(|()| rustix::fs::renameat(&directory, temporary.as_str(), &directory, name).map_err(io::Error::from));
    if done.is_err() {
        let _ = rustix::fs::unlinkat(&directory, temporary.as_str(), AtFlags::empty());
    }
    done.map_err(failed)
}

/// A new file. One that a killed hook with the same pid left is removed first.
fn create(directory: &OwnedFd, name: &str) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR);
    let opened = match open() {
        Err(rustix::io::Errno::EXIST) => {
            rustix::fs::unlinkat(directory, name, AtFlags::empty())?;
            open()
        }
        other => other,
    };
    Ok(File::from(opened?))
}

/// Opens the directory, and checks that nobody else can put files into it.
fn open_directory(path: &Path) -> Result<OwnedFd, ReceiptError> {
    let failed = |error: rustix::io::Errno| ReceiptError::Io {
        path: path.to_owned(),
        source: error.into(),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
    let facts = rustix::fs::fstat(&directory).map_err(failed)?;
    let (owner, mode) = (facts.st_uid, facts.st_mode & 0o7777);
    if owner != rustix::process::geteuid().as_raw() || mode & 0o022 != 0 {
        let path = path.to_owned();
        return Err(ReceiptError::Unsafe { path, owner, mode });
    }
    Ok(directory)
}

/// The receipts of a node.
#[derive(Debug, Clone)]
pub struct ReceiptDir {
    directory: PathBuf,
}

impl ReceiptDir {
    /// Below the agent's state directory.
    pub fn new(state_dir: &Path) -> Self {
        Self {
            directory: state_dir.join("limits"),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// Creates the directory for root alone. A link, or a directory of somebody else, is removed first.
    pub fn create(&self) -> Result<(), ReceiptError> {
        use std::os::unix::fs::DirBuilderExt;
        let failed = |source: io::Error| ReceiptError::Io {
            path: self.directory.clone(),
            source,
        };
        if let Ok(facts) = fs::symlink_metadata(&self.directory)
            && !facts.is_dir()
        {
            fs::remove_file(&self.directory).map_err(failed)?;
        }
        match open_directory(&self.directory) {
            Ok(_) => {
                self.remove_leftovers();
                return Ok(());
            }
            // Somebody else could have written the receipts in it.
            Err(ReceiptError::Unsafe { .. }) => fs::remove_dir_all(&self.directory).map_err(failed)?,
            Err(ReceiptError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            // A system that is short of something says nothing about the receipts.
            Err(error @ (ReceiptError::Io { .. } | ReceiptError::Path(_))) => return Err(error),
        }
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(&self.directory).map_err(failed)
    }

    /// Removes the temporary files of hooks that were killed.
    fn remove_leftovers(&self) {
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let is_temporary = entry.file_name().as_encoded_bytes().starts_with(b".");
            let age = entry
                .metadata()
                .and_then(|facts| facts.modified())
                .ok()
                .and_then(|at| at.elapsed().ok());
            if is_temporary && age.is_some_and(|age| age > TEMPORARY_MAX) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Whether there is no file in it.
    pub fn is_empty(&self) -> bool {
        fs::read_dir(&self.directory).into_iter().flatten().next().is_none()
    }

    /// Path of the receipt of a share device.
    pub fn file(&self, share_device: &str) -> PathBuf {
        self.directory.join(format!("{share_device}{SUFFIX}"))
    }

    /// All receipts by share device, sorted. Files that are no receipts are left out: the audit then finds a container
    /// without a receipt, and says so.
    pub fn read(&self) -> Vec<(String, Receipt)> {
        let Ok(directory) = open_directory(&self.directory) else {
            return Vec::new();
        };
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let mut receipts: Vec<(String, Receipt)> = entries
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let share_device = name
                    .strip_suffix(SUFFIX)
                    .filter(|name| !name.starts_with('.'))?
                    .to_owned();
                Some((share_device, read(&directory, &name)?))
            })
            .collect();
        receipts.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        receipts
    }

    /// Reads and removes what hooks left that could not lift limits: by GPU, sorted.
    pub fn take_failed_lifts(&self) -> Vec<(String, Receipt)> {
        let Ok(directory) = open_directory(&self.directory) else {
            return Vec::new();
        };
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let mut lifts: Vec<(String, Receipt)> = entries
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let gpu = name
                    .strip_suffix(LIFT_SUFFIX)
                    .filter(|name| !name.starts_with('.'))?
                    .to_owned();
                let receipt = read(&directory, &name);
                let _ = rustix::fs::unlinkat(&directory, name.as_str(), AtFlags::empty());
                Some((gpu, receipt?))
            })
            .collect();
        lifts.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        lifts
    }

    /// Removes the receipt of a share device.
    pub fn remove(&self, share_device: &str) {
        let _ = fs::remove_file(self.file(share_device));
    }
}

fn read(directory: &OwnedFd, name: &str) -> Option<Receipt> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(directory, name, flags, Mode::empty()).ok()?);
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::limits::GpuLimit;
    use super::super::receipt::ContainerName;
    use super::*;

    pub(crate) fn receipt(container_id: &str) -> Receipt {
        Receipt {
            container: ContainerName {
                namespace: "team".to_owned(),
                pod: "half".to_owned(),
                uid: "uid-1".to_owned(),
                container: "main".to_owned(),
            },
            container_id: container_id.to_owned(),
            cgroup: "/sys/fs/cgroup/kubepods/pod1/abc".to_owned(),
            at_seconds: 1,
            limits: vec![GpuLimit::hard("GPU-1", 1 << 30)],
            system_memory_bytes: None,
            failure: None,
        }
    }

    fn directory() -> (tempfile::TempDir, ReceiptDir) {
        let place = tempfile::tempdir().unwrap();
        let directory = ReceiptDir::new(place.path());
        directory.create().unwrap();
        (place, directory)
    }

    #[test]
    fn a_receipt_is_replaced_as_a_whole_and_read_again() {
        let (_place, directory) = directory();
        write(&directory.file("share-1"), &receipt("a")).unwrap();
        write(&directory.file("share-1"), &receipt("b")).unwrap();
        write(&directory.file("share-0"), &receipt("c")).unwrap();
        fs::write(directory.file("share-2"), "no receipt").unwrap();
        let expect = [("share-0", "c"), ("share-1", "b")].map(|(name, id)| (name.to_owned(), receipt(id)));
        assert_eq!(directory.read(), expect);
        directory.remove("share-0");
        assert_eq!(directory.read().len(), 1);
        let mode = fs::metadata(directory.file("share-1")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_link_in_place_of_the_file_is_replaced_and_its_target_stays() {
        let (place, directory) = directory();
        let target = place.path().join("target");
        fs::write(&target, "precious").unwrap();
        symlink(&target, directory.file("share-1")).unwrap();
        // The name that the hook uses for its temporary file, too.
        symlink(
            &target,
            directory.path().join(format!(".share-1.json.{}", std::process::id())),
        )
        .unwrap();
        assert!(directory.read().is_empty(), "a link is not read");
        write(&directory.file("share-1"), &receipt("a")).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
        assert_eq!(directory.read().len(), 1);
    }

    #[test]
    fn a_lift_that_failed_is_read_once_and_is_no_receipt_of_a_share_device() {
        let (_temporary, receipts) = directory();
        for gpu in ["GPU-2", "GPU-1"] {
            write(&receipts.path().join(lift_file(gpu)), &receipt(gpu)).unwrap();
        }
        write(&receipts.file("share-1"), &receipt("one")).unwrap();
        fs::write(receipts.path().join("broken.lift"), "{").unwrap();
        assert_eq!(receipts.read().len(), 1);
        let taken = receipts.take_failed_lifts();
        let expected = ["GPU-1", "GPU-2"].map(|gpu| (gpu.to_owned(), receipt(gpu)));
        assert_eq!(taken, expected);
        assert_eq!(receipts.take_failed_lifts(), []);
        assert_eq!(
            fs::read_dir(receipts.path()).unwrap().count(),
            1,
            "the share device's receipt stays"
        );
    }

    #[test]
    fn what_killed_hooks_left_is_removed_and_receipts_stay() {
        let (_place, directory) = directory();
        write(&directory.file("share-1"), &receipt("a")).unwrap();
        let [old, fresh] = [".share-2.json.7", ".share-3.json.8"].map(|name| directory.path().join(name));
        for file in [&old, &fresh] {
            fs::write(file, "half a rec").unwrap();
        }
        let before = std::time::SystemTime::now() - TEMPORARY_MAX * 2;
        for file in [&old, &directory.file("share-1")] {
            File::options()
                .write(true)
                .open(file)
                .unwrap()
                .set_modified(before)
                .unwrap();
        }
        directory.create().unwrap();
        assert!(!old.exists() && fresh.exists());
        assert_eq!(directory.read().len(), 1);
    }

    #[test]
    fn a_directory_that_others_can_change_is_refused_and_made_anew() {
        let (place, directory) = directory();
        let file = directory.file("share-1");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let error = write(&file, &receipt("a")).unwrap_err().to_string();
        assert!(error.contains("writable by root only"), "{error}");
        directory.create().unwrap();
        write(&file, &receipt("a")).unwrap();

        fs::remove_dir_all(directory.path()).unwrap();
        let elsewhere = place.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, directory.path()).unwrap();
        assert!(write(&file, &receipt("a")).is_err());
        directory.create().unwrap();
        write(&file, &receipt("a")).unwrap();
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
        assert!(write(Path::new("share-1.json"), &receipt("a")).is_err());
    }
}
