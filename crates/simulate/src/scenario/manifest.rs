//! Kubernetes manifests: the documents and lists of one cluster.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kai_engine::model::Millis;
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::Value;

use super::field_types::{self, group_of};
use super::installation::{Author, Document, Installation, Manifests};
use super::objects::{KINDS, ObjectCollector};
use super::parse::{documents, invalid_type, typed};
use super::snapshot::{CompleteKinds, SchedulerPolicy, Snapshot};
use super::{Change, ObjectFiles, Scenario, View, Warnings, unknown_fields, what_if, workloads};
use crate::Error;

/// The clock of manifests without a time: 2026-01-01T00:00:00Z. The system time would make two runs differ.
const NOW_DEFAULT: Millis = Millis(1_767_225_600_000);

/// A file of a cluster.
pub(super) enum Input<'f> {
    Manifest(&'f Path, String),
    Snapshot(&'f Path, Box<Snapshot>),
}

impl<'f> Input<'f> {
    fn path(&self) -> &'f Path {
        let (Input::Manifest(path, _) | Input::Snapshot(path, _)) = self;
        path
    }
}

/// What a snapshot says about its cluster, besides the objects.
#[derive(Default)]
struct ClusterState {
    policy: SchedulerPolicy,
    now: Option<Millis>,
    complete: CompleteKinds,
}

pub(super) fn load(
    id: &str,
    files: Vec<Input<'_>>,
    changes: &[Change],
    installation: &dyn Installation,
) -> Result<Scenario, Error> {
    let paths: Vec<PathBuf> = files.iter().map(|file| file.path().to_owned()).collect();
    let (mut manifests, state) = read(files)?;
    let Manifests {
        documents, warnings, ..
    } = &mut manifests;
    what_if::apply(changes, documents, warnings, &state.policy.mirror.identity())?;
    if !manifests
        .documents
        .iter()
        .any(|document| group_of(&document.kind).is_some())
    {
        let path = paths.first().cloned().unwrap_or_default();
        let (known, expanded) = (KINDS, workloads::KINDS);
        return Err(Error::NothingKnown { path, known, expanded });
    }
    workloads::expand(&mut manifests.documents, &mut manifests.warnings);
    installation.prepare(&mut manifests);
    let Manifests {
        documents,
        mut warnings,
        refused_pods,
    } = manifests;
    let ClusterState { policy, now, complete } = state;
    let mut collector = ObjectCollector::of_manifests(&policy.mirror, complete);
    for document in &documents {
        collect(&mut collector, document)?;
        warnings.extend_about(&document.file, std::mem::take(&mut collector.warnings));
    }
    let now = collector.latest_creation().max(now).unwrap_or(NOW_DEFAULT);
    let origin = match paths.as_slice() {
        [path] => path,
        _ => Path::new(id),
    };
    let object_files = ObjectFiles::of_documents(origin, &documents);
    let (objects, found) = collector.finish(now, &object_files);
    warnings.extend(found);
    Ok(Scenario {
        id: id.to_owned(),
        origin: origin.to_owned(),
        now,
        config: policy.config,
        mirror: policy.mirror,
        cycles: 1,
        settle_cycles: 0,
        view: View::Decisions,
        hold_releasing: Vec::new(),
        objects,
        expectation: None,
        warnings,
        object_files,
        files: paths,
        refused_pods,
        load_time: Duration::ZERO,
    })
}

/// The objects of the files, and the pods of workloads.
pub(super) fn objects(files: Vec<Input<'_>>) -> Result<Manifests, Error> {
    let (mut manifests, _) = read(files)?;
    workloads::expand(&mut manifests.documents, &mut manifests.warnings);
    Ok(manifests)
}

/// All objects of the files, including items of lists, with warnings about unknown fields.
fn read(files: Vec<Input<'_>>) -> Result<(Manifests, ClusterState), Error> {
    let (mut manifests, mut state) = (Manifests::default(), ClusterState::default());
    for input in files {
        match input {
            Input::Manifest(path, text) => {
                let read = read_documents(&Arc::from(path), &text, &mut manifests.warnings)?;
                manifests.documents.extend(read);
            }
            Input::Snapshot(_, snapshot) => {
                manifests.documents.extend(snapshot.documents);
                manifests.warnings.extend(snapshot.warnings);
                state = ClusterState {
                    policy: snapshot.policy,
                    now: snapshot.now,
                    complete: snapshot.complete,
                };
            }
        }
    }
    generate_names(&mut manifests.documents);
    manifests.documents.iter().try_for_each(check_types)?;
    Ok((manifests, state))
}

/// The objects of a manifest, with warnings about unknown fields. Objects of a cluster get none: an API server took them, so that fields
/// which are unknown here are newer than this program. [`generate_names`] and [`check_types`] come next.
pub(super) fn read_documents(file: &Arc<Path>, text: &str, warnings: &mut Warnings) -> Result<Vec<Document>, Error> {
    let mut read = Vec::new();
    for (at, document) in documents(file, text)?.into_iter().enumerate() {
        open(&mut read, document, None, file, at + 1)?;
    }
    for document in &read {
        let mut found = Warnings::default();
        unknown_fields::check(&document.kind, &document.object, &mut found);
        warnings.extend_about(file, found);
    }
    Ok(read)
}

/// Checks the types of the fields. A workload needs its name by now.
pub(super) fn check_types(document: &Document) -> Result<(), Error> {
    field_types::check(&document.kind, &document.object).map_err(|problem| refused(document, problem))
}

/// Names objects that have `generateName` only, as `kubectl create` has the API server do; with numbers, so that a run repeats.
pub(super) fn generate_names(documents: &mut [Document]) {
    let name_of = |document: &Document| {
        document
            .object
            .pointer("/metadata/name")
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    let named = documents
        .iter()
        .filter_map(|document| Some((document.kind.clone(), name_of(document)?)));
    let taken: FxHashSet<(String, String)> = named.collect();
    let mut numbers: FxHashMap<(String, String), usize> = FxHashMap::default();
    for document in documents {
        let Some(metadata) = document.object.get_mut("metadata").and_then(Value::as_object_mut) else {
            continue;
        };
        let text = |field: &str| {
            metadata
                .get(field)
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
        };
        let (None, Some(prefix)) = (text("name"), text("generateName")) else {
            continue;
        };
        let number = numbers.entry((document.kind.clone(), prefix.to_owned())).or_default();
        let name = loop {
            let name = format!("{prefix}{number}");
            *number += 1;
            if !taken.contains(&(document.kind.clone(), name.clone())) {
                break name;
            }
        };
        // A name of another type is an error that is reported later.
        if metadata.get("name").is_none_or(|name| name.is_null() || name == "") {
            metadata.insert("name".to_owned(), name.into());
        }
    }
}

/// Adds an object, or the items of a list. `of_list` is the item kind of the enclosing list: items of a typed list need no `kind`.
fn open(
    documents: &mut Vec<Document>,
    object: Value,
    of_list: Option<&str>,
    file: &Arc<Path>,
    number: usize,
) -> Result<(), Error> {
    let kind = object
        .get("kind")
        .and_then(Value::as_str)
        .or(of_list)
        .map(str::to_owned);
    let Some(kind) = kind else {
        let name = object.pointer("/metadata/name").and_then(Value::as_str);
        return Err(Error::Field {
            path: file.to_path_buf(),
            object: name.map_or_else(|| format!("document {number}"), |name| format!("object {name}")),
            field: "kind".to_owned(),
            problem: "it is missing; every Kubernetes object has one".to_owned(),
        });
    };
    // A list is never an item of another list.
    if of_list.is_none() && kind.ends_with("List") && (kind == "List" || object.get("items").is_some()) {
        let items = match object.get("items") {
            Some(Value::Array(items)) => items,
            Some(Value::Null) => return Ok(()),
            other => {
                let problem = match other {
                    Some(Value::Object(_)) => invalid_type("fields with values", "a list"),
                    Some(other) => invalid_type(&other.to_string(), "a list"),
                    None => "it is missing; a list has its objects there".to_owned(),
                };
                return Err(Error::Field {
                    path: file.to_path_buf(),
                    object: kind,
                    field: "items".to_owned(),
                    problem,
                });
            }
        };
        let item_kind = kind.trim_end_matches("List");
        let mut items = items.iter().cloned();
        return items.try_for_each(|item| open(documents, item, Some(item_kind), file, number));
    }
    documents.push(Document {
        file: Arc::clone(file),
        kind: qualified(kind, &object),
        object,
        author: Author::User,
    });
    Ok(())
}

/// The kind, with the API group appended for an equally named kind of another project, such as another Queue or Job.
pub(super) fn qualified(kind: String, object: &Value) -> String {
    qualified_by(kind, object.get("apiVersion").and_then(Value::as_str))
}

pub(super) fn qualified_by(kind: String, api_version: Option<&str>) -> String {
    let group = api_version.map(|version| version.split_once('/').map_or("", |(group, _)| group));
    match (group, group_of(&kind)) {
        (Some(group), Some(known)) if group != known => format!("{kind}.{group}"),
        _ => kind,
    }
}

fn collect(collector: &mut ObjectCollector, document: &Document) -> Result<(), Error> {
    let object = &document.object;
    let read = match document.kind.as_str() {
        "Node" => typed(object).map(|node| collector.node(node)),
        "Queue" => typed(object).map(|queue| collector.queue(queue)),
        "PodGroup" => typed(object).map(|group| collector.pod_group(group, document.author)),
        "Pod" => typed(object).map(|pod| collector.pod(pod, document.author)),
        "PriorityClass" => typed(object).map(|class| collector.priority_class(class)),
        "BindRequest" => typed(object).map(|request| collector.bind_request(request)),
        "Topology" => typed(object).map(|topology| collector.topology(topology)),
        "PersistentVolume" => typed(object).map(|volume| collector.volume(volume)),
        "PersistentVolumeClaim" => typed(object).map(|claim| collector.volume_claim(claim)),
        "StorageClass" => typed(object).map(|class| collector.storage_class(class)),
        "CSINode" => typed(object).map(|node| collector.csi_node(node)),
        "CSIDriver" => typed(object).map(|driver| collector.csi_driver(driver)),
        "CSIStorageCapacity" => typed(object).map(|capacity| collector.storage_capacity(capacity)),
        "ConfigMap" => typed(object).map(|config_map| collector.config_map(config_map)),
        workload if workloads::is_workload(workload) => Ok(()),
        other => {
            collector.warnings.push(format_args!(
                "{}: kind: kai simulate does not read {other:?} (it is skipped); it reads {KINDS}, and makes the pods of {}",
                document.name(),
                workloads::KINDS
            ));
            Ok(())
        }
    };
    read.map_err(|problem| refused(document, problem))
}

/// The error about a field of an object, with the problem.
fn refused(document: &Document, (field, problem): (String, String)) -> Error {
    Error::Field {
        path: document.file.to_path_buf(),
        object: document.name(),
        field: if field.is_empty() { ".".to_owned() } else { field },
        problem,
    }
}
