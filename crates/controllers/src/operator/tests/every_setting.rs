//! Every setting of the schemas has an effect on the objects, or is in the list of settings without an effect.

use super::super::ShardScheduler;
use super::*;

/// A Config in which the settings that depend on others can have an effect. The pod grouper has the global values.
fn base_config() -> Value {
    let service = json!({ "podDisruptionBudget": { "enabled": true } });
    let component = json!({ "replicas": 2, "vpa": { "enabled": true }, "service": service });
    json!({
        "global": { "replicaCount": 2, "vpa": { "enabled": true } },
        "podGrouper": { "service": service },
        "binder": component, "admission": component, "scheduler": component,
        "queueController": component, "podGroupController": component,
        "nodeScaleAdjuster": { "vpa": { "enabled": true }, "service": { "enabled": true, "podDisruptionBudget": { "enabled": true } } },
    })
}

/// Values of a schema, each in an object with the fields that lead to it.
fn samples(schema: &Value) -> Vec<Value> {
    if schema["x-kubernetes-int-or-string"] == true {
        return vec![json!("3")];
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.clone();
    }
    // A text of one of several words, or an empty one.
    let pattern = schema["pattern"]
        .as_str()
        .and_then(|pattern| pattern.strip_prefix("^("));
    if let Some(words) = pattern.and_then(|pattern| pattern.strip_suffix(")?$")) {
        return words.split('|').map(Value::from).collect();
    }
    match schema["type"].as_str() {
        Some("boolean") => vec![json!(true), json!(false)],
        Some("integer") => vec![json!(7)],
        Some("number") => vec![json!(0.5)],
        Some("array") => vec![json!([whole(&schema["items"])])],
        Some("string") if schema["format"] == "date-time" => vec![json!("2026-01-01T00:00:00Z")],
        Some("string") => vec![json!("7s")],
        _ => match schema["properties"].as_object() {
            Some(_) => vec![whole(schema)],
            None if schema["additionalProperties"].is_object() => {
                vec![json!({ "default": whole(&schema["additionalProperties"]) })]
            }
            None => vec![json!({ "a": "b" })],
        },
    }
}

/// A value with all required fields, and with all fields that are no objects.
fn whole(schema: &Value) -> Value {
    let Some(fields) = schema["properties"].as_object() else {
        return samples(schema).swap_remove(0);
    };
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let is_wanted = |name: &str, field: &Value| {
        required.iter().any(|required| required == name)
            || ["string", "integer", "boolean"]
                .iter()
                .any(|plain| field["type"] == *plain)
    };
    let wanted = fields.iter().filter(|(name, field)| is_wanted(name, field));
    wanted.map(|(name, field)| (name.clone(), whole(field))).collect()
}

/// The paths of all settings.
fn settings(schema: &Value, path: &mut Vec<String>, found: &mut Vec<(Vec<String>, Vec<Value>)>) {
    match schema["properties"].as_object() {
        Some(fields) => {
            for (name, field) in fields {
                path.push(name.clone());
                settings(field, path, found);
                path.pop();
            }
        }
        None => found.push((path.clone(), samples(schema))),
    }
}

fn schema_of(kind: &str) -> Value {
    let crd = kai_api::crd::crds()
        .into_iter()
        .find(|crd| crd["spec"]["names"]["kind"] == kind)
        .unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
}

/// Sets the value at the path, with the required fields of the objects on the way.
fn set(target: &mut Value, schema: &Value, path: &[String], value: Value) {
    let Some((field, rest)) = path.split_first() else {
        *target = value;
        return;
    };
    for required in schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        if target[required].is_null() {
            target[required] = whole(&schema["properties"][required]);
        }
    }
    set(&mut target[field], &schema["properties"][field], rest, value);
}

/// The settings that change nothing of `result` and are not named in it.
fn without_effect(kind: &str, base: &Value, result: impl Fn(Value) -> String) -> Vec<String> {
    let schema = schema_of(kind);
    let mut all = Vec::new();
    settings(&schema, &mut Vec::new(), &mut all);
    assert!(all.len() > 15, "{kind} has settings");
    let before = result(base.clone());
    let has_effect = |path: &[String], values: &[Value]| {
        values.iter().any(|value| {
            let mut changed = base.clone();
            set(&mut changed, &schema, path, value.clone());
            let after = result(changed);
            after != before || after.contains(&path.join("."))
        })
    };
    let idle = all.iter().filter(|(path, values)| !has_effect(path, values));
    idle.map(|(path, _)| path.join(".")).collect()
}

/// The flags of all roles and the configuration files of the schedulers, without the flags of their processes.
fn role_flags(plan: &Plan) -> String {
    let components = plan
        .components
        .iter()
        .map(|component| (component.role, component.role_flags.arguments()));
    let schedulers = plan.shards.iter().map(|shard| match &shard.scheduler {
        ShardScheduler::Run(component) => Some((component.role_flags.arguments(), component.config_file.clone())),
        ShardScheduler::Invalid(_) | ShardScheduler::Disabled => None,
    });
    format!(
        "{:?} {:?}",
        components.collect::<Vec<_>>(),
        schedulers.collect::<Vec<_>>()
    )
}

#[test]
fn every_setting_of_a_config_has_an_effect_or_is_listed() {
    let cases = [
        (Runner::Deployments, true),
        (Runner::Deployments, false),
        (Runner::Process, false),
    ];
    for (runner, serves_vpa) in cases {
        // Without a database of past usage no scheduler needs the address of one.
        let shard_spec = json!({ "usageDBConfig": { "clientType": "prometheus" } });
        let result = |config: Value| {
            let facts = ClusterFacts {
                serves_vpa,
                ..ClusterFacts::default()
            };
            let plan = plan_of(config, &[shard("default", shard_spec.clone())], runner, facts);
            let visible = match runner {
                Runner::Deployments => format!("{:?}", objects(&plan)),
                Runner::Process => role_flags(&plan),
            };
            format!("{visible} {:?}", plan.ignored)
        };
        let idle = without_effect("Config", &base_config(), result);
        assert_eq!(idle, [""; 0], "{runner:?}, autoscaler: {serves_vpa}");
    }
}

#[test]
fn every_setting_of_a_shard_has_an_effect_or_is_listed() {
    let result = |spec: Value| {
        let plan = deployments(json!({}), &[shard("default", spec)]);
        format!("{:?} {:?}", objects(&plan), plan.shards)
    };
    assert_eq!(without_effect("SchedulingShard", &json!({}), result), [""; 0]);
}
