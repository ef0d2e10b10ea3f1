//! The configuration of a node by a ConfigMap of NVIDIA's device plugin. The kubelet mounts the ConfigMap as a directory with a file per
//! key; `select` chooses the key of this node, `file` reads the format, and `load` puts both together. Nothing here watches or waits; that is
//! the task in `agent::config`.

mod fields;
mod file;
mod select;

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use fields::FieldProblem;
pub use file::{ConfigFile, FileSettings, parse};
pub use select::{Choice, FallbackStrategy, select};

use crate::allocator::plan::Policy;

/// Largest file that is read. The API server limits a whole ConfigMap to this size.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Longest message about a problem; it becomes the message of an event, which may have 1,024 characters.
const PROBLEM_CHARS_MAX: usize = 800;
/// How often reading starts again when the kubelet replaces the files meanwhile.
const READS_MAX: usize = 3;

/// Where the configuration files are, and which one applies to a node without the label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigSource {
    /// The directory at which the ConfigMap is mounted.
    pub directory: PathBuf,
    /// Namespace and name of the ConfigMap, for messages.
    pub config_map: Option<String>,
    /// The key for nodes without the label.
    pub default: Option<String>,
    /// What to try without label and default.
    pub fallback: Vec<FallbackStrategy>,
}

impl ConfigSource {
    /// The ConfigMap or directory in a message.
    pub fn name(&self) -> String {
        match &self.config_map {
            Some(name) => format!("ConfigMap {name}"),
            None => format!("configuration directory {}", self.directory.display()),
        }
    }
}

/// A configuration that the node uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedConfig {
    /// The ConfigMap and key in words.
    pub source: String,
    /// The flags with what the file sets.
    pub policy: Policy,
    /// Fields of the file without effect.
    pub warnings: Vec<String>,
}

/// Which configuration the node uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ConfigStatus {
    /// The agent's flags only: there is no directory of files.
    #[default]
    FlagsOnly,
    /// Not known yet: the node's label has not been read in this run, and no earlier run left a configuration. GPUs are not offered, since
    /// resources of another configuration would stay in the node's status.
    Pending,
    /// This one.
    Applied(AppliedConfig),
    /// The last good one, or the flags if there was none, because of this problem.
    Rejected {
        /// The ConfigMap, key and field, what is wrong, and the remedy.
        problem: String,
    },
}

/// Reads the configuration of a node with this value of the label. `Err` names the ConfigMap, the key, the field and the remedy.
pub fn load(source: &ConfigSource, label: Option<&str>, flags: &Policy) -> Result<AppliedConfig, String> {
    let found = read(source, label).and_then(|file| {
        let Some((key, text)) = file else {
            return Ok(AppliedConfig {
                source: format!("{}, no key", source.name()),
                policy: flags.clone(),
                warnings: Vec::new(),
            });
        };
        let of_key = format!("{}, key {key}", source.name());
        let applied = parse(&text).and_then(|file| Ok((file.settings.over(flags)?, file.warnings)));
        match applied {
            Ok((policy, warnings)) => Ok(AppliedConfig {
                source: of_key,
                policy,
                warnings,
            }),
            Err(FieldProblem { field, problem }) if field.is_empty() => Err(format!("{of_key}: {problem}")),
            Err(FieldProblem { field, problem }) => Err(format!("{of_key}, field {field}: {problem}")),
        }
    });
    found.map_err(|problem| kai_yaml::shortened(&problem, PROBLEM_CHARS_MAX))
}

/// The key and text of the file that applies to the node.
fn read(source: &ConfigSource, label: Option<&str>) -> Result<Option<(String, String)>, String> {
    let choice = Choice {
        label,
        default: source.default.as_deref(),
        fallback: &source.fallback,
    };
    let unreadable = |path: &Path, error: &io::Error| {
        format!(
            "{}: reading {}: {error}; mount the ConfigMap there, or correct --config-dir",
            source.name(),
            path.display()
        )
    };
    let mut attempts = 0;
    loop {
        attempts += 1;
        let version = current_version(&source.directory);
        let result = keys(&version)
            .map_err(|error| unreadable(&version, &error))
            .and_then(|keys| {
                let key = select(&keys, choice).map_err(|problem| format!("{}: {problem}", source.name()))?;
                let Some(key) = key else { return Ok(None) };
                let text = text_of(&version.join(key))
                    .map_err(|error| format!("{}, key {key}: {error}; write a file of YAML text", source.name()))?;
                Ok(Some((key.to_owned(), text)))
            });
        // The kubelet deletes the old version after it switched to the new one.
        if result.is_ok() || attempts == READS_MAX || current_version(&source.directory) == version {
            return result;
        }
    }
}

/// The directory of the present version of a mounted ConfigMap, to which `..data` points, so that keys and text are of one version. A
/// directory that is no such mount is its own version.
fn current_version(directory: &Path) -> PathBuf {
    std::fs::canonicalize(directory.join("..data")).unwrap_or_else(|_| directory.to_owned())
}

/// Names of files; the kubelet's own entries begin with two dots.
fn keys(directory: &Path) -> io::Result<BTreeSet<String>> {
    let mut keys = BTreeSet::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if !name.starts_with("..") && !entry.path().is_dir() {
            keys.insert(name);
        }
    }
    Ok(keys)
}

fn text_of(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?
        .take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!(
            "the file has more than {FILE_BYTES_MAX} bytes"
        )));
    }
    Ok(text)
}
