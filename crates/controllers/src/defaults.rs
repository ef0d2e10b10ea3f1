//! What a fresh installation brings along, so that a first pod runs without further ado: two queues and four priority classes. What
//! an administrator removed or changed stays so.

use api::crd::{QueueResource, QueueResources, QueueSpec};
use api::{Object, PriorityClass, Queue, keys};
use cluster::{Client, Context, Key, Selection};
use serde_json::{Value, json};

/// No quota, no limit, and an equal part of what others leave.
const SHARE: QueueResource = QueueResource {
    quota: 0.0,
    over_quota_weight: 1.0,
    limit: -1.0,
};

/// Creates what is missing: priority classes one by one, the queues only if there is no queue at all.
pub(crate) async fn create(context: &Context) -> Result<(), cluster::Error> {
    let classes = context.feeds.priority_classes();
    classes.synced().await;
    for (name, value) in keys::PRIORITY_CLASSES {
        if classes.get(&Key::new("", name)).is_none() {
            let body = json!({ "metadata": { "name": name }, "value": value });
            create_one::<PriorityClass>(&context.client, body).await?;
        }
    }
    // Asked of the API and not of a watch: a queue made a moment ago counts.
    let queues: Vec<Queue> = context.client.list(&Selection::default()).await?;
    if queues.is_empty() {
        create_one::<Queue>(&context.client, queue(keys::DEFAULT_PARENT_QUEUE, None)).await?;
        create_one::<Queue>(
            &context.client,
            queue(keys::DEFAULT_QUEUE, Some(keys::DEFAULT_PARENT_QUEUE)),
        )
        .await?;
    }
    Ok(())
}

fn queue(name: &str, parent: Option<&str>) -> Value {
    let spec = QueueSpec {
        parent_queue: parent.map(str::to_owned),
        resources: Some(QueueResources {
            gpu: SHARE,
            cpu: SHARE,
            memory: SHARE,
        }),
        ..QueueSpec::default()
    };
    json!({ "metadata": { "name": name }, "spec": spec })
}

async fn create_one<T: Object>(client: &Client, body: Value) -> Result<(), cluster::Error> {
    let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    match client.create(&T::RESOURCE, "", body).await {
        Ok(_) => {
            tracing::info!("created {} {name}", T::RESOURCE.kind);
            Ok(())
        }
        // Another replica was faster.
        Err(error) if error.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}
