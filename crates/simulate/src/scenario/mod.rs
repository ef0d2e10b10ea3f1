//! A scenario: a cluster, how to run it, and the expected result. It is read from a case file or from Kubernetes manifests.
//!
//! | module | content |
//! |---|---|
//! | `sources` | which files make up which scenario |
//! | `parse` | JSON and YAML to values; typed reading with the path of a wrong field |
//! | `case`, `params`, `expectation` | case files |
//! | `manifest`, `workloads`, `installation` | manifests: pods of workloads, admission and grouping |
//! | `snapshot` | snapshots of a scheduler |
//! | `what_if` | changes of a cluster |
//! | `redact` | files without the names of a cluster, for bug reports |
//! | `objects`, `checks` | the Kubernetes objects; references between them |
//! | `field_types` | types and values that an API server would refuse |
//! | `unknown_fields`, `object_files`, `warnings` | messages about mistakes in files |

mod case;
mod checks;
mod expectation;
mod field_types;
mod installation;
mod manifest;
mod object_files;
mod objects;
mod params;
mod parse;
mod redact;
mod snapshot;
mod sources;
mod unknown_fields;
mod warnings;
mod what_if;
mod workloads;

use std::path::{Path, PathBuf};
use std::time::Duration;

use kai_engine::model::{Config, Millis};
use kai_mirror::MirrorSettings;

pub use expectation::{Expectation, ExpectedNode, ExpectedPod, ExpectedTotals};
pub use installation::{Author, Document, Installation, Manifests, NotInstalled};
pub use objects::Objects;
pub use redact::{NameClass, RedactedFile, Redaction, Replacements, load_redacted, redact, redaction_differences};
pub use snapshot::{SchedulerPolicy, SnapshotSettings};
pub use sources::{File, Source, discover};
pub use warnings::Warnings;
pub use what_if::{Change, ObjectName, ParseError, QueueField, ShareField};

pub(crate) use object_files::ObjectFiles;

pub use kai_embedded::workloads::expansion::{is_synthetic_uid, synthetic_uid};

use crate::Error;
use manifest::Input;

/// A cluster, how to run it, and the expected result.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The name in results.
    pub id: String,
    /// The file or folder, for messages.
    pub origin: PathBuf,
    /// The clock of the first cycle; each further cycle is a second later.
    pub now: Millis,
    /// The scheduler's configuration.
    pub config: Config,
    /// Which objects belong to the scheduler.
    pub mirror: MirrorSettings,
    /// The cycles before the check.
    pub cycles: u32,
    /// Further cycles, after each of which the expectation must still hold.
    pub settle_cycles: u32,
    /// The moment of the expected statuses.
    pub view: View,
    /// Names of the pod groups whose evicted pods stay terminating.
    pub hold_releasing: Vec<String>,
    /// The objects of the cluster.
    pub objects: Objects,
    /// The expected result; `None` without a check.
    pub expectation: Option<Expectation>,
    /// Warnings about skipped or changed input.
    pub warnings: Warnings,
    /// The files of objects.
    pub(crate) object_files: ObjectFiles,
    /// The files of the scenario.
    pub files: Vec<PathBuf>,
    /// Pods of manifests that admission rejected.
    pub refused_pods: u64,
    /// The time of reading.
    pub load_time: Duration,
}

/// The moment of a scenario's pod statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Right after the last cycle's decisions.
    Decisions,
    /// After the simulated cluster applied the decisions: bound pods run, evicted pods are pending again.
    Settled,
}

/// Reads a scenario. Manifests pass through admission and grouping of the installation; the objects of a case have passed already.
pub fn load(source: &Source, installation: &dyn Installation) -> Result<Scenario, Error> {
    load_changed(source, &[], installation)
}

/// Reads a scenario and applies the changes to its objects, in order. New objects of a case pass through admission and grouping, too.
pub fn load_changed(source: &Source, changes: &[Change], installation: &dyn Installation) -> Result<Scenario, Error> {
    let started = std::time::Instant::now();
    let mut scenario = match source {
        Source::Case(file) if changes.is_empty() => case::load(file.path(), &file.read()?)?,
        Source::Case(file) => case::load_changed(file.path(), &file.read()?, changes, installation)?,
        Source::Manifests { id, files } => {
            let read = files.iter().map(|file| {
                Ok(match file.is_snapshot() {
                    true => Input::Snapshot(
                        file.path(),
                        Box::new(snapshot::read(file.path(), file.read_bytes()?, installation)?),
                    ),
                    false => Input::Manifest(file.path(), file.read()?),
                })
            });
            manifest::load(id, read.collect::<Result<Vec<_>, Error>>()?, changes, installation)?
        }
    };
    scenario.files = source.files().iter().map(|file| file.path().to_owned()).collect();
    scenario.load_time = started.elapsed();
    Ok(scenario)
}

/// Reads the objects of manifests, of any kind, with the pods that the controllers of Kubernetes make of them. Nothing is grouped yet.
pub fn load_objects(sources: &[Source]) -> Result<Manifests, Error> {
    let mut files = Vec::new();
    for source in sources {
        let (Source::Manifests { files: named, .. }, false) =
            (source, source.files().iter().any(sources::File::is_snapshot))
        else {
            return Err(Error::NoManifest {
                path: source.path().to_owned(),
            });
        };
        for file in named {
            files.push(Input::Manifest(file.path(), file.read()?));
        }
    }
    manifest::objects(files)
}

/// The kind of an object in [`Document::kind`]: with the API group, if Kubernetes or kai has another kind of that name.
pub fn document_kind(api_version: &str, kind: &str) -> String {
    manifest::qualified_by(kind.to_owned(), Some(api_version))
}

/// Reads a case from text. The path is for messages, and its extension tells JSON from YAML.
pub fn load_case(path: &Path, text: &str) -> Result<Scenario, Error> {
    case::load(path, text)
}

/// Reads manifests from text, like [`load_case`].
pub fn load_manifests(path: &Path, text: &str, installation: &dyn Installation) -> Result<Scenario, Error> {
    manifest::load(
        "manifests",
        vec![Input::Manifest(path, text.to_owned())],
        &[],
        installation,
    )
}

/// Reads a snapshot from a zip file or from its unpacked entry, like [`load_case`].
pub fn load_snapshot(path: &Path, bytes: Vec<u8>, installation: &dyn Installation) -> Result<Scenario, Error> {
    let snapshot = snapshot::read(path, bytes, installation)?;
    manifest::load(
        "snapshot",
        vec![Input::Snapshot(path, Box::new(snapshot))],
        &[],
        installation,
    )
}

/// Kind, namespace and name of an object, for messages.
fn display(kind: &str, object: &serde_json::Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(serde_json::Value::as_str);
    let name = text("/metadata/name").unwrap_or("(no name)");
    match text("/metadata/namespace") {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}
