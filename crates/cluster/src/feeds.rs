//! One set of watches for all roles of a process: each resource is watched from the first time a role asks for it.

use std::sync::OnceLock;

use api::Object;

use crate::{Client, Feed, Selection};

macro_rules! feeds {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {
        /// The watches of a process.
        #[derive(Debug)]
        pub struct Feeds {
            client: Client,
            $($name: OnceLock<Feed<$type>>,)*
        }

        impl Feeds {
            /// No watch yet.
            pub fn new(client: &Client) -> Feeds {
                Feeds {
                    client: client.clone(),
                    $($name: OnceLock::new(),)*
                }
            }

            $($(#[$doc])* pub fn $name(&self) -> &Feed<$type> {
                self.started(&self.$name)
            })*

            /// Whether all watches that were asked for have their first list.
            pub fn are_synced(&self) -> bool {
                true $(&& self.$name.get().is_none_or(Feed::is_synced))*
            }
        }
    };
}

feeds! {
    /// All pods that have not ended.
    pods: api::Pod,
    /// Nodes.
    nodes: api::Node,
    /// Queues.
    queues: api::Queue,
    /// Pod groups.
    pod_groups: api::PodGroup,
    /// Bind requests.
    bind_requests: api::BindRequest,
    /// Topologies.
    topologies: api::Topology,
    /// Priority classes.
    priority_classes: api::PriorityClass,
    /// Runtime classes.
    runtime_classes: api::RuntimeClass,
    /// Volume claims.
    volume_claims: api::PersistentVolumeClaim,
    /// Volumes.
    volumes: api::PersistentVolume,
}

impl Feeds {
    fn started<'a, T: Object>(&self, feed: &'a OnceLock<Feed<T>>) -> &'a Feed<T> {
        feed.get_or_init(|| Feed::start(&self.client, &Selection::default()))
    }
}
