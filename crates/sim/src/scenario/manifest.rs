//! Kubernetes manifests: many documents, lists among them, all of one cluster.

use std::path::Path;
use std::time::Duration;

use engine::model::{Config, Millis};
use serde_json::Value;

use super::objects::{Collector, KINDS};
use super::tree::{documents, typed};
use super::{Scenario, View, Warnings};
use crate::Error;

/// The clock of manifests without any time in them: 2026-01-01T00:00:00Z. Any fixed time does; the real one would make
/// two runs differ.
const NOW_DEFAULT: Millis = Millis(1_767_225_600_000);

pub(super) fn load(id: &str, files: &[(&Path, String)]) -> Result<Scenario, Error> {
    let mut parsed = Vec::with_capacity(files.len());
    for (path, text) in files {
        parsed.push((*path, documents(path, text)?));
    }
    let mut collector = Collector::of_manifests();
    let mut warnings = Warnings::default();
    for (path, documents) in &parsed {
        for (at, document) in documents.iter().enumerate() {
            let place = Place {
                path,
                number: at + 1,
                alone: documents.len() == 1,
            };
            collect(&mut collector, document, None, &place)?;
        }
        warnings.extend_about(path, std::mem::take(&mut collector.warnings));
    }
    if collector.is_empty() {
        let path = files.first().map(|(path, _)| path.to_path_buf()).unwrap_or_default();
        let known = KINDS;
        return Err(Error::NothingKnown { path, known });
    }
    let now = collector.youngest().unwrap_or(NOW_DEFAULT);
    let (objects, told) = collector.finish(now);
    // What is wrong between objects is nobody's own file, once there are several.
    let origin = match files {
        [(path, _)] => *path,
        _ => Path::new(id),
    };
    warnings.extend_about(origin, told);
    Ok(Scenario {
        id: id.to_owned(),
        origin: origin.to_owned(),
        now,
        config: Config::default(),
        cycles: 1,
        settle_cycles: 0,
        view: View::Decisions,
        hold_releasing: Vec::new(),
        objects,
        gang_minimums: Vec::new(),
        expectation: None,
        warnings,
        load_time: Duration::ZERO,
    })
}

/// Where a document is, for messages.
struct Place<'p> {
    path: &'p Path,
    number: usize,
    alone: bool,
}

impl Place<'_> {
    fn object(&self, kind: &str, document: &Value) -> String {
        let metadata = document.get("metadata");
        let text = |key: &str| metadata.and_then(|metadata| metadata.get(key)).and_then(Value::as_str);
        match (text("name"), text("namespace")) {
            (Some(name), Some(namespace)) => format!("{kind} {namespace}/{name}"),
            (Some(name), None) => format!("{kind} {name}"),
            (None, _) if self.alone => kind.to_owned(),
            (None, _) => format!("{kind} in document {}", self.number),
        }
    }
}

/// `of_list` is the kind of the list that the object is in: items of a typed list need not repeat it.
fn collect(collector: &mut Collector, document: &Value, of_list: Option<&str>, place: &Place<'_>) -> Result<(), Error> {
    let field = |object: String, field: String, problem: String| {
        let field = if field.is_empty() { ".".to_owned() } else { field };
        Error::Field {
            path: place.path.to_owned(),
            object,
            field,
            problem,
        }
    };
    let Some(kind) = document.get("kind").and_then(Value::as_str).or(of_list) else {
        let problem = "it is missing; every Kubernetes object has one".to_owned();
        return Err(field(place.object("object", document), "kind".to_owned(), problem));
    };
    let read = match kind {
        "Node" => typed(document).map(|node| collector.node(node)),
        "Queue" => typed(document).map(|queue| collector.queue(queue)),
        "PodGroup" => typed(document).map(|group| collector.pod_group(group)),
        "Pod" => typed(document).map(|pod| collector.pod(pod)),
        "PriorityClass" => typed(document).map(|class| collector.priority_class(class)),
        "BindRequest" => typed(document).map(|request| collector.bind_request(request)),
        "Topology" => typed(document).map(|topology| collector.topology(topology)),
        // A list is never an item of a list.
        list if of_list.is_none() && list.ends_with("List") => {
            let items = document.get("items").and_then(Value::as_array);
            let item_kind = list.trim_end_matches("List");
            return items
                .into_iter()
                .flatten()
                .try_for_each(|item| collect(collector, item, Some(item_kind), place));
        }
        other => {
            let object = place.object(other, document);
            let told = format_args!("{object}: kind: {other:?} is not read by the scheduler (it is skipped)");
            collector.warnings.push(format_args!("{told}; it reads {KINDS}"));
            return Ok(());
        }
    };
    read.map_err(|(at, problem)| field(place.object(kind, document), at, problem))
}
