//! Validation of the priority classes that pods and pod groups name. The rules are the scheduler's (`kai_api::PriorityClaim`);
//! admission applies them at creation and names the field.

use std::borrow::Cow;

use kai_api::{PriorityClaim, keys};
use serde_json::Value;

use super::queue_lister::QueueLister;
use super::review::{FieldError, Request};
use super::unstructured::{self, MetadataMap};

/// The error if the pod group may not have its priority in its queue. Applies to trusted users too: the pod grouper copies the class
/// that a tenant wrote.
pub(super) fn validate_pod_group(request: &Request, queues: &dyn QueueLister) -> Option<FieldError> {
    let named = |object| {
        (
            unstructured::text(object, "/spec/queue"),
            unstructured::text(object, "/spec/priorityClassName"),
        )
    };
    let (queue, class) = named(&request.object);
    if (queue, class) == named(&request.old_object) {
        return None;
    }
    let claim = PriorityClaim {
        namespace: &request.namespace,
        queue: queue.unwrap_or_default(),
        class,
    };
    let ceiling = |name: &str| queues.get(name).map(|queue| queue.priority_ceiling());
    let refusal = claim.refusal(&queues.priority_classes(), ceiling)?;
    Some(FieldError::forbidden("spec.priorityClassName", refusal.to_string()))
}

/// The error if the pod may not name its class. The pod's workload may name another class, so the queue's ceiling is not checked here.
pub(super) fn validate_pod(request: &Request) -> Option<FieldError> {
    let before = classes_of(&request.old_object);
    let mut named = classes_of(&request.object).into_iter();
    named.find_map(|named| {
        if before.contains(&named) {
            return None;
        }
        let (field, class) = named;
        let claim = PriorityClaim {
            namespace: &request.namespace,
            queue: "",
            class: Some(&class),
        };
        Some(FieldError::forbidden(field, claim.system_class()?.to_string()))
    })
}

/// The fields that name a class, with the class. The pod grouper reads the label first; the kubelet and other schedulers know the spec
/// alone.
fn classes_of(pod: &Value) -> Vec<(String, Cow<'_, str>)> {
    let label = unstructured::entry(pod, MetadataMap::Labels, keys::PRIORITY_CLASS_NAME);
    let label = label.map(|class| (format!("metadata.labels.{}", keys::PRIORITY_CLASS_NAME), class));
    let spec = unstructured::text(pod, "/spec/priorityClassName");
    let spec = spec.map(|class| ("spec.priorityClassName".to_owned(), Cow::Borrowed(class)));
    label.into_iter().chain(spec).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn queues() -> Vec<Arc<kai_api::Queue>> {
        let queue = |name: &str, parent: &str, max: &str| {
            let queue = json!({"metadata": {"name": name, "annotations": {"kai.scheduler/max-priority": max}},
                "spec": {"parentQueue": parent}});
            Arc::new(serde_json::from_value(queue).unwrap())
        };
        vec![queue("top", "", "75"), queue("leaf", "top", "1000")]
    }

    fn request(object: Value, old_object: Value) -> Request {
        Request {
            namespace: "a".into(),
            object,
            old_object,
            ..Request::default()
        }
    }

    fn group(queue: &str, class: &str) -> Value {
        json!({"spec": {"queue": queue, "priorityClassName": class}})
    }

    #[test]
    fn a_pod_group_names_no_system_class_and_none_above_the_ceiling_of_its_queues() {
        let refused = |new, old| validate_pod_group(&request(new, old), &queues()).map(|error| error.text);
        assert_eq!(refused(group("leaf", "train"), Value::Null), None);
        let text = refused(group("leaf", "build"), Value::Null).unwrap();
        assert!(text.contains("queue top allows 75 at most"), "{text}");
        let text = refused(group("none", "system-node-critical"), Value::Null).unwrap();
        assert!(text.contains("for the system's own namespaces"), "{text}");
        // An update is not denied for a class that was there before.
        assert_eq!(refused(group("leaf", "build"), group("leaf", "build")), None);
        assert!(refused(group("leaf", "build"), group("other", "build")).is_some());
        assert!(refused(group("leaf", "build"), group("leaf", "train")).is_some());
    }

    #[test]
    fn a_pod_names_no_system_class_by_label_or_spec() {
        let refused = |pod: Value| super::validate_pod(&request(pod, Value::Null)).map(|error| error.field);
        let in_spec = json!({"spec": {"priorityClassName": "system-cluster-critical"}});
        assert_eq!(refused(in_spec.clone()).as_deref(), Some("spec.priorityClassName"));
        let by_label = json!({"metadata": {"labels": {"priorityClassName": "system-node-critical"}}});
        assert_eq!(refused(by_label).as_deref(), Some("metadata.labels.priorityClassName"));
        let both = |label: &str, spec: &str| json!({"metadata": {"labels": {"priorityClassName": label}}, "spec": {"priorityClassName": spec}});
        for (label, spec, field) in [
            ("train", "system-node-critical", Some("spec.priorityClassName")),
            ("", "system-node-critical", Some("spec.priorityClassName")),
            (
                "system-node-critical",
                "high",
                Some("metadata.labels.priorityClassName"),
            ),
            ("train", "high", None),
        ] {
            assert_eq!(refused(both(label, spec)).as_deref(), field, "{label} {spec}");
        }
        assert_eq!(refused(json!({"spec": {"priorityClassName": "high"}})), None);
        assert_eq!(super::validate_pod(&request(in_spec.clone(), in_spec)), None);
    }
}
