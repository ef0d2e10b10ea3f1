//! The node's multi-process server as the rest of the agent sees it: whether the node can have the tier now, and what a container needs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kai_gpu::{Driver, Inventory};
use parking_lot::Mutex;

use super::ability::{Ability, ability};
use super::container::{ShareRequest, edits, namespace};
use super::plan::{MpsPlan, namespace_name};
use super::run::{MpsConfig, MpsHandle, MpsStatus, start};
use crate::driver_files::cdi::Edits;
use crate::enforcement::facts::EnforcementSettings;
use crate::enforcement::watch::ProcessFiles;
use crate::enforcement::watch::source::host_processes;

/// Between two looks at the daemon.
const PACE: Duration = Duration::from_secs(5);

/// The server of this node, if it has one.
#[derive(Debug)]
pub struct MpsService {
    driver: Arc<dyn Driver>,
    host_root: PathBuf,
    state_dir: PathBuf,
    processes: ProcessFiles,
    own_program: PathBuf,
    /// A plain lock, held for moments: the task that decides replaces the server, and the device plugin uses it.
    server: Mutex<Option<Server>>,
}

#[derive(Debug, Clone)]
struct Server {
    /// What its thread was told last: the plan, or why there is none.
    plan: Result<MpsPlan, String>,
    handle: MpsHandle,
    /// What the task that decides was told last.
    told: MpsStatus,
}

impl MpsService {
    /// Starts nothing.
    pub fn new(driver: Arc<dyn Driver>, settings: &EnforcementSettings) -> Self {
        Self {
            driver,
            host_root: settings.host_root.clone(),
            state_dir: settings.state_dir.clone(),
            processes: settings.processes.clone(),
            own_program: settings.launcher.clone(),
            server: Mutex::new(None),
        }
    }

    /// Whether the node can have the tier now; the error says why not. Starts the server where the node can have one, and ends it where it can't.
    /// Blocks.
    pub fn ability(&self, inventory: &Inventory) -> Result<(), String> {
        // The daemon names clients by their process ids on the host, and is itself started in the host's mount namespace.
        host_processes(&self.processes)?;
        let plan = match ability(&*self.driver, inventory, &self.host_root) {
            Ability::Able(plan) => Ok(plan),
            Ability::Unable(reason) => Err(reason),
            Ability::Unknown(reason) => return Err(reason),
        };
        let mut slot = self.server.lock();
        let Some(server) = slot.as_mut() else {
            let plan = plan?;
            let config = MpsConfig {
                plan: plan.clone(),
                host_root: self.host_root.clone(),
                own_program: self.own_program.clone(),
                state_dir: self.state_dir.clone(),
                pace: PACE,
            };
            let started = Server {
                plan: Ok(plan),
                handle: start(config, self.driver.clone()),
                told: MpsStatus::Starting,
            };
            return slot.insert(started).told.ability();
        };
        if server.plan != plan && server.handle.change(plan.clone()) {
            server.plan = plan.clone();
        }
        server.told = server.handle.status().borrow().clone();
        plan.and_then(|_| server.told.ability())
    }

    /// Waits until the server is good for something else than [`MpsService::ability`] told last; for ever without a server.
    pub async fn changed(&self) {
        let server = self.server.lock().clone();
        if let Some(Server { handle, told, .. }) = server {
            let mut status = handle.status();
            drop(handle);
            if status.wait_for(|status| *status != told).await.is_ok() {
                return;
            }
        }
        std::future::pending().await
    }

    /// Gives a container its part of the server, and returns the edits of its CDI spec. The error is a sentence for the pod's event; the
    /// container must not start.
    pub async fn prepare(&self, request: &ShareRequest<'_>) -> Result<Edits, String> {
        let server = self.server.lock().clone();
        let Some(Server { handle, .. }) = server else {
            return Err(no_server(request.pod));
        };
        let namespace = namespace(request)?;
        handle.open(namespace.clone()).await?;
        Ok(edits(&self.state_dir, &namespace))
    }

    /// Whether the GPUs are in the compute mode that keeps other processes away, or are about to be: also while the server is started again.
    pub fn has_gpus_to_itself(&self) -> bool {
        self.server.lock().as_ref().is_some_and(|server| server.plan.is_ok())
    }

    /// Takes the part of a share device back, whose pod is gone.
    pub fn release(&self, share_device: &str) {
        if let Some(server) = self.server.lock().as_ref() {
            server.handle.close(&namespace_name(share_device));
        }
    }

    /// Stops the server.
    pub async fn stop(&self) {
        let server = self.server.lock().take();
        if let Some(Server { handle, .. }) = server {
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

/// Why a container with another compute mode can't start beside the server.
pub fn server_alone(pod: &str) -> String {
    format!(
        "pod {pod} has compute mode time-slicing, and the GPUs of this node are for the programs of its multi-process server alone (compute mode \
         EXCLUSIVE_PROCESS); delete the pod, so that it is bound to another node, or run the node agent without --enforce mps"
    )
}
