//! The interface to admission and grouping, which an installation of kai applies to objects before the scheduler sees them. The caller
//! implements it, because this crate does not depend on the roles.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::snapshot::{SchedulerPolicy, SnapshotSettings};
use super::{Warnings, display};

/// An object of a manifest.
#[derive(Clone, Debug)]
pub struct Document {
    /// The file of the object.
    pub file: Arc<Path>,
    /// The kind.
    pub kind: String,
    /// The object.
    pub object: Value,
    /// The author of the object.
    pub author: Author,
}

/// The author of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// The user, in a file.
    User,
    /// A controller, on behalf of an object of the user.
    Controller,
    /// Nobody here: the object was in a cluster, where it passed admission and grouping.
    Cluster,
}

impl Document {
    /// An object that a controller creates on behalf of this one.
    pub fn made(&self, kind: &str, object: Value) -> Document {
        Document {
            file: Arc::clone(&self.file),
            kind: kind.to_owned(),
            object,
            author: Author::Controller,
        }
    }

    /// Kind, namespace and name, for messages.
    pub fn name(&self) -> String {
        display(&self.kind, &self.object)
    }

    /// The namespace; `default` if the object has none.
    pub fn namespace(&self) -> &str {
        let written = self.object.pointer("/metadata/namespace").and_then(Value::as_str);
        written.filter(|namespace| !namespace.is_empty()).unwrap_or("default")
    }
}

/// The manifests of one cluster before the scheduler sees them.
#[derive(Debug, Default)]
pub struct Manifests {
    /// All objects.
    pub documents: Vec<Document>,
    /// Warnings for the user.
    pub warnings: Warnings,
    /// Pods that admission rejected and removed from `documents`.
    pub refused_pods: u64,
}

/// Admission and grouping of an installation.
pub trait Installation: Sync {
    /// Rejects and completes objects, and creates the pod groups of pods.
    fn prepare(&self, manifests: &mut Manifests);

    /// The policy of the scheduler that made a snapshot. An error is the problem of its configuration.
    fn policy(&self, settings: &SnapshotSettings) -> Result<SchedulerPolicy, String> {
        let _ = settings;
        Ok(SchedulerPolicy::default())
    }
}

/// No installation: pods without a pod group stay pending.
#[derive(Clone, Copy, Debug)]
pub struct NotInstalled;

impl Installation for NotInstalled {
    fn prepare(&self, _: &mut Manifests) {}
}
