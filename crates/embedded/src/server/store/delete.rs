//! Deletion: preconditions, grace period, finalizers, propagation. `garbage_collection` handles the other objects.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::garbage_collection::FollowUp;
use super::{ObjectLocation, Store};
use crate::server::kinds::Kind;
use crate::server::object::{Key, Object, metadata_mut};
use crate::server::status_error::{ObjectRef, StatusError};

pub(super) const FOREGROUND: &str = "foregroundDeletion";

/// The propagation policy: what happens to the dependents of a deleted object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Propagation {
    /// The dependents are deleted after the object.
    #[default]
    Background,
    /// The object stays until its dependents are gone.
    Foreground,
    /// The dependents stay and lose the owner reference.
    Orphan,
}

/// Options of a deletion.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeleteOptions {
    /// The grace period of a pod; `None` for the pod's own.
    pub grace_seconds: Option<i64>,
    /// Precondition: the uid.
    pub uid: Option<String>,
    /// Precondition: the resourceVersion.
    pub resource_version: Option<String>,
    /// The propagation policy.
    pub propagation: Propagation,
    /// Whether nothing is stored.
    pub dry_run: bool,
}

impl DeleteOptions {
    /// Options of a deletion without grace period.
    pub fn now() -> Self {
        Self {
            grace_seconds: Some(0),
            ..Self::default()
        }
    }
}

/// The result of a deletion.
#[derive(Debug, Clone)]
pub(crate) enum Deleted {
    /// The object was removed.
    Removed(Object),
    /// The object has a deletionTimestamp and stays until its grace period ends and its finalizers are gone.
    Terminating(Object),
}

impl Deleted {
    pub(crate) fn object(&self) -> &Object {
        match self {
            Self::Removed(object) | Self::Terminating(object) => object,
        }
    }
}

impl Store {
    pub(crate) fn delete(
        &mut self,
        kind: &Arc<Kind>,
        key: &Key,
        options: &DeleteOptions,
    ) -> Result<Deleted, StatusError> {
        let old = self.get(kind, key)?;
        check_preconditions(kind, &old, options)?;
        if options.dry_run {
            return Ok(Deleted::Removed(old));
        }
        let deleted = self.delete_unchecked(kind, &old, options);
        self.run_follow_ups();
        Ok(deleted)
    }

    /// Deletes each object as `delete` does.
    pub(crate) fn delete_all(&mut self, kind: &Arc<Kind>, objects: &[Object], options: &DeleteOptions) {
        for object in objects {
            // The object may be gone already as a dependent of an earlier one.
            let _ = self.delete(kind, &Key::of(object), options);
        }
    }

    pub(super) fn delete_unchecked(&mut self, kind: &Arc<Kind>, old: &Object, options: &DeleteOptions) -> Deleted {
        let location = ObjectLocation {
            table: kind.table,
            key: Key::of(old),
        };
        if options.propagation == Propagation::Orphan {
            self.orphan_dependents(old.uid());
        }
        let mut new = old.to_value();
        if options.propagation == Propagation::Foreground && self.has_dependents(old.uid()) {
            add_finalizer(&mut new, FOREGROUND);
            self.follow_ups
                .push_back(FollowUp::DeleteDependents(old.uid().to_owned()));
        }
        let enqueue_contents = self.enqueue_contents(kind, &location);
        let grace = grace_seconds(kind, old, options.grace_seconds);
        if grace == 0 && finalizers(&new).is_empty() && !enqueue_contents {
            let gone = self.remove(&location).unwrap_or_else(|| old.clone());
            return Deleted::Removed(self.as_deleted(kind, gone));
        }
        self.mark_for_deletion(&mut new, grace);
        if kind.is("", "namespaces") {
            new["status"]["phase"] = json!("Terminating");
        }
        let object = if new == **old { old.clone() } else { self.put(kind, new) };
        Deleted::Terminating(object)
    }

    /// The last state in the response to a deletion: a removed pod has a deletionTimestamp there, though no watch showed it.
    fn as_deleted(&self, kind: &Kind, gone: Object) -> Object {
        if !kind.is("", "pods") {
            return gone;
        }
        let mut last = gone.to_value();
        self.mark_for_deletion(&mut last, 0);
        Object::new(last)
    }

    /// Enqueues the deletion of the objects in a namespace or of a definition; whether there are any.
    fn enqueue_contents(&mut self, kind: &Kind, location: &ObjectLocation) -> bool {
        let contents = self.contents(kind, &location.key.name);
        if contents.is_empty() {
            return false;
        }
        self.follow_ups.push_back(FollowUp::DeleteContents {
            table: kind.table,
            name: location.key.name.clone(),
        });
        true
    }

    fn mark_for_deletion(&self, new: &mut Value, grace: i64) {
        let now = self.clock.later_text(Duration::from_secs(grace.unsigned_abs()));
        let metadata = metadata_mut(new);
        let marked = metadata.get("deletionTimestamp").is_some_and(|t| !t.is_null());
        let longer = metadata
            .get("deletionGracePeriodSeconds")
            .and_then(Value::as_i64)
            .unwrap_or(i64::MAX);
        if marked && longer <= grace {
            return;
        }
        metadata.insert("deletionTimestamp".to_owned(), json!(now));
        metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(grace));
        if let Some(generation) = metadata.get("generation").and_then(Value::as_i64).filter(|_| !marked) {
            metadata.insert("generation".to_owned(), json!(generation + 1));
        }
    }
}

fn check_preconditions(kind: &Kind, old: &Object, options: &DeleteOptions) -> Result<(), StatusError> {
    let conflict = |what: &str, asked: &str, is: &str| {
        let why = format!(
            "the {what} in the precondition ({asked}) does not match the {what} in record ({is}). The object might have \
             been deleted and then recreated"
        );
        let object = ObjectRef {
            group: "",
            resource: &kind.kind,
            name: old.name(),
        };
        Err(StatusError::conflict(object, why))
    };
    if let Some(uid) = options.uid.as_deref().filter(|uid| *uid != old.uid()) {
        return conflict("UID", uid, old.uid());
    }
    let revision = old.revision().to_string();
    if let Some(asked) = options.resource_version.as_deref().filter(|r| *r != revision) {
        return conflict("ResourceVersion", asked, &revision);
    }
    Ok(())
}

fn grace_seconds(kind: &Kind, old: &Value, asked: Option<i64>) -> i64 {
    if !kind.is("", "pods") {
        return 0;
    }
    let unbound = old["spec"]["nodeName"].as_str().unwrap_or("").is_empty();
    let over = matches!(old["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    if unbound || over {
        return 0;
    }
    let usual = old["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
    // A negative grace period means one second, as in Kubernetes.
    let grace = asked.unwrap_or(usual);
    if grace < 0 { 1 } else { grace }
}

pub(super) fn finalizers(object: &Value) -> &[Value] {
    object["metadata"]["finalizers"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
}

fn add_finalizer(object: &mut Value, finalizer: &str) {
    let list = metadata_mut(object).entry("finalizers").or_insert_with(|| json!([]));
    if let Some(list) = list.as_array_mut().filter(|list| !list.iter().any(|f| f == finalizer)) {
        list.push(json!(finalizer));
    }
}

/// Whether a terminating object has no grace period and no finalizers left.
pub(super) fn is_ready_for_removal(object: &Value) -> bool {
    let metadata = &object["metadata"];
    !metadata["deletionTimestamp"].is_null()
        && metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && finalizers(object).is_empty()
}
