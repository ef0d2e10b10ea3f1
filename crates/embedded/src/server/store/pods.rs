//! The pod subresources `binding` and `eviction`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{DeleteOptions, Deleted, Store, WriteOptions};
use crate::server::kinds::Kind;
use crate::server::object::{Key, Object, field_mut, map_mut, metadata_mut};
use crate::server::selector::Selector;
use crate::server::status_error::{Cause, ObjectRef, StatusError};

impl Store {
    /// Binds a pod to the node that a `Binding` names.
    pub(crate) fn bind(
        &mut self,
        namespace: &str,
        pod: &str,
        binding: &Value,
        dry_run: bool,
    ) -> Result<Object, StatusError> {
        let kind = self.kinds.get("", "v1", "pods").expect("a built-in kind");
        let old = self.get(&kind, &Key::new(namespace, pod))?;
        check_binding(&kind, &old, binding)?;
        let target = binding["target"]["name"].as_str().unwrap_or("");
        let new = with_binding(&old, binding, target, &self.clock.now_text());
        if dry_run {
            return Ok(Object::new(new));
        }
        let mut new = new;
        let options = WriteOptions {
            subresource: "binding",
            ..WriteOptions::by("kube-scheduler")
        };
        self.track_managed_fields(&kind, &old, &mut new, &options);
        Ok(self.put(&kind, new))
    }

    /// Deletes a pod unless a disruption budget forbids it.
    pub(crate) fn evict(
        &mut self,
        namespace: &str,
        pod: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, StatusError> {
        let kind = self.kinds.get("", "v1", "pods").expect("a built-in kind");
        let key = Key::new(namespace, pod);
        let old = self.get(&kind, &key)?;
        let over = matches!(
            old["status"]["phase"].as_str(),
            Some("Succeeded" | "Failed" | "Pending")
        );
        if !over && old["metadata"]["deletionTimestamp"].is_null() {
            self.check_budgets(namespace, &old)?;
        }
        if !options.dry_run {
            self.mark_disrupted(&kind, &old);
        }
        self.delete(&kind, &key, options)
    }

    /// Sets the condition `DisruptionTarget` of an evicted pod.
    fn mark_disrupted(&mut self, kind: &Arc<Kind>, pod: &Object) {
        let mut new = pod.to_value();
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting", "lastProbeTime": null, "lastTransitionTime": self.clock.now_text(),
        });
        set_condition(&mut new, condition);
        let options = WriteOptions::by("kube-apiserver").of_status();
        self.track_managed_fields(kind, pod, &mut new, &options);
        self.put(kind, new);
    }

    fn check_budgets(&self, namespace: &str, pod: &Object) -> Result<(), StatusError> {
        let kind = self
            .kinds
            .get("policy", "v1", "poddisruptionbudgets")
            .expect("a built-in kind");
        let covers = |budget: &&Object| {
            Selector::of_object(&budget["spec"]["selector"])
                .is_some_and(|s| s.matches_labels(&pod["metadata"]["labels"]))
        };
        let budgets = self.list(&kind, namespace, &Selector::everything()).objects;
        // A budget without a status allows no eviction, as in Kubernetes.
        let is_exhausted = |budget: &&Object| budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0) <= 0;
        let Some(budget) = budgets.iter().filter(covers).find(is_exhausted) else {
            return Ok(());
        };
        let cause = Cause {
            reason: "DisruptionBudget",
            message: format!(
                "The disruption budget {} does not allow evicting pods currently",
                budget.name()
            ),
            field: String::new(),
        };
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        Err(StatusError::too_many_requests(message, &[cause]))
    }
}

/// Checks the target, the preconditions and whether the pod can be bound.
fn check_binding(kind: &Kind, old: &Object, binding: &Value) -> Result<(), StatusError> {
    let pod = old.name();
    let object = ObjectRef {
        resource: "pods/binding",
        ..kind.object_ref(pod)
    };
    let of_kind = binding["target"]["kind"].as_str().unwrap_or("");
    if !matches!(of_kind, "" | "Node") {
        let cause = Cause::unsupported("target.kind", &json!(of_kind), &["Node", "<empty>"]);
        return Err(StatusError::without_reason(
            500,
            format!("{}: {}", cause.field, cause.message),
        ));
    }
    if binding["target"]["name"].as_str().unwrap_or("").is_empty() {
        return Err(StatusError::without_reason(500, "target.name: Required value"));
    }
    let uid = binding["metadata"]["uid"].as_str().unwrap_or("");
    if !uid.is_empty() && uid != old.uid() {
        let why = format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            old.uid()
        );
        return Err(StatusError::conflict(object, why));
    }
    let version = binding["metadata"]["resourceVersion"].as_str().unwrap_or("");
    if !version.is_empty() && version != old.revision().to_string() {
        let why = format!(
            "Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object meta: {}",
            old.revision()
        );
        return Err(StatusError::conflict(object, why));
    }
    if !old["metadata"]["deletionTimestamp"].is_null() {
        return Err(StatusError::conflict(
            object,
            format!("pod {pod} is being deleted, cannot be assigned to a host"),
        ));
    }
    let bound_to = old["spec"]["nodeName"].as_str().unwrap_or("");
    if !bound_to.is_empty() {
        return Err(StatusError::conflict(
            object,
            format!("pod {pod} is already assigned to node {bound_to:?}"),
        ));
    }
    if old["spec"]["schedulingGates"]
        .as_array()
        .is_some_and(|gates| !gates.is_empty())
    {
        return Err(StatusError::conflict(
            object,
            format!("pod {pod} has non-empty .spec.schedulingGates"),
        ));
    }
    Ok(())
}

fn with_binding(old: &Object, binding: &Value, target: &str, now: &str) -> Value {
    let mut new = old.to_value();
    new["spec"]["nodeName"] = json!(target);
    for field in ["annotations", "labels"] {
        for (name, value) in binding["metadata"][field].as_object().into_iter().flatten() {
            map_mut(metadata_mut(&mut new).entry(field).or_insert(json!({}))).insert(name.clone(), value.clone());
        }
    }
    let scheduled = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now
    });
    set_condition(&mut new, scheduled);
    new
}

/// Replaces the condition of the same type, or adds it.
fn set_condition(pod: &mut Value, condition: Value) {
    let conditions = field_mut(pod, "status").entry("conditions").or_insert(json!([]));
    let Some(list) = conditions.as_array_mut() else { return };
    match list.iter_mut().find(|c| c["type"] == condition["type"]) {
        Some(location) => *location = condition,
        None => list.push(condition),
    }
}
