//! KAI-Scheduler takes the cluster over from kai: what kai wrote is what KAI reads, and an uninstallation leaves what KAI needs.

use std::collections::{BTreeMap, BTreeSet};

use kai_api::{Object, Pod, PodGroup, Resource, Scope, keys};
use kai_cluster::{ANCHOR, CLUSTER_ROLE, Deletion, Selection, Target};
use kai_controllers::installation::{Installation, ReservationPods, uninstall};
use kai_embedded::kubelet::NodeTemplate;
use serde_json::{Value, json};

use super::kai_schema;
use crate::harness::manifest::PodManifest;
use crate::harness::{Choice, Cluster};

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

async fn list(cluster: &Cluster, resource: &Resource) -> Vec<Value> {
    cluster
        .client
        .list_values(resource, &Selection::default())
        .await
        .unwrap()
}

/// All pods, with their groups as KAI's binder reads them from labels.
struct Pods(Vec<(Value, BTreeSet<String>)>);

impl Pods {
    async fn read(cluster: &Cluster) -> Pods {
        let pods = list(cluster, &Pod::RESOURCE).await.into_iter();
        Pods(pods.map(|pod| (pod.clone(), groups(&pod))).collect())
    }

    fn reservation(&self, group: &str) -> Vec<&Value> {
        let of_group = self
            .0
            .iter()
            .filter(|(pod, groups)| is_reservation(pod) && groups.contains(group));
        of_group.map(|(pod, _)| pod).collect()
    }

    fn members(&self, group: &str) -> Vec<&Value> {
        let of_group = self
            .0
            .iter()
            .filter(|(pod, groups)| !is_reservation(pod) && groups.contains(group));
        of_group.map(|(pod, _)| pod).collect()
    }

    fn groups(&self) -> BTreeSet<&str> {
        self.0
            .iter()
            .flat_map(|(_, groups)| groups)
            .map(String::as_str)
            .collect()
    }

    /// What KAI's binder deletes when it starts: running pods of a group without reservation pod, and reservation pods of a group without
    /// pods.
    fn deleted_by_kai(&self) -> Vec<String> {
        let mut deleted = Vec::new();
        for group in self.groups() {
            match (self.reservation(group).is_empty(), self.members(group).is_empty()) {
                (true, _) => deleted.extend(self.members(group)),
                (_, true) => deleted.extend(self.reservation(group)),
                (false, false) => {}
            }
        }
        deleted
            .iter()
            .map(|pod| text(&pod["metadata"]["name"]).to_owned())
            .collect()
    }
}

fn is_reservation(pod: &Value) -> bool {
    pod["metadata"]["namespace"] == keys::RESERVATION && pod["metadata"]["labels"]["app"] == keys::RESERVATION
}

/// The groups of a pod: its label `runai-gpu-group`, and `runai-gpu-group/GROUP` for each of several.
fn groups(pod: &Value) -> BTreeSet<String> {
    let labels = pod["metadata"]["labels"].as_object().into_iter().flatten();
    let of_label = labels.filter_map(|(key, value)| {
        let group = text(value).to_owned();
        let is_plain = key == "runai-gpu-group";
        (is_plain || key.strip_prefix("runai-gpu-group/") == Some(&group)).then_some(group)
    });
    of_label.collect()
}

/// The ConfigMaps of a pod with a part of a GPU, and what its labels and annotations say, as KAI expects them.
async fn check_fraction(cluster: &Cluster, pods: &Pods, pod: &Value) {
    let metadata = &pod["metadata"];
    let name = text(&metadata["name"]);
    assert_eq!(metadata["annotations"]["received-resource-type"], "Fraction", "{name}");
    let prefix = text(&metadata["annotations"]["runai/shared-gpu-configmap"]);
    let groups = groups(pod);
    assert!(!groups.is_empty() && !prefix.is_empty(), "{metadata}");
    let gpus: BTreeSet<&str> = groups
        .iter()
        .map(|group| {
            let reservations = pods.reservation(group);
            assert_eq!(reservations.len(), 1, "{group} of {name}");
            let reservation = &reservations[0]["metadata"];
            let expect =
                kai_binder::reservation_name(&kai_binder::GpuGroupKey::new(text(&pod["spec"]["nodeName"]), group));
            assert_eq!(reservation["name"], expect);
            text(&reservation["annotations"]["run.ai/reserve_for_gpu_index"])
        })
        .collect();
    let config_map = async |suffix: &str| {
        let target = format!("{prefix}-0{suffix}");
        let found = cluster
            .client
            .get_value(Target::of::<kai_api::ConfigMap>("default", &target))
            .await;
        let found = found.unwrap().unwrap_or_else(|| panic!("{target} is missing"));
        assert_eq!(
            found["metadata"]["ownerReferences"][0]["uid"], metadata["uid"],
            "{target}"
        );
        found
    };
    let (first, second) = (config_map("").await, config_map("-evar").await);
    let visible = ["NVIDIA_VISIBLE_DEVICES", "GPU_PORTION", "RUNAI_NUM_OF_GPUS"].map(|key| text(&first["data"][key]));
    assert!(visible.iter().all(|value| !value.is_empty()), "{first}");
    let named: BTreeSet<&str> = visible[0]
        .split(',')
        .map(|gpu| gpu.rsplit('=').next().unwrap_or(gpu))
        .collect();
    assert_eq!(named, gpus, "{name} sees the GPUs of its groups");
    assert!(
        second["data"].as_object().is_none_or(serde_json::Map::is_empty),
        "{second}"
    );
}

/// Names, labels and owners of bind requests and pod groups, and all their fields.
async fn check_custom_resources(cluster: &Cluster) {
    let by_uid: BTreeMap<String, Value> = list(cluster, &Pod::RESOURCE)
        .await
        .into_iter()
        .map(|pod| (text(&pod["metadata"]["uid"]).to_owned(), pod))
        .collect();
    let requests = list(cluster, &kai_api::BindRequest::RESOURCE).await;
    assert!(!requests.is_empty());
    for request in &requests {
        let owner = &request["metadata"]["ownerReferences"][0];
        let pod = &by_uid[text(&owner["uid"])];
        assert_eq!(
            (&owner["kind"], &request["metadata"]["name"]),
            (&json!("Pod"), &pod["metadata"]["name"])
        );
        assert_eq!(request["spec"]["podName"], pod["metadata"]["name"]);
        assert_eq!(
            request["metadata"]["labels"]["selected-node"],
            request["spec"]["selectedNode"]
        );
        assert_eq!(
            (&request["status"]["phase"], &pod["spec"]["nodeName"]),
            (&json!("Succeeded"), &request["spec"]["selectedNode"])
        );
        let groups_of_request = request["spec"]["selectedGPUGroups"].as_array().into_iter().flatten();
        let groups_of_request: BTreeSet<String> = groups_of_request.map(|group| text(group).to_owned()).collect();
        assert_eq!(groups_of_request, groups(pod));
        // KAI prefers the type of the request to the annotation, which kai writes for parts of GPUs only.
        let received = match text(&pod["metadata"]["name"]) {
            "half" | "third" | "memory" | "pair" => "Fraction",
            "slice" => "MigInstance",
            _ => "Regular",
        };
        assert_eq!(request["spec"]["receivedResourceType"], received);
        kai_schema::check("BindRequest", request);
    }
    for group in list(cluster, &PodGroup::RESOURCE).await {
        let owner = &group["metadata"]["ownerReferences"][0];
        let expect = format!("pg-{}-{}", text(&owner["name"]), text(&owner["uid"]));
        assert_eq!(group["metadata"]["name"], expect);
        assert_eq!(
            owner["controller"],
            Value::Null,
            "KAI's pod grouper is no controller of pod groups"
        );
        kai_schema::check("PodGroup", &group);
    }
    for queue in list(cluster, &kai_api::Queue::RESOURCE).await {
        kai_schema::check("Queue", &queue);
    }
    for resource in [
        kai_api::BindRequest::RESOURCE,
        PodGroup::RESOURCE,
        kai_api::Queue::RESOURCE,
        Pod::RESOURCE,
    ] {
        for object in list(cluster, &resource).await {
            let finalizers = &object["metadata"]["finalizers"];
            // The Job controller has one on its pods.
            let of_kai = finalizers.to_string().contains("kai");
            assert!(
                !of_kai,
                "{} {}: {finalizers}",
                resource.kind, object["metadata"]["name"]
            );
        }
    }
}

fn of_registration(kind: &'static str, plural: &'static str) -> Resource {
    Resource::new("admissionregistration.k8s.io", "v1", kind, plural, Scope::Cluster)
}

/// Uninstalls kai as `kai uninstall --keep-reservation-pods` and `helm uninstall` do.
async fn uninstall_for_kai(cluster: &Cluster) {
    let installation = Installation {
        namespace: "kai-scheduler".to_owned(),
        reservation_namespace: keys::RESERVATION.to_owned(),
        scale_adjust_namespace: keys::SCALE_ADJUST_NAMESPACE.to_owned(),
    };
    uninstall(&cluster.client, &installation, ReservationPods::Keep)
        .await
        .unwrap();
    let anchor = Target {
        resource: const { &CLUSTER_ROLE },
        namespace: "",
        name: ANCHOR,
    };
    cluster.client.delete(anchor, &Deletion::default()).await.unwrap();
    for resource in [
        of_registration("MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
        of_registration("ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
        of_registration("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
    ] {
        cluster
            .until_async("webhooks and policies are gone", async || {
                list(cluster, &resource).await.is_empty()
            })
            .await;
    }
}

fn job() -> Value {
    let template = PodManifest::new("").gpus(1).template();
    let mut job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "train", "namespace": "default" },
        "spec": { "template": template },
    });
    job["spec"]["template"]["spec"]["restartPolicy"] = "Never".into();
    job
}

#[test]
fn kai_can_take_the_cluster_back() {
    let choice = Choice::of_environment();
    choice.runtime().block_on(async {
        let backend = choice.start().await;
        if let Some(kube) = backend.kube() {
            // An earlier scenario may have deleted the anchor.
            kube.install().await;
        }
        let mig = NodeTemplate {
            mig_strategy: Some("mixed".to_owned()),
            ..NodeTemplate::new("mig-a", "a100-40:1/1g.5gb*7")
        };
        let nodes = [
            NodeTemplate::new("node-a", "h100:4"),
            NodeTemplate::new("node-b", "h100:2"),
            mig,
        ];
        let cluster = Cluster::without_roles(backend, &nodes).await;
        // The embedded API server has no RBAC, so the back end creates no anchor.
        if cluster.server().is_some() {
            let anchor = json!({ "metadata": { "name": ANCHOR }, "rules": [] });
            cluster.client.create(&CLUSTER_ROLE, "", anchor).await.unwrap();
        }
        cluster.start_roles();
        cluster.until_installed().await;
        let pair = PodManifest::new("pair")
            .fraction("0.5")
            .annotation(keys::GPU_FRACTION_DEVICES, "2");
        for pod in [
            PodManifest::new("half").fraction("0.5"),
            PodManifest::new("third").fraction("0.333"),
            PodManifest::new("memory").gpu_memory_mib("30000"),
            PodManifest::new("whole").gpus(1),
            PodManifest::new("plain"),
            PodManifest::new("slice").devices("nvidia.com/mig-1g.5gb", 1),
            pair,
        ] {
            cluster.create(pod.build()).await;
        }
        cluster.create(job()).await;
        cluster.until_running(8).await;
        cluster.settle().await;
        let running = cluster.running();
        let before = Pods::read(&cluster).await;
        // The administrator's way without the program, while the policies are in force.
        let reservation = before.0.iter().find(|(pod, _)| is_reservation(pod)).unwrap();
        let (name, change) = (
            text(&reservation.0["metadata"]["name"]),
            json!({ "metadata": { "ownerReferences": null } }),
        );
        assert!(
            reservation.0["metadata"]["ownerReferences"].is_array(),
            "it goes with an installation"
        );
        cluster
            .patch(&Pod::RESOURCE, keys::RESERVATION, name, change)
            .await
            .unwrap();

        cluster.kill_roles().await;
        uninstall_for_kai(&cluster).await;
        cluster.settle().await;
        assert_eq!(cluster.running(), running);
        let pods = Pods::read(&cluster).await;
        assert_eq!(pods.groups(), before.groups());
        assert!(pods.groups().len() >= 3, "{:?}", pods.groups());
        assert_eq!(pods.deleted_by_kai(), [""; 0]);
        for name in ["half", "third", "memory", "pair"] {
            let (pod, groups) = pods.0.iter().find(|(pod, _)| pod["metadata"]["name"] == name).unwrap();
            let is_plain = pod["metadata"]["labels"]["runai-gpu-group"].is_string();
            assert_eq!(is_plain, groups.len() == 1, "{}", pod["metadata"]["labels"]);
            check_fraction(&cluster, &pods, pod).await;
        }
        for (pod, _) in pods.0.iter().filter(|(pod, _)| !is_reservation(pod)) {
            assert!(
                text(&pod["metadata"]["annotations"]["pod-group-name"]).starts_with("pg-"),
                "{}",
                pod["metadata"]
            );
        }
        for (pod, _) in pods.0.iter().filter(|(pod, _)| is_reservation(pod)) {
            let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
            assert_eq!(
                (&pod["metadata"]["ownerReferences"], &limits["nvidia.com/gpu"]),
                (&Value::Null, &json!("1"))
            );
        }
        check_custom_resources(&cluster).await;
    });
}
