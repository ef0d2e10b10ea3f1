//! The error type of the installation step.

use std::io;
use std::path::PathBuf;

use super::version::Version;

/// Why the installation step failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The installation directory can't be read.
    #[error("reading the installation directory {}: {source}; name a directory that this process may read with --installation", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A file of the installation directory is invalid.
    #[error("reading {name} of the installation directory: {problem}")]
    File {
        /// The name of the file.
        name: String,
        /// The problem and the remedy.
        problem: String,
    },
    /// An object of the installation directory is invalid.
    #[error("installing {object} of {source_name}: {problem}")]
    Object {
        /// The file.
        source_name: String,
        /// Kind and name of the object.
        object: String,
        /// The field, the problem and the remedy.
        problem: String,
    },
    /// The API server rejects an object of the installation directory.
    #[error(
        "installing {object} of {source_name}: the api server rejects it: {message}; correct the field in {source_name}"
    )]
    Rejected {
        /// The file.
        source_name: String,
        /// Kind and name of the object.
        object: String,
        /// The API server's message, which names the field.
        message: String,
    },
    /// The API server does not serve the kind of an object yet.
    #[error(
        "installing {object} of {source_name}: the api server does not serve {kind}; create its CustomResourceDefinition (`kai crds apply` or --apply-crds)"
    )]
    NotServed {
        /// The file.
        source_name: String,
        /// Kind and name of the object.
        object: String,
        /// Version and kind.
        kind: String,
    },
    /// A newer version of kai applied a CustomResourceDefinition.
    #[error(
        "applying CustomResourceDefinition {name}: version {live} of kai applied it, which is newer than {}; use that version of kai, or \
         replace it with --force (fields that this version does not know are lost)",
        Version::OURS
    )]
    NewerCrd {
        /// The name of the definition.
        name: String,
        /// The version that applied it.
        live: String,
    },
    /// A CustomResourceDefinition is being deleted.
    #[error("applying CustomResourceDefinition {0}: it is being deleted; wait until its last object is deleted")]
    CrdTerminating(String),
    /// The API server does not serve a CustomResourceDefinition.
    #[error("waiting for CustomResourceDefinition {name}: {reason}; delete the definition that has the same names")]
    NotEstablished {
        /// The name of the definition.
        name: String,
        /// The API server's reason.
        reason: String,
    },
    /// A call to the API server failed.
    #[error(transparent)]
    Cluster(#[from] kai_cluster::Error),
}

impl Error {
    /// Whether a repetition can't succeed before a file changes.
    pub(super) fn is_permanent(&self) -> bool {
        match self {
            Error::Directory { .. } | Error::File { .. } | Error::Object { .. } | Error::NewerCrd { .. } => true,
            Error::Rejected { .. }
            | Error::NotServed { .. }
            | Error::CrdTerminating(_)
            | Error::NotEstablished { .. }
            | Error::Cluster(_) => false,
        }
    }

    /// Whether the API server rejects the object as invalid.
    pub(super) fn is_rejection(&self) -> bool {
        matches!(self, Error::Rejected { .. })
    }
}
