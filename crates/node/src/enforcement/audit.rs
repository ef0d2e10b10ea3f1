//! Compares what the hook left with what the driver says: a limit that is gone or different is reported, and by option the pod is evicted. So
//! is a container whose hook did not run. Also counts failures of the hook, and names containers that started before the node had limits. Pure; `agent::limits_audit` collects
//! the observations and carries out what follows. The audit never sets a limit.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kai_cluster::Severity;
use kai_gpu::{CgroupMemory, MemoryLimitError, NvmlCode};

use super::limits::GpuLimit;
use super::receipt::{ContainerName, Failure, Receipt};
use super::watch::Repair;

/// The driver refused the limits of so many pods, and limited none in between: the node gives up limiting. Pods must not fail one after the
/// other. A pod counts once, however often its container is started.
pub const REFUSED_PODS_MAX: usize = 3;
/// For how long a limit has to be gone before its pod is evicted: a driver may be in the middle of a reload.
pub const EVICT_AFTER: Duration = Duration::from_secs(30);
/// Seconds until an eviction is tried again: the API server may refuse it because of a disruption budget.
const EVICT_AGAIN_SECONDS: u64 = 60;

/// A container that runs without a receipt in so many audits has had its hook skipped. In the first one the pod's status may still be that
/// of the container before, whose receipt is removed.
pub const HOOK_SKIPPED_AUDITS: u32 = 2;

/// A receipt of this age, in seconds, was there before the agent started, and an earlier agent told about it.
const NEWS_SECONDS_MAX: u64 = 120;

/// The reason of the event: the container is limited.
pub const EVENT_SET: &str = "GPULimitSet";
/// The reason of the event: a limit is gone or different.
pub const EVENT_MISSING: &str = "GPULimitMissing";
/// The reason of the event: the hook could not set a limit.
pub const EVENT_FAILED: &str = "GPULimitFailed";

/// Why a container that runs without a receipt has no limit.
const HOOK_SKIPPED: &str = "the container runtime did not run the hook that limits it, or the hook's receipt is gone";

/// The driver's answer about a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The limit is in force.
    Held {
        /// What the container uses.
        used_bytes: u64,
    },
    /// The driver has no limit for the container.
    Missing,
    /// The driver has another limit.
    Different(String),
    /// The driver does not say.
    Unknown(String),
}

/// What the driver's answer says about a limit.
pub fn answer(limit: &GpuLimit, read: Result<CgroupMemory, MemoryLimitError>) -> Answer {
    match read {
        Ok(memory) if memory.limits == limit.memory_limits() => Answer::Held {
            used_bytes: memory.used_bytes,
        },
        Ok(memory) if memory.limits.hard_bytes.is_none() => Answer::Missing,
        Ok(memory) => Answer::Different(memory.limits.to_string()),
        Err(error) => match error {
            // Both back ends say so of a cgroup without a limit, each with its own code.
            MemoryLimitError::Refused { code, .. }
                if [NvmlCode::NOT_SUPPORTED, NvmlCode::NOT_FOUND].contains(&code) =>
            {
                Answer::Missing
            }
            MemoryLimitError::Refused { .. }
            | MemoryLimitError::Missing { .. }
            | MemoryLimitError::NoGpu { .. }
            | MemoryLimitError::Driver { .. }
            | MemoryLimitError::NotKept { .. } => Answer::Unknown(error.with_remedy()),
        },
    }
}

/// A receipt with the driver's answers.
#[derive(Debug, Clone)]
pub struct AuditedReceipt {
    /// The share device.
    pub share_device: String,
    /// What the hook left.
    pub receipt: Receipt,
    /// Whether the container's cgroup exists.
    pub cgroup_exists: bool,
    /// One for each limit.
    pub answers: Vec<Answer>,
}

/// A running container with a share device and without a receipt, while the node limits memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithoutReceipt {
    /// The container.
    pub container: ContainerName,
    /// The runtime's id of the container. A restarted container has another one.
    pub container_id: String,
    /// UUIDs of its GPUs, as its pod says.
    pub gpus: Vec<String>,
    /// The limits of the hook in the container's spec. `None` if no spec has a hook: the container started before the node had limits.
    pub promised: Option<Vec<GpuLimit>>,
    /// In how many audits it was seen so.
    pub audits: u32,
}

impl WithoutReceipt {
    fn key(&self) -> (String, String) {
        (self.container.uid.clone(), self.container_id.clone())
    }
}

/// What one audit sees.
#[derive(Debug, Clone, Default)]
pub struct Observation {
    /// When it was made, by a clock that never jumps.
    pub now_seconds: u64,
    /// Whether the node has the tier that limits memory.
    pub limits_memory: bool,
    /// The receipts.
    pub receipts: Vec<AuditedReceipt>,
    /// Share devices that the kubelet lists; `None` while it does not answer.
    pub held: Option<BTreeSet<String>>,
    /// Running containers without a receipt.
    pub without_receipt: Vec<WithoutReceipt>,
    /// What hooks left since the last audit that could not lift the limits of a container with a whole GPU, by GPU.
    pub failed_lifts: Vec<(String, Receipt)>,
}

/// One limit, for metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitRow {
    /// The container.
    pub container: ContainerName,
    /// UUID of the GPU.
    pub gpu: String,
    /// The promised limit; `None` if the container started before the node had limits.
    pub limit_bytes: Option<u64>,
    /// What the container uses, if the driver says so.
    pub used_bytes: Option<u64>,
    /// Whether the limit is in force.
    pub enforced: Enforced,
}

/// Whether a limit is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforced {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// The driver does not say.
    Unknown,
}

/// What the node's condition says about limits. It changes seldom, unlike the use of memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LimitsSummary {
    /// Containers whose limit is gone or different, or was not set, with the reason.
    pub broken: Vec<String>,
    /// Containers that started before the node had limits.
    pub unlimited: Vec<String>,
    /// Why the audit can't read limits.
    pub unreadable: Option<String>,
}

/// An event about a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodEvent {
    /// The container.
    pub container: ContainerName,
    /// Type of the event.
    pub severity: Severity,
    /// Reason.
    pub reason: &'static str,
    /// Message for people.
    pub message: String,
}

/// What follows from one audit.
#[derive(Debug, Clone, Default)]
pub struct Audited {
    /// The limits.
    pub rows: Vec<LimitRow>,
    /// News for the owners of pods.
    pub events: Vec<PodEvent>,
    /// Share devices whose receipts are of no use any more.
    pub remove: Vec<String>,
    /// Pods to evict.
    pub evict: Vec<ContainerName>,
    /// For the node's condition.
    pub summary: LimitsSummary,
    /// Codes of the driver's refusals since the last audit; `other` where the driver was not the cause.
    pub failures: Vec<String>,
    /// Why the node gives up limiting.
    pub give_up: Option<String>,
    /// For the agent's log: what is about no pod that is known.
    pub warnings: Vec<String>,
}

impl Audited {
    /// The limits that a container was promised and does not have, for metrics.
    fn add_unlimited(&mut self, container: &ContainerName, promised: &[GpuLimit]) {
        let promised = promised.iter().filter(|limit| limit.hard_bytes.is_some());
        self.rows.extend(promised.map(|limit| LimitRow {
            container: container.clone(),
            gpu: limit.gpu.clone(),
            limit_bytes: limit.hard_bytes,
            used_bytes: None,
            enforced: Enforced::No,
        }));
    }

    fn count_failure(&mut self, failure: &Failure) {
        self.failures
            .push(failure.code.clone().unwrap_or_else(|| "other".to_owned()));
    }
}

/// What was told about a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// Nothing.
    Nothing,
    /// That it is limited.
    Set,
    /// That it is not.
    Broken,
}

#[derive(Debug, Clone)]
struct Known {
    container_id: String,
    at_seconds: u64,
    told: Told,
    /// Whether this agent has seen the limit in force.
    seen_held: bool,
    /// Since when the limit is gone or different.
    broken_since: Option<u64>,
    /// When the pod was last to be evicted.
    evicted_at: Option<u64>,
}

/// What was done about a container whose hook did not run.
#[derive(Debug, Clone, Copy)]
struct Skipped {
    /// When its owner was told.
    told_at: u64,
    /// When the pod was last to be evicted.
    evicted_at: Option<u64>,
}

/// What the audit remembers.
#[derive(Debug)]
pub struct Audit {
    repair: Repair,
    evict_after: Duration,
    started_seconds: u64,
    known: BTreeMap<String, Known>,
    /// Containers whose hook did not run, by the pod's UID and the container's id.
    skipped: BTreeMap<(String, String), Skipped>,
    /// UIDs of the pods whose limits the driver refused since it last limited one.
    refused_pods: BTreeSet<String>,
}

impl Audit {
    /// Remembers nothing. `started_seconds` is the time of the agent's start.
    pub fn new(repair: Repair, started_seconds: u64) -> Self {
        Self {
            repair,
            evict_after: EVICT_AFTER,
            started_seconds,
            known: BTreeMap::new(),
            skipped: BTreeMap::new(),
            refused_pods: BTreeSet::new(),
        }
    }

    /// Evicts pods whose limit was gone for this long.
    pub fn evict_after(self, evict_after: Duration) -> Self {
        Self { evict_after, ..self }
    }

    /// Forgets the driver's refusals: there is a new driver.
    pub fn new_driver(&mut self) {
        self.refused_pods.clear();
    }

    /// Takes an observation.
    pub fn step(&mut self, observation: &Observation) -> Audited {
        let mut audited = Audited::default();
        let mut receipts: Vec<&AuditedReceipt> = observation.receipts.iter().collect();
        receipts.sort_by_key(|audited| audited.receipt.at_seconds);
        for receipt in receipts {
            let unheld = observation
                .held
                .as_ref()
                .is_some_and(|held| !held.contains(&receipt.share_device));
            if unheld && !receipt.cgroup_exists {
                audited.remove.push(receipt.share_device.clone());
                continue;
            }
            self.take_news(receipt, &mut audited);
            // Between two starts of a container the receipt is that of the container that has ended.
            let started = receipt.receipt.failure.as_ref().is_none_or(|failure| failure.started);
            if started && receipt.cgroup_exists {
                self.check(receipt, observation, &mut audited);
            } else if let Some(failure) = receipt.receipt.failure.as_ref().filter(|failure| failure.started)
                && receipt.receipt.cgroup.is_empty()
            {
                // The hook did not come as far as the cgroup, so the container counts as long as its pod holds the share device.
                audited.summary.broken.push(shown_broken(receipt, &failure.message));
                audited.add_unlimited(&receipt.receipt.container, &failure.promised);
            }
        }
        for (gpu, receipt) in &observation.failed_lifts {
            if let Some(failure) = &receipt.failure {
                audited.count_failure(failure);
                audited.warnings.push(format!(
                    "the old limits of container {} (cgroup {}) on GPU {gpu} could not be lifted, so it may get less than the whole GPU's memory: {}",
                    receipt.container_id, receipt.cgroup, failure.message
                ));
            }
        }
        let present: BTreeSet<&String> = observation
            .receipts
            .iter()
            .map(|audited| &audited.share_device)
            .collect();
        self.known
            .retain(|share_device, _| present.contains(share_device) && !audited.remove.contains(share_device));
        for found in &observation.without_receipt {
            self.check_without_receipt(found, observation, &mut audited);
        }
        self.skipped
            .retain(|key, _| observation.without_receipt.iter().any(|found| found.key() == *key));
        if self.refused_pods.len() >= REFUSED_PODS_MAX {
            audited.give_up = Some(format!(
                "the driver refused the limits of {} pods in a row (event {EVENT_FAILED} of the last one has the cause); repair the \
                 cause and restart the node agent",
                self.refused_pods.len()
            ));
        }
        audited
    }

    /// Notes a receipt that is new, and a failure in it.
    fn take_news(&mut self, audited: &AuditedReceipt, result: &mut Audited) {
        let receipt = &audited.receipt;
        let known = self.known.get(&audited.share_device);
        if known
            .is_some_and(|known| known.container_id == receipt.container_id && known.at_seconds == receipt.at_seconds)
        {
            return;
        }
        let is_news = receipt.at_seconds + NEWS_SECONDS_MAX >= self.started_seconds;
        let told = match &receipt.failure {
            Some(failure) if is_news => {
                self.take_failure(receipt, failure, result);
                Told::Broken
            }
            Some(_) => Told::Broken,
            None => {
                if !receipt.limits.is_empty() {
                    self.refused_pods.clear();
                }
                if is_news { Told::Nothing } else { Told::Set }
            }
        };
        let known = Known {
            container_id: receipt.container_id.clone(),
            at_seconds: receipt.at_seconds,
            told,
            seen_held: false,
            broken_since: None,
            evicted_at: None,
        };
        self.known.insert(audited.share_device.clone(), known);
    }

    fn take_failure(&mut self, receipt: &Receipt, failure: &Failure, result: &mut Audited) {
        result.count_failure(failure);
        // Only the driver's refusals say something about the node: a container that ends early fails the hook, too. What happened before the
        // agent's start may be repaired: the operator restarts the agent after the repair.
        if failure.refused && receipt.at_seconds >= self.started_seconds {
            self.refused_pods.insert(receipt.container.uid.clone());
        }
        let memory = failure.memory.name();
        let start = match failure.started {
            true => format!("started without a limit of its {memory}"),
            false => format!("did not start, because its {memory} could not be limited"),
        };
        result.events.push(PodEvent {
            container: receipt.container.clone(),
            severity: Severity::Warning,
            reason: EVENT_FAILED,
            message: format!("container {} {start}: {}", receipt.container.container, failure.message),
        });
    }

    /// A container without a receipt: nothing limits it.
    fn check_without_receipt(&mut self, found: &WithoutReceipt, observation: &Observation, result: &mut Audited) {
        let container = &found.container;
        let Some(promised) = &found.promised else {
            result.summary.unlimited.push(container.shown());
            // A pod that does not say on which GPU it is has a row nevertheless.
            let unknown = [String::new()];
            let gpus = if found.gpus.is_empty() {
                &unknown[..]
            } else {
                &found.gpus
            };
            result.rows.extend(gpus.iter().map(|gpu| LimitRow {
                container: container.clone(),
                gpu: gpu.clone(),
                limit_bytes: None,
                used_bytes: None,
                enforced: Enforced::No,
            }));
            return;
        };
        if found.audits < HOOK_SKIPPED_AUDITS {
            return;
        }
        result.add_unlimited(container, promised);
        result
            .summary
            .broken
            .push(format!("{}: {HOOK_SKIPPED}", container.shown()));
        let now = observation.now_seconds;
        let Some(mut skipped) = self.skipped.get(&found.key()).copied() else {
            result.events.push(PodEvent {
                container: container.clone(),
                severity: Severity::Warning,
                reason: EVENT_MISSING,
                message: format!(
                    "container {} is not held to its GPU memory: {HOOK_SKIPPED}; use a runtime class whose runtime runs hooks (runc or crun), \
                     and delete the pod, so that a new one gets its limit",
                    container.container
                ),
            });
            let told = Skipped {
                told_at: now,
                evicted_at: None,
            };
            self.skipped.insert(found.key(), told);
            return;
        };
        if self.evicts(observation, Some(skipped.told_at), skipped.evicted_at) {
            skipped.evicted_at = Some(now);
            self.skipped.insert(found.key(), skipped);
            result.evict.push(container.clone());
        }
    }

    /// Whether a pod is evicted now whose limit is gone since this second, and that was last to be evicted then.
    fn evicts(&self, observation: &Observation, gone_since: Option<u64>, evicted_at: Option<u64>) -> bool {
        let seconds_from = |at: u64| observation.now_seconds.saturating_sub(at);
        let is_gone = gone_since.is_some_and(|since| seconds_from(since) >= self.evict_after.as_secs());
        let is_due = evicted_at.is_none_or(|at| seconds_from(at) >= EVICT_AGAIN_SECONDS);
        self.repair == Repair::Evict && observation.limits_memory && is_gone && is_due
    }

    fn check(&mut self, audited: &AuditedReceipt, observation: &Observation, result: &mut Audited) {
        let receipt = &audited.receipt;
        let mut broken = receipt.failure.as_ref().map(|failure| failure.message.clone());
        for (limit, answer) in receipt.limits.iter().zip(&audited.answers) {
            let (used_bytes, enforced) = match answer {
                Answer::Held { used_bytes } => (Some(*used_bytes), Enforced::Yes),
                Answer::Missing => (None, Enforced::No),
                Answer::Different(_) => (None, Enforced::No),
                Answer::Unknown(reason) => {
                    result.summary.unreadable = Some(reason.clone());
                    (None, Enforced::Unknown)
                }
            };
            match answer {
                Answer::Missing => {
                    broken = Some(format!("the driver has no limit for it on GPU {} any more", limit.gpu))
                }
                Answer::Different(other) => {
                    broken = Some(format!(
                        "the driver limits it to {other} on GPU {} instead of {}",
                        limit.gpu,
                        limit.memory_limits()
                    ));
                }
                Answer::Held { .. } | Answer::Unknown(_) => {}
            }
            if let Some(limit_bytes) = limit.hard_bytes {
                result.rows.push(LimitRow {
                    container: receipt.container.clone(),
                    gpu: limit.gpu.clone(),
                    limit_bytes: Some(limit_bytes),
                    used_bytes,
                    enforced,
                });
            }
        }
        if let Some(failure) = &receipt.failure {
            result.add_unlimited(&receipt.container, &failure.promised);
        }
        let Some(mut known) = self.known.get(&audited.share_device).cloned() else {
            return;
        };
        let all_held = !receipt.limits.is_empty()
            && audited
                .answers
                .iter()
                .all(|answer| matches!(answer, Answer::Held { .. }));
        if all_held {
            (known.seen_held, known.broken_since) = (true, None);
        }
        let now = observation.now_seconds;
        match (broken, known.told) {
            (Some(problem), Told::Broken) => {
                result.summary.broken.push(shown_broken(audited, &problem));
                if self.evicts(observation, known.broken_since, known.evicted_at) {
                    known.evicted_at = Some(now);
                    result.evict.push(receipt.container.clone());
                }
            }
            (Some(problem), Told::Nothing | Told::Set) => {
                result.summary.broken.push(shown_broken(audited, &problem));
                known.told = Told::Broken;
                // A container that never had its limit was let in by the policy, or by an earlier agent that knew why.
                known.broken_since = known.seen_held.then_some(now);
                result.events.push(PodEvent {
                    container: receipt.container.clone(),
                    severity: Severity::Warning,
                    reason: EVENT_MISSING,
                    message: format!(
                        "container {} is not held to its GPU memory: {problem}; delete the pod, so that a new one gets its limit",
                        receipt.container.container
                    ),
                });
            }
            (None, Told::Nothing | Told::Broken) if all_held => {
                known.told = Told::Set;
                let limits: Vec<String> = receipt.limits.iter().map(shown).collect();
                result.events.push(PodEvent {
                    container: receipt.container.clone(),
                    severity: Severity::Normal,
                    reason: EVENT_SET,
                    message: format!(
                        "the driver limits the GPU memory of container {} to {}",
                        receipt.container.container,
                        limits.join(", ")
                    ),
                });
            }
            (None, Told::Nothing | Told::Broken | Told::Set) => {}
        }
        self.known.insert(audited.share_device.clone(), known);
    }
}

/// A container that is not held, and why, for the condition.
fn shown_broken(audited: &AuditedReceipt, problem: &str) -> String {
    format!("{}: {problem}", audited.receipt.container.shown())
}

/// A limit in MiB, for people.
fn shown(limit: &GpuLimit) -> String {
    match limit.hard_bytes {
        Some(bytes) => format!("{} MiB on GPU {}", bytes >> 20, limit.gpu),
        None => format!("no limit on GPU {}", limit.gpu),
    }
}

#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;
