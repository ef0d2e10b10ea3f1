//! What an installation of kai does to objects before the scheduler sees them: admission and grouping. The rules are the
//! caller's: roles are not known here.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::{Warnings, display};

/// An object of a manifest.
#[derive(Clone, Debug)]
pub struct Document {
    /// The file it is from.
    pub file: Arc<Path>,
    /// Its kind.
    pub kind: String,
    /// The object.
    pub object: Value,
    /// Who wrote it.
    pub author: Author,
}

/// Who wrote an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// The user, in a file.
    User,
    /// A controller, for an object of the user.
    Controller,
}

impl Document {
    /// An object that a controller makes for this one.
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

    /// Its namespace, `default` where none is written.
    pub fn namespace(&self) -> &str {
        let written = self.object.pointer("/metadata/namespace").and_then(Value::as_str);
        written.filter(|namespace| !namespace.is_empty()).unwrap_or("default")
    }
}

/// The manifests of one cluster on their way to the scheduler.
#[derive(Debug, Default)]
pub struct Manifests {
    /// All objects.
    pub documents: Vec<Document>,
    /// What to tell the user.
    pub warnings: Warnings,
    /// Pods that admission refused. They are not among the objects any more.
    pub refused_pods: u64,
}

/// The rules of an installation.
pub trait Installation: Sync {
    /// Refuses and completes objects, and gives pods their pod groups.
    fn prepare(&self, manifests: &mut Manifests);
}

/// No installation: pods without a pod group wait.
#[derive(Clone, Copy, Debug)]
pub struct NotInstalled;

impl Installation for NotInstalled {
    fn prepare(&self, _: &mut Manifests) {}
}
