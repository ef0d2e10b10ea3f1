//! Creates and updates, in two steps: `plan_*` computes the new object, `commit_*` validates and stores it. Admission may wait for
//! webhooks, so it runs between the two steps and without the lock. `commit_*` rejects a plan made from an outdated object.

use std::sync::Arc;

use serde_json::{Value, json};

use super::body::{
    applied_config, check_body, check_size, check_typed, check_uid, decode_error, normalize, patch_error,
};
use super::delete::{finalizers, is_ready_for_removal};
use super::{ObjectLocation, Store};
use crate::server::kinds::Kind;
use crate::server::object::{Key, Object, map_mut, meta_text, metadata_mut};
use crate::server::patch::apply::{self, apply};
use crate::server::patch::shape::Shape;
use crate::server::patch::{Patch, patched};
use crate::server::rules;
use crate::server::status_error::{Cause, StatusError};
use crate::server::types::Decoded;

/// Attempts to generate a free name. There are 27^5 suffixes, so this many collisions in a row are an error.
const GENERATED_NAME_ATTEMPTS: usize = 8;

/// The part of an object that a write changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The object without its status, if the kind has a status subresource.
    Main,
    /// The status alone.
    Status,
}

/// The manager and operation of a write in `managedFields`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ManagerOperation {
    /// An update by this manager.
    Update(String),
    /// An apply by this manager. `patch::apply` has set `managedFields` already.
    Apply(String),
}

/// Options of a write.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WriteOptions {
    pub(crate) operation: ManagerOperation,
    pub(crate) part: Part,
    /// The subresource in `managedFields`.
    pub(crate) subresource: &'static str,
    pub(crate) dry_run: bool,
}

impl WriteOptions {
    pub(crate) fn by(manager: &str) -> Self {
        Self {
            operation: ManagerOperation::Update(manager.to_owned()),
            part: Part::Main,
            subresource: "",
            dry_run: false,
        }
    }

    pub(crate) fn of_status(self) -> Self {
        Self {
            part: Part::Status,
            subresource: "status",
            ..self
        }
    }

    fn manager(&self) -> &str {
        match &self.operation {
            ManagerOperation::Update(manager) | ManagerOperation::Apply(manager) => manager,
        }
    }
}

/// A planned update: the object before and after it.
#[derive(Debug, Clone)]
pub(crate) struct PlannedUpdate {
    pub(crate) old: Object,
    pub(crate) new: Value,
    /// Paths of patched fields that the kind does not have.
    pub(crate) unknown: Vec<String>,
}

impl Store {
    /// Plans and commits, without admission.
    pub(crate) fn create(
        &mut self,
        kind: &Arc<Kind>,
        namespace: &str,
        body: Value,
        options: &WriteOptions,
    ) -> Result<Object, StatusError> {
        let body = self.decode(kind, namespace, body)?.value;
        let new = self.plan_create(kind, namespace, body)?;
        self.commit_create(kind, new, options)
    }

    /// Plans and commits, without admission.
    pub(crate) fn update(
        &mut self,
        kind: &Arc<Kind>,
        key: &Key,
        body: Value,
        options: &WriteOptions,
    ) -> Result<Object, StatusError> {
        let body = self.decode(kind, &key.namespace, body)?.value;
        let planned = self.plan_update(kind, key, body, options.part)?;
        self.commit_update(kind, planned, options)
    }

    /// The body of a request as an object of this kind, in the stored form.
    pub(crate) fn decode(&self, kind: &Kind, namespace: &str, body: Value) -> Result<Decoded, StatusError> {
        rules::decode(kind, normalize(kind, namespace, body)?)
            .map_err(|problem| decode_error(&kind.version, &kind.kind, &problem))
    }

    /// The new object from a decoded body.
    pub(crate) fn plan_create(&self, kind: &Kind, namespace: &str, body: Value) -> Result<Value, StatusError> {
        let mut new = body;
        if kind.namespaced() {
            self.check_namespace(kind, &new, namespace)?;
        }
        let metadata = metadata_mut(&mut new);
        if metadata
            .get("resourceVersion")
            .is_some_and(|r| r.as_str().is_some_and(|r| !r.is_empty()))
        {
            return Err(StatusError::without_reason(
                500,
                "resourceVersion should not be set on objects to be created",
            ));
        }
        for field in [
            "uid",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
        ] {
            metadata.remove(field);
        }
        if kind.counts_generations() {
            metadata.remove("generation");
        }
        if kind.status {
            map_mut(&mut new).remove("status");
        }
        rules::default_object(kind, &mut new);
        rules::admit_create(self, kind, &mut new)?;
        Ok(new)
    }

    pub(crate) fn commit_create(
        &mut self,
        kind: &Arc<Kind>,
        mut new: Value,
        options: &WriteOptions,
    ) -> Result<Object, StatusError> {
        rules::default_object(kind, &mut new);
        self.assign_name(kind, &mut new)?;
        let key = Key::of(&new);
        rules::check(kind, None, &new, "")?;
        rules::validate_create(self, kind, &new)?;
        check_size(&new)?;
        if self.tables[kind.table].objects.contains_key(&key) {
            return Err(StatusError::already_exists(kind.object_ref(&key.name)));
        }
        let (uid, now) = (self.random.uid(), self.clock.now_text());
        let metadata = metadata_mut(&mut new);
        metadata.insert("uid".to_owned(), json!(uid));
        metadata.insert("creationTimestamp".to_owned(), json!(now));
        if kind.counts_generations() {
            metadata.insert("generation".to_owned(), json!(1));
        }
        rules::complete_new(self, kind, &mut new);
        self.track_managed_fields(kind, &json!({}), &mut new, options);
        if options.dry_run {
            return Ok(Object::new(new));
        }
        let object = self.put(kind, new);
        self.after_write(kind, &object);
        self.delete_if_orphaned(kind, &object);
        self.run_follow_ups();
        Ok(object)
    }

    /// The updated object from a decoded body.
    pub(crate) fn plan_update(
        &self,
        kind: &Kind,
        key: &Key,
        body: Value,
        part: Part,
    ) -> Result<PlannedUpdate, StatusError> {
        let old = self.get(kind, key)?;
        check_body(kind, &old, &body)?;
        let mut new = match part {
            Part::Main => with_old_status(kind, &old, body),
            Part::Status => with_new_status(kind, &old, &body),
        };
        keep_server_set_metadata(&old, &mut new);
        rules::default_object(kind, &mut new);
        let spec_changed = rules::spec_differs(kind, &old, &new);
        if spec_changed && let Some(generation) = old["metadata"]["generation"].as_i64() {
            metadata_mut(&mut new).insert("generation".to_owned(), json!(generation + 1));
        }
        Ok(PlannedUpdate {
            old,
            new,
            unknown: Vec::new(),
        })
    }

    /// The updated object from a patch. A missing object is an error even for apply; see `plan_apply_create`.
    pub(crate) fn plan_patch(
        &self,
        kind: &Kind,
        key: &Key,
        patch: &Patch,
        options: &WriteOptions,
    ) -> Result<PlannedUpdate, StatusError> {
        let old = self.get(kind, key)?;
        let shape = shape_of(kind);
        let body = match patch {
            Patch::Strategic(_) if kind.custom.is_some() => {
                return Err(StatusError::of_code(
                    415,
                    "the body of the request was in an unknown format - accepted media types include: \
                     application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
                ));
            }
            Patch::Apply { config, force } => {
                check_typed(kind, config)?;
                let config = applied_config(kind, key, config, options.part)?;
                let now = self.clock.now_text();
                let manager = field_manager(kind, options, &now);
                apply(&old, &config, *force, &manager, shape)?
            }
            Patch::Json(_) | Patch::Merge(_) | Patch::Strategic(_) => patched(&old, patch, shape)?,
        };
        let normalized = normalize(kind, &key.namespace, body);
        // A patch that changes the kind is an invalid patch, not a malformed request.
        let normalized = normalized.map_err(|error| patch_error(patch, &error.message))?;
        let decoded = rules::decode(kind, normalized).map_err(|problem| patch_error(patch, &problem))?;
        check_uid(kind, &old, &decoded.value)?;
        let planned = self.plan_update(kind, key, decoded.value, options.part)?;
        Ok(PlannedUpdate {
            unknown: decoded.unknown,
            ..planned
        })
    }

    /// The new object from an applied configuration.
    pub(crate) fn plan_apply_create(
        &self,
        kind: &Kind,
        key: &Key,
        config: &Value,
        options: &WriteOptions,
    ) -> Result<Value, StatusError> {
        check_typed(kind, config)?;
        let config = applied_config(kind, key, config, options.part)?;
        let now = self.clock.now_text();
        let manager = field_manager(kind, options, &now);
        let new = apply(&json!({}), &config, false, &manager, shape_of(kind))?;
        let decoded = rules::decode(kind, new).map_err(|problem| decode_error(&kind.version, &kind.kind, &problem))?;
        self.plan_create(kind, &key.namespace, decoded.value)
    }

    pub(crate) fn commit_update(
        &mut self,
        kind: &Arc<Kind>,
        planned: PlannedUpdate,
        options: &WriteOptions,
    ) -> Result<Object, StatusError> {
        let PlannedUpdate { old, mut new, .. } = planned;
        let key = Key::of(&old);
        if self.get(kind, &key)?.revision() != old.revision() {
            return Err(StatusError::outdated(kind.object_ref(&key.name)));
        }
        if options.part == Part::Main {
            check_finalizers(kind, &old, &new)?;
        }
        rules::check(kind, Some(&old), &new, options.subresource)?;
        check_size(&new)?;
        self.track_managed_fields(kind, &old, &mut new, options);
        if options.dry_run || new == *old {
            return Ok(Object::new(new));
        }
        if is_ready_for_removal(&new) && self.contents(kind, &key.name).is_empty() {
            let object = self.put(kind, new);
            self.remove(&ObjectLocation { table: kind.table, key });
            self.run_follow_ups();
            return Ok(object);
        }
        let object = self.put(kind, new);
        self.after_write(kind, &object);
        self.run_follow_ups();
        Ok(object)
    }

    fn after_write(&mut self, kind: &Kind, object: &Object) {
        if kind.is("apiextensions.k8s.io", "customresourcedefinitions") {
            for custom in rules::custom::kinds_of(object) {
                let custom = self.kinds.add(custom);
                self.ensure_table(custom.table);
            }
        }
    }

    /// The next cluster IP of a Service, in the default range of kubeadm.
    pub(crate) fn next_service_address(&mut self) -> String {
        self.service_addresses += 1;
        let n = self.service_addresses;
        format!("10.96.{}.{}", (n >> 8) & 0xff, n & 0xff)
    }

    /// The class of this name, or the default class if the name is empty.
    pub(crate) fn priority_class(&self, name: &str) -> Option<Object> {
        let kind = self.kinds.get("scheduling.k8s.io", "v1", "priorityclasses")?;
        let classes = &self.tables[kind.table].objects;
        if name.is_empty() {
            let defaults = classes.values().filter(|class| class["globalDefault"] == true);
            return defaults.min_by_key(|class| class["value"].as_i64()).cloned();
        }
        classes.get(&Key::new("", name)).cloned()
    }

    fn check_namespace(&self, kind: &Kind, new: &Value, namespace: &str) -> Result<(), StatusError> {
        let namespaces = self.kinds.get("", "v1", "namespaces").expect("a built-in kind");
        let found = self.get(&namespaces, &Key::new("", namespace))?;
        if found["metadata"]["deletionTimestamp"].is_null() {
            return Ok(());
        }
        let message = format!("unable to create new content in namespace {namespace} because it is being terminated");
        let cause = Cause {
            reason: "NamespaceTerminating",
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".to_owned(),
        };
        Err(StatusError::forbidden(kind.object_ref(meta_text(new, "name")), message).with_causes(&[cause]))
    }

    fn assign_name(&mut self, kind: &Kind, new: &mut Value) -> Result<(), StatusError> {
        let (name, prefix) = (
            meta_text(new, "name").to_owned(),
            meta_text(new, "generateName").to_owned(),
        );
        if name.is_empty() {
            if prefix.is_empty() {
                let cause = Cause::required("metadata.name", "name or generateName is required");
                return Err(StatusError::invalid(&kind.kind, &kind.group, "", &[cause]));
            }
            // Kubernetes shortens the prefix so that the name fits into a label.
            let prefix: String = prefix.chars().take(58).collect();
            let namespace = meta_text(new, "namespace").to_owned();
            let free = (0..GENERATED_NAME_ATTEMPTS)
                .map(|_| format!("{prefix}{}", self.random.name_suffix()))
                .find(|name| {
                    !self.tables[kind.table]
                        .objects
                        .contains_key(&Key::new(&*namespace, name))
                });
            let made = free.ok_or_else(|| StatusError::already_exists(kind.object_ref(&prefix)))?;
            metadata_mut(new).insert("name".to_owned(), json!(made));
        }
        rules::names::check(kind, meta_text(new, "name"))
    }

    pub(super) fn track_managed_fields(&self, kind: &Kind, old: &Value, new: &mut Value, options: &WriteOptions) {
        match &options.operation {
            ManagerOperation::Apply(_) => {}
            ManagerOperation::Update(_) => {
                let now = self.clock.now_text();
                apply::track_update(old, new, &field_manager(kind, options, &now), shape_of(kind));
            }
        }
    }
}

fn field_manager<'a>(kind: &Kind, options: &'a WriteOptions, now: &'a str) -> apply::FieldManager<'a> {
    let api_version = kind.stored_api_version();
    apply::FieldManager {
        name: options.manager(),
        api_version,
        subresource: options.subresource,
        now,
    }
}

/// The merge rules of a kind.
pub(crate) fn shape_of(kind: &Kind) -> Shape<'_> {
    match &kind.custom {
        None => Shape::BUILT_IN,
        Some(custom) => custom.schema.as_deref().map_or(Shape::Untyped, Shape::of_schema),
    }
}

fn with_old_status(kind: &Kind, old: &Object, body: Value) -> Value {
    let mut new = body;
    if kind.status {
        match old.get("status") {
            Some(status) => new["status"] = status.clone(),
            None => {
                map_mut(&mut new).remove("status");
            }
        }
    }
    new
}

fn with_new_status(kind: &Kind, old: &Object, body: &Value) -> Value {
    let mut new = old.to_value();
    match body.get("status") {
        Some(status) => new["status"] = status.clone(),
        None => {
            map_mut(&mut new).remove("status");
        }
    }
    // The status of pods and nodes may be written together with labels and annotations.
    if kind.group.is_empty() && matches!(kind.plural.as_str(), "pods" | "nodes") {
        for field in ["labels", "annotations"] {
            match body["metadata"].get(field) {
                Some(value) => metadata_mut(&mut new).insert(field.to_owned(), value.clone()),
                None => metadata_mut(&mut new).remove(field),
            };
        }
    }
    if let Some(managed_fields) = body["metadata"].get("managedFields") {
        metadata_mut(&mut new).insert("managedFields".to_owned(), managed_fields.clone());
    }
    new
}

/// Keeps the metadata that only the server sets.
fn keep_server_set_metadata(old: &Object, new: &mut Value) {
    let metadata = metadata_mut(new);
    for field in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
        "selfLink",
    ] {
        match old["metadata"].get(field) {
            Some(value) => metadata.insert(field.to_owned(), value.clone()),
            None => metadata.remove(field),
        };
    }
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        let is_empty = |v: &Value| v.is_null() || *v == json!({}) || *v == json!([]);
        if metadata.get(field).is_some_and(is_empty) {
            metadata.remove(field);
        }
    }
}

fn check_finalizers(kind: &Kind, old: &Object, new: &Value) -> Result<(), StatusError> {
    if old["metadata"]["deletionTimestamp"].is_null() {
        return Ok(());
    }
    let added = finalizers(new).iter().any(|f| !finalizers(old).contains(f));
    if !added {
        return Ok(());
    }
    let new: Vec<String> = finalizers(new)
        .iter()
        .filter(|f| !finalizers(old).contains(f))
        .map(Value::to_string)
        .collect();
    let why = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
        new.join(", ")
    );
    Err(StatusError::invalid(
        &kind.kind,
        &kind.group,
        old.name(),
        &[Cause::forbidden("metadata.finalizers", why)],
    ))
}
