//! Reads what `decide` needs from the kubelet and the API server, writes the CDI spec of a share device before its container starts, and
//! removes the specs of pods that are gone.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use kai_api::{Pod, keys};
use kai_cluster::{Client, Selection};
use kai_gpu::PlatformKind;
use tokio::sync::Mutex;

use super::decide::{self, Refusal};
use super::offer::single_device;
use crate::driver_files::store::CdiDir;
use crate::podresources;

/// Less than the kubelet's own timeout of 30 seconds, so that the kubelet still receives the reason.
const PREPARE_SECONDS_MAX: Duration = Duration::from_secs(20);

/// Prepares the share devices of this node. The device plugin calls it on Allocate and PreStartContainer.
pub struct ShareDevicePreparer {
    node: String,
    reservation_namespace: String,
    pod_resources: PathBuf,
    cdi: CdiDir,
    client: OnceLock<Client>,
    /// Held while a spec is written, and from listing the kubelet's allocations to removing unused specs: a spec is never removed because
    /// of a list that is older than the spec.
    files: Mutex<()>,
}

/// What the preparer needs to know about its node.
#[derive(Debug, Clone)]
pub struct PreparerConfig {
    /// This node.
    pub node: String,
    /// Namespace of reservation pods.
    pub reservation_namespace: String,
    /// The kubelet's pod-resources socket.
    pub pod_resources: PathBuf,
    /// Where CDI specs are.
    pub cdi_dir: PathBuf,
}

impl ShareDevicePreparer {
    /// Reads and writes nothing. `prepare` fails until `set_client` was called.
    pub fn new(config: PreparerConfig) -> Self {
        Self {
            node: config.node,
            reservation_namespace: config.reservation_namespace,
            pod_resources: config.pod_resources,
            cdi: CdiDir::new(&config.cdi_dir),
            client: OnceLock::new(),
            files: Mutex::default(),
        }
    }

    /// Sets the client once the agent has reached the API server.
    pub fn set_client(&self, client: Client) {
        // A second client connects to the same cluster, so the first one stays.
        let _ = self.client.set(client);
    }

    /// Removes the specs of share devices that the kubelet allocates now. They belong to earlier containers.
    pub async fn remove_old_specs(&self, device_ids: &[String]) {
        let _files = self.files.lock().await;
        for share_device in device_ids {
            if let Err(error) = self.cdi.remove_share_device(share_device) {
                tracing::warn!(share_device, %error, "could not remove the old spec of a share device; it is replaced before the container starts");
            }
        }
    }

    /// Writes the spec that makes the share device stand for the GPUs of the pod that holds it. `Err` is a sentence for the pod's events;
    /// the kubelet then does not start the container.
    pub async fn prepare(&self, device_ids: &[String], platform: PlatformKind) -> Result<(), String> {
        let share_device = single_device(device_ids)?;
        let Ok(prepared) = tokio::time::timeout(PREPARE_SECONDS_MAX, self.prepare_one(share_device, platform)).await
        else {
            return Err(format!(
                "share device {share_device}: the kubelet or the API server did not answer within {} seconds; trying again",
                PREPARE_SECONDS_MAX.as_secs()
            ));
        };
        prepared.map_err(|reason| format!("share device {share_device}: {reason}"))
    }

    async fn prepare_one(&self, share_device: &str, platform: PlatformKind) -> Result<(), String> {
        let words = |error: crate::Error| error.to_string();
        let unanswered = |error: kai_cluster::Error| error.to_string();
        let refused = |refusal: Refusal| refusal.to_string();
        let Some(client) = self.client.get() else {
            return Err("the node agent has not reached the API server yet: see its log".to_owned());
        };
        let allocations = podresources::list(&self.pod_resources).await.map_err(words)?;
        let holder = decide::holder(share_device, &allocations).map_err(refused)?;
        let name = holder.name();
        let pod: Option<Pod> = client.get(&holder.namespace, &holder.pod).await.map_err(unanswered)?;
        let pod = pod.ok_or_else(|| Refusal::NoPod(name.clone()).to_string())?;
        let reservations = self.reservations(client).await.map_err(unanswered)?;
        let gpus = decide::gpus(&pod, &self.node, &reservations).map_err(refused)?;

        let _files = self.files.lock().await;
        let whole = self.cdi.read().ok_or_else(|| Refusal::NoSpec.to_string())?;
        let spec = decide::spec(share_device, &name, &gpus, &whole, platform).map_err(refused)?;
        self.cdi.write_share_device(share_device, &spec).map_err(words)?;
        tracing::info!(
            share_device,
            pod = name,
            ?gpus,
            "wrote the spec of a share device with the GPUs of its pod"
        );
        Ok(())
    }

    async fn reservations(&self, client: &Client) -> Result<Vec<Pod>, kai_cluster::Error> {
        client
            .list(&Selection {
                namespace: Some(self.reservation_namespace.clone()),
                labels: keys::GPU_GROUP.to_owned(),
                fields: format!("spec.nodeName={}", self.node),
            })
            .await
    }

    /// Removes the specs of share devices that no pod holds, once per `pace`. Asks the kubelet only while there are specs.
    pub async fn run_cleanup(&self, pace: Duration) {
        loop {
            tokio::time::sleep(pace).await;
            self.remove_unused_specs().await;
        }
    }

    async fn remove_unused_specs(&self) {
        let _files = self.files.lock().await;
        let written = self.cdi.share_devices();
        if written.is_empty() {
            return;
        }
        // While the kubelet does not answer, no spec is removed.
        let Ok(allocations) = podresources::list(&self.pod_resources).await else {
            return;
        };
        let held: BTreeSet<String> = allocations
            .into_iter()
            .filter(|allocation| allocation.resource == keys::RESOURCE_GPU_SHARE)
            .flat_map(|allocation| allocation.device_ids)
            .collect();
        for share_device in written.iter().filter(|share_device| !held.contains(*share_device)) {
            match self.cdi.remove_share_device(share_device) {
                Ok(()) => tracing::info!(share_device, "removed the spec of a share device whose pod is gone"),
                Err(error) => {
                    tracing::warn!(share_device, %error, "could not remove the spec of a share device; trying again")
                }
            }
        }
    }
}
