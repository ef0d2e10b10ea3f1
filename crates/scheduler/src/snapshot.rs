//! The answer of `/get-snapshot` and the file of `kai snapshot`: the scheduler's objects in KAI's format, a zip with one JSON file. It
//! lists whole objects from the API server, so that it also has the fields which this scheduler does not read. Of ConfigMaps it has the
//! metadata only, as the scheduler.

use std::collections::BTreeMap;
use std::io::{Cursor, Write};

use kai_api::{
    BindRequest, ConfigMap, CsiDriver, CsiNode, CsiStorageCapacity, Metadata, Node, Object, PersistentVolume,
    PersistentVolumeClaim, Pod, PodGroup, PriorityClass, Queue, Resource, StorageClass, Topology,
};
use kai_cluster::{Client, Selection};
use kai_engine::model::Millis;
use serde::Deserialize;
use serde_json::{Value, json};
use zip::write::SimpleFileOptions;

use crate::Settings;
use kai_mirror::Partition;

/// Kinds in KAI's snapshots that this scheduler does not read.
const NOT_READ: [&str; 5] = [
    "resourceClaims",
    "resourceSlices",
    "deviceClasses",
    "nodeResourceTopologies",
    "volumeAttachments",
];

/// Lists the objects and packs them: the zip file, or the reason why there is none. Needs the right to list every kind in it but volumes
/// and their claims. `now` is the time of the snapshot.
pub async fn take(client: &Client, settings: &Settings, now: Millis) -> Result<Vec<u8>, String> {
    let partition = &settings.partition;
    let list = async |resource: &Resource| {
        let listed = client.list_values(resource, &Selection::default()).await;
        listed.map_err(|error| error.to_string())
    };
    // As null, a kind that may not be listed restricts no pod, as in the scheduler.
    let optional = |listed: Result<Vec<Value>, _>| listed.map_or(Value::Null, Value::Array);
    let config_maps = client.list_metadata(&ConfigMap::RESOURCE, &Selection::default()).await;
    let mut objects = json!({
        "pods": without_failed(list(&Pod::RESOURCE).await?),
        "nodes": in_partition(partition, list(&Node::RESOURCE).await?),
        "queues": in_partition(partition, list(&Queue::RESOURCE).await?),
        "podGroups": in_partition(partition, list(&PodGroup::RESOURCE).await?),
        "bindRequests": list(&BindRequest::RESOURCE).await?,
        "priorityClasses": list(&PriorityClass::RESOURCE).await?,
        "topologies": list(&Topology::RESOURCE).await?,
        "persistentVolumes": optional(list(&PersistentVolume::RESOURCE).await),
        "persistentVolumeClaims": optional(list(&PersistentVolumeClaim::RESOURCE).await),
        "storageClasses": optional(list(&StorageClass::RESOURCE).await),
        "csiNodes": optional(list(&CsiNode::RESOURCE).await),
        "csiDrivers": optional(list(&CsiDriver::RESOURCE).await),
        "csiStorageCapacities": optional(list(&CsiStorageCapacity::RESOURCE).await),
        "configMaps": optional(config_maps.map(without_content).map_err(|error| error.to_string())),
    });
    for kind in NOT_READ {
        objects[kind] = Value::Null;
    }
    strip_managed_fields(&mut objects);
    let snapshot = json!({
        "config": settings.snapshot_config(),
        "schedulerParams": settings.snapshot_parameters(),
        "rawObjects": objects,
        "kai-rs": settings.snapshot_extensions(now),
    });
    zipped(&snapshot).map_err(|error| format!("packing the snapshot: {error}"))
}

fn in_partition(partition: &Partition, mut objects: Vec<Value>) -> Vec<Value> {
    objects.retain(|object| {
        let metadata = Metadata::deserialize(&object["metadata"]);
        metadata.is_ok_and(|metadata| partition.contains(&metadata))
    });
    objects
}

fn without_failed(mut pods: Vec<Value>) -> Vec<Value> {
    pods.retain(|pod| pod["status"]["phase"] != "Failed");
    pods
}

/// Keeps the names of ConfigMaps. Their annotations may repeat the data, as `kubectl apply` leaves it there.
fn without_content(config_maps: Vec<Value>) -> Vec<Value> {
    let kept = |object: Value| {
        let metadata = &object["metadata"];
        let fields = ["name", "namespace", "uid", "creationTimestamp"].map(|field| (field, &metadata[field]));
        json!({ "metadata": BTreeMap::from(fields) })
    };
    config_maps.into_iter().map(kept).collect()
}

/// Removes `managedFields`, which are half of an object's size.
fn strip_managed_fields(objects: &mut Value) {
    let lists = objects.as_object_mut().into_iter().flat_map(|lists| lists.values_mut());
    for object in lists.filter_map(Value::as_array_mut).flatten() {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
    }
}

fn zipped(snapshot: &Value) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    zip.start_file("snapshot.json", SimpleFileOptions::default())?;
    zip.write_all(&serde_json::to_vec(snapshot)?)?;
    Ok(zip.finish()?.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_partition_is_in_it_without_managed_fields() {
        let node = |name: &str, labels: Value| json!({ "metadata": { "name": name, "labels": labels, "managedFields": [{}] } });
        let nodes = vec![node("a", json!({})), node("b", json!({ "pool": "x" }))];
        let mut objects = json!({ "nodes": in_partition(&Partition::new("pool", ""), nodes) });
        strip_managed_fields(&mut objects);
        assert_eq!(
            objects,
            json!({ "nodes": [{ "metadata": { "name": "a", "labels": {} } }] })
        );
    }

    #[test]
    fn config_maps_are_without_their_data() {
        let applied = json!({ "kubectl.kubernetes.io/last-applied-configuration": "secret" });
        let config_map = json!({
            "kind": "PartialObjectMetadata", "metadata": { "name": "c", "namespace": "ns", "annotations": applied }, "data": { "k": "secret" },
        });
        let kept = json!([{ "metadata": { "name": "c", "namespace": "ns", "uid": null, "creationTimestamp": null } }]);
        assert_eq!(Value::Array(without_content(vec![config_map])), kept);
    }

    fn fuzz(fuzz: kai_fuzz::Fuzz) {
        let pod = json!({
            "metadata": { "name": "p", "namespace": "ns", "labels": { "pool": "x" }, "managedFields": [{}] },
            "spec": { "nodeName": "n0" }, "status": { "phase": "Running" },
        });
        let node = json!({ "metadata": { "name": "n0", "labels": {}, "managedFields": [{}] } });
        fuzz.json(&[json!({ "pods": [pod], "nodes": [node] })], |objects| {
            let list = |kind: &str| objects[kind].as_array().cloned().unwrap_or_default();
            let mut objects = json!({
                "pods": without_failed(list("pods")),
                "nodes": in_partition(&Partition::new("pool", "x"), list("nodes")),
            });
            strip_managed_fields(&mut objects);
            let packed = zipped(&objects).unwrap();
            let mut zip = zip::ZipArchive::new(Cursor::new(packed)).unwrap();
            let read: Value = serde_json::from_reader(zip.by_name("snapshot.json").unwrap()).unwrap();
            // Through the same parser, which does not keep the last bit of every number.
            let objects: Value = serde_json::from_str(&objects.to_string()).unwrap();
            assert_eq!(read, objects, "what is packed is read again");
        });
    }

    #[test]
    fn snapshots_of_mutated_objects_never_panic() {
        fuzz(kai_fuzz::Fuzz::short("snapshot").at_most(300));
    }

    #[test]
    #[ignore = "runs for KAI_FUZZ_SECONDS"]
    fn long_run_of_snapshots() {
        fuzz(kai_fuzz::Fuzz::long("snapshot"));
    }
}
