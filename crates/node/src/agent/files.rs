//! Ticks when something changes in a directory, and keeps the last inventory and the name of a Tegra's GPU on disk. Small shells around
//! the file system.

use std::path::{Path, PathBuf};

use kai_gpu::platform::detect;
use kai_gpu::{DeviceKind, Inventory, PlatformKind, Roots};
use notify::{RecursiveMode, Watcher};
use tokio::sync::watch;

use crate::Error;
use crate::driver_files::store;

/// Watches a directory for files that come and go. The watch ends when the returned guard is dropped. If the system has no watch
/// left to give, the receiver never ticks and callers fall back to their polls.
pub fn watch_directory(directory: &Path) -> (watch::Receiver<u64>, impl Sized + use<>) {
    let (sender, receiver) = watch::channel(0);
    let notify = move |_event| sender.send_modify(|ticks| *ticks += 1);
    let watcher = notify::recommended_watcher(notify).and_then(|mut watcher| {
        watcher.watch(directory, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    if let Err(error) = &watcher {
        tracing::warn!(directory = %directory.display(), %error, "can't watch for file events; polling instead");
    }
    (receiver, watcher)
}

/// The inventory of the last run: what is offered while the driver is still starting.
#[derive(Debug, Clone)]
pub struct LastInventory {
    path: PathBuf,
}

impl LastInventory {
    /// SavedIdentity in `state_dir`.
    pub fn new(state_dir: &Path) -> Self {
        Self {
            path: state_dir.join("inventory.json"),
        }
    }

    /// What was kept; nothing if it can't be read, since the driver will tell soon.
    pub fn load(&self) -> Option<Inventory> {
        serde_json::from_slice(&std::fs::read(&self.path).ok()?).ok()
    }

    /// Keeps it for the next start.
    pub fn save(&self, inventory: &Inventory) -> Result<(), Error> {
        let bytes = serde_json::to_vec(inventory).expect("an inventory is JSON");
        if std::fs::read(&self.path).is_ok_and(|current| current == bytes) {
            return Ok(());
        }
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        let saved = std::fs::create_dir_all(directory).and_then(|()| store::replace(&self.path, &bytes));
        saved.map_err(|source| Error::State {
            path: self.path.clone(),
            source,
        })
    }
}

/// The UUID under which the integrated GPU of a Tegra is offered. NVML may begin or cease to tell one of its own (another JetPack, a
/// library that is mounted later), but the kubelet's books and reservation pods hold the one that was served first.
#[derive(Debug, Clone)]
pub struct IntegratedGpuIdentity {
    path: PathBuf,
    /// Tells boards apart, so that a disk moved to another board does not take the name along.
    board: String,
}

#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct SavedIdentity {
    board: String,
    uuid: String,
}

impl IntegratedGpuIdentity {
    /// SavedIdentity in `state_dir`, for the board that `roots` show.
    pub fn new(state_dir: &Path, roots: &Roots) -> Self {
        Self {
            path: state_dir.join("identity.json"),
            board: kai_gpu::tegra::board_uuid(roots, &detect(roots).platform),
        }
    }

    /// The UUID that was served before on this board.
    pub fn load(&self) -> Option<String> {
        let saved: SavedIdentity = serde_json::from_slice(&std::fs::read(&self.path).ok()?).ok()?;
        (saved.board == self.board).then_some(saved.uuid)
    }

    /// Keeps what is served now, on a Tegra with its own GPU; elsewhere UUIDs are the hardware's.
    pub fn save(&self, inventory: &Inventory) -> Result<(), Error> {
        let integrated = |device: &&kai_gpu::Device| device.kind == DeviceKind::Integrated;
        let Some(device) = inventory.devices.iter().find(integrated) else {
            return Ok(());
        };
        if inventory.platform.kind != PlatformKind::Tegra || self.load().as_ref() == Some(&device.uuid) {
            return Ok(());
        }
        let saved = SavedIdentity {
            board: self.board.clone(),
            uuid: device.uuid.clone(),
        };
        let bytes = serde_json::to_vec(&saved).expect("two strings are JSON");
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        let saved = std::fs::create_dir_all(directory).and_then(|()| store::replace(&self.path, &bytes));
        saved.map_err(|source| Error::State {
            path: self.path.clone(),
            source,
        })
    }
}
