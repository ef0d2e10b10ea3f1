//! Bind requests: pending, failed, stale.

use super::*;

#[test]
fn a_bind_request_counts_until_it_failed() {
    let mut world = a_node_a_gang_and_a_pod();
    world.request("p", "uid-p", "n1", json!({}));
    assert_eq!(world.decide(), [""; 0]);
    assert_eq!(world.status("uid-p"), Some(Status::Binding));
    world.request(
        "p",
        "uid-p",
        "n1",
        json!({ "phase": "Failed", "reason": "no reservation" }),
    );
    let outbox = world.sync();
    assert_eq!(
        outbox
            .stale_bind_requests
            .iter()
            .map(|stale| stale.reason)
            .collect::<Vec<_>>(),
        ["it failed"]
    );
    assert_eq!(world.decide(), [""; 0]);
    assert!(world.reason("uid-p").ends_with("no reservation"));
    world.request(
        "p",
        "uid-p",
        "n1",
        json!({ "phase": "Failed", "reason": "no reservation", "failedAttempts": 2 }),
    );
    assert!(world.sync().stale_bind_requests.is_empty(), "once is enough");
    world.mirror.deletion_failed(&outbox.stale_bind_requests[0]);
    world.mirror.tick(world.now + Millis::seconds(5));
    assert_eq!(world.sync().stale_bind_requests.len(), 1, "unless it did not work");
    world.mirror.remove_bind_request(&ObjectKey::new("a", "p"));
    assert_eq!(world.after(7), ["bind uid-p n1"]);
}

#[test]
fn a_bind_request_of_an_earlier_pod_does_not_count() {
    let mut world = a_node_a_gang_and_a_pod();
    world.request("p", "uid-of-the-first", "n1", json!({}));
    let outbox = world.sync();
    assert_eq!(outbox.stale_bind_requests.len(), 1);
    assert_eq!(world.decide(), ["bind uid-p n1"]);
}

#[test]
fn a_bind_request_of_an_earlier_pod_and_of_this_one_counts() {
    let mut world = a_node_a_gang_and_a_pod();
    let request: Arc<BindRequest> = Arc::new(slim(json!({
        "metadata": { "name": "p", "namespace": "a", "uid": "br", "ownerReferences": [
            { "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-of-the-first" },
            { "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p" },
        ] },
        "spec": { "podName": "p", "selectedNode": "n1" },
    })));
    world.mirror.apply_bind_request(&ObjectKey::of(&*request), &request);
    assert!(world.sync().stale_bind_requests.is_empty());
    assert!(world.decide().is_empty(), "the pod is on its way to n1 already");
}

#[test]
fn a_bind_request_to_a_node_that_left_is_cleaned_up() {
    let mut world = a_node_a_gang_and_a_pod();
    world.request("p", "uid-p", "n1", json!({}));
    assert!(world.sync().stale_bind_requests.is_empty());
    world.mirror.remove_node("n1");
    assert_eq!(world.sync().stale_bind_requests.len(), 1);
    world.request("p", "uid-p", "n1", json!({ "phase": "Succeeded" }));
    assert!(world.sync().stale_bind_requests.is_empty(), "done is done");
}
