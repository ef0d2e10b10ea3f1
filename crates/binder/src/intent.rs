//! What a bind request wants of its pod, as both were just read. Pure.

use std::collections::BTreeSet;

use kai_api::{BindRequest, Pod, keys};
use kai_engine::model::PodPhase;

use crate::GroupKey;
use crate::books::is_about;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// The pod is on the node already.
    Bound,
    /// It must not be bound, for this reason. No further attempt makes sense.
    Void(String),
    /// The request makes no sense and is to be deleted.
    Corrupt,
    /// Bind it as it is.
    Plain,
    /// Bind it to parts of these groups' GPUs, in this order.
    Share(Vec<GroupKey>),
}

/// What the request wants. `pod` is `None` if there is none of that name.
pub(crate) fn intent(request: &BindRequest, pod: Option<&Pod>, scheduler_name: &str) -> Intent {
    let void = |text: &str| Intent::Void(text.to_owned());
    let node = request.selected_node();
    let shares = request.received_resource_type() == keys::RECEIVED_FRACTION;
    if node.is_empty() || (shares && request.gpu_groups().is_empty()) {
        return Intent::Corrupt;
    }
    let Some(pod) = pod.filter(|pod| is_about(request, pod)) else {
        return void("the pod is gone");
    };
    match pod.node_name() {
        Some(bound) if bound == node => return Intent::Bound,
        Some(bound) => return Intent::Void(format!("the pod is bound to node {bound} already")),
        None => {}
    }
    if pod.is_terminating() || matches!(pod.phase(), PodPhase::Succeeded | PodPhase::Failed) {
        return void("the pod has ended or is being deleted");
    }
    if pod.scheduler_name() != scheduler_name {
        return Intent::Void(format!("the pod asks for the scheduler {}", pod.scheduler_name()));
    }
    if !shares {
        return Intent::Plain;
    }
    let groups: Vec<GroupKey> = request
        .gpu_groups()
        .iter()
        .map(|group| GroupKey::new(node, group))
        .collect();
    if groups.iter().collect::<BTreeSet<_>>().len() < groups.len() {
        return void("the request names a GPU group twice");
    }
    Intent::Share(groups)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(request: Value, pod: Option<Value>, expect: &str) {
        let mut spec = json!({ "podName": "p", "selectedNode": "n" });
        spec.as_object_mut()
            .unwrap()
            .extend(request.as_object().unwrap().clone());
        let owners = json!([{ "kind": "Pod", "name": "p", "uid": "1" }]);
        let request = json!({ "metadata": { "name": "p", "ownerReferences": owners }, "spec": spec });
        let pod = pod.map(|change| {
            let mut pod =
                json!({ "metadata": { "name": "p", "uid": "1" }, "spec": { "schedulerName": "kai-scheduler" } });
            for (part, fields) in change.as_object().unwrap() {
                for (name, value) in fields.as_object().unwrap() {
                    pod[part][name] = value.clone();
                }
            }
            serde_json::from_value::<Pod>(pod).unwrap()
        });
        let found = intent(&serde_json::from_value(request).unwrap(), pod.as_ref(), "kai-scheduler");
        assert_eq!(format!("{found:?}"), expect);
    }

    #[test]
    fn intents() {
        let share = json!({ "receivedResourceType": "Fraction", "selectedGPUGroups": ["g"] });
        check(json!({}), Some(json!({})), "Plain");
        check(json!({ "selectedNode": "" }), Some(json!({})), "Corrupt");
        check(
            json!({ "receivedResourceType": "Fraction" }),
            Some(json!({})),
            "Corrupt",
        );
        check(
            share.clone(),
            Some(json!({})),
            r#"Share([GroupKey { node: "n", group: "g" }])"#,
        );
        check(
            json!({ "receivedResourceType": "Fraction", "selectedGPUGroups": ["g", "g"] }),
            Some(json!({})),
            r#"Void("the request names a GPU group twice")"#,
        );
        check(share.clone(), Some(json!({ "spec": { "nodeName": "n" } })), "Bound");
        check(
            share.clone(),
            Some(json!({ "spec": { "nodeName": "m" } })),
            r#"Void("the pod is bound to node m already")"#,
        );
        check(share.clone(), None, r#"Void("the pod is gone")"#);
        check(
            share.clone(),
            Some(json!({ "metadata": { "uid": "2" } })),
            r#"Void("the pod is gone")"#,
        );
        for ended in [
            json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
            json!({ "status": { "phase": "Failed" } }),
        ] {
            check(
                share.clone(),
                Some(ended),
                r#"Void("the pod has ended or is being deleted")"#,
            );
        }
        check(
            share,
            Some(json!({ "spec": { "schedulerName": "other" } })),
            r#"Void("the pod asks for the scheduler other")"#,
        );
    }
}
