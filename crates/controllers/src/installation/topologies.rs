//! Copies the Topologies of Kueue, which KAI used before it had a kind of its own.

use kai_cluster::{Client, Selection};
use serde_json::{Value, json};

use super::Error;
use super::directory::{InstallationObject, Rule};

/// Kueue's versions of the kind, the newest first. They have the same fields.
const VERSIONS: [&str; 3] = ["v1beta2", "v1beta1", "v1alpha1"];
const SOURCE: &str = "the Topologies of Kueue";

/// A Topology of kai for each Topology of Kueue. None if Kueue is not installed, or if this account may not list them.
pub(super) async fn of_kueue(client: &Client) -> Result<Vec<InstallationObject>, Error> {
    for version in VERSIONS {
        let Some(resource) = client
            .resource_of(&format!("kueue.x-k8s.io/{version}"), "Topology")
            .await?
        else {
            continue;
        };
        let found = match client.list_values(&resource, &Selection::default()).await {
            Err(error) if error.is_forbidden() => {
                tracing::warn!(%error, "the Topologies of Kueue are not copied");
                return Ok(Vec::new());
            }
            found => found?,
        };
        return found.iter().map(copy).collect();
    }
    Ok(Vec::new())
}

fn copy(kueue: &Value) -> Result<InstallationObject, Error> {
    let levels = kueue["spec"]["levels"].as_array().into_iter().flatten();
    let levels: Vec<Value> = levels.map(|level| json!({ "nodeLabel": level["nodeLabel"] })).collect();
    let topology = json!({
        "apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology",
        "metadata": { "name": kueue["metadata"]["name"] }, "spec": { "levels": levels },
    });
    InstallationObject::new(SOURCE, Rule::Create, topology)
}
