//! kai is installed on a cluster without its definitions, and goes with its anchor or its namespace.

use kai_api::{Object, Queue, Resource, Scope, keys};
use kai_cluster::{ANCHOR, CLUSTER_ROLE, Client, Deletion, Selection, Target};
use kai_controllers::installation::{self, InstallationArgs};
use kai_embedded::kubelet::NodeTemplate;
use serde_json::{Value, json};

use crate::harness::manifest::PodManifest;
use crate::harness::{Choice, Cluster};

const INSTALLER: &str = "system:serviceaccount:kai-scheduler:kai-all";
const CONFIG: &str =
    "apiVersion: kai.scheduler/v1\nkind: Config\nmetadata: {name: kai-config}\nspec: {namespace: kai-scheduler}\n";
const SHARD: &str = "apiVersion: kai.scheduler/v1\nkind: SchedulingShard\nmetadata: {name: default}\nspec: {}\n";

/// The files of the installation directory.
fn files() -> [(&'static str, String); 3] {
    let queue = |mut queue: Value| {
        queue["apiVersion"] = Queue::RESOURCE.api_version().into();
        queue["kind"] = "Queue".into();
        // JSON is valid YAML.
        format!("---\n{queue}\n")
    };
    [
        ("apply-config.yaml", CONFIG.to_owned()),
        ("create-shard.yaml", SHARD.to_owned()),
        (
            "create-queues.yaml",
            kai_controllers::default_queues().map(queue).concat(),
        ),
    ]
}

fn namespace() -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "kai-scheduler" } })
}

fn of_registration(kind: &'static str, plural: &'static str) -> Resource {
    Resource::new("admissionregistration.k8s.io", "v1", kind, plural, Scope::Cluster)
}

/// The kinds of which kai leaves no object.
fn kinds() -> [Resource; 5] {
    [
        of_registration("MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
        of_registration("ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
        of_registration("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
        of_registration("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
        Resource::new("coordination.k8s.io", "v1", "Lease", "leases", Scope::Namespaced),
    ]
}

async fn delete(client: &Client, resource: &Resource, namespace: &str, name: &str) {
    let target = Target {
        resource,
        namespace,
        name,
    };
    client.delete(target, &Deletion::default()).await.unwrap();
}

/// Deletes the definitions of kai, and waits until they are gone.
async fn delete_definitions(client: &Client) {
    let definitions = Resource::new(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        Scope::Cluster,
    );
    for definition in kai_api::crd::crds() {
        let name = definition["metadata"]["name"].as_str().unwrap();
        delete(client, &definitions, "", name).await;
    }
    let left = async || {
        client
            .list_values(&definitions, &Selection::default())
            .await
            .unwrap()
            .len()
    };
    while left().await > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// Names of kai's objects that a removed installation must not leave, and its reservation pods.
async fn left_behind(cluster: &Cluster) -> Vec<String> {
    let mut left = Vec::new();
    for resource in kinds() {
        let found = cluster
            .client
            .list_values(&resource, &Selection::default())
            .await
            .unwrap();
        let namespace = |object: &Value| {
            object["metadata"]["namespace"]
                .as_str()
                .unwrap_or("kai-scheduler")
                .to_owned()
        };
        let ours = found.iter().filter(|object| namespace(object) == "kai-scheduler");
        left.extend(ours.map(|object| format!("{} {}", resource.kind, object["metadata"]["name"])));
    }
    let reserving = Selection {
        namespace: Some(keys::RESERVATION.to_owned()),
        ..Selection::default()
    };
    let pods = cluster.client.list::<kai_api::Pod>(&reserving).await.unwrap();
    left.extend(pods.iter().map(|pod| format!("Pod {}", pod.metadata.plain_name())));
    left
}

async fn install(cluster: &Cluster) {
    // The embedded API server has no RBAC, so the back end creates no anchor.
    if cluster.server().is_some() {
        let anchor = json!({ "metadata": { "name": ANCHOR }, "rules": [] });
        cluster.client.create(&CLUSTER_ROLE, "", anchor).await.unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files() {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let args = InstallationArgs {
        apply_crds: true,
        installation: Some(directory.path().to_owned()),
        migrate_topologies: true,
    };
    let settings = args.settings("kai-scheduler").unwrap();
    let installer = cluster.user(INSTALLER).await.0;
    let remaining = installation::run(&installer, &settings).await.unwrap();
    remaining.finish(&installer).await.unwrap();
}

/// Installs kai, runs a pod with a share of a GPU, removes kai by `remove`, and installs it again.
fn check_removal(remove: impl AsyncFnOnce(&Cluster)) {
    let choice = Choice::of_environment();
    choice.runtime().block_on(async {
        let backend = choice.start().await;
        if let Some(kube) = backend.kube() {
            // The anchor of the scenario before records its objects.
            delete(&kube.client, &CLUSTER_ROLE, "", ANCHOR).await;
            kube.install().await;
        }
        delete_definitions(&backend.client()).await;
        let cluster = Cluster::without_roles(backend, &[NodeTemplate::new("node", "h100:1")]).await;
        install(&cluster).await;
        let shards = cluster
            .client
            .resource_of("kai.scheduler/v1", "SchedulingShard")
            .await
            .unwrap()
            .unwrap();
        let found = cluster
            .client
            .list_values(&shards, &Selection::default())
            .await
            .unwrap();
        assert_eq!(found.len(), 1);
        let queue = cluster.client.get::<Queue>("", keys::DEFAULT_QUEUE).await.unwrap();
        assert!(queue.is_some(), "{} {}", Queue::RESOURCE.kind, keys::DEFAULT_QUEUE);
        cluster.start_roles();
        cluster.until_installed().await;
        cluster.create(PodManifest::new("half").fraction("0.5").build()).await;
        cluster.until_only_running(&["half"]).await;
        assert!(
            left_behind(&cluster).await.len() > 20,
            "webhooks, policies, bindings and a reservation pod"
        );

        cluster.kill_roles().await;
        remove(&cluster).await;
        cluster
            .until_async("kai is gone", async || left_behind(&cluster).await.is_empty())
            .await;
        assert!(cluster.runs("half"), "what runs goes on");
        cluster.create_soon(PodManifest::new("later").build()).await;

        match cluster.kube() {
            Some(kube) => kube.install().await,
            None => drop(cluster.try_create(namespace()).await),
        }
        install(&cluster).await;
        cluster.start_roles();
        cluster.until_guarded().await;
        cluster.until_only_running(&["half", "later"]).await;
        cluster.settle().await;
        let found = cluster.found_when_settled();
        assert!(found.is_empty(), "{found:?}\n{}", cluster.picture());
    });
}

#[test]
fn an_installation_goes_with_its_anchor() {
    check_removal(async |cluster| {
        delete(&cluster.client, &CLUSTER_ROLE, "", ANCHOR).await;
        // A chart deletes this Role, too.
        let role = Resource::new("rbac.authorization.k8s.io", "v1", "Role", "roles", Scope::Namespaced);
        delete(&cluster.client, &role, "kai-scheduler", "kai-leader-election").await;
    });
}

#[test]
fn an_installation_goes_with_its_namespace() {
    check_removal(async |cluster| {
        let namespaces = Resource::new("", "v1", "Namespace", "namespaces", Scope::Cluster);
        delete(&cluster.client, &namespaces, "", "kai-scheduler").await;
        cluster
            .until_async("the namespace is gone", async || {
                let target = Target {
                    resource: &namespaces,
                    namespace: "",
                    name: "kai-scheduler",
                };
                cluster.client.get_metadata(target).await.unwrap().is_none()
            })
            .await;
    });
}
