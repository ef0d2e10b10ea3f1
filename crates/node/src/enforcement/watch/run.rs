//! The loop of the tier `watch`: measures at a fixed pace while the node has a tier that leaves memory to its pods, and carries out what
//! `decide` says.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kai_api::{EnforcementTier, GpuLimits, ObjectReference, Pod, keys};
use kai_cluster::{Client, EventRecorder, ObjectEvent, Severity};
use kai_gpu::{Device, Driver};
use tokio::sync::watch;
use tokio::time::Instant;

use super::decide::{Action, ExcessWatch, Repair, SharePod, Usage, Watched};
use super::source::{ProcessFiles, usage};
use crate::podresources::{self, DeviceAllocation};

/// Between two measurements. Seconds decide nothing here, and a measurement costs a call per GPU and a file per process.
pub const PACE: Duration = Duration::from_secs(15);
/// How long a pod may be above its share before it is told. Programs that load a model are above it for a moment.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(60);
/// Reason of the event on a pod above its share.
pub const EXCEEDED: &str = "GPUShareExceeded";
/// Reason of the event on a pod that is evicted.
pub const EVICTED: &str = "GPUShareEviction";

/// What the loop needs to know about its node.
#[derive(Debug, Clone)]
pub struct WatchConfig {
    /// The kubelet's pod-resources socket.
    pub pod_resources: PathBuf,
    /// Where processes are described.
    pub files: ProcessFiles,
    /// How long a pod may be above its share.
    pub grace: Duration,
    /// Between two measurements.
    pub pace: Duration,
    /// What happens to a pod above its share.
    pub repair: Repair,
}

/// The last measurement, for the metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WatchReport {
    /// The pods with a GPU share and processes on a GPU.
    pub watched: Vec<Watched>,
    /// Pods evicted since the agent's start.
    pub evictions: u64,
}

/// Whether the node's tier leaves memory to its pods. With MPS each process has a limit, and several processes have several.
fn is_watched(tier: EnforcementTier) -> bool {
    match tier {
        EnforcementTier::Watch | EnforcementTier::Mps => true,
        EnforcementTier::Driver | EnforcementTier::None => false,
    }
}

/// The pods that hold a share device of this node, as the API server has them.
#[derive(Debug, Default)]
struct SharePods {
    /// By namespace and name.
    by_name: BTreeMap<(String, String), SharePod>,
}

impl SharePods {
    /// Forgets pods that hold no share device any more, and returns the holders to ask the API server about: new ones, and all if a process
    /// belongs to a pod that is not known, because a pod of the same name may have taken an earlier pod's place.
    fn to_fetch(&mut self, allocations: &[DeviceAllocation], usage: &Usage) -> Vec<(String, String)> {
        let mut holders: Vec<(String, String)> = allocations
            .iter()
            .filter(|allocation| allocation.resource == keys::RESOURCE_GPU_SHARE)
            .map(|allocation| (allocation.namespace.clone(), allocation.pod.clone()))
            .collect();
        holders.sort_unstable();
        holders.dedup();
        self.by_name.retain(|name, _| holders.contains(name));
        let is_known = |uid: &String| self.by_name.values().any(|pod| pod.uid == *uid);
        let has_strangers = !usage.keys().all(|(uid, _)| is_known(uid));
        holders.retain(|name| has_strangers || !self.by_name.contains_key(name));
        holders
    }
}

/// What a pod may use on each GPU: what the binder promised, else (for pods of an older binder) what it requests.
fn share_pod(pod: &Pod, devices: &[Device]) -> Option<SharePod> {
    let text = |text: &Option<kai_api::Text>| text.as_deref().unwrap_or_default().to_owned();
    let annotation = pod.metadata.annotations.text(keys::GPU_LIMITS);
    let promised = annotation.and_then(|annotation| GpuLimits::parse(annotation).ok());
    let requested = |device: &Device| {
        let memory_mib = i64::try_from(device.memory_mib?).ok()?;
        u64::try_from(pod.share_memory_mib(memory_mib)?).ok()
    };
    let share_mib: BTreeMap<String, u64> = devices
        .iter()
        .filter_map(|device| {
            let promised = promised.as_ref().map(|limits| limits.memory_mib);
            Some((device.uuid.clone(), promised.or_else(|| requested(device))?))
        })
        .collect();
    (!share_mib.is_empty()).then(|| SharePod {
        namespace: text(&pod.metadata.namespace),
        name: text(&pod.metadata.name),
        uid: text(&pod.metadata.uid),
        container: promised.map(|limits| limits.container).unwrap_or_default(),
        share_mib,
    })
}

/// Runs until the agent stops.
pub async fn run(
    config: WatchConfig,
    client: Client,
    events: EventRecorder,
    driver: Arc<dyn Driver>,
    mut tier: watch::Receiver<EnforcementTier>,
    report: watch::Sender<WatchReport>,
) {
    let mut excesses = ExcessWatch::new(config.grace, config.repair);
    let mut pods = SharePods::default();
    let mut evictions = 0;
    loop {
        if !is_watched(*tier.borrow_and_update()) {
            report.send_replace(WatchReport {
                watched: Vec::new(),
                evictions,
            });
            if tier.changed().await.is_err() {
                return;
            }
            continue;
        }
        match measure(&config, &client, &driver, &mut pods).await {
            Ok(usage) => {
                let known: Vec<SharePod> = pods.by_name.values().cloned().collect();
                let (actions, watched) = excesses.observe(Instant::now(), &known, &usage);
                for action in actions {
                    evictions += carry_out(&client, &events, action).await;
                }
                report.send_replace(WatchReport { watched, evictions });
            }
            // The driver's failure is the subject of another condition; the kubelet's socket returns by itself.
            Err(problem) => tracing::debug!(problem, "could not measure what pods use of the GPUs"),
        }
        tokio::select! {
            () = tokio::time::sleep(config.pace) => {}
            changed = tier.changed() => if changed.is_err() { return },
        }
    }
}

async fn measure(
    config: &WatchConfig,
    client: &Client,
    driver: &Arc<dyn Driver>,
    pods: &mut SharePods,
) -> Result<Usage, String> {
    let (own, files) = (driver.clone(), config.files.clone());
    let asked = tokio::task::spawn_blocking(move || {
        let usage = usage(&*own, &files)?;
        Ok::<_, kai_gpu::GpuError>((usage, own.devices()?.devices))
    });
    let asked = asked.await.map_err(|error| error.to_string())?;
    let (usage, devices) = asked.map_err(|error| error.to_string())?;
    let allocations = podresources::list(&config.pod_resources).await;
    let allocations = allocations.map_err(|error| error.to_string())?;
    for (namespace, name) in pods.to_fetch(&allocations, &usage) {
        let pod: Option<Pod> = match client.get(&namespace, &name).await {
            Ok(pod) => pod,
            Err(error) => {
                tracing::debug!(%error, "could not read a pod with a GPU share; trying again");
                continue;
            }
        };
        if let Some(pod) = pod.and_then(|pod| share_pod(&pod, &devices)) {
            pods.by_name.insert((namespace, name), pod);
        }
    }
    Ok(usage)
}

/// Returns the number of evicted pods.
async fn carry_out(client: &Client, events: &EventRecorder, action: Action) -> u64 {
    let (pod, reason, message) = match &action {
        Action::Tell { pod, message } => (pod, EXCEEDED, message.clone()),
        Action::Evict { pod, message } => (pod, EVICTED, format!("evicting the pod: {message}")),
    };
    let name = format!("{}/{}", pod.namespace, pod.name);
    tracing::warn!(pod = name, reason, message, "a pod is above its GPU share");
    let event = ObjectEvent {
        about: ObjectReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        },
        severity: Severity::Warning,
        reason,
        message,
        annotations: Vec::new(),
    };
    events.record(event).await;
    match action {
        Action::Tell { .. } => 0,
        Action::Evict { pod, .. } => match client.evict_pod(&pod.namespace, &pod.name, &pod.uid).await {
            Ok(()) => 1,
            Err(error) => {
                tracing::warn!(pod = name, %error, "could not evict a pod that is above its GPU share; trying again");
                0
            }
        },
    }
}
