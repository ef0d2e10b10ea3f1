//! Direct access to the store, for kubelets, controllers and tests in this process: the same defaulting and validation, without HTTP,
//! faults, webhooks and policies. Callers name resources as for `kubectl`: `pods`, `queues.scheduling.run.ai`.

use serde_json::{Value, json};

use super::Server;
use super::kinds::Kind;
use super::object::{Key, Object, meta_text};
use super::patch::Patch;
use super::selector::Selector;
use super::status_error::StatusError;
use super::store::{Cursor, DeleteOptions, ManagerOperation, Page, WatchEvent, WriteOptions};
use std::collections::VecDeque;
use std::sync::Arc;

/// The manager in `managedFields` of handles without a name.
const MANAGER: &str = "sim";

/// Direct access to the store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StoreHandle {
    server: Server,
    manager: String,
}

impl StoreHandle {
    pub(super) fn new(server: Server) -> Self {
        Self {
            server,
            manager: MANAGER.to_owned(),
        }
    }

    /// The same handle, with this manager in `managedFields`.
    pub fn named(self, manager: &str) -> Self {
        Self {
            manager: manager.to_owned(),
            ..self
        }
    }

    /// One object.
    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Result<Object, StatusError> {
        let store = self.server.lock();
        let kind = store.kind_named(resource)?;
        store.get(&kind, &key(&kind, namespace, name))
    }

    /// The objects of a namespace, or of all namespaces if `namespace` is empty.
    pub fn list(&self, resource: &str, namespace: &str, selector: &Selector) -> Result<Page, StatusError> {
        let store = self.server.lock();
        let kind = store.kind_named(resource)?;
        Ok(store.list(&kind, namespace, selector))
    }

    /// A selector from texts as in `kubectl -l ... --field-selector ...`.
    pub fn selector(&self, resource: &str, labels: &str, fields: &str) -> Result<Selector, StatusError> {
        let kind = self.server.lock().kind_named(resource)?;
        Selector::parse(&kind, labels, fields)
    }

    /// Creates an object, in the namespace `default` if the object names none.
    pub fn create(&self, object: Value) -> Result<Object, StatusError> {
        let mut store = self.server.lock();
        let kind = store.kind_of(&object)?;
        let namespace = namespace_of(&kind, &object);
        store.create(&kind, &namespace, object, &self.write_options())
    }

    /// Replaces an object, without its status if the kind has a status subresource.
    pub fn update(&self, object: Value) -> Result<Object, StatusError> {
        self.write(object, &self.write_options())
    }

    /// Replaces an object's status.
    pub fn update_status(&self, object: Value) -> Result<Object, StatusError> {
        self.write(object, &self.write_options().of_status())
    }

    /// Creates an object, or replaces the existing one regardless of its revision.
    pub fn put(&self, mut object: Value) -> Result<Object, StatusError> {
        match self.create(object.clone()) {
            Err(error) if error.reason == "AlreadyExists" => {
                let kind = self.server.lock().kind_of(&object)?;
                let old = self.server.lock().get(
                    &kind,
                    &key(&kind, &namespace_of(&kind, &object), meta_text(&object, "name")),
                )?;
                object["metadata"]["resourceVersion"] = json!(old.revision().to_string());
                self.update(object)
            }
            other => other,
        }
    }

    /// Patches an object.
    pub fn patch(&self, resource: &str, namespace: &str, name: &str, patch: &Patch) -> Result<Object, StatusError> {
        self.patch_with(resource, namespace, name, patch, self.write_options())
    }

    /// Patches an object's status.
    pub fn patch_status(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        patch: &Patch,
    ) -> Result<Object, StatusError> {
        self.patch_with(resource, namespace, name, patch, self.write_options().of_status())
    }

    /// Deletes an object; returns its last state, or the terminating object if grace or finalizers keep it.
    pub fn delete(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Object, StatusError> {
        let mut store = self.server.lock();
        let kind = store.kind_named(resource)?;
        let deleted = store.delete(&kind, &key(&kind, namespace, name), options)?;
        Ok(deleted.object().clone())
    }

    /// Binds a pod to a node.
    pub fn bind(&self, namespace: &str, pod: &str, node: &str) -> Result<(), StatusError> {
        let binding = json!({"target": {"kind": "Node", "name": node}});
        self.server.lock().bind(namespace, pod, &binding, false).map(|_| ())
    }

    /// Watches a resource from a revision on, or from the latest one if `since` is `None`.
    pub fn watch(
        &self,
        resource: &str,
        namespace: &str,
        selector: Selector,
        since: Option<u64>,
    ) -> Result<Watch, StatusError> {
        let store = self.server.lock();
        let kind = store.kind_named(resource)?;
        let since = since.unwrap_or(store.revision());
        let cursor = store.cursor(&kind, namespace, selector, since);
        drop(store);
        Ok(Watch {
            server: self.server.clone(),
            cursor,
            ready: VecDeque::new(),
        })
    }

    /// The revision of the latest change.
    pub fn revision(&self) -> u64 {
        self.server.lock().revision()
    }

    fn write_options(&self) -> WriteOptions {
        WriteOptions::by(&self.manager)
    }

    fn write(&self, object: Value, options: &WriteOptions) -> Result<Object, StatusError> {
        let mut store = self.server.lock();
        let kind = store.kind_of(&object)?;
        let key = key(&kind, &namespace_of(&kind, &object), meta_text(&object, "name"));
        store.update(&kind, &key, object, options)
    }

    fn patch_with(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        patch: &Patch,
        options: WriteOptions,
    ) -> Result<Object, StatusError> {
        let mut store = self.server.lock();
        let kind = store.kind_named(resource)?;
        let key = key(&kind, namespace, name);
        let Patch::Apply { config, .. } = patch else {
            let planned = store.plan_patch(&kind, &key, patch, &options)?;
            return store.commit_update(&kind, planned, &options);
        };
        let options = WriteOptions {
            operation: ManagerOperation::Apply(self.manager.clone()),
            ..options
        };
        if store.get(&kind, &key).is_err() {
            let new = store.plan_apply_create(&kind, &key, config, &options)?;
            return store.commit_create(&kind, new, &options);
        }
        let planned = store.plan_patch(&kind, &key, patch, &options)?;
        store.commit_update(&kind, planned, &options)
    }
}

/// A running watch.
#[derive(Debug)]
pub struct Watch {
    server: Server,
    cursor: Cursor,
    ready: VecDeque<WatchEvent>,
}

impl Watch {
    /// Waits for the next event. An error means that the history no longer has the watch's revision: list and watch again.
    pub async fn next(&mut self) -> Result<WatchEvent, StatusError> {
        loop {
            // Read before the batch, so that a change in between wakes this task.
            let head = self.cursor.head.value();
            if let Some(event) = self.try_next()? {
                return Ok(event);
            }
            self.cursor.head.wait_above(head).await;
        }
    }

    /// The next event, if there is one already.
    pub fn try_next(&mut self) -> Result<Option<WatchEvent>, StatusError> {
        if self.ready.is_empty() {
            let batch = self.server.lock().batch(&self.cursor)?;
            self.cursor.seen = batch.seen;
            self.ready.extend(batch.events);
        }
        Ok(self.ready.pop_front())
    }
}

fn key(kind: &Arc<Kind>, namespace: &str, name: &str) -> Key {
    Key::new(if kind.namespaced() { namespace } else { "" }, name)
}

fn namespace_of(kind: &Kind, object: &Value) -> String {
    let own = meta_text(object, "namespace");
    match (kind.namespaced(), own) {
        (false, _) => String::new(),
        (true, "") => "default".to_owned(),
        (true, own) => own.to_owned(),
    }
}
