//! Scaling pods: their names and manifests. Pure.

use kai_api::{ObjectKey, QuantityText, keys};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Settings;
use super::waiting::WaitingPod;

/// The bound of Kubernetes on names of pods, and on values of labels.
const NAME_MAX: usize = 253;
const LABEL_MAX: usize = 63;
/// Bytes of a digest that tell names apart.
const DIGEST_BYTES: usize = 5;
const NOBODY: u32 = 65534;

/// The names that the scaling pod of a pod may have: KAI's, and one that no other pod's scaling pod has.
pub(super) fn names(origin: &ObjectKey) -> Vec<String> {
    let plain = format!("{}-{}", origin.namespace, origin.name);
    let digest: String = Sha256::digest(format!("{}/{}", origin.namespace, origin.name))[..DIGEST_BYTES]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    // Names of objects are ASCII.
    let end = plain.len().min(NAME_MAX - digest.len() - 1);
    let distinct = format!("{}-{digest}", plain[..end].trim_end_matches(['-', '.']));
    let plain = Some(plain).filter(|plain| plain.len() <= NAME_MAX);
    plain.into_iter().chain([distinct]).collect()
}

/// The scaling pod for a waiting pod. `object` is the whole waiting pod, of which it has the constraints on nodes.
pub(super) fn scaling_pod(name: &str, origin: &WaitingPod, object: &Value, settings: &Settings) -> Value {
    let (namespace, pod) = (&*origin.key.namespace, &*origin.key.name);
    let gpus = origin.gpus.to_string();
    // No share device: nodes offer those only once their agent runs, so that an autoscaler finds no kind of node that has any.
    let mut requests = json!({ keys::RESOURCE_GPU: gpus });
    if origin.cpu_milli > 0 {
        requests[keys::RESOURCE_CPU] = QuantityText::of_milli(origin.cpu_milli.into()).as_str().into();
    }
    if origin.memory_bytes > 0 {
        requests[keys::RESOURCE_MEMORY] = origin.memory_bytes.to_string().into();
    }
    let mut spec = json!({
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 1,
        "serviceAccountName": settings.service_account,
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "securityContext": { "runAsNonRoot": true, "runAsUser": NOBODY, "seccompProfile": { "type": "RuntimeDefault" } },
        "containers": [{
            "name": keys::SCALING_POD,
            "image": settings.image,
            "imagePullPolicy": settings.pull_policy,
            // The container ends at once; the pod is deleted as soon as it has a node.
            "args": ["version"],
            "resources": { "requests": requests, "limits": { keys::RESOURCE_GPU: gpus } },
            "securityContext": { "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] } },
        }],
    });
    for field in ["nodeSelector", "tolerations", "affinity"] {
        if let Some(value) = object["spec"].get(field).filter(|value| !value.is_null()) {
            spec[field] = value.clone();
        }
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        name_namespace(&mut spec["affinity"][kind], namespace);
    }
    if spec["affinity"]
        .as_object()
        .is_some_and(|kinds| kinds.values().all(Value::is_null))
        || spec["affinity"].is_null()
    {
        spec.as_object_mut()
            .expect("it was made an object above")
            .remove("affinity");
    }
    let mut labels = json!({ keys::APP: keys::SCALING_POD });
    for (label, value) in [(keys::SCALING_FOR_POD, pod), (keys::SCALING_FOR_NAMESPACE, namespace)] {
        if value.len() <= LABEL_MAX {
            labels[label] = value.into();
        }
    }
    let annotations = json!({ keys::SCALING_FOR: format!("{namespace}/{pod}") });
    json!({ "metadata": { "name": name, "labels": labels, "annotations": annotations }, "spec": spec })
}

/// Terms without namespaces are about pods in the namespace of the waiting pod, not of the scaling pod.
fn name_namespace(affinity: &mut Value, namespace: &str) {
    let named = |term: &mut Value| {
        let is_empty = |field: &Value| field.as_array().is_none_or(Vec::is_empty);
        if is_empty(&term["namespaces"]) && term["namespaceSelector"].is_null() {
            term["namespaces"] = json!([namespace]);
        }
    };
    let Some(terms) = affinity.as_object_mut() else { return };
    let mut list = |field: &str, at: fn(&mut Value) -> &mut Value| {
        let terms = terms.get_mut(field).and_then(Value::as_array_mut);
        terms.into_iter().flatten().for_each(|term| named(at(term)));
    };
    list("requiredDuringSchedulingIgnoredDuringExecution", |term| term);
    list(
        "preferredDuringSchedulingIgnoredDuringExecution",
        |term| &mut term["podAffinityTerm"],
    );
}

#[cfg(test)]
mod tests {
    use kai_api::Pod;
    use kai_engine::model::{Constraints, Millis};

    use super::*;

    fn waiting(name: &str) -> WaitingPod {
        WaitingPod {
            key: ObjectKey::new("team", name),
            created: Millis(0),
            share_billionths: 500_000_000,
            gpus: 2,
            cpu_milli: 1500,
            memory_bytes: 1 << 30,
            constraints: Constraints::default(),
        }
    }

    #[test]
    fn the_documentation_shows_it() {
        let page = include_str!("../../../../docs/autoscaling.md");
        let (_, block) = page.split_once("```yaml\n").unwrap();
        let (block, _) = block.split_once("```").unwrap();
        let shown: Value = serde_saphyr::from_str(block).unwrap();
        let mut waiting = waiting("notebook");
        waiting.key = ObjectKey::new("team-a", "notebook");
        (waiting.gpus, waiting.cpu_milli, waiting.memory_bytes) = (1, 2000, 4 << 30);
        let object = json!({ "spec": {
            "nodeSelector": { "pool": "gpu" }, "tolerations": [{ "key": "nvidia.com/gpu", "operator": "Exists" }],
        } });
        assert_eq!(
            scaling_pod("team-a-notebook", &waiting, &object, &Settings::default()),
            shown
        );
    }

    #[test]
    fn it_asks_for_whole_gpus_on_the_nodes_of_its_pod() {
        let term = |rest: Value| {
            let mut term = json!({ "topologyKey": "zone" });
            json_patch::merge(&mut term, &rest);
            term
        };
        let node_affinity = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [] } });
        let object = json!({ "spec": {
            "schedulerName": "kai-scheduler", "priority": 9,
            "nodeSelector": { "pool": "gpu" }, "tolerations": [{ "operator": "Exists" }],
            "affinity": {
                "nodeAffinity": node_affinity,
                "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term(json!({})), term(json!({ "namespaces": ["x"] }))] },
                "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 1, "podAffinityTerm": term(json!({})) }] },
            },
            "containers": [{ "resources": { "limits": { "kai.scheduler/gpu-share": "1" } } }],
        } });
        let pod = scaling_pod("team-p", &waiting("p"), &object, &Settings::default());
        let spec = &pod["spec"];
        let resources = json!({ "requests": { "nvidia.com/gpu": "2", "cpu": "1500m", "memory": "1073741824" }, "limits": { "nvidia.com/gpu": "2" } });
        assert_eq!(spec["containers"][0]["resources"], resources);
        assert_eq!(spec["schedulerName"], Value::Null, "the default scheduler");
        assert_eq!(spec["priority"], Value::Null);
        assert_eq!(spec["nodeSelector"], object["spec"]["nodeSelector"]);
        assert_eq!(spec["tolerations"], object["spec"]["tolerations"]);
        assert_eq!(spec["affinity"]["nodeAffinity"], node_affinity);
        let terms = &spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(
            (&terms[0]["namespaces"], &terms[1]["namespaces"]),
            (&json!(["team"]), &json!(["x"]))
        );
        let weighted = &spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0];
        assert_eq!(weighted["podAffinityTerm"]["namespaces"], json!(["team"]));
        let plain = scaling_pod("team-p", &waiting("p"), &json!({ "spec": {} }), &Settings::default());
        assert_eq!(plain["spec"].get("affinity"), None);
    }

    #[test]
    fn the_pod_it_is_for_can_be_read_back_however_long_its_name() {
        for name in ["p", &"x".repeat(200), &"y".repeat(253)] {
            let waiting = waiting(name);
            for own in names(&waiting.key) {
                assert!(own.len() <= NAME_MAX, "{own}");
                let object = scaling_pod(&own, &waiting, &json!({ "spec": {} }), &Settings::default());
                let labels = object["metadata"]["labels"].as_object().unwrap();
                assert!(labels.values().all(|value| value.as_str().unwrap().len() <= LABEL_MAX));
                let pod: Pod = serde_json::from_value(object).unwrap();
                assert_eq!(pod.scaling_origin(), Some(waiting.key.clone()));
            }
        }
    }
}
