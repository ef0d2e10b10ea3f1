//! Translates pod groups into engine events, and counts the pods of each gang by progress.
//!
//! The scheduler writes timestamps of a gang (started, evicted, stale) to annotations of the pod group. Until the watch shows them, older
//! annotations must not overwrite them in the engine: a gang could be evicted before its minimum runtime.

use std::sync::Arc;

use kai_api::{Object, ObjectKey, ObjectReference, PodGroup};
use kai_engine::model::{Event, GangKey, GangSpec, Millis};

use super::pods::PodProgress;
use super::{ClusterMirror, uid_of};

/// A pod group of this partition.
#[derive(Debug)]
pub(super) struct PodGroupEntry {
    pub(super) object: Arc<PodGroup>,
    unwritten: Timestamps,
    /// Whether the engine has the gang.
    applied: bool,
}

/// Timestamps that the annotations do not show yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Timestamps {
    last_start: Option<Millis>,
    last_eviction: Option<Millis>,
    /// `Some(None)`: the annotation is to be removed.
    stale_since: Option<Option<Millis>>,
}

/// The pods of a gang by progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MemberCounts {
    counts: [u32; PodProgress::COUNT],
}

impl MemberCounts {
    pub(super) fn add(&mut self, progress: PodProgress, change: i32) {
        let count = &mut self.counts[progress as usize];
        *count = count.saturating_add_signed(change);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| *count == 0)
    }

    fn count(&self, progress: PodProgress) -> u32 {
        self.counts[progress as usize]
    }
}

/// A timestamp that a decision of the engine sets on a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GangTimestamp {
    /// The gang started: before, none of its pods had a node.
    Started(Millis),
    /// Pods of the gang were evicted for another gang.
    Evicted(Millis),
    /// The gang runs below its minimum since this time; `None` = it has its minimum again.
    Stale(Option<Millis>),
}

impl ClusterMirror {
    /// The pod group was added or changed.
    pub fn apply_pod_group(&mut self, key: &ObjectKey, group: &Arc<PodGroup>) {
        if !self.partition.contains(group.metadata()) {
            self.remove_pod_group(key);
            self.foreign_pod_groups.insert(key.clone());
            return;
        }
        self.foreign_pod_groups.remove(key);
        let uid = uid_of(&**group);
        if self
            .pod_groups
            .get(key)
            .is_some_and(|known| uid_of(&*known.object) != uid)
        {
            self.remove_pod_group(key);
        }
        match self.pod_groups.get_mut(key) {
            Some(entry) => entry.object = Arc::clone(group),
            None => {
                let entry = PodGroupEntry {
                    object: Arc::clone(group),
                    unwritten: Timestamps::default(),
                    applied: false,
                };
                self.pod_groups.insert(key.clone(), entry);
            }
        }
        self.refresh_gang(key);
        self.outbox.changed_pod_groups.insert(key.clone());
    }

    /// The pod group was deleted.
    pub fn remove_pod_group(&mut self, key: &ObjectKey) {
        self.foreign_pod_groups.remove(key);
        if let Some(entry) = self.pod_groups.remove(key)
            && entry.applied
        {
            self.outbox.events.push(Event::GangGone(gang_key(key)));
        }
    }

    pub(super) fn refresh_gang(&mut self, key: &ObjectKey) {
        let Some(entry) = self.pod_groups.get_mut(key) else {
            return;
        };
        let object = Arc::clone(&entry.object);
        match object.read(&self.priority_classes, self.now) {
            Ok(read) => {
                let mut spec = read.value;
                entry.unwritten.overlay(&mut spec);
                self.queue_rules
                    .apply_to(key, &object, &self.priority_classes, &mut spec);
                entry.applied = true;
                self.outbox.events.push(Event::Gang(spec));
                for problem in read.problems {
                    self.report_problem(|| ObjectReference::of(&*object), uid_of(&*object), problem);
                }
            }
            Err(problem) => {
                if std::mem::take(&mut entry.applied) {
                    self.outbox.events.push(Event::GangGone(gang_key(key)));
                }
                self.report_problem(|| ObjectReference::of(&*object), uid_of(&*object), problem);
            }
        }
    }

    /// Remembers a timestamp until its annotation is seen. The engine has it already. Returns whether the annotation has to be written: the
    /// engine reports staleness in each cycle.
    pub fn record_timestamp(&mut self, key: &ObjectKey, timestamp: GangTimestamp) -> bool {
        let Some(entry) = self.pod_groups.get_mut(key) else {
            return false;
        };
        match timestamp {
            GangTimestamp::Started(at) => entry.unwritten.last_start = Some(at),
            GangTimestamp::Evicted(at) => entry.unwritten.last_eviction = Some(at),
            GangTimestamp::Stale(since) => {
                let written = entry.object.metadata().annotations.text(kai_api::keys::STALE_SINCE);
                let written = written.and_then(|text| kai_api::parse_time(text).ok());
                let known = entry.unwritten.stale_since.unwrap_or(written);
                if whole_seconds(known) == whole_seconds(since) {
                    return false;
                }
                entry.unwritten.stale_since = Some(since);
            }
        }
        true
    }

    /// The workload of a gang (such as `Job training`), for messages to users.
    pub fn workload(&self, gang: &GangKey) -> String {
        match self.pod_groups.get(&pod_group_key(gang)) {
            Some(entry) => entry.object.workload(),
            None => gang.to_string(),
        }
    }

    /// Whether this scheduler reports that the pod's gang is missing. It does not for pods and pod groups of other partitions.
    pub fn reports_missing_gang(&self, pod: &kai_api::Pod, gang: Option<&ObjectKey>) -> bool {
        let foreign = gang.is_some_and(|gang| self.foreign_pod_groups.contains(gang));
        !foreign && self.partition.contains(pod.metadata())
    }

    /// Whether a pod of the gang is bound or being bound, and not terminating.
    pub fn has_placed_pods(&self, gang: &ObjectKey) -> bool {
        let members = self.member_counts.get(gang);
        members.is_some_and(|members| members.count(PodProgress::Bound) + members.count(PodProgress::Binding) > 0)
    }

    /// Whether a pod of the gang is pending or being bound.
    pub fn has_unbound_pods(&self, gang: &ObjectKey) -> bool {
        let members = self.member_counts.get(gang);
        members.is_some_and(|members| members.count(PodProgress::Pending) + members.count(PodProgress::Binding) > 0)
    }
}

impl Timestamps {
    /// Sets unwritten timestamps in `spec` and forgets those that `spec` has already, or has newer.
    fn overlay(&mut self, spec: &mut GangSpec) {
        keep_newest(&mut self.last_start, &mut spec.last_start);
        keep_newest(&mut self.last_eviction, &mut spec.last_eviction);
        match self.stale_since {
            Some(since) if whole_seconds(since) == whole_seconds(spec.stale_since) => self.stale_since = None,
            Some(since) => spec.stale_since = since,
            None => {}
        }
    }
}

fn keep_newest(unwritten: &mut Option<Millis>, written: &mut Option<Millis>) {
    match (*unwritten, *written) {
        (Some(_), Some(_)) if whole_seconds(*written) >= whole_seconds(*unwritten) => *unwritten = None,
        (Some(ours), _) => *written = Some(ours),
        (None, _) => {}
    }
}

/// Annotations have whole seconds.
fn whole_seconds(time: Option<Millis>) -> Option<i64> {
    time.map(|time| time.0.div_euclid(1000))
}

/// The engine's key of a pod group.
pub(crate) fn gang_key(key: &ObjectKey) -> GangKey {
    GangKey {
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
    }
}

/// The pod group's key in the API.
pub fn pod_group_key(gang: &GangKey) -> ObjectKey {
    ObjectKey::new(&gang.namespace, &gang.name)
}
