//! Reads: one object, lists in pages, lists at an earlier revision.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::Store;
use crate::server::kinds::Kind;
use crate::server::object::{Key, Object};
use crate::server::selector::Selector;
use crate::server::status_error::StatusError;

/// The continue token of a list: where the next page begins.
#[derive(Debug, Clone, PartialEq)]
pub struct ContinueToken {
    /// The revision of the whole list.
    pub revision: u64,
    /// The last object of the previous page.
    pub after: Key,
}

/// A list or a page of it.
#[derive(Debug, Clone)]
pub struct Page {
    /// The objects, by namespace and name.
    pub objects: Vec<Object>,
    /// The revision of the list.
    pub revision: u64,
    /// The token of the next page, if there is one.
    pub next: Option<ContinueToken>,
    /// The number of objects after this page.
    pub remaining: usize,
}

/// Options of a list.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListOptions {
    pub(crate) limit: Option<usize>,
    pub(crate) from: Option<ContinueToken>,
    /// The revision to read; the latest if `None`.
    pub(crate) exactly_at: Option<u64>,
}

impl Store {
    pub(crate) fn get(&self, kind: &Kind, key: &Key) -> Result<Object, StatusError> {
        let found = self.tables[kind.table].objects.get(key).cloned();
        found.ok_or_else(|| StatusError::not_found(kind.object_ref(&key.name)))
    }

    /// A list of a namespace, or of all namespaces if `namespace` is empty.
    pub(crate) fn list(&self, kind: &Kind, namespace: &str, selector: &Selector) -> Page {
        let objects = matching(&self.tables[kind.table].objects, namespace, None, selector)
            .cloned()
            .collect();
        Page {
            objects,
            revision: self.revision,
            next: None,
            remaining: 0,
        }
    }

    pub(crate) fn page(
        &self,
        kind: &Kind,
        namespace: &str,
        selector: &Selector,
        options: &ListOptions,
    ) -> Result<Page, StatusError> {
        let revision = options
            .from
            .as_ref()
            .map(|p| p.revision)
            .or(options.exactly_at)
            .unwrap_or(self.revision);
        if revision > self.revision {
            return Err(revision_too_large(revision, self.revision));
        }
        let table = &self.tables[kind.table];
        let earlier;
        let newest = table
            .history
            .back()
            .map_or(table.compacted_revision, |change| change.revision);
        let objects = if newest <= revision {
            &table.objects
        } else {
            earlier = self.objects_at_revision(kind.table, revision)?;
            &earlier
        };
        let after = options.from.as_ref().map(|p| &p.after);
        let mut found = matching(objects, namespace, after, selector);
        let limit = options.limit.unwrap_or(usize::MAX);
        let page: Vec<Object> = found.by_ref().take(limit).cloned().collect();
        let remaining = found.count();
        let last = page.last().map(|o| Key::of(o));
        let next = last
            .filter(|_| remaining > 0)
            .map(|after| ContinueToken { revision, after });
        Ok(Page {
            objects: page,
            revision,
            next,
            remaining,
        })
    }

    fn objects_at_revision(&self, table: usize, revision: u64) -> Result<BTreeMap<Key, Object>, StatusError> {
        let table = &self.tables[table];
        if revision < table.compacted_revision {
            return Err(StatusError::expired(format!(
                "The provided continue parameter is too old to display a consistent list result: revision {revision} \
                 has been compacted"
            )));
        }
        let mut objects = table.objects.clone();
        for change in table.history.iter().rev().take_while(|c| c.revision > revision) {
            let key = Key::of(&change.object);
            match &change.before {
                Some(before) => objects.insert(key, before.clone()),
                None => objects.remove(&key),
            };
        }
        Ok(objects)
    }
}

pub(crate) fn revision_too_large(asked: u64, current: u64) -> StatusError {
    let mut error = StatusError::of_code(504, format!("Too large resource version: {asked}, current: {current}"));
    *error.details = serde_json::json!({
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}], "retryAfterSeconds": 1
    });
    error
}

fn matching<'a>(
    objects: &'a BTreeMap<Key, Object>,
    namespace: &'a str,
    after: Option<&Key>,
    selector: &'a Selector,
) -> impl Iterator<Item = &'a Object> {
    let first = Key::new(namespace, "");
    let start = after.map_or(Bound::Included(first), |key| Bound::Excluded(key.clone()));
    objects
        .range((start, Bound::Unbounded))
        .take_while(move |(key, _)| namespace.is_empty() || key.namespace == namespace)
        .map(|(_, object)| object)
        .filter(move |object| selector.matches(object))
}
