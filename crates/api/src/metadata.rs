//! Object metadata, the fields that every kind has.

use kai_engine::model::Millis;
use serde::Deserialize;

use crate::error::FieldError;
use crate::text::{Text, TextMap, null_as_default, unique};
use crate::time::parse_time;
use crate::{Error, keys};

/// Metadata of an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    /// Name.
    #[serde(deserialize_with = "unique")]
    pub name: Option<Text>,
    /// Namespace; `None` means `default` for namespaced kinds.
    pub namespace: Option<Text>,
    /// Uid.
    #[serde(deserialize_with = "unique")]
    pub uid: Option<Text>,
    /// Creation time.
    #[serde(deserialize_with = "unique")]
    pub creation_timestamp: Option<Text>,
    /// Resource version, for optimistic concurrency.
    #[serde(deserialize_with = "unique")]
    pub resource_version: Option<Text>,
    /// Owner references.
    #[serde(deserialize_with = "null_as_default")]
    pub owner_references: Vec<OwnerReference>,
    /// Deletion timestamp.
    #[serde(deserialize_with = "unique")]
    pub deletion_timestamp: Option<Text>,
    /// Labels.
    pub labels: TextMap,
    /// Annotations.
    pub annotations: TextMap,
}

/// A reference to an object's owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OwnerReference {
    /// Group and version.
    pub api_version: Text,
    /// Kind.
    pub kind: Text,
    /// Name.
    pub name: Text,
    /// Uid.
    pub uid: Text,
    /// Whether the owner is the managing controller.
    pub controller: Option<bool>,
}

impl Metadata {
    /// The name; an object without one is invalid.
    pub(crate) fn required_name(&self) -> Result<&str, FieldError> {
        match self.name.as_deref() {
            Some(name) if !name.is_empty() => Ok(name),
            _ => Err(FieldError::new("metadata.name", Error::Missing)),
        }
    }

    /// The namespace, `default` where none is written.
    pub fn namespace(&self) -> &str {
        match self.namespace.as_deref() {
            Some(namespace) if !namespace.is_empty() => namespace,
            _ => "default",
        }
    }

    /// `namespace/name`, for messages.
    pub fn qualified_name(&self) -> String {
        format!("{}/{}", self.namespace(), self.name.as_deref().unwrap_or("(no name)"))
    }

    /// The name, for messages about kinds without a namespace.
    pub fn plain_name(&self) -> &str {
        self.name.as_deref().unwrap_or("(no name)")
    }

    /// The uid, or `fallback` for objects that were never in a cluster.
    pub(crate) fn uid_or(&self, fallback: impl FnOnce() -> String) -> String {
        match self.uid.as_deref() {
            Some(uid) if !uid.is_empty() => uid.to_owned(),
            _ => fallback(),
        }
    }

    /// Creation time; `otherwise` for objects that were never in a cluster.
    pub(crate) fn created(&self, otherwise: Millis) -> Result<Millis, FieldError> {
        let Some(text) = self.creation_timestamp.as_deref() else {
            return Ok(otherwise);
        };
        parse_time(text).map_err(|error| FieldError::new("metadata.creationTimestamp", error))
    }

    /// The deletion timestamp of a terminating object.
    pub(crate) fn deletion(&self) -> Result<Option<Millis>, FieldError> {
        let Some(text) = self.deletion_timestamp.as_deref() else {
            return Ok(None);
        };
        let deletion = parse_time(text).map_err(|error| FieldError::new("metadata.deletionTimestamp", error))?;
        Ok(Some(deletion))
    }

    /// Whether the object has a deletion timestamp.
    pub fn is_terminating(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// The owner that is the managing controller.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references
            .iter()
            .find(|owner| owner.controller == Some(true))
    }

    /// Whether all fields but the resource version are equal.
    pub(crate) fn same_content(&self, earlier: &Metadata) -> bool {
        let Metadata {
            name,
            namespace,
            uid,
            creation_timestamp,
            resource_version: _,
            owner_references,
            deletion_timestamp,
            labels,
            annotations,
        } = self;
        let times = (creation_timestamp, deletion_timestamp);
        (name, namespace, uid) == (&earlier.name, &earlier.namespace, &earlier.uid)
            && times == (&earlier.creation_timestamp, &earlier.deletion_timestamp)
            && *owner_references == earlier.owner_references
            && (labels, annotations) == (&earlier.labels, &earlier.annotations)
    }

    /// The node pool of the object; `None` = the default one.
    pub fn node_pool(&self) -> Option<&str> {
        self.labels.text(keys::NODE_POOL)
    }
}
