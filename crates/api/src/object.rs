//! What makes a type an object of the Kubernetes API: which resource it is, and its metadata. No client here.

use std::borrow::Cow;

use serde::de::DeserializeOwned;

use crate::Metadata;

/// A kind of objects and where the API serves it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Resource {
    /// API group; empty for the core.
    pub group: Cow<'static, str>,
    /// Version.
    pub version: Cow<'static, str>,
    /// Kind, as in manifests.
    pub kind: Cow<'static, str>,
    /// Plural, as in URLs.
    pub plural: Cow<'static, str>,
    /// Whether its objects live in namespaces.
    pub scope: Scope,
}

/// Whether the objects of a resource live in namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// In namespaces.
    Namespaced,
    /// One set for the whole cluster.
    Cluster,
}

impl Resource {
    /// A resource known when this was written.
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

    /// `group/version`, or the version alone for the core.
    pub fn api_version(&self) -> String {
        match &*self.group {
            "" => self.version.to_string(),
            group => format!("{group}/{}", self.version),
        }
    }
}

/// A slim type of one resource: the fields that we read.
pub trait Object: DeserializeOwned + Clone + std::fmt::Debug + Send + Sync + 'static {
    /// Which resource.
    const RESOURCE: Resource;

    /// Whether the type has nothing but metadata. Then the rest of the objects does not leave the API server when they are watched.
    const METADATA_ONLY: bool = false;

    /// Its metadata.
    fn metadata(&self) -> &Metadata;

    /// What a mirror of the cluster should not keep in memory, for instance pods that have ended.
    fn is_terminal(&self) -> bool {
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
