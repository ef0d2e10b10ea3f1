//! The `Table` form of objects for `kubectl get`. Pure.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::format::{RowObject, Rows, converted, metadata_only};
use super::scale::selector_text;
use crate::server::kinds::{Custom, Kind};
use crate::server::object::Object;

/// Objects as a table.
pub(super) fn table(kind: &Kind, objects: &[Object], metadata: Value, rows: Rows, now: Timestamp) -> Value {
    let columns = columns_of(kind);
    let row = |object: &Object| {
        let cells: Vec<Value> = columns.iter().map(|column| (column.cell)(object, now)).collect();
        let shown = match rows.object {
            RowObject::None => Value::Null,
            RowObject::Metadata => metadata_only(object),
            RowObject::Whole => converted(kind, object),
        };
        json!({"cells": cells, "object": shown})
    };
    let made: Vec<Value> = objects.iter().map(row).collect();
    let definitions: Vec<Value> = columns
        .iter()
        .filter(|_| rows.with_columns)
        .map(Column::definition)
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": definitions,
        "rows": made,
    })
}

type Cell<'k> = Box<dyn Fn(&Value, Timestamp) -> Value + 'k>;

struct Column<'k> {
    name: String,
    of_type: String,
    /// 0 always, 1 with `-o wide`.
    priority: i64,
    cell: Cell<'k>,
}

impl Column<'_> {
    fn definition(&self) -> Value {
        let format = if self.name == "Name" { "name" } else { "" };
        json!({"name": self.name, "type": self.of_type, "format": format, "description": "", "priority": self.priority})
    }
}

fn column<'k>(name: &str, cell: impl Fn(&Value) -> Value + 'k) -> Column<'k> {
    Column {
        name: name.to_owned(),
        of_type: "string".to_owned(),
        priority: 0,
        cell: Box::new(move |o, _| cell(o)),
    }
}

fn wide<'k>(name: &str, cell: impl Fn(&Value) -> Value + 'k) -> Column<'k> {
    Column {
        priority: 1,
        ..column(name, cell)
    }
}

fn at<'k>(name: &str, path: &'k str) -> Column<'k> {
    column(name, move |object| {
        json!(shown(object.pointer(path).unwrap_or(&Value::Null)))
    })
}

fn number<'k>(name: &str, path: &'k str) -> Column<'k> {
    let cell = move |object: &Value| {
        object
            .pointer(path)
            .cloned()
            .filter(Value::is_number)
            .unwrap_or(json!(0))
    };
    Column {
        of_type: "integer".to_owned(),
        ..column(name, cell)
    }
}

fn age<'k>(name: &str, path: &'k str) -> Column<'k> {
    let cell = move |object: &Value, now| json!(since(object.pointer(path).unwrap_or(&Value::Null), now));
    Column {
        name: name.to_owned(),
        of_type: "string".to_owned(),
        priority: 0,
        cell: Box::new(cell),
    }
}

/// The creation time, for the column `Age`.
const CREATED: &str = "/metadata/creationTimestamp";

fn columns_of(kind: &Kind) -> Vec<Column<'_>> {
    let mut columns = vec![column("Name", |object| object["metadata"]["name"].clone())];
    if let Some(custom) = &kind.custom {
        columns.extend(custom_columns(custom));
        if custom.columns.is_empty() {
            columns.push(age("Age", CREATED));
        }
        return columns;
    }
    if kind.plural == "events" {
        return event_columns();
    }
    columns.extend(match kind.group.as_str() {
        "" => core_columns(&kind.plural),
        "apps" | "batch" => workload_columns(&kind.plural),
        group => other_columns(group, &kind.plural),
    });
    columns
}

/// Columns after the name, for kinds of the core group.
fn core_columns(plural: &str) -> Vec<Column<'static>> {
    match plural {
        "pods" => vec![
            column("Ready", pod_ready),
            column("Status", |pod| json!(pod_status(pod))),
            Column {
                of_type: "string".to_owned(),
                ..column("Restarts", pod_restarts)
            },
            age("Age", CREATED),
            wide("IP", |pod| json!(shown(&pod["status"]["podIP"]))),
            wide("Node", |pod| json!(shown(&pod["spec"]["nodeName"]))),
            wide("Nominated Node", |pod| {
                json!(shown(&pod["status"]["nominatedNodeName"]))
            }),
            wide("Readiness Gates", |_| json!("<none>")),
        ],
        "nodes" => vec![
            column("Status", |node| json!(node_status(node))),
            column("Roles", |node| json!(node_roles(node))),
            age("Age", CREATED),
            at("Version", "/status/nodeInfo/kubeletVersion"),
            wide("Internal-IP", |node| json!(node_address(node))),
            wide("OS-Image", |node| json!(shown(&node["status"]["nodeInfo"]["osImage"]))),
            wide("Kernel-Version", |node| {
                json!(shown(&node["status"]["nodeInfo"]["kernelVersion"]))
            }),
            wide("Container-Runtime", |node| {
                json!(shown(&node["status"]["nodeInfo"]["containerRuntimeVersion"]))
            }),
        ],
        "namespaces" => vec![at("Status", "/status/phase"), age("Age", CREATED)],
        "configmaps" => vec![count("Data", &["/data", "/binaryData"]), age("Age", CREATED)],
        "secrets" => vec![at("Type", "/type"), count("Data", &["/data"]), age("Age", CREATED)],
        "services" => vec![
            at("Type", "/spec/type"),
            at("Cluster-IP", "/spec/clusterIP"),
            column("External-IP", |_| json!("<none>")),
            column("Port(s)", |service| json!(service_ports(service))),
            age("Age", CREATED),
        ],
        "persistentvolumeclaims" => vec![
            at("Status", "/status/phase"),
            at("Volume", "/spec/volumeName"),
            at("Capacity", "/status/capacity/storage"),
            at("StorageClass", "/spec/storageClassName"),
            age("Age", CREATED),
        ],
        _ => vec![age("Age", CREATED)],
    }
}

/// Columns after the name, for kinds of the groups `apps` and `batch`.
fn workload_columns(plural: &str) -> Vec<Column<'static>> {
    match plural {
        "deployments" => vec![
            column("Ready", |d| {
                json!(ratio(&d["status"]["readyReplicas"], &d["spec"]["replicas"]))
            }),
            number("Up-to-date", "/status/updatedReplicas"),
            number("Available", "/status/availableReplicas"),
            age("Age", CREATED),
            wide("Containers", |set| json!(containers_of(set, "name"))),
            wide("Images", |set| json!(containers_of(set, "image"))),
            wide("Selector", |set| json!(selector_text(&set["spec"]["selector"]))),
        ],
        "replicasets" => vec![
            number("Desired", "/spec/replicas"),
            number("Current", "/status/replicas"),
            number("Ready", "/status/readyReplicas"),
            age("Age", CREATED),
            wide("Containers", |set| json!(containers_of(set, "name"))),
            wide("Images", |set| json!(containers_of(set, "image"))),
            wide("Selector", |set| json!(selector_text(&set["spec"]["selector"]))),
        ],
        "statefulsets" => vec![
            column("Ready", |s| {
                json!(ratio(&s["status"]["readyReplicas"], &s["spec"]["replicas"]))
            }),
            age("Age", CREATED),
        ],
        "daemonsets" => vec![
            number("Desired", "/status/desiredNumberScheduled"),
            number("Current", "/status/currentNumberScheduled"),
            number("Ready", "/status/numberReady"),
            age("Age", CREATED),
        ],
        "jobs" => vec![
            column("Status", |job| json!(job_status(job))),
            column("Completions", |job| {
                json!(ratio(&job["status"]["succeeded"], &job["spec"]["completions"]))
            }),
            age("Age", CREATED),
        ],
        "cronjobs" => vec![
            at("Schedule", "/spec/schedule"),
            at("Suspend", "/spec/suspend"),
            age("Age", CREATED),
        ],
        _ => vec![age("Age", CREATED)],
    }
}

/// Columns after the name, for kinds of other groups.
fn other_columns(group: &str, plural: &str) -> Vec<Column<'static>> {
    match (group, plural) {
        ("coordination.k8s.io", "leases") => vec![at("Holder", "/spec/holderIdentity"), age("Age", CREATED)],
        ("scheduling.k8s.io", "priorityclasses") => vec![
            number("Value", "/value"),
            Column {
                of_type: "boolean".to_owned(),
                ..column("Global-Default", |class| json!(class["globalDefault"] == true))
            },
            age("Age", CREATED),
            at("PreemptionPolicy", "/preemptionPolicy"),
        ],
        ("apiextensions.k8s.io", "customresourcedefinitions") => vec![at("Created At", CREATED)],
        _ => vec![age("Age", CREATED)],
    }
}

fn event_columns() -> Vec<Column<'static>> {
    let mut columns = vec![
        column("Last Seen", |_| Value::Null),
        at("Type", "/type"),
        at("Reason", "/reason"),
        column("Object", |event| json!(event_object(event))),
        at("Message", "/message"),
        wide("Name", |event| event["metadata"]["name"].clone()),
    ];
    columns[0].cell = Box::new(|event, now| json!(since(last_seen(event), now)));
    columns
}

fn custom_columns(custom: &Custom) -> impl Iterator<Item = Column<'_>> {
    custom.columns.iter().map(|definition| {
        let text = |field: &str| definition[field].as_str().unwrap_or("").to_owned();
        let (path, of_type) = (text("jsonPath"), text("type"));
        let kind = of_type.clone();
        let cell = move |object: &Value, now: Timestamp| custom_cell(at_json_path(object, &path), &kind, now);
        Column {
            name: text("name"),
            of_type,
            priority: definition["priority"].as_i64().unwrap_or(0),
            cell: Box::new(cell),
        }
    })
}

/// The cell of a custom column. As in kube-apiserver, lists and objects in a string column are JSON.
fn custom_cell(value: &Value, of_type: &str, now: Timestamp) -> Value {
    match (of_type, value) {
        (_, Value::Null) => Value::Null,
        ("date", value) => json!(since(value, now)),
        ("string", Value::String(text)) => json!(text),
        ("string", other) => json!(other.to_string()),
        (_, value) => value.clone(),
    }
}

/// The value at a JSON path: fields by `.name` or `['name']`, items by index or by a filter on equality.
fn at_json_path<'v>(object: &'v Value, path: &str) -> &'v Value {
    let mut value = object;
    let mut rest = path.trim_start_matches('$');
    while !rest.is_empty() && !value.is_null() {
        if let Some(inner) = rest.strip_prefix('[') {
            let Some(end) = inner.find(']') else {
                return &Value::Null;
            };
            value = at_bracket(value, &inner[..end]);
            rest = &inner[end + 1..];
        } else {
            let name = rest.trim_start_matches('.');
            // A dot in a key is escaped.
            let mut end = name.len();
            let bytes = name.as_bytes();
            for (at, byte) in bytes.iter().enumerate() {
                if *byte == b'[' || (*byte == b'.' && (at == 0 || bytes[at - 1] != b'\\')) {
                    end = at;
                    break;
                }
            }
            value = &value[name[..end].replace("\\.", ".")];
            rest = &name[end..];
        }
    }
    value
}

fn at_bracket<'v>(value: &'v Value, inner: &str) -> &'v Value {
    if let Ok(at) = inner.parse::<usize>() {
        return &value[at];
    }
    if let Some(filter) = inner.strip_prefix("?(@.") {
        let Some((field, wanted)) = filter.trim_end_matches(')').split_once("==") else {
            return &Value::Null;
        };
        let wanted = wanted.trim().trim_matches(['"', '\'']);
        let found = value
            .as_array()
            .into_iter()
            .flatten()
            .find(|item| item[field.trim()] == wanted);
        return found.unwrap_or(&Value::Null);
    }
    &value[inner.trim_matches(['"', '\''])]
}

fn count<'k>(name: &str, paths: &'k [&'k str]) -> Column<'k> {
    let cell = |object: &Value| {
        let sizes = paths.iter().map(|p| {
            object
                .pointer(p)
                .and_then(Value::as_object)
                .map_or(0, serde_json::Map::len)
        });
        json!(sizes.sum::<usize>())
    };
    column(name, cell)
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "<none>".to_owned(),
        Value::String(text) if text.is_empty() => "<none>".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn ratio(done: &Value, wanted: &Value) -> String {
    format!("{}/{}", done.as_i64().unwrap_or(0), wanted.as_i64().unwrap_or(1))
}

/// The age in the short form of `kubectl`: at most two units.
fn since(moment: &Value, now: Timestamp) -> String {
    let Some(then) = moment.as_str().and_then(|t| t.parse::<Timestamp>().ok()) else {
        return "<unknown>".to_owned();
    };
    let seconds = now.as_second() - then.as_second();
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let two = |a: i64, unit_a: &str, b: i64, unit_b: &str| {
        if b == 0 {
            format!("{a}{unit_a}")
        } else {
            format!("{a}{unit_a}{b}{unit_b}")
        }
    };
    match seconds {
        ..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        _ if days < 730 => format!("{days}d"),
        _ => two(days / 365, "y", days % 365, "d"),
    }
}

/// A field of all containers of a pod template, joined by commas.
fn containers_of(object: &Value, field: &str) -> String {
    let containers = object["spec"]["template"]["spec"]["containers"].as_array();
    let texts = containers
        .into_iter()
        .flatten()
        .map(|container| shown(&container[field]));
    texts.collect::<Vec<_>>().join(",")
}

fn pod_ready(pod: &Value) -> Value {
    let all = pod["spec"]["containers"].as_array().map_or(0, Vec::len);
    let statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    let ready = statuses.filter(|s| s["ready"] == true).count();
    json!(format!("{ready}/{all}"))
}

fn pod_restarts(pod: &Value) -> Value {
    let statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    json!(
        statuses
            .map(|s| s["restartCount"].as_i64().unwrap_or(0))
            .sum::<i64>()
            .to_string()
    )
}

fn pod_status(pod: &Value) -> String {
    let status = &pod["status"];
    let phase = status["phase"].as_str().unwrap_or("Unknown");
    if !pod["metadata"]["deletionTimestamp"].is_null() && !matches!(phase, "Succeeded" | "Failed") {
        return if status["reason"] == "NodeLost" {
            "Unknown"
        } else {
            "Terminating"
        }
        .to_owned();
    }
    if let Some(reason) = status["reason"].as_str().filter(|r| !r.is_empty()) {
        return reason.to_owned();
    }
    let gated = |c: &Value| c["type"] == "PodScheduled" && c["reason"] == "SchedulingGated";
    if status["conditions"].as_array().into_iter().flatten().any(gated) {
        return "SchedulingGated".to_owned();
    }
    for container in status["containerStatuses"].as_array().into_iter().flatten() {
        let state = &container["state"];
        let word = state["waiting"]["reason"]
            .as_str()
            .or_else(|| state["terminated"]["reason"].as_str());
        if let Some(word) = word.filter(|w| !w.is_empty()) {
            return word.to_owned();
        }
    }
    match phase {
        "Succeeded" => "Completed".to_owned(),
        "Failed" => "Error".to_owned(),
        other => other.to_owned(),
    }
}

fn node_status(node: &Value) -> String {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    let ready = conditions.into_iter().find(|c| c["type"] == "Ready");
    let word = match ready.and_then(|c| c["status"].as_str()) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    if node["spec"]["unschedulable"] == true {
        format!("{word},SchedulingDisabled")
    } else {
        word.to_owned()
    }
}

fn node_roles(node: &Value) -> String {
    let labels = node["metadata"]["labels"].as_object();
    let roles = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"));
    let roles: Vec<&str> = roles.collect();
    if roles.is_empty() {
        "<none>".to_owned()
    } else {
        roles.join(",")
    }
}

fn node_address(node: &Value) -> String {
    let addresses = node["status"]["addresses"].as_array().into_iter().flatten();
    let found = addresses.into_iter().find(|a| a["type"] == "InternalIP");
    found.map_or_else(|| "<none>".to_owned(), |a| shown(&a["address"]))
}

fn service_ports(service: &Value) -> String {
    let ports = service["spec"]["ports"].as_array().into_iter().flatten();
    let ports: Vec<String> = ports
        .map(|p| format!("{}/{}", p["port"], shown(&p["protocol"])))
        .collect();
    if ports.is_empty() {
        "<none>".to_owned()
    } else {
        ports.join(",")
    }
}

fn job_status(job: &Value) -> &'static str {
    let conditions = || job["status"]["conditions"].as_array().into_iter().flatten();
    let has = |kind: &str| conditions().any(|c| c["type"] == kind && c["status"] == "True");
    match () {
        () if has("Complete") => "Complete",
        () if has("Failed") => "Failed",
        () if has("Suspended") => "Suspended",
        () => "Running",
    }
}

fn event_object(event: &Value) -> String {
    let object = &event["involvedObject"];
    format!("{}/{}", shown(&object["kind"]).to_lowercase(), shown(&object["name"]))
}

fn last_seen(event: &Value) -> &Value {
    let candidates = [
        "/series/lastObservedTime",
        "/lastTimestamp",
        "/eventTime",
        "/firstTimestamp",
    ];
    let found = candidates
        .iter()
        .filter_map(|path| event.pointer(path))
        .find(|value| !value.is_null());
    found.unwrap_or(&event["metadata"]["creationTimestamp"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::kinds::Kinds;

    #[test]
    fn ages() {
        let now: Timestamp = "2026-01-10T00:00:00Z".parse().unwrap();
        for (then, expect) in [
            ("2026-01-09T23:59:15Z", "45s"),
            ("2026-01-09T23:55:30Z", "4m30s"),
            ("2026-01-09T23:00:00Z", "60m"),
            ("2026-01-09T20:30:00Z", "3h30m"),
            ("2026-01-09T00:00:00Z", "24h"),
            ("2026-01-07T00:00:00Z", "3d"),
            ("2025-01-10T00:00:00Z", "365d"),
            ("2026-01-11T00:00:00Z", "0s"),
        ] {
            assert_eq!(since(&json!(then), now), expect, "{then}");
        }
        assert_eq!(since(&Value::Null, now), "<unknown>");
    }

    #[test]
    fn json_paths() {
        let object = json!({"spec": {"a.b": 1, "list": [{"type": "x", "v": 2}, {"type": "y", "v": 3}]}});
        for (path, expect) in [
            (".spec.a\\.b", json!(1)),
            (".spec['a.b']", json!(1)),
            (".spec.list[1].v", json!(3)),
            (".spec.list[?(@.type==\"x\")].v", json!(2)),
            (".spec.none.deeper", Value::Null),
        ] {
            assert_eq!(at_json_path(&object, path), &expect, "{path}");
        }
    }

    #[test]
    fn lists_in_columns_of_text_are_json() {
        let now = "2026-01-01T00:00:05Z".parse().unwrap();
        let check = |of_type, value: Value, expect: Value| assert_eq!(custom_cell(&value, of_type, now), expect);
        check("string", json!(["a", "b"]), json!("[\"a\",\"b\"]"));
        check("string", json!(7), json!("7"));
        check("string", json!("x"), json!("x"));
        check("integer", json!(7), json!(7));
        check("date", json!("2026-01-01T00:00:00Z"), json!("5s"));
        check("string", Value::Null, Value::Null);
    }

    #[test]
    fn columns_of_our_kinds_come_from_their_definitions() {
        let now = "2026-01-01T00:00:05Z".parse().unwrap();
        let row = |kind: &str, object: Value| -> Vec<String> {
            let definition = kai_api::crd::crds()
                .into_iter()
                .find(|crd| crd["spec"]["names"]["kind"] == kind)
                .unwrap();
            let columns = definition["spec"]["versions"][0]["additionalPrinterColumns"].clone();
            let custom = Custom {
                schema: None,
                columns: columns.as_array().unwrap().clone(),
                selectable: Vec::new(),
            };
            let shown = custom_columns(&custom).filter(|column| column.priority == 0);
            shown
                .map(|column| format!("{}={}", column.name, (column.cell)(&object, now)))
                .collect()
        };
        let created = json!({"creationTimestamp": "2026-01-01T00:00:00Z"});
        assert_eq!(
            row(
                "PodGroup",
                json!({"metadata": created, "spec": {"queue": "q", "minMember": 4},
                "status": {"running": 3, "pending": 1, "phase": "Running"}})
            ),
            [
                "Queue=\"q\"",
                "Minimum=4",
                "Running=3",
                "Pending=1",
                "Phase=\"Running\"",
                "Age=\"5s\""
            ]
        );
        assert_eq!(
            row(
                "Queue",
                json!({"spec": {"priority": 100, "resources": {"gpu": {"quota": 8}}},
                "status": {"fairShare": {"nvidia.com/gpu": "3"}, "allocated": {"nvidia.com/gpu": "1500m"}, "requested": {"nvidia.com/gpu": "2"}}})
            ),
            [
                "Priority=\"100\"",
                "Parent=null",
                "Children=null",
                "DisplayName=null",
                "GPU-Quota=8",
                "GPU-Fair-Share=\"3\"",
                "GPU-Used=\"1500m\"",
                "GPU-Requested=\"2\""
            ]
        );
        assert_eq!(
            row(
                "BindRequest",
                json!({"metadata": created, "spec": {"podName": "p", "selectedNode": "n"},
                "status": {"phase": "Pending"}})
            ),
            [
                "Pod=\"p\"",
                "Node=\"n\"",
                "Phase=\"Pending\"",
                "Failed=null",
                "Age=\"5s\""
            ]
        );
    }

    #[test]
    fn a_pod_in_a_row() {
        let pods = Kinds::built_in().get("", "v1", "pods").unwrap();
        let pod = json!({
            "metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"containers": [{"name": "c"}], "nodeName": "n"},
            "status": {"phase": "Running", "containerStatuses": [{"ready": true, "restartCount": 2, "state": {"running": {}}}]},
        });
        let now = "2026-01-01T00:00:05Z".parse().unwrap();
        let rows = Rows {
            with_columns: true,
            object: RowObject::Metadata,
        };
        let table = table(&pods, &[Object::new(pod)], json!({}), rows, now);
        let cells = json!(["a", "1/1", "Running", "2", "5s", "<none>", "n", "<none>", "<none>"]);
        assert_eq!(table["rows"][0]["cells"], cells);
        assert_eq!(table["columnDefinitions"][1]["name"], "Ready");
    }
}
