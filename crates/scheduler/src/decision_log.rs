//! The decisions of the last hour, for people. The driver records them as it carries them out; texts are made when somebody reads them.
//!
//! A promise (pipelined placement) is decided anew in each cycle. The log has it once, until the pod is promised another node.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use kai_api::{ObjectKey, PodCondition};
use kai_engine::Cluster;
use kai_engine::model::{Action, GangKey, Millis};
use kai_engine::reasons::{EvictionReason, Reason};
use kai_engine::report::Placed;
use kai_mirror::{ClusterMirror, pod_group_key};
use kai_view::{Beneficiary, Decision, DecisionKind, Fairness, PodGpus};
use rustc_hash::FxHashMap;

/// How long a decision is kept. People ask what happened just now; for more, the API has events, and they expire after an hour as well.
const KEPT_FOR: Millis = Millis::seconds(3_600);
/// How many decisions are kept: at about 300 bytes each, one to two MiB. A cluster that decides more often has turned over many times.
const ENTRIES_MAX: usize = 4_096;
/// Characters of the reason for which a pod waited. The reason of a large gang names many others.
const WAITING_REASON_CHARACTERS_MAX: usize = 300;

/// The log.
#[derive(Debug, Default)]
pub(crate) struct DecisionLog {
    /// Oldest first.
    entries: VecDeque<Entry>,
    /// Number of the newest decision.
    newest: u64,
    /// Promises by uid of the pod: the node. An entry stays as long as the pod is pending: a promise that a cycle does not repeat, and a
    /// later one does, is no news.
    promises: FxHashMap<Arc<str>, Arc<str>>,
    /// Whether entries keep decisions that were made for views.
    has_shown: bool,
    /// The last gang, whose pods are mostly decided one after the other, and the last beneficiary.
    recent: [Option<(Millis, Arc<GangNames>)>; 2],
}

#[derive(Debug)]
struct Entry {
    number: u64,
    time: Millis,
    kind: DecisionKind,
    action: Action,
    pod: ObjectKey,
    gang: Option<Arc<GangNames>>,
    node: Option<Arc<str>>,
    gpus: Option<PodGpus>,
    /// Of a pod that is evicted.
    eviction: Option<Eviction>,
    /// Of a pod that gets a place or the promise of one: its creation.
    waiting_since: Option<Millis>,
    /// The text of its condition until then, shared with the entry before it where that is the same: so it is for the pods of a gang.
    waiting_reason: Option<Arc<str>>,
    /// As people read it; made for the first view that shows it.
    shown: Option<Arc<Decision>>,
}

#[derive(Debug)]
struct Eviction {
    reason: EvictionReason,
    beneficiary: Option<Arc<GangNames>>,
}

/// The names of a gang at the time of a decision: it may be gone when somebody reads them.
#[derive(Debug)]
struct GangNames {
    pod_group: ObjectKey,
    workload_kind: String,
    workload_name: String,
    queue: Option<String>,
}

/// What the names of a decision are looked up in: mirror and engine after the cycle, and its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AfterCycle<'a> {
    mirror: &'a ClusterMirror,
    engine: &'a Cluster,
    now: Millis,
}

impl<'a> AfterCycle<'a> {
    pub(crate) fn new(mirror: &'a ClusterMirror, engine: &'a Cluster, now: Millis) -> AfterCycle<'a> {
        AfterCycle { mirror, engine, now }
    }
}

impl DecisionLog {
    /// Records a binding.
    pub(crate) fn bind(&mut self, placed: &Placed, after: AfterCycle<'_>) {
        self.promises.remove(&placed.pod);
        self.push(
            DecisionKind::Bind,
            placed.action,
            &placed.pod,
            Some(&placed.node),
            None,
            after,
        );
    }

    /// Records a promise, unless the pod has it already. A pod that runs and is moved makes no entry: its eviction has one.
    pub(crate) fn promise(&mut self, placed: &Placed, after: AfterCycle<'_>) {
        if self.promises.get(&placed.pod) == Some(&placed.node) || !after.mirror.is_pending(&placed.pod) {
            return;
        }
        self.promises.insert(placed.pod.clone(), placed.node.clone());
        self.push(
            DecisionKind::Promise,
            placed.action,
            &placed.pod,
            Some(&placed.node),
            None,
            after,
        );
    }

    /// Records an eviction.
    pub(crate) fn evict(&mut self, pod: &str, reason: &EvictionReason, after: AfterCycle<'_>) {
        let (action, beneficiary) = match reason {
            EvictionReason::For { action, gang, .. } => (*action, Some(self.names(1, &pod_group_key(gang), after))),
            EvictionReason::StaleGang | EvictionReason::LeavingNode => (Action::StaleGangEviction, None),
            EvictionReason::Background { .. } => (Action::BackgroundPods, None),
        };
        let eviction = Eviction {
            reason: reason.clone(),
            beneficiary,
        };
        self.push(DecisionKind::Evict, action, pod, None, Some(eviction), after);
    }

    /// Forgets the promises of pods that no longer wait.
    pub(crate) fn end_cycle(&mut self, mirror: &ClusterMirror) {
        self.promises.retain(|pod, _| mirror.is_pending(pod));
    }

    /// All decisions of the last hour, newest first. Thousands of them are in each view, so views share them.
    pub(crate) fn newest_first(&mut self, now: Millis) -> Vec<Arc<Decision>> {
        self.prune(now);
        self.has_shown = true;
        self.entries.iter_mut().rev().map(Entry::shown).collect()
    }

    /// Nobody looks any more: drops what was made for views.
    pub(crate) fn drop_shown(&mut self) {
        if std::mem::take(&mut self.has_shown) {
            self.entries.iter_mut().for_each(|entry| entry.shown = None);
        }
    }

    /// The decisions with larger numbers, oldest first. A number that was not given yet is of a log before this one: then all of them.
    pub(crate) fn after(&mut self, number: u64, now: Millis) -> Vec<Decision> {
        self.prune(now);
        let number = if number > self.newest { 0 } else { number };
        let later = self.entries.partition_point(|entry| entry.number <= number);
        self.entries.range(later..).map(Entry::to_decision).collect()
    }

    fn push(
        &mut self,
        kind: DecisionKind,
        action: Action,
        uid: &str,
        node: Option<&Arc<str>>,
        eviction: Option<Eviction>,
        after: AfterCycle<'_>,
    ) {
        let Some((key, object)) = after.mirror.pod_by_uid(uid) else {
            return;
        };
        let views = after.engine.pods_of([uid]);
        let view = views.first();
        // An evicted pod leaves the node that it is on. The engine has its new node, if the pod is moved.
        let left = || object.node_name().or(view.and_then(|view| view.node)).map(Arc::from);
        let gang = view.and_then(|view| view.gang);
        let gets_place = eviction.is_none();
        let condition = object.condition(PodCondition::SCHEDULED).filter(|_| gets_place);
        let waiting_reason = condition
            .and_then(|condition| condition.message.as_deref())
            .map(|message| self.waiting_reason(message));
        let entry = Entry {
            number: self.newest + 1,
            time: after.now,
            kind,
            action,
            pod: key.clone(),
            gang: gang.map(|gang| self.names(0, &pod_group_key(gang), after)),
            node: node.cloned().or_else(left),
            gpus: view.map(|view| PodGpus::from(&view.gpus)),
            eviction,
            waiting_since: view.filter(|_| gets_place).map(|view| view.created),
            waiting_reason,
            shown: None,
        };
        self.prune(after.now);
        if self.entries.len() >= ENTRIES_MAX {
            self.entries.pop_front();
        }
        self.newest = entry.number;
        self.entries.push_back(entry);
    }

    /// The text of a condition, shortened.
    fn waiting_reason(&self, message: &str) -> Arc<str> {
        let end = message.char_indices().nth(WAITING_REASON_CHARACTERS_MAX);
        let text: Cow<'_, str> = match end {
            Some((end, _)) => format!("{}…", &message[..end]).into(),
            None => message.into(),
        };
        let last = self.entries.back().and_then(|entry| entry.waiting_reason.as_ref());
        match last.filter(|last| ***last == *text) {
            Some(last) => Arc::clone(last),
            None => text.as_ref().into(),
        }
    }

    fn prune(&mut self, now: Millis) {
        let is_old = |entry: &Entry| (now - entry.time).0 > KEPT_FOR.0;
        while self.entries.front().is_some_and(is_old) {
            self.entries.pop_front();
        }
    }

    /// The names of a gang, shared with the last entry of the same cycle if that is of the same gang.
    fn names(&mut self, slot: usize, pod_group: &ObjectKey, after: AfterCycle<'_>) -> Arc<GangNames> {
        if let Some((time, names)) = &self.recent[slot]
            && *time == after.now
            && names.pod_group == *pod_group
        {
            return Arc::clone(names);
        }
        let object = after.mirror.pod_group(pod_group);
        let (workload_kind, workload_name) = match object {
            Some(object) => object.workload_kind_and_name(),
            None => ("pod group".to_owned(), pod_group.name.to_string()),
        };
        let names = Arc::new(GangNames {
            pod_group: pod_group.clone(),
            workload_kind,
            workload_name,
            queue: object.map(|object| object.queue().to_owned()),
        });
        self.recent[slot] = Some((after.now, Arc::clone(&names)));
        names
    }
}

impl Entry {
    fn shown(&mut self) -> Arc<Decision> {
        let decision = self.shown.take().unwrap_or_else(|| Arc::new(self.to_decision()));
        self.shown = Some(Arc::clone(&decision));
        decision
    }

    fn to_decision(&self) -> Decision {
        let gang = self.gang.as_deref();
        let beneficiary = self
            .eviction
            .as_ref()
            .and_then(|eviction| eviction.beneficiary.as_deref());
        Decision {
            number: self.number,
            time: self.time.into(),
            kind: self.kind,
            action: Some(self.action.name().to_owned()),
            namespace: self.pod.namespace.to_string(),
            pod: self.pod.name.to_string(),
            pod_group: gang.map(|gang| gang.pod_group.name.to_string()),
            workload: gang.map_or_else(|| format!("Pod {}", self.pod.name), GangNames::workload),
            queue: gang.and_then(|gang| gang.queue.clone()),
            node: self.node.as_deref().map(str::to_owned),
            gpus: self.gpus.clone(),
            beneficiary: beneficiary.map(|gang| Beneficiary {
                namespace: gang.pod_group.namespace.to_string(),
                pod_group: gang.pod_group.name.to_string(),
                workload: gang.workload(),
                queue: gang.queue.clone(),
            }),
            reason: self.reason(),
            fairness: self.eviction.as_ref().and_then(|eviction| fairness(&eviction.reason)),
            waiting_since: self.waiting_since.map(Into::into),
            waiting_reason: self.waiting_reason.as_deref().map(str::to_owned),
        }
    }

    /// The text of the pod's condition at the time of the decision.
    fn reason(&self) -> Option<String> {
        match (self.kind, &self.eviction, &self.node) {
            (DecisionKind::Evict, Some(eviction), _) => {
                let beneficiary = eviction.beneficiary.as_deref();
                let name = |gang: &GangKey| beneficiary.map_or_else(|| gang.to_string(), GangNames::name_in_reasons);
                Some(eviction.reason.with_names(&name).to_string())
            }
            (DecisionKind::Promise, _, Some(node)) => {
                let node = node.to_string();
                Some(Reason::WaitsForRelease { node }.to_string())
            }
            (DecisionKind::Bind | DecisionKind::Promise | DecisionKind::Evict, _, _) => None,
        }
    }
}

/// Why it was fair to evict a pod.
pub(crate) fn fairness(reason: &EvictionReason) -> Option<Fairness> {
    match reason {
        EvictionReason::For { fairness, .. } => fairness.as_deref().map(Fairness::from),
        EvictionReason::StaleGang | EvictionReason::LeavingNode | EvictionReason::Background { .. } => None,
    }
}

impl GangNames {
    fn workload(&self) -> String {
        format!("{} {}", self.workload_kind, self.workload_name)
    }

    /// As [`kai_api::PodGroup::workload`] writes it in conditions.
    fn name_in_reasons(&self) -> String {
        let namespace = &self.pod_group.namespace;
        format!("{} {namespace}/{}", self.workload_kind, self.workload_name)
    }
}

#[cfg(test)]
mod tests;
