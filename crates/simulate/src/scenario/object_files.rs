//! The files of objects, for messages about references between objects.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{Document, Warnings};

/// The file of each object, by kind and name as in `Pod team-a/train-0`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectFiles {
    /// Empty for a scenario of one file.
    by_object: FxHashMap<String, Arc<Path>>,
    /// The file of objects that are not listed, or the name of the scenario.
    origin: PathBuf,
}

impl ObjectFiles {
    /// All objects are of this file.
    pub(super) fn one(origin: &Path) -> ObjectFiles {
        ObjectFiles {
            by_object: FxHashMap::default(),
            origin: origin.to_owned(),
        }
    }

    /// The files of manifests. A later object replaces an earlier one, as in a cluster.
    pub(super) fn of_documents(origin: &Path, documents: &[Document]) -> ObjectFiles {
        let several = documents.windows(2).any(|pair| pair[0].file != pair[1].file);
        let named = documents.iter().filter(|_| several).map(|document| {
            let name = document.object.pointer("/metadata/name").and_then(|name| name.as_str());
            let name = name.unwrap_or_default();
            let object = match document.kind.as_str() {
                kind @ ("Pod" | "PodGroup" | "BindRequest" | "PersistentVolumeClaim" | "ConfigMap") => {
                    format!("{kind} {}/{name}", document.namespace())
                }
                kind => format!("{kind} {name}"),
            };
            (object, Arc::clone(&document.file))
        });
        ObjectFiles {
            by_object: named.collect(),
            origin: origin.to_owned(),
        }
    }

    /// The file of an object.
    pub(crate) fn file(&self, object: &str) -> &Path {
        self.by_object.get(object).map_or(&self.origin, |file| file)
    }

    /// Adds a warning about an object.
    pub(crate) fn warn(&self, warnings: &mut Warnings, object: &str, problem: impl fmt::Display) {
        warnings.push_about(self.file(object), format_args!("{object}: {problem}"));
    }
}
