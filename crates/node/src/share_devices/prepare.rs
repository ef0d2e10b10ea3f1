//! Carries out what `decide` says: asks the kubelet and the API server, writes a share device's spec before its container starts, and removes
//! specs whose pods are gone.

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

/// The kubelet gives up after 30 seconds; then nobody would read the reason.
const PREPARE_SECONDS_MAX: Duration = Duration::from_secs(20);

/// The share devices of this node.
pub struct ShareDevicePreparer {
    node: String,
    reservation_namespace: String,
    pod_resources: PathBuf,
    cdi: CdiDir,
    client: OnceLock<Client>,
    /// Held while specs are written, and while the books are read to remove some: so a spec is never removed by books that are
    /// older than it.
    files: Mutex<()>,
}

/// Where share devices are prepared.
#[derive(Debug, Clone)]
pub struct Place {
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
    /// Nothing is touched yet, and nothing can be prepared before the cluster is there.
    pub fn new(place: Place) -> Self {
        Self {
            node: place.node,
            reservation_namespace: place.reservation_namespace,
            pod_resources: place.pod_resources,
            cdi: CdiDir::new(&place.cdi_dir),
            client: OnceLock::new(),
            files: Mutex::default(),
        }
    }

    /// The cluster answers from now on.
    pub fn connected(&self, client: Client) {
        // A second client would be one to the same cluster.
        let _ = self.client.set(client);
    }

    /// A free share device is handed out: what it stood for is forgotten, long before its new container starts.
    pub async fn handed_out(&self, device_ids: &[String]) {
        let _files = self.files.lock().await;
        for share_device in device_ids {
            if let Err(error) = self.cdi.remove_share_device(share_device) {
                tracing::warn!(share_device, %error, "an old spec of a share device stays until the share device's container starts");
            }
        }
    }

    /// Lets the share device stand for the GPUs of the pod that holds it. `Err` is a sentence for the pod's events; without success the
    /// container does not start.
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
            "a share device stands for the GPUs of its pod"
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

    /// Removes the specs of share devices that nobody holds, again and again. While there are none, nothing is asked.
    pub async fn keep_clean(&self, pace: Duration) {
        loop {
            tokio::time::sleep(pace).await;
            self.clean().await;
        }
    }

    async fn clean(&self) {
        let _files = self.files.lock().await;
        let written = self.cdi.share_devices();
        if written.is_empty() {
            return;
        }
        // Without the kubelet's word nothing is removed.
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
