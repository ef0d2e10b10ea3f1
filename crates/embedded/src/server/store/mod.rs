//! The store, in place of etcd: all objects, the recent changes of each resource, and the revision counter. Synchronous and without
//! calls to others, so that callers hold the lock for microseconds. The store knows no HTTP, users or webhooks.
//!
//! `read` and `watch` read, `write` creates and updates, `delete` and `garbage_collection` remove, `pods` has binding and eviction.

mod body;
mod delete;
mod garbage_collection;
mod pods;
mod read;
mod watch;
mod write;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use kai_cluster::Generation;
use serde_json::{Value, json};

pub(crate) use body::{decode_error, patch_error};
pub(crate) use delete::Deleted;
pub use delete::{DeleteOptions, Propagation};
pub use read::{ContinueToken, Page};
pub(crate) use read::{ListOptions, revision_too_large};
pub(crate) use watch::Cursor;
pub use watch::{EventType, WatchEvent};
pub(crate) use write::{ManagerOperation, Part, PlannedUpdate, WriteOptions};

use super::clock::Clock;
use super::kinds::{Kind, Kinds};
use super::object::{Key, Object, metadata_mut};
use super::random::Random;
use super::status_error::StatusError;

/// Namespaces of a new cluster.
const INITIAL_NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
/// Priority classes of a new cluster.
const SYSTEM_CLASSES: [(&str, i64); 2] = [
    ("system-cluster-critical", 2_000_000_000),
    ("system-node-critical", 2_000_001_000),
];

/// Whether this is a priority class of Kubernetes itself.
pub(crate) fn is_system_class(name: &str) -> bool {
    SYSTEM_CLASSES.iter().any(|(class, _)| *class == name)
}

/// All objects of the cluster.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) clock: Clock,
    pub(crate) kinds: Kinds,
    random: Random,
    tables: Vec<ResourceTable>,
    revision: u64,
    history_len_max: usize,
    locations: HashMap<String, ObjectLocation>,
    dependents: HashMap<String, BTreeSet<ObjectLocation>>,
    /// Garbage collection that is still to do; empty between calls.
    follow_ups: VecDeque<garbage_collection::FollowUp>,
    service_addresses: u32,
}

/// The objects of one resource.
#[derive(Debug)]
struct ResourceTable {
    objects: BTreeMap<Key, Object>,
    history: VecDeque<Arc<Change>>,
    /// The history has no changes up to this revision.
    compacted_revision: u64,
    /// Wakes watchers; raised with each change.
    head: Generation,
}

/// One change of an object.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) revision: u64,
    pub(crate) before: Option<Object>,
    /// The object after the change; for a removal the last state, with the revision of the removal.
    pub(crate) object: Object,
    pub(crate) removed: bool,
}

/// The table and key of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectLocation {
    pub(crate) table: usize,
    pub(crate) key: Key,
}

impl Store {
    pub(crate) fn new(clock: Clock, seed: u64, history_len_max: usize) -> Self {
        let kinds = Kinds::built_in();
        let tables = (0..kinds.tables()).map(|_| ResourceTable::new(0)).collect();
        let mut store = Self {
            clock,
            kinds,
            random: Random::seeded(seed),
            tables,
            revision: 0,
            history_len_max,
            locations: HashMap::new(),
            dependents: HashMap::new(),
            follow_ups: VecDeque::new(),
            service_addresses: 0,
        };
        store.create_initial_objects();
        store
    }

    /// The revision of the latest change.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    fn create_initial_objects(&mut self) {
        for name in INITIAL_NAMESPACES {
            self.create_initial(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
            self.create_initial(json!({
                "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}
            }));
        }
        for (name, value) in SYSTEM_CLASSES {
            self.create_initial(json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value
            }));
        }
    }

    fn create_initial(&mut self, object: Value) {
        let kind = self.kind_of(&object).expect("initial objects are of built-in kinds");
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("").to_owned();
        let options = WriteOptions::by("kube-apiserver");
        self.create(&kind, &namespace, object, &options)
            .expect("initial objects are valid and new");
    }

    /// A uid for a request.
    pub(crate) fn new_uid(&mut self) -> String {
        self.random.uid()
    }

    /// The kind that an object's `apiVersion` and `kind` name.
    pub(crate) fn kind_of(&self, object: &Value) -> Result<Arc<Kind>, StatusError> {
        let (version, kind) = (
            object["apiVersion"].as_str().unwrap_or(""),
            object["kind"].as_str().unwrap_or(""),
        );
        let no_match = || StatusError::bad_request(format!("no matches for kind {kind:?} in version {version:?}"));
        self.kinds.of_object(version, kind).ok_or_else(no_match)
    }

    /// A kind by the name of its resource: `pods`, `queues.scheduling.run.ai`.
    pub(crate) fn kind_named(&self, resource: &str) -> Result<Arc<Kind>, StatusError> {
        let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
        let unknown = || StatusError::of_code(404, format!("the server doesn't have a resource type {resource:?}"));
        self.kinds.preferred(group, plural).ok_or_else(unknown)
    }

    /// The kind of the stored form of a table's objects.
    fn kind_of_table(&self, table: usize) -> Option<Arc<Kind>> {
        let of_table = || self.kinds.iter().filter(|k| k.table == table);
        of_table()
            .find(|k| k.version == k.storage_version && k.group != "events.k8s.io")
            .cloned()
    }

    pub(crate) fn ensure_table(&mut self, table: usize) {
        while self.tables.len() <= table {
            self.tables.push(ResourceTable::new(self.revision));
        }
    }

    /// Stores an object under the next revision.
    fn put(&mut self, kind: &Kind, mut value: Value) -> Object {
        self.revision += 1;
        metadata_mut(&mut value).insert("resourceVersion".to_owned(), json!(self.revision.to_string()));
        let object = Object::new(value);
        let location = ObjectLocation {
            table: kind.table,
            key: Key::of(&object),
        };
        let before = self.tables[kind.table]
            .objects
            .insert(location.key.clone(), object.clone());
        self.index(before.as_ref(), Some(&object), &location);
        self.record(
            kind.table,
            Change {
                revision: self.revision,
                before,
                object: object.clone(),
                removed: false,
            },
        );
        object
    }

    /// Removes an object. `run_follow_ups` then handles its dependents.
    fn remove(&mut self, location: &ObjectLocation) -> Option<Object> {
        let before = self.tables[location.table].objects.remove(&location.key)?;
        self.revision += 1;
        let mut value = before.to_value();
        metadata_mut(&mut value).insert("resourceVersion".to_owned(), json!(self.revision.to_string()));
        let object = Object::new(value);
        self.index(Some(&before), None, location);
        self.follow_ups
            .push_back(garbage_collection::FollowUp::Removed(object.clone()));
        let change = Change {
            revision: self.revision,
            before: Some(before),
            object: object.clone(),
            removed: true,
        };
        self.record(location.table, change);
        Some(object)
    }

    fn record(&mut self, table: usize, change: Change) {
        let limit = self.history_len_max;
        let table = &mut self.tables[table];
        table.history.push_back(Arc::new(change));
        while table.history.len() > limit {
            if let Some(oldest) = table.history.pop_front() {
                table.compacted_revision = oldest.revision;
            }
        }
        table.head.increment();
    }

    fn index(&mut self, before: Option<&Object>, after: Option<&Object>, location: &ObjectLocation) {
        if let Some(before) = before {
            self.locations.remove(before.uid());
            for owner in owner_uids(before) {
                if let Some(locations) = self.dependents.get_mut(owner) {
                    locations.remove(location);
                    if locations.is_empty() {
                        self.dependents.remove(owner);
                    }
                }
            }
        }
        if let Some(after) = after {
            self.locations.insert(after.uid().to_owned(), location.clone());
            for owner in owner_uids(after) {
                self.dependents
                    .entry(owner.to_owned())
                    .or_default()
                    .insert(location.clone());
            }
        }
    }

    fn object_at(&self, location: &ObjectLocation) -> Option<&Object> {
        self.tables.get(location.table)?.objects.get(&location.key)
    }

    /// Drops all history up to now, as a compaction of etcd does.
    pub(crate) fn compact_history(&mut self) {
        for table in &mut self.tables {
            table.history.clear();
            table.compacted_revision = self.revision;
            // Wakes the watchers, which then find their revision compacted.
            table.head.increment();
        }
    }
}

impl ResourceTable {
    fn new(compacted_revision: u64) -> Self {
        Self {
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            compacted_revision,
            head: Generation::default(),
        }
    }
}

fn owner_uids(object: &Value) -> impl Iterator<Item = &str> {
    object["metadata"]["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|o| o["uid"].as_str())
}
