//! What webhooks know of the cluster: the queues, and the priority classes. Reading only.

use std::sync::Arc;

use kai_api::PriorityClasses;

/// The queues that there are, and the priority classes that their pod groups may name.
pub trait QueueLister: Send + Sync {
    /// All of them.
    fn all(&self) -> Vec<Arc<kai_api::Queue>>;

    /// The one of this name.
    fn named(&self, name: &str) -> Option<Arc<kai_api::Queue>>;

    /// The priority classes.
    fn priority_classes(&self) -> PriorityClasses;
}

/// As the watches of a role see them.
pub(super) struct InformerLister {
    pub(super) queues: kai_cluster::Feed<kai_api::Queue>,
    pub(super) classes: kai_cluster::Feed<kai_api::PriorityClass>,
}

impl QueueLister for InformerLister {
    fn all(&self) -> Vec<Arc<kai_api::Queue>> {
        self.queues.all()
    }

    fn named(&self, name: &str) -> Option<Arc<kai_api::Queue>> {
        self.queues.get(&kai_api::ObjectKey::new("", name))
    }

    fn priority_classes(&self) -> PriorityClasses {
        let mut classes = PriorityClasses::default();
        for class in self.classes.all() {
            classes.insert(&class);
        }
        classes
    }
}

/// A fixed list, in a cluster with the priority classes of an installation.
impl QueueLister for Vec<Arc<kai_api::Queue>> {
    fn all(&self) -> Vec<Arc<kai_api::Queue>> {
        self.clone()
    }

    fn named(&self, name: &str) -> Option<Arc<kai_api::Queue>> {
        self.iter().find(|queue| queue.metadata.plain_name() == name).cloned()
    }

    fn priority_classes(&self) -> PriorityClasses {
        PriorityClasses::installed()
    }
}
