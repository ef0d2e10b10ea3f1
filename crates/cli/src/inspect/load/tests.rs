use axum::error_handling::HandleError;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use kai_embedded::server::{Options, Patch, Server};
use kai_view::{PodStatus, ReasonSource};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;

/// A client of the cluster whose requests to these paths are refused.
pub(in crate::inspect) fn client_without(
    server: &Server,
    is_refused: impl Fn(&str) -> bool + Clone + Send + Sync + 'static,
) -> Client {
    let lost = |_| async { StatusCode::INTERNAL_SERVER_ERROR };
    let service = HandleError::new(crate::embedded::service_of_roles(server), lost);
    let refuse = move |request: Request, next: Next| {
        let path = request.uri().path().to_owned();
        let is_refused = is_refused(&path);
        async move {
            match is_refused {
                true => refusal(path.rsplit('/').next().unwrap_or_default()),
                false => next.run(request).await,
            }
        }
    };
    Client::in_process(axum::Router::new().fallback_service(service).layer(from_fn(refuse)))
}

fn refusal(what: &str) -> Response {
    let message = format!("{what} is forbidden: User \"ann\" cannot list resource \"{what}\"");
    let status =
        json!({ "kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": message });
    (StatusCode::FORBIDDEN, axum::Json(status)).into_response()
}

/// A cluster with an idle GPU for each of these pods of the namespace `team`. They wait, and the scheduler has written why.
pub(in crate::inspect) fn with_waiting_pods(specs: &[Value]) -> Server {
    let server = Server::new(Options::default());
    crate::embedded::install(&server).unwrap();
    let unlimited = json!({ "quota": -1, "limit": -1 });
    let gpus = specs.len().to_string();
    let put = |resource: &str, object: Value| {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (text("namespace"), text("name"));
        let status = object["status"].clone();
        server.store().put(object).unwrap();
        if !status.is_null() {
            let patch = Patch::Merge(json!({ "status": status }));
            server
                .store()
                .patch_status(resource, &namespace, &name, &patch)
                .unwrap();
        }
    };
    put(
        "namespaces",
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "team" } }),
    );
    put(
        "queues.scheduling.run.ai",
        json!({
            "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": { "name": "q" },
            "spec": { "resources": { "gpu": unlimited, "cpu": unlimited, "memory": unlimited } },
        }),
    );
    put(
        "nodes",
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n" },
            "status": {
                "capacity": { "nvidia.com/gpu": gpus },
                "allocatable": { "cpu": "99", "memory": "99Gi", "pods": "110", "nvidia.com/gpu": gpus },
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        }),
    );
    for (at, spec) in specs.iter().enumerate() {
        put(
            "podgroups.scheduling.run.ai",
            json!({
                "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
                "metadata": { "name": format!("pg-{at}"), "namespace": "team" }, "spec": { "queue": "q", "minMember": 1 },
            }),
        );
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": format!("w{at}"), "namespace": "team", "annotations": { "pod-group-name": format!("pg-{at}") } },
            "spec": {
                "schedulerName": "kai-scheduler",
                "containers": [{ "name": "main", "image": "none", "resources": { "limits": { "nvidia.com/gpu": "1" } } }],
            },
            "status": { "phase": "Pending", "conditions": [
                { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "as the scheduler wrote" },
            ] },
        });
        for (field, value) in spec.as_object().unwrap() {
            pod["spec"][field] = value.clone();
        }
        put("pods", pod);
    }
    server
}

/// The view that the commands show.
async fn viewed(client: &Client) -> ClusterView {
    let mut lists = Lists::new(client, "team");
    let objects = lists.all().await.unwrap();
    let knowledge = Knowledge { missing: lists.missing };
    view(kai_scheduler::Settings::default(), objects, knowledge, Millis(0)).0
}

/// Every pod waits, for the reason that the scheduler wrote.
pub(in crate::inspect) fn assert_all_wait(view: &ClusterView) {
    let pods = view.pods.as_ref().unwrap();
    assert!(!pods.is_empty());
    for pod in pods {
        let (reason, source) = (pod.reason.as_deref(), pod.reason_source);
        let told = (pod.status, reason, source, pod.node.as_deref());
        let expect = Some("as the scheduler wrote");
        assert_eq!(told, (PodStatus::Pending, expect, Some(ReasonSource::Condition), None));
    }
    let gangs = view.gangs.as_ref().unwrap();
    assert!(gangs.iter().all(|gang| gang.waiting == 1 && gang.starting == 0));
    assert_eq!(gangs[0].reason.as_deref(), Some("as the scheduler wrote"));
}

pub(in crate::inspect) fn with_config_map(name: &str) -> Value {
    json!({ "containers": [{
        "name": "main", "image": "none", "resources": { "limits": { "nvidia.com/gpu": "1" } },
        "envFrom": [{ "configMapRef": { "name": name } }],
    }] })
}

fn missing(view: &ClusterView) -> Vec<List> {
    view.missing.iter().map(|missing| missing.list).collect()
}

#[tokio::test]
async fn a_tenant_is_shown_no_placement_that_the_scheduler_did_not_make() {
    let server = with_waiting_pods(&[json!({})]);
    let view = viewed(&client_without(&server, |path| path == "/api/v1/pods")).await;
    assert_all_wait(&view);
    assert_eq!(view.missing[0].only_namespace.as_deref(), Some("team"));
    let view = viewed(&client_without(&server, |path| path == "/api/v1/nodes")).await;
    assert_all_wait(&view);
    assert_eq!((missing(&view), view.nodes.is_none()), (vec![List::Nodes], true));
}

#[tokio::test]
async fn without_lists_the_explanation_says_why_it_has_no_remedies() {
    let server = with_waiting_pods(&[json!({})]);
    let told = |view: &ClusterView| {
        let screen = crate::grid::Screen {
            width_max: None,
            colours: false,
        };
        let lines = super::super::explain::pod(view, "team", "w0", None, screen).unwrap();
        lines.into_iter().find(|line| line.starts_with(" remedy"))
    };
    let tenants = viewed(&client_without(&server, |path| path == "/api/v1/pods")).await;
    let expect = " remedy         not tried, since pods of namespaces other than team can't be listed";
    assert_eq!(told(&tenants).as_deref(), Some(expect));
}

#[tokio::test]
async fn with_all_lists_the_reason_is_the_engines() {
    let server = with_waiting_pods(&[json!({ "nodeSelector": { "no": "node" } })]);
    let view = viewed(&client_without(&server, |_| false)).await;
    let pods = view.pods.unwrap();
    assert_eq!(pods[0].reason_source, Some(ReasonSource::Engine));
    assert!(view.missing.is_empty());
}

#[tokio::test]
async fn without_config_maps_pods_that_name_some_keep_their_condition() {
    let server = with_waiting_pods(&[with_config_map("settings")]);
    let view = viewed(&client_without(&server, |path| path.contains("/configmaps"))).await;
    assert_all_wait(&view);
    assert_eq!(missing(&view), [List::ConfigMaps]);
    assert_eq!(view.queues.unwrap()[0].gpus.used.unwrap().to_string(), "0");
}

#[tokio::test]
async fn without_volumes_pods_that_name_a_claim_keep_their_condition() {
    let claim = json!({ "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }] });
    let server = with_waiting_pods(&[claim]);
    let view = viewed(&client_without(&server, |path| path == "/api/v1/persistentvolumes")).await;
    assert_all_wait(&view);
    assert_eq!(missing(&view), [List::Volumes]);
}

#[tokio::test]
async fn many_config_maps_are_listed_at_once() {
    let names: Vec<Value> = (0..LOOK_UPS_MAX + 2)
        .map(|at| with_config_map(&format!("cm{at}")))
        .collect();
    let server = with_waiting_pods(&names);
    let exists = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "cm1", "namespace": "team" } });
    server.store().put(exists).unwrap();
    let view = viewed(&client_without(&server, |path| path.contains("/configmaps/"))).await;
    assert!(view.missing.is_empty(), "{:?}", view.missing);
    for pod in view.pods.unwrap() {
        let is_missing = pod
            .reason
            .as_deref()
            .is_some_and(|reason| reason.starts_with("Missing required configmaps"));
        assert_eq!(is_missing, pod.name != "w1", "{} {:?}", pod.name, pod.reason);
    }
}

#[tokio::test]
async fn lists_that_are_refused_are_named_and_the_rest_is_shown() {
    let server = with_waiting_pods(&[json!({})]);
    let client = client_without(&server, |path| matches!(path, "/api/v1/nodes" | "/api/v1/pods"));
    let mut lists = Lists::new(&client, "team");
    lists.all().await.unwrap();
    let words: Vec<String> = lists.missing.iter().map(super::super::words::missing).collect();
    assert_eq!(
        words,
        [
            "nodes can't be listed (nodes is forbidden: User \"ann\" cannot list resource \"nodes\"); what depends on them is unknown",
            "pods of namespaces other than team can't be listed (pods is forbidden: User \"ann\" cannot list resource \"pods\"); \
             what depends on them is unknown",
        ]
    );
}

/// A scheduler that has a view and is busy with another explanation.
#[tokio::test]
async fn a_busy_scheduler_is_looked_at_in_the_namespace_of_the_context() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let view = include_str!("../../../tests/data/top.json");
    let routes = axum::Router::new()
        .route("/view", axum::routing::get(move || async move { view }))
        .fallback(|| async { (StatusCode::TOO_MANY_REQUESTS, "another explanation is under way") });
    tokio::spawn(async move { axum::serve(listener, routes).await });
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let config = "{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], \
        contexts: [{name: c, context: {cluster: c, user: '', namespace: team}}], users: [], current-context: c}";
    std::fs::write(&kubeconfig, config).unwrap();
    let origin = |kubeconfig: Option<std::path::PathBuf>| Origin {
        scheduler: Some(url.clone()),
        scheduler_namespace: String::new(),
        connection: Connection {
            kubeconfig,
            context: None,
            scheduler_name: None,
            node_pool: String::new(),
            scheduler_conf: None,
        },
    };
    let loaded = load(&origin(Some(kubeconfig)), None).await.unwrap();
    assert_eq!(loaded.namespace, "team");
    let waiting = loaded.view.pods.iter().flatten().find(|pod| pod.waits()).unwrap();
    assert!(loaded.remedies(waiting).await.is_none());
    let lost = origin(Some(directory.path().join("none")));
    assert!(
        load(&lost, None).await.is_err(),
        "a kubeconfig that is named must be there"
    );
    assert_eq!(load(&lost, Some("own")).await.unwrap().namespace, "own");
}

/// The ClusterRole `kai-view` of deploy/rbac.yaml has the rights to read what the commands read.
#[tokio::test]
async fn the_role_of_readers_suffices() {
    let server = with_waiting_pods(&[with_config_map("settings")]);
    let asked: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let note = Arc::clone(&asked);
    let client = client_without(&server, move |path: &str| {
        note.lock().insert(path.to_owned());
        false
    });
    let mut lists = Lists::new(&client, "team");
    lists.try_all().await.unwrap();
    lists.all().await.unwrap();
    super::super::events::list(&client, None).await.unwrap();
    kai_controllers::operator::read_policy(&client).await.unwrap();
    let deployed = include_str!("../../../../../deploy/rbac.yaml");
    let documents = deployed
        .split("\n---\n")
        .map(|text| serde_saphyr::from_str::<Value>(text).unwrap());
    let role = documents
        .into_iter()
        .find(|role| role["metadata"]["name"] == "kai-view")
        .unwrap();
    let allows = |group: &str, resource: &str| {
        let rules = role["rules"].as_array().unwrap().iter();
        let mut rules =
            rules.filter(|rule| rule["apiGroups"][0] == group && rule["verbs"] == json!(["get", "list", "watch"]));
        rules.any(|rule| {
            rule["resources"]
                .as_array()
                .unwrap()
                .iter()
                .any(|name| name == resource)
        })
    };
    let asked = asked.lock();
    for path in asked.iter() {
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let (group, rest) = match parts.as_slice() {
            ["api", _, rest @ ..] => ("", rest),
            ["apis", group, _, rest @ ..] => (*group, rest),
            other => panic!("{other:?}"),
        };
        let resource = match rest {
            ["namespaces", _, resource, ..] | [resource, ..] => *resource,
            [] => panic!("{path}"),
        };
        assert!(allows(group, resource), "the role does not allow {path}");
    }
    assert!(asked.len() >= 14, "{asked:?}");
}
