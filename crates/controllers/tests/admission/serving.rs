//! Webhooks that are down, uninstalled, served by several replicas, or without TLS.

use std::net::TcpListener;
use std::sync::Arc;

use kai_cluster::{Client, Clock, Context, Target};
use kai_controllers::admission::{self, Settings, State};
use kai_embedded::server::{Backend, Options, Server};
use serde_json::json;

use crate::cluster::{Cluster, MUTATING, PODS, QUEUES, TENANT, foreign, pod};

#[tokio::test]
async fn other_pods_come_and_go_while_nobody_serves() {
    let cluster = Cluster::start(|_| {}).await;
    cluster.stop();
    let other = foreign(pod("other", json!({}), json!({"gpu-fraction": "whatever"})));
    cluster.create(TENANT, &PODS, other).await.unwrap();
    cluster
        .change(TENANT, &PODS, "other", json!({"metadata": {"labels": {"a": "b"}}}))
        .await
        .unwrap();
    cluster.delete(TENANT, &PODS, "other").await.unwrap();
    cluster
        .create(TENANT, &PODS, pod("ours", json!({}), json!({})))
        .await
        .unwrap_err();
}

#[tokio::test]
async fn nothing_stands_in_the_way_after_uninstallation() {
    let cluster = Cluster::start(|_| {}).await;
    cluster.stop();
    admission::uninstall(&cluster.client("system:admin")).await.unwrap();
    cluster
        .create(TENANT, &PODS, pod("ours", json!({"runai-gpu-group": "g"}), json!({})))
        .await
        .unwrap();
    cluster
        .create(TENANT, &QUEUES, json!({"metadata": {"name": "q"}, "spec": {}}))
        .await
        .unwrap();
    cluster.delete(TENANT, &QUEUES, "q").await.unwrap();
    // A second uninstallation is no error.
    admission::uninstall(&cluster.client("system:admin")).await.unwrap();
}

#[tokio::test]
async fn replicas_share_a_bundle() {
    let cluster = Cluster::start(|settings| settings.identity = "first".into()).await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let second = listener.local_addr().unwrap();
    let context = Context::new(
        cluster.client("system:serviceaccount:kai-scheduler:admission"),
        Clock::System,
    );
    let health = context.health.clone();
    let settings = Settings {
        identity: "second".into(),
        ..Settings::default()
    };
    let role = tokio::spawn(admission::serve(context, settings, listener));
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        if health.not_ready().is_empty() && bundle_names(&cluster, "second").await {
            break;
        }
    }
    let share = |name| pod(name, json!({}), json!({"gpu-fraction": "0.5"}));
    // The API server trusts both replicas, whichever the service routes to.
    cluster.create(TENANT, &PODS, share("a")).await.unwrap();
    cluster
        .server
        .route_service("kai-scheduler", "admission", Backend::address(second));
    cluster.create(TENANT, &PODS, share("b")).await.unwrap();
    role.abort();
}

/// Whether the CA bundle has a certificate of the replica.
async fn bundle_names(cluster: &Cluster, replica: &str) -> bool {
    use base64::Engine as _;
    let target = Target {
        resource: &MUTATING,
        namespace: "",
        name: "mutating-kai-admission",
    };
    let configuration = cluster.client("system:admin").get_value(target).await.unwrap().unwrap();
    let bundle = configuration["webhooks"][0]["clientConfig"]["caBundle"]
        .as_str()
        .unwrap();
    let text = String::from_utf8(base64::engine::general_purpose::STANDARD.decode(bundle).unwrap()).unwrap();
    text.contains(&format!(" {replica}\n")) && text.contains(" first\n")
}

#[tokio::test]
async fn the_router_serves_without_tls() {
    let metrics = kai_cluster::Metrics::default();
    let queues: Vec<Arc<kai_api::Queue>> = Vec::new();
    let server = Server::new(Options::default());
    let router = admission::router(State::new(Settings::default(), queues, |_| false, &metrics));
    server.route_service("kai-scheduler", "admission", Backend::service(router));
    let admin = Client::in_process(server.service());
    let hook = json!({"metadata": {"name": "h"}, "webhooks": [{
        "name": "h.h.h", "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
        "clientConfig": {"service": {"namespace": "kai-scheduler", "name": "admission", "path": admission::MUTATE_POD}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]}]});
    admin.create(&MUTATING, "", hook).await.unwrap();
    let pod = pod(
        "p",
        json!({}),
        json!({"gpu-fraction": "0.5", "gpu-fraction-container-name": "none"}),
    );
    let error = admin.create(&PODS, "default", pod).await.unwrap_err().to_string();
    assert!(error.contains("the pod has no container"), "{error}");
    let counted = r#"kai_admission_requests_total{path="/mutate--v1-pod",result="denied"} 1"#;
    assert!(metrics.text().contains(counted), "{}", metrics.text());
}
