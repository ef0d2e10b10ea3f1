//! Snapshots of a scheduler, as `/get-snapshot` of KAI and of this scheduler serves them: a zip file with one entry, `snapshot.json`. The
//! unpacked entry is a snapshot, too.
//!
//! The objects were in a cluster: admission and grouping have passed, and fields that are unknown here get no warning. KAI omits the kinds
//! of objects and most fields of containers.

use std::io::{Cursor, Read, Write};
use std::path::Path;
use std::sync::Arc;

use kai_api::{keys, parse_time};
use kai_engine::model::{Config, Millis};
use kai_mirror::MirrorSettings;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::installation::{Author, Document};
use super::manifest::qualified;
use super::objects::kind_of_list;
use super::parse::{documents, invalid_type};
use super::{Installation, Warnings};
use crate::Error;

/// The entry of the zip file.
const ENTRY: &str = "snapshot.json";
/// The largest entry. A cluster of 20,000 pods needs about 100 MiB; the rest is a zip file made to fill the memory.
const INFLATED_BYTES_MAX: u64 = 512 << 20;
/// Entries of a zip file that a message names.
const NAMES_MAX: usize = 3;

/// Whether the bytes begin as a zip file does.
pub(super) fn is_zip(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"PK\x05\x06")
}

/// The settings of the scheduler that made a snapshot, as written in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SnapshotSettings {
    /// The configuration file.
    pub config: Value,
    /// KAI's parameters, from flags.
    pub scheduler_params: Value,
    /// Further settings, which only this scheduler writes.
    pub extensions: Value,
}

/// How the scheduler of a cluster decides.
#[derive(Clone, Debug, Default)]
pub struct SchedulerPolicy {
    /// The engine's configuration.
    pub config: Config,
    /// Which objects belong to the scheduler.
    pub mirror: MirrorSettings,
    /// Warnings about settings without effect.
    pub warnings: Vec<String>,
}

/// The kinds that a snapshot lists completely: an object that is not in it does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompleteKinds {
    /// Pods, and with them reservation pods.
    pub(crate) pods: bool,
    /// Volumes and their claims.
    pub(crate) volumes: bool,
    pub(crate) config_maps: bool,
    pub(crate) priority_classes: bool,
}

/// A snapshot before its objects are checked.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) documents: Vec<Document>,
    pub(super) policy: SchedulerPolicy,
    /// The time of the snapshot, or the latest time in it.
    pub(super) now: Option<Millis>,
    pub(super) complete: CompleteKinds,
    pub(super) warnings: Warnings,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawSnapshot {
    config: Value,
    scheduler_params: Value,
    raw_objects: Value,
    #[serde(rename = "kai-rs")]
    extensions: Value,
}

/// Reads a zip file or an unpacked entry.
pub(super) fn read(path: &Path, bytes: Vec<u8>, installation: &dyn Installation) -> Result<Snapshot, Error> {
    let document = parse(path, bytes)?;
    let raw = RawSnapshot::deserialize(document).map_err(|error| Error::Snapshot {
        path: path.to_owned(),
        problem: error.to_string(),
    })?;
    build(path, raw, installation)
}

/// The JSON of a zip file or of an unpacked entry.
pub(super) fn parse(path: &Path, bytes: Vec<u8>) -> Result<Value, Error> {
    let invalid = |problem: String| Error::Snapshot {
        path: path.to_owned(),
        problem,
    };
    let json = match is_zip(&bytes) {
        true => inflated(&bytes, INFLATED_BYTES_MAX).map_err(invalid)?,
        false => bytes,
    };
    let text = String::from_utf8(json).map_err(|_| invalid(format!("{ENTRY} is not UTF-8 text")))?;
    // The path of a snapshot has no meaningful extension; the text is JSON.
    let parsed = documents(Path::new(ENTRY), &text).map_err(|error| match error {
        Error::Syntax { problem, .. } => invalid(format!("{ENTRY} is not valid JSON: {problem}")),
        other => other,
    })?;
    let document = parsed.into_iter().next().filter(Value::is_object);
    document.ok_or_else(|| invalid(format!("{ENTRY} has to be fields with values")))
}

/// The content of the entry. Refuses a larger one before it fills the memory, whatever size the zip file states.
fn inflated(bytes: &[u8], bytes_max: u64) -> Result<Vec<u8>, String> {
    let broken = |error: zip::result::ZipError| format!("the zip file can't be read: {error}");
    let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).map_err(broken)?;
    if !archive.file_names_raw().eq([ENTRY.as_bytes()]) {
        let named = archive.file_names_raw().take(NAMES_MAX).map(String::from_utf8_lossy);
        let names: Vec<String> = named.map(|name| kai_yaml::shortened(&name, 60)).collect();
        let more = archive.len().saturating_sub(names.len());
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        let found = if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        };
        return Err(format!(
            "a snapshot has one entry, {ENTRY}; this zip file has {found}{more}"
        ));
    }
    let too_large = || {
        format!(
            "{ENTRY} has more than {} MiB; no cluster needs that much",
            bytes_max >> 20
        )
    };
    let entry = archive.by_index(0).map_err(broken)?;
    if entry.size() > bytes_max {
        return Err(too_large());
    }
    let mut content = Vec::new();
    // The stated size may be wrong.
    let read = entry.take(bytes_max + 1).read_to_end(&mut content);
    read.map_err(|error| format!("{ENTRY} can't be unpacked: {error}"))?;
    match content.len() as u64 > bytes_max {
        true => Err(too_large()),
        false => Ok(content),
    }
}

fn build(path: &Path, raw: RawSnapshot, installation: &dyn Installation) -> Result<Snapshot, Error> {
    let field = |field: String, problem: String| Error::Field {
        path: path.to_owned(),
        object: "snapshot".to_owned(),
        field,
        problem,
    };
    let lists = match raw.raw_objects {
        Value::Object(lists) => lists,
        Value::Null => {
            return Err(field(
                "rawObjects".to_owned(),
                "it is missing; a snapshot has its objects there".to_owned(),
            ));
        }
        other => {
            let problem = invalid_type(&kai_yaml::shortened(&other.to_string(), 60), "fields with values");
            return Err(field("rawObjects".to_owned(), problem));
        }
    };
    let settings = SnapshotSettings {
        config: raw.config,
        scheduler_params: raw.scheduler_params,
        extensions: raw.extensions,
    };
    let policy = installation
        .policy(&settings)
        .map_err(|problem| field("config".to_owned(), problem))?;
    let mut warnings = Warnings::default();
    for warning in &policy.warnings {
        warnings.push_about(path, format_args!("snapshot: {warning}"));
    }
    let is_given = |list: &str| lists.get(list).is_some_and(Value::is_array);
    let complete = CompleteKinds {
        pods: is_given("pods"),
        volumes: is_given("persistentVolumes") && is_given("persistentVolumeClaims"),
        config_maps: is_given("configMaps"),
        priority_classes: is_given("priorityClasses"),
    };
    let taken_at = settings.extensions.get("takenAt").and_then(Value::as_str);
    let mut now = taken_at.and_then(|text| parse_time(text).ok());
    let file: Arc<Path> = Arc::from(path);
    let mut all = Vec::new();
    for (list, objects) in lists {
        let objects = match objects {
            Value::Array(objects) => objects,
            Value::Null => continue,
            other => {
                let problem = invalid_type(&kai_yaml::shortened(&other.to_string(), 60), "a list");
                return Err(field(format!("rawObjects.{}", kai_yaml::shortened(&list, 60)), problem));
            }
        };
        let Some(kind) = kind_of_list(&list) else {
            if !objects.is_empty() {
                let (list, count) = (kai_yaml::shortened(&list, 60), objects.len());
                warnings.push_about(
                    path,
                    format_args!("snapshot: rawObjects.{list}: kai simulate does not read this kind ({count} objects are skipped)"),
                );
            }
            continue;
        };
        for object in objects.into_iter().filter(|object| !object.is_null()) {
            if taken_at.is_none() {
                now = now.max(latest_time(&object));
            }
            let stated = object
                .get("kind")
                .and_then(Value::as_str)
                .filter(|stated| !stated.is_empty());
            all.push(Document {
                file: Arc::clone(&file),
                kind: qualified(stated.unwrap_or(kind).to_owned(), &object),
                object,
                author: Author::Cluster,
            });
        }
    }
    Ok(Snapshot {
        documents: all,
        policy,
        now,
        complete,
        warnings,
    })
}

/// The latest time at which the object changed: the best guess at the time of a snapshot that does not have it.
fn latest_time(object: &Value) -> Option<Millis> {
    let time = |value: Option<&Value>| value.and_then(Value::as_str).and_then(|text| parse_time(text).ok());
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let of_conditions = conditions
        .into_iter()
        .flatten()
        .flat_map(|condition| [condition.get("lastTransitionTime"), condition.get("lastHeartbeatTime")]);
    let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object);
    let annotation = |key: &str| annotations.and_then(|annotations: &Map<String, Value>| annotations.get(key));
    [
        object.pointer("/metadata/creationTimestamp"),
        object.pointer("/status/startTime"),
        annotation(keys::LAST_START),
        annotation(keys::STALE_SINCE),
    ]
    .into_iter()
    .chain(of_conditions)
    .filter_map(time)
    .max()
}

/// Packs a snapshot into a zip file, as a scheduler does.
pub(super) fn zipped(snapshot: &Value) -> std::io::Result<Vec<u8>> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    zip.start_file(ENTRY, zip::write::SimpleFileOptions::default())?;
    zip.write_all(&serde_json::to_vec(snapshot)?)?;
    Ok(zip.finish()?.into_inner())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use zip::write::SimpleFileOptions;

    use super::super::{NotInstalled, Scenario, load_snapshot};
    use super::*;

    fn load(bytes: Vec<u8>) -> Result<Scenario, String> {
        load_snapshot(Path::new("s.zip"), bytes, &NotInstalled).map_err(|error| error.to_string())
    }

    fn told(bytes: Vec<u8>) -> String {
        load(bytes).unwrap_err()
    }

    fn with_entries(names: &[&str]) -> Vec<u8> {
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for name in names {
            zip.start_file(*name, SimpleFileOptions::default()).unwrap();
            zip.write_all(b"{}").unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    /// As KAI writes it: without kinds, with nulls, with few fields of containers, and with lists that are null.
    fn of_kai() -> Value {
        let unlimited = json!({ "quota": -1, "limit": -1, "overQuotaWeight": 1 });
        json!({
            "config": { "actions": "allocate", "tiers": null },
            "schedulerParams": { "schedulerName": "kai-scheduler" },
            "rawObjects": {
                "pods": [{
                    "metadata": { "name": "p", "namespace": "ns", "uid": "u", "creationTimestamp": "2026-02-01T10:00:00Z",
                                  "annotations": { "pod-group-name": "g" } },
                    "spec": { "schedulerName": "kai-scheduler", "volumes": null,
                              "containers": [{ "name": "main", "resources": { "requests": { "nvidia.com/gpu": "1" } } }] },
                    "status": { "phase": "Pending", "conditions": null },
                }],
                "nodes": [{
                    "metadata": { "name": "n", "creationTimestamp": null },
                    "spec": {},
                    "status": { "allocatable": { "nvidia.com/gpu": "1", "cpu": "8", "memory": "8Gi", "pods": "110" },
                                "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": "2026-02-01T11:00:00Z" }],
                                "daemonEndpoints": { "kubeletEndpoint": { "Port": 0 } }, "nodeInfo": { "machineID": "" } },
                }],
                "queues": [{ "metadata": { "name": "q" }, "spec": {
                    "newField": 1, "resources": { "gpu": unlimited, "cpu": unlimited, "memory": unlimited } } }],
                "podGroups": [{ "metadata": { "name": "g", "namespace": "ns" }, "spec": { "queue": "q", "minMember": 1 } }],
                "bindRequests": [], "priorityClasses": [], "topologies": null, "configMaps": null, "persistentVolumes": null,
                "persistentVolumeClaims": null, "resourceClaims": [{ "metadata": { "name": "d" } }], "resourceSlices": [],
            },
            "discovery": { "serverVersion": { "major": "1" } },
        })
    }

    #[test]
    fn a_snapshot_of_kai_is_read() {
        let scenario = load(zipped(&of_kai()).unwrap()).unwrap();
        assert_eq!(
            scenario.warnings.lines().collect::<Vec<_>>(),
            [
                "s.zip: snapshot: rawObjects.resourceClaims: kai simulate does not read this kind (1 objects are skipped)"
            ]
        );
        assert_eq!(
            scenario.now,
            parse_time("2026-02-01T11:00:00Z").unwrap(),
            "the latest time"
        );
        assert_eq!(scenario.objects.priority_classes.len(), 0, "the list is complete");
        let complete = scenario.objects.complete;
        assert_eq!(
            (complete.pods, complete.config_maps, complete.volumes),
            (true, false, false)
        );
        let outcome = crate::run::run(scenario, &crate::run::Options::default());
        assert_eq!(outcome.totals.bound, 1, "{outcome:?}");
        // The entry itself is a snapshot, too.
        assert!(load(of_kai().to_string().into_bytes()).is_ok());
    }

    /// Made by KAI's Go types; tests/data/README.md says how.
    #[test]
    fn a_snapshot_of_kais_go_types_is_read() {
        let bytes = include_bytes!("../../tests/data/kai-snapshot.json");
        let scenario = load(bytes.to_vec()).unwrap();
        assert_eq!(scenario.warnings.lines().collect::<Vec<_>>(), [""; 0]);
        assert_eq!(
            scenario.now,
            parse_time("2026-02-01T12:00:00Z").unwrap(),
            "the last heartbeat"
        );
        let complete = scenario.objects.complete;
        assert_eq!(
            (
                complete.pods,
                complete.config_maps,
                complete.volumes,
                complete.priority_classes
            ),
            (true, true, false, true)
        );
        let outcome = crate::run::run(scenario, &crate::run::Options::default());
        let pods = outcome.pods.iter();
        let told: Vec<_> = pods
            .map(|pod| (pod.name.as_str(), pod.status.name(), pod.node.as_deref().unwrap_or("-")))
            .collect();
        assert_eq!(
            told,
            [
                ("binding", "Binding", "h100-1"),
                ("half", "Binding", "h100-1"),
                ("large", "Pending", "-"),
                ("next", "Binding", "h100-0"),
                ("train-0", "Running", "h100-0"),
                ("train-1", "Running", "h100-1"),
            ]
        );
        // Packed as the plugin does, it is the same snapshot.
        let document: Value = serde_json::from_slice(bytes).unwrap();
        let again = crate::run::run(
            load(zipped(&document).unwrap()).unwrap(),
            &crate::run::Options::default(),
        );
        assert_eq!(again.pods, outcome.pods);
    }

    /// A snapshot of KAI, redacted and read again, is a snapshot that decides the same.
    #[test]
    fn a_snapshot_of_kai_can_be_redacted_and_read_again() {
        let folder = std::env::temp_dir().join(format!("kai-redact-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("acme.zip");
        std::fs::write(&file, zipped(&of_kai()).unwrap()).unwrap();
        let sources = super::super::discover(std::slice::from_ref(&file), std::io::empty()).unwrap();
        let redaction = super::super::redact(&sources[0]).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let [redacted] = redaction.files.as_slice() else {
            panic!("one file gives one file")
        };
        let bytes = redacted.bytes(Path::new("redacted.zip")).unwrap();
        assert!(is_zip(&bytes));
        let original = load(zipped(&of_kai()).unwrap()).unwrap();
        let read = load(bytes.clone()).unwrap();
        assert_eq!(
            (read.now, read.objects.complete),
            (original.now, original.objects.complete)
        );
        let json = parse(Path::new("redacted.zip"), bytes).unwrap();
        assert_eq!(
            json["rawObjects"]["topologies"],
            Value::Null,
            "null stays null: the list is not complete"
        );
        assert_eq!(json["rawObjects"]["bindRequests"], json!([]));
        assert_eq!(json["rawObjects"]["pods"][0]["metadata"]["name"], "pod-1");
        assert_eq!(json["config"]["actions"], "allocate");
        let run = |scenario| crate::run::run(scenario, &crate::run::Options::default());
        let (original, read) = (run(original), run(read));
        assert_eq!((original.totals, read.totals.bound), (read.totals, 1));
        assert_eq!(
            super::super::redaction_differences(&original, &read, &redaction.names),
            Vec::<String>::new()
        );
        // The comparison finds a difference.
        let mut other = of_kai();
        other["rawObjects"]["nodes"][0]["spec"]["unschedulable"] = true.into();
        let other = run(load(zipped(&other).unwrap()).unwrap());
        assert_ne!(
            super::super::redaction_differences(&other, &read, &redaction.names),
            Vec::<String>::new()
        );
        // JSON for a file of that name.
        assert!(load(redacted.bytes(Path::new("redacted.json")).unwrap()).is_ok());
    }

    #[test]
    fn the_time_of_our_snapshots_is_the_clock() {
        let mut snapshot = of_kai();
        snapshot["kai-rs"] = json!({ "takenAt": "2026-02-01T10:30:00Z" });
        let scenario = load(zipped(&snapshot).unwrap()).unwrap();
        assert_eq!(scenario.now, parse_time("2026-02-01T10:30:00Z").unwrap());
    }

    #[test]
    fn zip_files_of_another_shape_are_refused() {
        assert_eq!(
            told(with_entries(&["../../etc/passwd"])),
            "s.zip: a snapshot has one entry, snapshot.json; this zip file has ../../etc/passwd"
        );
        assert_eq!(
            told(with_entries(&["snapshot.json", "a", "b", "c"])),
            "s.zip: a snapshot has one entry, snapshot.json; this zip file has snapshot.json, a, b and 1 more"
        );
        assert_eq!(
            told(with_entries(&[])),
            "s.zip: a snapshot has one entry, snapshot.json; this zip file has none"
        );
        assert!(told(b"PK\x03\x04 and so on".to_vec()).starts_with("s.zip: the zip file can't be read: "));
    }

    #[test]
    fn a_zip_bomb_is_refused_whatever_size_it_states() {
        let bomb = zipped(&Value::String(" ".repeat(1 << 20))).unwrap();
        assert!(bomb.len() < 4096, "{}", bomb.len());
        let refused = "snapshot.json has more than 0 MiB; no cluster needs that much";
        assert_eq!(inflated(&bomb, 1000).unwrap_err(), refused);
        // The central directory and the local header state ten bytes.
        let size = u32::to_le_bytes((1 << 20) + 2);
        let mut lying = bomb;
        for at in 0..lying.len() - 4 {
            if lying[at..at + 4] == size {
                lying[at..at + 4].copy_from_slice(&10u32.to_le_bytes());
            }
        }
        let read = inflated(&lying, 1000);
        assert!(
            read.as_ref().is_err() || read.as_ref().is_ok_and(|read| read.len() <= 1000),
            "{read:?}"
        );
    }

    #[test]
    fn wrong_types_are_errors_with_their_place() {
        let with = |change: &dyn Fn(&mut Value)| {
            let mut snapshot = of_kai();
            change(&mut snapshot);
            told(zipped(&snapshot).unwrap())
        };
        let pods = |value: Value| move |snapshot: &mut Value| snapshot["rawObjects"]["pods"] = value.clone();
        assert_eq!(
            with(&pods(json!({ "a": 1 }))),
            "s.zip: snapshot: rawObjects.pods: invalid type: {\"a\":1}, expected a list"
        );
        assert_eq!(
            with(&pods(json!([7]))),
            "s.zip: Pod (no name): .: invalid type: integer `7`, expected fields with values"
        );
        assert_eq!(
            with(&|snapshot| snapshot["rawObjects"]["nodes"][0]["status"]["allocatable"] = json!(["x"])),
            "s.zip: Node n: status.allocatable: invalid type: a list, expected fields with values"
        );
        assert_eq!(
            with(&|snapshot| snapshot["rawObjects"] = Value::Null),
            "s.zip: snapshot: rawObjects: it is missing; a snapshot has its objects there"
        );
        assert_eq!(
            told(zipped(&json!([1])).unwrap()),
            "s.zip: snapshot.json has to be fields with values"
        );
        let huge = br#"{"rawObjects": {"pods": [1e999]}}"#.to_vec();
        assert_eq!(
            told(huge),
            "s.zip: snapshot.json is not valid JSON: number out of range at line 1 column 30"
        );
        let deep = format!(r#"{{"rawObjects": {}"#, "[".repeat(100_000));
        assert!(told(deep.into_bytes()).contains("recursion limit exceeded"));
    }

    fn check(snapshot: Vec<u8>) {
        if let Ok(scenario) = load(snapshot) {
            crate::run::run(scenario, &crate::run::Options::default());
        }
    }

    fn fuzz(fuzz: &dyn Fn() -> kai_fuzz::Fuzz) {
        fuzz().json(&[of_kai()], |snapshot| check(zipped(snapshot).unwrap()));
        let corpus = [zipped(&of_kai()).unwrap(), with_entries(&["snapshot.json", "b"])];
        fuzz().bytes(
            &corpus,
            &[b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"\xff\xff\xff\xff"],
            |bytes| check(bytes.to_vec()),
        );
    }

    #[test]
    fn mutated_snapshots_never_panic() {
        fuzz(&|| kai_fuzz::Fuzz::short("snapshot reader").at_most(500));
    }

    #[test]
    #[ignore = "runs for KAI_FUZZ_SECONDS"]
    fn long_run_of_mutated_snapshots() {
        fuzz(&|| kai_fuzz::Fuzz::long("snapshot reader"));
    }
}
