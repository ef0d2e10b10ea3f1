//! Reads what `decide` needs from the kubelet and the API server, writes the CDI spec of a share device before its container starts, and
//! removes the specs of pods that are gone.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kai_api::{ComputeMode, EVENT_LIMIT_NOT_ENFORCED, GpuLimits, Pod, keys};
use kai_cluster::{Client, Clock, EventRecorder, ObjectEvent, Selection, Severity, Target};
use serde_json::Value;
use tokio::sync::Mutex;

use super::decide::{self, Refusal, ShareSpecInputs};
use super::offer::{ShareDeviceOffer, single_device};
use crate::agent::report::FIELD_MANAGER;
use crate::driver_files::cdi::Edits;
use crate::driver_files::store::CdiDir;
use crate::enforcement::hook_edit::holding_hook;
use crate::enforcement::mps::service::{no_server, server_alone};
use crate::enforcement::mps::{MpsService, ShareRequest};
use crate::enforcement::promise::{PromiseInputs, UnifiedMemoryLimit, container_name, promise};
use crate::enforcement::receipt_dir::ReceiptDir;
use crate::podresources;

/// Less than the kubelet's own timeout of 30 seconds, so that the kubelet still receives the reason.
const PREPARE_SECONDS_MAX: Duration = Duration::from_secs(20);

/// Prepares the share devices of this node. The device plugin calls it on Allocate and PreStartContainer.
pub struct ShareDevicePreparer {
    node: String,
    reservation_namespace: String,
    pod_resources: PathBuf,
    cdi: CdiDir,
    receipts: ReceiptDir,
    unified: UnifiedMemoryLimit,
    client: OnceLock<Client>,
    /// The multi-process server, on a node that is to have one.
    mps: OnceLock<Arc<MpsService>>,
    recorder: OnceLock<EventRecorder>,
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
    /// The agent's state directory, where the hook leaves receipts.
    pub state_dir: PathBuf,
    /// Whether system memory is limited where GPU and CPU share it.
    pub unified: UnifiedMemoryLimit,
}

impl ShareDevicePreparer {
    /// Reads and writes nothing. `prepare` fails until `set_client` was called.
    pub fn new(config: PreparerConfig) -> Self {
        Self {
            node: config.node,
            reservation_namespace: config.reservation_namespace,
            pod_resources: config.pod_resources,
            cdi: CdiDir::new(&config.cdi_dir),
            receipts: ReceiptDir::new(&config.state_dir),
            unified: config.unified,
            client: OnceLock::new(),
            mps: OnceLock::new(),
            recorder: OnceLock::new(),
            files: Mutex::default(),
        }
    }

    /// Sets the client once the agent has reached the API server.
    pub fn set_client(&self, client: Client) {
        // A second client connects to the same cluster, so the first one stays.
        let _ = self.client.set(client);
    }

    /// Sets the multi-process server.
    pub fn set_mps(&self, mps: Arc<MpsService>) {
        let _ = self.mps.set(mps);
    }

    /// Removes the specs of share devices that the kubelet allocates now. They belong to earlier containers.
    pub async fn remove_old_specs(&self, device_ids: &[String]) {
        let _files = self.files.lock().await;
        for share_device in device_ids {
            self.receipts.remove(share_device);
            if let Err(error) = self.cdi.remove_share_device(share_device) {
                tracing::warn!(share_device, %error, "could not remove the old spec of a share device; it is replaced before the container starts");
            }
        }
    }

    /// Writes the spec that makes the share device stand for the GPUs of the pod that holds it. `Err` is a sentence for the pod's events;
    /// the kubelet then does not start the container.
    pub async fn prepare(&self, device_ids: &[String], offer: &ShareDeviceOffer) -> Result<(), String> {
        let share_device = single_device(device_ids)?;
        let Ok(prepared) = tokio::time::timeout(PREPARE_SECONDS_MAX, self.prepare_one(share_device, offer)).await
        else {
            return Err(format!(
                "share device {share_device}: the kubelet or the API server did not answer within {} seconds; trying again",
                PREPARE_SECONDS_MAX.as_secs()
            ));
        };
        prepared.map_err(|reason| format!("share device {share_device}: {reason}"))
    }

    async fn prepare_one(&self, share_device: &str, offer: &ShareDeviceOffer) -> Result<(), String> {
        let words = |error: crate::Error| error.to_string();
        let unanswered = |error: kai_cluster::Error| error.to_string();
        let refused = |refusal: Refusal| refusal.to_string();
        let Some(client) = self.client.get() else {
            return Err("the node agent has not reached the API server yet: see its log".to_owned());
        };
        let allocations = podresources::list(&self.pod_resources).await.map_err(words)?;
        let holder = decide::holder(share_device, &allocations).map_err(refused)?;
        let name = holder.name();
        let object = client.get_value(Target::of::<Pod>(&holder.namespace, &holder.pod));
        let object: Option<Value> = object.await.map_err(unanswered)?;
        let object = object.ok_or_else(|| Refusal::NoPod(name.clone()).to_string())?;
        let pod: Pod = serde_json::from_value(object.clone()).map_err(|error| format!("pod {name}: {error}"))?;
        let reservations = self.reservations(client).await.map_err(unanswered)?;
        let gpus = decide::gpus(&pod, &self.node, &reservations).map_err(refused)?;

        let enforcement = offer
            .enforcement
            .as_ref()
            .ok_or_else(|| Refusal::Undecided.to_string())?;
        let promised = promise(&PromiseInputs {
            pod: &pod,
            object: &object,
            container: &holder.container,
            gpus: &gpus,
            inventory: &offer.inventory,
            enforcement,
            unified: self.unified,
        })
        .map_err(|error| refused(error.into()))?;
        let hook = match (&enforcement.hook, &promised.request) {
            (Some(setup), Some(request)) => Some(holding_hook(setup, share_device, request)),
            // A container that was promised a limit never starts without its hook.
            (None, Some(_)) => return Err(Refusal::Undecided.to_string()),
            (_, None) => None,
        };

        let mps = self
            .mps_edits(share_device, &name, &holder.container, &pod, &object)
            .await?;

        let files = self.files.lock().await;
        let whole = self.cdi.read().ok_or_else(|| Refusal::NoSpec.to_string())?;
        let mut spec = decide::spec(&ShareSpecInputs {
            share_device,
            pod: &name,
            gpus: &gpus,
            whole: &whole,
            platform: offer.inventory.platform.kind,
            hook: hook.as_ref(),
        })
        .map_err(refused)?;
        if let (Some(edits), Some(device)) = (&mps, spec.devices.first_mut()) {
            device.container_edits.merge(edits);
        }
        // What the hook left for an earlier container says nothing about this one.
        self.receipts.remove(share_device);
        self.cdi.write_share_device(share_device, &spec).map_err(words)?;
        drop(files);
        tracing::info!(
            share_device,
            pod = name,
            ?gpus,
            limits = ?promised.request.as_ref().map(|request| &request.limits),
            "wrote the spec of a share device with the GPUs of its pod"
        );
        if let Some(note) = promised.note {
            let recorder = self
                .recorder
                .get_or_init(|| EventRecorder::new(client, FIELD_MANAGER, Clock::System));
            let (recorder, event) = (
                recorder.clone(),
                ObjectEvent {
                    about: container_name(&pod, &holder.container).reference(),
                    severity: Severity::Warning,
                    reason: EVENT_LIMIT_NOT_ENFORCED,
                    message: note,
                    annotations: Vec::new(),
                },
            );
            // The container does not wait for its event.
            tokio::spawn(async move { recorder.record(event).await });
        }
        Ok(())
    }

    /// The part of the multi-process server of a container with compute mode `sm-sharing`; `None` for others, which start only where the GPUs
    /// are not for the server alone. A wrong annotation is the subject of `promise`.
    async fn mps_edits(
        &self,
        share_device: &str,
        name: &str,
        container: &str,
        pod: &Pod,
        object: &Value,
    ) -> Result<Option<Edits>, String> {
        let annotation = pod.metadata.annotations.text(keys::GPU_LIMITS);
        let limits = annotation.and_then(|annotation| GpuLimits::parse(annotation).ok());
        let shares_sms = limits.filter(|limits| match limits.compute_mode {
            ComputeMode::TimeSlicing => false,
            ComputeMode::SmSharing => true,
        });
        match (shares_sms, self.mps.get()) {
            (None, Some(mps)) if mps.has_gpus_to_itself() => Err(server_alone(name)),
            (None, _) => Ok(None),
            (Some(_), None) => Err(no_server(name)),
            (Some(limits), Some(mps)) => {
                let request = ShareRequest {
                    pod: name,
                    object,
                    container,
                    limits: &limits,
                    share_device,
                };
                mps.prepare(&request).await.map(Some)
            }
        }
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
                Ok(()) => {
                    if let Some(mps) = self.mps.get() {
                        mps.release(share_device);
                    }
                    tracing::info!(share_device, "removed the spec of a share device whose pod is gone");
                }
                Err(error) => {
                    tracing::warn!(share_device, %error, "could not remove the spec of a share device; trying again")
                }
            }
        }
    }
}
