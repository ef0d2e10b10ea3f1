//! Incidents from the field, and the everyday, against the embedded API server.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests too.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kai_embedded::server::{Fault, Patch, RequestInfo};
use serde_json::json;
use support::{GPU, NS, RESERVATIONS, World};

#[tokio::test(start_paused = true)]
async fn a_plain_pod_is_bound_once_and_says_so() {
    let mut world = World::new();
    world.node("n", 0);
    let pod = world.pod("p", json!({}));
    world.request(&pod, "n", json!({}));
    world.start(&[]);
    world
        .until("bound", |world| world.status("p")["phase"] == "Succeeded")
        .await;
    let pod = world.get("pods", NS, "p").unwrap();
    assert_eq!(pod["spec"]["nodeName"], "n");
    assert_eq!(pod["metadata"]["annotations"]["received-resource-type"], "Regular");
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    assert!(
        conditions
            .iter()
            .any(|one| one["type"] == "PodBound" && one["status"] == "True")
    );
    world.until("told", |world| world.events("Bound").len() == 1).await;
    assert!(world.reservations().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_share_gets_label_config_maps_and_the_reserved_gpu() {
    let mut world = World::new();
    world.node("n", 2);
    world.share("p", "n", &["g"], 50);
    world.share("q", "n", &["h", "i"], 30);
    world.kubelets.lock().unwrap().gpus_of("n", 3);
    world.start(&[]);
    world
        .until("bound", |world| world.is_bound("p") && world.is_bound("q"))
        .await;
    let pod = world.get("pods", NS, "p").unwrap();
    let gpu = world.reservation("n", "g").unwrap()["metadata"]["annotations"][GPU].clone();
    assert_eq!(pod["metadata"]["labels"]["runai-gpu-group"], "g");
    assert_eq!(pod["metadata"]["annotations"]["received-resource-type"], "Fraction");
    assert_eq!(pod["metadata"]["annotations"]["kai.scheduler/received-gpus"], gpu);
    assert_eq!(
        world.devices("p"),
        format!("kai.scheduler/gpu={}", gpu.as_str().unwrap())
    );
    let map = world.get("configmaps", NS, "p-shared-gpu-0").unwrap();
    assert_eq!(map["data"]["GPU_PORTION"], "0.50");
    assert_eq!(map["metadata"]["ownerReferences"][0]["uid"], pod["metadata"]["uid"]);
    assert!(world.get("configmaps", NS, "p-shared-gpu-0-evar").is_some());
    let several = world.get("pods", NS, "q").unwrap();
    assert_eq!(
        several["metadata"]["labels"],
        json!({ "runai-gpu-group/h": "h", "runai-gpu-group/i": "i" })
    );
    assert_eq!(world.devices("q").split(',').count(), 2);
    assert_eq!(world.reservations().len(), 3);
    world.assert_sound();
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_16_halves_fills_8_gpus_and_leaves_nothing_behind() {
    let mut world = World::new();
    world.node("n", 8);
    for at in 0..16 {
        world.share(&format!("p{at}"), "n", &[&format!("g{}", at / 2)], 50);
    }
    world.start(&[]);
    world
        .until("all bound", |world| (0..16).all(|at| world.is_bound(&format!("p{at}"))))
        .await;
    world.assert_sound();
    assert_eq!(world.reservations().len(), 8, "one for each group");
    (0..16).for_each(|at| world.delete("pods", NS, &format!("p{at}")));
    world
        .until("no reservations", |world| world.reservations().is_empty())
        .await;
    assert!(
        world
            .all("configmaps")
            .iter()
            .all(|map| map["metadata"]["namespace"] != NS)
    );
}

#[tokio::test(start_paused = true)]
async fn a_gpu_that_was_promised_too_often_takes_no_more() {
    let mut world = World::new();
    world.node("n", 2);
    // A scheduler that lags decides three halves for one GPU.
    for at in 0..3 {
        world.share(&format!("p{at}"), "n", &["g"], 50);
    }
    world.start(&[]);
    let settled = |world: &World| (0..3).all(|at| !world.status(&format!("p{at}"))["phase"].is_null());
    world.until("settled", settled).await;
    let bound: Vec<bool> = (0..3).map(|at| world.is_bound(&format!("p{at}"))).collect();
    assert_eq!(bound.iter().filter(|bound| **bound).count(), 2, "{bound:?}");
    let loser = format!("p{}", bound.iter().position(|bound| !bound).unwrap());
    assert!(world.failed(&loser));
    let reason = world.status(&loser)["reason"].as_str().unwrap().to_owned();
    assert!(
        reason.contains("has no room: 10000 of 10000 MiB are promised"),
        "{reason}"
    );
    let pod = world.get("pods", NS, &loser).unwrap();
    assert!(
        pod["metadata"]["labels"]
            .as_object()
            .is_none_or(|labels| labels.is_empty()),
        "{}",
        pod["metadata"]
    );
    assert!(world.get("configmaps", NS, &format!("{loser}-shared-gpu-0")).is_none());
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    assert!(
        conditions
            .iter()
            .any(|one| one["type"] == "PodBound" && one["status"] == "False")
    );
    assert!(
        world
            .events("Bound")
            .iter()
            .all(|event| event["involvedObject"]["name"] != loser)
    );
    world.assert_sound();
}

#[tokio::test(start_paused = true)]
async fn memory_requests_add_up_in_mib_not_in_rounded_portions() {
    let mut world = World::new();
    world.node("n", 1);
    // 24 times 416 MiB are 9984 of 10000; each is 0.05 when rounded up to hundredths.
    for at in 0..24 {
        let pod = world.pod(&format!("p{at}"), json!({ "gpu-memory": "416" }));
        let share = json!({
            "receivedResourceType": "Fraction", "selectedGPUGroups": ["g"], "receivedGPU": { "count": 1, "portion": "0.05" },
        });
        world.request(&pod, "n", share);
    }
    world.start(&[]);
    world
        .until("all bound", |world| (0..24).all(|at| world.is_bound(&format!("p{at}"))))
        .await;
    assert_eq!(world.reservations().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_full_node_is_not_asked_for_ever() {
    let mut world = World::new();
    world.node("n", 1);
    world.share("p", "n", &["g"], 50);
    world.start(&[]);
    world.until("first", |world| world.is_bound("p")).await;
    world.share("q", "n", &["h"], 50);
    world.until("refused", |world| world.failed("q")).await;
    let refused = world.kubelets.lock().unwrap().refused;
    world.pass(300).await;
    assert_eq!(
        world.kubelets.lock().unwrap().refused,
        refused,
        "no further attempt without a further request"
    );
    assert_eq!(refused, 1);
    assert_eq!(world.reservations().len(), 1, "what was refused is gone");
}

#[tokio::test(start_paused = true)]
async fn attempts_are_counted_up_to_the_limit() {
    let mut world = World::new();
    world.node("n", 0);
    world.share_with("p", "n", &["g"], 50, json!({ "backoffLimit": 3 }));
    world.start(&[]);
    world
        .until("spent", |world| world.status("p")["failedAttempts"] == 3)
        .await;
    world.pass(300).await;
    assert_eq!(world.status("p")["failedAttempts"], 3);
    assert_eq!(world.kubelets.lock().unwrap().refused, 3);
    assert!(world.reservations().is_empty() && world.events("Bound").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_doomed_bind_does_not_starve_others_and_is_never_called_bound() {
    let mut world = World::new();
    world.node("n", 4);
    world.server.set_faults(Arc::new(|request: &RequestInfo| {
        let doomed = request.subresource == "binding" && request.name.starts_with("doomed");
        if doomed { Fault::Fail(403) } else { Fault::Pass }
    }));
    for at in 0..12 {
        world.share(&format!("doomed{at}"), "n", &["d"], 10);
    }
    world.share("good", "n", &["g"], 50);
    world.start(&["--max-concurrent-reconciles=2"]);
    world.until("good", |world| world.is_bound("good")).await;
    world
        .until("doomed", |world| (0..12).all(|at| world.failed(&format!("doomed{at}"))))
        .await;
    world.until("tidy", |world| world.reservations().len() == 1).await;
    assert_eq!(world.events("Bound").len(), 1);
    let labelled = |pod: &serde_json::Value| !pod["metadata"]["labels"]["runai-gpu-group"].is_null();
    let pods = world
        .all("pods")
        .into_iter()
        .filter(|pod| pod["metadata"]["namespace"] == NS);
    assert_eq!(pods.filter(labelled).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_does_not_answer_costs_one_deadline_and_others_nothing() {
    let mut world = World::new();
    world.node("dead", 1);
    world.node("n", 1);
    world.kubelets.lock().unwrap().dead.insert("dead".into());
    for at in 0..15 {
        world.share(&format!("lost{at}"), "dead", &["g"], 5);
    }
    world.share("p", "n", &["h"], 50);
    world.start(&["--max-concurrent-reconciles=1"]);
    let begin = tokio::time::Instant::now();
    world.until("other node", |world| world.is_bound("p")).await;
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    world
        .until("given up", |world| (0..15).all(|at| world.failed(&format!("lost{at}"))))
        .await;
    assert!(begin.elapsed() < Duration::from_secs(90), "{:?}", begin.elapsed());
    assert!(
        world.status("lost0")["reason"]
            .as_str()
            .unwrap()
            .contains("did not get a GPU within 40 s")
    );
    world.kubelets.lock().unwrap().dead.clear();
    world.until("tidy", |world| world.reservations().len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_stuck_terminating_reservation_blocks_its_group_alone() {
    let mut world = World::new();
    world.node("n", 3);
    world.share("p", "n", &["g"], 50);
    world.start(&[]);
    world.until("first", |world| world.is_bound("p")).await;
    let name = world.reservation("n", "g").unwrap()["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    world.kubelets.lock().unwrap().stuck.insert(name.clone());
    world.delete("pods", NS, "p");
    let going = |world: &World| !world.reservation("n", "g").unwrap()["metadata"]["deletionTimestamp"].is_null();
    world.until("reservation going", going).await;
    world.share("late", "n", &["g"], 50);
    world.share("other", "n", &["h"], 50);
    world.until("other group", |world| world.is_bound("other")).await;
    world.until("given up", |world| world.failed("late")).await;
    assert!(
        world.status("late")["reason"]
            .as_str()
            .unwrap()
            .contains("does not end")
    );
    world.delete("bindrequests.scheduling.run.ai", NS, "late");
    world.kubelets.lock().unwrap().stuck.clear();
    world.until("gone", |world| world.reservation("n", "g").is_none()).await;
    let pod = world.get("pods", NS, "late").unwrap();
    let share = json!({
        "receivedResourceType": "Fraction", "selectedGPUGroups": ["g"], "receivedGPU": { "count": 1, "portion": "0.50" },
    });
    world.request(&pod, "n", share);
    world.until("bound in the end", |world| world.is_bound("late")).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_reservation_comes_back_and_kills_nobody() {
    let mut world = World::new();
    world.node("n", 1);
    world.share("p", "n", &["g"], 50);
    world.share("q", "n", &["g"], 50);
    world.start(&[]);
    world
        .until("bound", |world| world.is_bound("p") && world.is_bound("q"))
        .await;
    let before = world.reservation("n", "g").unwrap();
    world.delete("pods", RESERVATIONS, before["metadata"]["name"].as_str().unwrap());
    let back = |world: &World| {
        world.reservation("n", "g").is_some_and(|now| {
            now["metadata"]["uid"] != before["metadata"]["uid"] && !now["metadata"]["annotations"][GPU].is_null()
        })
    };
    world.until("back", back).await;
    let after = world.reservation("n", "g").unwrap();
    assert_eq!(
        after["metadata"]["annotations"][GPU],
        before["metadata"]["annotations"][GPU]
    );
    assert!(world.is_bound("p") && world.is_bound("q"));
    world.pass(120).await;
    assert_eq!(
        world.reservation("n", "g").unwrap()["metadata"]["uid"],
        after["metadata"]["uid"],
        "it stays"
    );
    assert!(world.events("GPUReservationMismatch").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lost_reservation_that_gets_another_gpu_is_said_and_gets_its_own_back() {
    let mut world = World::new();
    world.node("n", 4);
    world.share("p", "n", &["g"], 20);
    world.start(&[]);
    world.until("bound", |world| world.is_bound("p")).await;
    let before = world.reservation("n", "g").unwrap();
    let gpu = before["metadata"]["annotations"][GPU].as_str().unwrap().to_owned();
    // Each of the others is chosen first.
    world.kubelets.lock().unwrap().disliked.insert(gpu.clone());
    world.delete("pods", RESERVATIONS, before["metadata"]["name"].as_str().unwrap());
    world
        .until("said", |world| !world.events("GPUReservationMismatch").is_empty())
        .await;
    let healed = |world: &World| {
        let now = world.reservation("n", "g");
        now.is_some_and(|now| now["metadata"]["annotations"][GPU] == gpu.as_str()) && world.reservations().len() == 1
    };
    world.until("healed, and nothing else is held", healed).await;
    assert!(world.is_bound("p"));
    world.share("r", "n", &["g"], 20);
    world.until("open again", |world| world.is_bound("r")).await;
    world.assert_sound();
}

#[tokio::test(start_paused = true)]
async fn binds_leave_a_lost_reservation_to_those_who_know_its_gpu() {
    let mut world = World::new();
    world.node("n", 4);
    world.share("p", "n", &["g"], 20);
    world.start(&[]);
    world.until("bound", |world| world.is_bound("p")).await;
    world.stop();
    let before = world.reservation("n", "g").unwrap();
    let gpu = before["metadata"]["annotations"][GPU].as_str().unwrap().to_owned();
    world.kubelets.lock().unwrap().disliked.insert(gpu.clone());
    world.delete("pods", RESERVATIONS, before["metadata"]["name"].as_str().unwrap());
    world.until("lost", |world| world.reservation("n", "g").is_none()).await;
    let share = json!({
        "receivedResourceType": "Fraction", "selectedGPUGroups": ["g"], "receivedGPU": { "count": 1, "portion": "0.20" },
    });
    let late = world.pod("late", json!({ "gpu-fraction": "0.20" }));
    world.start(&[]);
    // The scheduler decides the same again as soon as a bind failed.
    let again = |world: &World| {
        if world.failed("late") {
            world.delete("bindrequests.scheduling.run.ai", NS, "late");
        }
        if world.status("late").is_null() && world.get("bindrequests.scheduling.run.ai", NS, "late").is_none() {
            world.request(&late, "n", share.clone());
        }
        let wished = &world.reservation("n", "g").unwrap_or_default()["metadata"]["annotations"];
        let wished = &wished["kai.scheduler/wanted-gpu"];
        assert!(
            world.reservation("n", "g").is_none() || *wished == gpu.as_str(),
            "made by who does not know the GPU"
        );
        world.is_bound("late")
    };
    world.until("bound", again).await;
    let now = world.reservation("n", "g").unwrap();
    assert_eq!(now["metadata"]["annotations"][GPU], gpu.as_str());
    world.assert_sound();
}

#[tokio::test(start_paused = true)]
async fn a_group_whose_reservation_holds_another_gpu_takes_nobody_in() {
    let mut world = World::new();
    world.node("n", 2);
    world.share("p", "n", &["g"], 20);
    world.start(&[]);
    world.until("bound", |world| world.is_bound("p")).await;
    let before = world.reservation("n", "g").unwrap();
    // It got lost, and a pod was given its GPU before it came back.
    let gpu = before["metadata"]["annotations"][GPU].as_str().unwrap().to_owned();
    world.kubelets.lock().unwrap().away.insert(gpu);
    world.delete("pods", RESERVATIONS, before["metadata"]["name"].as_str().unwrap());
    let said = |world: &World| !world.events("GPUReservationMismatch").is_empty();
    world.until("said", said).await;
    // A bind that is always there does not keep it from being seen that the GPU is not to be had.
    world.share_with("late", "n", &["g"], 20, json!({ "backoffLimit": 1000 }));
    world.until("refused", |world| world.failed("late")).await;
    world.pass(200).await;
    let uid = |world: &World| world.reservation("n", "g").unwrap()["metadata"]["uid"].clone();
    let kept = uid(&world);
    world.pass(200).await;
    assert_eq!(uid(&world), kept, "one try after the other would be in vain");
    assert_eq!(world.reservations().len(), 1);
    assert!(world.is_bound("p") && !world.is_bound("late"));
    world.assert_sound();
}

#[tokio::test(start_paused = true)]
async fn two_reservations_with_one_gpu_are_refused() {
    let mut world = World::new();
    world.node("n", 2);
    world.share("p", "n", &["g"], 50);
    world.start(&[]);
    world.until("bound", |world| world.is_bound("p")).await;
    // A device plugin with replicas may give out the same GPU again.
    let gpu = world.reservation("n", "g").unwrap()["metadata"]["annotations"][GPU].clone();
    world.kubelets.lock().unwrap().alias("n", gpu.as_str().unwrap());
    world.share("q", "n", &["h"], 50);
    world.until("refused", |world| world.failed("q")).await;
    assert!(world.status("q")["reason"].as_str().unwrap().contains("alike"));
    world.until("tidy", |world| world.reservations().len() == 1).await;
    world.assert_sound();
}

#[tokio::test(start_paused = true)]
async fn a_forged_group_label_has_no_effect() {
    let mut world = World::new();
    world.node("n", 2);
    let forged = world.pod("thief", json!({ "gpu-fraction": "0.9" }));
    let label = json!({ "metadata": { "labels": { "runai-gpu-group": "g" } } });
    world
        .store
        .patch("pods", NS, "thief", &Patch::Merge(label.clone()))
        .unwrap();
    world.share("p", "n", &["g"], 60);
    world.start(&[]);
    world.until("bound", |world| world.is_bound("p")).await;
    let plain = world.pod("plain", json!({}));
    world.store.patch("pods", NS, "plain", &Patch::Merge(label)).unwrap();
    world.request(&plain, "n", json!({}));
    world.until("plain bound", |world| world.is_bound("plain")).await;
    assert!(world.get("pods", NS, "plain").unwrap()["metadata"]["labels"]["runai-gpu-group"].is_null());
    world.share("q", "n", &["g"], 40);
    world.until("room is room", |world| world.is_bound("q")).await;
    assert!(forged["spec"]["nodeName"].is_null());
    world.delete("pods", NS, "p");
    world.delete("pods", NS, "q");
    world
        .until("a label holds no GPU", |world| world.reservations().is_empty())
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_request_of_a_pod_that_is_gone_binds_nothing() {
    let mut world = World::new();
    world.node("n", 1);
    let pod = world.pod("p", json!({ "gpu-fraction": "0.5" }));
    let mut stale = pod.clone();
    stale["metadata"]["uid"] = json!("11111111-1111-4111-8111-111111111111");
    let share = json!({
        "receivedResourceType": "Fraction", "selectedGPUGroups": ["g"], "receivedGPU": { "count": 1, "portion": "0.50" },
    });
    world.request(&stale, "n", share);
    world.start(&[]);
    world.pass(60).await;
    assert!(!world.is_bound("p") && world.reservations().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_sat_out() {
    let mut world = World::new();
    world.node("n", 2);
    let out = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&out);
    // The token is revoked: everything is refused as unknown, watches too.
    let faults = move |_: &RequestInfo| {
        if seen.load(Ordering::Relaxed) {
            Fault::Fail(401)
        } else {
            Fault::Pass
        }
    };
    world.server.set_faults(Arc::new(faults));
    world.share("p", "n", &["g"], 50);
    world.start(&[]);
    world.until("before", |world| world.is_bound("p")).await;
    out.store(true, Ordering::Relaxed);
    world.share("q", "n", &["g"], 50);
    world.share("r", "n", &["h"], 50);
    world.pass(120).await;
    assert!(!world.is_bound("q"));
    out.store(false, Ordering::Relaxed);
    world
        .until("after", |world| world.is_bound("q") && world.is_bound("r"))
        .await;
    world.assert_sound();
}

#[tokio::test(start_paused = true)]
async fn a_binding_whose_answer_is_lost_is_recognised() {
    let mut world = World::new();
    world.node("n", 1);
    world
        .server
        .set_faults(Arc::new(|request: &RequestInfo| match &*request.subresource {
            "binding" => Fault::DropResponse,
            _ => Fault::Pass,
        }));
    world.share("p", "n", &["g"], 50);
    world.start(&[]);
    world
        .until("said", |world| world.status("p")["phase"] == "Succeeded")
        .await;
    assert!(world.is_bound("p"));
    assert!(world.events("BindingError").is_empty());
    assert_eq!(world.reservations().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn no_gpu_is_reserved_while_nodes_are_added() {
    let mut world = World::new();
    world.node("n", 1);
    world
        .store
        .create(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "s", "namespace": "kai-scale-adjust" },
            "spec": { "containers": [{ "name": "a", "image": "x" }] },
        }))
        .unwrap();
    let waiting = json!({ "status": { "conditions": [{ "type": "PodScheduled", "status": "False" }] } });
    world
        .store
        .patch_status("pods", "kai-scale-adjust", "s", &Patch::Merge(waiting))
        .unwrap();
    world.share("p", "n", &["g"], 50);
    world.start(&[]);
    world.until("refused", |world| world.failed("p")).await;
    assert!(
        world.status("p")["reason"]
            .as_str()
            .unwrap()
            .contains("nodes are being added")
    );
    assert!(world.reservations().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_restart_takes_up_what_was_left() {
    let mut world = World::new();
    world.node("n", 4);
    world.share("p", "n", &["g"], 50);
    world.start(&[]);
    world.until("bound", |world| world.is_bound("p")).await;
    world.share("q", "n", &["h"], 50);
    world
        .until("half way", |world| world.reservation("n", "h").is_some())
        .await;
    world.stop();
    world.delete("pods", NS, "p");
    world.pass(5).await;
    assert!(world.reservation("n", "g").is_some(), "nobody was there to tidy up");
    world.start(&[]);
    world
        .until("done", |world| {
            world.is_bound("q") && world.reservation("n", "g").is_none()
        })
        .await;
    assert_eq!(world.reservations().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reservation_that_ended_while_nobody_looked_is_removed() {
    let mut world = World::new();
    world.node("n", 1);
    world.kubelets.lock().unwrap().dead.insert("n".to_owned());
    world.share("p", "n", &["g"], 50);
    world.start(&[]);
    world
        .until("half way", |world| world.reservation("n", "g").is_some())
        .await;
    world.stop();
    {
        let mut kubelets = world.kubelets.lock().unwrap();
        kubelets.gpus_of("n", 0);
        kubelets.dead.clear();
    }
    let rejected = |world: &World| world.reservation("n", "g").unwrap()["status"]["phase"] == "Failed";
    world.until("rejected", rejected).await;
    world.delete("pods", NS, "p");
    world.start(&[]);
    world
        .until("nothing is left", |world| world.reservations().is_empty())
        .await;
}
