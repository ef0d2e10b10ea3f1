//! The fields of KAI's custom resources that its programs read, and their types. Facts about KAI-Scheduler 0.17, independent of kai's own
//! definitions, which have further fields. Those of them that kai writes are marked: KAI's definitions drop them, and no program misses them.

use serde_json::Value;

/// The schema: one field per line, nested by indentation. `*` stands for any name, `-` for the items of a list, `ours` for a field that KAI
/// does not have.
const SCHEMA: &str = "
Queue
  spec
    displayName string
    parentQueue string
    priority integer
    preemptMinRuntime string
    reclaimMinRuntime string
    resources
      *
        quota number
        limit number
        overQuotaWeight number
  status
    fairShare ours
    childQueues
      - string
    conditions
      - any
    allocated
      * quantity
    allocatedNonPreemptible
      * quantity
    requested
      * quantity
PodGroup
  spec
    minMember integer
    minSubGroup integer
    queue string
    priorityClassName string
    preemptibility string
    markUnschedulable boolean
    schedulingBackoff integer
    preemptionDelay string
    stalenessGracePeriod string
    topologyConstraint
      topology string
      requiredTopologyLevel string
      preferredTopologyLevel string
    subGroups
      - any
  status
    conditions
      - any
    schedulingConditions
      - any
    phase ours
    pending ours
    running ours
    resourcesStatus
      allocated
        * quantity
      allocatedNonPreemptible
        * quantity
      requested
        * quantity
BindRequest
  spec
    podName string
    selectedNode string
    receivedResourceType string
    receivedGPU
      count integer
      portion string
    selectedGPUGroups
      - string
    selectedFractionalGpuGroups ours
    backoffLimit integer
    resourceClaimAllocations
      - any
    predictedNUMAZones
      - any
  status
    phase string
    reason string
    failedAttempts integer
";

/// A field of the schema with its nested fields.
struct Field {
    name: &'static str,
    kind: &'static str,
    fields: Vec<Field>,
}

/// The fields at this indentation, and the lines after them.
fn parse<'a>(mut lines: &'a [&'static str], depth: usize) -> (Vec<Field>, &'a [&'static str]) {
    let mut fields = Vec::new();
    while let Some((line, rest)) = lines.split_first() {
        let indentation = line.len() - line.trim_start().len();
        if indentation < depth {
            break;
        }
        let mut words = line.split_whitespace();
        let (name, kind) = (words.next().unwrap(), words.next().unwrap_or("object"));
        let (nested, after) = parse(rest, depth + 2);
        fields.push(Field {
            name,
            kind,
            fields: nested,
        });
        lines = after;
    }
    (fields, lines)
}

/// Asserts that KAI knows all fields in `spec` and `status` of an object of this kind.
pub(super) fn check(kind: &str, object: &Value) {
    let lines: Vec<&'static str> = SCHEMA.lines().filter(|line| !line.is_empty()).collect();
    let (kinds, _) = parse(&lines, 0);
    let schema = kinds.iter().find(|field| field.name == kind).unwrap();
    let mut problems = Vec::new();
    for part in &schema.fields {
        if !object[part.name].is_null() {
            compare(part, &object[part.name], part.name, &mut problems);
        }
    }
    assert!(
        problems.is_empty(),
        "{kind} {}: {problems:?}\n{object:#}",
        object["metadata"]["name"]
    );
}

fn compare(schema: &Field, value: &Value, path: &str, problems: &mut Vec<String>) {
    let fits = match schema.kind {
        "string" => value.is_string(),
        "integer" => value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "quantity" => value.is_string() || value.is_number(),
        "any" | "ours" => true,
        _ => value.is_object() || value.is_array(),
    };
    if !fits {
        problems.push(format!("{path} is no {}: {value}", schema.kind));
    }
    let of_name = |name: &str| {
        schema
            .fields
            .iter()
            .find(|field| field.name == name || field.name == "*")
    };
    for (name, value) in value.as_object().into_iter().flatten() {
        match of_name(name) {
            _ if schema.kind == "any" || schema.kind == "ours" => {}
            Some(field) => compare(field, value, &format!("{path}.{name}"), problems),
            None => problems.push(format!("KAI does not know {path}.{name}")),
        }
    }
    for item in value.as_array().into_iter().flatten() {
        if let Some(field) = schema.fields.iter().find(|field| field.name == "-") {
            compare(field, item, &format!("{path}[]"), problems);
        }
    }
}
