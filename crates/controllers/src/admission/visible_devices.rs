//! The variable `NVIDIA_VISIBLE_DEVICES`: no container may choose its GPUs with it. A container that requests a GPU gets its devices
//! from the device plugin or the binder, so admission removes a value of the pod's own with a warning; the kubelet would prefer it. For
//! all other containers admission sets the variable to `void`, because an image may carry a value that shows every GPU of the node. A
//! pod that names GPUs there is denied, as by KAI.

use std::collections::BTreeSet;

use kai_api::{ContainerRef, keys};
use serde_json::{Value, json};

use super::pod_mutate::list_mut;
use super::review::FieldError;
use super::unstructured::{self, CONTAINER_LISTS};

const HIDDEN: &str = "void";
/// Values that show no GPU to the container.
const HIDING_VALUES: [&str; 2] = [HIDDEN, "none"];

/// Hides GPUs from all containers that request none and can still be changed. Returns warnings.
pub(crate) fn hide(pod: &mut Value, old: &Value, share: Option<ContainerRef>) -> Vec<String> {
    let old = StoredPod::of(old);
    let mut warnings = Vec::new();
    for at in containers(pod, share) {
        let Some(container) = pod.pointer_mut(&at.pointer()).filter(|container| container.is_object()) else {
            continue;
        };
        if old.has(at.list, container) {
            continue;
        }
        if requests_gpu(container) {
            warnings.extend(remove_own_value(container, at));
        } else {
            hide_from(container);
        }
    }
    warnings
}

/// Removes the container's own value.
fn remove_own_value(container: &mut Value, at: ContainerRef) -> Option<String> {
    let env = container.get_mut("env")?.as_array_mut()?;
    let before = env.len();
    env.retain(|variable| variable["name"] != keys::ENV_VISIBLE_DEVICES);
    (env.len() < before).then(|| {
        format!(
            "{}: removed; the container is given the GPUs that it requests, whatever it names",
            field(container, at)
        )
    })
}

/// An existing value stays: validation denies it with a better message than the API server has.
fn hide_from(container: &mut Value) {
    let env = list_mut(container, "env");
    let mut visible = env
        .iter_mut()
        .filter(|variable| variable["name"] == keys::ENV_VISIBLE_DEVICES);
    match visible.next() {
        Some(variable) if variable["valueFrom"].is_null() && unstructured::text(variable, "/value").is_none() => {
            variable["value"] = HIDDEN.into();
        }
        Some(_) => {}
        None => env.push(json!({"name": keys::ENV_VISIBLE_DEVICES, "value": HIDDEN})),
    }
}

fn field(container: &Value, at: ContainerRef) -> String {
    let name = unstructured::text(container, "/name").unwrap_or("(no name)");
    format!("spec.{}[{name}].env.{}", at.list, keys::ENV_VISIBLE_DEVICES)
}

/// The error if a container that requests no GPU names some.
pub(crate) fn validate(pod: &Value, share: Option<ContainerRef>) -> Option<FieldError> {
    containers(pod, share).into_iter().find_map(|at| {
        let container = pod
            .pointer(&at.pointer())
            .filter(|container| !requests_gpu(container))?;
        let variables = unstructured::list(container, "/env").iter();
        let mut visible = variables.filter(|variable| variable["name"] == keys::ENV_VISIBLE_DEVICES);
        let wrong = visible.find_map(|variable| match unstructured::text(variable, "/value") {
            Some(value) if HIDING_VALUES.contains(&value) && variable["valueFrom"].is_null() => None,
            None if variable["valueFrom"].is_null() => None,
            Some(value) => Some(format!("{value:?} shows GPUs to a container that asked for none")),
            None => Some("a reference may show GPUs to a container that asked for none".to_owned()),
        })?;
        Some(FieldError::invalid(
            field(container, at),
            format!("{wrong}; remove it, write void or none, or request a GPU"),
        ))
    })
}

/// All containers except the one that gets the GPU share.
fn containers(pod: &Value, share: Option<ContainerRef>) -> Vec<ContainerRef> {
    let of = |list: &'static str| {
        let count = unstructured::list(pod, &format!("/spec/{list}")).len();
        (0..count).map(move |index| ContainerRef { list, index })
    };
    let all = CONTAINER_LISTS.into_iter().flat_map(of);
    all.filter(|at| Some(*at) != share).collect()
}

/// The stored pod. Containers of a running pod can't be changed; only ephemeral ones are added later.
enum StoredPod<'o> {
    /// The pod is being created.
    None,
    /// The names of the pod's ephemeral containers.
    Pod(BTreeSet<Option<&'o str>>),
}

impl<'o> StoredPod<'o> {
    fn of(pod: &'o Value) -> StoredPod<'o> {
        if pod.is_null() {
            return StoredPod::None;
        }
        let ephemeral = unstructured::list(pod, "/spec/ephemeralContainers").iter();
        StoredPod::Pod(ephemeral.map(|container| container["name"].as_str()).collect())
    }

    fn has(&self, list: &str, container: &Value) -> bool {
        match self {
            StoredPod::None => false,
            StoredPod::Pod(ephemeral) => {
                list != "ephemeralContainers" || ephemeral.contains(&container.get("name").and_then(Value::as_str))
            }
        }
    }
}

/// Reads limits too: the API server copies limits of extended resources to requests after the mutating webhooks.
fn requests_gpu(container: &Value) -> bool {
    ["requests", "limits"].into_iter().any(|kind| {
        let resources = container
            .pointer(&format!("/resources/{kind}"))
            .and_then(Value::as_object);
        resources.into_iter().flatten().any(|(name, amount)| {
            let gpu = name == keys::RESOURCE_GPU || name.starts_with(keys::MIG_PREFIX);
            gpu && !is_zero(amount)
        })
    })
}

fn is_zero(amount: &Value) -> bool {
    match amount {
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.trim_end_matches(char::is_alphabetic).parse() == Ok(0.0),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(container: Value) -> Value {
        json!({"spec": {"containers": [container]}})
    }

    fn hidden(container: Value) -> Value {
        let mut pod = pod(container);
        hide(&mut pod, &Value::Null, None);
        pod["spec"]["containers"][0]["env"].clone()
    }

    #[test]
    fn gpus_are_hidden_from_who_asked_for_none() {
        assert_eq!(
            hidden(json!({})),
            json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}])
        );
        for harmless in [json!(""), json!("void"), json!("none")] {
            let env = hidden(json!({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": harmless}]}));
            assert_eq!(env[0]["value"], if harmless == "none" { "none" } else { "void" });
        }
        for amount in [json!("1"), json!(1), json!("2")] {
            assert_eq!(
                hidden(json!({"resources": {"limits": {"nvidia.com/gpu": amount}}})),
                Value::Null
            );
        }
        assert_eq!(
            hidden(json!({"resources": {"requests": {"nvidia.com/mig-1g.5gb": 1}}})),
            Value::Null
        );
        let own_value = json!({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "A", "value": "b"}],
            "resources": {"limits": {"nvidia.com/gpu": 1}}});
        let mut pod = pod(own_value);
        let warnings = hide(&mut pod, &Value::Null, None);
        assert_eq!(
            pod["spec"]["containers"][0]["env"],
            json!([{"name": "A", "value": "b"}])
        );
        assert_eq!(
            warnings,
            [
                "spec.containers[(no name)].env.NVIDIA_VISIBLE_DEVICES: removed; the container is given the GPUs that it requests, \
              whatever it names"
            ]
        );
        for amount in [json!("0"), json!(0), json!("0m"), json!(null)] {
            assert!(hidden(json!({"resources": {"limits": {"nvidia.com/gpu": amount}}})).is_array());
        }
    }

    #[test]
    fn only_new_ephemeral_containers_are_changed_later() {
        let old = json!({"spec": {"containers": [{"name": "a"}], "ephemeralContainers": [{"name": "e"}]}});
        let mut new = old.clone();
        new["spec"]["ephemeralContainers"] = json!([{"name": "e"}, {"name": "f"}]);
        hide(&mut new, &old, None);
        assert_eq!(new["spec"]["containers"][0]["env"], Value::Null);
        assert_eq!(new["spec"]["ephemeralContainers"][0]["env"], Value::Null);
        assert_eq!(new["spec"]["ephemeralContainers"][1]["env"][0]["value"], "void");
    }

    #[test]
    fn a_forbidden_value_is_kept_for_validation_to_refuse() {
        let mut named = pod(json!({"name": "c", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}));
        hide(&mut named, &Value::Null, None);
        let error = validate(&named, None).unwrap();
        assert_eq!(error.field, "spec.containers[c].env.NVIDIA_VISIBLE_DEVICES");
        assert_eq!(
            error.text,
            "\"all\" shows GPUs to a container that asked for none; remove it, write void or none, or request a GPU"
        );
    }

    #[test]
    fn names_of_gpus_are_refused() {
        let refused = |env: Value| validate(&pod(json!({"name": "c", "env": env})), None).is_some();
        assert!(!refused(json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}])));
        assert!(!refused(json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}])));
        assert!(!refused(json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": ""}])));
        assert!(!refused(json!([{"name": "NVIDIA_VISIBLE_DEVICES"}])));
        assert!(!refused(json!([{"name": "OTHER", "value": "all"}])));
        assert!(refused(json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])));
        assert!(refused(json!([{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {}}])));
        // The kubelet takes the last of several.
        assert!(refused(
            json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}])
        ));
        let shared = ContainerRef {
            list: "containers",
            index: 0,
        };
        let pod = pod(json!({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {}}]}));
        assert_eq!(validate(&pod, Some(shared)), None);
        let ephemeral = json!({"spec": {"ephemeralContainers": [
            {"name": "debug", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}]}});
        assert_eq!(
            validate(&ephemeral, None).unwrap().field,
            "spec.ephemeralContainers[debug].env.NVIDIA_VISIBLE_DEVICES"
        );
    }
}
