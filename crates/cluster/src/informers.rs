//! One set of watches for all roles of a process: each resource is watched from the first time a role asks for it.

use std::sync::OnceLock;

use kai_api::Object;

use crate::{Client, Informer, Selection};

macro_rules! informers {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {
        /// The watches of a process.
        #[derive(Debug)]
        pub struct Informers {
            client: Client,
            $($name: OnceLock<Informer<$type>>,)*
            config_maps: OnceLock<Informer<kai_api::ConfigMap>>,
        }

        impl Informers {
            /// No watch yet.
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

            /// Whether all watches that were asked for have their first list.
            pub fn are_synced(&self) -> bool {
                true $(&& self.$name.get().is_none_or(Informer::is_synced))*
            }
        }
    };
}

informers! {
    /// All pods that have not ended.
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
    /// Volume claims.
    volume_claims: kai_api::PersistentVolumeClaim,
    /// Volumes.
    volumes: kai_api::PersistentVolume,
}

impl Informers {
    /// ConfigMaps by name alone, without those that the binder makes: of these there are as many as pods that share GPUs. A process
    /// that may not see ConfigMaps works without them, so that they are not among the watches that have to be synced.
    pub fn config_maps(&self) -> &Informer<kai_api::ConfigMap> {
        let others = Selection {
            labels: format!("{}!=true", kai_api::keys::SHARED_GPU_MARKER),
            ..Selection::default()
        };
        self.config_maps.get_or_init(|| Informer::start(&self.client, &others))
    }

    fn started<'a, T: Object>(&self, informer: &'a OnceLock<Informer<T>>) -> &'a Informer<T> {
        informer.get_or_init(|| Informer::start(&self.client, &Selection::default()))
    }
}
