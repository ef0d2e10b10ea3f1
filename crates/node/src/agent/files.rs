//! The agent's access to the file system: watches a directory for changes, and keeps the last inventory, the last configuration and the
//! UUID of a Tegra's integrated GPU on disk.

use std::path::{Path, PathBuf};

use kai_gpu::platform::detect;
use kai_gpu::{DeviceKind, Inventory, PlatformKind, Roots};
use notify::{RecursiveMode, Watcher};
use tokio::sync::watch;

use crate::Error;
use crate::driver_files::store;
use crate::enforcement::tier::NodeEnforcement;
use crate::plugin_config::AppliedConfig;

/// Watches a directory for files that are created, changed or removed. The watch ends when the returned guard is dropped. If the system refuses the
/// watch, the receiver never changes and callers rely on polling.
pub fn watch_directory(directory: &Path) -> (watch::Receiver<u64>, impl Sized + use<>) {
    let (sender, receiver) = watch::channel(0);
    // Reading a file is an event, too: a task that reads the directory at every event would never rest.
    let notify = move |event: notify::Result<notify::Event>| {
        if !event.is_ok_and(|event| event.kind.is_access()) {
            sender.send_modify(|ticks| *ticks += 1);
        }
    };
    let watcher = notify::recommended_watcher(notify).and_then(|mut watcher| {
        watcher.watch(directory, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    if let Err(error) = &watcher {
        tracing::warn!(directory = %directory.display(), %error, "can't watch for file events; polling instead");
    }
    (receiver, watcher)
}

/// The inventory of the last run, on disk. The agent offers it until the driver answers.
#[derive(Debug, Clone)]
pub struct LastInventory {
    path: PathBuf,
}

impl LastInventory {
    /// Stored in `state_dir`.
    pub fn new(state_dir: &Path) -> Self {
        Self {
            path: state_dir.join("inventory.json"),
        }
    }

    /// The stored inventory. An unreadable file gives none: the driver lists the GPUs soon.
    pub fn load(&self) -> Option<Inventory> {
        serde_json::from_slice(&std::fs::read(&self.path).ok()?).ok()
    }

    /// Stores the inventory for the next start.
    pub fn save(&self, inventory: &Inventory) -> Result<(), Error> {
        save(
            &self.path,
            &serde_json::to_vec(inventory).expect("an inventory is JSON"),
        )
    }
}

/// The last configuration that the node used, on disk. After a restart the agent offers the same resources before the API server has
/// answered, and also if the file got a typo meanwhile.
#[derive(Debug, Clone)]
pub struct LastConfig {
    path: PathBuf,
}

impl LastConfig {
    /// Stored in `state_dir`.
    pub fn new(state_dir: &Path) -> Self {
        Self {
            path: state_dir.join("config.json"),
        }
    }

    /// The stored configuration. An unreadable file gives none: the agent waits until it knows the configuration.
    pub fn load(&self) -> Option<AppliedConfig> {
        serde_json::from_slice(&std::fs::read(&self.path).ok()?).ok()
    }

    /// Stores the configuration for the next start.
    pub fn save(&self, config: &AppliedConfig) -> Result<(), Error> {
        save(
            &self.path,
            &serde_json::to_vec(config).expect("a configuration is JSON"),
        )
    }

    /// Forgets the configuration: the node is no longer configured by files.
    pub fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// By what the node held containers to their GPU share in the last run, on disk. It holds for containers that start before the driver has
/// answered.
#[derive(Debug, Clone)]
pub struct LastEnforcement {
    path: PathBuf,
}

impl LastEnforcement {
    /// Stored in `state_dir`.
    pub fn new(state_dir: &Path) -> Self {
        Self {
            path: state_dir.join("enforcement.json"),
        }
    }

    /// The stored decision. An unreadable file gives none: containers wait until it is decided.
    pub fn load(&self) -> Option<NodeEnforcement> {
        serde_json::from_slice(&std::fs::read(&self.path).ok()?).ok()
    }

    /// Stores the decision for the next start.
    pub fn save(&self, decided: &NodeEnforcement) -> Result<(), Error> {
        save(&self.path, &serde_json::to_vec(decided).expect("a decision is JSON"))
    }
}

/// Replaces a file of the state directory, unless it has this content.
fn save(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    if std::fs::read(path).is_ok_and(|current| current == bytes) {
        return Ok(());
    }
    let directory = path.parent().unwrap_or(Path::new("/"));
    let saved = std::fs::create_dir_all(directory).and_then(|()| store::replace(path, bytes));
    saved.map_err(|source| Error::State {
        path: path.to_owned(),
        source,
    })
}

/// The UUID under which the integrated GPU of a Tegra was first offered, on disk. NVML may later report another UUID or none (another
/// JetPack, a library that is mounted later), but the kubelet's checkpoint and reservation pods keep the first one.
#[derive(Debug, Clone)]
pub struct IntegratedGpuIdentity {
    path: PathBuf,
    /// Identifies the board, so that a disk that moves to another board does not bring the UUID along.
    board: String,
}

#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct SavedIdentity {
    board: String,
    uuid: String,
}

impl IntegratedGpuIdentity {
    /// Stored in `state_dir`, for the board that `roots` show.
    pub fn new(state_dir: &Path, roots: &Roots) -> Self {
        Self {
            path: state_dir.join("identity.json"),
            board: kai_gpu::tegra::board_uuid(roots, &detect(roots).platform),
        }
    }

    /// The UUID that was offered before on this board.
    pub fn load(&self) -> Option<String> {
        let saved: SavedIdentity = serde_json::from_slice(&std::fs::read(&self.path).ok()?).ok()?;
        (saved.board == self.board).then_some(saved.uuid)
    }

    /// Stores the UUID that is offered now. Only a Tegra with an integrated GPU needs it; elsewhere UUIDs come from the hardware.
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
        save(&self.path, &serde_json::to_vec(&saved).expect("two strings are JSON"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_new_file_is_an_event_and_reading_it_is_none() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("old"), "x").unwrap();
        let (mut changed, _watching) = watch_directory(place.path());
        for _ in 0..100 {
            assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
            std::fs::read(place.path().join("old")).unwrap();
        }
        // Events arrive in their order: those of the readings, if any, before that of the new directory.
        std::fs::create_dir(place.path().join("new")).unwrap();
        changed.changed().await.unwrap();
        assert_eq!(*changed.borrow_and_update(), 1);
    }
}
