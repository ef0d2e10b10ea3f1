//! Pods: defaulting, priority, QoS class, and the immutable fields. Pure, except for the lookup of a PriorityClass.

use serde_json::{Map, Value, json};

use super::pod_spec;
use crate::server::kinds::Kind;
use crate::server::object::{field_mut, items_mut, map_mut, meta_text};
use crate::server::status_error::{Cause, StatusError};
use crate::server::store::Store;

/// The default tolerationSeconds for nodes that are not ready or unreachable.
const TOLERATION_SECONDS: i64 = 300;

/// Sets the defaults of a pod.
pub(super) fn default_pod(pod: &mut Value) {
    let spec = &mut pod["spec"];
    default_spec(spec);
    map_mut(spec).entry("enableServiceLinks").or_insert(json!(true));
    for list in ["containers", "initContainers"] {
        for container in items_mut(spec, list) {
            request_limits(container);
        }
    }
    default_status(pod);
}

/// Sets missing requests to the limits.
fn request_limits(container: &mut Value) {
    let resources = field_mut(container, "resources");
    if let Some(Value::Object(limits)) = resources.get("limits").cloned() {
        let requests = map_mut(resources.entry("requests").or_insert(json!({})));
        for (name, limit) in limits {
            requests.entry(name).or_insert(limit);
        }
    }
}

/// Sets the defaults of the spec of a pod or pod template.
pub(super) fn default_spec(spec: &mut Value) {
    let spec = map_mut(spec);
    let mut default = |field: &str, value: Value| {
        spec.entry(field).or_insert(value);
    };
    default("restartPolicy", json!("Always"));
    default("terminationGracePeriodSeconds", json!(30));
    default("dnsPolicy", json!("ClusterFirst"));
    default("schedulerName", json!("default-scheduler"));
    default("securityContext", json!({}));
    for list in ["containers", "initContainers"] {
        if let Some(Value::Array(containers)) = spec.get_mut(list) {
            containers.iter_mut().for_each(default_container);
        }
    }
    if let Some(Value::Array(volumes)) = spec.get_mut("volumes") {
        volumes.iter_mut().for_each(default_volume);
    }
    if let Some(account) = spec.get("serviceAccountName").cloned() {
        spec.entry("serviceAccount").or_insert(account);
    }
}

fn default_container(container: &mut Value) {
    let fields = map_mut(container);
    let image = fields.get("image").and_then(Value::as_str).unwrap_or("");
    let last = image.rsplit('/').next().unwrap_or("");
    let latest = !last.contains('@') && (!last.contains(':') || last.ends_with(":latest"));
    let policy = if latest { "Always" } else { "IfNotPresent" };
    fields.entry("imagePullPolicy").or_insert(json!(policy));
    fields
        .entry("terminationMessagePath")
        .or_insert(json!("/dev/termination-log"));
    fields.entry("terminationMessagePolicy").or_insert(json!("File"));
    if let Some(Value::Array(ports)) = fields.get_mut("ports") {
        for port in ports {
            map_mut(port).entry("protocol").or_insert(json!("TCP"));
        }
    }
    fields.entry("resources").or_insert(json!({}));
    for variable in items_mut(container, "env") {
        if variable["valueFrom"]["fieldRef"].is_object() {
            default_field(&mut variable["valueFrom"]["fieldRef"], "apiVersion", json!("v1"));
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if container[probe].is_object() {
            default_probe(&mut container[probe]);
        }
    }
}

fn default_probe(probe: &mut Value) {
    for (field, seconds) in [
        ("failureThreshold", 3),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("timeoutSeconds", 1),
    ] {
        default_field(probe, field, json!(seconds));
    }
    if probe["httpGet"].is_object() {
        default_field(&mut probe["httpGet"], "path", json!("/"));
        default_field(&mut probe["httpGet"], "scheme", json!("HTTP"));
    }
}

fn default_volume(volume: &mut Value) {
    for kind in ["configMap", "secret", "projected", "downwardAPI"] {
        if volume[kind].is_object() {
            default_field(&mut volume[kind], "defaultMode", json!(0o644));
        }
    }
    if volume["hostPath"].is_object() {
        default_field(&mut volume["hostPath"], "type", json!(""));
    }
}

fn default_field(object: &mut Value, field: &str, value: Value) {
    map_mut(object).entry(field).or_insert(value);
}

fn default_status(pod: &mut Value) {
    let class = qos_class(&pod["spec"]);
    let gated = pod["spec"]["schedulingGates"]
        .as_array()
        .is_some_and(|gates| !gates.is_empty());
    let status = field_mut(pod, "status");
    status.entry("phase").or_insert(json!("Pending"));
    status.entry("qosClass").or_insert(json!(class));
    if gated && !status.contains_key("conditions") {
        let condition = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates", "lastProbeTime": null,
            "lastTransitionTime": null,
        }]);
        status.insert("conditions".to_owned(), condition);
    }
}

/// The QoS class, by which a kubelet orders evictions.
fn qos_class(spec: &Value) -> &'static str {
    let mut any = false;
    let mut guaranteed = true;
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array().into_iter().flatten() {
            let resources = &container["resources"];
            for name in ["cpu", "memory"] {
                let (request, limit) = (&resources["requests"][name], &resources["limits"][name]);
                any |= !request.is_null() || !limit.is_null();
                guaranteed &= !limit.is_null() && (request.is_null() || request == limit);
            }
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Sets the priority from the pod's PriorityClass.
pub(super) fn set_priority(store: &Store, kind: &Kind, pod: &mut Value) -> Result<(), StatusError> {
    let name = pod["spec"]["priorityClassName"].as_str().unwrap_or("").to_owned();
    let class = store.priority_class(&name);
    if class.is_none() && !name.is_empty() {
        let why = format!("no PriorityClass with name {name} was found");
        return Err(StatusError::forbidden(kind.object_ref(meta_text(pod, "name")), why));
    }
    let priority = class.as_ref().map_or(0, |c| c["value"].as_i64().unwrap_or(0));
    let spec = field_mut(pod, "spec");
    let asked = spec.get("priority").and_then(Value::as_i64);
    if let Some(asked) = asked.filter(|asked| *asked != priority) {
        let why = format!(
            "the integer value of priority ({asked}) must not be provided in pod spec; priority admission controller \
             computed {priority} from the given PriorityClass name"
        );
        return Err(StatusError::forbidden(kind.object_ref(meta_text(pod, "name")), why));
    }
    spec.insert("priority".to_owned(), json!(priority));
    let policy = class
        .as_ref()
        .and_then(|c| c["preemptionPolicy"].as_str())
        .unwrap_or("PreemptLowerPriority");
    spec.entry("preemptionPolicy").or_insert(json!(policy));
    if let Some(class) = class {
        spec.insert("priorityClassName".to_owned(), json!(class.name()));
    }
    spec.entry("serviceAccountName").or_insert(json!("default"));
    Ok(())
}

/// Sets the transition time of a new pod's conditions.
pub(super) fn set_condition_times(pod: &mut Value, now: &str) {
    for condition in items_mut(&mut pod["status"], "conditions") {
        condition["lastTransitionTime"] = json!(now);
    }
}

/// Adds the default tolerations of every pod.
pub(super) fn add_default_tolerations(spec: &mut Value) {
    let list = map_mut(spec).entry("tolerations").or_insert(json!([]));
    let Some(tolerations) = list.as_array_mut() else { return };
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covers = |t: &Value| {
            (t["key"] == key || t["key"].as_str().unwrap_or("").is_empty())
                && matches!(t["effect"].as_str(), None | Some("" | "NoExecute"))
        };
        if !tolerations.iter().any(covers) {
            tolerations.push(json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_SECONDS
            }));
        }
    }
}

/// Validates a pod, or an update of a pod.
pub(super) fn check(old: Option<&Value>, new: &Value) -> Vec<Cause> {
    let mut causes = pod_spec::check(&new["spec"], "spec");
    let gates = old.map_or_else(Vec::new, |old| pod_spec::check_new_gates(&old["spec"], &new["spec"]));
    if !gates.is_empty() {
        causes.extend(gates);
        return causes;
    }
    if let Some(old) = old
        && mutable_parts_removed(&old["spec"])
            != mutable_parts_removed(&without_allowed_changes(&old["spec"], &new["spec"]))
    {
        causes.push(Cause::forbidden(
            "spec",
            "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,\
             `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
             `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
        ));
    }
    causes
}

/// Validates an in-place resize: only CPU and memory of containers and of the pod change.
pub(super) fn check_resize(old: &Value, new: &Value) -> Vec<Cause> {
    let mut causes = pod_spec::check(&new["spec"], "spec");
    if sizes_removed(&old["spec"]) != sizes_removed(&new["spec"]) {
        causes.push(Cause::forbidden("spec", "only cpu and memory resources are mutable"));
    }
    causes
}

fn sizes_removed(spec: &Value) -> Value {
    fn remove(resources: &mut Value) {
        for list in ["requests", "limits"] {
            if let Some(amounts) = resources.get_mut(list).and_then(Value::as_object_mut) {
                amounts.remove("cpu");
                amounts.remove("memory");
            }
        }
    }
    let mut spec = spec.clone();
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        containers
            .into_iter()
            .flatten()
            .for_each(|container| remove(&mut container["resources"]));
    }
    if spec.get("resources").is_some() {
        remove(&mut spec["resources"]);
    }
    spec
}

/// The new spec with all allowed changes reverted.
fn without_allowed_changes(old: &Value, new: &Value) -> Value {
    let mut new = new.clone();
    let list = |spec: &Value, field: &str| spec[field].as_array().cloned().unwrap_or_default();
    let (had, has) = (list(old, "tolerations"), list(&new, "tolerations"));
    if had.iter().all(|t| has.contains(t)) {
        restore(&mut new, old, "tolerations");
    }
    let (had, has) = (list(old, "schedulingGates"), list(&new, "schedulingGates"));
    if has.iter().all(|g| had.contains(g)) {
        restore(&mut new, old, "schedulingGates");
    }
    // The node selector and affinity of a gated pod may become stricter.
    if !had.is_empty() {
        restore(&mut new, old, "nodeSelector");
        restore(&mut new, old, "affinity");
    }
    new
}

fn restore(new: &mut Value, old: &Value, field: &str) {
    match old.get(field) {
        Some(value) => new[field] = value.clone(),
        None => {
            map_mut(new).remove(field);
        }
    }
}

fn mutable_parts_removed(spec: &Value) -> Map<String, Value> {
    let mut spec = spec.as_object().cloned().unwrap_or_default();
    spec.remove("activeDeadlineSeconds");
    spec.remove("ephemeralContainers");
    spec.remove("serviceAccount");
    for list in ["containers", "initContainers"] {
        if let Some(Value::Array(containers)) = spec.get_mut(list) {
            for container in containers {
                let fields = map_mut(container);
                fields.remove("image");
                fields.remove("imagePullPolicy");
            }
        }
    }
    spec.retain(|_, value| !value.is_null() && *value != json!({}) && *value != json!([]));
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quality() {
        let spec = |requests: Value, limits: Value| json!({"containers": [{"resources": {"requests": requests, "limits": limits}}]});
        let full = json!({"cpu": "1", "memory": "1Gi"});
        assert_eq!(qos_class(&spec(json!({}), json!({}))), "BestEffort");
        assert_eq!(qos_class(&spec(full.clone(), full.clone())), "Guaranteed");
        assert_eq!(qos_class(&spec(json!({"cpu": "1"}), json!({}))), "Burstable");
        assert_eq!(qos_class(&spec(json!({"nvidia.com/gpu": 1}), json!({}))), "BestEffort");
    }

    #[test]
    fn limits_become_requests() {
        let mut spec =
            json!({"containers": [{"name": "a", "image": "x:1", "resources": {"limits": {"nvidia.com/gpu": 1}}}]});
        default_spec(&mut spec);
        assert!(
            spec["containers"][0]["resources"]["requests"].is_null(),
            "of a template"
        );
        let mut pod = json!({"spec": spec});
        default_pod(&mut pod);
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["resources"]["requests"]["nvidia.com/gpu"], 1);
        assert_eq!(container["imagePullPolicy"], "IfNotPresent");
    }

    #[test]
    fn a_resize_changes_cpu_and_memory_only() {
        let gpu = |count: &str| json!({"requests": {"cpu": "1", "nvidia.com/gpu": count}, "limits": {"nvidia.com/gpu": count}});
        let old = json!({"spec": {"containers": [{"name": "a", "image": "x", "resources": gpu("1")}]}});
        let causes = |edit: &dyn Fn(&mut Value)| {
            let mut new = old.clone();
            edit(&mut new["spec"]["containers"][0]);
            check_resize(&old, &new).len()
        };
        assert_eq!(
            causes(&|container| container["resources"]["requests"]["cpu"] = json!("2")),
            0
        );
        assert_eq!(causes(&|container| container["resources"] = gpu("2")), 1);
        assert_eq!(causes(&|container| container["image"] = json!("y")), 1);
    }

    #[test]
    fn what_may_change() {
        let old = json!({"spec": {"containers": [{"name": "a", "image": "x"}], "schedulingGates": [{"name": "g"}]}});
        let changed = |edit: fn(&mut Value)| {
            let mut new = old.clone();
            edit(&mut new["spec"]);
            check(Some(&old), &new).is_empty()
        };
        assert!(changed(|s| s["containers"][0]["image"] = json!("y")));
        assert!(changed(|s| s["tolerations"] = json!([{"key": "k"}])));
        assert!(changed(|s| s["schedulingGates"] = json!([])));
        assert!(changed(|s| s["activeDeadlineSeconds"] = json!(5)));
        assert!(!changed(|s| s["nodeName"] = json!("n")));
        assert!(!changed(|s| s["containers"][0]["command"] = json!(["x"])));
        assert!(!changed(
            |s| s["schedulingGates"] = json!([{"name": "g"}, {"name": "h"}])
        ));
    }
}
