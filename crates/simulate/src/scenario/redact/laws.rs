//! Laws of redacted files: nothing leaks from any place, and the objects of all scenarios decide as before.

use std::path::Path;

use serde_json::{Value, json};

use super::super::{NotInstalled, Source, discover, load};
use super::*;
use crate::run::{Options, run};

const SECRET: &str = "zz-secret";

fn redacted(content: &Content) -> (Content, Replacements) {
    let mut labels = BTreeSet::new();
    content
        .values()
        .for_each(|value| find_compared_labels(value, &mut labels));
    let mut found = FoundNames::default();
    content.redacted(Names::Find(&mut found), &labels);
    add_derived_names(std::slice::from_ref(content), &mut found);
    let names = found.numbered();
    (content.redacted(Names::Replace(&names), &labels), names)
}

/// All strings and keys of a value.
fn texts<'v>(value: &'v Value, found: &mut Vec<&'v str>) {
    match value {
        Value::String(text) => found.push(text),
        Value::Array(values) => values.iter().for_each(|value| texts(value, found)),
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            found.push(key);
            texts(value, found);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn check_nothing_leaks(content: &Content, place: &str) {
    let (redacted, _) = redacted(content);
    for value in redacted.values() {
        let mut found = Vec::new();
        texts(value, &mut found);
        if let Some(leaked) = found.iter().find(|text| text.contains(SECRET)) {
            panic!("{place}: {leaked} leaks");
        }
    }
}

/// Calls `check` with the value changed at each place in turn: a text becomes secret, or a field with a secret name and content is added.
fn at_each_place(value: &Value, check: &mut dyn FnMut(&Value, &str)) {
    let mut pointers = Vec::new();
    fn collect(value: &Value, pointer: String, pointers: &mut Vec<String>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(key, value)| {
                let key = key.replace('~', "~0").replace('/', "~1");
                collect(value, format!("{pointer}/{key}"), pointers);
            }),
            Value::Array(values) => values
                .iter()
                .enumerate()
                .for_each(|(at, value)| collect(value, format!("{pointer}/{at}"), pointers)),
            Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        pointers.push(pointer);
    }
    collect(value, String::new(), &mut pointers);
    for pointer in pointers {
        let mut changed = value.clone();
        let Some(place) = changed.pointer_mut(&pointer) else {
            continue;
        };
        match place {
            Value::Object(fields) => drop(fields.insert(SECRET.to_owned(), json!({ SECRET: [SECRET] }))),
            other => *other = SECRET.into(),
        }
        check(&changed, &pointer);
        if let Some(Value::Object(fields)) = changed.pointer_mut(&pointer) {
            fields.insert(SECRET.to_owned(), SECRET.into());
            check(&changed, &pointer);
        }
    }
}

/// A pod with every field that the rules know, and many that they do not.
fn pod() -> Value {
    let expression = json!({ "key": "acme/gen", "operator": "Gt", "values": ["3"] });
    let term = json!({ "labelSelector": { "matchLabels": { "a": "b" }, "matchExpressions": [expression] }, "namespaces": ["ns"],
                       "namespaceSelector": { "matchLabels": {} }, "topologyKey": "rack" });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "p", "namespace": "ns", "uid": "u", "generateName": "p-", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": { "runai-gpu-group/g": "g", "kai.scheduler/queue": "q", "acme": "b" },
            "annotations": {
                "pod-group-name": "g", "gpu-fraction": "0.5", "kai.scheduler/received-gpus": "GPU-1,GPU-2", "acme/secret": "x",
                "kubectl.kubernetes.io/last-applied-configuration": "{}", "runai/shared-gpu-configmap": "p-x-shared-gpu",
                "kai.scheduler/top-owner-metadata": "kind: Job\nname: train\n",
                "kai.scheduler/container.main.gpu-memory.portion.limit": "0.7", "nvidia.com/container.main.gpu-compute.mode": "sm-sharing",
                "nvidia.com/container.main.gpus.devices": "GPU-1", "kai.scheduler/gpu-limits": "{\"container\":\"main\"}",
                "kai.scheduler/gpu-enforcement": "required",
            },
            "ownerReferences": [{ "apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j", "controller": true }],
            "managedFields": [{ "manager": "m" }],
        },
        "spec": {
            "schedulerName": "kai-scheduler", "nodeName": "n", "priorityClassName": "gold", "serviceAccountName": "robot",
            "nodeSelector": { "rack": "r" }, "tolerations": [{ "key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule" }],
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{
                "matchExpressions": [expression], "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n"] }] }] } },
                "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term] } },
            "containers": [{
                "name": "main", "image": "registry.acme.com/x:1", "command": ["run"], "args": ["--token=1"],
                "env": [{ "name": "TOKEN", "value": "t" }, { "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" },
                        { "name": "M", "valueFrom": { "configMapKeyRef": { "name": "c", "key": "k" } } }],
                "envFrom": [{ "configMapRef": { "name": "p-x-shared-gpu-0-evar" } }],
                "ports": [{ "containerPort": 80, "hostPort": 80, "hostIP": "192.168.7.7", "protocol": "TCP" }],
                "resources": { "limits": { "nvidia.com/gpu": "1", "acme.com/fpga": 1, "acme.com/gpu": 1 } },
                "volumeMounts": [{ "name": "data", "mountPath": "/home/alice" }],
            }],
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "claim" } }, { "name": "tmp", "ephemeral": {} },
                        { "name": "map", "configMap": { "name": "c" } }],
        },
        "status": { "phase": "Running", "podIP": "10.1.2.3", "hostIP": "10.1.2.4", "startTime": "2026-01-01T00:00:00Z",
                    "conditions": [{ "type": "Ready", "status": "True", "reason": "x", "message": "on n" }] },
    })
}

fn objects() -> Value {
    let node = json!({
        "metadata": { "name": "n", "labels": { "rack": "r", "kubernetes.io/hostname": "n", "nvidia.com/gpu.memory": "81920" } },
        "spec": { "taints": [{ "key": "k", "value": "v", "effect": "NoSchedule" }], "providerID": "acme://1" },
        "status": { "allocatable": { "nvidia.com/gpu": "1" }, "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }],
                    "images": [{ "names": ["registry.acme.com/x:1"] }], "nodeInfo": { "machineID": "m" } },
    });
    json!({
        "pods": [pod()], "nodes": [node],
        "queues": [{ "metadata": { "name": "q", "annotations": { "kai.scheduler/allowed-namespaces": "ns, other" } },
                     "spec": { "displayName": "Team", "parentQueue": "top", "resources": { "gpu": { "quota": 1 } } } }],
        "podGroups": [{ "metadata": { "name": "g", "namespace": "ns" }, "spec": { "queue": "q", "minMember": 1,
            "subGroups": [{ "name": "s", "minMember": 1 }], "topologyConstraint": { "topology": "t", "requiredTopologyLevel": "rack" } } }],
        "topologies": [{ "metadata": { "name": "t" }, "spec": { "levels": [{ "nodeLabel": "rack" }] } }],
        "bindRequests": [{ "metadata": { "name": "p", "namespace": "ns" }, "spec": { "podName": "p", "selectedNode": "n",
            "selectedGPUGroups": ["g"], "selectedFractionalGpuGroups": [{ "id": "g", "computeSharingMode": "sm-sharing" }] }, "status": { "phase": "Failed", "reason": "text" } }],
        "persistentVolumes": [{ "metadata": { "name": "v" }, "spec": { "csi": { "driver": "disk.acme.com", "volumeHandle": "h" },
            "claimRef": { "namespace": "ns", "name": "claim" }, "storageClassName": "fast" } }],
        "persistentVolumeClaims": [{ "metadata": { "name": "p-tmp", "namespace": "ns" }, "spec": { "volumeName": "v" } }],
        "csiNodes": [{ "metadata": { "name": "n" }, "spec": { "drivers": [{ "name": "disk.acme.com", "nodeID": "acme-7", "allocatable": { "count": 4 } }] } }],
        "csiDrivers": [{ "metadata": { "name": "disk.acme.com" }, "spec": { "storageCapacity": true } }],
        "csiStorageCapacities": [{ "metadata": { "name": "acme-1", "namespace": "ns" }, "storageClassName": "fast", "capacity": "5Gi",
                                   "nodeTopology": { "matchLabels": { "rack": "r" } } }],
        "configMaps": [{ "metadata": { "name": "c", "namespace": "ns" }, "data": { "k": "v" } }],
        "priorityClasses": [{ "metadata": { "name": "gold" }, "value": 7, "description": "text" }],
    })
}

fn snapshot() -> Content {
    Content::Snapshot(json!({
        "config": { "actions": "allocate, reclaim", "tiers": [{ "plugins": [{ "name": "proportion", "arguments": { "kValue": "1" } }] }],
                    "usageDBConfig": { "connectionString": "http://10.0.0.9" } },
        "schedulerParams": { "schedulerName": "kai-scheduler", "partitionParams": { "NodePoolLabelKey": "pool", "NodePoolLabelValue": "a" } },
        "rawObjects": objects(),
        "kai-rs": { "takenAt": "2026-01-01T00:00:00Z", "resourceReservationNamespace": "gpus" },
        "discovery": { "serverVersion": { "major": "1" } },
    }))
}

#[test]
fn nothing_leaks_from_any_place_of_a_snapshot() {
    let Content::Snapshot(snapshot) = snapshot() else {
        unreachable!()
    };
    let mut places = 0;
    at_each_place(&snapshot, &mut |changed, place| {
        check_nothing_leaks(&Content::Snapshot(changed.clone()), place);
        places += 1;
    });
    assert!(places > 300, "{places} places");
}

#[test]
fn nothing_leaks_from_any_place_of_a_manifest() {
    let template = json!({ "metadata": pod()["metadata"], "spec": pod()["spec"] });
    let workloads = [
        (
            "Deployment",
            json!({ "kind": "Deployment", "metadata": { "name": "web" }, "spec": { "replicas": 2, "template": template } }),
        ),
        (
            "StatefulSet",
            json!({ "kind": "StatefulSet", "metadata": { "name": "web" }, "spec": { "serviceName": "s",
            "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": {} }], "template": { "spec": {} } } }),
        ),
        (
            "PyTorchJob",
            json!({ "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": { "name": "t" }, "spec": {
            "runPolicy": { "schedulingPolicy": { "minAvailable": 2, "priorityClass": "gold" } },
            "pytorchReplicaSpecs": { "Worker": { "replicas": 2, "template": template } } } }),
        ),
        (
            "Widget",
            json!({ "apiVersion": "acme.com/v1", "kind": "Widget", "metadata": { "name": "t" }, "spec": { "x": ["y"] } }),
        ),
    ];
    for (kind, object) in workloads {
        at_each_place(&object, &mut |changed, place| {
            // The kind by which an object is read is known before.
            check_nothing_leaks(
                &Content::Manifests(vec![(kind.to_owned(), changed.clone())]),
                &format!("{kind}{place}"),
            );
        });
    }
}

#[test]
fn nothing_leaks_from_any_place_of_a_case() {
    let case = json!({
        "id": "x", "purpose": "text", "group": "action-allocate", "now": "2026-01-01T00:00:00Z", "actions": ["allocate"],
        "params": { "placementStrategy": "spread", "queueUsage": { "q": { "gpu": 1 } }, "queueDepthPerAction": { "reclaim": 1 } },
        "holdReleasing": ["g"], "objects": { "queues": objects()["queues"] },
        "expect": { "pods": { "ns/p": { "status": "Running", "node": "n", "reason": "text" }, "p": { "status": "Pending" } },
                    "nodes": { "n": { "idleGPUs": 1 } } },
        "expectTotals": { "bound": 1 }, "peerNodes": { "p": "n" }, "templates": ["x"],
    });
    at_each_place(&case, &mut |changed, place| {
        check_nothing_leaks(&Content::Case(changed.clone()), place)
    });
}

#[test]
fn references_keep_matching() {
    let (redacted, names) = redacted(&snapshot());
    let Content::Snapshot(snapshot) = redacted else {
        unreachable!()
    };
    let at = |pointer: &str| {
        snapshot
            .pointer(&format!("/rawObjects{pointer}"))
            .cloned()
            .unwrap_or_default()
    };
    assert_eq!(at("/pods/0/spec/nodeName"), at("/nodes/0/metadata/name"));
    assert_eq!(
        at("/pods/0/metadata/annotations/pod-group-name"),
        at("/podGroups/0/metadata/name")
    );
    assert_eq!(at("/podGroups/0/spec/queue"), at("/queues/0/metadata/name"));
    assert_eq!(
        at("/pods/0/metadata/labels/kai.scheduler~1queue"),
        at("/queues/0/metadata/name")
    );
    assert_eq!(
        at("/pods/0/spec/priorityClassName"),
        at("/priorityClasses/0/metadata/name")
    );
    assert_eq!(
        at("/pods/0/spec/volumes/2/configMap/name"),
        at("/configMaps/0/metadata/name")
    );
    assert_eq!(
        at("/podGroups/0/spec/topologyConstraint/topology"),
        at("/topologies/0/metadata/name")
    );
    let level = at("/topologies/0/spec/levels/0/nodeLabel");
    let level = level.as_str().unwrap();
    assert_eq!(
        at("/pods/0/spec/nodeSelector")[level],
        at("/nodes/0/metadata/labels")[level]
    );
    assert_eq!(at("/pods/0/spec/tolerations/0/key"), at("/nodes/0/spec/taints/0/key"));
    assert_eq!(
        at("/pods/0/spec/tolerations/0/value"),
        at("/nodes/0/spec/taints/0/value")
    );
    // A claim of an ephemeral volume has the names of the pod and the volume.
    let volume = at("/pods/0/spec/volumes/1/name");
    let claim = format!("{}-{}", names.of(NameClass::Pod, "p"), volume.as_str().unwrap());
    assert_eq!(at("/persistentVolumeClaims/0/metadata/name"), claim.as_str());
    // The scheduler knows ConfigMaps of GPU shares by their end, and GPUs by the end of their resource.
    let map = at("/pods/0/spec/containers/0/envFrom/0/configMapRef/name");
    let annotation = at("/pods/0/metadata/annotations/runai~1shared-gpu-configmap");
    assert_eq!(
        map.as_str().unwrap(),
        format!("{}-0-evar", annotation.as_str().unwrap())
    );
    let limits = at("/pods/0/spec/containers/0/resources/limits");
    let gpus = limits
        .as_object()
        .unwrap()
        .keys()
        .filter(|name| kai_api::keys::is_gpu_resource(name));
    assert_eq!(gpus.count(), 2, "{limits}");
    // The key of an annotation for one container has the container's name.
    let container = at("/pods/0/spec/containers/0/name");
    let mode = format!("nvidia.com/container.{}.gpu-compute.mode", container.as_str().unwrap());
    assert_eq!(at("/pods/0/metadata/annotations")[&mode], "sm-sharing");
    assert_eq!(
        at("/bindRequests/0/spec/selectedFractionalGpuGroups/0/id"),
        at("/bindRequests/0/spec/selectedGPUGroups/0")
    );
    assert_eq!(
        at("/pods/0/spec/containers/0/env/0"),
        json!({ "name": names.of(NameClass::Variable, "TOKEN") })
    );
    assert_eq!(at("/pods/0/spec/containers/0/image"), Value::Null);
}

#[test]
fn all_scenarios_decide_as_before() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let (mut failed, mut pods) = (Vec::new(), 0);
    for source in discover(&[folder], std::io::empty()).unwrap() {
        let Source::Case(_) = source else {
            panic!("{}: no case", source.path().display())
        };
        let options = Options {
            check: true,
            ..Options::default()
        };
        let original = run(load(&source, &NotInstalled).unwrap(), &options);
        let redaction = redact(&source).unwrap();
        let redacted = run(load_redacted(&redaction, &NotInstalled).unwrap(), &options);
        let differences = redaction_differences(&original, &redacted, &redaction.names);
        let unexpected = redacted.differences.unwrap_or_default();
        let found = differences.into_iter().chain(unexpected);
        failed.extend(found.map(|difference| format!("{}: {difference}", source.path().display())));
        pods += original.pods.len();
        // Each reference without an object, and each mistake, is still one.
        assert_eq!(
            original.warnings.count(),
            redacted.warnings.count(),
            "{}",
            source.path().display()
        );
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(pods > 500, "{pods} pods");
}

#[test]
fn redacting_mutated_snapshots_never_panics() {
    let Content::Snapshot(corpus) = snapshot() else {
        unreachable!()
    };
    kai_fuzz::Fuzz::short("redact").at_most(300).json(&[corpus], |mutated| {
        redacted(&Content::Snapshot(mutated.clone()));
    });
}
