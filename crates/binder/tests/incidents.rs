//! Everyday binds and incidents of production clusters, against the embedded API server.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests too.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kai_embedded::server::{Fault, Patch, RequestInfo};
use serde_json::json;
use support::{GPU, NS, RESERVATIONS, TestCluster};

#[tokio::test(start_paused = true)]
async fn a_plain_pod_is_bound_once_and_says_so() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 0);
    let pod = cluster.pod("p", json!({}));
    cluster.request(&pod, "n", json!({}));
    cluster.start(&[]);
    cluster
        .until("bound", |cluster| cluster.status("p")["phase"] == "Succeeded")
        .await;
    let pod = cluster.get("pods", NS, "p").unwrap();
    assert_eq!(pod["spec"]["nodeName"], "n");
    assert_eq!(pod["metadata"]["annotations"]["received-resource-type"], "Regular");
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    assert!(
        conditions
            .iter()
            .any(|one| one["type"] == "PodBound" && one["status"] == "True")
    );
    cluster
        .until("told", |cluster| cluster.events("Bound").len() == 1)
        .await;
    assert!(cluster.reservations().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_share_gets_label_config_maps_and_the_reserved_gpu() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 2);
    cluster.share("p", "n", &["g"], 50);
    cluster.share("q", "n", &["h", "i"], 30);
    cluster.kubelets.lock().set_gpus("n", 3);
    cluster.start(&[]);
    cluster
        .until("bound", |cluster| cluster.is_bound("p") && cluster.is_bound("q"))
        .await;
    let pod = cluster.get("pods", NS, "p").unwrap();
    let gpu = cluster.reservation("n", "g").unwrap()["metadata"]["annotations"][GPU].clone();
    assert_eq!(pod["metadata"]["labels"]["runai-gpu-group"], "g");
    assert_eq!(pod["metadata"]["annotations"]["received-resource-type"], "Fraction");
    assert_eq!(pod["metadata"]["annotations"]["kai.scheduler/received-gpus"], gpu);
    assert_eq!(
        cluster.devices("p"),
        format!("kai.scheduler/gpu={}", gpu.as_str().unwrap())
    );
    let map = cluster.get("configmaps", NS, "p-shared-gpu-0").unwrap();
    assert_eq!(map["data"]["GPU_PORTION"], "0.50");
    assert_eq!(map["metadata"]["ownerReferences"][0]["uid"], pod["metadata"]["uid"]);
    assert!(cluster.get("configmaps", NS, "p-shared-gpu-0-evar").is_some());
    let several = cluster.get("pods", NS, "q").unwrap();
    assert_eq!(
        several["metadata"]["labels"],
        json!({ "runai-gpu-group/h": "h", "runai-gpu-group/i": "i" })
    );
    assert_eq!(cluster.devices("q").split(',').count(), 2);
    assert_eq!(cluster.reservations().len(), 3);
    cluster.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_16_halves_fills_8_gpus_and_leaves_nothing_behind() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 8);
    for at in 0..16 {
        cluster.share(&format!("p{at}"), "n", &[&format!("g{}", at / 2)], 50);
    }
    cluster.start(&[]);
    cluster
        .until("all bound", |cluster| {
            (0..16).all(|at| cluster.is_bound(&format!("p{at}")))
        })
        .await;
    cluster.assert_no_violations();
    assert_eq!(cluster.reservations().len(), 8, "one for each group");
    (0..16).for_each(|at| cluster.delete("pods", NS, &format!("p{at}")));
    cluster
        .until("no reservations", |cluster| cluster.reservations().is_empty())
        .await;
    assert!(
        cluster
            .all("configmaps")
            .iter()
            .all(|map| map["metadata"]["namespace"] != NS)
    );
}

#[tokio::test(start_paused = true)]
async fn a_gpu_that_was_promised_too_often_takes_no_more() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 2);
    // A scheduler with an outdated cache gives one GPU to three pods of 0.5 each.
    for at in 0..3 {
        cluster.share(&format!("p{at}"), "n", &["g"], 50);
    }
    cluster.start(&[]);
    let settled = |cluster: &TestCluster| (0..3).all(|at| !cluster.status(&format!("p{at}"))["phase"].is_null());
    cluster.until("settled", settled).await;
    let bound: Vec<bool> = (0..3).map(|at| cluster.is_bound(&format!("p{at}"))).collect();
    assert_eq!(bound.iter().filter(|bound| **bound).count(), 2, "{bound:?}");
    let loser = format!("p{}", bound.iter().position(|bound| !bound).unwrap());
    assert!(cluster.failed(&loser));
    let reason = cluster.status(&loser)["reason"].as_str().unwrap().to_owned();
    assert!(
        reason.contains("has no room: 10000 of 10000 MiB are promised"),
        "{reason}"
    );
    let pod = cluster.get("pods", NS, &loser).unwrap();
    assert!(
        pod["metadata"]["labels"]
            .as_object()
            .is_none_or(|labels| labels.is_empty()),
        "{}",
        pod["metadata"]
    );
    assert!(
        cluster
            .get("configmaps", NS, &format!("{loser}-shared-gpu-0"))
            .is_none()
    );
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    assert!(
        conditions
            .iter()
            .any(|one| one["type"] == "PodBound" && one["status"] == "False")
    );
    assert!(
        cluster
            .events("Bound")
            .iter()
            .all(|event| event["involvedObject"]["name"] != loser)
    );
    cluster.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn memory_requests_add_up_in_mib_not_in_rounded_portions() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 1);
    // 24 times 416 MiB are 9984 of 10000 MiB; each is 0.05 when rounded up to hundredths.
    for at in 0..24 {
        let pod = cluster.pod(&format!("p{at}"), json!({ "gpu-memory": "416" }));
        let share = json!({
            "receivedResourceType": "Fraction", "selectedGPUGroups": ["g"], "receivedGPU": { "count": 1, "portion": "0.05" },
        });
        cluster.request(&pod, "n", share);
    }
    cluster.start(&[]);
    cluster
        .until("all bound", |cluster| {
            (0..24).all(|at| cluster.is_bound(&format!("p{at}")))
        })
        .await;
    assert_eq!(cluster.reservations().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_full_node_is_not_asked_for_ever() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 1);
    cluster.share("p", "n", &["g"], 50);
    cluster.start(&[]);
    cluster.until("first", |cluster| cluster.is_bound("p")).await;
    cluster.share("q", "n", &["h"], 50);
    cluster.until("refused", |cluster| cluster.failed("q")).await;
    let refused = cluster.kubelets.lock().refused;
    cluster.sleep(300).await;
    assert_eq!(
        cluster.kubelets.lock().refused,
        refused,
        "no further attempt without a further request"
    );
    assert_eq!(refused, 1);
    assert_eq!(cluster.reservations().len(), 1, "what was refused is gone");
}

#[tokio::test(start_paused = true)]
async fn attempts_are_counted_up_to_the_limit() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 0);
    cluster.share_with("p", "n", &["g"], 50, json!({ "backoffLimit": 3 }));
    cluster.start(&[]);
    cluster
        .until("spent", |cluster| cluster.status("p")["failedAttempts"] == 3)
        .await;
    cluster.sleep(300).await;
    assert_eq!(cluster.status("p")["failedAttempts"], 3);
    assert_eq!(cluster.kubelets.lock().refused, 3);
    assert!(cluster.reservations().is_empty() && cluster.events("Bound").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_doomed_bind_does_not_starve_others_and_is_never_called_bound() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 4);
    cluster.server.set_faults(Arc::new(|request: &RequestInfo| {
        let doomed = request.subresource == "binding" && request.name.starts_with("doomed");
        if doomed { Fault::Fail(403) } else { Fault::Pass }
    }));
    for at in 0..12 {
        cluster.share(&format!("doomed{at}"), "n", &["d"], 10);
    }
    cluster.share("good", "n", &["g"], 50);
    cluster.start(&["--max-concurrent-reconciles=2"]);
    cluster.until("good", |cluster| cluster.is_bound("good")).await;
    cluster
        .until("doomed", |cluster| {
            (0..12).all(|at| cluster.failed(&format!("doomed{at}")))
        })
        .await;
    cluster.until("tidy", |cluster| cluster.reservations().len() == 1).await;
    assert_eq!(cluster.events("Bound").len(), 1);
    let labelled = |pod: &serde_json::Value| !pod["metadata"]["labels"]["runai-gpu-group"].is_null();
    let pods = cluster
        .all("pods")
        .into_iter()
        .filter(|pod| pod["metadata"]["namespace"] == NS);
    assert_eq!(pods.filter(labelled).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_does_not_answer_costs_one_deadline_and_others_nothing() {
    let mut cluster = TestCluster::new();
    cluster.node("dead", 1);
    cluster.node("n", 1);
    cluster.kubelets.lock().stopped.insert("dead".into());
    for at in 0..15 {
        cluster.share(&format!("lost{at}"), "dead", &["g"], 5);
    }
    cluster.share("p", "n", &["h"], 50);
    cluster.start(&["--max-concurrent-reconciles=1"]);
    let begin = tokio::time::Instant::now();
    cluster.until("other node", |cluster| cluster.is_bound("p")).await;
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    cluster
        .until("given up", |cluster| {
            (0..15).all(|at| cluster.failed(&format!("lost{at}")))
        })
        .await;
    assert!(begin.elapsed() < Duration::from_secs(90), "{:?}", begin.elapsed());
    assert!(
        cluster.status("lost0")["reason"]
            .as_str()
            .unwrap()
            .contains("did not get a GPU within 40 s")
    );
    cluster.kubelets.lock().stopped.clear();
    cluster.until("tidy", |cluster| cluster.reservations().len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_stuck_terminating_reservation_blocks_its_group_alone() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 3);
    cluster.share("p", "n", &["g"], 50);
    cluster.start(&[]);
    cluster.until("first", |cluster| cluster.is_bound("p")).await;
    let name = cluster.reservation("n", "g").unwrap()["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    cluster.kubelets.lock().never_terminated.insert(name.clone());
    cluster.delete("pods", NS, "p");
    let going =
        |cluster: &TestCluster| !cluster.reservation("n", "g").unwrap()["metadata"]["deletionTimestamp"].is_null();
    cluster.until("reservation going", going).await;
    cluster.share("late", "n", &["g"], 50);
    cluster.share("other", "n", &["h"], 50);
    cluster.until("other group", |cluster| cluster.is_bound("other")).await;
    cluster.until("given up", |cluster| cluster.failed("late")).await;
    assert!(
        cluster.status("late")["reason"]
            .as_str()
            .unwrap()
            .contains("does not end")
    );
    cluster.delete("bindrequests.scheduling.run.ai", NS, "late");
    cluster.kubelets.lock().never_terminated.clear();
    cluster
        .until("gone", |cluster| cluster.reservation("n", "g").is_none())
        .await;
    let pod = cluster.get("pods", NS, "late").unwrap();
    let share = json!({
        "receivedResourceType": "Fraction", "selectedGPUGroups": ["g"], "receivedGPU": { "count": 1, "portion": "0.50" },
    });
    cluster.request(&pod, "n", share);
    cluster
        .until("bound in the end", |cluster| cluster.is_bound("late"))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_reservation_comes_back_and_kills_nobody() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 1);
    cluster.share("p", "n", &["g"], 50);
    cluster.share("q", "n", &["g"], 50);
    cluster.start(&[]);
    cluster
        .until("bound", |cluster| cluster.is_bound("p") && cluster.is_bound("q"))
        .await;
    let before = cluster.reservation("n", "g").unwrap();
    cluster.delete("pods", RESERVATIONS, before["metadata"]["name"].as_str().unwrap());
    let back = |cluster: &TestCluster| {
        cluster.reservation("n", "g").is_some_and(|now| {
            now["metadata"]["uid"] != before["metadata"]["uid"] && !now["metadata"]["annotations"][GPU].is_null()
        })
    };
    cluster.until("back", back).await;
    let after = cluster.reservation("n", "g").unwrap();
    assert_eq!(
        after["metadata"]["annotations"][GPU],
        before["metadata"]["annotations"][GPU]
    );
    assert!(cluster.is_bound("p") && cluster.is_bound("q"));
    cluster.sleep(120).await;
    assert_eq!(
        cluster.reservation("n", "g").unwrap()["metadata"]["uid"],
        after["metadata"]["uid"],
        "it stays"
    );
    assert!(cluster.events("GPUReservationMismatch").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lost_reservation_that_gets_another_gpu_is_said_and_gets_its_own_back() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 4);
    cluster.share("p", "n", &["g"], 20);
    cluster.start(&[]);
    cluster.until("bound", |cluster| cluster.is_bound("p")).await;
    let before = cluster.reservation("n", "g").unwrap();
    let gpu = before["metadata"]["annotations"][GPU].as_str().unwrap().to_owned();
    // The kubelet chooses each of the other GPUs first.
    cluster.kubelets.lock().given_last.insert(gpu.clone());
    cluster.delete("pods", RESERVATIONS, before["metadata"]["name"].as_str().unwrap());
    cluster
        .until("said", |cluster| !cluster.events("GPUReservationMismatch").is_empty())
        .await;
    let healed = |cluster: &TestCluster| {
        let now = cluster.reservation("n", "g");
        now.is_some_and(|now| now["metadata"]["annotations"][GPU] == gpu.as_str()) && cluster.reservations().len() == 1
    };
    cluster.until("healed, and nothing else is held", healed).await;
    assert!(cluster.is_bound("p"));
    cluster.share("r", "n", &["g"], 20);
    cluster.until("open again", |cluster| cluster.is_bound("r")).await;
    cluster.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn binds_leave_a_lost_reservation_to_those_who_know_its_gpu() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 4);
    cluster.share("p", "n", &["g"], 20);
    cluster.start(&[]);
    cluster.until("bound", |cluster| cluster.is_bound("p")).await;
    cluster.stop();
    let before = cluster.reservation("n", "g").unwrap();
    let gpu = before["metadata"]["annotations"][GPU].as_str().unwrap().to_owned();
    cluster.kubelets.lock().given_last.insert(gpu.clone());
    cluster.delete("pods", RESERVATIONS, before["metadata"]["name"].as_str().unwrap());
    cluster
        .until("lost", |cluster| cluster.reservation("n", "g").is_none())
        .await;
    let share = json!({
        "receivedResourceType": "Fraction", "selectedGPUGroups": ["g"], "receivedGPU": { "count": 1, "portion": "0.20" },
    });
    let late = cluster.pod("late", json!({ "gpu-fraction": "0.20" }));
    cluster.start(&[]);
    // The scheduler creates the same BindRequest again as soon as a bind has failed.
    let again = |cluster: &TestCluster| {
        if cluster.failed("late") {
            cluster.delete("bindrequests.scheduling.run.ai", NS, "late");
        }
        if cluster.status("late").is_null() && cluster.get("bindrequests.scheduling.run.ai", NS, "late").is_none() {
            cluster.request(&late, "n", share.clone());
        }
        let wanted = &cluster.reservation("n", "g").unwrap_or_default()["metadata"]["annotations"];
        let wanted = &wanted["kai.scheduler/wanted-gpu"];
        assert!(
            cluster.reservation("n", "g").is_none() || *wanted == gpu.as_str(),
            "recreated without the wanted GPU"
        );
        cluster.is_bound("late")
    };
    cluster.until("bound", again).await;
    let now = cluster.reservation("n", "g").unwrap();
    assert_eq!(now["metadata"]["annotations"][GPU], gpu.as_str());
    cluster.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn a_group_whose_reservation_holds_another_gpu_takes_nobody_in() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 2);
    cluster.share("p", "n", &["g"], 20);
    cluster.start(&[]);
    cluster.until("bound", |cluster| cluster.is_bound("p")).await;
    let before = cluster.reservation("n", "g").unwrap();
    // The reservation pod is lost, and another pod gets its GPU before it is recreated.
    let gpu = before["metadata"]["annotations"][GPU].as_str().unwrap().to_owned();
    cluster.kubelets.lock().held_elsewhere.insert(gpu);
    cluster.delete("pods", RESERVATIONS, before["metadata"]["name"].as_str().unwrap());
    let said = |cluster: &TestCluster| !cluster.events("GPUReservationMismatch").is_empty();
    cluster.until("said", said).await;
    // A pending bind of the group does not hide that the GPU can't be reserved again.
    cluster.share_with("late", "n", &["g"], 20, json!({ "backoffLimit": 1000 }));
    cluster.until("refused", |cluster| cluster.failed("late")).await;
    // The pauses between two tries double up to ten minutes.
    cluster.sleep(1_000).await;
    let mut uids = std::collections::BTreeSet::new();
    for _ in 0..360 {
        let reservation = cluster.reservation("n", "g");
        uids.extend(reservation.map(|pod| pod["metadata"]["uid"].to_string()));
        cluster.sleep(10).await;
    }
    // One try every ten minutes: more would keep other pods from the node's GPUs, none would never get the GPU back.
    assert!(
        (2..=8).contains(&uids.len()),
        "{} reservation pods in an hour",
        uids.len()
    );
    assert_eq!(cluster.reservations().len(), 1);
    assert!(cluster.is_bound("p") && !cluster.is_bound("late"));
    cluster.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn two_reservations_with_one_gpu_are_refused() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 2);
    cluster.share("p", "n", &["g"], 50);
    cluster.start(&[]);
    cluster.until("bound", |cluster| cluster.is_bound("p")).await;
    // A device plugin with replicas may give out the same GPU again.
    let gpu = cluster.reservation("n", "g").unwrap()["metadata"]["annotations"][GPU].clone();
    cluster.kubelets.lock().alias("n", gpu.as_str().unwrap());
    cluster.share("q", "n", &["h"], 50);
    cluster.until("refused", |cluster| cluster.failed("q")).await;
    assert!(cluster.status("q")["reason"].as_str().unwrap().contains("alike"));
    cluster.until("tidy", |cluster| cluster.reservations().len() == 1).await;
    cluster.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn a_forged_group_label_has_no_effect() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 2);
    let forged = cluster.pod("thief", json!({ "gpu-fraction": "0.9" }));
    let label = json!({ "metadata": { "labels": { "runai-gpu-group": "g" } } });
    cluster
        .store
        .patch("pods", NS, "thief", &Patch::Merge(label.clone()))
        .unwrap();
    cluster.share("p", "n", &["g"], 60);
    cluster.start(&[]);
    cluster.until("bound", |cluster| cluster.is_bound("p")).await;
    let plain = cluster.pod("plain", json!({}));
    cluster.store.patch("pods", NS, "plain", &Patch::Merge(label)).unwrap();
    cluster.request(&plain, "n", json!({}));
    cluster.until("plain bound", |cluster| cluster.is_bound("plain")).await;
    assert!(cluster.get("pods", NS, "plain").unwrap()["metadata"]["labels"]["runai-gpu-group"].is_null());
    cluster.share("q", "n", &["g"], 40);
    cluster.until("room is room", |cluster| cluster.is_bound("q")).await;
    assert!(forged["spec"]["nodeName"].is_null());
    cluster.delete("pods", NS, "p");
    cluster.delete("pods", NS, "q");
    cluster
        .until("a label holds no GPU", |cluster| cluster.reservations().is_empty())
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_request_of_a_pod_that_is_gone_binds_nothing() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 1);
    let pod = cluster.pod("p", json!({ "gpu-fraction": "0.5" }));
    let mut stale = pod.clone();
    stale["metadata"]["uid"] = json!("11111111-1111-4111-8111-111111111111");
    let share = json!({
        "receivedResourceType": "Fraction", "selectedGPUGroups": ["g"], "receivedGPU": { "count": 1, "portion": "0.50" },
    });
    cluster.request(&stale, "n", share);
    cluster.start(&[]);
    cluster.sleep(60).await;
    assert!(!cluster.is_bound("p") && cluster.reservations().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_sat_out() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 2);
    let out = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&out);
    // The token is revoked: all calls and watches are answered with 401.
    let faults = move |_: &RequestInfo| {
        if seen.load(Ordering::Relaxed) {
            Fault::Fail(401)
        } else {
            Fault::Pass
        }
    };
    cluster.server.set_faults(Arc::new(faults));
    cluster.share("p", "n", &["g"], 50);
    cluster.start(&[]);
    cluster.until("before", |cluster| cluster.is_bound("p")).await;
    out.store(true, Ordering::Relaxed);
    cluster.share("q", "n", &["g"], 50);
    cluster.share("r", "n", &["h"], 50);
    cluster.sleep(120).await;
    assert!(!cluster.is_bound("q"));
    out.store(false, Ordering::Relaxed);
    cluster
        .until("after", |cluster| cluster.is_bound("q") && cluster.is_bound("r"))
        .await;
    cluster.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn a_binding_whose_answer_is_lost_is_recognised() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 1);
    cluster
        .server
        .set_faults(Arc::new(|request: &RequestInfo| match &*request.subresource {
            "binding" => Fault::DropResponse,
            _ => Fault::Pass,
        }));
    cluster.share("p", "n", &["g"], 50);
    cluster.start(&[]);
    cluster
        .until("said", |cluster| cluster.status("p")["phase"] == "Succeeded")
        .await;
    assert!(cluster.is_bound("p"));
    assert!(cluster.events("BindingError").is_empty());
    assert_eq!(cluster.reservations().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn no_gpu_is_reserved_on_a_node_that_is_being_removed() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 1);
    let taint = json!({ "spec": { "taints": [{ "key": "karpenter.sh/disrupted", "effect": "NoSchedule" }] } });
    cluster.store.patch("nodes", "", "n", &Patch::Merge(taint)).unwrap();
    cluster.share("p", "n", &["g"], 50);
    cluster.start(&[]);
    cluster.until("refused", |cluster| cluster.failed("p")).await;
    let status = cluster.status("p");
    assert!(status["reason"].as_str().unwrap().contains("being removed"), "{status}");
    assert!(cluster.reservations().is_empty());
}

/// A scaling pod that no autoscaler has added a node for yet.
fn waiting_scaling_pod(cluster: &TestCluster, origin: &str) {
    cluster
        .store
        .create(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "s", "namespace": "kai-scale-adjust", "annotations": { "kai.scheduler/scaling-for": origin } },
            "spec": { "containers": [{ "name": "a", "image": "x" }] },
        }))
        .unwrap();
    let waiting = json!({ "status": { "conditions": [{ "type": "PodScheduled", "status": "False" }] } });
    cluster
        .store
        .patch_status("pods", "kai-scale-adjust", "s", &Patch::Merge(waiting))
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_scaling_pod_does_not_hold_up_its_own_pod() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 1);
    waiting_scaling_pod(&cluster, &format!("{NS}/p"));
    cluster.share("p", "n", &["g"], 50);
    cluster.start(&[]);
    cluster.until("bound", |cluster| cluster.is_bound("p")).await;
}

#[tokio::test(start_paused = true)]
async fn an_autoscaler_that_adds_no_node_does_not_stop_sharing() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 1);
    waiting_scaling_pod(&cluster, "other/pod");
    cluster.sleep(15 * 60).await;
    cluster.share("p", "n", &["g"], 50);
    cluster.start(&[]);
    cluster.until("bound", |cluster| cluster.is_bound("p")).await;
}

#[tokio::test(start_paused = true)]
async fn no_gpu_is_reserved_while_nodes_are_added() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 1);
    waiting_scaling_pod(&cluster, "other/pod");
    cluster.share("p", "n", &["g"], 50);
    cluster.start(&[]);
    cluster.until("refused", |cluster| cluster.failed("p")).await;
    assert!(
        cluster.status("p")["reason"]
            .as_str()
            .unwrap()
            .contains("nodes are being added")
    );
    assert!(cluster.reservations().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_restart_takes_up_what_was_left() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 4);
    cluster.share("p", "n", &["g"], 50);
    cluster.start(&[]);
    cluster.until("bound", |cluster| cluster.is_bound("p")).await;
    cluster.share("q", "n", &["h"], 50);
    cluster
        .until("half way", |cluster| cluster.reservation("n", "h").is_some())
        .await;
    cluster.stop();
    cluster.delete("pods", NS, "p");
    cluster.sleep(5).await;
    assert!(cluster.reservation("n", "g").is_some(), "nobody was there to tidy up");
    cluster.start(&[]);
    cluster
        .until("done", |cluster| {
            cluster.is_bound("q") && cluster.reservation("n", "g").is_none()
        })
        .await;
    assert_eq!(cluster.reservations().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reservation_that_ended_while_nobody_looked_is_removed() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 1);
    cluster.kubelets.lock().stopped.insert("n".to_owned());
    cluster.share("p", "n", &["g"], 50);
    cluster.start(&[]);
    cluster
        .until("half way", |cluster| cluster.reservation("n", "g").is_some())
        .await;
    cluster.stop();
    {
        let mut kubelets = cluster.kubelets.lock();
        kubelets.set_gpus("n", 0);
        kubelets.stopped.clear();
    }
    let rejected = |cluster: &TestCluster| cluster.reservation("n", "g").unwrap()["status"]["phase"] == "Failed";
    cluster.until("rejected", rejected).await;
    cluster.delete("pods", NS, "p");
    cluster.start(&[]);
    cluster
        .until("nothing is left", |cluster| cluster.reservations().is_empty())
        .await;
}
