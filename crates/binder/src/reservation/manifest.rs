//! The manifest of a reservation pod. Pure.
//!
//! On a node with our agent the pod only sleeps, without privileges, token or driver. On other nodes it finds its GPU by NVML; on a
//! Jetson it needs the driver's libraries and device nodes for that.

use kai_api::{ComputeMode, keys};
use serde_json::{Map, Value, json};

use crate::node::facts::NodeFacts;
use crate::{GpuGroupKey, Settings, reservation_name};

/// UID of the user nobody on most systems.
const NOBODY: u32 = 65534;
/// The volume with the pod's own annotation.
const INFO_VOLUME: &str = "reservation";
/// Grace period: the process needs none, but with zero the API server would delete the pod before the kubelet has freed the GPU.
const GRACE_SECONDS: u32 = 1;

/// Default resources of the container. Requests equal limits: the pod has the QoS class Guaranteed, which a node under pressure evicts
/// last.
#[derive(Clone, Copy, Debug)]
struct DefaultResources {
    cpu: &'static str,
    memory: &'static str,
}

/// For a container that only sleeps. The container runtime needs part of this at the start; with less CPU a start takes seconds.
const SLEEPING_DEFAULTS: DefaultResources = DefaultResources {
    cpu: "50m",
    memory: "64Mi",
};
/// For a container that asks NVML which GPU it has.
const NVML_DEFAULTS: DefaultResources = DefaultResources {
    cpu: "100m",
    memory: "256Mi",
};

/// The resources that a reservation pod requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodRequests {
    /// The GPU, and CPU and memory as configured.
    Full,
    /// The GPU only, on a node whose CPU or memory is fully requested.
    GpuOnly,
}

/// The pod that holds a GPU for the group.
pub(crate) fn reservation_pod(
    key: &GpuGroupKey,
    facts: &NodeFacts,
    requests: PodRequests,
    mode: ComputeMode,
    settings: &Settings,
) -> Value {
    let sleeps = facts.agent_annotates(settings);
    let tegra = !sleeps && facts.needs_tegra(settings);
    let mut pod = json!({
        "metadata": {
            "name": reservation_name(key),
            "labels": { keys::APP: settings.identity.reservation_pods.app_label, keys::GPU_GROUP: key.group },
            "annotations": { keys::KARPENTER_DO_NOT_DISRUPT: "true", keys::RESERVATION_COMPUTE_MODE: mode.name() },
        },
        "spec": {
            // The scheduler has chosen the node already.
            "nodeName": key.node,
            // The pod has to stay as long as any of its users, which may tolerate different taints.
            "tolerations": [{ "operator": "Exists" }],
            "serviceAccountName": settings.reservation_service_account,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "containers": [container(sleeps, tegra, requests, settings)],
        },
    });
    let spec = &mut pod["spec"];
    if facts.fake_operator {
        // The mark by which the admission policy lets fake-gpu-operator annotate the pod. The kubelet checks it against the node.
        spec["nodeSelector"] = json!({ keys::NODE_FAKE_GPU: "true" });
    }
    if !settings.reservation_priority_class.is_empty() {
        spec["priorityClassName"] = (&*settings.reservation_priority_class).into();
    }
    if sleeps {
        spec["automountServiceAccountToken"] = false.into();
        spec["enableServiceLinks"] = false.into();
        spec["volumes"] = json!([gpu_annotation_volume()]);
    } else if !settings.runtime_class.is_empty() {
        spec["runtimeClassName"] = (&*settings.runtime_class).into();
    }
    let nobody =
        || json!({ "runAsNonRoot": true, "runAsUser": NOBODY, "seccompProfile": { "type": "RuntimeDefault" } });
    if let Some(context) = settings.pod_security_context.clone().or_else(|| sleeps.then(nobody)) {
        spec["securityContext"] = context;
    }
    if tegra {
        spec["volumes"] = tegra_volumes(settings)
            .map(|(name, path, _)| json!({ "name": name, "hostPath": { "path": path } }))
            .collect();
    }
    pod
}

fn container(sleeps: bool, tegra: bool, requests: PodRequests, settings: &Settings) -> Value {
    let own = |field: &str| json!({ "name": format!("POD_{}", field.to_uppercase()), "valueFrom": { "fieldRef": { "fieldPath": format!("metadata.{field}") } } });
    let mut container = json!({
        "name": keys::RESERVATION_CONTAINER,
        "image": settings.reservation_image,
        "imagePullPolicy": settings.reservation_pull_policy,
        "args": if sleeps { &settings.sleeper_arguments } else { &settings.reservation_arguments },
        "env": [own("name"), own("namespace")],
        "resources": resources(&settings.reservation_resources, if sleeps { SLEEPING_DEFAULTS } else { NVML_DEFAULTS }, requests),
    });
    if sleeps {
        let directory = keys::RESERVATION_INFO_DIRECTORY;
        container["volumeMounts"] = json!([{ "name": INFO_VOLUME, "mountPath": directory, "readOnly": true }]);
    }
    let locked = || json!({ "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] } });
    let mut context = settings
        .container_security_context
        .clone()
        .or_else(|| sleeps.then(locked));
    if tegra {
        context = Some(json!({ "privileged": true }));
        let paths = settings.tegra_library_paths.join(":");
        let env = container["env"].as_array_mut().expect("it was made a list above");
        env.push(json!({ "name": keys::ENV_DRIVER_CAPABILITIES, "value": "utility" }));
        env.push(json!({ "name": "LD_LIBRARY_PATH", "value": paths }));
        container["volumeMounts"] = tegra_volumes(settings)
            .map(|(name, path, read_only)| json!({ "name": name, "mountPath": path, "readOnly": read_only }))
            .collect();
    }
    if let Some(context) = context {
        container["securityContext"] = context;
    }
    container
}

/// A file with the annotation that names the GPU. The kubelet writes it once the agent has annotated the pod, so that the process, which
/// has no token, can log the GPU.
fn gpu_annotation_volume() -> Value {
    let field = format!("metadata.annotations['{}']", keys::RESERVED_GPU);
    let file = json!({ "path": keys::RESERVATION_GPU_FILE, "fieldRef": { "fieldPath": field } });
    json!({ "name": INFO_VOLUME, "downwardAPI": { "items": [file] } })
}

/// Name, path and whether the mount is read-only.
fn tegra_volumes(settings: &Settings) -> impl Iterator<Item = (String, &str, bool)> {
    let libraries = settings.tegra_library_paths.iter().enumerate();
    let libraries = libraries.map(|(at, path)| (format!("libraries-{at}"), path.as_str(), true));
    libraries.chain([("devices".to_owned(), settings.tegra_device_path.as_str(), false)])
}

/// Requests and limits: one GPU, the configured amounts, and defaults for CPU and memory.
fn resources(configured: &Value, default: DefaultResources, requests: PodRequests) -> Value {
    let gpu = || Map::from_iter([(keys::RESOURCE_GPU.to_owned(), Value::from("1"))]);
    if requests == PodRequests::GpuOnly {
        return json!({ "requests": gpu(), "limits": gpu() });
    }
    let part = |name: &str, other: &str| {
        let of = |list: &str| configured[list].as_object().into_iter().flatten();
        let defaults = [("cpu", default.cpu), ("memory", default.memory)];
        let mut all: Map<String, Value> = defaults
            .into_iter()
            .map(|(resource, amount)| (resource.to_owned(), amount.into()))
            .collect();
        // A resource that only one of requests and limits configures has the same amount in both.
        for (resource, amount) in of(other)
            .chain(of(name))
            .filter(|(resource, _)| !keys::is_gpu_resource(resource))
        {
            all.insert(resource.clone(), amount.clone());
        }
        all.extend(gpu());
        all
    };
    json!({ "requests": part("requests", "limits"), "limits": part("limits", "requests") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::args::tests_settings;

    fn pod(facts: &NodeFacts, flags: &[&str]) -> Value {
        reservation_pod(
            &GpuGroupKey::new("n", "g"),
            facts,
            PodRequests::Full,
            ComputeMode::TimeSlicing,
            &tests_settings(flags),
        )
    }

    #[test]
    fn on_a_node_of_fake_gpu_operator_it_sleeps_and_is_marked() {
        let facts = NodeFacts {
            fake_operator: true,
            ..NodeFacts::default()
        };
        let pod = pod(&facts, &["--runtime-class-name=nvidia"]);
        assert_eq!(pod["spec"]["nodeSelector"], json!({ "run.ai/fake.gpu": "true" }));
        assert_eq!(
            pod["spec"]["containers"][0]["args"],
            json!(["resource-reservation", "--sleep"])
        );
        assert_eq!(pod["spec"]["runtimeClassName"], Value::Null, "there is no driver");
    }

    #[test]
    fn on_a_server_without_the_agent_it_is_the_contracts() {
        let pod = pod(&NodeFacts::default(), &["--runtime-class-name=nvidia"]);
        assert_eq!(
            pod["metadata"]["labels"],
            json!({ "app": "kai-resource-reservation", "runai-gpu-group": "g" })
        );
        assert_eq!(pod["spec"]["nodeName"], "n");
        assert_eq!(pod["spec"]["runtimeClassName"], "nvidia");
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["args"], json!(["resource-reservation"]));
        let amounts = json!({ "cpu": "100m", "memory": "256Mi", "nvidia.com/gpu": "1" });
        assert_eq!(
            container["resources"],
            json!({ "requests": amounts, "limits": amounts })
        );
        assert_eq!(
            container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"],
            "metadata.name"
        );
        assert_eq!(container["env"].as_array().unwrap().len(), 2);
        for part in ["volumes", "securityContext"] {
            assert!(pod["spec"][part].is_null(), "{part}");
        }
        assert!(container["securityContext"].is_null() && container["volumeMounts"].is_null());
    }

    #[test]
    fn with_the_agent_it_sleeps_without_rights_on_a_jetson_too() {
        let facts = NodeFacts {
            agent: true,
            tegra: true,
            ..NodeFacts::default()
        };
        let pod = pod(&facts, &["--runtime-class-name=nvidia"]);
        assert_eq!(pod["spec"]["containers"][0]["imagePullPolicy"], "IfNotPresent");
        assert_eq!(pod["spec"]["automountServiceAccountToken"], false);
        assert_eq!(pod["spec"]["securityContext"]["runAsNonRoot"], true);
        assert!(pod["spec"]["runtimeClassName"].is_null());
        let volumes = pod["spec"]["volumes"].as_array().unwrap();
        let file = &volumes[0]["downwardAPI"]["items"][0];
        assert_eq!(
            file["fieldRef"]["fieldPath"],
            "metadata.annotations['run.ai/reserve_for_gpu_index']"
        );
        assert_eq!(volumes.len(), 1, "no directory of the host");
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["args"], json!(["resource-reservation", "--sleep"]));
        assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
    }

    #[test]
    fn an_image_that_was_imported_into_the_node_is_never_pulled() {
        let flag = "--resource-reservation-pod-image-pull-policy=Never";
        let pod = pod(&NodeFacts::default(), &[flag]);
        assert_eq!(pod["spec"]["containers"][0]["imagePullPolicy"], "Never");
    }

    #[test]
    fn jetsons_without_the_agent_get_libraries_and_devices() {
        let facts = NodeFacts {
            tegra: true,
            ..NodeFacts::default()
        };
        let found = pod(&facts, &["--tegra-library-path=/a,/b"]);
        let container = &found["spec"]["containers"][0];
        assert_eq!(container["securityContext"], json!({ "privileged": true }));
        assert_eq!(
            container["env"][2],
            json!({ "name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility" })
        );
        assert_eq!(
            container["env"][3],
            json!({ "name": "LD_LIBRARY_PATH", "value": "/a:/b" })
        );
        assert_eq!(
            container["volumeMounts"][1],
            json!({ "name": "libraries-1", "mountPath": "/b", "readOnly": true })
        );
        assert_eq!(
            found["spec"]["volumes"][2],
            json!({ "name": "devices", "hostPath": { "path": "/dev" } })
        );
        let never = pod(&facts, &["--tegra=never"]);
        assert!(never["spec"]["volumes"].is_null());
        let always = pod(&NodeFacts::default(), &["--tegra=always"]);
        assert_eq!(always["spec"]["volumes"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn configured_resources_keep_the_gpu_at_one() {
        let json = r#"--resource-reservation-pod-resources={"requests":{"cpu":"1m","nvidia.com/gpu":"4"},"limits":{"memory":"10Mi"}}"#;
        let pod = pod(&NodeFacts::default(), &[json]);
        let resources = &pod["spec"]["containers"][0]["resources"];
        let amounts = json!({ "cpu": "1m", "memory": "10Mi", "nvidia.com/gpu": "1" });
        assert_eq!(*resources, json!({ "requests": amounts, "limits": amounts }));
    }

    #[test]
    fn a_reservation_pod_is_guaranteed_and_has_a_priority_class() {
        let agent = NodeFacts {
            agent: true,
            ..NodeFacts::default()
        };
        for facts in [NodeFacts::default(), agent] {
            let found = pod(&facts, &[]);
            let resources = &found["spec"]["containers"][0]["resources"];
            assert_eq!(resources["requests"], resources["limits"]);
            for resource in ["cpu", "memory", "nvidia.com/gpu"] {
                assert!(resources["limits"][resource].is_string(), "{resource}");
            }
            assert_eq!(found["spec"]["priorityClassName"], "kai-resource-reservation");
        }
        let none = pod(&NodeFacts::default(), &["--resource-reservation-pod-priority-class="]);
        assert!(none["spec"]["priorityClassName"].is_null());
    }

    #[test]
    fn a_node_without_room_is_asked_for_the_gpu_alone() {
        let settings = tests_settings(&[r#"--resource-reservation-pod-resources={"requests":{"cpu":"1"}}"#]);
        let pod = reservation_pod(
            &GpuGroupKey::new("n", "g"),
            &NodeFacts::default(),
            PodRequests::GpuOnly,
            ComputeMode::SmSharing,
            &settings,
        );
        assert_eq!(
            pod["metadata"]["annotations"]["kai.scheduler/gpu-compute-mode"],
            "sm-sharing"
        );
        let gpu = json!({ "nvidia.com/gpu": "1" });
        let resources = &pod["spec"]["containers"][0]["resources"];
        assert_eq!(*resources, json!({ "requests": gpu, "limits": gpu }));
    }
}
