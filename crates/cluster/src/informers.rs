//! The informers that all roles of a process share. An informer starts when a role first asks for it.

use std::sync::OnceLock;

use kai_api::Object;

use crate::{Client, Informer, Selection};

macro_rules! informers {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {
        /// The informers of a process, one per resource.
        #[derive(Debug)]
        pub struct Informers {
            client: Client,
            $($name: OnceLock<Informer<$type>>,)*
            config_maps: OnceLock<Informer<kai_api::ConfigMap>>,
        }

        impl Informers {
            /// Starts no watch yet.
            pub fn new(client: &Client) -> Informers {
                Informers {
                    client: client.clone(),
                    $($name: OnceLock::new(),)*
                    config_maps: OnceLock::new(),
                }
            }

            $($(#[$doc])* pub fn $name(&self) -> &Informer<$type> {
                self.started(&self.$name)
            })*

            /// Waits until all informers that have been started are synced, except that of ConfigMaps.
            pub async fn synced(&self) {
                $(if let Some(informer) = self.$name.get() {
                    informer.synced().await;
                })*
            }

            /// Whether all informers that have been started are synced.
            pub fn are_synced(&self) -> bool {
                true $(&& self.$name.get().is_none_or(Informer::is_synced))*
            }
        }

        $(impl Kind for $type {
            fn informer(informers: &Informers) -> &OnceLock<Informer<$type>> {
                &informers.$name
            }
        })*
    };
}

/// A kind with a shared informer.
pub trait Kind: Object {
    #[doc(hidden)]
    fn informer(informers: &Informers) -> &OnceLock<Informer<Self>>;
}

impl Kind for kai_api::ConfigMap {
    fn informer(informers: &Informers) -> &OnceLock<Informer<Self>> {
        &informers.config_maps
    }
}

informers! {
    /// Pods that have not terminated, and for some readers those of gangs that have succeeded.
    pods: kai_api::Pod,
    /// Nodes.
    nodes: kai_api::Node,
    /// Queues.
    queues: kai_api::Queue,
    /// Pod groups.
    pod_groups: kai_api::PodGroup,
    /// Bind requests.
    bind_requests: kai_api::BindRequest,
    /// Topologies.
    topologies: kai_api::Topology,
    /// Priority classes.
    priority_classes: kai_api::PriorityClass,
    /// Runtime classes.
    runtime_classes: kai_api::RuntimeClass,
    /// PersistentVolumeClaims.
    volume_claims: kai_api::PersistentVolumeClaim,
    /// PersistentVolumes.
    volumes: kai_api::PersistentVolume,
    /// Storage classes.
    storage_classes: kai_api::StorageClass,
    /// CSINodes.
    csi_nodes: kai_api::CsiNode,
    /// CSIDrivers.
    csi_drivers: kai_api::CsiDriver,
    /// CSIStorageCapacities.
    storage_capacities: kai_api::CsiStorageCapacity,
}

impl Informers {
    /// Metadata of ConfigMaps, without the ConfigMaps that the binder creates for pods with GPU shares. A process without the right to
    /// list ConfigMaps works without them, so `are_synced` does not wait for them.
    pub fn config_maps(&self) -> &Informer<kai_api::ConfigMap> {
        let others = Selection {
            labels: format!("{}!=true", kai_api::keys::SHARED_GPU_MARKER),
            ..Selection::default()
        };
        self.config_maps.get_or_init(|| Informer::start(&self.client, &others))
    }

    /// Restricts a kind to what a caller with fewer rights than a role may watch, before its informer starts: to a namespace, or to
    /// nothing (`None`).
    pub fn restrict<T: Kind>(&self, namespace: Option<&str>) {
        let _ = T::informer(self).get_or_init(|| match namespace {
            None => Informer::empty(),
            Some(namespace) => Informer::start(
                &self.client,
                &Selection {
                    namespace: Some(namespace.to_owned()),
                    ..Selection::default()
                },
            ),
        });
    }

    fn started<'a, T: Object>(&self, informer: &'a OnceLock<Informer<T>>) -> &'a Informer<T> {
        informer.get_or_init(|| Informer::start(&self.client, &Selection::default()))
    }
}
