//! Another scheduler, which knows nothing of GPUs that pods share: to it a reservation pod is a pod with a GPU that can be preempted.

use std::time::Duration;

use serde_json::Value;

use crate::harness::Cluster;
use crate::harness::manifest::PodManifest;

pub(crate) const NAME: &str = "another-scheduler";
const RESERVATIONS: &str = kai_api::keys::RESERVATION;
/// It waits so long for its victim to go.
const PATIENCE: Duration = Duration::from_secs(5);
const GLANCE: Duration = Duration::from_millis(50);

/// The pods that it placed.
#[derive(Debug, Default)]
pub(crate) struct OtherScheduler {
    placed: Vec<String>,
}

impl OtherScheduler {
    /// Ends the reservation pod, waits until it is gone as schedulers do, and binds a pod of its own with one GPU to that node. Answers
    /// with the name of the pod.
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
        // A kubelet that is silent confirms nothing.
        tokio::time::timeout(PATIENCE, gone).await.ok()?;
        let name = format!("other-{}", self.placed.len());
        cluster.try_create(pod(&name, &node)).await.ok()?;
        self.placed.push(name.clone());
        Some(name)
    }

    /// Its pods end.
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
