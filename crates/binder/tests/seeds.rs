//! Random runs of a small cluster with a faulty API: calls fail or lose their response, watches lag and break, binders are killed,
//! reservation pods are deleted, pods come and go. No GPU is overcommitted at any time. When the faults stop, every reservation pod has a
//! user and every user a reservation pod. `KAI_BINDER_SEEDS=1000` runs more seeds, `KAI_BINDER_SEED=7` replays one.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests too.

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kai_embedded::server::{Fault, Faults, RequestInfo, WatchFault};
use parking_lot::Mutex;
use serde_json::json;
use support::{NS, RESERVATIONS, TestCluster};

const SEEDS: u64 = 3;
const STEPS: u64 = 60;
const GROUPS_MAX: u64 = 4;

/// Splitmix64.
struct Dice(AtomicU64);

impl Dice {
    fn roll(&self, sides: u64) -> u64 {
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

/// One call in twelve fails or is delayed.
struct FaultInjector(Mutex<Option<Dice>>);

impl Faults for FaultInjector {
    fn request(&self, request: &RequestInfo) -> Fault {
        match &*self.0.lock() {
            Some(_) if request.verb == "watch" => Fault::Pass,
            Some(dice) => match dice.roll(48) {
                0 => Fault::Fail(500),
                1 => Fault::Fail(409),
                2 => Fault::DropResponse,
                3 => Fault::Delay(Duration::from_millis(300)),
                _ => Fault::Pass,
            },
            None => Fault::Pass,
        }
    }

    fn watch(&self, _: &RequestInfo, _: u64) -> WatchFault {
        match &*self.0.lock() {
            Some(dice) => match dice.roll(40) {
                0 => WatchFault::End,
                1 => WatchFault::Gone,
                2..=5 => WatchFault::Lag(Duration::from_secs(dice.roll(5))),
                _ => WatchFault::Pass,
            },
            None => WatchFault::Pass,
        }
    }
}

/// A simple scheduler: deletes failed BindRequests, and gives each pending pod a random group, whether it fits or not.
fn schedule(cluster: &TestCluster, dice: &Dice) {
    for request in cluster.all("bindrequests.scheduling.run.ai") {
        let name = request["metadata"]["name"].as_str().unwrap();
        if request["status"]["phase"] == "Failed" {
            cluster.delete("bindrequests.scheduling.run.ai", NS, name);
        }
    }
    for pod in cluster.all("pods") {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let waits = pod["metadata"]["namespace"] == NS && pod["spec"]["nodeName"].is_null();
        if waits && cluster.get("bindrequests.scheduling.run.ai", NS, name).is_none() {
            let share = json!({
                "receivedResourceType": "Fraction", "selectedGPUGroups": [format!("g{}", dice.roll(GROUPS_MAX))],
                "receivedGPU": { "count": 1, "portion": pod["metadata"]["annotations"]["gpu-fraction"] },
            });
            cluster.request(&pod, "n", share);
        }
    }
}

fn apply_random_event(cluster: &mut TestCluster, dice: &Dice, step: u64) {
    match dice.roll(12) {
        0..=5 => drop(cluster.pod(
            &format!("p{step}"),
            json!({ "gpu-fraction": format!("0.{}0", 1 + dice.roll(6)) }),
        )),
        6..=8 => {
            let pods = cluster.all("pods");
            let own: Vec<_> = pods.iter().filter(|pod| pod["metadata"]["namespace"] == NS).collect();
            if !own.is_empty() {
                let at = usize::try_from(dice.roll(own.len() as u64)).unwrap();
                cluster.delete("pods", NS, own[at]["metadata"]["name"].as_str().unwrap());
            }
        }
        9 => {
            cluster.stop();
            cluster.start(&[]);
        }
        10 => {
            if let Some(lost) = cluster.reservations().first() {
                cluster.delete("pods", RESERVATIONS, lost["metadata"]["name"].as_str().unwrap());
            }
        }
        _ => {}
    }
    schedule(cluster, dice);
}

/// Groups with bound pods, and groups with a reservation pod.
fn used_and_reserved_groups(cluster: &TestCluster) -> (BTreeSet<String>, BTreeSet<String>) {
    let of = |reservations: bool| {
        let pods = cluster.all("pods").into_iter().filter(|pod| {
            (pod["metadata"]["namespace"] == RESERVATIONS) == reservations && !pod["spec"]["nodeName"].is_null()
        });
        pods.map(|pod| pod["metadata"]["labels"]["runai-gpu-group"].to_string())
            .collect()
    };
    (of(false), of(true))
}

async fn run_seed(seed: u64) {
    let mut cluster = TestCluster::new();
    cluster.node("n", usize::try_from(GROUPS_MAX).unwrap());
    let dice = Dice(AtomicU64::new(seed));
    let injector = Arc::new(FaultInjector(Mutex::new(Some(Dice(AtomicU64::new(seed ^ 0xabcd))))));
    cluster.server.set_faults(Arc::clone(&injector) as Arc<dyn Faults>);
    cluster.start(&["--resource-reservation-allocation-timeout=5"]);
    for step in 0..STEPS {
        apply_random_event(&mut cluster, &dice, step);
        tokio::time::sleep(Duration::from_millis(100 + dice.roll(3000))).await;
        cluster.assert_no_violations();
    }
    *injector.0.lock() = None;
    for _ in 0..20 {
        schedule(&cluster, &dice);
        cluster.sleep(10).await;
    }
    // No further BindRequests are created; the existing ones end.
    let closed = |cluster: &TestCluster| {
        let requests = cluster.all("bindrequests.scheduling.run.ai");
        requests.iter().all(|request| !request["status"]["phase"].is_null())
    };
    cluster.until("all requests are closed", closed).await;
    let even = |cluster: &TestCluster| {
        let (used, held) = used_and_reserved_groups(cluster);
        used == held
    };
    cluster.until("groups in use are groups held", even).await;
    cluster.sleep(200).await;
    cluster.until("and stay so", even).await;
    cluster.assert_no_violations();
    for pod in cluster
        .all("pods")
        .iter()
        .filter(|pod| pod["metadata"]["namespace"] == NS)
    {
        let labelled = !pod["metadata"]["labels"]["runai-gpu-group"].is_null();
        assert_eq!(
            labelled,
            !pod["spec"]["nodeName"].is_null(),
            "seed {seed}: {}",
            pod["metadata"]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn random_lives_keep_the_laws() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("KAI_BINDER_SEED") {
        return run_seed(seed).await;
    }
    for seed in 0..number("KAI_BINDER_SEEDS").unwrap_or(SEEDS) {
        println!("seed {seed}");
        run_seed(seed).await;
    }
}
