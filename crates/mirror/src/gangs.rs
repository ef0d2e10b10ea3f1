//! Pod groups on their way into the engine, and what is known of their pods.
//!
//! Times that the engine noted on a gang (started, evicted, stale) are written to the object as annotations. Until the watch shows
//! them, older annotations must not overwrite them: that would let a gang be evicted before its minimum runtime.

use std::sync::Arc;

use kai_api::{Object, ObjectKey, ObjectReference, PodGroup};
use kai_engine::model::{Event, GangKey, GangSpec, Millis};

use super::pods::Standing;
use super::{ClusterMirror, uid_of};

/// A pod group of this partition.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) object: Arc<PodGroup>,
    noted: Noted,
    /// Whether the engine has it.
    applied: bool,
}

/// Times of our own that are not in the object yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Noted {
    last_start: Option<Millis>,
    last_eviction: Option<Millis>,
    stale_since: Option<Option<Millis>>,
}

/// How many pods of a gang stand how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Members {
    counts: [u32; Standing::COUNT],
}

impl Members {
    pub(super) fn add(&mut self, standing: Standing, change: i32) {
        let count = &mut self.counts[standing as usize];
        *count = count.saturating_add_signed(change);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| *count == 0)
    }

    fn count(&self, standing: Standing) -> u32 {
        self.counts[standing as usize]
    }
}

/// A time that the engine noted on a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// It started from nothing.
    Started(Millis),
    /// Pods of it were evicted for others.
    Evicted(Millis),
    /// It runs below its minimum since then; `None` = it is whole again.
    Stale(Option<Millis>),
}

impl ClusterMirror {
    /// The pod group was added or changed.
    pub fn apply_group(&mut self, key: &ObjectKey, group: &Arc<PodGroup>) {
        if !self.partition.takes(group.metadata()) {
            self.remove_group(key);
            self.foreign_groups.insert(key.clone());
            return;
        }
        self.foreign_groups.remove(key);
        let uid = uid_of(&**group);
        if self.groups.get(key).is_some_and(|known| uid_of(&*known.object) != uid) {
            self.remove_group(key);
        }
        match self.groups.get_mut(key) {
            Some(entry) => entry.object = Arc::clone(group),
            None => {
                let entry = Entry {
                    object: Arc::clone(group),
                    noted: Noted::default(),
                    applied: false,
                };
                self.groups.insert(key.clone(), entry);
            }
        }
        self.refresh_gang(key);
        self.outbox.touched_gangs.insert(key.clone());
    }

    /// The pod group was deleted.
    pub fn remove_group(&mut self, key: &ObjectKey) {
        self.foreign_groups.remove(key);
        if let Some(entry) = self.groups.remove(key)
            && entry.applied
        {
            self.outbox.events.push(Event::GangGone(gang_key(key)));
        }
    }

    pub(super) fn refresh_gang(&mut self, key: &ObjectKey) {
        let Some(entry) = self.groups.get_mut(key) else { return };
        let object = Arc::clone(&entry.object);
        match object.read(&self.classes, self.now) {
            Ok(read) => {
                let mut spec = read.value;
                entry.noted.overlay(&mut spec);
                self.queue_rules.judge(key, &object, &self.classes, &mut spec);
                entry.applied = true;
                self.outbox.events.push(Event::Gang(spec));
                for problem in read.problems {
                    self.tell(|| ObjectReference::of(&*object), uid_of(&*object), problem);
                }
            }
            Err(problem) => {
                if std::mem::take(&mut entry.applied) {
                    self.outbox.events.push(Event::GangGone(gang_key(key)));
                }
                self.tell(|| ObjectReference::of(&*object), uid_of(&*object), problem);
            }
        }
    }

    /// Remembers a time that the engine noted; it knows already. Whether it is news: staleness is noted in each cycle.
    pub fn note(&mut self, key: &ObjectKey, mark: Mark) -> bool {
        let Some(entry) = self.groups.get_mut(key) else {
            return false;
        };
        match mark {
            Mark::Started(at) => entry.noted.last_start = Some(at),
            Mark::Evicted(at) => entry.noted.last_eviction = Some(at),
            Mark::Stale(since) => {
                let written = entry.object.metadata().annotations.text(kai_api::keys::STALE_SINCE);
                let written = written.and_then(|text| kai_api::parse_time(text).ok());
                let known = entry.noted.stale_since.unwrap_or(written);
                if whole_seconds(known) == whole_seconds(since) {
                    return false;
                }
                entry.noted.stale_since = Some(since);
            }
        }
        true
    }

    /// The workload of a gang, as its author calls it.
    pub fn workload(&self, gang: &GangKey) -> String {
        match self.groups.get(&group_key(gang)) {
            Some(entry) => entry.object.workload(),
            None => gang.to_string(),
        }
    }

    /// Whether it is for us to say that the pod's gang is missing: not if it is another partition's.
    pub fn answers_for(&self, pod: &kai_api::Pod, gang: Option<&ObjectKey>) -> bool {
        let foreign = gang.is_some_and(|gang| self.foreign_groups.contains(gang));
        !foreign && self.partition.takes(pod.metadata())
    }

    /// Whether a pod of the gang has a place and is not about to leave it.
    pub fn is_active(&self, gang: &ObjectKey) -> bool {
        let members = self.members.get(gang);
        members.is_some_and(|members| members.count(Standing::Active) + members.count(Standing::Starting) > 0)
    }

    /// Whether nothing of the gang waits or is on its way.
    pub fn is_settled(&self, gang: &ObjectKey) -> bool {
        let members = self.members.get(gang);
        members.is_none_or(|members| members.count(Standing::Waiting) + members.count(Standing::Starting) == 0)
    }
}

impl Noted {
    /// What we noted, unless the object has it or newer; then it is forgotten here.
    fn overlay(&mut self, spec: &mut GangSpec) {
        newest(&mut self.last_start, &mut spec.last_start);
        newest(&mut self.last_eviction, &mut spec.last_eviction);
        match self.stale_since {
            Some(noted) if whole_seconds(noted) == whole_seconds(spec.stale_since) => self.stale_since = None,
            Some(noted) => spec.stale_since = noted,
            None => {}
        }
    }
}

fn newest(noted: &mut Option<Millis>, written: &mut Option<Millis>) {
    match (*noted, *written) {
        (Some(_), Some(_)) if whole_seconds(*written) >= whole_seconds(*noted) => *noted = None,
        (Some(ours), _) => *written = Some(ours),
        (None, _) => {}
    }
}

/// Annotations have whole seconds.
fn whole_seconds(time: Option<Millis>) -> Option<i64> {
    time.map(|time| time.0.div_euclid(1000))
}

/// A gang's name in the engine.
pub(crate) fn gang_key(key: &ObjectKey) -> GangKey {
    GangKey {
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
    }
}

/// A gang's name in the API.
pub fn group_key(gang: &GangKey) -> ObjectKey {
    ObjectKey::new(&gang.namespace, &gang.name)
}
