//! Only the node may write that a pod has ended. The policies of an installation on an API server where users have rights in their own
//! namespace only.
#![allow(clippy::unwrap_used)] // It is all test; the lint knows only functions marked as such.

use kai_cluster::{Client, Part, Patch, Target};
use kai_controllers::admission::{self, Settings};
use kai_embedded::server::{Options, Server};
use serde_json::{Value, json};

const TENANT: &str = "system:serviceaccount:default:tenant";

/// An API server with the policies, where no user has rights in all namespaces.
fn server() -> Server {
    let server = Server::new(Options::default());
    let asked = "authorizer.group('').resource('pods').subresource('status').check('patch').allowed()";
    for object in admission::admission_policies(&Settings::default()) {
        let mut object = object;
        if object["metadata"]["name"] == "kai-pods" {
            for validation in object["spec"]["validations"].as_array_mut().into_iter().flatten() {
                let expression = validation["expression"].as_str().unwrap().replace(asked, "false");
                validation["expression"] = expression.into();
            }
        }
        server.store().create(object).unwrap();
    }
    server
}

fn pod(name: &str, scheduler: &str, node: Option<&str>, gpus: u32) -> Value {
    let limits = match gpus {
        0 => json!({}),
        count => json!({ "nvidia.com/gpu": count.to_string() }),
    };
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "default" },
        "spec": { "schedulerName": scheduler,
            "containers": [{ "name": "c", "image": "i", "resources": { "limits": limits } }] },
    });
    if let Some(node) = node {
        pod["spec"]["nodeName"] = node.into();
    }
    pod
}

async fn say(server: &Server, user: &str, name: &str, status: Value) -> Result<(), String> {
    let client = Client::in_process(server.service_as(user));
    let target = Target::of::<kai_api::Pod>("default", name);
    let patch = Patch::Merge(json!({ "status": status }));
    let said = client.patch(target, Part::Status, patch).await;
    said.map(drop).map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_tenant_does_not_say_that_a_pod_with_a_node_ended_whatever_its_scheduler() {
    let server = server();
    let store = server.store();
    for (name, scheduler, node, gpus) in [
        ("ours", "kai-scheduler", None, 1),
        ("foreign", "default-scheduler", Some("n"), 1),
        ("own", "a-tenants-scheduler", Some("n"), 8),
        ("plain", "default-scheduler", Some("n"), 0),
        ("waiting", "default-scheduler", None, 1),
    ] {
        store.create(pod(name, scheduler, node, gpus)).unwrap();
    }
    for name in ["ours", "foreign", "own", "plain"] {
        for phase in ["Succeeded", "Failed"] {
            let refused = say(&server, TENANT, name, json!({ "phase": phase })).await.unwrap_err();
            assert!(refused.contains("status.phase"), "{name}: {refused}");
        }
        // A tenant may still write conditions.
        say(&server, TENANT, name, json!({ "message": "mine" })).await.unwrap();
        // Our service accounts may write conditions, and no phase.
        let binder = "system:serviceaccount:kai-scheduler:binder";
        let bound = json!({ "type": "PodBound", "status": "False", "reason": "BindingError" });
        say(&server, binder, name, json!({ "conditions": [bound] }))
            .await
            .unwrap();
        let refused = say(&server, binder, name, json!({ "phase": "Running" }))
            .await
            .unwrap_err();
        assert!(refused.contains("conditions"), "{name}: {refused}");
    }
    // A pod of another scheduler without a node holds no resources.
    say(&server, TENANT, "waiting", json!({ "phase": "Failed" }))
        .await
        .unwrap();
}
