//! Incidents, by name: what was found once stays fixed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sim::kubelet::NodeTemplate;
use sim::server::{Fault, Faults, RequestInfo, WatchFault};

use crate::harness::manifest::PodManifest;
use crate::harness::scenario;

/// Roles hear of pods late; groups that are made are counted.
#[derive(Default)]
struct LateNewsOfPods {
    groups_made: AtomicU64,
}

impl Faults for LateNewsOfPods {
    fn request(&self, request: &RequestInfo) -> Fault {
        if request.verb == "create" && request.resource == "podgroups" {
            self.groups_made.fetch_add(1, Ordering::Relaxed);
            // Time goes on even if this never ends.
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
        cluster.delete::<api::Pod>("default", "brief").await.unwrap();
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
