//! Another scheduler without support for shared GPUs: it preempts a reservation pod like any pod with a GPU.

use std::time::Duration;

use serde_json::Value;

use crate::harness::Cluster;
use crate::harness::manifest::PodManifest;

pub(crate) const NAME: &str = "another-scheduler";
const RESERVATIONS: &str = kai_api::keys::RESERVATION;
/// How long the scheduler waits for its victim to end.
const PATIENCE: Duration = Duration::from_secs(5);
const GLANCE: Duration = Duration::from_millis(50);

/// The scheduler, with the pods that it placed.
#[derive(Debug, Default)]
pub(crate) struct OtherScheduler {
    placed: Vec<String>,
}

impl OtherScheduler {
    /// Deletes the reservation pod, waits for its end as schedulers do, and binds a pod of its own with one GPU to that node. Returns
    /// the name of the new pod.
    pub(crate) async fn preempt(&mut self, cluster: &Cluster, victim: &str) -> Option<String> {
        let reservation = reservation(cluster, victim)?;
        let node = reservation.node_name()?.to_owned();
        cluster.delete::<kai_api::Pod>(RESERVATIONS, victim).await.ok()?;
        let gone = async {
            let uid = reservation.metadata.uid.clone();
            while self::reservation(cluster, victim).is_some_and(|now| now.metadata.uid == uid) {
                tokio::time::sleep(GLANCE).await;
            }
        };
        // A kubelet without heartbeat never confirms the end of a pod.
        tokio::time::timeout(PATIENCE, gone).await.ok()?;
        let name = format!("other-{}", self.placed.len());
        cluster.try_create(pod(&name, &node)).await.ok()?;
        self.placed.push(name.clone());
        Some(name)
    }

    /// Deletes the pods that the scheduler placed.
    pub(crate) async fn leave(&mut self, cluster: &Cluster) {
        for name in self.placed.drain(..) {
            let _ = cluster.delete::<kai_api::Pod>("default", &name).await;
        }
    }
}

fn reservation(cluster: &Cluster, name: &str) -> Option<std::sync::Arc<kai_api::Pod>> {
    let key = kai_api::ObjectKey::new(RESERVATIONS, name);
    cluster.informers().pods().get(&key)
}

fn pod(name: &str, node: &str) -> Value {
    let mut pod = PodManifest::new(name).scheduler(NAME).gpus(1).build();
    pod["spec"]["nodeName"] = node.into();
    pod
}
