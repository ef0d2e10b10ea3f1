//! The cluster of these tests: an API server with the admission role, users, and objects that they write.

use std::net::TcpListener;

use kai_api::{Resource, Scope};
use kai_cluster::{Client, Clock, Context, Deletion, Part, Patch, Target};
use kai_controllers::admission::{self, Settings};
use kai_embedded::server::{Backend, Options, Server};
use serde_json::{Value, json};

pub(crate) const PODS: Resource = Resource::new("", "v1", "Pod", "pods", Scope::Namespaced);
pub(crate) const CONFIG_MAPS: Resource = Resource::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced);
pub(crate) const NAMESPACES: Resource = Resource::new("", "v1", "Namespace", "namespaces", Scope::Cluster);
pub(crate) const DEFINITIONS: Resource = Resource::new(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    Scope::Cluster,
);
pub(crate) const QUEUES: Resource = Resource::new("scheduling.run.ai", "v2", "Queue", "queues", Scope::Cluster);
pub(crate) const POD_GROUPS: Resource = Resource::new(
    "scheduling.run.ai",
    "v2alpha2",
    "PodGroup",
    "podgroups",
    Scope::Namespaced,
);
pub(crate) const BIND_REQUESTS: Resource = Resource::new(
    "scheduling.run.ai",
    "v1alpha2",
    "BindRequest",
    "bindrequests",
    Scope::Namespaced,
);
pub(crate) const TOPOLOGIES: Resource =
    Resource::new("kai.scheduler", "v1alpha1", "Topology", "topologies", Scope::Cluster);
pub(crate) const MUTATING: Resource = Resource::new(
    "admissionregistration.k8s.io",
    "v1",
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
    Scope::Cluster,
);

pub(crate) const BINDINGS: Resource = Resource::new(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingAdmissionPolicyBinding",
    "validatingadmissionpolicybindings",
    Scope::Cluster,
);

pub(crate) const TENANT: &str = "system:serviceaccount:team-a:default";
pub(crate) const BINDER: &str = "system:serviceaccount:kai-scheduler:binder";
pub(crate) const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";

/// An API server with the admission role, which serves TLS on a port of this machine.
pub(crate) struct Cluster {
    pub(crate) server: Server,
    role: tokio::task::JoinHandle<()>,
}

impl Cluster {
    pub(crate) async fn start(change: impl FnOnce(&mut Settings)) -> Cluster {
        let server = Server::new(Options::default());
        let admin = Client::in_process(server.service());
        for definition in kai_api::crd::crds() {
            admin.create(&DEFINITIONS, "", definition).await.unwrap();
        }
        for name in ["team-a", "kai-resource-reservation"] {
            admin
                .create(&NAMESPACES, "", json!({"metadata": {"name": name}}))
                .await
                .unwrap();
        }
        let mut settings = Settings { ..Settings::default() };
        change(&mut settings);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        server.route_service("kai-scheduler", "admission", Backend::address(address));
        let context = Context::new(
            Client::in_process(server.service_as("system:serviceaccount:kai-scheduler:admission")),
            Clock::System,
        );
        let health = context.health.clone();
        let role = tokio::spawn(async move {
            let ended = admission::serve(context, settings, listener).await;
            panic!("admission ended: {ended:?}");
        });
        let cluster = Cluster { server, role };
        // The role registers with health when it first runs, and is ready when the API server knows its webhooks and policies.
        let last = Target {
            resource: &BINDINGS,
            namespace: "",
            name: "kai-shared-gpu-config-maps",
        };
        while admin.get_value(last).await.unwrap().is_none() || !health.not_ready().is_empty() {
            assert!(!cluster.role.is_finished());
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        cluster
    }

    pub(crate) fn client(&self, user: &str) -> Client {
        Client::in_process(self.server.service_as(user))
    }

    /// Stops the webhook server, as a crash would.
    pub(crate) fn stop(&self) {
        self.role.abort();
        self.server.unroute_service("kai-scheduler", "admission");
    }

    pub(crate) async fn create(&self, user: &str, resource: &Resource, object: Value) -> Result<Value, String> {
        let namespace = match resource.scope {
            Scope::Namespaced => object["metadata"]["namespace"].as_str().unwrap_or("team-a").to_owned(),
            Scope::Cluster => String::new(),
        };
        let created = self.client(user).create(resource, &namespace, object).await;
        created.map_err(|error| error.to_string())
    }

    pub(crate) async fn change(
        &self,
        user: &str,
        resource: &Resource,
        name: &str,
        change: Value,
    ) -> Result<Value, String> {
        self.change_part(user, resource, name, Part::Object, change).await
    }

    pub(crate) async fn change_part(
        &self,
        user: &str,
        resource: &Resource,
        name: &str,
        part: Part,
        change: Value,
    ) -> Result<Value, String> {
        let namespace = match resource.scope {
            Scope::Namespaced => "team-a",
            Scope::Cluster => "",
        };
        let target = Target {
            resource,
            namespace,
            name,
        };
        let changed = self.client(user).patch(target, part, Patch::Merge(change)).await;
        changed.map_err(|error| error.to_string())
    }

    pub(crate) async fn delete(&self, user: &str, resource: &Resource, name: &str) -> Result<(), String> {
        let namespace = match resource.scope {
            Scope::Namespaced => "team-a",
            Scope::Cluster => "",
        };
        let target = Target {
            resource,
            namespace,
            name,
        };
        let deleted = self.client(user).delete(target, &Deletion::default()).await;
        deleted.map_err(|error| error.to_string())
    }
}

pub(crate) fn pod(name: &str, labels: Value, annotations: Value) -> Value {
    json!({
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "main", "image": "i"}]},
    })
}

pub(crate) fn foreign(mut pod: Value) -> Value {
    pod["spec"]["schedulerName"] = "default-scheduler".into();
    pod
}

pub(crate) fn queue(name: &str, parent: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"parentQueue": parent, "resources": {
        "gpu": {"quota": 1, "limit": -1, "overQuotaWeight": 1}}}})
}

#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, String>, words: &str) {
    let message = result.unwrap_err();
    assert!(message.contains(words), "{message}");
}
