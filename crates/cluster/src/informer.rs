//! An informer: one watch that several readers share. It holds the current state of the selected objects, and for each reader the set
//! of objects that changed since the reader last took its changes.
//!
//! A reader gets the current object per changed key, not a sequence of events: a slow reader costs one entry per object, and no reader
//! misses a change.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use futures_util::StreamExt;
use kai_api::{Object, ObjectKey};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::watch::WatchEvent;
use crate::{Client, Error, Generation, Selection};

/// The current state of the selected objects. Cheap to clone; the watch ends with the last clone.
#[derive(Clone, Debug)]
pub struct Informer<T> {
    shared: Arc<Shared<T>>,
}

#[derive(Debug)]
struct Shared<T> {
    /// A plain lock: held for map operations only, never across an await, and readers are few.
    state: Mutex<State<T>>,
    /// Above zero once the first list is complete.
    synced: Generation,
    /// Differences that all audits found.
    drift: std::sync::atomic::AtomicU64,
    task: Mutex<Option<AbortHandle>>,
}

#[derive(Debug)]
struct State<T> {
    objects: BTreeMap<ObjectKey, Arc<T>>,
    /// Terminal objects, for [`Informer::subscribe_with_terminal`]. Kubernetes deletes terminal pods beyond 12,500 by default.
    terminal: BTreeMap<ObjectKey, Arc<T>>,
    readers: Vec<Weak<Reader<T>>>,
}

/// The changes that one reader has not taken yet: the current object per key, `None` if it is deleted.
#[derive(Debug)]
struct Reader<T> {
    changed: Mutex<FxHashMap<ObjectKey, Option<Arc<T>>>>,
    wake: Arc<Notify>,
    /// Whether terminal objects count as existing.
    with_terminal: bool,
}

/// A reader's end of an informer.
#[derive(Debug)]
pub struct Subscription<T> {
    informer: Informer<T>,
    reader: Arc<Reader<T>>,
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

impl<T: Object> Informer<T> {
    /// Starts the watch. Must be called within a tokio runtime.
    pub fn start(client: &Client, selection: &Selection) -> Informer<T> {
        let informer = Informer::unconnected();
        let mut changes = client.changes::<T>(selection);
        // The task must not keep the informer alive, or the watch would never end.
        let shared = Arc::downgrade(&informer.shared);
        let task = tokio::spawn(async move {
            let mut listed = FxHashSet::default();
            while let Some(change) = changes.next().await {
                let Some(shared) = shared.upgrade() else { return };
                Informer { shared }.take(change, &mut listed);
            }
        });
        *informer.shared.task.lock() = Some(task.abort_handle());
        informer
    }

    /// An informer without a watch, for tests: filled with [`Informer::put`] and [`Informer::remove`].
    pub fn unconnected() -> Informer<T> {
        Informer {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    objects: BTreeMap::new(),
                    terminal: BTreeMap::new(),
                    readers: Vec::new(),
                }),
                synced: Generation::default(),
                drift: std::sync::atomic::AtomicU64::new(0),
                task: Mutex::new(None),
            }),
        }
    }

    /// An informer of a kind that may not be watched: without objects, and synced.
    pub fn empty() -> Informer<T> {
        let informer = Informer::unconnected();
        informer.shared.synced.increment();
        informer
    }

    /// Waits until the first list is complete.
    pub async fn synced(&self) {
        self.shared.synced.wait_above(0).await;
    }

    /// Whether the first list is complete.
    pub fn is_synced(&self) -> bool {
        self.shared.synced.value() > 0
    }

    /// The object of this key.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<T>> {
        self.shared.state.lock().objects.get(key).cloned()
    }

    /// All objects, by key.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.shared.state.lock().objects.values().cloned().collect()
    }

    /// All terminal objects for which [`Object::matters_when_terminal`] is true.
    pub fn all_terminal(&self) -> Vec<Arc<T>> {
        self.shared.state.lock().terminal.values().cloned().collect()
    }

    /// The objects of one namespace, by name, in time proportional to the namespace and not to the cluster.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<T>> {
        let state = self.shared.state.lock();
        let from = state.objects.range(ObjectKey::new(namespace, "")..);
        let within = from.take_while(|(key, _)| &*key.namespace == namespace);
        within.map(|(_, object)| Arc::clone(object)).collect()
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.shared.state.lock().objects.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A new reader. Its first changes are all current objects. Each change notifies `wake`; several subscriptions may share it.
    pub fn subscribe(&self, wake: &Arc<Notify>) -> Subscription<T> {
        self.add_reader(wake, false)
    }

    /// A new reader that also gets the terminal objects for which [`Object::matters_when_terminal`] is true.
    pub fn subscribe_with_terminal(&self, wake: &Arc<Notify>) -> Subscription<T> {
        self.add_reader(wake, true)
    }

    fn add_reader(&self, wake: &Arc<Notify>, with_terminal: bool) -> Subscription<T> {
        let mut state = self.shared.state.lock();
        let terminal = state.terminal.iter().filter(|_| with_terminal);
        let present = state.objects.iter().chain(terminal);
        let present = present.map(|(key, object)| (key.clone(), Some(Arc::clone(object))));
        let reader = Arc::new(Reader {
            changed: Mutex::new(present.collect()),
            wake: Arc::clone(wake),
            with_terminal,
        });
        state.readers.retain(|reader| reader.strong_count() > 0);
        state.readers.push(Arc::downgrade(&reader));
        drop(state);
        wake.notify_one();
        Subscription {
            informer: self.clone(),
            reader,
        }
    }

    /// Adds or replaces an object, as the watch does.
    pub fn put(&self, object: T) {
        self.set(ObjectKey::of(&object), Some(object));
        self.shared.synced.increment();
    }

    /// Removes an object, as the watch does.
    pub fn remove(&self, key: &ObjectKey) {
        self.set(key.clone(), None);
    }

    /// Compares the state with two fresh lists, `pause` apart, corrects objects that differ although they did not change in between,
    /// and returns their number. A difference means a lost watch event: the counter should stay at zero.
    pub async fn audit(
        &self,
        client: &Client,
        selection: &Selection,
        pause: std::time::Duration,
    ) -> Result<u64, Error> {
        let before = by_key(client.list(selection).await?);
        // The watch needs a moment to deliver the latest changes.
        tokio::time::sleep(pause).await;
        let after = by_key(client.list(selection).await?);
        let differences = self.correct_outdated(&before, &after) + self.remove_deleted(client, &before, &after).await?;
        let drift = &self.shared.drift;
        drift.fetch_add(differences, std::sync::atomic::Ordering::Relaxed);
        Ok(differences)
    }

    /// Corrects objects of both lists that are missing or outdated in the state, and returns their number.
    fn correct_outdated(&self, before: &BTreeMap<ObjectKey, T>, after: &BTreeMap<ObjectKey, T>) -> u64 {
        let version = |object: &T| object.metadata().resource_version.clone();
        let mut differences = 0;
        for (key, object) in after {
            // Only an object that is equal in both lists can be compared.
            let unchanged = before
                .get(key)
                .is_some_and(|earlier| version(earlier) == version(object));
            let kept = self.get(key);
            let same = match &kept {
                Some(kept) => version(kept) == version(object),
                None => object.is_terminal(),
            };
            if unchanged && !same {
                differences += 1;
                self.set(key.clone(), Some(object.clone()));
            }
        }
        differences
    }

    /// Removes objects of the state that are in neither list and do not exist, and returns their number.
    async fn remove_deleted(
        &self,
        client: &Client,
        before: &BTreeMap<ObjectKey, T>,
        after: &BTreeMap<ObjectKey, T>,
    ) -> Result<u64, Error> {
        let mut differences = 0;
        for kept in self.all() {
            let key = ObjectKey::of(&*kept);
            let is_current = || self.get(&key).is_some_and(|now| Arc::ptr_eq(&now, &kept));
            if after.contains_key(&key) || before.contains_key(&key) || !is_current() {
                continue;
            }
            // Either newer than the second list, or deleted long ago: a read decides.
            if client.get::<T>(&key.namespace, &key.name).await?.is_none() && is_current() {
                differences += 1;
                self.set(key, None);
            }
        }
        Ok(differences)
    }

    /// Differences that audits found so far.
    pub fn drift(&self) -> u64 {
        self.shared.drift.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn take(&self, change: WatchEvent<T>, listed: &mut FxHashSet<ObjectKey>) {
        match change {
            WatchEvent::ListStarted => listed.clear(),
            WatchEvent::Listed(object) => {
                let key = ObjectKey::of(&object);
                listed.insert(key.clone());
                self.set(key, Some(object));
            }
            WatchEvent::ListComplete => {
                let gone: Vec<ObjectKey> = {
                    let state = self.shared.state.lock();
                    let known = state.objects.keys().chain(state.terminal.keys());
                    known.filter(|key| !listed.contains(*key)).cloned().collect()
                };
                gone.into_iter().for_each(|key| self.set(key, None));
                *listed = FxHashSet::default();
                self.shared.synced.increment();
                // An empty first list causes no change, but a reader may wait for its completion.
                let state = self.shared.state.lock();
                state
                    .readers
                    .iter()
                    .filter_map(Weak::upgrade)
                    .for_each(|reader| reader.wake.notify_one());
            }
            WatchEvent::Applied(object) => self.set(ObjectKey::of(&object), Some(object)),
            WatchEvent::Deleted(object) => self.set(ObjectKey::of(&object), None),
        }
    }

    fn set(&self, key: ObjectKey, object: Option<T>) {
        let object = object.map(Arc::new);
        let (object, terminal) = match object {
            Some(object) if object.is_terminal() => {
                (None, Some(object).filter(|object| object.matters_when_terminal()))
            }
            object => (object, None),
        };
        let mut state = self.shared.state.lock();
        let changed = replace(&mut state.objects, &key, object.as_ref());
        let terminal_changed = replace(&mut state.terminal, &key, terminal.as_ref());
        for reader in state.readers.iter().filter_map(Weak::upgrade) {
            let object = match reader.with_terminal {
                true if changed || terminal_changed => object.as_ref().or(terminal.as_ref()),
                false if changed => object.as_ref(),
                true | false => continue,
            };
            reader.changed.lock().insert(key.clone(), object.cloned());
            reader.wake.notify_one();
        }
    }
}

/// Adds, replaces or removes an object, and returns whether that changed the map. A new list repeats known versions; then the known object
/// stays, since readers may share it.
fn replace<T: Object>(objects: &mut BTreeMap<ObjectKey, Arc<T>>, key: &ObjectKey, object: Option<&Arc<T>>) -> bool {
    let Some(object) = object else {
        return objects.remove(key).is_some();
    };
    let is_known = objects.get(key).is_some_and(|known| same_version(&**known, &**object));
    if !is_known {
        objects.insert(key.clone(), Arc::clone(object));
    }
    !is_known
}

impl<T: Object> Subscription<T> {
    /// The keys that changed since the last call, sorted; each with its current object, or `None` if it is deleted.
    pub fn take(&self) -> Vec<(ObjectKey, Option<Arc<T>>)> {
        let changed = std::mem::take(&mut *self.reader.changed.lock());
        let mut changed: Vec<_> = changed.into_iter().collect();
        changed.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        changed
    }

    /// Waits for changes and takes them. Only for readers of one informer: other readers wait on their shared `wake`.
    pub async fn changed(&self) -> Vec<(ObjectKey, Option<Arc<T>>)> {
        loop {
            let changes = self.take();
            if !changes.is_empty() {
                return changes;
            }
            self.reader.wake.notified().await;
        }
    }

    /// The informer of this subscription.
    pub fn informer(&self) -> &Informer<T> {
        &self.informer
    }
}

fn by_key<T: Object>(objects: Vec<T>) -> BTreeMap<ObjectKey, T> {
    let keyed = objects.into_iter().map(|object| (ObjectKey::of(&object), object));
    keyed.collect()
}

fn same_version<T: Object>(one: &T, other: &T) -> bool {
    let version = &one.metadata().resource_version;
    version.is_some() && *version == other.metadata().resource_version
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str, version: &str) -> kai_api::Queue {
        let text = format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":"{version}"}}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    fn taken(subscription: &Subscription<kai_api::Queue>) -> Vec<(String, bool)> {
        let changes = subscription.take().into_iter();
        changes
            .map(|(key, object)| (key.to_string(), object.is_some()))
            .collect()
    }

    #[test]
    fn a_reader_learns_the_present_then_each_changed_key_once() {
        let informer = Informer::unconnected();
        informer.put(queue("a", "1"));
        let reader = informer.subscribe(&Arc::default());
        assert_eq!(taken(&reader), [("a".to_owned(), true)]);
        assert_eq!(taken(&reader), []);
        informer.put(queue("b", "2"));
        informer.put(queue("b", "3"));
        informer.remove(&ObjectKey::new("", "a"));
        assert_eq!(taken(&reader), [("a".to_owned(), false), ("b".to_owned(), true)]);
        let known = informer.get(&ObjectKey::new("", "b"));
        informer.put(queue("b", "3"));
        assert_eq!(taken(&reader), [], "the same version again is no change");
        assert!(Arc::ptr_eq(
            &known.unwrap(),
            &informer.get(&ObjectKey::new("", "b")).unwrap()
        ));
    }

    #[test]
    fn a_succeeded_pod_of_a_gang_stays_for_readers_of_terminal_objects() {
        let pod = |phase: &str, version: u32| -> kai_api::Pod {
            let text = format!(
                r#"{{"metadata":{{"name":"p","namespace":"a","resourceVersion":"{version}","annotations":{{"pod-group-name":"g"}}}},
                    "status":{{"phase":"{phase}"}}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let informer = Informer::unconnected();
        let (plain, all) = (
            informer.subscribe(&Arc::default()),
            informer.subscribe_with_terminal(&Arc::default()),
        );
        let taken = |subscription: &Subscription<kai_api::Pod>| -> Vec<bool> {
            let changes = subscription.take().into_iter();
            changes.map(|(_, object)| object.is_some()).collect()
        };
        informer.put(pod("Running", 1));
        assert_eq!((taken(&plain), taken(&all)), (vec![true], vec![true]));
        informer.put(pod("Succeeded", 2));
        assert_eq!((taken(&plain), taken(&all)), (vec![false], vec![true]));
        informer.put(pod("Succeeded", 2));
        assert_eq!(
            (taken(&plain), taken(&all)),
            (vec![], vec![]),
            "the same version again is no change"
        );
        assert!(informer.is_empty());
        assert_eq!(taken(&informer.subscribe_with_terminal(&Arc::default())), [true]);
        assert_eq!(taken(&informer.subscribe(&Arc::default())), [false; 0]);
        informer.remove(&ObjectKey::new("a", "p"));
        assert_eq!((taken(&plain), taken(&all)), (vec![], vec![false]));
        informer.put(pod("Failed", 3));
        assert_eq!((taken(&plain), taken(&all)), (vec![], vec![]));
    }

    #[test]
    fn a_namespace_is_read_alone() {
        let informer = Informer::unconnected();
        for (namespace, name) in [("a", "z"), ("b", "x"), ("b", "y"), ("b-c", "x"), ("c", "x")] {
            let text = format!(r#"{{"metadata":{{"name":"{name}","namespace":"{namespace}"}}}}"#);
            informer.put(serde_json::from_str::<kai_api::PodGroup>(&text).unwrap());
        }
        let read = informer.in_namespace("b");
        let names: Vec<String> = read.iter().map(|group| ObjectKey::of(&**group).to_string()).collect();
        assert_eq!(names, ["b/x", "b/y"]);
    }

    #[test]
    fn a_new_list_replaces_what_it_does_not_mention() {
        let informer = Informer::unconnected();
        informer.put(queue("a", "1"));
        informer.put(queue("b", "1"));
        let reader = informer.subscribe(&Arc::default());
        reader.take();
        let mut listed = FxHashSet::default();
        for change in [
            WatchEvent::ListStarted,
            WatchEvent::Listed(queue("b", "1")),
            WatchEvent::Listed(queue("c", "5")),
            WatchEvent::ListComplete,
        ] {
            informer.take(change, &mut listed);
        }
        assert_eq!(taken(&reader), [("a".to_owned(), false), ("c".to_owned(), true)]);
    }
}
