//! The objects that a Config or a shard owns: which kinds they have, and who wakes up the operator when one changes.

use std::sync::Arc;

use kai_api::{Metadata, Object, Resource, Scope};
use kai_cluster::{Client, Deletion, Dependents, Error, Informer, Selection, Subscription, Target};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Notify;

use super::inputs::ClusterFacts;
use super::objects::{CONFIG_MAP, DEPLOYMENT, DISRUPTION_BUDGET, Owner, SERVICE, VPA};
use super::state::State;

/// KAI's exporter of NUMA zones is a DaemonSet. The operator creates none, and deletes those of a Config that KAI's operator left.
static DAEMON_SET: Resource = Resource::new("apps", "v1", "DaemonSet", "daemonsets", Scope::Namespaced);

/// The kinds of owned objects.
fn kinds(facts: ClusterFacts) -> impl Iterator<Item = &'static Resource> {
    let always = [&DEPLOYMENT, &DAEMON_SET, &SERVICE, &CONFIG_MAP, &DISRUPTION_BUDGET];
    always.into_iter().chain(facts.serves_vpa.then_some(&VPA))
}

/// The annotation with the Config or shard that an object is for. Objects of an installation with an anchor have the anchor as their owner,
/// so that they go with the installation.
const OPERATED_FOR: &str = "kai.scheduler/operated-for";

/// Marks the fields of an object as those of an owner.
pub(super) fn mark(fields: &mut Value, owner: &Owner) {
    let owner = match owner {
        Owner::Config => "Config".to_owned(),
        Owner::Shard(shard) => format!("SchedulingShard/{shard}"),
    };
    fields["metadata"]["annotations"][OPERATED_FOR] = owner.into();
}

/// Whether the operator marked the object with these metadata.
pub(crate) fn is_marked(metadata: &Value) -> bool {
    metadata["annotations"][OPERATED_FOR].is_string()
}

fn marked(text: &str) -> Option<Owner> {
    match text.strip_prefix("SchedulingShard/") {
        Some(shard) => Some(Owner::Shard(shard.to_owned())),
        None => (text == "Config").then_some(Owner::Config),
    }
}

/// An object that was created for a Config or a shard, by this operator or by KAI's.
pub(super) struct OwnedObject {
    pub(super) resource: &'static Resource,
    pub(super) namespace: String,
    pub(super) name: String,
    /// UID of the owner that is its controller.
    pub(super) controller: Option<String>,
    /// The owner that the operator marked it with.
    pub(super) mark: Option<Owner>,
    /// Whether a Config or shard is among its owners: KAI's operator makes them the owners of all its objects.
    has_kai_owner: bool,
    pub(super) is_terminating: bool,
    uid: Option<String>,
}

impl OwnedObject {
    fn of(resource: &'static Resource, object: &Value) -> Option<OwnedObject> {
        let metadata = &object["metadata"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let owners = || metadata["ownerReferences"].as_array().into_iter().flatten();
        let of_kai = |owner: &Value| owner["apiVersion"].as_str() == Some(&kai_api::Config::RESOURCE.api_version());
        let controller = owners().find(|owner| owner["controller"] == true);
        let controller = controller.and_then(|owner| text(&owner["uid"]));
        let mark = metadata["annotations"][OPERATED_FOR].as_str().and_then(marked);
        if controller.is_none() && mark.is_none() {
            return None;
        }
        Some(OwnedObject {
            resource,
            namespace: text(&metadata["namespace"])?,
            name: text(&metadata["name"])?,
            controller,
            mark,
            has_kai_owner: owners().any(of_kai),
            is_terminating: !metadata["deletionTimestamp"].is_null(),
            uid: text(&metadata["uid"]),
        })
    }

    /// Whether KAI's operator made the object: objects of this operator have the mark.
    pub(super) fn is_of_kai(&self) -> bool {
        self.has_kai_owner && self.mark.is_none()
    }

    pub(super) async fn delete(&self, client: &Client, dependents: Dependents) -> Result<(), Error> {
        let target = Target {
            resource: self.resource,
            namespace: &self.namespace,
            name: &self.name,
        };
        let deletion = Deletion {
            uid: self.uid.clone(),
            dependents,
            ..Deletion::default()
        };
        client.delete(target, &deletion).await
    }
}

/// All objects of a namespace that have a controller or a mark of the operator.
pub(super) async fn list(client: &Client, namespace: &str, facts: ClusterFacts) -> Result<Vec<OwnedObject>, Error> {
    let selection = Selection {
        namespace: Some(namespace.to_owned()),
        ..Selection::default()
    };
    let mut owned = Vec::new();
    for resource in kinds(facts) {
        let objects = match client.list_values(resource, &selection).await {
            // The CRD of the autoscaler is gone.
            Err(error) if error.is_not_found() => Vec::new(),
            listed => listed?,
        };
        owned.extend(objects.iter().filter_map(|object| OwnedObject::of(resource, object)));
    }
    Ok(owned)
}

/// Declares a type with the metadata of one kind.
macro_rules! watched {
    ($($field:ident $name:ident: $group:literal $kind:literal $plural:literal,)+) => {
        $(
            #[derive(Clone, Debug, Default, Deserialize)]
            #[serde(default)]
            struct $name {
                metadata: Metadata,
            }

            impl Object for $name {
                const RESOURCE: Resource = Resource::new($group, "v1", $kind, $plural, Scope::Namespaced);
                const METADATA_ONLY: bool = true;

                fn metadata(&self) -> &Metadata {
                    &self.metadata
                }
            }
        )+

        /// Watches that wake up the operator.
        #[derive(Debug)]
        pub struct Watches {
            client: Client,
            wake: Arc<Notify>,
            /// Exists while the API server serves the kind.
            cluster_policies: Option<Subscription<WatchedClusterPolicy>>,
            configs: Subscription<kai_api::Config>,
            shards: Subscription<kai_api::SchedulingShard>,
            $($field: Option<Subscription<$name>>,)+
        }

        impl Watches {
            /// Watches the Config and the shards, and the owned objects of a namespace.
            pub fn start(client: &Client, owned_in: Option<&str>, wake: &Arc<Notify>) -> Watches {
                let everywhere = Selection::default();
                Watches {
                    client: client.clone(),
                    wake: Arc::clone(wake),
                    cluster_policies: None,
                    configs: Informer::start(client, &everywhere).subscribe(wake),
                    shards: Informer::start(client, &everywhere).subscribe(wake),
                    $($field: owned_in.map(|namespace| {
                        let selection = Selection { namespace: Some(namespace.to_owned()), ..Selection::default() };
                        Informer::start(client, &selection).subscribe(wake)
                    }),)+
                }
            }

            /// Forgets the changes: the operator reads the current state anyway.
            pub fn clear(&self) {
                self.configs.take();
                self.shards.take();
                if let Some(subscription) = &self.cluster_policies {
                    subscription.take();
                }
                $(if let Some(subscription) = &self.$field {
                    subscription.take();
                })+
            }
        }
    };
}

watched! {
    deployments WatchedDeployment: "apps" "Deployment" "deployments",
    services WatchedService: "" "Service" "services",
    config_maps WatchedConfigMap: "" "ConfigMap" "configmaps",
    disruption_budgets WatchedDisruptionBudget: "policy" "PodDisruptionBudget" "poddisruptionbudgets",
}

/// The GPU operator's ClusterPolicy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct WatchedClusterPolicy {
    metadata: Metadata,
}

impl Object for WatchedClusterPolicy {
    const RESOURCE: Resource = Resource::new("nvidia.com", "v1", "ClusterPolicy", "clusterpolicies", Scope::Cluster);
    const METADATA_ONLY: bool = true;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl Watches {
    /// Begins or ends the watch of ClusterPolicies: their CRD comes and goes with the GPU operator.
    pub fn follow(&mut self, state: &State) {
        let is_watched = self.cluster_policies.is_some();
        if state.serves_cluster_policies && !is_watched {
            let informer = Informer::start(&self.client, &Selection::default());
            self.cluster_policies = Some(informer.subscribe(&self.wake));
        } else if !state.serves_cluster_policies {
            self.cluster_policies = None;
        }
    }
}
