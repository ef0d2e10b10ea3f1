//! A full reference to an object, as in the field `involvedObject` of an event.

use crate::{Object, Text};

/// An object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectReference {
    /// apiVersion of the object.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace; empty for cluster-scoped resources.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

impl ObjectReference {
    /// The reference to `object`. The uid is empty for objects without one, as in tests.
    pub fn of<T: Object>(object: &T) -> ObjectReference {
        let metadata = object.metadata();
        let text = |text: &Option<Text>| text.as_deref().unwrap_or_default().to_owned();
        ObjectReference {
            api_version: T::RESOURCE.api_version(),
            kind: T::RESOURCE.kind.to_string(),
            namespace: text(&metadata.namespace),
            name: text(&metadata.name),
            uid: text(&metadata.uid),
        }
    }
}
