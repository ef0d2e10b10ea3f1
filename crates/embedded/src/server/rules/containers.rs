//! Validation of containers: names, images, ports, environment, mounts and resources. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::names;
use super::pod_spec::{FieldPath, check_word, in_range, items, text};
use crate::server::status_error::Cause;
use crate::server::types::quantity::Quantity;

/// Resources without a domain prefix that a container may request.
const STANDARD: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
const HUGE_PAGES: &str = "hugepages-";

/// Init containers or main containers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Init,
    Main,
}

/// Checks all containers of a pod.
pub(super) fn check(spec: &Value, path: &FieldPath) -> Vec<Cause> {
    let volumes: BTreeSet<&str> = items(&spec["volumes"]).map(|volume| text(&volume["name"])).collect();
    let mut causes = Vec::new();
    let mut seen = BTreeSet::new();
    if items(&spec["containers"]).next().is_none() {
        return vec![Cause::required(path.at("containers"), "")];
    }
    for (list, stage) in [("containers", Stage::Main), ("initContainers", Stage::Init)] {
        for (at, container) in items(&spec[list]).enumerate() {
            let path = path.at(&format!("{list}[{at}]"));
            let name = text(&container["name"]);
            if !name.is_empty() && !seen.insert(name) {
                causes.push(Cause::duplicate(format!("{path}.name"), &json!(name)));
            }
            causes.extend(check_one(container, &FieldPath::new(path), &volumes, stage));
        }
    }
    causes
}

fn check_one(container: &Value, path: &FieldPath, volumes: &BTreeSet<&str>, stage: Stage) -> Vec<Cause> {
    let mut causes = Vec::new();
    let name = text(&container["name"]);
    if name.is_empty() {
        causes.push(Cause::required(path.at("name"), ""));
    } else {
        let invalid = |why: String| Cause::invalid(path.at("name"), &json!(name), why);
        causes.extend(names::label(name).into_iter().map(invalid));
    }
    let image = text(&container["image"]);
    if image.is_empty() {
        causes.push(Cause::required(path.at("image"), ""));
    } else if image.trim() != image {
        let why = "must not have leading or trailing whitespace";
        causes.push(Cause::invalid(path.at("image"), &json!(image), why));
    }
    if stage == Stage::Init {
        let allowed = ["Always", "OnFailure", "Never"];
        causes.extend(check_word(container, path, "restartPolicy", &allowed));
    }
    check_ports(&container["ports"], path, &mut causes);
    for (at, variable) in items(&container["env"]).enumerate() {
        if text(&variable["name"]).is_empty() {
            causes.push(Cause::required(path.at(&format!("env[{at}].name")), ""));
        }
    }
    for (at, mount) in items(&container["volumeMounts"]).enumerate() {
        check_mount(mount, &path.below(&format!("volumeMounts[{at}]")), volumes, &mut causes);
    }
    causes.extend(check_word(
        container,
        path,
        "imagePullPolicy",
        &["Always", "IfNotPresent", "Never"],
    ));
    let policies = ["FallbackToLogsOnError", "File"];
    causes.extend(check_word(container, path, "terminationMessagePolicy", &policies));
    check_resources(&container["resources"], &path.below("resources"), &mut causes);
    causes
}

fn check_ports(ports: &Value, path: &FieldPath, causes: &mut Vec<Cause>) {
    let mut seen = BTreeSet::new();
    for (at, port) in items(ports).enumerate() {
        let path = path.below(&format!("ports[{at}]"));
        let name = text(&port["name"]);
        if !name.is_empty() && !seen.insert(name) {
            causes.push(Cause::duplicate(path.at("name"), &json!(name)));
        }
        match port["containerPort"].as_i64().unwrap_or(0) {
            0 => causes.push(Cause::required(path.at("containerPort"), "")),
            number => causes.extend(in_range(number, 1, 65_535, path.at("containerPort"))),
        }
        if let Some(number) = port["hostPort"].as_i64().filter(|number| *number != 0) {
            causes.extend(in_range(number, 1, 65_535, path.at("hostPort")));
        }
        causes.extend(check_word(port, &path, "protocol", &["SCTP", "TCP", "UDP"]));
    }
}

fn check_mount(mount: &Value, path: &FieldPath, volumes: &BTreeSet<&str>, causes: &mut Vec<Cause>) {
    let name = text(&mount["name"]);
    if name.is_empty() {
        causes.push(Cause::required(path.at("name"), ""));
    } else if !volumes.contains(name) {
        causes.push(Cause::not_found(path.at("name"), &json!(name)));
    }
    if text(&mount["mountPath"]).is_empty() {
        causes.push(Cause::required(path.at("mountPath"), ""));
    }
}

/// Checks each amount of a container's resources, then requests against limits.
fn check_resources(resources: &Value, path: &FieldPath, causes: &mut Vec<Cause>) {
    let empty = Map::new();
    let (limits, requests) = (
        resources["limits"].as_object().unwrap_or(&empty),
        resources["requests"].as_object().unwrap_or(&empty),
    );
    for (field, amounts) in [("limits", limits), ("requests", requests)] {
        for (name, amount) in amounts {
            check_amount(name, amount, &path.at(&format!("{field}[{name}]")), causes);
        }
        if field == "requests" {
            for (name, request) in requests {
                causes.extend(check_request(name, request, limits.get(name), path));
            }
        }
    }
}

fn check_amount(name: &str, amount: &Value, field: &str, causes: &mut Vec<Cause>) {
    let invalid = |why: &str| Cause::invalid(field, &json!(name), why);
    causes.extend(names::qualified(name).iter().map(|why| invalid(why)));
    let standard = STANDARD.contains(&name) || name.starts_with(HUGE_PAGES);
    if !name.contains('/') && !standard {
        causes.push(invalid("must be a standard resource type or fully qualified"));
        causes.push(invalid("must be a standard resource for containers"));
    }
    let Ok(quantity) = Quantity::parse(text(amount)) else {
        return;
    };
    if quantity.is_negative() {
        causes.push(Cause::invalid(field, amount, "must be greater than or equal to 0"));
    } else if name.contains('/') && !quantity.is_whole() {
        causes.push(Cause::invalid(field, amount, "must be an integer"));
    }
}

fn check_request(name: &str, request: &Value, limit: Option<&Value>, path: &FieldPath) -> Option<Cause> {
    let divisible = !name.contains('/') && !name.starts_with(HUGE_PAGES);
    let Some(limit) = limit else {
        let why = "Limit must be set for non overcommitable resources";
        return (!divisible).then(|| Cause::required(path.at("limits"), why));
    };
    let (requested, limited) = (Quantity::parse(text(request)).ok()?, Quantity::parse(text(limit)).ok()?);
    let shown = text(limit);
    let why = if divisible {
        (requested.nanos() > limited.nanos()).then(|| format!("must be less than or equal to {name} limit of {shown}"))
    } else {
        (requested.nanos() != limited.nanos()).then(|| format!("must be equal to {name} limit of {shown}"))
    };
    why.map(|why| Cause::invalid(path.at("requests"), request, why))
}
