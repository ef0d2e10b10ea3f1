//! Leader-worker sets.

use serde_json::{Value, json};

use super::{check, object, pod};

fn set(spec: Value) -> Value {
    object(
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        "s",
        json!({ "spec": spec }),
    )
}

fn member(index: &str) -> Value {
    pod(json!({ "metadata": { "labels": {
        "leaderworkerset.sigs.k8s.io/group-index": "2",
        "leaderworkerset.sigs.k8s.io/worker-index": index,
    } } }))
}

fn line(rest: &str) -> String {
    format!("pg-s-u-s-group-2 of LeaderWorkerSet/s queue=default-queue priority=train {rest}")
}

#[test]
fn each_group_is_a_gang() {
    let of_four = set(json!({ "leaderWorkerTemplate": { "size": 4 } }));
    check(
        &[of_four.clone()],
        &member("0"),
        &line("min=4 [leader:1, workers:3] -> leader"),
    );
    check(
        &[of_four],
        &member("3"),
        &line("min=4 [leader:1, workers:3] -> workers"),
    );
    check(
        &[set(json!({ "leaderWorkerTemplate": { "size": 1 } }))],
        &member("0"),
        &line("min=1 [leader:1] -> leader"),
    );
    check(
        &[set(json!({}))],
        &member("0"),
        "LeaderWorkerSet ns/s: spec.leaderWorkerTemplate.size: it has to be 1 or more",
    );
    check(
        &[set(json!({ "leaderWorkerTemplate": { "size": 2 } }))],
        &member("-1"),
        "Pod ns/p: metadata.labels.leaderworkerset.sigs.k8s.io/worker-index: \"-1\" is not the number of a worker",
    );
}

#[test]
fn a_leader_that_others_wait_for_starts_alone() {
    let ready = set(json!({ "startupPolicy": "LeaderReady", "leaderWorkerTemplate": { "size": 4 } }));
    check(&[ready.clone()], &member("0"), &line("min=1 [leader:1] -> leader"));
    let mut placed = member("0");
    placed["spec"] = json!({ "nodeName": "n" });
    check(
        &[ready.clone()],
        &placed,
        &line("min=4 [leader:1, workers:3] -> leader"),
    );
    let mut resized = member("1");
    resized["metadata"]["annotations"] = json!({ "leaderworkerset.sigs.k8s.io/size": "3" });
    check(&[ready], &resized, &line("min=3 [leader:1, workers:2] -> workers"));
}

#[test]
fn segments() {
    let of = |size: i32, segment: i32, policy: &str| {
        set(json!({ "leaderWorkerTemplate": {
            "size": size, "subGroupPolicy": { "subGroupSize": segment, "subGroupPolicyType": policy } } }))
    };
    // Eight pods in segments of four: the leader counts as one of the first four.
    let even = "min=8 [segment-0=2, segment-1:4, segment-0/leader:1, segment-0/workers:3]";
    check(
        &[of(8, 4, "LeaderWorker")],
        &member("0"),
        &line(&format!("{even} -> leader")),
    );
    check(
        &[of(8, 4, "LeaderWorker")],
        &member("3"),
        &line(&format!("{even} -> workers")),
    );
    check(
        &[of(8, 4, "LeaderWorker")],
        &member("4"),
        &line(&format!("{even} -> segment-1")),
    );
    // Nine pods: the leader comes on top.
    let extra = "min=9 [segment-0=2, segment-1:4, segment-0/leader:1, segment-0/workers:4]";
    check(
        &[of(9, 4, "LeaderWorker")],
        &member("4"),
        &line(&format!("{extra} -> workers")),
    );
    check(
        &[of(9, 4, "LeaderWorker")],
        &member("5"),
        &line(&format!("{extra} -> segment-1")),
    );
    let apart = "min=9 [leader:1, segment-0:4, segment-1:4]";
    check(
        &[of(9, 4, "LeaderExcluded")],
        &member("0"),
        &line(&format!("{apart} -> leader")),
    );
    check(
        &[of(9, 4, "LeaderExcluded")],
        &member("1"),
        &line(&format!("{apart} -> segment-0")),
    );
    // The last segment may be smaller.
    let uneven = "min=6 [segment-0=2, segment-1:2, segment-0/leader:1, segment-0/workers:3]";
    check(
        &[of(6, 4, "LeaderWorker")],
        &member("5"),
        &line(&format!("{uneven} -> segment-1")),
    );
    check(
        &[of(8, 4, "LeaderExcluded")],
        &member("1"),
        "LeaderWorkerSet ns/s: spec.leaderWorkerTemplate.size: 7 workers can't be divided by 4",
    );
    check(
        &[of(4, 9, "LeaderWorker")],
        &member("1"),
        "LeaderWorkerSet ns/s: spec.leaderWorkerTemplate.subGroupPolicy.subGroupSize: segments of 9 pods make no sense in a group \
         of 4; write 2 to 4",
    );
}

#[test]
fn segments_by_annotation_stay_close() {
    let mut set = set(
        json!({ "leaderWorkerTemplate": { "size": 5, "workerTemplate": { "metadata": { "annotations": {
        "kai.scheduler/segment-topology-preferred-placement": "rack" } } } } }),
    );
    set["metadata"]["annotations"] = json!({ "kai.scheduler/segment-size": "2", "kai.scheduler/topology": "dc" });
    check(
        &[set],
        &member("3"),
        &line(
            "min=5 dc(/) [segment-0=2 dc(/rack), segment-1:2 dc(/rack), segment-0/leader:1, segment-0/workers:2] -> segment-1",
        ),
    );
}
