//! A scenario: a cluster, how to run it, and what must come out of it.

mod case;
mod expectation;
mod installation;
mod manifest;
mod objects;
mod params;
mod parse;
mod sources;
mod suggestion;
mod unknown_fields;
mod warnings;
mod workloads;

use std::path::{Path, PathBuf};
use std::time::Duration;

use kai_engine::model::{Config, GangKey, GangSpec, Millis, NodeSpec, PodSpec, QueueSpec, TopologySpec, Usage};

pub use expectation::{Expectation, ExpectedNode, ExpectedPod, ExpectedTotals};
pub use installation::{Author, Document, Installation, Manifests, NotInstalled};
pub use sources::{File, Source, discover};
pub use warnings::Warnings;

pub use kai_embedded::workloads::expansion::{is_synthetic_uid, synthetic_uid};

use crate::Error;

/// A cluster to run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name in results.
    pub id: String,
    /// What it was read from, for messages.
    pub origin: PathBuf,
    /// The clock of the first cycle; each further cycle is a second later.
    pub now: Millis,
    /// Policy.
    pub config: Config,
    /// Cycles before the expectation must hold.
    pub cycles: u32,
    /// Cycles after that, during which it must keep holding.
    pub settle_cycles: u32,
    /// Which statuses are meant.
    pub view: View,
    /// Names of the pod groups whose evicted pods stay.
    pub hold_releasing: Vec<String>,
    /// The cluster.
    pub objects: Objects,
    /// How many pods of each gang must have a place, if any has. Filled in when the run begins.
    pub(crate) gang_minimums: Vec<(GangKey, u32)>,
    /// What must come out; `None` = nothing in particular.
    pub expectation: Option<Expectation>,
    /// What was skipped or changed on the way in.
    pub warnings: Warnings,
    /// The files it was read from.
    pub files: Vec<PathBuf>,
    /// Pods of manifests that admission refused.
    pub refused_pods: u64,
    /// How long reading took.
    pub load_time: Duration,
}

/// Which moment the statuses of a scenario are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Right after the last cycle's decisions.
    Decisions,
    /// After the world carried them out: bound pods run, evicted ones are back and wait.
    Settled,
}

/// The objects of a cluster, as the engine takes them.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// Nodes.
    pub nodes: Vec<NodeSpec>,
    /// Queues.
    pub queues: Vec<QueueSpec>,
    /// Pod groups.
    pub gangs: Vec<GangSpec>,
    /// Pods.
    pub pods: Vec<PodSpec>,
    /// Topologies.
    pub topologies: Vec<TopologySpec>,
    /// Historic usage.
    pub usage: Vec<Usage>,
}

/// Reads a scenario. Manifests go through the rules of the installation; a case is a cluster in which they did their work.
pub fn load(source: &Source, installation: &dyn Installation) -> Result<Scenario, Error> {
    let started = std::time::Instant::now();
    let mut scenario = match source {
        Source::Case(file) => case::load(file.path(), &file.read()?)?,
        Source::Manifests { id, files } => {
            let read = files.iter().map(|file| Ok((file.path(), file.read()?)));
            manifest::load(id, &read.collect::<Result<Vec<_>, Error>>()?, installation)?
        }
    };
    scenario.files = source.files().iter().map(|file| file.path().to_owned()).collect();
    scenario.load_time = started.elapsed();
    Ok(scenario)
}

/// Reads a case from text. The path is for messages, and its ending tells JSON from YAML.
pub fn load_case(path: &Path, text: &str) -> Result<Scenario, Error> {
    case::load(path, text)
}

/// Reads manifests from text, like [`load_case`].
pub fn load_manifests(path: &Path, text: &str, installation: &dyn Installation) -> Result<Scenario, Error> {
    manifest::load("manifests", &[(path, text.to_owned())], installation)
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
