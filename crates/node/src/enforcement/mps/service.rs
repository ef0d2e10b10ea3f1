//! The node's multi-process server as the rest of the agent sees it: whether the node can have the tier now, and what a container needs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kai_gpu::{Driver, Inventory};
use parking_lot::Mutex;

use super::ability::ability;
use super::container::{ShareRequest, edits, share};
use super::plan::{MpsPlan, namespace_name};
use super::run::{MpsConfig, MpsHandle, start};
use crate::driver_files::cdi::Edits;

/// Between two looks at the daemons.
const PACE: Duration = Duration::from_secs(5);

/// The server of this node, if it has one.
#[derive(Debug)]
pub struct MpsService {
    driver: Arc<dyn Driver>,
    host_root: PathBuf,
    state_dir: PathBuf,
    pace: Duration,
    /// A plain lock, held for moments: the task that decides replaces the server, and the device plugin uses it.
    server: Mutex<Option<(MpsPlan, MpsHandle)>>,
}

impl MpsService {
    /// Starts nothing. `state_dir` has the same path here and on the host.
    pub fn new(driver: Arc<dyn Driver>, host_root: PathBuf, state_dir: PathBuf) -> Self {
        Self {
            driver,
            host_root,
            state_dir,
            pace: PACE,
            server: Mutex::new(None),
        }
    }

    /// Whether the node can have the tier now; the error says why not. Starts the server where the node can have one, and again after a change
    /// of the driver or the GPUs. Blocks.
    pub fn ability(&self, inventory: &Inventory) -> Result<(), String> {
        let plan = ability(&*self.driver, inventory, &self.host_root)?;
        let mut server = self.server.lock();
        if server.as_ref().is_none_or(|(running, _)| *running != plan) {
            // Dropping the last handle ends the thread of the earlier plan, which ends its daemons first.
            *server = None;
            let config = MpsConfig {
                plan: plan.clone(),
                host_root: self.host_root.clone(),
                state_dir: self.state_dir.clone(),
                pace: self.pace,
            };
            *server = Some((plan, start(config, self.driver.clone())));
        }
        match server.as_ref() {
            Some((_, handle)) => handle.status().borrow().ability(),
            None => Err("the multi-process server is stopped".to_owned()),
        }
    }

    /// Gives a container its part of the server, and returns the edits of its CDI spec. The error is a sentence for the pod's event; the
    /// container must not start.
    pub async fn prepare(&self, request: &ShareRequest<'_>) -> Result<Edits, String> {
        let server = self.server.lock().clone();
        let Some((plan, handle)) = server else {
            return Err(no_server(request.pod));
        };
        let share = share(&plan, request)?;
        handle.open(share.namespace.clone()).await?;
        Ok(edits(&plan, &self.state_dir, &share))
    }

    /// Takes the part of a share device back, whose pod is gone.
    pub fn release(&self, share_device: &str) {
        if let Some((_, handle)) = self.server.lock().as_ref() {
            handle.close(&namespace_name(share_device));
        }
    }

    /// Stops the server.
    pub async fn stop(&self) {
        let server = self.server.lock().take();
        if let Some((_, handle)) = server {
            handle.stop().await;
        }
    }
}

/// Why a container with compute mode `sm-sharing` can't start here.
pub fn no_server(pod: &str) -> String {
    format!(
        "pod {pod} has compute mode sm-sharing, and this node has no multi-process server (kubectl describe node has the reason, condition \
         GPULimits); run the node agent with --enforce mps, or use compute mode time-slicing"
    )
}
