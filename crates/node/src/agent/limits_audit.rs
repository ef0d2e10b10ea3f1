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
use crate::enforcement::audit::{
    Answer, Audit, Audited, AuditedReceipt, LimitRow, Observation, PodEvent, WithoutReceipt, answer,
};
use crate::enforcement::hook::HookArgs;
use crate::enforcement::limits::GpuLimit;
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
        let observed = observer.observe(&config, &client, &receipts, &snapshot, allocations.as_deref(), is_paced);
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
    /// Containers that run without a receipt, by namespace, pod and share device.
    without_receipt: BTreeMap<(String, String, String), WithoutReceipt>,
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
        is_paced: bool,
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
            let without_receipt = wanted.into_iter().filter(|id| !has_receipt(id));
            let promised: BTreeMap<String, Option<Vec<GpuLimit>>> = without_receipt
                .map(|id| {
                    let promised = promised_limits(&cdi, &id);
                    (id, promised)
                })
                .collect();
            (audited, promised, own.take_failed_lifts())
        });
        let (audited, promised, failed_lifts) = read.await.unwrap_or_default();
        let receipts = self.ask(config, audited).await;
        match (limits_memory, shares) {
            (true, Some(shares)) => self.find_without_receipt(client, &shares, &promised, is_paced).await,
            // While the kubelet does not answer, the last list stays, but for containers whose receipt has come.
            (true, None) => self
                .without_receipt
                .retain(|(_, _, device), _| !receipts.iter().any(|audited| audited.share_device == *device)),
            (false, _) => self.without_receipt.clear(),
        }
        Observation {
            now_seconds: 0,
            limits_memory,
            receipts,
            held,
            without_receipt: self.without_receipt.values().cloned().collect(),
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

    /// Notes the running containers with a share device and without a receipt. `promised` has the share devices without a receipt, and the
    /// limits of the hooks in their specs. The pod of a container from before the tier is read once. A container whose hook should have run
    /// may be starting, so its pod is read in each audit without a cause of its own.
    async fn find_without_receipt(
        &mut self,
        client: &Client,
        shares: &[&DeviceAllocation],
        promised: &BTreeMap<String, Option<Vec<GpuLimit>>>,
        is_paced: bool,
    ) {
        let mut before = std::mem::take(&mut self.without_receipt);
        for allocation in shares {
            let Some(device) = allocation.device_ids.first() else {
                continue;
            };
            let Some(promised) = promised.get(device) else {
                continue;
            };
            let key = (allocation.namespace.clone(), allocation.pod.clone(), device.clone());
            let known = before.remove(&key).filter(|known| known.promised == *promised);
            match (known, promised.is_some() && is_paced) {
                (Some(known), false) => {
                    self.without_receipt.insert(key, known);
                }
                (None, false) if promised.is_some() => {}
                (known, _) => {
                    let target = Target::of::<Pod>(&allocation.namespace, &allocation.pod);
                    let found = match client.get_value(target).await {
                        Ok(Some(pod)) => running_without_receipt(&pod, &allocation.container, promised, known),
                        Ok(None) => None,
                        Err(_) => known,
                    };
                    if let Some(found) = found {
                        self.without_receipt.insert(key, found);
                    }
                }
            }
        }
    }
}

/// A container without a receipt, if its pod says that it runs. `known` is what the audit before found.
fn running_without_receipt(
    pod: &Value,
    container: &str,
    promised: &Option<Vec<GpuLimit>>,
    known: Option<WithoutReceipt>,
) -> Option<WithoutReceipt> {
    let container_id = running_id(pod, container)?;
    let gpus = pod["metadata"]["annotations"][keys::RECEIVED_GPUS]
        .as_str()
        .unwrap_or_default();
    let audits = known
        .filter(|known| known.container_id == container_id)
        .map_or(0, |known| known.audits);
    Some(WithoutReceipt {
        container: ContainerName {
            namespace: pod["metadata"]["namespace"].as_str().unwrap_or_default().to_owned(),
            pod: pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
            uid: pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
            container: container.to_owned(),
        },
        container_id,
        gpus: gpus
            .split(',')
            .filter(|gpu| !gpu.is_empty())
            .map(str::to_owned)
            .collect(),
        promised: promised.clone(),
        audits: audits + 1,
    })
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

/// The limits of the hook in the spec of a share device; `None` without a spec or a hook.
fn promised_limits(cdi: &CdiDir, share_device: &str) -> Option<Vec<GpuLimit>> {
    let spec = cdi.read_share_device(share_device)?;
    let hooks = spec.devices.iter().flat_map(|device| &device.container_edits.hooks);
    let mut own = hooks.filter_map(|hook| HookArgs::of_words(&hook.args).ok());
    own.next().map(|args| args.gpus)
}

/// The runtime's id of a container that runs, by its pod's status.
fn running_id(pod: &Value, container: &str) -> Option<String> {
    let statuses = ["containerStatuses", "initContainerStatuses"];
    let mut all = statuses
        .iter()
        .flat_map(|list| pod["status"][*list].as_array().into_iter().flatten());
    let running = all.find(|status| status["name"] == container && status["state"]["running"].is_object())?;
    Some(running["containerID"].as_str().unwrap_or_default().to_owned())
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
