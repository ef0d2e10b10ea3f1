//! Case files: a cluster, how to run it and the expected result, in one JSON or YAML document.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kai_api::{Text, parse_time};
use kai_engine::model::{Action, Config, Millis, Usage};
use kai_mirror::MirrorSettings;
use kai_yaml::{nearest, suggestion};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::expectation::{ExpectedTotals, RawExpect};
use super::installation::{Author, Document, Installation, Manifests};
use super::objects::{ObjectCollector, kind_of_list, list_of_kind};
use super::params::Params;
use super::parse::{Fields, documents, typed};
use super::sources::{Format, format_of_text};
use super::{
    Change, Expectation, ObjectFiles, Objects, Scenario, View, Warnings, display, field_types, unknown_fields, what_if,
    workloads,
};
use crate::Error;

/// The clock of a case without `now`.
const NOW_DEFAULT: Millis = Millis(0);
/// Larger files are not checked for unknown fields: generated benchmarks have 60 MB, and the check would take longer than the run.
const CHECKED_BYTES_MAX: usize = 4 << 20;
/// More cycles than any case needs. Keeps a typo from running forever.
const CYCLES_MAX: u32 = 1_000_000;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Case {
    id: Option<Text>,
    group: Option<Text>,
    now: Option<Text>,
    actions: Option<Vec<Text>>,
    cycles: Option<u32>,
    settle_cycles: Option<u32>,
    #[serde(default)]
    params: Params,
    hold_releasing: Option<Vec<Text>>,
    objects: Option<ObjectCollector>,
    expect: Option<Fields<RawExpect>>,
    expect_totals: Option<Fields<ExpectedTotals>>,
    /// A description for readers.
    #[serde(rename = "purpose")]
    _purpose: Option<IgnoredAny>,
    /// Holds YAML anchors.
    #[serde(rename = "templates")]
    _templates: Option<IgnoredAny>,
    /// The nodes that another scheduler chose, for comparisons.
    #[serde(rename = "peerNodes")]
    _peer_nodes: Option<IgnoredAny>,
}

pub(super) fn load(path: &Path, text: &str) -> Result<Scenario, Error> {
    if format_of_text(path, text) == Format::Json {
        // The fast path of nearly all cases: typed reading without a copy of the text.
        if let Ok(Fields(case)) = serde_json::from_str::<Fields<Case>>(text) {
            let mut scenario = scenario(path, case)?;
            if text.len() <= CHECKED_BYTES_MAX
                && let Ok(document) = serde_json::from_str(text)
            {
                check_fields(&document, path, &mut scenario.warnings)?;
            }
            return Ok(scenario);
        }
    }
    // The slow path, whose errors name the object and field: YAML, and invalid JSON cases.
    let documents = documents(path, text)?;
    let [document @ Value::Object(_)] = documents.as_slice() else {
        return Err(Error::NoScenario { path: path.to_owned() });
    };
    let case = typed::<Case>(document).map_err(|(field, problem)| locate(path, document, &field, problem))?;
    let mut scenario = scenario(path, case)?;
    check_fields(document, path, &mut scenario.warnings)?;
    Ok(scenario)
}

/// Reads a case and changes its objects. They passed admission and grouping before; objects of submitted files pass now.
pub(super) fn load_changed(
    path: &Path,
    text: &str,
    changes: &[Change],
    installation: &dyn Installation,
) -> Result<Scenario, Error> {
    // The unchanged case is read first: its errors come before those of the changes.
    let unchanged = load(path, text)?;
    let mut parsed = documents(path, text)?;
    let lists = parsed
        .first_mut()
        .and_then(|case| case.get_mut("objects"))
        .map(Value::take);
    let file: Arc<Path> = Arc::from(path);
    let mut manifests = Manifests::default();
    for (list, objects) in lists.as_ref().and_then(Value::as_object).into_iter().flatten() {
        let objects = objects.as_array().into_iter().flatten();
        manifests.documents.extend(objects.map(|object| Document {
            file: Arc::clone(&file),
            kind: kind_of_list(list).unwrap_or(list).to_owned(),
            object: object.clone(),
            author: Author::Cluster,
        }));
    }
    let Manifests {
        documents, warnings, ..
    } = &mut manifests;
    what_if::apply(changes, documents, warnings, &unchanged.mirror.identity())?;
    workloads::expand(documents, warnings);
    installation.prepare(&mut manifests);
    let mut lists = Map::new();
    for document in manifests.documents {
        if let Some(list) = list_of_kind(&document.kind) {
            let list = lists.entry(list).or_insert_with(|| Value::Array(Vec::new()));
            list.as_array_mut()
                .into_iter()
                .for_each(|list| list.push(document.object.clone()));
        } else if !workloads::is_workload(&document.kind) {
            let problem = format_args!(
                "{}: kind: kai simulate does not read it (it is skipped)",
                document.name()
            );
            manifests.warnings.push_about(&document.file, problem);
        }
    }
    let Some(case) = parsed.first_mut() else {
        return Ok(unchanged);
    };
    case["objects"] = Value::Object(lists);
    let mut changed = load(path, &case.to_string())?;
    changed.warnings.extend(manifests.warnings);
    changed.refused_pods = manifests.refused_pods;
    Ok(changed)
}

/// Refuses fields of the wrong type, and warns of unknown fields of the objects.
fn check_fields(document: &Value, path: &Path, warnings: &mut Warnings) -> Result<(), Error> {
    let mut found = Warnings::default();
    let lists = document.get("objects").and_then(Value::as_object);
    for (list, objects) in lists.into_iter().flatten() {
        let Some(kind) = kind_of_list(list) else { continue };
        for (at, object) in objects.as_array().into_iter().flatten().enumerate() {
            field_types::check(kind, object).map_err(|(field, problem)| {
                locate(path, document, &format!("objects.{list}[{at}].{field}"), problem)
            })?;
            unknown_fields::check(kind, object, &mut found);
        }
    }
    warnings.extend_about(path, found);
    Ok(())
}

/// Turns the path `objects.pods[3].spec.x` into an error with the name of the pod and the field within it.
fn locate(path: &Path, document: &Value, field: &str, problem: String) -> Error {
    let error = |object: String, field: &str| Error::Field {
        path: path.to_owned(),
        object,
        field: if field.is_empty() {
            ".".to_owned()
        } else {
            field.to_owned()
        },
        problem: problem.clone(),
    };
    let in_object = || {
        let (list, rest) = field.strip_prefix("objects.")?.split_once('[')?;
        let (index, rest) = rest.split_once(']')?;
        let object = document.get("objects")?.get(list)?.get(index.parse::<usize>().ok()?)?;
        let kind = object.get("kind").and_then(Value::as_str).or(kind_of_list(list));
        let object = display(kind.unwrap_or(list), object);
        Some(error(object, rest.trim_start_matches('.')))
    };
    in_object().unwrap_or_else(|| error("case".to_owned(), field))
}

fn scenario(path: &Path, case: Case) -> Result<Scenario, Error> {
    let Some(collector) = case.objects else {
        return Err(Error::NoScenario { path: path.to_owned() });
    };
    let invalid = |field: &str, problem: String| Error::Field {
        path: path.to_owned(),
        object: "case".to_owned(),
        field: field.to_owned(),
        problem,
    };
    let now = match case.now.as_deref() {
        Some(text) => parse_time(text).map_err(|error| invalid("now", error.to_string()))?,
        None => NOW_DEFAULT,
    };
    let mut config = Config::default();
    if let Some(names) = &case.actions {
        config.actions = actions(names).map_err(|problem| invalid("actions", problem))?;
    }
    let cycles = checked_cycles(case.cycles.unwrap_or(1)).map_err(|problem| invalid("cycles", problem))?;
    let settle_cycles = checked_cycles(case.settle_cycles.unwrap_or(0));
    let settle_cycles = settle_cycles.map_err(|problem| invalid("settleCycles", problem))?;
    let (mut warnings, mut found) = (Warnings::default(), Warnings::default());
    let mut usage: Vec<Usage> = Vec::new();
    let mut mirror = MirrorSettings::default();
    case.params
        .apply(&mut config, &mut mirror, &mut usage, &mut found)
        .map_err(|(name, problem)| invalid(&format!("params.{name}"), problem))?;
    warnings.extend_about(path, found);
    let object_files = ObjectFiles::one(path);
    let (mut objects, found) = collector.finish(now, &object_files);
    warnings.extend(found);
    let hold_releasing: Vec<String> = case.hold_releasing.iter().flatten().map(Text::to_string).collect();
    let group = case.group.as_deref().unwrap_or_default();
    let mut found = Warnings::default();
    check_names(&objects, &hold_releasing, &usage, &mut found);
    misspelt_group(group).into_iter().for_each(|line| found.push(line));
    warnings.extend_about(path, found);
    objects.usage = usage;
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    Ok(Scenario {
        id: case.id.map(|id| id.to_string()).or(stem).unwrap_or_default(),
        origin: path.to_owned(),
        now,
        config,
        mirror,
        cycles: cycles.max(1),
        settle_cycles,
        view: view_of_group(group),
        hold_releasing,
        objects,
        expectation: expectation(
            case.expect.map(|Fields(expect)| expect),
            case.expect_totals.map(|Fields(totals)| totals),
        ),
        warnings,
        object_files,
        files: vec![path.to_owned()],
        refused_pods: 0,
        load_time: Duration::ZERO,
    })
}

fn actions(names: &[Text]) -> Result<Vec<Action>, String> {
    let read = |name: &Text| {
        Action::by_name(name).ok_or_else(|| format!("{:?} is not an action; known are {ACTIONS}", &**name))
    };
    names.iter().map(read).collect()
}

fn checked_cycles(cycles: u32) -> Result<u32, String> {
    match cycles > CYCLES_MAX {
        true => Err(format!("{cycles} is too many; at most {CYCLES_MAX}")),
        false => Ok(cycles),
    }
}

/// Warns of names of pod groups and queues that the case does not have: they have no effect.
fn check_names(objects: &Objects, hold_releasing: &[String], usage: &[Usage], warnings: &mut Warnings) {
    let groups = || objects.pod_groups.iter().map(|group| group.metadata.plain_name());
    for name in hold_releasing
        .iter()
        .filter(|name| !groups().any(|group| group == **name))
    {
        warnings.push(format_args!(
            "case: holdReleasing: there is no pod group {name:?} (the name is ignored){}",
            suggestion(name, groups())
        ));
    }
    let queues = || objects.queues.iter().map(|queue| queue.metadata.plain_name());
    for Usage { queue, .. } in usage.iter().filter(|usage| !queues().any(|queue| queue == usage.queue)) {
        warnings.push(format_args!(
            "case: params.queueUsage: there is no queue {queue:?} (its usage is ignored){}",
            suggestion(queue, queues())
        ));
    }
}

/// A warning about a group that is nearly `action-...` or `bench`: it would silently mean other statuses.
fn misspelt_group(group: &str) -> Option<String> {
    if view_of_group(group) == View::Decisions {
        return None;
    }
    let (word, rest) = group.split_once('-').unwrap_or((group, ""));
    let meant = match nearest(word, ["action", "bench"].into_iter())? {
        "action" if rest.is_empty() => "action-allocate or the like".to_owned(),
        "action" => format!("action-{rest}"),
        meant => meant.to_owned(),
    };
    Some(format!(
        "case: group: {group:?} is unknown (statuses are those after the decisions were carried out); did you mean {meant}?"
    ))
}

/// The moment of the expected statuses, by the group of the case.
fn view_of_group(group: &str) -> View {
    match group.starts_with("action-") || group == "bench" {
        true => View::Decisions,
        false => View::Settled,
    }
}

const ACTIONS: &str = "allocate, consolidation, reclaim, preempt and stalegangeviction";

fn expectation(expect: Option<RawExpect>, totals: Option<ExpectedTotals>) -> Option<Expectation> {
    if expect.is_none() && totals.is_none() {
        return None;
    }
    let expect = expect.unwrap_or_default();
    Some(Expectation {
        pods: expect.pods.map(plain).unwrap_or_default(),
        nodes: expect.nodes.map(plain).unwrap_or_default(),
        totals: totals.unwrap_or_default(),
    })
}

fn plain<T>(named: BTreeMap<String, Fields<T>>) -> BTreeMap<String, T> {
    named.into_iter().map(|(name, Fields(value))| (name, value)).collect()
}
