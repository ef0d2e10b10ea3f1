//! The namespace and name of an object.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::Object;

/// Namespace and name of an object. Cheap to clone, since many tables hold it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectKey {
    /// Namespace; empty for cluster-scoped resources.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// A key.
    pub fn new(namespace: &str, name: &str) -> ObjectKey {
        ObjectKey {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The key of this name in the same namespace.
    pub fn beside(&self, name: &Arc<str>) -> ObjectKey {
        ObjectKey {
            namespace: Arc::clone(&self.namespace),
            name: Arc::clone(name),
        }
    }

    /// The key of an object.
    pub fn of<T: Object>(object: &T) -> ObjectKey {
        let metadata = object.metadata();
        let text = |text: &Option<crate::Text>| text.as_ref().map(crate::Text::shared).unwrap_or_default();
        ObjectKey {
            namespace: text(&metadata.namespace),
            name: text(&metadata.name),
        }
    }
}

impl Ord for ObjectKey {
    fn cmp(&self, other: &ObjectKey) -> Ordering {
        // Keys of one namespace mostly share its text, so comparing pointers first makes look-ups faster.
        let namespaces = match Arc::ptr_eq(&self.namespace, &other.namespace) {
            true => Ordering::Equal,
            false => self.namespace.cmp(&other.namespace),
        };
        namespaces.then_with(|| self.name.cmp(&other.name))
    }
}

impl PartialOrd for ObjectKey {
    fn partial_cmp(&self, other: &ObjectKey) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &*self.namespace {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}
