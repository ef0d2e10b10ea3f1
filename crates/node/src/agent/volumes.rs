//! Keeps injection up to date: looks at the driver's files when the inventory or the files change, writes specs and volumes, tells
//! the state's owner how containers are served, and removes driver volumes when their last container is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, watch};

use super::args::Pace;
use super::state::{Input, Snapshot};
use crate::podresources;
use crate::volume::prepare::{Outcome, Prepared, Volume};
use crate::volume::store;

/// Which driver volume each handed-out device id uses. The kubelet replays an Allocate answer when a container restarts, so the
/// volume in it must live as long as the container.
#[derive(Debug, Clone, Default)]
pub struct VolumeUses {
    path: PathBuf,
    // A lock, because allocations (server tasks) write and the cleaner (this module) reads; held for a map operation only.
    inner: Arc<Mutex<Uses>>,
}

#[derive(Debug, Default)]
struct Uses {
    current: Option<String>,
    by_device: BTreeMap<String, String>,
}

impl VolumeUses {
    /// Reads what an earlier agent noted.
    pub fn load(path: PathBuf) -> Self {
        let by_device = std::fs::read(&path)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        Self {
            path,
            inner: Arc::new(Mutex::new(Uses {
                current: None,
                by_device,
            })),
        }
    }

    /// Notes that these ids were handed out with the current volume.
    pub fn allocated(&self, device_ids: &[String]) {
        let mut uses = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(current) = uses.current.clone() else { return };
        for id in device_ids {
            uses.by_device.insert(id.clone(), current.clone());
        }
        self.save(&uses);
    }

    fn set_current(&self, name: Option<String>) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).current = name;
    }

    /// The volumes still needed, given the ids that containers hold; forgets the rest.
    fn needed(&self, held: &BTreeSet<String>) -> BTreeSet<String> {
        let mut uses = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let before = uses.by_device.len();
        uses.by_device.retain(|id, _| held.contains(id));
        if uses.by_device.len() != before {
            self.save(&uses);
        }
        uses.by_device.values().cloned().chain(uses.current.clone()).collect()
    }

    /// A lost note keeps an old volume too long or, after a restart on a full disk, frees it too early; say so, go on.
    fn save(&self, uses: &Uses) {
        let bytes = serde_json::to_vec(&uses.by_device).expect("a map of strings is JSON");
        if let Err(error) = store::replace(&self.path, &bytes) {
            tracing::warn!(path = %self.path.display(), %error, "could not note which driver volumes are in use");
        }
    }
}

/// Runs until the agent stops.
pub async fn keep(
    volume: Volume,
    uses: VolumeUses,
    pod_resources: PathBuf,
    pace: Pace,
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    inputs: mpsc::Sender<Input>,
) {
    let mut seen = None;
    let mut done: Option<Done> = None;
    let mut last_error = String::new();
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        let fingerprint = volume.fingerprint();
        let inventory_changed = done.as_ref().is_none_or(|done| done.inventory != snapshot.inventory);
        let failed_before = !last_error.is_empty();
        if snapshot.confirmed && (inventory_changed || seen.as_ref() != Some(&fingerprint) || failed_before) {
            let (prepared, outcome) = work(&volume, &snapshot).await;
            say(&prepared, &outcome, done.as_ref(), &mut last_error);
            uses.set_current(outcome.volume.clone());
            if inputs.send(Input::Injection(outcome.injection)).await.is_err() {
                return;
            }
            done = Some(Done {
                inventory: snapshot.inventory.clone(),
                warnings: prepared.warnings,
            });
            seen = Some(fingerprint);
            clean(&volume, &uses, &pod_resources).await;
        }
        let pause = if last_error.is_empty() {
            pace.refresh
        } else {
            pace.retry
        };
        tokio::select! {
            changed = snapshots.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(pause) => {}
        }
    }
}

struct Done {
    inventory: Arc<kai_gpu::Inventory>,
    warnings: Vec<String>,
}

/// Files are read and copied on a blocking thread: a slow disk must not hold up the kubelet's calls.
async fn work(volume: &Volume, snapshot: &Arc<Snapshot>) -> (Prepared, Outcome) {
    let (volume, inventory) = (volume.clone(), snapshot.inventory.clone());
    let work = tokio::task::spawn_blocking(move || {
        let prepared = volume.look(&inventory);
        let outcome = volume.prepare(&inventory, &prepared);
        (prepared, outcome)
    });
    work.await.expect("looking at files does not panic")
}

fn say(prepared: &Prepared, outcome: &Outcome, before: Option<&Done>, last_error: &mut String) {
    if outcome.changed {
        tracing::info!("wrote the CDI spec");
    }
    for warning in prepared
        .warnings
        .iter()
        .filter(|warning| before.is_none_or(|done| !done.warnings.contains(warning)))
    {
        tracing::warn!("{warning}");
    }
    let error = outcome.error.as_ref().map(ToString::to_string).unwrap_or_default();
    if !error.is_empty() && error != *last_error {
        tracing::warn!(error, "containers are served without it");
    }
    *last_error = error;
}

/// Frees volumes of earlier drivers once nobody uses them. Without the kubelet's word nothing is freed.
async fn clean(volume: &Volume, uses: &VolumeUses, pod_resources: &std::path::Path) {
    let Ok(held) = podresources::list(pod_resources).await else {
        return;
    };
    let ids: BTreeSet<String> = held.into_iter().flat_map(|holding| holding.device_ids).collect();
    if let Err(error) = volume.remove_volumes(&uses.needed(&ids)) {
        tracing::warn!(%error, "could not remove an old driver volume");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_lives_as_long_as_a_container_that_got_it() {
        let place = tempfile::tempdir().unwrap();
        let uses = VolumeUses::load(place.path().join("uses.json"));
        let ids = |list: &[&str]| list.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        let set = |list: &[&str]| list.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();
        uses.set_current(Some("550-1".into()));
        uses.allocated(&ids(&["GPU-a", "GPU-b"]));
        uses.set_current(Some("570-1".into()));
        // A restarted agent knows too.
        let uses = VolumeUses::load(place.path().join("uses.json"));
        uses.set_current(Some("570-1".into()));
        uses.allocated(&ids(&["GPU-b"]));
        assert_eq!(uses.needed(&set(&["GPU-a", "GPU-b"])), set(&["550-1", "570-1"]));
        assert_eq!(uses.needed(&set(&["GPU-b"])), set(&["570-1"]));
        assert_eq!(
            uses.needed(&set(&[])),
            set(&["570-1"]),
            "the current one is always needed"
        );
    }
}
