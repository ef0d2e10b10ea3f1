//! Tests of the custom resources: committed definitions, examples with every field, validation, and the examples in the documentation.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use support::problems;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn committed_definitions_are_fresh() {
    let directory = repository().join("deploy/crds");
    let mut expected = Vec::new();
    for manifest in kai_api::crd::manifests() {
        let name = manifest.file_name;
        let committed = fs::read_to_string(directory.join(&name)).unwrap_or_default();
        assert!(
            committed == manifest.yaml,
            "deploy/crds/{name} is stale; run: cargo run -- crds --to deploy/crds"
        );
        expected.push(name);
    }
    let mut present: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    expected.sort();
    present.sort();
    assert_eq!(present, expected, "deploy/crds has a file of no kind");
}

#[test]
fn yaml_says_what_json_says() {
    for (manifest, crd) in kai_api::crd::manifests().iter().zip(kai_api::crd::crds()) {
        assert_eq!(yaml(&manifest.yaml), crd, "{}", manifest.file_name);
    }
}

/// The schema accepts the example, and the type keeps all of its fields.
fn round_trip<T: DeserializeOwned + Serialize>(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/examples").join(name);
    let written = yaml(&fs::read_to_string(path).expect("an example"));
    assert_eq!(problems(&written), [""; 0], "{name}");
    let read: T = serde_json::from_value(written.clone()).expect("the type takes it");
    let again = serde_json::to_value(read).expect("what was read can be written");
    assert_eq!(again, written, "{name}");
}

#[test]
fn every_field_survives() {
    round_trip::<kai_api::crd::BindRequest>("bind-request.yaml");
    round_trip::<kai_api::crd::Config>("config.yaml");
    round_trip::<kai_api::crd::PodGroup>("pod-group.yaml");
    round_trip::<kai_api::crd::Queue>("queue.yaml");
    round_trip::<kai_api::crd::SchedulingShard>("scheduling-shard.yaml");
    round_trip::<kai_api::crd::Topology>("topology.yaml");
}

/// Every field of our kinds, apart from fields of Kubernetes' types, is in an example, so that `every_field_survives` covers all of them.
#[test]
fn examples_leave_nothing_out() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/examples");
    let mut left_out = Vec::new();
    for crd in kai_api::crd::crds() {
        let example = fs::read_dir(&directory)
            .unwrap()
            .map(|entry| yaml(&fs::read_to_string(entry.unwrap().path()).unwrap()))
            .find(|example| example["kind"] == crd["spec"]["names"]["kind"])
            .unwrap();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        collect_left_out(schema, &[&example], "", &mut left_out);
    }
    assert_eq!(left_out, [""; 0]);
}

fn collect_left_out(schema: &Value, values: &[&Value], path: &str, left_out: &mut Vec<String>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let present: Vec<&Value> = values.iter().filter_map(|value| value.get(name)).collect();
        // Embedded types of Kubernetes have no descriptions; all of our own fields have one.
        let ours = field.get("description").is_some();
        if ours && present.is_empty() && path != ".spec.extendedResourceClaimAllocation.allocation" {
            left_out.push(path.clone());
        }
        collect_left_out(field, &present, &path, left_out);
    }
    let entries: Vec<&Value> = values.iter().filter_map(|value| value.as_array()).flatten().collect();
    if schema["items"].is_object() {
        collect_left_out(&schema["items"], &entries, &format!("{path}[]"), left_out);
    }
}

fn object(kind: &str, spec: Value) -> Value {
    let api_version = match kind {
        "Queue" => "scheduling.run.ai/v2",
        "PodGroup" => "scheduling.run.ai/v2alpha2",
        "BindRequest" => "scheduling.run.ai/v1alpha2",
        "Topology" => "kai.scheduler/v1alpha1",
        _ => "kai.scheduler/v1",
    };
    json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": "x" }, "spec": spec })
}

#[test]
fn what_is_let_through() {
    for (kind, spec) in [
        ("Queue", json!({})),
        ("Queue", json!({ "resources": { "gpu": { "quota": -1 } } })),
        ("PodGroup", json!({ "minMember": 0, "queue": "q" })),
        ("PodGroup", json!({ "subGroups": [{ "name": "a-1", "parent": "b" }] })),
        ("BindRequest", json!({ "podName": "p", "receivedGPU": {} })),
        ("Topology", json!({ "levels": [{ "nodeLabel": "rack" }] })),
        (
            "Topology",
            json!({ "levels": vec![json!({ "nodeLabel": "a.b/c" }); 16] }),
        ),
        (
            "SchedulingShard",
            json!({ "goMemLimitRatio": 1, "goMemLimit": 1_000_000 }),
        ),
        ("SchedulingShard", json!({ "usageDBConfig": { "clientType": "fake" } })),
        (
            "Config",
            json!({ "global": { "vpa": { "updatePolicy": { "updateMode": "Off" } } } }),
        ),
    ] {
        let object = object(kind, spec);
        assert_eq!(problems(&object), [""; 0], "{object}");
    }
    let without_spec = json!({ "apiVersion": "kai.scheduler/v1", "kind": "SchedulingShard", "metadata": {} });
    assert_eq!(problems(&without_spec), [""; 0]);
}

#[test]
fn what_is_refused() {
    for (kind, spec, field) in [
        (
            "Queue",
            json!({ "resources": { "gpu": { "quota": "8" } } }),
            ".spec.resources.gpu.quota",
        ),
        ("Queue", json!({ "parent": "q" }), ".spec.parent"),
        ("PodGroup", json!({ "minMember": -1 }), ".spec.minMember"),
        ("PodGroup", json!({ "minMember": 1.5 }), ".spec.minMember"),
        ("PodGroup", json!({ "minSubGroup": -1 }), ".spec.minSubGroup"),
        ("PodGroup", json!({ "preemptibility": "maybe" }), ".spec.preemptibility"),
        (
            "PodGroup",
            json!({ "subGroups": [{ "name": "" }] }),
            ".spec.subGroups[0].name",
        ),
        (
            "PodGroup",
            json!({ "subGroups": [{ "name": "A" }] }),
            ".spec.subGroups[0].name",
        ),
        (
            "PodGroup",
            json!({ "subGroups": [{ "parent": "a" }] }),
            ".spec.subGroups[0]",
        ),
        (
            "BindRequest",
            json!({ "selectedGPUGroups": "a" }),
            ".spec.selectedGPUGroups",
        ),
        (
            "BindRequest",
            json!({ "selectedFractionalGpuGroups": [{ "computeSharingMode": "time-slicing" }] }),
            ".spec.selectedFractionalGpuGroups[0]",
        ),
        (
            "Config",
            json!({ "global": { "gpuSharingMode": "On" } }),
            ".spec.global.gpuSharingMode",
        ),
        (
            "Config",
            json!({ "queueController": { "enforceQuotaViolation": "Refuse" } }),
            ".spec.queueController.enforceQuotaViolation",
        ),
        (
            "BindRequest",
            json!({ "predictedNUMAZones": [{ "zone": "0" }] }),
            ".spec.predictedNUMAZones[0]",
        ),
        ("Topology", json!({}), ".spec"),
        ("Topology", json!({ "levels": [] }), ".spec.levels"),
        (
            "Topology",
            json!({ "levels": vec![json!({ "nodeLabel": "a" }); 17] }),
            ".spec.levels",
        ),
        (
            "Topology",
            json!({ "levels": [{ "nodeLabel": "a b" }] }),
            ".spec.levels[0].nodeLabel",
        ),
        (
            "Topology",
            json!({ "levels": [{ "nodeLabel": "a", "alias": "" }] }),
            ".spec.levels[0].alias",
        ),
        (
            "SchedulingShard",
            json!({ "goMemLimitRatio": 0 }),
            ".spec.goMemLimitRatio",
        ),
        (
            "SchedulingShard",
            json!({ "goMemLimitRatio": 1.1 }),
            ".spec.goMemLimitRatio",
        ),
        ("SchedulingShard", json!({ "goMemLimit": "much" }), ".spec.goMemLimit"),
        ("SchedulingShard", json!({ "usageDBConfig": {} }), ".spec.usageDBConfig"),
        (
            "SchedulingShard",
            json!({ "usageDBConfig": { "clientType": "fake", "usageParams": { "windowSize": "soon" } } }),
            ".spec.usageDBConfig.usageParams.windowSize",
        ),
        (
            "Config",
            json!({ "binder": { "vpa": { "updatePolicy": { "updateMode": "Often" } } } }),
            ".spec.binder.vpa.updatePolicy.updateMode",
        ),
        (
            "Config",
            json!({ "binder": { "replicas": "2" } }),
            ".spec.binder.replicas",
        ),
    ] {
        let object = object(kind, spec);
        let found = problems(&object);
        assert!(
            !found.is_empty() && found.iter().all(|problem| problem.starts_with(&format!("{field}:"))),
            "{object}: {found:?}"
        );
    }
}

#[test]
fn examples_of_the_documentation_are_valid() {
    let page = fs::read_to_string(repository().join("docs/api.md")).unwrap();
    let mut kinds = Vec::new();
    for block in page.split("```yaml\n").skip(1) {
        let text = block.split("```").next().unwrap();
        for document in text.split("\n---\n") {
            let object = yaml(document);
            let kind = object["kind"].as_str().unwrap_or_default().to_owned();
            if object["apiVersion"].as_str().is_some_and(|version| {
                version.starts_with("kai.scheduler/") || version.starts_with("scheduling.run.ai/")
            }) {
                assert_eq!(problems(&object), [""; 0], "{document}");
                kinds.push(kind);
            }
        }
    }
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds, ["Config", "PodGroup", "Queue", "SchedulingShard", "Topology"]);
}
