//! Errors that keep a scenario from being loaded. Each message names the file and, where there is one, the object and field.

use std::path::PathBuf;

/// A scenario can't be loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file or folder can't be read.
    #[error("{path}: can't be read: {source}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The file is not UTF-8.
    #[error("{path}: is not UTF-8 text; it has to be {expected}", path = path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// The format that is read.
        expected: &'static str,
    },
    /// The file is larger than what is read.
    #[error("{path}: has more than {bytes_max} bytes (uncompressed), which is too large; divide it", path = path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The bound.
        bytes_max: u64,
    },
    /// The file is a case or a snapshot, where manifests are read.
    #[error("{path}: is a case or a snapshot; name files with the manifests of workloads", path = path.display())]
    NoManifest {
        /// The file.
        path: PathBuf,
    },
    /// A folder without scenarios.
    #[error("{path}: has no .json, .yaml or .yml file in it", path = path.display())]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// Broken JSON or YAML.
    #[error("{path}: is not valid {format}: {problem}", path = path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// JSON or YAML.
        format: &'static str,
        /// The parser's message, with the position.
        problem: String,
    },
    /// A field of a case or object with an invalid value.
    #[error("{path}: {object}: {field}: {problem}", path = path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// The object, or `case`.
        object: String,
        /// The field.
        field: String,
        /// The problem.
        problem: String,
    },
    /// A row of a trace with an invalid value.
    #[error("{path}: line {line}: {problem}", path = path.display())]
    TraceRow {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The problem.
        problem: String,
    },
    /// The folder does not have the trace.
    #[error("{path}: is missing, also with .gz; a trace has NAME-SEED-pods.csv and NAME-SEED-nodes.csv", path = path.display())]
    NoTrace {
        /// The first file that is missing.
        path: PathBuf,
    },
    /// The file is neither a case nor a manifest.
    #[error(
        "{path}: is neither a case (no field `objects`) nor a Kubernetes manifest (no field `kind`)",
        path = path.display()
    )]
    NoScenario {
        /// The file.
        path: PathBuf,
    },
    /// The file is no snapshot that can be used.
    #[error("{path}: {problem}", path = path.display())]
    Snapshot {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A file can't be written.
    #[error("{path}: can't be written: {problem}", path = path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A change of the cluster can't be made.
    #[error("--what-if \"{change}\": {problem}")]
    Change {
        /// The change, in words.
        change: String,
        /// The problem.
        problem: String,
    },
    /// Several snapshots and manifests are named together.
    #[error(
        "{path}: manifests belong to one cluster, and here are several snapshots; name one of them, or leave the manifests out",
        path = path.display()
    )]
    SeveralSnapshots {
        /// The second snapshot.
        path: PathBuf,
    },
    /// Standard input is named twice.
    #[error("-: standard input is named twice; name it once")]
    StandardInputTwice,
    /// The manifests have no object that the scheduler reads.
    #[error(
        "{path}: has no object that takes part in a run; those are {known}, and workloads: {expanded}",
        path = path.display()
    )]
    NothingKnown {
        /// The file.
        path: PathBuf,
        /// The kinds that the scheduler reads.
        known: &'static str,
        /// The workload kinds, whose pods are generated.
        expanded: &'static str,
    },
}
