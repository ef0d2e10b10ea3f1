//! Installs kai on the embedded API server: custom resources, namespaces, and webhooks that are called in the process. For the playground
//! and tests; on a real cluster manifests do this.

use std::convert::Infallible;

use anyhow::Context as _;
use kai_cluster::Context;
use kai_controllers::admission::{self, Endpoint};
use kai_embedded::server::{Backend, Server, Service};
use serde_json::json;

use crate::roles::{self, RoleSettings};

/// The namespace of kai.
const NAMESPACE: &str = "kai-scheduler";
/// The account of the roles.
const ROLES: &str = "system:serviceaccount:kai-scheduler:kai-all";
/// The account of the simulated nodes. They act as kubelets and node agents of all nodes; the account of a node agent is limited to one
/// node. Accounts of this namespace may write the scheduler's keys.
const NODES: &str = "system:serviceaccount:kai-scheduler:simulated-nodes";

/// Creates the objects that an installation creates before the roles start.
pub fn install(server: &Server) -> anyhow::Result<()> {
    let store = server.store();
    let namespaces = [NAMESPACE, kai_api::keys::RESERVATION]
        .map(|name| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }));
    // The default class of most clusters, for claims that name none.
    let storage_class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": kai_embedded::workloads::VOLUME_PROVISIONER,
        "metadata": { "name": "standard", "annotations": { "storageclass.kubernetes.io/is-default-class": "true" } },
    });
    let objects = namespaces.into_iter().chain([storage_class]);
    for object in objects.chain(kai_api::crd::crds()) {
        let name = object["metadata"]["name"].clone();
        let stored = store.put(object).map_err(|refusal| anyhow::anyhow!("{refusal:?}"));
        stored.with_context(|| format!("installing {name}"))?;
    }
    Ok(())
}

/// The API with the account of the roles.
pub fn service_of_roles(server: &Server) -> Service {
    server.service_as(ROLES)
}

/// The API with the account of the simulated nodes.
pub fn service_of_nodes(server: &Server) -> Service {
    server.service_as(NODES)
}

/// Runs the roles with their webhooks in this process, until one of them fails for good. Dropping the future stops them all.
pub async fn run(server: Server, context: Context, mut settings: RoleSettings) -> anyhow::Result<Infallible> {
    let Some(webhooks) = settings.admission.take() else {
        return roles::run(context, settings).await;
    };
    let Endpoint::Service { name, .. } = &webhooks.endpoint else {
        anyhow::bail!("webhooks in this process are behind a service, not at an address");
    };
    let state = admission::State::of(webhooks.clone(), &context);
    server.route_service(
        &webhooks.system_namespace,
        name,
        Backend::service(admission::router(state)),
    );
    let _unroute = Unroute {
        server: server.clone(),
        namespace: webhooks.system_namespace.clone(),
        name: name.clone(),
    };
    let alone = settings.scheduler.is_none() && settings.binder.is_none() && settings.controllers.is_none();
    tokio::select! {
        biased;
        failed = roles::run(context.clone(), settings), if !alone => failed,
        never = admission::register(context, webhooks) => match never {},
    }
}

/// Removes the route to the webhooks when the roles end.
struct Unroute {
    server: Server,
    namespace: String,
    name: String,
}

impl Drop for Unroute {
    fn drop(&mut self) {
        self.server.unroute_service(&self.namespace, &self.name);
    }
}
