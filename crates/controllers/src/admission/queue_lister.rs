//! Read access of the webhooks to queues and priority classes.

use std::sync::Arc;

use kai_api::PriorityClasses;

/// Lists queues, and the priority classes that pod groups may name.
pub trait QueueLister: Send + Sync {
    /// All queues.
    fn list(&self) -> Vec<Arc<kai_api::Queue>>;

    /// The queue of this name, if it exists.
    fn get(&self, name: &str) -> Option<Arc<kai_api::Queue>>;

    /// The priority classes of the cluster.
    fn priority_classes(&self) -> PriorityClasses;
}

/// The lister on the shared informers.
pub(super) struct InformerLister {
    pub(super) queues: kai_cluster::Informer<kai_api::Queue>,
    pub(super) classes: kai_cluster::Informer<kai_api::PriorityClass>,
}

impl QueueLister for InformerLister {
    fn list(&self) -> Vec<Arc<kai_api::Queue>> {
        self.queues.all()
    }

    fn get(&self, name: &str) -> Option<Arc<kai_api::Queue>> {
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

/// A fixed list of queues, with the priority classes of an installation; for tests and `kai simulate`.
impl QueueLister for Vec<Arc<kai_api::Queue>> {
    fn list(&self) -> Vec<Arc<kai_api::Queue>> {
        self.clone()
    }

    fn get(&self, name: &str) -> Option<Arc<kai_api::Queue>> {
        self.iter().find(|queue| queue.metadata.plain_name() == name).cloned()
    }

    fn priority_classes(&self) -> PriorityClasses {
        PriorityClasses::installed()
    }
}
