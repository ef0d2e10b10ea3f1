//! Decides by what the node holds containers to their GPU share, at the start and whenever something changes that it depends on, and sends
//! the decision to the task that owns the state. The last decision is kept on disk: a container that starts before the driver has answered
//! is held as before.

use std::sync::Arc;
use std::time::Duration;

use kai_gpu::{Driver, Inventory};
use tokio::sync::{mpsc, watch};

use super::files::LastEnforcement;
use super::state::{Input, Snapshot};
use crate::allocator::inject::Injection;
use crate::driver_files::store::CdiDir;
use crate::enforcement::facts::{Circumstances, Decider};
use crate::enforcement::mps::MpsService;
use crate::enforcement::tier::NodeEnforcement;

/// Until a driver that did not answer is asked again. Its return is mostly seen by the state, and then at once.
const AGAIN: Duration = Duration::from_secs(5);

/// What the task works with.
pub struct EnforcementTask {
    /// Collects the facts and decides.
    pub decider: Decider,
    /// The driver.
    pub driver: Arc<dyn Driver>,
    /// Where the spec of whole GPUs is, which names the driver's files.
    pub cdi: CdiDir,
    /// Where the decision is kept.
    pub last: LastEnforcement,
    /// The multi-process server, where the operator wants one.
    pub mps: Option<Arc<MpsService>>,
    /// Between decisions without a reason: cgroup mounts and persistence mode change without a message.
    pub refresh: Duration,
}

/// What a decision depends on beside files: a change of it is a reason to decide again.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cause {
    inventory: Option<Arc<Inventory>>,
    injection: Arc<Injection>,
    circumstances: Circumstances,
}

/// Runs until the agent stops. `given_up` says why limits were given up, if they were.
pub async fn run(
    task: EnforcementTask,
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    given_up: watch::Receiver<Option<String>>,
    inputs: mpsc::Sender<Input>,
) {
    let EnforcementTask {
        decider,
        driver,
        cdi,
        last,
        mps,
        refresh,
    } = task;
    let mut decider = Some(decider);
    let mut sent: Option<NodeEnforcement> = None;
    let mut given_up = given_up;
    let mut waits = false;
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        let now = cause(&snapshot, given_up.borrow_and_update().clone());
        if let Some(inventory) = now.inventory.clone()
            && let Some(mut own) = decider.take()
        {
            let (driver, cdi, circumstances) = (driver.clone(), cdi.clone(), now.circumstances.clone());
            // The driver and the disk may block; the agent's only thread serves the kubelet meanwhile.
            let ran = tokio::task::spawn_blocking(move || {
                let spec = cdi.read();
                let decided = own.decide(&*driver, &inventory, spec.as_ref(), circumstances);
                (own, decided)
            });
            let (own, decided) = match ran.await {
                Ok(ran) => ran,
                Err(error) => {
                    tracing::error!(%error, "the decision by what this node holds containers ended; it is not made again");
                    return;
                }
            };
            decider = Some(own);
            waits = decided.is_none();
            // A driver that is away leaves the last decision as it is.
            if let Some(decided) = decided
                && sent.as_ref() != Some(&decided)
            {
                tracing::info!(
                    summary = decided.summary(),
                    "decided how containers are held to their GPU share"
                );
                if let Err(error) = last.save(&decided) {
                    tracing::warn!(%error, "the next start will not know at once how containers are held");
                }
                if inputs
                    .send(Input::Enforcement(Box::new(decided.clone())))
                    .await
                    .is_err()
                {
                    return;
                }
                sent = Some(decided);
            }
        }
        tokio::select! {
            changed = snapshots.wait_for(|snapshot| cause(snapshot, now.circumstances.given_up.clone()) != now) => if changed.is_err() { return },
            Ok(()) = given_up.changed() => {}
            () = server_changed(mps.as_deref()) => {}
            () = tokio::time::sleep(if waits { refresh.min(AGAIN) } else { refresh }) => {}
        }
    }
}

/// Waits for the multi-process server to serve or to fail.
async fn server_changed(mps: Option<&MpsService>) {
    match mps {
        Some(mps) => mps.changed().await,
        None => std::future::pending().await,
    }
}

/// Nothing is decided before the driver has answered and the spec of whole GPUs is written or known to be impossible.
fn cause(snapshot: &Snapshot, given_up: Option<String>) -> Cause {
    let ready = snapshot.confirmed && *snapshot.injection != Injection::Unknown;
    Cause {
        inventory: ready.then(|| snapshot.inventory.clone()),
        injection: snapshot.injection.clone(),
        circumstances: Circumstances {
            given_up,
            driver_problem: snapshot.driver_problem.as_ref().map(|problem| problem.reason.clone()),
        },
    }
}
