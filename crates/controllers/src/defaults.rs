//! The objects that a new installation creates, so that a first pod runs: two queues, four priority classes for workloads, and one for
//! reservation pods. Objects that an administrator changed or deleted stay so.

use kai_api::crd::{QueueResource, QueueResources, QueueSpec};
use kai_api::{Object, ObjectKey, PriorityClass, Queue, keys};
use kai_cluster::{Client, Context, Selection};
use serde_json::{Value, json};

/// No quota, no limit, and an equal part of the resources over quota.
const WITHOUT_QUOTA: QueueResource = QueueResource {
    quota: 0.0,
    over_quota_weight: 1.0,
    limit: -1.0,
};

/// Creates each missing priority class, and on request the queues if the cluster has no queue.
pub(crate) async fn create(context: &Context, with_queues: bool) -> Result<(), kai_cluster::Error> {
    let classes = context.informers.priority_classes();
    classes.synced().await;
    for class in priority_classes() {
        let name = class["metadata"]["name"].as_str().unwrap_or_default();
        if classes.get(&ObjectKey::new("", name)).is_none() {
            create_one::<PriorityClass>(&context.client, class).await?;
        }
    }
    if !with_queues {
        return Ok(());
    }
    // Listed from the API server and not from an informer, so that a queue created a moment ago counts.
    let queues: Vec<Queue> = context.client.list(&Selection::default()).await?;
    if queues.is_empty() {
        for queue in default_queues() {
            create_one::<Queue>(&context.client, queue).await?;
        }
    }
    Ok(())
}

/// The queues of a cluster without queues, parents first.
pub fn default_queues() -> [Value; 2] {
    [
        queue(keys::DEFAULT_PARENT_QUEUE, None),
        queue(keys::DEFAULT_QUEUE, Some(keys::DEFAULT_PARENT_QUEUE)),
    ]
}

/// The priority classes of an installation.
pub fn priority_classes() -> Vec<Value> {
    let of_workloads = keys::PRIORITY_CLASSES
        .into_iter()
        .map(|(name, value)| json!({ "metadata": { "name": name }, "value": value }));
    let of_reservations = json!({
        "metadata": { "name": keys::RESERVATION_PRIORITY_CLASS },
        "value": keys::RESERVATION_PRIORITY,
        // A pod of this class preempts no other pod.
        "preemptionPolicy": "Never",
        "description": "Pods that hold GPUs for the pods that share them. No other pod has to end for one, and one ends for no other.",
    });
    of_workloads.chain([of_reservations]).collect()
}

fn queue(name: &str, parent: Option<&str>) -> Value {
    let spec = QueueSpec {
        parent_queue: parent.map(str::to_owned),
        resources: Some(QueueResources {
            gpu: WITHOUT_QUOTA,
            cpu: WITHOUT_QUOTA,
            memory: WITHOUT_QUOTA,
        }),
        ..QueueSpec::default()
    };
    json!({ "metadata": { "name": name }, "spec": spec })
}

async fn create_one<T: Object>(client: &Client, body: Value) -> Result<(), kai_cluster::Error> {
    let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    match client.create(&T::RESOURCE, "", body).await {
        Ok(_) => {
            tracing::info!("created {} {name}", T::RESOURCE.kind);
            Ok(())
        }
        // Another replica created the object.
        Err(error) if error.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The committed file has the classes that `kai controllers` creates. `KAI_UPDATE=1` writes it.
    #[test]
    fn committed_priority_classes_are_current() {
        let mut text = "# The priority classes of an installation. `kai controllers` creates those that are missing at start; this file is for\n\
                        # installations that apply them beforehand. Generated; see crates/controllers/src/defaults.rs.\n"
            .to_owned();
        for class in priority_classes() {
            let mut object = json!({ "apiVersion": PriorityClass::RESOURCE.api_version(), "kind": "PriorityClass" });
            object
                .as_object_mut()
                .unwrap()
                .extend(class.as_object().unwrap().clone());
            text.push_str("---\n");
            text.push_str(&serde_saphyr::to_string(&object).unwrap());
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/priority-classes.yaml");
        if std::env::var_os("KAI_UPDATE").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(found, text, "run this test with KAI_UPDATE=1");
    }

    /// A workload that names this class has the priority of a workload without a class; the kubelet evicts no pod for it.
    #[test]
    fn the_priority_class_of_reservation_pods_serves_nobody_else() {
        let class = priority_classes()
            .into_iter()
            .find(|class| class["metadata"]["name"] == "kai-resource-reservation");
        let class: PriorityClass = serde_json::from_value(class.unwrap()).unwrap();
        const CRITICAL: i32 = 2_000_000_000;
        assert!(class.value < CRITICAL);
        let mut classes = kai_api::PriorityClasses::installed();
        classes.insert(&class);
        assert!(!classes.contains("kai-resource-reservation"));
        assert_eq!(
            classes.priority(Some("kai-resource-reservation")),
            classes.priority(None)
        );
    }
}
