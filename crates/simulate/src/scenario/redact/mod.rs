//! Redacted input for bug reports: the same cluster with other names.
//!
//! | module | content |
//! |---|---|
//! | `names` | classes of names, and their replacements in order |
//! | `rules`, `kinds`, `inputs`, `annotations` | the fields that stay |
//! | `vocabulary` | the words that stay |
//! | `walk` | applies the rules |
//! | `compare` | whether the redacted input decides as the original |
//!
//! The rules list what stays. All other fields and texts are left out or replaced, so that a field which nobody thought of leaks nothing.
//!
//! **Law: the redacted input decides as the original**, except for the names.

mod annotations;
mod compare;
mod inputs;
mod kinds;
#[cfg(test)]
mod laws;
mod names;
mod rules;
mod vocabulary;
mod walk;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

pub use compare::redaction_differences;
pub use names::{NameClass, Replacements};

use super::sources::{Format, format_of};
use super::{Document, Installation, Scenario, Source, Warnings, case, manifest, parse, snapshot};
use crate::Error;
use names::{FoundNames, Part};
use rules::Rule;
use walk::{Names, Walk};

/// The redacted files of one scenario.
#[derive(Clone, Debug)]
pub struct Redaction {
    /// The files, in the order of the input.
    pub files: Vec<RedactedFile>,
    /// The replacements of names.
    pub names: Replacements,
}

/// A redacted file.
#[derive(Clone, Debug)]
pub struct RedactedFile {
    content: Content,
}

/// The content of a file, before and after.
#[derive(Clone, Debug)]
enum Content {
    Case(Value),
    Snapshot(Value),
    /// Objects with their kinds.
    Manifests(Vec<(String, Value)>),
}

/// Redacts the files of a scenario.
pub fn redact(source: &Source) -> Result<Redaction, Error> {
    let read = |file: &super::File| -> Result<Content, Error> {
        let path = file.path();
        Ok(match source {
            Source::Case(_) => {
                let text = file.read()?;
                let document = parse::documents(path, &text)?.into_iter().next();
                Content::Case(document.ok_or_else(|| Error::NoScenario { path: path.to_owned() })?)
            }
            Source::Manifests { .. } if file.is_snapshot() => {
                Content::Snapshot(snapshot::parse(path, file.read_bytes()?)?)
            }
            Source::Manifests { .. } => {
                let documents = manifest::read_documents(&Arc::from(path), &file.read()?, &mut Warnings::default())?;
                Content::Manifests(documents.into_iter().map(with_kind).collect())
            }
        })
    };
    let contents: Vec<Content> = source.files().iter().map(read).collect::<Result<_, Error>>()?;
    let mut compared_labels = BTreeSet::new();
    let mut found = FoundNames::default();
    for content in &contents {
        content
            .values()
            .for_each(|value| find_compared_labels(value, &mut compared_labels));
        content.redacted(Names::Find(&mut found), &compared_labels);
    }
    add_derived_names(&contents, &mut found);
    let names = found.numbered();
    let files = contents.iter().map(|content| RedactedFile {
        content: content.redacted(Names::Replace(&names), &compared_labels),
    });
    Ok(Redaction {
        files: files.collect(),
        names: names.clone(),
    })
}

/// The object with its kind, which items of lists may leave to the list.
fn with_kind(document: Document) -> (String, Value) {
    let Document { kind, mut object, .. } = document;
    if let Some(fields) = object.as_object_mut() {
        fields.entry("kind").or_insert_with(|| kind.clone().into());
    }
    (kind, object)
}

impl Content {
    fn values(&self) -> impl Iterator<Item = &Value> {
        let (one, many) = match self {
            Content::Case(value) | Content::Snapshot(value) => (Some(value), &[][..]),
            Content::Manifests(documents) => (None, documents.as_slice()),
        };
        one.into_iter().chain(many.iter().map(|(_, object)| object))
    }

    fn redacted(&self, names: Names<'_>, compared_labels: &BTreeSet<String>) -> Content {
        let mut walk = Walk {
            names,
            compared_labels,
            with_uids: !matches!(self, Content::Manifests(_)),
        };
        match self {
            Content::Case(case) => Content::Case(walk.value(case, &inputs::CASE)),
            Content::Snapshot(snapshot) => Content::Snapshot(walk.value(snapshot, &inputs::SNAPSHOT)),
            Content::Manifests(documents) => {
                let redacted = documents.iter().map(|(kind, object)| {
                    let rule: Rule = kinds::of_kind(kind).unwrap_or(kinds::OTHER);
                    (kind.clone(), walk.value(object, &rule))
                });
                Content::Manifests(redacted.collect())
            }
        }
    }

    /// All objects of a kind.
    fn objects<'c>(&'c self, list: &'static str, kind: &'static str) -> Box<dyn Iterator<Item = &'c Value> + 'c> {
        let listed = |parent: &str, value: &'c Value| {
            let objects = value.get(parent).and_then(|lists| lists.get(list)?.as_array());
            Box::new(objects.into_iter().flatten())
        };
        match self {
            Content::Case(case) => listed("objects", case),
            Content::Snapshot(snapshot) => listed("rawObjects", snapshot),
            Content::Manifests(documents) => {
                let of_kind = documents.iter().filter(move |(other, _)| other == kind);
                Box::new(of_kind.map(|(_, object)| object))
            }
        }
    }
}

impl RedactedFile {
    /// The content for a file of this name: a zip file for a snapshot, JSON for `.json`, else YAML.
    pub fn bytes(&self, path: &Path) -> Result<Vec<u8>, Error> {
        let is_json = format_of(path) == Some(Format::Json);
        let failed = |problem: String| Error::Unwritable {
            path: path.to_owned(),
            problem,
        };
        let json = |value: &Value| serde_json::to_vec_pretty(value).map_err(|error| failed(error.to_string()));
        let yaml = |value: &Value| serde_saphyr::to_string(value).map_err(|error| failed(error.to_string()));
        Ok(match &self.content {
            Content::Snapshot(snapshot) if is_json => json(snapshot)?,
            Content::Snapshot(snapshot) => snapshot::zipped(snapshot).map_err(|error| failed(error.to_string()))?,
            Content::Case(case) if is_json => json(case)?,
            Content::Case(case) => yaml(case)?.into_bytes(),
            Content::Manifests(documents) if is_json => {
                let items: Vec<&Value> = documents.iter().map(|(_, object)| object).collect();
                json(&json!({ "apiVersion": "v1", "kind": "List", "items": items }))?
            }
            Content::Manifests(documents) => {
                let texts: Result<Vec<String>, Error> = documents.iter().map(|(_, object)| yaml(object)).collect();
                texts?.join("---\n").into_bytes()
            }
        })
    }

    /// The usual extension of such a file.
    pub fn extension(&self) -> &'static str {
        match self.content {
            Content::Snapshot(_) => "zip",
            Content::Case(_) | Content::Manifests(_) => "yaml",
        }
    }
}

/// Reads the redacted files as the scenario that they are.
pub fn load_redacted(redaction: &Redaction, installation: &dyn Installation) -> Result<Scenario, Error> {
    let mut inputs: Vec<(PathBuf, &RedactedFile)> = Vec::new();
    for (at, file) in redaction.files.iter().enumerate() {
        inputs.push((PathBuf::from(format!("redacted-{}.{}", at + 1, file.extension())), file));
    }
    let text = |path: &Path, file: &RedactedFile| -> Result<String, Error> {
        let text = String::from_utf8(file.bytes(path)?);
        text.map_err(|_| Error::NotText {
            path: path.to_owned(),
            expected: super::sources::OBJECTS_FORMAT,
        })
    };
    if let [(path, file)] = inputs.as_slice()
        && let Content::Case(_) = file.content
    {
        return case::load(path, &text(path, file)?);
    }
    let read = inputs.iter().map(|(path, file)| {
        Ok(match file.content {
            Content::Snapshot(_) => {
                let snapshot = snapshot::read(path, file.bytes(path)?, installation)?;
                manifest::Input::Snapshot(path, Box::new(snapshot))
            }
            Content::Case(_) | Content::Manifests(_) => manifest::Input::Manifest(path, text(path, file)?),
        })
    });
    manifest::load("redacted", read.collect::<Result<Vec<_>, Error>>()?, &[], installation)
}

/// Labels that a selector compares as numbers, anywhere in the value.
fn find_compared_labels(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            let text = |field: &str| fields.get(field).and_then(Value::as_str);
            if let (Some(key), Some("Gt" | "Lt")) = (text("key"), text("operator")) {
                found.insert(key.to_owned());
            }
            fields.values().for_each(|value| find_compared_labels(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| find_compared_labels(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Adds the names that controllers form from others: claims of ephemeral volumes, and pods and claims of StatefulSets.
fn add_derived_names(contents: &[Content], found: &mut FoundNames) {
    let text = |value: &Value, pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let of_kind =
        |list: &'static str, kind: &'static str| contents.iter().flat_map(move |content| content.objects(list, kind));
    for pod in of_kind("pods", "Pod") {
        let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array);
        let ephemeral = volumes
            .into_iter()
            .flatten()
            .filter(|volume| volume.get("ephemeral").is_some());
        for volume in ephemeral.filter_map(|volume| text(volume, "/name")) {
            let Some(name) = text(pod, "/metadata/name") else {
                continue;
            };
            let claim = format!("{name}-{volume}");
            let parts = vec![
                Part::Name(NameClass::Pod, name),
                Part::Text("-".to_owned()),
                Part::Name(NameClass::PodVolume, volume),
            ];
            found.add_derived(NameClass::VolumeClaim, claim, parts);
        }
    }
    for set in of_kind("", "StatefulSet") {
        let Some(set_name) = text(set, "/metadata/name") else {
            continue;
        };
        let numbered = |name: String, prefix: &str| {
            let number = name.strip_prefix(prefix)?.strip_prefix('-')?.to_owned();
            let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then_some((name, number))
        };
        let of_set = Part::Name(NameClass::Workload, set_name.clone());
        for pod in of_kind("pods", "Pod").filter_map(|pod| text(pod, "/metadata/name")) {
            if let Some((pod, number)) = numbered(pod, &set_name) {
                let parts = vec![of_set.clone(), Part::Text(format!("-{number}"))];
                found.add_derived(NameClass::Pod, pod, parts);
            }
        }
        let templates = set.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
        for template in templates
            .into_iter()
            .flatten()
            .filter_map(|template| text(template, "/metadata/name"))
        {
            let prefix = format!("{template}-{set_name}");
            let claims = of_kind("persistentVolumeClaims", "PersistentVolumeClaim");
            for claim in claims.filter_map(|claim| text(claim, "/metadata/name")) {
                if let Some((claim, number)) = numbered(claim, &prefix) {
                    let parts = vec![
                        Part::Name(NameClass::PodVolume, template.clone()),
                        Part::Text("-".to_owned()),
                        of_set.clone(),
                        Part::Text(format!("-{number}")),
                    ];
                    found.add_derived(NameClass::VolumeClaim, claim, parts);
                }
            }
        }
    }
}
