//! Keeps injection up to date: collects the driver's files when the inventory or the files change, writes the CDI spec or the driver
//! volume, sends the resulting `Injection` to the task that owns the state, and removes driver volumes that no container uses.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::args::Pace;
use super::state::{Input, Snapshot};
use crate::driver_files::prepare::{DriverFileInjector, InjectionPlan, InjectionResult};
use crate::driver_files::store;
use crate::enforcement::tier::NodeEnforcement;
use crate::podresources;

/// The kubelet lists the devices of a container some moments after it allocated them. A device id that was not listed yet keeps its volume
/// for this long; then its container never started.
const UNLISTED_MAX: Duration = Duration::from_secs(600);

/// Which driver volume each allocated device id uses. The kubelet reuses an Allocate response when a container restarts, so the volume must
/// exist as long as the container.
#[derive(Debug, Clone, Default)]
pub struct DriverVolumeUses {
    path: PathBuf,
    // A lock, because the device plugin tasks write and `remove_unused_volumes` reads; held for a map operation and a file write.
    inner: Arc<Mutex<Uses>>,
}

#[derive(Debug, Default)]
struct Uses {
    current: Option<String>,
    by_device: BTreeMap<String, String>,
    /// Device ids that the kubelet has not listed since their allocation, or since the agent started.
    unlisted: BTreeMap<String, Instant>,
}

impl DriverVolumeUses {
    /// Reads the file that an earlier agent wrote.
    pub fn load(path: PathBuf) -> Self {
        let by_device: BTreeMap<String, String> = std::fs::read(&path)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        let now = Instant::now();
        let unlisted = by_device.keys().map(|id| (id.clone(), now)).collect();
        Self {
            path,
            inner: Arc::new(Mutex::new(Uses {
                current: None,
                by_device,
                unlisted,
            })),
        }
    }

    /// Records that these device ids were allocated with the current volume.
    pub fn allocated(&self, device_ids: &[String]) {
        let mut uses = self.inner.lock();
        let Some(current) = uses.current.clone() else { return };
        for id in device_ids {
            uses.by_device.insert(id.clone(), current.clone());
            uses.unlisted.insert(id.clone(), Instant::now());
        }
        self.save(&uses);
    }

    fn set_current(&self, name: Option<String>) {
        self.inner.lock().current = name;
    }

    /// The volumes that are still needed, given the device ids that the kubelet lists. Forgets ids that it listed before and no longer
    /// does.
    fn needed(&self, listed: &BTreeSet<String>) -> BTreeSet<String> {
        let mut uses = self.inner.lock();
        let Uses {
            by_device, unlisted, ..
        } = &mut *uses;
        unlisted.retain(|id, since| !listed.contains(id) && since.elapsed() < UNLISTED_MAX);
        let before = by_device.len();
        by_device.retain(|id, _| listed.contains(id) || unlisted.contains_key(id));
        if uses.by_device.len() != before {
            self.save(&uses);
        }
        uses.by_device.values().cloned().chain(uses.current.clone()).collect()
    }

    /// A failed write keeps an old volume too long or, after a restart, frees a volume too early. It is logged only: allocations go on.
    fn save(&self, uses: &Uses) {
        let bytes = serde_json::to_vec(&uses.by_device).expect("a map of strings is JSON");
        if let Err(error) = store::replace(&self.path, &bytes) {
            tracing::warn!(path = %self.path.display(), %error, "could not save which driver volumes are in use");
        }
    }
}

/// Runs until the agent stops.
pub async fn run(
    injector: DriverFileInjector,
    uses: DriverVolumeUses,
    pod_resources: PathBuf,
    pace: Pace,
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    inputs: mpsc::Sender<Input>,
) {
    let mut seen = None;
    let mut last: Option<LastInjection> = None;
    let mut last_error = String::new();
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        let fingerprint = injector.fingerprint();
        let inventory_changed = last
            .as_ref()
            .is_none_or(|last| last.inventory != snapshot.inventory || last.enforcement != snapshot.enforcement);
        let failed_before = !last_error.is_empty();
        if snapshot.confirmed && (inventory_changed || seen.as_ref() != Some(&fingerprint) || failed_before) {
            let (plan, result) = inject(&injector, &snapshot).await;
            log_result(&plan, &result, last.as_ref(), &mut last_error);
            uses.set_current(result.volume.clone());
            if inputs.send(Input::Injection(result.injection)).await.is_err() {
                return;
            }
            last = Some(LastInjection {
                inventory: snapshot.inventory.clone(),
                enforcement: snapshot.enforcement.clone(),
                warnings: plan.warnings,
            });
            seen = Some(fingerprint);
            remove_unused_volumes(&injector, &uses, &pod_resources).await;
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

struct LastInjection {
    inventory: Arc<kai_gpu::Inventory>,
    enforcement: Option<Arc<NodeEnforcement>>,
    warnings: Vec<String>,
}

/// Plans and applies the injection on a blocking thread: a slow disk must not delay the kubelet's calls.
async fn inject(injector: &DriverFileInjector, snapshot: &Arc<Snapshot>) -> (InjectionPlan, InjectionResult) {
    let (injector, snapshot) = (injector.clone(), snapshot.clone());
    let task = tokio::task::spawn_blocking(move || {
        let plan = injector.plan(&snapshot.inventory, snapshot.enforcement.as_deref());
        let result = injector.apply(&snapshot.inventory, &plan);
        (plan, result)
    });
    task.await.expect("looking at files does not panic")
}

fn log_result(plan: &InjectionPlan, result: &InjectionResult, before: Option<&LastInjection>, last_error: &mut String) {
    if result.changed {
        tracing::info!("wrote the CDI spec");
    }
    for warning in plan
        .warnings
        .iter()
        .filter(|warning| before.is_none_or(|last| !last.warnings.contains(warning)))
    {
        tracing::warn!("{warning}");
    }
    let error = result.error.as_ref().map(ToString::to_string).unwrap_or_default();
    if !error.is_empty() && error != *last_error {
        tracing::warn!(
            error,
            "could not prepare injection completely; containers are served without the failed part"
        );
    }
    *last_error = error;
}

/// Removes volumes of earlier drivers that no container uses. While the kubelet does not answer, no volume is removed.
async fn remove_unused_volumes(
    injector: &DriverFileInjector,
    uses: &DriverVolumeUses,
    pod_resources: &std::path::Path,
) {
    let Ok(held) = podresources::list(pod_resources).await else {
        return;
    };
    let ids: BTreeSet<String> = held.into_iter().flat_map(|allocation| allocation.device_ids).collect();
    if let Err(error) = injector.remove_volumes(&uses.needed(&ids)) {
        tracing::warn!(%error, "could not remove an old driver volume");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_lives_as_long_as_a_container_that_got_it() {
        let place = tempfile::tempdir().unwrap();
        let uses = DriverVolumeUses::load(place.path().join("uses.json"));
        let ids = |list: &[&str]| list.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        let set = |list: &[&str]| list.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();
        uses.set_current(Some("550-1".into()));
        uses.allocated(&ids(&["GPU-a", "GPU-b"]));
        uses.set_current(Some("570-1".into()));
        // A restarted agent knows too.
        let uses = DriverVolumeUses::load(place.path().join("uses.json"));
        uses.set_current(Some("570-1".into()));
        uses.allocated(&ids(&["GPU-b"]));
        let both = set(&["550-1", "570-1"]);
        assert_eq!(
            uses.needed(&set(&[])),
            both,
            "the kubelet lists containers after it allocated"
        );
        assert_eq!(uses.needed(&set(&["GPU-a", "GPU-b"])), both);
        assert_eq!(uses.needed(&set(&["GPU-b"])), set(&["570-1"]));
        assert_eq!(
            uses.needed(&set(&[])),
            set(&["570-1"]),
            "the current one is always needed"
        );
    }
}
