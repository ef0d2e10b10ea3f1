//! A cluster as KAI-Scheduler 0.17 leaves it, from files in the form that kubectl prints (`tests/data/kai-0.17`).
//!
//! An API server gives out uids itself, simulated nodes choose GPUs, and workload controllers create pods. So each uid, each GPU and each
//! name that a controller chose is replaced in all later documents by the one that the cluster has.

use kai_api::{Pod, Resource, keys};
use kai_cluster::{Selection, Target};
use serde_json::{Value, json};

use crate::harness::Cluster;

pub(super) const RUNNING: &str = include_str!("../../data/kai-0.17/running.yaml");
pub(super) const IN_FLIGHT: &str = include_str!("../../data/kai-0.17/in-flight.yaml");
pub(super) const INSTALLATION: &str = include_str!("../../data/kai-0.17/installation.yaml");

/// Creates the objects of documents, in their order.
#[derive(Default)]
pub(super) struct Fixture {
    /// Text of the documents, and the text that the cluster has instead.
    replaced: Vec<(String, String)>,
    /// Uids of objects that controllers created and that a document stands for.
    claimed: Vec<String>,
}

impl Fixture {
    /// Creates the objects of all documents that `wanted` selects by kind, and waits until pods run that shall run.
    pub(super) async fn create(&mut self, cluster: &Cluster, text: &str, wanted: impl Fn(&str) -> bool) {
        for document in text.split("\n---\n") {
            let document = self.translate(document);
            let object: Value = serde_saphyr::from_str(&document).unwrap_or_else(|error| panic!("{error}\n{document}"));
            if object["kind"].as_str().is_some_and(&wanted) {
                self.create_one(cluster, object).await;
            }
        }
    }

    fn translate(&self, document: &str) -> String {
        let replace = |text: String, (from, to): &(String, String)| text.replace(from.as_str(), to);
        self.replaced.iter().fold(document.to_owned(), replace)
    }

    fn replace(&mut self, from: &Value, to: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if !text(from).is_empty() && text(from) != text(to) {
            self.replaced.push((text(from), text(to)));
        }
    }

    async fn create_one(&mut self, cluster: &Cluster, printed: Value) {
        let (version, kind) = (
            printed["apiVersion"].as_str().unwrap(),
            printed["kind"].as_str().unwrap(),
        );
        let resource = cluster.client.resource_of(version, kind).await.unwrap();
        let resource = resource.unwrap_or_else(|| panic!("no {kind} in {version}"));
        let live = match controller_of(&printed) {
            Some(owner) => self.created_by_controller(cluster, &resource, &owner).await,
            None => {
                let mut written = printed.clone();
                let metadata = written["metadata"].as_object_mut().unwrap();
                for of_server in ["uid", "creationTimestamp", "generation"] {
                    metadata.remove(of_server);
                }
                if let Some(annotations) = metadata.get_mut("annotations") {
                    annotations[keys::RESERVED_GPU].take();
                    annotations.as_object_mut().unwrap().remove(keys::RESERVED_GPU);
                }
                written.as_object_mut().unwrap().remove("status");
                cluster
                    .admin()
                    .create(written)
                    .await
                    .unwrap_or_else(|error| panic!("{kind} {}: {error}", printed["metadata"]["name"]))
            }
        };
        self.replace(&printed["metadata"]["uid"], &live["metadata"]["uid"]);
        self.replace(&printed["metadata"]["name"], &live["metadata"]["name"]);
        // The object may name itself, as a pod does by the name of its pod group.
        let printed: Value = serde_json::from_str(&self.translate(&printed.to_string())).unwrap();
        let name = live["metadata"]["name"].as_str().unwrap().to_owned();
        let namespace = live["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let target = Target {
            resource: &resource,
            namespace: &namespace,
            name: &name,
        };
        match kind {
            "Pod" => self.finish_pod(cluster, target, &printed, &live).await,
            // The controllers that created or own them write the rest.
            "ReplicaSet" | "Deployment" | "Job" => {}
            _ if printed["status"].as_object().is_some_and(|status| !status.is_empty()) => {
                let status = json!({ "status": printed["status"] });
                cluster.admin().patch_status(target, status).await.unwrap();
            }
            _ => {}
        }
    }

    /// Waits for an object that a controller creates for its owner.
    async fn created_by_controller(&mut self, cluster: &Cluster, resource: &Resource, owner: &str) -> Value {
        let find = async || {
            let found = cluster
                .client
                .list_values(resource, &Selection::default())
                .await
                .unwrap();
            found.into_iter().find(|object| {
                let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
                controller_of(object).as_deref() == Some(owner) && !self.claimed.iter().any(|claimed| claimed == uid)
            })
        };
        cluster
            .until_async("a controller creates its object", async || find().await.is_some())
            .await;
        let found = find().await.unwrap();
        self.claimed.push(found["metadata"]["uid"].as_str().unwrap().to_owned());
        found
    }

    /// Labels and annotates a pod, binds it if a controller created it, and waits until it runs if the document says so.
    async fn finish_pod(&mut self, cluster: &Cluster, target: Target<'_>, printed: &Value, live: &Value) {
        let mut annotations = printed["metadata"]["annotations"].clone();
        let gpu = annotations.as_object_mut().unwrap().remove(keys::RESERVED_GPU);
        let marks = json!({ "metadata": { "labels": printed["metadata"]["labels"], "annotations": annotations } });
        cluster.admin().patch(target, marks).await.unwrap();
        let node = &printed["spec"]["nodeName"];
        if node.is_string() && live["spec"]["nodeName"].is_null() {
            let binding = json!({ "metadata": { "name": target.name }, "target": { "kind": "Node", "name": node } });
            let bound = cluster
                .admin()
                .post_to_pod(target.name, "binding", "Binding", binding)
                .await;
            bound.unwrap();
        }
        if printed["status"]["phase"] != "Running" {
            let conditions = &printed["status"]["conditions"];
            if conditions.is_array() {
                let status = json!({ "status": { "conditions": conditions } });
                cluster.admin().patch_status(target, status).await.unwrap();
            }
            return;
        }
        if let Some(gpu) = gpu {
            let annotated = async || {
                let pod = cluster.client.get_value(target).await.unwrap().unwrap();
                pod["metadata"]["annotations"][keys::RESERVED_GPU].clone()
            };
            cluster
                .until_async("the reservation pod has its GPU", async || {
                    annotated().await.is_string()
                })
                .await;
            self.replace(&gpu, &annotated().await);
        }
    }

    /// Waits until all pods run that have a node.
    pub(super) async fn until_running(&self, cluster: &Cluster) {
        let client = &cluster.client;
        cluster
            .until_async("all pods with a node run", async || {
                let pods = client.list::<Pod>(&Selection::default()).await.unwrap();
                pods.iter()
                    .filter(|pod| pod.node_name().is_some())
                    .all(|pod| pod.phase() == kai_engine::model::PodPhase::Running)
            })
            .await;
    }

    /// The cluster's text for a text of the documents.
    pub(super) fn of(&self, printed: &str) -> String {
        self.translate(printed)
    }
}

/// Uid of the owner that is the controller, for objects of workload controllers.
fn controller_of(object: &Value) -> Option<String> {
    let mut owners = object["metadata"]["ownerReferences"].as_array()?.iter();
    let workload = ["Job", "ReplicaSet", "Deployment"];
    let owner = owners
        .find(|owner| owner["controller"] == true && workload.contains(&owner["kind"].as_str().unwrap_or_default()))?;
    owner["uid"].as_str().map(str::to_owned)
}
