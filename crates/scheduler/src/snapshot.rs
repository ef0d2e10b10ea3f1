//! The answer of `/get-snapshot` and the file of `kai snapshot`: the scheduler's objects in KAI's format, a zip with one JSON file. It lists whole objects from the API
//! server, so that it also has the fields which this scheduler does not read.

use std::io::{Cursor, Write};

use kai_api::{BindRequest, Metadata, Node, Object, Pod, PodGroup, PriorityClass, Queue, Resource, Topology};
use kai_cluster::{Client, Selection};
use serde::Deserialize;
use serde_json::{Value, json};
use zip::write::SimpleFileOptions;

use crate::Settings;
use kai_mirror::Partition;

/// Kinds in KAI's snapshots that this scheduler does not read.
const NOT_READ: [&str; 9] = [
    "configMaps",
    "csiStorageCapacities",
    "storageClasses",
    "csiDrivers",
    "resourceClaims",
    "resourceSlices",
    "deviceClasses",
    "nodeResourceTopologies",
    "volumeAttachments",
];

/// Lists the objects and packs them: the zip file, or the reason why there is none. Needs the right to list every kind in it but volumes
/// and their claims.
pub async fn take(client: &Client, settings: &Settings) -> Result<Vec<u8>, String> {
    let partition = &settings.partition;
    let list = async |resource: &Resource| {
        let listed = client.list_values(resource, &Selection::default()).await;
        listed.map_err(|error| error.to_string())
    };
    let mut objects = json!({
        "pods": without_failed(list(&Pod::RESOURCE).await?),
        "nodes": in_partition(partition, list(&Node::RESOURCE).await?),
        "queues": in_partition(partition, list(&Queue::RESOURCE).await?),
        "podGroups": in_partition(partition, list(&PodGroup::RESOURCE).await?),
        "bindRequests": list(&BindRequest::RESOURCE).await?,
        "priorityClasses": list(&PriorityClass::RESOURCE).await?,
        "topologies": list(&Topology::RESOURCE).await?,
        "persistentVolumes": list(&kai_api::PersistentVolume::RESOURCE).await.unwrap_or_default(),
        "persistentVolumeClaims": list(&kai_api::PersistentVolumeClaim::RESOURCE).await.unwrap_or_default(),
    });
    for kind in NOT_READ {
        objects[kind] = Value::Null;
    }
    strip_managed_fields(&mut objects);
    let snapshot = json!({
        "config": settings.config_file,
        "schedulerParams": parameters(settings),
        "rawObjects": objects,
    });
    zipped(&snapshot).map_err(|error| format!("packing the snapshot: {error}"))
}

fn parameters(settings: &Settings) -> Value {
    let (key, value) = settings.partition.label_key_and_value();
    let config = &settings.config;
    let nanos = |millis: i64| millis.saturating_mul(1_000_000);
    let period = i64::try_from(settings.schedule_period.as_nanos()).unwrap_or(i64::MAX);
    json!({
        "schedulerName": settings.scheduler_name,
        "restrictSchedulingNodes": settings.restrict_nodes.is_some(),
        "partitionParams": { "NodePoolLabelKey": key, "NodePoolLabelValue": value },
        "maxNumberConsolidationPreemptees": config.consolidation_preemptees_max.map_or(-1, i64::from),
        "scheduleCSIStorage": false,
        "useSchedulingSignatures": config.use_signatures,
        "fullHierarchyFairness": settings.full_hierarchy_fairness,
        "allowConsolidatingReclaim": config.allow_consolidating_reclaim,
        "numOfStatusRecordingWorkers": settings.status_workers,
        "globalDefaultStalenessGracePeriod": config.staleness_grace.map_or(-1_000_000_000, |grace| nanos(grace.0)),
        "schedulePeriod": period,
        "stuckInReleasingThreshold": nanos(config.stuck_in_releasing.0),
        "detailedFitErrors": false,
        "updatePodEvictionCondition": settings.update_pod_eviction_condition,
        "queueLabelKey": settings.queue_label_key,
    })
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
    fn the_parameters_are_those_that_the_tool_reads() {
        let parameters = parameters(&Settings::default());
        assert_eq!(parameters["schedulePeriod"], 1_000_000_000);
        assert_eq!(parameters["stuckInReleasingThreshold"], 120_000_000_000_i64);
        assert_eq!(
            parameters["partitionParams"]["NodePoolLabelKey"],
            "kai.scheduler/node-pool"
        );
    }

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
