//! The installation step and the way out, on the embedded API server.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;

use kai_api::{Object, Pod, Queue, Resource, Scope, Topology, keys};
use kai_cluster::{
    ANCHOR, CLUSTER_ROLE, Candidate, Client, Clock, Deletion, InstallationOwner, LeaseTimes, Selection, Target,
};
use kai_controllers::installation::crds::{self, NewerCrds};
use kai_controllers::installation::{self, Error, InstallationArgs, ReservationPods, Settings};
use kai_embedded::server::{Options, Server};
use serde_json::{Value, json};

static DEFINITION: Resource = Resource::new(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    Scope::Cluster,
);
static NAMESPACE: Resource = Resource::new("", "v1", "Namespace", "namespaces", Scope::Cluster);
static SHARD: Resource = Resource::new(
    "kai.scheduler",
    "v1",
    "SchedulingShard",
    "schedulingshards",
    Scope::Cluster,
);
static CONFIG: Resource = Resource::new("kai.scheduler", "v1", "Config", "configs", Scope::Cluster);
static LEASE: Resource = Resource::new("coordination.k8s.io", "v1", "Lease", "leases", Scope::Namespaced);
static WEBHOOK: Resource = Resource::new(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    Scope::Cluster,
);

const APPLY_CONFIG: &str = "apiVersion: kai.scheduler/v1\nkind: Config\nmetadata: {name: kai-config}\nspec: {}\n";
const CREATE_SHARD: &str = "apiVersion: kai.scheduler/v1\nkind: SchedulingShard\nmetadata: {name: default}\nspec: {}\n";
const CREATE_QUEUES: &str = "apiVersion: scheduling.run.ai/v2\nkind: Queue\nmetadata: {name: parent}\nspec: {}\n---\n\
                             apiVersion: scheduling.run.ai/v2\nkind: Queue\nmetadata: {name: child}\nspec: {parentQueue: parent}\n";
const QUEUE_CRD: &str = "queues.scheduling.run.ai";

struct World {
    server: Server,
    client: Client,
    directory: tempfile::TempDir,
}

impl World {
    /// A cluster with kai's namespaces and anchor, and nothing else of kai.
    fn new() -> World {
        let server = Server::new(Options::default());
        let client = Client::in_process(server.service());
        let world = World {
            server,
            client,
            directory: tempfile::tempdir().unwrap(),
        };
        for name in ["kai-scheduler", keys::RESERVATION] {
            world.put(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }));
        }
        world.put(anchor());
        world.write("apply-config.yaml", APPLY_CONFIG);
        world.write("create-shard.yaml", CREATE_SHARD);
        world.write("create-queues.yaml", CREATE_QUEUES);
        world
    }

    fn put(&self, object: Value) {
        self.server.store().put(object).unwrap();
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.directory.path().join(name), text).unwrap();
    }

    async fn install(&self) -> Result<(), Error> {
        let settings = settings(self.directory.path());
        installation::run(&self.client, &settings)
            .await?
            .finish(&self.client)
            .await
    }

    async fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Option<Value> {
        let target = Target {
            resource,
            namespace,
            name,
        };
        self.client.get_value(target).await.unwrap()
    }

    async fn delete(&self, resource: &Resource, namespace: &str, name: &str) {
        let target = Target {
            resource,
            namespace,
            name,
        };
        self.client.delete(target, &Deletion::default()).await.unwrap();
    }

    async fn names(&self, resource: &Resource) -> Vec<String> {
        let found = self.client.list_values(resource, &Selection::default()).await.unwrap();
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
        found.iter().map(name).collect()
    }
}

fn anchor() -> Value {
    json!({ "apiVersion": CLUSTER_ROLE.api_version(), "kind": "ClusterRole", "metadata": { "name": ANCHOR }, "rules": [] })
}

fn settings(directory: &Path) -> Settings {
    let args = InstallationArgs {
        apply_crds: true,
        installation: Some(directory.to_owned()),
        migrate_topologies: true,
    };
    args.settings("kai-scheduler").unwrap()
}

#[test]
fn without_flags_nothing_is_installed() {
    assert_eq!(InstallationArgs::default().settings("kai-scheduler"), None);
}

#[tokio::test(start_paused = true)]
async fn an_installation_from_nothing_has_definitions_and_objects() {
    let world = World::new();
    world.install().await.unwrap();
    assert_eq!(world.names(&Queue::RESOURCE).await, ["child", "parent"]);
    assert_eq!(world.names(&SHARD).await, ["default"]);
    let config = world.get(&CONFIG, "", "kai-config").await.unwrap();
    assert_eq!(config["metadata"]["managedFields"][0]["manager"], "kai-config-deployer");
    let names = world.names(&DEFINITION).await;
    assert_eq!(names.len(), kai_api::crd::crds().len());
    let definition = world.get(&DEFINITION, "", QUEUE_CRD).await.unwrap();
    assert_eq!(
        definition["metadata"]["annotations"][keys::CRD_VERSION],
        env!("CARGO_PKG_VERSION")
    );
    let namespace = world.get(&NAMESPACE, "", "kai-scheduler").await.unwrap();
    let anchor = world.get(&CLUSTER_ROLE, "", ANCHOR).await.unwrap();
    assert_eq!(
        anchor["metadata"]["ownerReferences"][0]["uid"],
        namespace["metadata"]["uid"]
    );
}

#[tokio::test(start_paused = true)]
async fn objects_are_applied_at_every_start_and_created_once() {
    let world = World::new();
    world.install().await.unwrap();
    let before = world.get(&DEFINITION, "", QUEUE_CRD).await;
    world.delete(&Queue::RESOURCE, "", "child").await;
    world.delete(&CONFIG, "", "kai-config").await;
    world.write("create-more.yaml", &CREATE_SHARD.replace("default", "second"));
    world.install().await.unwrap();
    assert_eq!(
        world.names(&Queue::RESOURCE).await,
        ["parent"],
        "an administrator deleted the other"
    );
    assert_eq!(world.names(&CONFIG).await, ["kai-config"]);
    assert_eq!(
        world.names(&SHARD).await,
        ["default", "second"],
        "a new object of the directory"
    );
    assert_eq!(
        world.get(&DEFINITION, "", QUEUE_CRD).await,
        before,
        "no write without a change"
    );
    // A new installation has a new anchor.
    world.delete(&CLUSTER_ROLE, "", ANCHOR).await;
    world.put(anchor());
    world.install().await.unwrap();
    assert_eq!(world.names(&Queue::RESOURCE).await, ["child", "parent"]);
}

#[tokio::test(start_paused = true)]
async fn replicas_that_start_together_are_harmless() {
    let world = World::new();
    let (first, second) = tokio::join!(world.install(), world.install());
    first.and(second).unwrap();
    assert_eq!(world.names(&Queue::RESOURCE).await, ["child", "parent"]);
}

#[tokio::test(start_paused = true)]
async fn an_existing_object_is_not_changed() {
    let world = World::new();
    crds::apply(&world.client, NewerCrds::Keep).await.unwrap();
    let mine = json!({ "metadata": { "name": "parent" }, "spec": { "priority": 7 } });
    world.client.create(&Queue::RESOURCE, "", mine).await.unwrap();
    world.install().await.unwrap();
    let queue = world.get(&Queue::RESOURCE, "", "parent").await.unwrap();
    assert_eq!(queue["spec"]["priority"], 7);
}

#[tokio::test(start_paused = true)]
async fn definitions_of_a_newer_version_stay_unless_forced() {
    let world = World::new();
    crds::apply(&world.client, NewerCrds::Refuse).await.unwrap();
    let newer = json!({ "metadata": { "annotations": { keys::CRD_VERSION: "99.1.0" } } });
    let target = Target {
        resource: &DEFINITION,
        namespace: "",
        name: QUEUE_CRD,
    };
    let patch = kai_cluster::Patch::Merge(newer);
    world
        .client
        .patch(target, kai_cluster::Part::Object, patch)
        .await
        .unwrap();
    let applied = crds::apply(&world.client, NewerCrds::Keep).await.unwrap();
    assert!(!applied.contains(&QUEUE_CRD.to_owned()) && applied.len() == kai_api::crd::crds().len() - 1);
    let refused = crds::apply(&world.client, NewerCrds::Refuse)
        .await
        .unwrap_err()
        .to_string();
    for words in [QUEUE_CRD, "99.1.0", env!("CARGO_PKG_VERSION"), "--force"] {
        assert!(refused.contains(words), "{refused}");
    }
    crds::apply(&world.client, NewerCrds::Replace).await.unwrap();
    let definition = world.get(&DEFINITION, "", QUEUE_CRD).await.unwrap();
    assert_eq!(
        definition["metadata"]["annotations"][keys::CRD_VERSION],
        env!("CARGO_PKG_VERSION")
    );
}

#[tokio::test(start_paused = true)]
async fn definitions_of_kai_are_taken_over_without_their_conversion() {
    let world = World::new();
    let mut theirs = kai_api::crd::crds();
    for definition in &mut theirs {
        if definition["metadata"]["name"] == QUEUE_CRD {
            definition["spec"]["conversion"] = json!({
                "strategy": "Webhook",
                "webhook": { "conversionReviewVersions": ["v1"], "clientConfig": { "url": "https://127.0.0.1:1/convert" } },
            });
        }
        world.put(definition.clone());
    }
    let queue = json!({ "metadata": { "name": "old" }, "spec": {} });
    world.client.create(&Queue::RESOURCE, "", queue).await.unwrap();
    world.install().await.unwrap();
    let definition = world.get(&DEFINITION, "", QUEUE_CRD).await.unwrap();
    assert_ne!(definition["spec"]["conversion"]["strategy"], "Webhook");
    assert!(definition["spec"]["conversion"]["webhook"].is_null());
    assert_eq!(world.names(&Queue::RESOURCE).await, ["child", "old", "parent"]);
}

#[tokio::test(start_paused = true)]
async fn topologies_of_kueue_are_copied() {
    let world = World::new();
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    world.put(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "topologies.kueue.x-k8s.io" },
        "spec": {
            "group": "kueue.x-k8s.io", "scope": "Cluster",
            "names": { "kind": "Topology", "plural": "topologies", "singular": "topology", "listKind": "TopologyList" },
            "versions": [{ "name": "v1beta1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
        },
    }));
    let racks = json!([{ "nodeLabel": "example.com/rack" }, { "nodeLabel": "kubernetes.io/hostname" }]);
    world.put(json!({
        "apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Topology", "metadata": { "name": "racks" }, "spec": { "levels": racks },
    }));
    world.install().await.unwrap();
    let copy = world.get(&Topology::RESOURCE, "", "racks").await.unwrap();
    assert_eq!(copy["spec"]["levels"], racks);
    world.delete(&Topology::RESOURCE, "", "racks").await;
    world.install().await.unwrap();
    assert_eq!(
        world.names(&Topology::RESOURCE).await,
        [""; 0],
        "an administrator deleted it"
    );
}

#[tokio::test(start_paused = true)]
async fn a_rejected_object_is_named_with_its_file() {
    let world = World::new();
    let wrong = CREATE_SHARD.replace("spec: {}", "spec: {kValue: many}");
    world.write("create-shard.yaml", &wrong);
    let error = world.install().await.unwrap_err().to_string();
    for words in ["create-shard.yaml", "SchedulingShard default", "kValue"] {
        assert!(error.contains(words), "{error}");
    }
    world.write(
        "create-shard.yaml",
        &CREATE_SHARD.replace("default}", "default, namespace: a}"),
    );
    let error = world.install().await.unwrap_err().to_string();
    assert!(
        error.contains("metadata.namespace is set") && error.contains("leave it out"),
        "{error}"
    );
}

/// A webhook of an earlier installation, whose server starts only after the installation step.
#[tokio::test(start_paused = true)]
async fn a_webhook_without_a_server_delays_queues_and_nothing_else() {
    let world = World::new();
    crds::apply(&world.client, NewerCrds::Keep).await.unwrap();
    world.put(json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": { "name": "left" },
        "webhooks": [{
            "name": "left.kai.scheduler", "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
            "clientConfig": { "service": { "namespace": "kai-scheduler", "name": "nobody", "path": "/" } },
            "rules": [{ "apiGroups": ["scheduling.run.ai"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["queues"] }],
        }],
    }));
    let remaining = installation::run(&world.client, &settings(world.directory.path()))
        .await
        .unwrap();
    assert_eq!(world.names(&SHARD).await, ["default"], "the roles can start");
    let answered = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(world.names(&Queue::RESOURCE).await, [""; 0]);
        world.delete(&WEBHOOK, "", "left").await;
    };
    let (finished, ()) = tokio::join!(remaining.finish(&world.client), answered);
    finished.unwrap();
    assert_eq!(world.names(&Queue::RESOURCE).await, ["child", "parent"]);
}

/// Objects with the anchor as owner, as the roles create them, and a lease.
async fn own_objects(world: &World) {
    world.put(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": { "name": "kai-leader-election", "namespace": "kai-scheduler" }, "rules": [],
    }));
    let InstallationOwner::Present(owner) = world.client.installation_owner().await.unwrap() else {
        panic!("the anchor exists");
    };
    let webhook = json!({ "metadata": { "name": "ours", "ownerReferences": [owner] }, "webhooks": [] });
    world.client.create(&WEBHOOK, "", webhook).await.unwrap();
    let container = json!([{ "name": "main", "image": "kai" }]);
    let metadata =
        json!({ "name": "gpu-reservation-1", "labels": { keys::GPU_GROUP: "g" }, "ownerReferences": [owner] });
    let pod = json!({ "metadata": metadata, "spec": { "containers": container, "terminationGracePeriodSeconds": 0 } });
    world
        .client
        .create(&Pod::RESOURCE, keys::RESERVATION, pod)
        .await
        .unwrap();
    let candidate = Candidate {
        namespace: "kai-scheduler".to_owned(),
        name: "kai-all".to_owned(),
        identity: "me".to_owned(),
        times: LeaseTimes::default(),
        clock: Clock::System,
    };
    world.client.while_leading(candidate, async |_| ()).await.unwrap();
    assert_eq!(world.names(&LEASE).await, ["kai-all"]);
}

async fn assert_all_gone(world: &World) {
    for resource in [&WEBHOOK, &LEASE, &Pod::RESOURCE] {
        assert_eq!(world.names(resource).await, [""; 0], "{}", resource.kind);
    }
    assert_eq!(world.names(&Queue::RESOURCE).await, ["child", "parent"], "queues stay");
}

#[tokio::test(start_paused = true)]
async fn all_objects_go_with_the_anchor_and_the_role() {
    let world = World::new();
    world.install().await.unwrap();
    own_objects(&world).await;
    world.delete(&CLUSTER_ROLE, "", ANCHOR).await;
    let role = Resource::new("rbac.authorization.k8s.io", "v1", "Role", "roles", Scope::Namespaced);
    world.delete(&role, "kai-scheduler", "kai-leader-election").await;
    assert_all_gone(&world).await;
    let owner = world.client.installation_owner().await.unwrap();
    assert!(matches!(owner, InstallationOwner::Deleted(_)), "{owner:?}");
}

#[tokio::test(start_paused = true)]
async fn all_objects_go_with_the_namespace() {
    let world = World::new();
    world.install().await.unwrap();
    own_objects(&world).await;
    world.delete(&NAMESPACE, "", "kai-scheduler").await;
    assert_all_gone(&world).await;
    assert_eq!(world.get(&CLUSTER_ROLE, "", ANCHOR).await, None);
}

#[tokio::test(start_paused = true)]
async fn objects_without_an_owner_are_removed_by_hand() {
    let world = World::new();
    world.install().await.unwrap();
    own_objects(&world).await;
    let lease = json!({ "metadata": { "name": "of-another-program" } });
    world.client.create(&LEASE, "kai-scheduler", lease).await.unwrap();
    let namespaces = Resource::new("", "v1", "Namespace", "namespaces", Scope::Cluster);
    let scaling = keys::SCALE_ADJUST_NAMESPACE;
    let namespace = json!({ "metadata": { "name": scaling } });
    world.client.create(&namespaces, "", namespace).await.unwrap();
    let pod = json!({ "metadata": { "name": "scaling", "labels": { keys::APP: keys::SCALING_POD } },
                      "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    world.client.create(&Pod::RESOURCE, scaling, pod).await.unwrap();
    let settings = installation::Installation {
        namespace: "kai-scheduler".to_owned(),
        reservation_namespace: keys::RESERVATION.to_owned(),
        scale_adjust_namespace: keys::SCALE_ADJUST_NAMESPACE.to_owned(),
    };
    let uninstalled = installation::uninstall(&world.client, &settings, ReservationPods::Delete).await;
    uninstalled.unwrap();
    assert_eq!(world.names(&LEASE).await, ["of-another-program"]);
    assert_eq!(world.names(&Pod::RESOURCE).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn reservation_pods_can_stay_for_kai() {
    let world = World::new();
    world.install().await.unwrap();
    own_objects(&world).await;
    let settings = installation::Installation {
        namespace: "kai-scheduler".to_owned(),
        reservation_namespace: keys::RESERVATION.to_owned(),
        scale_adjust_namespace: keys::SCALE_ADJUST_NAMESPACE.to_owned(),
    };
    let uninstalled = installation::uninstall(&world.client, &settings, ReservationPods::Keep).await;
    uninstalled.unwrap();
    world.delete(&CLUSTER_ROLE, "", ANCHOR).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(world.names(&WEBHOOK).await, [""; 0], "the webhook goes with the anchor");
    assert_eq!(world.names(&Pod::RESOURCE).await, ["gpu-reservation-1"]);
    assert_eq!(world.names(&LEASE).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn the_step_waits_while_programs_of_kai_run() {
    let world = World::new();
    let deployments = Resource::new("apps", "v1", "Deployment", "deployments", Scope::Namespaced);
    let labels = json!({ "app": "binder", "app.kubernetes.io/managed-by": "kai-operator" });
    let template = json!({
        "metadata": { "labels": { "app": "binder" } },
        "spec": { "containers": [{ "name": "binder", "image": "registry/of-kai/binder:v0.17.0" }] },
    });
    world.put(json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "binder", "namespace": "kai-scheduler", "labels": labels },
        "spec": { "replicas": 1, "selector": { "matchLabels": { "app": "binder" } }, "template": template },
    }));
    let waits = tokio::time::timeout(Duration::from_secs(600), world.install()).await;
    assert!(waits.is_err(), "it began beside KAI: {waits:?}");
    let definitions = Resource::new(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        Scope::Cluster,
    );
    assert_eq!(
        world.names(&definitions).await,
        [""; 0],
        "the definitions are KAI's while it runs"
    );

    let install = world.install();
    let remove = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        world.delete(&deployments, "kai-scheduler", "binder").await;
    };
    let (installed, ()) = tokio::join!(install, remove);
    installed.unwrap();
    assert!(world.names(&definitions).await.len() > 5);
}
