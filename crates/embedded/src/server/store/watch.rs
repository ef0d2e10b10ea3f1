//! Watches. A watcher is a cursor into the history of a table, so a slow watcher needs no memory. A cursor before the first change of
//! the history gets the error 410 Gone. Watchers pull batches; the store never pushes.

use std::sync::Arc;

use kai_cluster::Generation;
use serde_json::json;

use super::{Change, Store};
use crate::server::kinds::Kind;
use crate::server::object::{Object, metadata_mut};
use crate::server::selector::Selector;
use crate::server::status_error::StatusError;

/// Changes per batch. Bounds the time under the lock.
const BATCH_LEN_MAX: usize = 500;

/// The type of a watch event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventType {
    /// The object is new, or newly selected.
    Added,
    /// The object changed.
    Modified,
    /// The object is removed, or no longer selected.
    Deleted,
}

impl EventType {
    /// The type as in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// One event of a watch.
#[derive(Debug, Clone)]
pub struct WatchEvent {
    /// The type.
    pub event_type: EventType,
    /// The object after the change; for a deletion the last state.
    pub object: Object,
}

/// The position of a watcher in the history of a table.
#[derive(Debug)]
pub(crate) struct Cursor {
    pub(crate) table: usize,
    pub(crate) namespace: String,
    pub(crate) selector: Selector,
    pub(crate) seen: u64,
    pub(crate) head: Generation,
}

/// The next events of a watcher.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) events: Vec<WatchEvent>,
    /// The revision up to which the watcher has read after this batch.
    pub(crate) seen: u64,
}

impl Store {
    /// A watcher of all changes after a revision.
    pub(crate) fn cursor(&self, kind: &Kind, namespace: &str, selector: Selector, since: u64) -> Cursor {
        Cursor {
            table: kind.table,
            namespace: namespace.to_owned(),
            selector,
            seen: since,
            head: self.tables[kind.table].head.clone(),
        }
    }

    /// The changes after the cursor.
    pub(crate) fn batch(&self, cursor: &Cursor) -> Result<Batch, StatusError> {
        let table = &self.tables[cursor.table];
        if cursor.seen < table.compacted_revision {
            return Err(StatusError::expired(format!(
                "too old resource version: {} ({})",
                cursor.seen,
                table.compacted_revision + 1
            )));
        }
        let first = table.history.partition_point(|c| c.revision <= cursor.seen);
        let changes = table.history.range(first..).take(BATCH_LEN_MAX);
        let complete = table.history.len() - first <= BATCH_LEN_MAX;
        let seen = if complete {
            self.revision
        } else {
            changes.clone().next_back().map_or(self.revision, |c| c.revision)
        };
        Ok(Batch {
            events: changes.filter_map(|c| event_for(c, cursor)).collect(),
            seen,
        })
    }
}

fn event_for(change: &Arc<Change>, cursor: &Cursor) -> Option<WatchEvent> {
    let object = &change.object;
    if !cursor.namespace.is_empty() && object.namespace() != cursor.namespace {
        return None;
    }
    let selected = |o: &Object| cursor.selector.is_everything() || cursor.selector.matches(o);
    let before = change.before.as_ref().filter(|o| selected(o));
    let now = !change.removed && selected(object);
    let event = |event_type, object| Some(WatchEvent { event_type, object });
    match (before, now) {
        (None, false) => None,
        (None, true) => event(EventType::Added, object.clone()),
        (Some(_), true) => event(EventType::Modified, object.clone()),
        (Some(_), false) if change.removed => event(EventType::Deleted, object.clone()),
        // The object left the selection: the event has the last selected state, with the revision of the change.
        (Some(before), false) => {
            let mut value = before.to_value();
            metadata_mut(&mut value).insert("resourceVersion".to_owned(), json!(change.revision.to_string()));
            event(EventType::Deleted, Object::new(value))
        }
    }
}
