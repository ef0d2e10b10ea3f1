//! Garbage collection: the removal of an object removes its dependents, owners in foreground deletion, and the terminating namespace
//! or CustomResourceDefinition that it was the last object of. Controllers do this later in a real cluster; here it is part of the
//! write, so that tests see one result.

use std::sync::Arc;

use serde_json::{Value, json};

use super::delete::{DeleteOptions, FOREGROUND, finalizers, is_ready_for_removal};
use super::{ObjectLocation, Store, owner_uids};
use crate::server::kinds::Kind;
use crate::server::object::{Object, metadata_mut};

/// Work that follows from a removal or deletion.
#[derive(Debug)]
pub(super) enum FollowUp {
    /// An object was removed: handle its dependents, owners, namespace and definition.
    Removed(Object),
    /// Delete the dependents of this uid.
    DeleteDependents(String),
    /// Delete the objects in a namespace or of a CustomResourceDefinition.
    DeleteContents { table: usize, name: String },
}

impl Store {
    /// Does all work that follows from the writes so far. Ends, because each step removes an object or marks it for deletion, and no
    /// object is marked twice.
    pub(super) fn run_follow_ups(&mut self) {
        while let Some(follow_up) = self.follow_ups.pop_front() {
            match follow_up {
                FollowUp::Removed(object) => self.after_removal(&object),
                FollowUp::DeleteDependents(uid) => {
                    self.delete_dependents(&uid);
                    self.finish_foreground_deletion(&uid);
                }
                FollowUp::DeleteContents { table, name } => self.delete_contents(table, &name),
            }
        }
    }

    pub(super) fn has_dependents(&self, uid: &str) -> bool {
        self.dependents.contains_key(uid)
    }

    /// Removes the owner reference from all dependents.
    pub(super) fn orphan_dependents(&mut self, uid: &str) {
        for location in self.dependents_of(uid) {
            self.remove_owner_reference(&location, uid);
        }
    }

    /// Deletes a new object whose owners do not exist any more.
    pub(super) fn delete_if_orphaned(&mut self, kind: &Arc<Kind>, object: &Object) {
        let mut owners = owner_uids(object).peekable();
        if owners.peek().is_some() && owners.all(|uid| !self.locations.contains_key(uid)) {
            self.delete_unchecked(kind, object, &DeleteOptions::default());
        }
    }

    /// The objects in a namespace or of a CustomResourceDefinition; empty for other kinds.
    pub(super) fn contents(&self, kind: &Kind, name: &str) -> Vec<ObjectLocation> {
        if kind.is("", "namespaces") {
            let of_table = |(table, t): (usize, &super::ResourceTable)| {
                let inside = t.objects.keys().filter(|key| key.namespace == name);
                inside
                    .map(move |key| ObjectLocation {
                        table,
                        key: key.clone(),
                    })
                    .collect::<Vec<_>>()
            };
            return self.tables.iter().enumerate().flat_map(of_table).collect();
        }
        if kind.is("apiextensions.k8s.io", "customresourcedefinitions") {
            let Some((plural, group)) = name.split_once('.') else {
                return Vec::new();
            };
            let Some(custom) = self.kinds.preferred(group, plural).filter(|k| k.custom.is_some()) else {
                return Vec::new();
            };
            let keys = self.tables[custom.table].objects.keys();
            return keys
                .map(|key| ObjectLocation {
                    table: custom.table,
                    key: key.clone(),
                })
                .collect();
        }
        Vec::new()
    }

    fn after_removal(&mut self, gone: &Object) {
        self.delete_dependents(gone.uid());
        for owner in owner_uids(gone) {
            self.finish_foreground_deletion(owner);
        }
        if !gone.namespace().is_empty() {
            self.remove_if_emptied("", "namespaces", gone.namespace());
        }
        let (group, _) = gone["apiVersion"]
            .as_str()
            .unwrap_or("")
            .split_once('/')
            .unwrap_or(("", ""));
        let custom = self.kind_of(gone).ok().filter(|k| k.custom.is_some());
        if let Some(kind) = custom {
            let name = format!("{}.{group}", kind.plural);
            self.remove_if_emptied("apiextensions.k8s.io", "customresourcedefinitions", &name);
        }
        if gone["kind"] == "CustomResourceDefinition" && group == "apiextensions.k8s.io" {
            let names = &gone["spec"]["names"];
            let group = gone["spec"]["group"].as_str().unwrap_or("");
            self.kinds.remove(group, names["plural"].as_str().unwrap_or(""));
        }
    }

    fn delete_dependents(&mut self, uid: &str) {
        for location in self.dependents_of(uid) {
            let Some(object) = self.object_at(&location).cloned() else {
                continue;
            };
            let others_live = owner_uids(&object).any(|other| other != uid && self.locations.contains_key(other));
            if others_live {
                self.remove_owner_reference(&location, uid);
            } else if let Some(kind) = self.kind_of_table(location.table)
                && object["metadata"]["deletionTimestamp"].is_null()
            {
                self.delete_unchecked(&kind, &object, &DeleteOptions::default());
            }
        }
    }

    fn delete_contents(&mut self, table: usize, name: &str) {
        let Some(kind) = self.kind_of_table(table) else { return };
        for location in self.contents(&kind, name) {
            let (Some(object), Some(kind)) = (self.object_at(&location).cloned(), self.kind_of_table(location.table))
            else {
                continue;
            };
            if object["metadata"]["deletionTimestamp"].is_null() {
                self.delete_unchecked(&kind, &object, &DeleteOptions::default());
            }
        }
    }

    /// Removes a terminating namespace or CustomResourceDefinition that has no more objects.
    fn remove_if_emptied(&mut self, group: &str, plural: &str, name: &str) {
        let Some(kind) = self.kinds.preferred(group, plural) else {
            return;
        };
        let location = ObjectLocation {
            table: kind.table,
            key: crate::server::object::Key::new("", name),
        };
        let finished = self
            .object_at(&location)
            .is_some_and(|object| is_ready_for_removal(object));
        if finished && self.contents(&kind, name).is_empty() {
            self.remove(&location);
        }
    }

    fn finish_foreground_deletion(&mut self, owner: &str) {
        let Some(location) = self.locations.get(owner).cloned() else {
            return;
        };
        let Some(object) = self.object_at(&location).cloned() else {
            return;
        };
        let waits = finalizers(&object).iter().any(|f| f == FOREGROUND);
        if !waits || self.dependents_of(owner).iter().any(|d| self.blocks(d, owner)) {
            return;
        }
        let mut new = object.to_value();
        if let Some(list) = metadata_mut(&mut new)
            .get_mut("finalizers")
            .and_then(Value::as_array_mut)
        {
            list.retain(|f| f != FOREGROUND);
        }
        if is_ready_for_removal(&new) {
            self.remove(&location);
        } else if let Some(kind) = self.kind_of_table(location.table) {
            self.put(&kind, new);
        }
    }

    fn blocks(&self, dependent: &ObjectLocation, owner: &str) -> bool {
        let Some(object) = self.object_at(dependent) else {
            return false;
        };
        let references = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        references
            .into_iter()
            .any(|r| r["uid"] == owner && r["blockOwnerDeletion"] == true)
    }

    fn remove_owner_reference(&mut self, location: &ObjectLocation, uid: &str) {
        let Some(kind) = self.kind_of_table(location.table) else {
            return;
        };
        let Some(mut new) = self.object_at(location).map(Object::to_value) else {
            return;
        };
        if let Some(list) = metadata_mut(&mut new)
            .get_mut("ownerReferences")
            .and_then(Value::as_array_mut)
        {
            list.retain(|r| r["uid"] != uid);
        }
        if new["metadata"]["ownerReferences"] == json!([]) {
            metadata_mut(&mut new).remove("ownerReferences");
        }
        self.put(&kind, new);
    }

    fn dependents_of(&self, uid: &str) -> Vec<ObjectLocation> {
        self.dependents.get(uid).into_iter().flatten().cloned().collect()
    }
}
