//! Every object of the cluster, its recent history, and the one counter of revisions. Synchronous: it neither waits nor
//! calls out, so one lock around it is held for microseconds. Never knows HTTP, users or webhooks.

mod body;
mod collect;
mod delete;
mod pods;
mod read;
mod watch;
mod write;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use kai_cluster::Generation;
use serde_json::{Value, json};

pub(crate) use body::{undecodable, unpatchable};
pub(crate) use delete::Deleted;
pub use delete::{DeleteOptions, Propagation};
pub use read::{Page, Position};
pub(crate) use read::{Paging, too_large};
pub(crate) use watch::Cursor;
pub use watch::{EventType, WatchEvent};
pub(crate) use write::{Author, Part, Planned, Writing};

use super::clock::Clock;
use super::kinds::{Kind, Kinds};
use super::object::{Key, Object, metadata_mut};
use super::random::Random;
use super::refusal::Refusal;

/// Namespaces that are there from the start.
const FIRST_NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
/// Priority classes that every cluster has.
const SYSTEM_CLASSES: [(&str, i64); 2] = [
    ("system-cluster-critical", 2_000_000_000),
    ("system-node-critical", 2_000_001_000),
];

/// Whether a priority class is one that every cluster has.
pub(crate) fn is_system_class(name: &str) -> bool {
    SYSTEM_CLASSES.iter().any(|(class, _)| *class == name)
}

/// All objects.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) clock: Clock,
    pub(crate) kinds: Kinds,
    random: Random,
    tables: Vec<Table>,
    revision: u64,
    history_len_max: usize,
    places: HashMap<String, Place>,
    dependents: HashMap<String, BTreeSet<Place>>,
    /// What follows from removals and is not done yet; empty between calls.
    chores: VecDeque<collect::Chore>,
    service_addresses: u32,
}

/// The objects of one resource.
#[derive(Debug)]
struct Table {
    objects: BTreeMap<Key, Object>,
    history: VecDeque<Arc<Change>>,
    /// Changes up to this revision are no longer in the history.
    forgotten: u64,
    /// Raised with each change.
    head: Generation,
}

/// One step of an object.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) revision: u64,
    pub(crate) before: Option<Object>,
    /// The object after the change; for a removal its last state, with the removal's revision.
    pub(crate) object: Object,
    pub(crate) removed: bool,
}

/// Where an object is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) table: usize,
    pub(crate) key: Key,
}

impl Store {
    pub(crate) fn new(clock: Clock, seed: u64, history_len_max: usize) -> Self {
        let kinds = Kinds::built_in();
        let tables = (0..kinds.tables()).map(|_| Table::new(0)).collect();
        let mut store = Self {
            clock,
            kinds,
            random: Random::seeded(seed),
            tables,
            revision: 0,
            history_len_max,
            places: HashMap::new(),
            dependents: HashMap::new(),
            chores: VecDeque::new(),
            service_addresses: 0,
        };
        store.furnish();
        store
    }

    /// The counter's value: the revision of the latest change.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    fn furnish(&mut self) {
        for name in FIRST_NAMESPACES {
            self.furnish_with(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
            self.furnish_with(json!({
                "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}
            }));
        }
        for (name, value) in SYSTEM_CLASSES {
            self.furnish_with(json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value
            }));
        }
    }

    fn furnish_with(&mut self, object: Value) {
        let kind = self.kind_of(&object).expect("furniture is of built-in kinds");
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("").to_owned();
        let writing = Writing::by("kube-apiserver");
        self.create(&kind, &namespace, object, &writing)
            .expect("furniture is valid and new");
    }

    /// A uid for something that is no object.
    pub(crate) fn new_uid(&mut self) -> String {
        self.random.uid()
    }

    /// The kind of an object by its own words.
    pub(crate) fn kind_of(&self, object: &Value) -> Result<Arc<Kind>, Refusal> {
        let (version, kind) = (
            object["apiVersion"].as_str().unwrap_or(""),
            object["kind"].as_str().unwrap_or(""),
        );
        let no_match = || Refusal::bad_request(format!("no matches for kind {kind:?} in version {version:?}"));
        self.kinds.of_object(version, kind).ok_or_else(no_match)
    }

    /// A kind by the name of its resource: `pods`, `queues.scheduling.run.ai`.
    pub(crate) fn kind_named(&self, resource: &str) -> Result<Arc<Kind>, Refusal> {
        let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
        let unknown = || Refusal::of_code(404, format!("the server doesn't have a resource type {resource:?}"));
        self.kinds.preferred(group, plural).ok_or_else(unknown)
    }

    /// The kind in whose form the objects of a table are stored.
    fn kind_of_table(&self, table: usize) -> Option<Arc<Kind>> {
        let of_table = || self.kinds.iter().filter(|k| k.table == table);
        of_table()
            .find(|k| k.version == k.storage_version && k.group != "events.k8s.io")
            .cloned()
    }

    pub(crate) fn table_mut(&mut self, table: usize) {
        while self.tables.len() <= table {
            self.tables.push(Table::new(self.revision));
        }
    }

    /// Puts an object in place under the next revision.
    fn put(&mut self, kind: &Kind, mut value: Value) -> Object {
        self.revision += 1;
        metadata_mut(&mut value).insert("resourceVersion".to_owned(), json!(self.revision.to_string()));
        let object = Object::new(value);
        let place = Place {
            table: kind.table,
            key: Key::of(&object),
        };
        let before = self.tables[kind.table]
            .objects
            .insert(place.key.clone(), object.clone());
        self.index(before.as_ref(), Some(&object), &place);
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

    /// Takes an object out. What depends on it is seen to by `settle`.
    fn remove(&mut self, place: &Place) -> Option<Object> {
        let before = self.tables[place.table].objects.remove(&place.key)?;
        self.revision += 1;
        let mut value = before.to_value();
        metadata_mut(&mut value).insert("resourceVersion".to_owned(), json!(self.revision.to_string()));
        let object = Object::new(value);
        self.index(Some(&before), None, place);
        self.chores.push_back(collect::Chore::Removed(object.clone()));
        let change = Change {
            revision: self.revision,
            before: Some(before),
            object: object.clone(),
            removed: true,
        };
        self.record(place.table, change);
        Some(object)
    }

    fn record(&mut self, table: usize, change: Change) {
        let limit = self.history_len_max;
        let table = &mut self.tables[table];
        table.history.push_back(Arc::new(change));
        while table.history.len() > limit {
            if let Some(oldest) = table.history.pop_front() {
                table.forgotten = oldest.revision;
            }
        }
        table.head.increment();
    }

    fn index(&mut self, before: Option<&Object>, after: Option<&Object>, place: &Place) {
        if let Some(before) = before {
            self.places.remove(before.uid());
            for owner in owner_uids(before) {
                if let Some(places) = self.dependents.get_mut(owner) {
                    places.remove(place);
                    if places.is_empty() {
                        self.dependents.remove(owner);
                    }
                }
            }
        }
        if let Some(after) = after {
            self.places.insert(after.uid().to_owned(), place.clone());
            for owner in owner_uids(after) {
                self.dependents
                    .entry(owner.to_owned())
                    .or_default()
                    .insert(place.clone());
            }
        }
    }

    fn object_at(&self, place: &Place) -> Option<&Object> {
        self.tables.get(place.table)?.objects.get(&place.key)
    }

    /// Forgets all history up to now, as a real server does when it compacts or restarts.
    pub(crate) fn forget_history(&mut self) {
        for table in &mut self.tables {
            table.history.clear();
            table.forgotten = self.revision;
            // Wakes the watchers, so that each finds out by itself.
            table.head.increment();
        }
    }
}

impl Table {
    fn new(forgotten: u64) -> Self {
        Self {
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            forgotten,
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
