//! The rules of the embedded API server's store, one by one, without HTTP.

#![allow(clippy::unwrap_used)] // Helpers of tests: a panic is the failure.

use std::time::Duration;

use kai_embedded::server::{
    Clock, DeleteOptions, EventType, Object, Options, Patch, Propagation, Selector, Server, StatusError, StoreHandle,
};
use serde_json::{Value, json};

fn new_store() -> StoreHandle {
    let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
    Server::new(Options {
        clock: Some(clock),
        ..Options::default()
    })
    .store()
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

fn owned(name: &str, owner: &Object, blocks: bool) -> Value {
    let mut map = map(name);
    map["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": owner.name(), "uid": owner.uid(), "blockOwnerDeletion": blocks
    }]);
    map
}

fn pod(name: &str) -> Value {
    let spec = json!({"containers": [{"name": "c", "image": "x"}]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

fn names(store: &StoreHandle, resource: &str) -> Vec<String> {
    let page = store.list(resource, "default", &Selector::everything()).unwrap();
    page.objects.iter().map(|o| o.name().to_owned()).collect()
}

fn delete(store: &StoreHandle, resource: &str, name: &str, propagation: Propagation) -> Result<Object, StatusError> {
    store.delete(
        resource,
        "default",
        name,
        &DeleteOptions {
            propagation,
            ..DeleteOptions::default()
        },
    )
}

#[test]
fn dependents_follow_their_last_owner() {
    let store = new_store();
    let (a, b) = (store.create(map("a")).unwrap(), store.create(map("b")).unwrap());
    store.create(owned("child", &a, false)).unwrap();
    let mut shared = owned("shared", &a, false);
    let second = owned("", &b, false)["metadata"]["ownerReferences"][0].clone();
    shared["metadata"]["ownerReferences"]
        .as_array_mut()
        .unwrap()
        .push(second);
    store.create(shared).unwrap();
    delete(&store, "configmaps", "a", Propagation::Background).unwrap();
    assert_eq!(names(&store, "configmaps"), ["b", "shared"]);
    let left = store.get("configmaps", "default", "shared").unwrap();
    assert_eq!(left["metadata"]["ownerReferences"].as_array().unwrap().len(), 1);
    delete(&store, "configmaps", "b", Propagation::Background).unwrap();
    assert!(names(&store, "configmaps").is_empty());
}

#[test]
fn a_child_of_nobody_goes_at_once() {
    let store = new_store();
    let owner = store.create(map("a")).unwrap();
    delete(&store, "configmaps", "a", Propagation::Background).unwrap();
    store.create(owned("late", &owner, false)).unwrap();
    assert!(names(&store, "configmaps").is_empty());
}

#[test]
fn orphans_stay() {
    let store = new_store();
    let owner = store.create(map("a")).unwrap();
    store.create(owned("child", &owner, false)).unwrap();
    delete(&store, "configmaps", "a", Propagation::Orphan).unwrap();
    let child = store.get("configmaps", "default", "child").unwrap();
    assert!(child["metadata"].get("ownerReferences").is_none());
}

#[test]
fn foreground_waits_for_those_who_block() {
    let store = new_store();
    let owner = store.create(map("a")).unwrap();
    let mut held = owned("held", &owner, true);
    held["metadata"]["finalizers"] = json!(["test/hold"]);
    store.create(held).unwrap();
    store.create(owned("free", &owner, false)).unwrap();
    let going = delete(&store, "configmaps", "a", Propagation::Foreground).unwrap();
    assert_eq!(going["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    assert_eq!(names(&store, "configmaps"), ["a", "held"]);
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    store.patch("configmaps", "default", "held", &release).unwrap();
    assert!(names(&store, "configmaps").is_empty());
}

#[test]
fn finalizers_hold_and_none_can_be_added_late() {
    let store = new_store();
    let mut object = map("a");
    object["metadata"]["finalizers"] = json!(["test/one"]);
    store.create(object).unwrap();
    let going = delete(&store, "configmaps", "a", Propagation::Background).unwrap();
    assert_eq!(going["metadata"]["deletionTimestamp"], "2026-01-01T00:00:00Z");
    let more = Patch::Merge(json!({"metadata": {"finalizers": ["test/one", "test/two"]}}));
    assert_eq!(store.patch("configmaps", "default", "a", &more).unwrap_err().code, 422);
    let mut watch = store.watch("configmaps", "", Selector::everything(), None).unwrap();
    store
        .patch(
            "configmaps",
            "default",
            "a",
            &Patch::Merge(json!({"metadata": {"finalizers": []}})),
        )
        .unwrap();
    let mut last = None;
    while let Some(event) = watch.try_next().unwrap() {
        last = Some(event.event_type);
    }
    assert_eq!(last, Some(EventType::Deleted));
}

#[test]
fn deletions_have_preconditions() {
    let store = new_store();
    let made = store.create(map("a")).unwrap();
    let with = |uid: &str, revision: &str| {
        let options = DeleteOptions {
            uid: Some(uid.into()),
            resource_version: Some(revision.into()),
            ..DeleteOptions::default()
        };
        store.delete("configmaps", "default", "a", &options).map_err(|r| r.code)
    };
    let revision = made.revision().to_string();
    assert_eq!(with("other", &revision).unwrap_err(), 409);
    assert_eq!(with(made.uid(), "1").unwrap_err(), 409);
    with(made.uid(), &revision).unwrap();
}

#[tokio::test(start_paused = true)]
async fn pods_get_grace_only_while_they_run() {
    let store = new_store();
    store.create(pod("unbound")).unwrap();
    delete(&store, "pods", "unbound", Propagation::Background).unwrap();
    assert!(names(&store, "pods").is_empty());

    store.create(pod("bound")).unwrap();
    store.bind("default", "bound", "n1").unwrap();
    tokio::time::advance(Duration::from_secs(5)).await;
    let going = delete(&store, "pods", "bound", Propagation::Background).unwrap();
    assert_eq!(going["metadata"]["deletionTimestamp"], "2026-01-01T00:00:35Z");
    let sooner = DeleteOptions {
        grace_seconds: Some(1),
        ..DeleteOptions::default()
    };
    let going = store.delete("pods", "default", "bound", &sooner).unwrap();
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 1);
    let later = DeleteOptions {
        grace_seconds: Some(60),
        ..DeleteOptions::default()
    };
    let going = store.delete("pods", "default", "bound", &later).unwrap();
    assert_eq!(
        going["metadata"]["deletionGracePeriodSeconds"], 1,
        "grace only gets shorter"
    );
    store.delete("pods", "default", "bound", &DeleteOptions::now()).unwrap();
    assert!(names(&store, "pods").is_empty());
}

#[test]
fn namespaces_go_with_their_contents() {
    let store = new_store();
    let missing = |error: StatusError| (error.code, error.message);
    let mut inside = pod("a");
    inside["metadata"]["namespace"] = json!("team");
    let error = store.create(inside.clone()).unwrap_err();
    assert_eq!(missing(error), (404, "namespaces \"team\" not found".to_owned()));
    store
        .create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}))
        .unwrap();
    store.create(inside.clone()).unwrap();
    store.bind("team", "a", "n1").unwrap();
    let going = store
        .delete("namespaces", "", "team", &DeleteOptions::default())
        .unwrap();
    assert_eq!(going["status"]["phase"], "Terminating");
    inside["metadata"]["name"] = json!("b");
    assert_eq!(store.create(inside).unwrap_err().code, 403);
    store.delete("pods", "team", "a", &DeleteOptions::now()).unwrap();
    assert_eq!(store.get("namespaces", "", "team").unwrap_err().code, 404);
}

#[test]
fn priorities_come_from_classes() {
    let store = new_store();
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "train"}, "value": 50});
    store.create(class).unwrap();
    let mut with_class = pod("a");
    with_class["spec"]["priorityClassName"] = json!("train");
    assert_eq!(store.create(with_class.clone()).unwrap()["spec"]["priority"], 50);
    with_class["metadata"]["name"] = json!("b");
    with_class["spec"]["priorityClassName"] = json!("none");
    let error = store.create(with_class).unwrap_err();
    assert_eq!((error.code, error.reason), (403, "Forbidden"));
}

#[test]
fn revisions_generations_and_writes_that_change_nothing() {
    let store = new_store();
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}});
    let made = store
        .create(
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}),
        )
        .unwrap();
    assert_eq!(made["metadata"]["generation"], 1);
    let patch = |value: Value| {
        store
            .patch("deployments.apps", "default", "d", &Patch::Merge(value))
            .unwrap()
    };
    let labelled = patch(json!({"metadata": {"labels": {"x": "y"}}}));
    assert_eq!(labelled["metadata"]["generation"], 1);
    assert!(labelled.revision() > made.revision());
    assert_eq!(
        patch(json!({"metadata": {"labels": {"x": "y"}}})).revision(),
        labelled.revision()
    );
    assert_eq!(patch(json!({"spec": {"replicas": 7}}))["metadata"]["generation"], 2);
    let status = Patch::Merge(json!({"status": {"replicas": 7}, "spec": {"replicas": 1}}));
    let reported = store.patch_status("deployments.apps", "default", "d", &status).unwrap();
    assert_eq!(
        (&reported["spec"]["replicas"], &reported["metadata"]["generation"]),
        (&json!(7), &json!(2))
    );
}

#[test]
fn a_history_that_is_too_short_says_so() {
    let server = Server::new(Options {
        history_len: 3,
        ..Options::default()
    });
    let store = server.store();
    let mut watch = store.watch("configmaps", "", Selector::everything(), None).unwrap();
    for n in 0..5 {
        store.create(map(&format!("m{n}"))).unwrap();
    }
    assert_eq!(watch.try_next().unwrap_err().code, 410);
}

#[test]
fn the_same_seed_gives_the_same_cluster() {
    let run = || {
        let store = new_store();
        let generated = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "m-"}});
        let made = store.create(generated).unwrap();
        (made.name().to_owned(), made.uid().to_owned(), made.revision())
    };
    assert_eq!(run(), run());
}
