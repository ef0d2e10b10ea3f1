//! Incidents by name: each occurred once and must stay fixed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kai_embedded::kubelet::NodeTemplate;
use kai_embedded::server::{DeleteOptions, Fault, Faults, Patch, RequestInfo, Selector, StoreHandle, WatchFault};
use serde_json::{Value, json};

use crate::harness::manifest::{PodManifest, queue};
use crate::harness::{Choice, Cluster, scenario};
use crate::injector::{FaultInjector, Rates};
use crate::processes::{Layout, Processes};

const RESERVATIONS: &str = kai_api::keys::RESERVATION;

pub(crate) fn half(name: &str) -> Value {
    PodManifest::new(name).fraction("0.5").build()
}

pub(crate) fn store(cluster: &Cluster) -> StoreHandle {
    cluster.server().expect("these are about the embedded server").store()
}

/// The names of all reservation pods.
pub(crate) fn reservations(cluster: &Cluster) -> Vec<Value> {
    let page = store(cluster).list("pods", RESERVATIONS, &Selector::everything());
    page.unwrap().objects.iter().map(|object| object.to_value()).collect()
}

pub(crate) fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

/// Lets virtual time pass.
pub(crate) async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// Delays the roles' watches of pods, and counts the pod groups that are created.
#[derive(Default)]
struct LateNewsOfPods {
    groups_made: AtomicU64,
}

impl Faults for LateNewsOfPods {
    fn request(&self, request: &RequestInfo) -> Fault {
        if request.verb == "create" && request.resource == "podgroups" {
            self.groups_made.fetch_add(1, Ordering::Relaxed);
            // The delay is virtual time.
            return Fault::Delay(Duration::from_millis(10));
        }
        Fault::Pass
    }

    fn watch(&self, watch: &RequestInfo, _: u64) -> WatchFault {
        match watch.resource == "pods" && watch.user.ends_with(":kai") {
            true => WatchFault::Lag(Duration::from_secs(5)),
            false => WatchFault::Pass,
        }
    }
}

#[test]
fn the_group_of_a_pod_that_is_gone_is_not_made_again_and_again() {
    scenario(&[NodeTemplate::new("node", "h100:1")], async |cluster| {
        cluster.create(PodManifest::new("brief").gpus(64).build()).await;
        cluster.until_waiting("brief", "GPU").await;
        let late = Arc::new(LateNewsOfPods::default());
        let server = cluster.server().unwrap();
        server.set_faults(Arc::clone(&late) as Arc<dyn Faults>);
        cluster.delete::<kai_api::Pod>("default", "brief").await.unwrap();
        cluster.settle().await;
        assert!(late.groups_made.load(Ordering::Relaxed) <= 1);
    });
}

#[test]
fn odd_fractions_are_refused_or_wait_and_harm_nobody() {
    scenario(&[NodeTemplate::new("node", "h100:1")], async |cluster| {
        for (number, odd) in ["NaN", "inf", "-1", "1e400", "1e-300", "99999999999999999999"]
            .iter()
            .enumerate()
        {
            let pod = PodManifest::new(&format!("odd-{number}")).fraction(odd).build();
            let _ = cluster.try_create(pod).await;
        }
        for name in ["half-a", "half-b"] {
            cluster.create(PodManifest::new(name).fraction("0.5").build()).await;
        }
        cluster.until_only_running(&["half-a", "half-b"]).await;
    });
}

#[test]
fn a_bind_that_is_refused_for_ever_starves_nobody_and_is_never_called_bound() {
    scenario(&[NodeTemplate::new("node", "h100:2")], async |cluster| {
        let tried = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&tried);
        cluster
            .server()
            .unwrap()
            .set_faults(Arc::new(move |request: &RequestInfo| {
                let doomed = request.subresource == "binding" && request.name == "doomed";
                if doomed {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                if doomed { Fault::Fail(403) } else { Fault::Pass }
            }));
        cluster.create(half("doomed")).await;
        let is_tried = |_: &Cluster| tried.load(Ordering::Relaxed) > 0;
        cluster.until("its binding is tried", is_tried).await;
        for name in ["a", "b", "c"] {
            cluster.create(half(name)).await;
        }
        cluster.create(PodManifest::new("plain").build()).await;
        cluster.until_only_running(&["a", "b", "c", "plain"]).await;
        pass(300).await;
        assert!(tried.load(Ordering::Relaxed) > 1, "it is tried again, but");
        assert!(tried.load(Ordering::Relaxed) < 60, "not without pauses");
        assert!(cluster.reason("doomed").is_some(), "it says that it waits");
        let events = store(cluster).list("events", "default", &Selector::everything());
        for event in events.unwrap().objects {
            let about = &event["involvedObject"]["name"];
            assert!(about != "doomed" || event["reason"] != "Bound", "{event:?}");
        }
        cluster.delete::<kai_api::Pod>("default", "doomed").await.unwrap();
    });
}

#[test]
fn a_reservation_that_is_deleted_while_a_bind_is_in_flight_under_cache_lag_harms_nobody() {
    scenario(&[NodeTemplate::new("node", "h100:2")], async |cluster| {
        let late = Arc::new(LateNewsOfPods::default());
        cluster.server().unwrap().set_faults(late);
        cluster.create(half("a")).await;
        cluster
            .until("a GPU is being reserved", |cluster| !reservations(cluster).is_empty())
            .await;
        let lost = &reservations(cluster)[0];
        store(cluster)
            .delete("pods", RESERVATIONS, name_of(lost), &DeleteOptions::now())
            .unwrap();
        cluster.create(half("b")).await;
        cluster.until_only_running(&["a", "b"]).await;
        cluster
            .until("one GPU is held", |cluster| reservations(cluster).len() == 1)
            .await;
        // The status controllers see pods late, so the cluster looks stable before they have written.
        cluster
            .until("the queues know of both pods", |cluster| {
                let queues = cluster.informers().queues().all();
                let used = |queue: &kai_api::Queue| queue.status().allocated.get(kai_api::keys::RESOURCE_GPU).cloned();
                queues
                    .iter()
                    .all(|queue| used(queue).is_some_and(|gpus| gpus.as_str() == "1"))
            })
            .await;
    });
}

#[test]
fn a_reservation_that_is_lost_under_running_pods_comes_back_and_kills_nobody() {
    scenario(&[NodeTemplate::new("node", "h100:2")], async |cluster| {
        cluster.create(half("a")).await;
        cluster.create(half("b")).await;
        cluster.until_only_running(&["a", "b"]).await;
        let before = reservations(cluster);
        cluster
            .delete::<kai_api::Pod>(RESERVATIONS, name_of(&before[0]))
            .await
            .unwrap();
        cluster
            .until("another reservation", |cluster| {
                let now = reservations(cluster);
                now.len() == 1 && now[0]["metadata"]["uid"] != before[0]["metadata"]["uid"]
            })
            .await;
        cluster.until_only_running(&["a", "b"]).await;
        let gpu = |of: &Value| of["metadata"]["annotations"][kai_api::keys::RESERVED_GPU].clone();
        let same = |cluster: &Cluster| reservations(cluster).iter().any(|now| gpu(now) == gpu(&before[0]));
        cluster.until("it holds the same GPU", same).await;
    });
}

/// Every other creation of a reservation pod takes effect and loses its answer.
struct LossyReservations(AtomicU64);

impl Faults for LossyReservations {
    fn request(&self, request: &RequestInfo) -> Fault {
        let reserves = request.verb == "create" && request.resource == "pods" && request.namespace == RESERVATIONS;
        match reserves && self.0.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            true => Fault::DropResponse,
            false => Fault::Pass,
        }
    }
}

#[test]
fn two_binders_and_lost_answers_make_one_reservation_for_a_group() {
    apart(&[NodeTemplate::new("node", "h100:2")], async |cluster, processes, _| {
        processes.double(BINDER).await;
        let faults = Arc::new(LossyReservations(AtomicU64::new(0)));
        cluster.server().unwrap().set_faults(faults);
        for name in ["a", "b", "c", "d"] {
            cluster.create(half(name)).await;
        }
        cluster
            .until("all run, and no group is held twice", |cluster| {
                let mut groups: Vec<Value> = reservations(cluster)
                    .iter()
                    .map(|pod| pod["metadata"]["labels"][kai_api::keys::GPU_GROUP].clone())
                    .collect();
                let count = groups.len();
                groups.sort_by_key(Value::to_string);
                groups.dedup();
                assert_eq!(groups.len(), count, "{}", cluster.picture());
                cluster.running().len() == 4
            })
            .await;
        assert_eq!(reservations(cluster).len(), 2);
        processes.kill_doubles().await;
    });
}

#[test]
fn a_reservation_that_never_ends_terminating_blocks_its_gpu_alone() {
    scenario(&[NodeTemplate::new("node", "h100:2")], async |cluster| {
        cluster.create(half("a")).await;
        cluster.until_only_running(&["a"]).await;
        let stuck = name_of(&reservations(cluster)[0]).to_owned();
        let finalizers = |names: Value| Patch::Merge(json!({ "metadata": { "finalizers": names } }));
        let patch = |names: Value| store(cluster).patch("pods", RESERVATIONS, &stuck, &finalizers(names));
        patch(json!(["example.com/stuck"])).unwrap();
        cluster.delete::<kai_api::Pod>("default", "a").await.unwrap();
        cluster
            .until("the reservation is on its way out", |cluster| {
                let now = reservations(cluster);
                now.iter().any(|pod| !pod["metadata"]["deletionTimestamp"].is_null())
            })
            .await;
        for name in ["b", "c"] {
            cluster.create(half(name)).await;
        }
        cluster.create(PodManifest::new("plain").build()).await;
        cluster.until_only_running(&["b", "c", "plain"]).await;
        patch(Value::Null).unwrap();
        cluster.create(PodManifest::new("whole").gpus(1).build()).await;
        cluster.until_only_running(&["b", "c", "plain", "whole"]).await;
    });
}

/// Every third write of a status takes effect and loses its answer, and the next one fails.
#[derive(Default)]
struct LossyStatuses(AtomicU64);

impl Faults for LossyStatuses {
    fn request(&self, request: &RequestInfo) -> Fault {
        if request.subresource != "status" || !request.user.ends_with(":kai") {
            return Fault::Pass;
        }
        match self.0.fetch_add(1, Ordering::Relaxed) % 3 {
            0 => Fault::DropResponse,
            1 => Fault::Fail(500),
            _ => Fault::Pass,
        }
    }
}

#[test]
fn the_status_of_queues_does_not_drift() {
    scenario(&[NodeTemplate::new("node", "h100:4")], async |cluster| {
        cluster.create(queue("team", None, 4.0, -1.0)).await;
        cluster.create(queue("red", Some("team"), 2.0, -1.0)).await;
        cluster.server().unwrap().set_faults(Arc::new(LossyStatuses::default()));
        for round in 0..6 {
            let name = |pod: u32| format!("p{round}-{pod}");
            cluster
                .create(PodManifest::new(&name(0)).queue("red").gpus(1).build())
                .await;
            let share = PodManifest::new(&name(1)).queue("red").fraction("0.5");
            cluster.create(share.build()).await;
            cluster.until_running(2).await;
            if round % 2 == 0 {
                cluster.kill_roles().await;
                cluster.start_roles();
            }
            for pod in 0..2 {
                cluster.delete::<kai_api::Pod>("default", &name(pod)).await.unwrap();
            }
            cluster.until_running(0).await;
        }
        // The sums of queues are an invariant of a stable cluster.
        pass(60).await;
    });
}

#[test]
fn a_revoked_token_costs_what_its_role_would_have_done_meanwhile_and_nothing_else() {
    apart(&[NodeTemplate::new("node", "h100:8")], async |cluster, _, injector| {
        for (number, account) in ["scheduler", "binder", "controllers", "admission"]
            .into_iter()
            .enumerate()
        {
            let before = cluster.running();
            injector.set_revoked(account, true);
            pass(30).await;
            cluster.create(half(&format!("during-{account}"))).await;
            pass(60).await;
            let lost: Vec<&String> = before.iter().filter(|pod| !cluster.runs(pod)).collect();
            assert!(lost.is_empty(), "{account}: {lost:?}");
            injector.set_revoked(account, false);
            cluster.create(half(&format!("after-{account}"))).await;
            cluster.until_running(2 * (number + 1)).await;
        }
    });
}

/// The index of the binder among the processes of [`Layout::Apart`].
const BINDER: u64 = 1;

/// Runs a scenario on a cluster with one process and account per role.
fn apart(nodes: &[NodeTemplate], story: impl AsyncFnOnce(&Cluster, &mut Processes, &FaultInjector)) {
    let choice = Choice::Embedded;
    choice.runtime().block_on(async {
        let cluster = Cluster::without_roles(choice.start().await, nodes).await;
        let injector = Arc::new(FaultInjector::new(0, Rates::NONE, cluster.pods_to_leave(), false));
        let server = cluster.server().unwrap();
        server.set_faults(Arc::clone(&injector) as Arc<dyn Faults>);
        let mut processes = Processes::start(server, cluster.clock(), Layout::Apart, &injector);
        cluster.until_installed().await;
        story(&cluster, &mut processes, &injector).await;
        cluster.settle().await;
        let found = cluster.found_when_settled().into_iter();
        let found: Vec<String> = found.chain(processes.ended()).collect();
        assert!(found.is_empty(), "{}\n{}", found.join("\n"), cluster.picture());
    });
}
