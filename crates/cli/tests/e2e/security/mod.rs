//! A tenant with all rights in its own namespace tries to get more than its allocation. Each attempt is refused, or has no effect. The
//! tenant's namespace is `default`; on a real API server its rights are a Role there, on the embedded one every user has all rights.
//! docs/security.md lists the attempts.

mod amounts;
mod devices;
mod forged;
mod others;
mod priority;
mod queues;
mod shares;
mod sizes;

use kai_api::Object;
use kai_cluster::Selection;
use kai_embedded::kubelet::NodeTemplate;
use serde_json::{Value, json};

use crate::harness::manifest::PodManifest;
use crate::harness::{Cluster, User};

const TENANT: &str = "tenant";
/// A service account of the tenant with the name of one of kai's.
const NAMESAKE: &str = "system:serviceaccount:default:binder";

fn node(gpus: &str) -> NodeTemplate {
    NodeTemplate::new("node", gpus)
}

/// A user with all rights in namespace `default`, and none elsewhere.
async fn tenant(cluster: &Cluster) -> User {
    user(cluster, TENANT).await
}

/// The same user, with a running pod that has this fraction of a GPU.
async fn tenant_with(cluster: &Cluster, pod: &str, part: &str) -> User {
    let tenant = tenant(cluster).await;
    tenant
        .create(PodManifest::new(pod).fraction(part).build())
        .await
        .unwrap();
    cluster.until_only_running(&[pod]).await;
    tenant
}

async fn user(cluster: &Cluster, name: &str) -> User {
    let user = cluster.user(name).await;
    let Some(kube) = cluster.kube() else { return user };
    let all = json!(["*"]);
    kube.apply(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": { "name": "tenant", "namespace": "default" },
        "rules": [{ "apiGroups": all, "resources": all, "verbs": all }],
    }))
    .await;
    let subject = |name: &str| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name });
    kube.apply(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": "tenant", "namespace": "default" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant" },
        "subjects": [subject(TENANT), subject(NAMESAKE)],
    }))
    .await;
    let own = Selection {
        namespace: Some("default".to_owned()),
        ..Selection::default()
    };
    cluster
        .until_async("the tenant has its rights", async || {
            user.0.list_values(&kai_api::Pod::RESOURCE, &own).await.is_ok()
        })
        .await;
    user
}

fn tenants_config_map(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": "default" },
        "data": { "NVIDIA_VISIBLE_DEVICES": "all" },
    })
}
