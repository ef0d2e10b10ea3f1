//! Removes what an installation leaves in a cluster, in installations whose objects have no owner, or whose owner stays: webhooks,
//! policies, leases, scaling pods and reservation pods. Workloads, queues, pod groups and CustomResourceDefinitions stay.

use kai_api::{Pod, Resource, Scope, keys};
use kai_cluster::{Client, Deletion, Part, Patch, Selection, Target};
use serde_json::json;

static LEASE: Resource = Resource::new("coordination.k8s.io", "v1", "Lease", "leases", Scope::Namespaced);

/// Where an installation has its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// kai's namespace, with the leases.
    pub namespace: String,
    /// The namespace of the reservation pods.
    pub reservation_namespace: String,
    /// The namespace of the scaling pods.
    pub scale_adjust_namespace: String,
}

/// What happens to the reservation pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReservationPods {
    /// They go: the GPUs of running pods look free to the kubelets.
    #[default]
    Delete,
    /// They stay, and do not go with the installation: for KAI, which deletes running pods that share a GPU without a reservation pod.
    Keep,
}

/// Removes webhooks, policies, leases and scaling pods; reservation pods go or stay.
pub async fn uninstall(
    client: &Client,
    installation: &Installation,
    reservation_pods: ReservationPods,
) -> Result<(), kai_cluster::Error> {
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
    // An autoscaler would add nodes for them, and nobody would delete them.
    let namespace = &installation.scale_adjust_namespace;
    let scaling = Selection {
        labels: format!("{}={}", keys::APP, keys::SCALING_POD),
        ..within(namespace)
    };
    for pod in client.list::<Pod>(&scaling).await? {
        let target = Target::of::<Pod>(namespace, pod.metadata.plain_name());
        client.delete(target, &Deletion::default()).await?;
    }
    let namespace = &installation.reservation_namespace;
    let reserving = Selection {
        labels: keys::GPU_GROUP.to_owned(),
        ..within(namespace)
    };
    for pod in client.list::<Pod>(&reserving).await? {
        let target = Target::of::<Pod>(namespace, pod.metadata.plain_name());
        match reservation_pods {
            ReservationPods::Delete => client.delete(target, &Deletion::default()).await?,
            ReservationPods::Keep => detach(client, target, pod.metadata.uid.as_deref()).await?,
        }
    }
    Ok(())
}

/// Removes the owner of a reservation pod, so that the pod does not go with the anchor of the installation.
async fn detach(client: &Client, target: Target<'_>, uid: Option<&str>) -> Result<(), kai_cluster::Error> {
    let without_owner = json!({ "metadata": { "uid": uid, "ownerReferences": null } });
    match client.patch(target, Part::Object, Patch::Merge(without_owner)).await {
        // It has ended since it was listed.
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        detached => detached.map(drop),
    }
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
