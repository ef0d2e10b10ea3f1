//! The embedded API server through kube-rs in this process: reads, writes, watches, patches, admission, faults.

#![allow(clippy::unwrap_used)] // Helpers of tests: a panic is the failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Node, Pod};
use kai_embedded::server::{Backend, Clock, Fault, Faults, Options, RequestInfo, Server, WatchFault};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, EvictParams, ListParams, Patch, PatchParams, PostParams, WatchEvent,
    WatchParams,
};
use kube::core::GroupVersionKind;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

fn server() -> Server {
    let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
    Server::new(Options {
        clock: Some(clock),
        ..Options::default()
    })
}

fn client(server: &Server) -> Client {
    Client::new(server.service(), "default")
}

fn pod(name: &str) -> Pod {
    from(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [{"name": "main", "image": "busybox"}]},
    }))
}

fn config(name: &str, data: Value) -> ConfigMap {
    from(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}))
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn refusal(error: kube::Error) -> (u16, String) {
    match error {
        kube::Error::Api(status) => (status.code, status.reason.clone()),
        other => panic!("not an answer of the server: {other}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_from_birth_to_death() {
    let server = server();
    let pods: Api<Pod> = Api::default_namespaced(client(&server));
    let born = pods.create(&PostParams::default(), &pod("a")).await.unwrap();
    assert_eq!(born.status.as_ref().unwrap().phase.as_deref(), Some("Pending"));
    assert_eq!(
        born.metadata.creation_timestamp.as_ref().unwrap().0.to_string(),
        "2026-01-01T00:00:00Z"
    );
    assert_eq!(born.spec.as_ref().unwrap().priority, Some(0));

    server.store().bind("default", "a", "node-1").unwrap();
    let again = server.store().bind("default", "a", "node-2").unwrap_err();
    assert_eq!((again.code, again.reason), (409, "Conflict"));
    let bound = pods.get("a").await.unwrap();
    assert_eq!(bound.spec.as_ref().unwrap().node_name.as_deref(), Some("node-1"));
    assert_eq!(
        bound.status.as_ref().unwrap().conditions.as_ref().unwrap()[0].type_,
        "PodScheduled"
    );

    tokio::time::advance(Duration::from_secs(10)).await;
    let going = pods
        .delete("a", &DeleteParams::default())
        .await
        .unwrap()
        .left()
        .unwrap();
    assert_eq!(
        going.metadata.deletion_timestamp.unwrap().0.to_string(),
        "2026-01-01T00:00:40Z"
    );
    pods.delete("a", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    assert_eq!(refusal(pods.get("a").await.unwrap_err()), (404, "NotFound".into()));
}

#[tokio::test]
async fn outdated_writes_conflict() {
    let server = server();
    let maps: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let first = maps
        .create(&PostParams::default(), &config("a", json!({"x": "1"})))
        .await
        .unwrap();
    let mut second = first.clone();
    second.data.as_mut().unwrap().insert("x".into(), "2".into());
    maps.replace("a", &PostParams::default(), &second).await.unwrap();
    let error = maps.replace("a", &PostParams::default(), &second).await.unwrap_err();
    assert_eq!(refusal(error), (409, "Conflict".into()));
    let error = maps
        .create(&PostParams::default(), &first_without_version(&first))
        .await
        .unwrap_err();
    assert_eq!(refusal(error), (409, "AlreadyExists".into()));
}

fn first_without_version(map: &ConfigMap) -> ConfigMap {
    let mut map = map.clone();
    map.metadata.resource_version = None;
    map
}

#[tokio::test]
async fn every_kind_of_patch() {
    let server = server();
    let pods: Api<Pod> = Api::default_namespaced(client(&server));
    pods.create(&PostParams::default(), &pod("a")).await.unwrap();
    let params = PatchParams::default();
    let merge = json!({"metadata": {"annotations": {"one": "1"}}});
    pods.patch("a", &params, &Patch::Merge(merge)).await.unwrap();
    let strategic = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    pods.patch_status("a", &params, &Patch::Strategic(strategic))
        .await
        .unwrap();
    let operations = json!([{"op": "add", "path": "/metadata/annotations/two", "value": "2"}]);
    let operations: json_patch::Patch = serde_json::from_value(operations).unwrap();
    let got = pods.patch("a", &params, &Patch::Json::<()>(operations)).await.unwrap();
    assert_eq!(got.annotations().len(), 2);
    assert_eq!(got.status.as_ref().unwrap().conditions.as_ref().unwrap().len(), 1);
    // A status patch can't touch the spec, nor a patch the status.
    let both = json!({"spec": {"nodeName": "x"}, "status": {"phase": "Running"}});
    let got = pods.patch_status("a", &params, &Patch::Merge(both)).await.unwrap();
    assert_eq!(got.spec.as_ref().unwrap().node_name, None);
    assert_eq!(got.status.as_ref().unwrap().phase.as_deref(), Some("Running"));
    let error = pods
        .patch("a", &params, &Patch::Merge(json!({"spec": {"nodeName": "x"}})))
        .await
        .unwrap_err();
    assert_eq!(refusal(error), (422, "Invalid".into()));
}

#[tokio::test]
async fn server_side_apply() {
    let server = server();
    let maps: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let apply = |manager: &'static str, data: Value, force: bool| {
        let (maps, mut params) = (maps.clone(), PatchParams::apply(manager));
        params.force = force;
        async move { maps.patch("a", &params, &Patch::Apply(config("a", data))).await }
    };
    apply("one", json!({"a": "1", "b": "1"}), false).await.unwrap();
    let error = apply("two", json!({"a": "2"}), false).await.unwrap_err();
    assert_eq!(refusal(error), (409, "Conflict".into()));
    apply("two", json!({"a": "2"}), true).await.unwrap();
    let got = apply("one", json!({"c": "3"}), false).await.unwrap();
    let data = got.data.unwrap();
    assert_eq!(
        data.iter().map(|(k, v)| format!("{k}{v}")).collect::<Vec<_>>(),
        ["a2", "c3"]
    );
    let revision = got.metadata.resource_version;
    let same = apply("one", json!({"c": "3"}), false).await.unwrap();
    assert_eq!(
        same.metadata.resource_version, revision,
        "applying the same changes nothing"
    );
}

#[tokio::test]
async fn lists_in_pages_are_one_snapshot() {
    let server = server();
    let maps: Api<ConfigMap> = Api::default_namespaced(client(&server));
    for n in 0..5 {
        maps.create(&PostParams::default(), &config(&format!("m{n}"), json!({})))
            .await
            .unwrap();
    }
    let first = maps.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(first.metadata.remaining_item_count, Some(3));
    maps.delete("m3", &DeleteParams::default()).await.unwrap();
    maps.create(&PostParams::default(), &config("m9", json!({})))
        .await
        .unwrap();
    let token = first.metadata.continue_.clone().unwrap();
    let second = maps
        .list(&ListParams::default().limit(9).continue_token(&token))
        .await
        .unwrap();
    let names: Vec<String> = second.iter().map(|m| m.name_any()).collect();
    assert_eq!(names, ["m2", "m3", "m4"]);
    server.compact_history();
    let error = maps
        .list(&ListParams::default().limit(9).continue_token(&token))
        .await
        .unwrap_err();
    assert_eq!(refusal(error), (410, "Expired".into()));
    let labelled = maps
        .list(&ListParams::default().fields("metadata.name=m1"))
        .await
        .unwrap();
    assert_eq!(labelled.items.len(), 1);
}

#[tokio::test]
async fn watches_resume_and_see_selections_change() {
    let server = server();
    let pods: Api<Pod> = Api::default_namespaced(client(&server));
    let start = pods
        .list(&ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    pods.create(&PostParams::default(), &pod("a")).await.unwrap();
    pods.create(&PostParams::default(), &pod("b")).await.unwrap();
    server.store().bind("default", "a", "n1").unwrap();
    let unbound = WatchParams::default().fields("spec.nodeName=");
    let mut events = pods.watch(&unbound, &start).await.unwrap().boxed();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let word = match events.try_next().await.unwrap().unwrap() {
            WatchEvent::Added(pod) => format!("+{}", pod.name_any()),
            WatchEvent::Modified(pod) => format!("~{}", pod.name_any()),
            WatchEvent::Deleted(pod) => format!("-{}", pod.name_any()),
            WatchEvent::Bookmark(_) | WatchEvent::Error(_) => continue,
        };
        seen.push(word);
    }
    assert_eq!(seen, ["+a", "+b", "-a"]);
    server.compact_history();
    let mut late = pods.watch(&unbound, &start).await.unwrap().boxed();
    let WatchEvent::Error(status) = late.try_next().await.unwrap().unwrap() else {
        panic!("no error")
    };
    assert_eq!(status.code, 410);
}

#[tokio::test(start_paused = true)]
async fn bookmarks_and_timeouts() {
    let server = server();
    let pods: Api<Pod> = Api::default_namespaced(client(&server));
    let mut events = pods
        .watch(&WatchParams::default().timeout(90), "1")
        .await
        .unwrap()
        .boxed();
    let mut bookmarks = 0;
    while let Some(event) = events.try_next().await.unwrap() {
        assert!(matches!(event, WatchEvent::Bookmark(_)));
        bookmarks += 1;
    }
    assert_eq!(bookmarks, 2, "one after a minute, one at the end");
}

#[tokio::test]
async fn a_watcher_survives_a_forgotten_history() {
    let server = server();
    let pods: Api<Pod> = Api::default_namespaced(client(&server));
    for strategy in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let mut objects = watcher(pods.clone(), strategy)
            .default_backoff()
            .touched_objects()
            .boxed();
        let name = format!("p{}", server.store().revision());
        pods.create(&PostParams::default(), &pod(&name)).await.unwrap();
        while objects.try_next().await.unwrap().unwrap().name_any() != name {}
        server.compact_history();
        let later = format!("q{}", server.store().revision());
        pods.create(&PostParams::default(), &pod(&later)).await.unwrap();
        // The watcher may fail once before it lists again.
        loop {
            match objects.next().await.unwrap() {
                Ok(pod) if pod.name_any() == later => break,
                Ok(_) | Err(_) => {}
            }
        }
    }
}

fn widgets(server: &Server) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk("test.example", "v1", "Widget");
    Api::default_namespaced_with(client(server), &ApiResource::from_gvk_with_plural(&gvk, "widgets"))
}

fn define_widgets(server: &Server) {
    let schema = json!({"type": "object", "required": ["spec"], "properties": {
        "spec": {"type": "object", "required": ["size"], "properties": {
            "size": {"type": "integer", "minimum": 1}, "color": {"type": "string", "default": "red"}}},
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.test.example"},
        "spec": {"group": "test.example", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema}}]}});
    let made = server.store().create(definition).unwrap();
    assert_eq!(made["status"]["conditions"][1]["type"], "Established");
}

#[tokio::test]
async fn custom_resources() {
    let server = server();
    define_widgets(&server);
    let widgets = widgets(&server);
    let widget = |size: i64| {
        from::<DynamicObject>(
            json!({"apiVersion": "test.example/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": {"size": size, "odd": 1}}),
        )
    };
    let error = widgets.create(&PostParams::default(), &widget(0)).await.unwrap_err();
    assert_eq!(refusal(error), (422, "Invalid".into()));
    let made = widgets.create(&PostParams::default(), &widget(2)).await.unwrap();
    assert_eq!(made.data["spec"], json!({"size": 2, "color": "red"}));
    let params = PatchParams::default();
    let status = Patch::Merge(json!({"status": {"phase": "Good"}, "spec": {"size": 9}}));
    let got = widgets.patch_status("a", &params, &status).await.unwrap();
    assert_eq!(
        (got.metadata.generation, &got.data["spec"]["size"]),
        (Some(1), &json!(2))
    );
    let got = widgets
        .patch("a", &params, &Patch::Merge(json!({"spec": {"size": 3}})))
        .await
        .unwrap();
    assert_eq!(
        (got.metadata.generation, &got.data["status"]["phase"]),
        (Some(2), &json!("Good"))
    );
    let error = widgets
        .patch("a", &params, &Patch::Strategic(json!({})))
        .await
        .unwrap_err();
    assert_eq!(refusal(error).0, 415);
    server
        .store()
        .delete(
            "customresourcedefinitions.apiextensions.k8s.io",
            "",
            "widgets.test.example",
            &Default::default(),
        )
        .unwrap();
    assert_eq!(refusal(widgets.get("a").await.unwrap_err()).0, 404);
}

#[tokio::test]
async fn events_in_both_groups_are_the_same() {
    let server = server();
    let new: Api<k8s_openapi::api::events::v1::Event> = Api::default_namespaced(client(&server));
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"generateName": "e-"}, "reason": "Because",
        "type": "Normal", "note": "hello", "action": "Try", "reportingController": "test", "reportingInstance": "t-1",
        "eventTime": "2026-01-01T00:00:00.000000Z", "regarding": {"kind": "Pod", "name": "a", "namespace": "default"},
    });
    let made = new.create(&PostParams::default(), &from(event)).await.unwrap();
    assert!(made.name_any().starts_with("e-") && made.name_any().len() == 7);
    let old: Api<Event> = Api::default_namespaced(client(&server));
    let found = old
        .list(&ListParams::default().fields("involvedObject.name=a,reason=Because"))
        .await
        .unwrap();
    assert_eq!(found.items[0].message.as_deref(), Some("hello"));
    assert_eq!(new.get(&made.name_any()).await.unwrap().note.as_deref(), Some("hello"));
}

#[tokio::test]
async fn evictions_heed_budgets() {
    let server = server();
    let store = server.store();
    let pods: Api<Pod> = Api::default_namespaced(client(&server));
    pods.create(&PostParams::default(), &pod("a")).await.unwrap();
    store.bind("default", "a", "n1").unwrap();
    let running = kai_embedded::server::Patch::Merge(json!({"status": {"phase": "Running"}}));
    store.patch_status("pods", "default", "a", &running).unwrap();
    store
        .create(
            json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}}),
        )
        .unwrap();
    let error = pods.evict("a", &EvictParams::default()).await.unwrap_err();
    assert_eq!(refusal(error).0, 429);
    store
        .delete("poddisruptionbudgets.policy", "default", "b", &Default::default())
        .unwrap();
    pods.evict("a", &EvictParams::default()).await.unwrap();
    assert!(pods.get("a").await.unwrap().metadata.deletion_timestamp.is_some());
}

#[tokio::test]
async fn dry_runs_change_nothing() {
    let server = server();
    let maps: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let before = server.store().revision();
    maps.create(&params, &config("a", json!({}))).await.unwrap();
    assert_eq!(server.store().revision(), before);
    assert_eq!(refusal(maps.get("a").await.unwrap_err()).0, 404);
}

/// Drops the response to each second write of a ConfigMap, and ends watches after three events.
#[derive(Default)]
struct Flaky {
    writes: AtomicU32,
}

impl Faults for Flaky {
    fn request(&self, request: &RequestInfo) -> Fault {
        match (request.resource.as_str(), request.verb.as_str()) {
            ("nodes", "list") => Fault::Fail(503),
            ("namespaces", "get") => Fault::Delay(Duration::from_secs(5)),
            ("configmaps", "create") if self.writes.fetch_add(1, Ordering::Relaxed) % 2 == 1 => Fault::DropResponse,
            _ => Fault::Pass,
        }
    }

    fn watch(&self, _: &RequestInfo, delivered: u64) -> WatchFault {
        match delivered {
            0 => WatchFault::Lag(Duration::from_secs(7)),
            1 => WatchFault::Pass,
            _ => WatchFault::Gone,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn faults() {
    let server = server();
    server.set_faults(Arc::new(Flaky::default()));
    let nodes: Api<Node> = Api::all(client(&server));
    assert_eq!(refusal(nodes.list(&ListParams::default()).await.unwrap_err()).0, 503);
    let namespaces: Api<Namespace> = Api::all(client(&server));
    let start = tokio::time::Instant::now();
    namespaces.get("default").await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(5));

    let maps: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let since = server.store().revision().to_string();
    maps.create(&PostParams::default(), &config("a", json!({})))
        .await
        .unwrap();
    let lost = maps
        .create(&PostParams::default(), &config("b", json!({})))
        .await
        .unwrap_err();
    assert!(matches!(lost, kube::Error::Service(_)));
    assert!(maps.get("b").await.is_ok(), "it took effect");

    let mut events = maps.watch(&WatchParams::default(), &since).await.unwrap().boxed();
    let start = tokio::time::Instant::now();
    for _ in 0..2 {
        assert!(matches!(
            events.try_next().await.unwrap().unwrap(),
            WatchEvent::Added(_)
        ));
    }
    assert_eq!(start.elapsed(), Duration::from_secs(7));
    server
        .store()
        .create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}))
        .unwrap();
    let WatchEvent::Error(status) = events.try_next().await.unwrap().unwrap() else {
        panic!("no error")
    };
    assert_eq!(status.code, 410);
}

fn answered(review: &Value, response: Value) -> Value {
    let mut response = response;
    response["uid"] = review["request"]["uid"].clone();
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

fn webhook(kind: &str, failure: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": kind.to_lowercase()},
        "webhooks": [{
            "name": "hook.test.example", "failurePolicy": failure, "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"service": {"namespace": "default", "name": "hook", "path": "/x"}},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
            "matchConditions": [{"name": "ours", "expression": "has(object.metadata.labels) && object.metadata.labels['app'] != 'other'"}],
        }],
    })
}

#[tokio::test]
async fn mutating_and_validating_webhooks() {
    use base64::Engine;
    let server = server();
    let pods: Api<Pod> = Api::default_namespaced(client(&server));
    server
        .store()
        .create(webhook("MutatingWebhookConfiguration", "Fail"))
        .unwrap();
    let error = pods.create(&PostParams::default(), &pod("a")).await.unwrap_err();
    assert_eq!(refusal(error).0, 500, "nobody answers for the service");
    pods.create(&PostParams::default(), &pod("other"))
        .await
        .expect("not asked");

    server.route_service(
        "default",
        "hook",
        Backend::function(|review| {
            let patch = json!([{"op": "add", "path": "/metadata/labels/mutated", "value": "yes"}]).to_string();
            let patch = base64::engine::general_purpose::STANDARD.encode(patch);
            let refused = review["request"]["object"]["metadata"]["name"] == "bad";
            let answer = json!({"allowed": !refused, "status": {"message": "bad name"}, "patchType": "JSONPatch", "patch": patch});
            answered(&review, answer)
        }),
    );
    let made = pods.create(&PostParams::default(), &pod("a")).await.unwrap();
    assert_eq!(made.labels()["mutated"], "yes");
    let kube::Error::Api(status) = pods.create(&PostParams::default(), &pod("bad")).await.unwrap_err() else {
        panic!()
    };
    assert_eq!(
        status.message,
        "admission webhook \"hook.test.example\" denied the request: bad name"
    );

    server.unroute_service("default", "hook");
    server
        .store()
        .put(webhook("MutatingWebhookConfiguration", "Ignore"))
        .unwrap();
    let made = pods.create(&PostParams::default(), &pod("c")).await.unwrap();
    assert!(!made.labels().contains_key("mutated"));
}

#[tokio::test]
async fn policies_know_who_asks() {
    let server = server();
    let store = server.store();
    store
        .create(json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "p"},
            "spec": {
                "matchConstraints": {"resourceRules": [
                    {"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]},
                "matchConditions": [{"name": "tenants", "expression": "request.userInfo.username != 'system:serviceaccount:kai:scheduler'"}],
                "variables": [{"name": "group", "expression": "has(object.metadata.labels) && 'runai-gpu-group' in object.metadata.labels"}],
                "validations": [{"expression": "!variables.group", "messageExpression": "'not you, ' + request.userInfo.username", "reason": "Forbidden"}],
            }}))
        .unwrap();
    store
        .create(json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "b"},
            "spec": {"policyName": "p", "validationActions": ["Deny"]}}))
        .unwrap();
    let labelled = |name: &str| {
        let mut pod = pod(name);
        pod.metadata.labels = Some([("runai-gpu-group".to_owned(), "g".to_owned())].into());
        pod
    };
    let tenant: Api<Pod> = Api::default_namespaced(Client::new(server.service_as("alice"), "default"));
    let kube::Error::Api(status) = tenant.create(&PostParams::default(), &labelled("a")).await.unwrap_err() else {
        panic!()
    };
    assert_eq!(status.code, 403);
    assert!(
        status.message.ends_with("denied request: not you, alice"),
        "{}",
        status.message
    );
    tenant.create(&PostParams::default(), &pod("a")).await.unwrap();
    let scheduler = Client::new(server.service_as("system:serviceaccount:kai:scheduler"), "default");
    Api::<Pod>::default_namespaced(scheduler)
        .create(&PostParams::default(), &labelled("b"))
        .await
        .unwrap();
}

#[tokio::test]
async fn only_loopback_is_open_without_a_token() {
    assert!(server().listen("0.0.0.0:0".parse().unwrap()).await.is_err());
    let guarded = Server::new(Options {
        token: Some("secret".into()),
        ..Options::default()
    });
    let listening = guarded.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let uri: http::Uri = listening.url().parse().unwrap();
    let mut config = kube::Config::new(uri);
    config.auth_info.token = None;
    let pods: Api<Pod> = Api::default_namespaced(Client::try_from(config.clone()).unwrap());
    assert_eq!(refusal(pods.list(&ListParams::default()).await.unwrap_err()).0, 401);
    config.auth_info.token = Some("secret".to_owned().into());
    let pods: Api<Pod> = Api::default_namespaced(Client::try_from(config).unwrap());
    pods.list(&ListParams::default()).await.unwrap();
    listening.stop();
}

#[tokio::test]
async fn a_cluster_of_usual_size_is_smooth() {
    let server = server();
    let store = server.store();
    let mut watches: Vec<_> = (0..4)
        .map(|_| store.watch("pods", "", Default::default(), None).unwrap())
        .collect();
    for n in 0..500 {
        store
            .create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("n{n}")}}))
            .unwrap();
    }
    for n in 0..4_000 {
        let mut pod = serde_json::to_value(pod(&format!("p{n}"))).unwrap();
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        store.create(pod).unwrap();
        store
            .bind("default", &format!("p{n}"), &format!("n{}", n % 500))
            .unwrap();
    }
    for watch in &mut watches {
        let mut seen = 0;
        while watch.try_next().unwrap().is_some() {
            seen += 1;
        }
        assert_eq!(seen, 8_000);
    }
    let pods: Api<Pod> = Api::all(client(&server));
    assert_eq!(pods.list(&ListParams::default()).await.unwrap().items.len(), 4_000);
}
