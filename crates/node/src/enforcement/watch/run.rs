//! The loop of the tier `watch`: measures at a fixed pace while the node has a tier that leaves memory to its pods, and carries out what
//! `decide` says.

use std::collections::{BTreeMap, BTreeSet};
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
use crate::driver_call::DriverCall;
use crate::podresources::{self, DeviceAllocation};

/// Between two measurements. Seconds decide nothing here, and a measurement costs a call per GPU and a file per process.
pub const PACE: Duration = Duration::from_secs(15);
/// After a gap of so many paces between two measurements nobody knows whether a pod stayed above its share.
const GAP_PACES_MAX: u32 = 2;
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
    /// UIDs of pods with processes on a GPU that hold no share device: they have whole GPUs.
    others: BTreeSet<String>,
}

impl SharePods {
    /// Forgets pods that hold no share device any more, and returns the holders to ask the API server about: new ones, and all if a process
    /// belongs to a pod that was not seen before, because a pod of the same name may have taken an earlier pod's place.
    fn holders_to_read(&mut self, allocations: &[DeviceAllocation], usage: &Usage) -> Vec<(String, String)> {
        let mut holders: Vec<(String, String)> = allocations
            .iter()
            .filter(|allocation| allocation.resource == keys::RESOURCE_GPU_SHARE)
            .map(|allocation| (allocation.namespace.clone(), allocation.pod.clone()))
            .collect();
        holders.sort_unstable();
        holders.dedup();
        self.by_name.retain(|name, _| holders.contains(name));
        let has_strangers = usage
            .used
            .keys()
            .any(|(uid, _)| !self.is_known(uid) && !self.others.contains(uid));
        holders.retain(|name| has_strangers || !self.by_name.contains_key(name));
        holders
    }

    /// All holders were asked about: the pods that are still not known are none of them.
    fn fetched(&mut self, usage: &Usage) {
        let uids = usage.used.keys().map(|(uid, _)| uid);
        self.others = uids.filter(|uid| !self.is_known(uid)).cloned().collect();
    }

    fn is_known(&self, uid: &str) -> bool {
        self.by_name.values().any(|pod| pod.uid == uid)
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
    let mut excesses = ExcessWatch::new(config.grace, config.repair, config.pace * GAP_PACES_MAX);
    let (mut pods, mut calls) = (SharePods::default(), DriverCall::default());
    let mut evictions = 0;
    loop {
        if !is_watched(*tier.borrow_and_update()) {
            excesses.forget();
            report.send_replace(WatchReport {
                watched: Vec::new(),
                evictions,
            });
            if tier.changed().await.is_err() {
                return;
            }
            continue;
        }
        match measure(&config, &client, &driver, &mut calls, &mut pods).await {
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
    calls: &mut DriverCall,
    pods: &mut SharePods,
) -> Result<Usage, String> {
    let (own, files) = (driver.clone(), config.files.clone());
    let asked = calls.run(move || {
        let usage = usage(&*own, &files)?;
        Ok::<_, kai_gpu::GpuError>((usage, own.devices()?.devices))
    });
    let (usage, devices) = asked.await?.map_err(|error| error.to_string())?;
    let allocations = podresources::list(&config.pod_resources).await;
    let allocations = allocations.map_err(|error| error.to_string())?;
    let mut complete = true;
    for (namespace, name) in pods.holders_to_read(&allocations, &usage) {
        let pod: Option<Pod> = match client.get(&namespace, &name).await {
            Ok(pod) => pod,
            Err(error) => {
                tracing::debug!(%error, "could not read a pod with a GPU share; trying again");
                complete = false;
                continue;
            }
        };
        if let Some(pod) = pod.and_then(|pod| share_pod(&pod, &devices)) {
            pods.by_name.insert((namespace, name), pod);
        }
    }
    if complete {
        pods.fetched(&usage);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enforcement::watch::UsedMemory;
    use kai_gpu::fake::{FakeDriver, Settings};
    use serde_json::json;

    fn allocation(pod: &str, resource: &str) -> DeviceAllocation {
        DeviceAllocation {
            namespace: "team".to_owned(),
            pod: pod.to_owned(),
            container: "main".to_owned(),
            resource: resource.to_owned(),
            device_ids: vec!["share-1".to_owned()],
        }
    }

    fn usage_of(uids: &[&str]) -> Usage {
        let used = |uid: &&str| (((*uid).to_owned(), "GPU-0".to_owned()), UsedMemory::default());
        Usage {
            used: uids.iter().map(used).collect(),
            ..Usage::default()
        }
    }

    fn known(pods: &mut SharePods, name: &str, uid: &str) {
        let pod = SharePod {
            namespace: "team".to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            container: "main".to_owned(),
            share_mib: [("GPU-0".to_owned(), 1)].into(),
        };
        pods.by_name.insert(("team".to_owned(), name.to_owned()), pod);
    }

    #[test]
    fn a_pod_is_read_once_until_an_unknown_pod_appears() {
        let share = keys::RESOURCE_GPU_SHARE;
        let allocations = [allocation("a", share), allocation("whole", "nvidia.com/gpu")];
        let mut pods = SharePods::default();
        let names = |pods: &mut SharePods, usage: &Usage| -> Vec<String> {
            let fetched = pods.holders_to_read(&allocations, usage).into_iter();
            fetched.map(|(_, name)| name).collect()
        };
        let usage = usage_of(&["uid-a", "uid-whole"]);
        assert_eq!(names(&mut pods, &usage), ["a"]);
        known(&mut pods, "a", "uid-a");
        assert_eq!(
            names(&mut pods, &usage),
            ["a"],
            "a pod could not be read, so all are tried again"
        );
        pods.fetched(&usage);
        assert_eq!(
            names(&mut pods, &usage),
            [] as [&str; 0],
            "the other pod has a whole GPU"
        );
        let replaced = usage_of(&["uid-a2", "uid-whole"]);
        assert_eq!(names(&mut pods, &replaced), ["a"], "another pod of the same name");
        assert_eq!(pods.holders_to_read(&[], &usage), []);
        assert!(pods.by_name.is_empty(), "the pod holds no share device any more");
    }

    #[test]
    fn a_share_is_what_the_binder_promised_or_what_the_pod_requests() {
        let driver = FakeDriver::new(&Settings::of("a100-40", 1)).unwrap();
        let devices = driver.devices().unwrap().devices;
        let shares = |annotations: serde_json::Value| {
            let metadata = json!({"name": "a", "namespace": "team", "uid": "u", "annotations": annotations});
            let pod: Pod =
                serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": [{"name": "main"}]}}))
                    .unwrap();
            share_pod(&pod, &devices).map(|pod| pod.share_mib.into_values().collect::<Vec<u64>>())
        };
        let promised = r#"{"container":"main","memoryMiB":1000}"#;
        for (annotations, share_mib) in [
            (
                json!({keys::GPU_LIMITS: promised, keys::GPU_FRACTION: "0.5"}),
                Some(1000),
            ),
            (json!({keys::GPU_FRACTION: "0.5"}), Some(20_480)),
            (json!({keys::GPU_MEMORY: "4096"}), Some(4096)),
            (json!({}), None),
        ] {
            assert_eq!(
                shares(annotations.clone()),
                share_mib.map(|mib| vec![mib]),
                "{annotations}"
            );
        }
    }
}
