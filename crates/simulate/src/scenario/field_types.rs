//! Checks objects as an API server does before it takes them: types of all fields, and the values that decide the number of pods.

use kai_embedded::server::{WrongType, wrong_type};
use serde_json::Value;

use super::parse::invalid_type;
use super::workloads;

/// The field and the problem of an object that no API server would take. Objects of unknown kinds are not checked.
pub(super) fn check(kind: &str, object: &Value) -> Result<(), (String, String)> {
    let Some(group) = group_of(kind) else { return Ok(()) };
    if let Some(WrongType { field, found, expected }) = wrong_type(group, kind, object) {
        return Err((field, invalid_type(&found, expected)));
    }
    match workloads::is_workload(kind) {
        true => check_workload(object),
        false => Ok(()),
    }
}

fn check_workload(object: &Value) -> Result<(), (String, String)> {
    let name = object.pointer("/metadata/name").and_then(Value::as_str);
    if name.is_none_or(str::is_empty) {
        let problem = "it is missing; every workload has one";
        return Err(("metadata.name".to_owned(), problem.to_owned()));
    }
    for field in ["replicas", "parallelism", "completions"] {
        let number = object.get("spec").and_then(|spec| spec.get(field)?.as_i64());
        if let Some(number) = number.filter(|number| *number < 0) {
            let problem = format!("{number} is negative; write a whole number of 0 or more");
            return Err((format!("spec.{field}"), problem));
        }
    }
    Ok(())
}

/// The API group of the kinds that take part in a run, directly or by their pods.
pub(super) fn group_of(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "Node" | "Pod" | "PersistentVolume" | "PersistentVolumeClaim" | "ConfigMap" => "",
        "PriorityClass" => "scheduling.k8s.io",
        "StorageClass" | "CSINode" | "CSIDriver" | "CSIStorageCapacity" => "storage.k8s.io",
        "Queue" | "PodGroup" | "BindRequest" => "scheduling.run.ai",
        "Topology" => "kai.scheduler",
        "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" => "apps",
        "Job" => "batch",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(kind: &str, object: Value) -> String {
        let (field, problem) = check(kind, &object).unwrap_err();
        format!("{field}: {problem}")
    }

    #[test]
    fn values_that_decide_the_number_of_pods_are_checked() {
        let named = |spec: Value| json!({ "metadata": { "name": "a" }, "spec": spec });
        assert_eq!(
            refused("Deployment", named(json!({ "replicas": -2 }))),
            "spec.replicas: -2 is negative; write a whole number of 0 or more"
        );
        assert_eq!(
            refused("Job", named(json!({ "parallelism": -2 }))),
            "spec.parallelism: -2 is negative; write a whole number of 0 or more"
        );
        assert_eq!(
            refused("Job", named(json!({ "parallelism": 2.5 }))),
            "spec.parallelism: invalid type: floating point `2.5`, expected a whole number from -2147483648 to 2147483647"
        );
        assert_eq!(
            refused("Deployment", json!({ "spec": { "replicas": 1 } })),
            "metadata.name: it is missing; every workload has one"
        );
        assert_eq!(check("Job", &named(json!({ "parallelism": 0 }))), Ok(()));
        assert_eq!(check("Widget", &json!({ "metadata": 1 })), Ok(()));
    }
}
