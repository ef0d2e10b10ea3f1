//! A scenario: a cluster, how to run it, and what must come out of it.

mod case;
mod expectation;
mod files;
mod grouping;
mod manifest;
mod objects;
mod params;
mod tree;
mod warnings;

use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::model::{Config, GangKey, GangSpec, Millis, NodeSpec, PodSpec, QueueSpec, TopologySpec, Usage};

pub use expectation::{Expectation, ExpectedNode, ExpectedPod, ExpectedTotals};
pub use files::{Source, discover};
pub use warnings::Warnings;

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

/// Reads a scenario.
pub fn load(source: &Source) -> Result<Scenario, Error> {
    let started = std::time::Instant::now();
    let mut scenario = match source {
        Source::Case(path) => case::load(path, &read_text(path)?)?,
        Source::Manifests { id, files } => {
            let read = files.iter().map(|path| Ok((path.as_path(), read_text(path)?)));
            manifest::load(id, &read.collect::<Result<Vec<_>, Error>>()?)?
        }
    };
    scenario.load_time = started.elapsed();
    Ok(scenario)
}

/// Reads a case from text. The path is for messages, and its ending tells JSON from YAML.
pub fn load_case(path: &Path, text: &str) -> Result<Scenario, Error> {
    case::load(path, text)
}

/// Reads manifests from text, like [`load_case`].
pub fn load_manifests(path: &Path, text: &str) -> Result<Scenario, Error> {
    manifest::load("manifests", &[(path, text.to_owned())])
}

/// The text of a file.
fn read_text(path: &Path) -> Result<String, Error> {
    let bytes = std::fs::read(path).map_err(|source| Error::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    String::from_utf8(bytes).map_err(|_| Error::NotText { path: path.to_owned() })
}
