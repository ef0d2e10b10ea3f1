//! Removes what an installation leaves in a cluster, in installations whose objects have no owner, or whose owner stays: webhooks,
//! policies, leases and reservation pods. Workloads, queues, pod groups and CustomResourceDefinitions stay.

use kai_api::{Pod, Resource, Scope, keys};
use kai_cluster::{Client, Deletion, Selection, Target};

static LEASE: Resource = Resource::new("coordination.k8s.io", "v1", "Lease", "leases", Scope::Namespaced);

/// Where an installation has its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// kai's namespace, with the leases.
    pub namespace: String,
    /// The namespace of the reservation pods.
    pub reservation_namespace: String,
}

/// Removes webhooks, policies, leases and reservation pods.
pub async fn uninstall(client: &Client, installation: &Installation) -> Result<(), kai_cluster::Error> {
    crate::admission::uninstall(client).await?;
    let namespace = &installation.namespace;
    for lease in client.list_values(&LEASE, &within(namespace)).await? {
        let name = lease["metadata"]["name"].as_str().unwrap_or_default();
        if is_ours(name) {
            let target = Target {
                resource: &LEASE,
                namespace,
                name,
            };
            client.delete(target, &Deletion::default()).await?;
        }
    }
    let namespace = &installation.reservation_namespace;
    let reserving = Selection {
        labels: keys::GPU_GROUP.to_owned(),
        ..within(namespace)
    };
    for pod in client.list::<Pod>(&reserving).await? {
        let target = Target::of::<Pod>(namespace, pod.metadata.plain_name());
        client.delete(target, &Deletion::default()).await?;
    }
    Ok(())
}

fn within(namespace: &str) -> Selection {
    Selection {
        namespace: Some(namespace.to_owned()),
        ..Selection::default()
    }
}

/// Whether a lease of kai's namespace is one of kai's: the namespace may be shared with other programs.
fn is_ours(lease: &str) -> bool {
    lease.starts_with("kai-") || lease.ends_with(".kai.scheduler") || lease == "41fce092.run.ai"
}
