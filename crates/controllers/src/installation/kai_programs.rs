//! The programs of KAI-Scheduler in kai's namespace. Two schedulers, each with its own view of the cluster, would give one GPU to two pods.
//! Leases do not prevent it: KAI's programs hold none unless leader election is on.

use std::time::Duration;

use kai_api::{Object, Resource, Scope};
use kai_cluster::{Client, Selection};
use serde_json::Value;

use super::Error;

static DEPLOYMENT: Resource = Resource::new("apps", "v1", "Deployment", "deployments", Scope::Namespaced);
const POLL: Duration = Duration::from_secs(2);
/// KAI's operator, which its chart installs. The chart of kai gives its own Deployment of that name this label.
const OPERATOR: &str = "kai-operator";
const PART_OF: &str = "app.kubernetes.io/part-of";
/// The label of all Deployments that KAI's operator makes; the operator of kai marks its own with an annotation.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// What the process does while programs of KAI run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KaiPrograms {
    /// It waits until an administrator has removed them.
    #[default]
    WaitFor,
    /// Its operator replaces them.
    Replace,
}

/// Waits until no program of KAI runs in the namespace.
pub(super) async fn wait_until_gone(client: &Client, namespace: &str) -> Result<(), Error> {
    let selection = Selection {
        namespace: Some(namespace.to_owned()),
        ..Selection::default()
    };
    let mut logged = Vec::new();
    loop {
        let deployments = match client.list_values(&DEPLOYMENT, &selection).await {
            Err(error) if error.is_forbidden() => {
                tracing::warn!(%error, "programs of KAI-Scheduler that still run here would not be noticed");
                return Ok(());
            }
            listed => listed?,
        };
        let running = running(&deployments);
        if running.is_empty() {
            return Ok(());
        }
        if running != logged {
            let names = running.join(" ");
            tracing::warn!(
                "KAI-Scheduler still runs in namespace {namespace}, and two schedulers would give one GPU to two pods; this process waits. \
                 Uninstall KAI-Scheduler, or remove what it left: kubectl -n {namespace} delete deployment {names}"
            );
            logged = running;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Names of KAI's Deployments that have pods, or will have.
fn running(deployments: &[Value]) -> Vec<String> {
    let has_pods = |deployment: &&Value| {
        deployment["spec"]["replicas"].as_i64().unwrap_or(1) > 0 || deployment["status"]["replicas"].as_i64() > Some(0)
    };
    let running = deployments
        .iter()
        .filter(|deployment| is_of_kai(deployment))
        .filter(has_pods);
    running
        .filter_map(|deployment| deployment["metadata"]["name"].as_str().map(str::to_owned))
        .collect()
}

fn is_of_kai(deployment: &Value) -> bool {
    let (metadata, labels) = (&deployment["metadata"], &deployment["metadata"]["labels"]);
    let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
    let of_config = owners
        .into_iter()
        .any(|owner| owner["apiVersion"].as_str() == Some(&kai_api::Config::RESOURCE.api_version()));
    // Of a Config that was deleted without its Deployments.
    let of_operator = labels[MANAGED_BY] == OPERATOR;
    let is_operator = metadata["name"] == OPERATOR && labels["app"] == OPERATOR;
    let is_ours = labels[PART_OF] == "kai-scheduler" || crate::operator::is_marked(metadata);
    (of_config || of_operator || is_operator) && !is_ours
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn deployments_of_kai_are_recognised() {
        let owners = |kind: &str| json!([{ "apiVersion": "kai.scheduler/v1", "kind": kind, "controller": true }]);
        let check = |metadata: Value, spec: Value, expect: &[&str]| {
            let deployment = json!({ "metadata": metadata, "spec": spec, "status": { "replicas": 0 } });
            assert_eq!(running(std::slice::from_ref(&deployment)), expect, "{deployment}");
        };
        let of_config = json!({ "name": "binder", "ownerReferences": owners("Config") });
        check(of_config.clone(), json!({}), &["binder"]);
        check(of_config.clone(), json!({ "replicas": 0 }), &[]);
        let stopping = json!({ "metadata": of_config, "spec": { "replicas": 0 }, "status": { "replicas": 1 } });
        assert_eq!(running(&[stopping]), ["binder"]);
        let of_shard = json!({ "name": "kai-scheduler-default", "ownerReferences": owners("SchedulingShard") });
        check(of_shard, json!({ "replicas": 2 }), &["kai-scheduler-default"]);
        let orphan = json!({ "name": "admission", "labels": { "app.kubernetes.io/managed-by": "kai-operator" } });
        check(orphan, json!({}), &["admission"]);
        let operator = json!({ "name": "kai-operator", "labels": { "app": "kai-operator" } });
        check(operator.clone(), json!({}), &["kai-operator"]);
        // Of this installation, or of others.
        let mut ours = operator;
        ours["labels"]["app.kubernetes.io/part-of"] = "kai-scheduler".into();
        check(ours, json!({}), &[]);
        let operated = json!({
            "name": "binder", "ownerReferences": owners("Config"), "annotations": { "kai.scheduler/operated-for": "Config" },
        });
        check(operated, json!({}), &[]);
        check(
            json!({ "name": "shop", "labels": { "app.kubernetes.io/managed-by": "Helm" } }),
            json!({}),
            &[],
        );
    }
}
