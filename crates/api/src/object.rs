//! The trait of all slim types: the resource and the metadata of an object.

use std::borrow::Cow;

use serde::de::DeserializeOwned;

use crate::Metadata;

/// A resource of the Kubernetes API.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: Cow<'static, str>,
    /// Version.
    pub version: Cow<'static, str>,
    /// Kind, as in manifests.
    pub kind: Cow<'static, str>,
    /// Plural name, as in URLs.
    pub plural: Cow<'static, str>,
    /// Namespaced or cluster-scoped.
    pub scope: Scope,
}

/// The scope of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Each object is in a namespace.
    Namespaced,
    /// Objects have no namespace.
    Cluster,
}

impl Resource {
    /// A resource with static names.
    pub const fn new(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
        scope: Scope,
    ) -> Resource {
        Resource {
            group: Cow::Borrowed(group),
            version: Cow::Borrowed(version),
            kind: Cow::Borrowed(kind),
            plural: Cow::Borrowed(plural),
            scope,
        }
    }

    /// `group/version`, or the version alone for the core group.
    pub fn api_version(&self) -> String {
        match &*self.group {
            "" => self.version.to_string(),
            group => format!("{group}/{}", self.version),
        }
    }
}

/// A slim type of one resource: it has only the fields that kai reads.
pub trait Object: DeserializeOwned + Clone + std::fmt::Debug + Send + Sync + 'static {
    /// The resource.
    const RESOURCE: Resource;

    /// Whether the type has metadata only. Then watches ask the API server for `PartialObjectMetadata`.
    const METADATA_ONLY: bool = false;

    /// The object's metadata.
    fn metadata(&self) -> &Metadata;

    /// Whether the object has reached its final state, such as a pod that has ended. Watches treat such objects as deleted.
    fn is_terminal(&self) -> bool {
        false
    }

    /// Whether some readers need the object after it has become terminal.
    fn matters_when_terminal(&self) -> bool {
        false
    }
}

/// Declares the resource of a slim type that has a `metadata` field.
macro_rules! object {
    ($type:ty, $group:literal, $version:literal, $kind:literal, $plural:literal, $scope:ident) => {
        impl $crate::Object for $type {
            const RESOURCE: $crate::Resource =
                $crate::Resource::new($group, $version, $kind, $plural, $crate::Scope::$scope);

            fn metadata(&self) -> &$crate::Metadata {
                &self.metadata
            }
        }
    };
}
pub(crate) use object;
