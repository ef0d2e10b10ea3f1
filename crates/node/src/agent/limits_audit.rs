//! Audits the limits of containers: reads the hook's receipts, asks the driver about each, and carries out what `enforcement::audit` says
//! follows: events on pods, evictions, the node's condition, metrics. Runs at every receipt, and now and then without one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kai_api::{EnforcementTier, Pod, keys};
use kai_cluster::{Client, Clock, EventRecorder, ObjectEvent, Target};
use kai_gpu::Driver;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::files;
use super::report::FIELD_MANAGER;
use super::state::{Input, Snapshot};
use crate::driver_call::DriverCall;
use crate::driver_files::host_root::HostRoot;
use crate::driver_files::store::CdiDir;
use crate::enforcement::audit::{Answer, Audit, Audited, AuditedReceipt, LimitRow, Observation, PodEvent, answer};
use crate::enforcement::program::ProgramDir;
use crate::enforcement::receipt::{ContainerName, Receipt};
use crate::enforcement::receipt_dir::ReceiptDir;
use crate::enforcement::watch::Repair;
use crate::podresources::{self, DeviceAllocation};

/// Copies of the hook's program that no spec names stay for this long: a container that is being created may run one.
const UNNAMED_PROGRAM_MAX: Duration = Duration::from_secs(600);

/// Between audits with new receipts: when many containers start at once, an audit sees several of them.
const APART: Duration = Duration::from_secs(1);

/// What the last audit found, for metrics.
#[derive(Debug, Clone, Default)]
pub struct LimitMetrics {
    /// The limits.
    pub rows: Vec<LimitRow>,
    /// Failures of the hook since the agent's start, by the driver's code.
    pub failures: BTreeMap<String, u64>,
}

/// What the audit works with.
pub struct LimitsAudit {
    /// The driver.
    pub driver: Arc<dyn Driver>,
    /// CDI specs.
    pub cdi: CdiDir,
    /// The agent's state directory.
    pub state_dir: PathBuf,
    /// The host's `/` in this process.
    pub host_root: PathBuf,
    /// The kubelet's pod-resources socket.
    pub pod_resources: PathBuf,
    /// What to do about a container whose limit is gone.
    pub repair: Repair,
    /// For how long a limit has to be gone before its pod is evicted.
    pub evict_after: Duration,
    /// Between audits without a new receipt.
    pub pace: Duration,
}

/// Where the results go.
pub struct AuditOutputs {
    /// The task that owns the state.
    pub inputs: mpsc::Sender<Input>,
    /// The metrics.
    pub metrics: watch::Sender<Arc<LimitMetrics>>,
    /// Why the node gives up limiting.
    pub given_up: watch::Sender<Option<String>>,
}

/// Runs until the agent stops.
pub async fn run(
    config: LimitsAudit,
    client: Client,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    outputs: AuditOutputs,
) {
    let receipts = ReceiptDir::new(&config.state_dir);
    let recorder = EventRecorder::new(&client, FIELD_MANAGER, Clock::System);
    let (started, started_seconds) = (Instant::now(), now_seconds());
    let mut audit = Audit::new(config.repair, started_seconds).evict_after(config.evict_after);
    let mut observer = Observer::default();
    let mut metrics = LimitMetrics::default();
    let mut summary = None;
    let mut driver_version = None;
    let mut unnamed = BTreeMap::new();
    let mut is_paced = true;
    if let Err(error) = receipts.create() {
        tracing::warn!(%error, "could not make the directory of receipts; containers with a limit do not start");
    }
    let (mut changed, _watching) = files::watch_directory(receipts.path());
    loop {
        changed.mark_unchanged();
        let snapshot = snapshots.borrow().clone();
        let version = snapshot.inventory.driver_version.clone();
        if driver_version.as_ref().is_some_and(|before| *before != version) {
            audit.new_driver();
        }
        driver_version = Some(version);
        // While there is no limit to audit, the kubelet is not asked.
        let allocations = match limits_memory(&snapshot) || !receipts.is_empty() {
            true => podresources::list(&config.pod_resources).await.ok(),
            false => None,
        };
        let observed = observer.observe(&config, &client, &receipts, &snapshot, allocations.as_deref());
        let observation = Observation {
            now_seconds: started_seconds + started.elapsed().as_secs(),
            ..observed.await
        };
        let audited = audit.step(&observation);
        for share_device in &audited.remove {
            receipts.remove(share_device);
        }
        tell(&client, &recorder, &audited).await;
        for code in &audited.failures {
            *metrics.failures.entry(code.clone()).or_default() += 1;
        }
        metrics.rows = audited.rows;
        outputs.metrics.send_replace(Arc::new(metrics.clone()));
        outputs
            .given_up
            .send_if_modified(|before| std::mem::replace(before, audited.give_up.clone()) != audited.give_up);
        if summary.as_ref() != Some(&audited.summary) {
            if outputs
                .inputs
                .send(Input::Limits(audited.summary.clone()))
                .await
                .is_err()
            {
                return;
            }
            summary = Some(audited.summary);
        }
        if is_paced {
            let mut known = std::mem::take(&mut unnamed);
            let (programs, cdi, snapshot) = (ProgramDir::new(&config.state_dir), config.cdi.clone(), snapshot.clone());
            let removed = tokio::task::spawn_blocking(move || {
                remove_programs(&programs, &cdi, &snapshot, &mut known);
                known
            });
            unnamed = removed.await.unwrap_or_default();
        }
        tokio::time::sleep(APART.min(config.pace)).await;
        is_paced = tokio::select! {
            Ok(()) = changed.changed() => false,
            () = tokio::time::sleep(config.pace) => true,
        };
    }
}

fn limits_memory(snapshot: &Snapshot) -> bool {
    let decided = snapshot.enforcement.as_ref();
    decided.is_some_and(|decided| decided.tier == EnforcementTier::Driver)
}

/// What is kept from audit to audit.
#[derive(Default)]
struct Observer {
    calls: DriverCall,
    /// Containers that run without a limit, by pod and share device: each is read once.
    unlimited: BTreeMap<(String, String, String), ContainerName>,
}

impl Observer {
    /// Collects what one audit sees, but for the time.
    async fn observe(
        &mut self,
        config: &LimitsAudit,
        client: &Client,
        receipts: &ReceiptDir,
        snapshot: &Snapshot,
        allocations: Option<&[DeviceAllocation]>,
    ) -> Observation {
        let shares: Option<Vec<&DeviceAllocation>> = allocations.map(|allocations| {
            let all = allocations.iter();
            all.filter(|allocation| allocation.resource == keys::RESOURCE_GPU_SHARE)
                .collect()
        });
        let held = shares.as_ref().map(|shares| {
            let ids = shares
                .iter()
                .flat_map(|allocation| allocation.device_ids.iter().cloned());
            ids.collect::<BTreeSet<_>>()
        });
        let limits_memory = limits_memory(snapshot);
        let (own, cdi) = (receipts.clone(), config.cdi.clone());
        let host = HostRoot::new(&config.host_root);
        let wanted = held.clone().filter(|_| limits_memory).unwrap_or_default();
        // The disk blocks.
        let read = tokio::task::spawn_blocking(move || {
            let found = own.read().into_iter();
            let audited: Vec<AuditedReceipt> = found
                .map(|(share_device, receipt)| unasked(&host, share_device, receipt))
                .collect();
            let has_receipt = |id: &String| audited.iter().any(|audited| audited.share_device == *id);
            let hooked: BTreeSet<String> = wanted
                .into_iter()
                .filter(|id| has_receipt(id) || has_hook(&cdi, id))
                .collect();
            (audited, hooked, own.take_failed_lifts())
        });
        let (audited, hooked, failed_lifts) = read.await.unwrap_or_default();
        let receipts = self.ask(config, audited).await;
        let unlimited = match (limits_memory, shares) {
            (true, Some(shares)) => self.unlimited(client, &shares, &hooked).await,
            (true, None) | (false, _) => Vec::new(),
        };
        Observation {
            now_seconds: 0,
            limits_memory,
            receipts,
            held,
            unlimited,
            failed_lifts,
        }
    }

    /// Asks the driver about receipts. While it does not answer, the limits are not known.
    async fn ask(&mut self, config: &LimitsAudit, mut audited: Vec<AuditedReceipt>) -> Vec<AuditedReceipt> {
        let (driver, host) = (config.driver.clone(), HostRoot::new(&config.host_root));
        let questions: Vec<Receipt> = audited.iter().map(|audited| audited.receipt.clone()).collect();
        let exists: Vec<bool> = audited.iter().map(|audited| audited.cgroup_exists).collect();
        if !exists.contains(&true) {
            return audited;
        }
        let answers = self.calls.run(move || {
            let asked = questions.iter().zip(exists);
            asked
                .map(|(receipt, exists)| match exists {
                    true => answers(&*driver, &host, receipt),
                    false => Vec::new(),
                })
                .collect::<Vec<_>>()
        });
        match answers.await {
            Ok(answers) => {
                for (audited, answers) in audited.iter_mut().zip(answers) {
                    audited.answers = answers;
                }
            }
            Err(reason) => {
                for audited in audited.iter_mut().filter(|audited| audited.cgroup_exists) {
                    audited.answers = vec![Answer::Unknown(reason.clone()); audited.receipt.limits.len()];
                }
            }
        }
        audited
    }

    /// Running containers with a share device that have neither a receipt nor a spec with the hook: they started before the tier.
    async fn unlimited(
        &mut self,
        client: &Client,
        shares: &[&DeviceAllocation],
        hooked: &BTreeSet<String>,
    ) -> Vec<ContainerName> {
        let mut found = BTreeMap::new();
        for allocation in shares {
            let Some(device) = allocation.device_ids.first() else {
                continue;
            };
            if allocation.device_ids.iter().any(|id| hooked.contains(id)) {
                continue;
            }
            let key = (allocation.namespace.clone(), allocation.pod.clone(), device.clone());
            if let Some(known) = self.unlimited.remove(&key) {
                found.insert(key, known);
                continue;
            }
            let target = Target::of::<Pod>(&allocation.namespace, &allocation.pod);
            let Ok(Some(pod)) = client.get_value(target).await else {
                continue;
            };
            if is_running(&pod, &allocation.container) {
                let name = ContainerName {
                    namespace: allocation.namespace.clone(),
                    pod: allocation.pod.clone(),
                    uid: pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
                    container: allocation.container.clone(),
                };
                found.insert(key, name);
            }
        }
        self.unlimited = found;
        self.unlimited.values().cloned().collect()
    }
}

/// A receipt before the driver is asked. The path is the host's; here the host's `/` may be elsewhere.
fn unasked(host: &HostRoot, share_device: String, receipt: Receipt) -> AuditedReceipt {
    AuditedReceipt {
        cgroup_exists: !receipt.cgroup.is_empty() && host.local_path(&receipt.cgroup).is_dir(),
        share_device,
        receipt,
        answers: Vec::new(),
    }
}

/// What the driver says about each limit of a receipt.
fn answers(driver: &dyn Driver, host: &HostRoot, receipt: &Receipt) -> Vec<Answer> {
    let cgroup = host.local_path(&receipt.cgroup);
    let limits = receipt.limits.iter();
    limits
        .map(|limit| answer(limit, driver.memory_limits(&limit.gpu, &cgroup)))
        .collect()
}

/// Whether the spec of a share device has the hook.
fn has_hook(cdi: &CdiDir, share_device: &str) -> bool {
    cdi.read_share_device(share_device).is_some_and(|spec| {
        let mut devices = spec.devices.iter();
        devices.any(|device| !device.container_edits.hooks.is_empty())
    })
}

fn is_running(pod: &Value, container: &str) -> bool {
    let statuses = ["containerStatuses", "initContainerStatuses"];
    let mut all = statuses
        .iter()
        .flat_map(|list| pod["status"][*list].as_array().into_iter().flatten());
    all.any(|status| status["name"] == container && status["state"]["running"].is_object())
}

/// Records the events, and evicts pods.
async fn tell(client: &Client, recorder: &EventRecorder, audited: &Audited) {
    for warning in &audited.warnings {
        tracing::warn!("{warning}");
    }
    for event in &audited.events {
        let PodEvent {
            container,
            severity,
            reason,
            message,
        } = event;
        tracing::info!(
            reason,
            pod = container.shown(),
            message,
            "told the owner of a pod about its limit"
        );
        recorder
            .record(ObjectEvent {
                about: container.reference(),
                severity: *severity,
                reason,
                message: message.clone(),
                annotations: Vec::new(),
            })
            .await;
    }
    for container in &audited.evict {
        match client
            .evict_pod(&container.namespace, &container.pod, &container.uid)
            .await
        {
            Ok(()) => tracing::warn!(
                pod = container.shown(),
                "evicted a pod whose GPU memory is not limited any more"
            ),
            Err(error) => {
                tracing::warn!(pod = container.shown(), %error, "could not evict a pod whose GPU memory is not limited any more; trying again");
            }
        }
    }
}

/// Removes copies of the hook's program that neither a spec nor the present decision names.
fn remove_programs(programs: &ProgramDir, cdi: &CdiDir, snapshot: &Snapshot, unnamed: &mut BTreeMap<PathBuf, Instant>) {
    let mut named: BTreeSet<PathBuf> = cdi.hooks().iter().filter_map(|path| programs.copy_of(path)).collect();
    let decided = snapshot.enforcement.as_ref().and_then(|decided| decided.hook.as_ref());
    named.extend(decided.map(|setup| setup.program.directory.clone()));
    let now = Instant::now();
    let present = programs.copies();
    unnamed.retain(|path, _| present.contains(path) && !named.contains(path));
    for path in present.iter().filter(|path| !named.contains(*path)) {
        unnamed.entry(path.clone()).or_insert(now);
    }
    let young = unnamed
        .iter()
        .filter(|(_, since)| now.duration_since(**since) < UNNAMED_PROGRAM_MAX);
    let needed: BTreeSet<PathBuf> = young.map(|(path, _)| path.clone()).chain(named).collect();
    programs.remove_except(&needed);
}

fn now_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}
