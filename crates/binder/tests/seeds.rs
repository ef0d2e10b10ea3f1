//! Random lives of a small cluster with a faulty API: calls fail or lose their answer, watches lag and break, binders are killed,
//! reservations vanish, pods come and go. At no moment is a GPU promised twice; when the faults stop, every reservation has a user and
//! every user a reservation. `KAI_BINDER_SEEDS=1000` runs more, `KAI_BINDER_SEED=7` replays one.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests too.

mod support;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kai_embedded::server::{Fault, Faults, RequestInfo, WatchFault};
use serde_json::json;
use support::{NS, RESERVATIONS, World};

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

/// One call in twelve goes wrong.
struct Trouble(Mutex<Option<Dice>>);

impl Faults for Trouble {
    fn request(&self, request: &RequestInfo) -> Fault {
        match &*self.0.lock().unwrap() {
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
        match &*self.0.lock().unwrap() {
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

/// A scheduler of sorts: a request that failed for good goes, and the pod is decided anew, knowing nothing of room.
fn decide(world: &World, dice: &Dice) {
    for request in world.all("bindrequests.scheduling.run.ai") {
        let name = request["metadata"]["name"].as_str().unwrap();
        if request["status"]["phase"] == "Failed" {
            world.delete("bindrequests.scheduling.run.ai", NS, name);
        }
    }
    for pod in world.all("pods") {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let waits = pod["metadata"]["namespace"] == NS && pod["spec"]["nodeName"].is_null();
        if waits && world.get("bindrequests.scheduling.run.ai", NS, name).is_none() {
            let share = json!({
                "receivedResourceType": "Fraction", "selectedGPUGroups": [format!("g{}", dice.roll(GROUPS_MAX))],
                "receivedGPU": { "count": 1, "portion": pod["metadata"]["annotations"]["gpu-fraction"] },
            });
            world.request(&pod, "n", share);
        }
    }
}

fn happen(world: &mut World, dice: &Dice, step: u64) {
    match dice.roll(12) {
        0..=5 => drop(world.pod(
            &format!("p{step}"),
            json!({ "gpu-fraction": format!("0.{}0", 1 + dice.roll(6)) }),
        )),
        6..=8 => {
            let pods = world.all("pods");
            let own: Vec<_> = pods.iter().filter(|pod| pod["metadata"]["namespace"] == NS).collect();
            if !own.is_empty() {
                let at = usize::try_from(dice.roll(own.len() as u64)).unwrap();
                world.delete("pods", NS, own[at]["metadata"]["name"].as_str().unwrap());
            }
        }
        9 => {
            world.stop();
            world.start(&[]);
        }
        10 => {
            if let Some(lost) = world.reservations().first() {
                world.delete("pods", RESERVATIONS, lost["metadata"]["name"].as_str().unwrap());
            }
        }
        _ => {}
    }
    decide(world, dice);
}

/// Groups that are used and groups that are held.
fn groups(world: &World) -> (BTreeSet<String>, BTreeSet<String>) {
    let of = |reservations: bool| {
        let pods = world.all("pods").into_iter().filter(|pod| {
            (pod["metadata"]["namespace"] == RESERVATIONS) == reservations && !pod["spec"]["nodeName"].is_null()
        });
        pods.map(|pod| pod["metadata"]["labels"]["runai-gpu-group"].to_string())
            .collect()
    };
    (of(false), of(true))
}

async fn live(seed: u64) {
    let mut world = World::new();
    world.node("n", usize::try_from(GROUPS_MAX).unwrap());
    let dice = Dice(AtomicU64::new(seed));
    let trouble = Arc::new(Trouble(Mutex::new(Some(Dice(AtomicU64::new(seed ^ 0xabcd))))));
    world.server.set_faults(Arc::clone(&trouble) as Arc<dyn Faults>);
    world.start(&["--resource-reservation-allocation-timeout=5"]);
    for step in 0..STEPS {
        happen(&mut world, &dice, step);
        tokio::time::sleep(Duration::from_millis(100 + dice.roll(3000))).await;
        world.assert_sound();
    }
    *trouble.0.lock().unwrap() = None;
    for _ in 0..20 {
        decide(&world, &dice);
        world.pass(10).await;
    }
    // Nothing is decided any more; what is open ends.
    let closed = |world: &World| {
        let requests = world.all("bindrequests.scheduling.run.ai");
        requests.iter().all(|request| !request["status"]["phase"].is_null())
    };
    world.until("all requests are closed", closed).await;
    let even = |world: &World| {
        let (used, held) = groups(world);
        used == held
    };
    world.until("groups in use are groups held", even).await;
    world.pass(200).await;
    world.until("and stay so", even).await;
    world.assert_sound();
    for pod in world
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
        return live(seed).await;
    }
    for seed in 0..number("KAI_BINDER_SEEDS").unwrap_or(SEEDS) {
        println!("seed {seed}");
        live(seed).await;
    }
}
