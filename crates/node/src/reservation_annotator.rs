//! Annotates the reservation pods of this node with the UUID of the GPU that the kubelet gave them, so that the pods themselves need no
//! driver, no device access and no token. Asks the kubelet's pod-resources API only while a reservation pod waits for its annotation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use kai_api::keys::RESERVATION_WANTED_GPU;
use kai_cluster::{Client, PodChange, PodMeta};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_stream::StreamExt;

use crate::allocator::plan::device_uuid;
use crate::podresources::{self, DeviceAllocation};

/// The annotation that the binder waits for. KAI's name for it says index; the value is the UUID.
pub const ANNOTATION: &str = kai_api::keys::RESERVED_GPU;

/// How long the GPU of a deleted reservation pod is kept for its successor. The binder creates a successor that is needed within this time.
const RELEASED_SECONDS_MAX: Duration = Duration::from_secs(60);

/// Receives the hints for GetPreferredAllocation.
pub type HintsReceiver = watch::Receiver<AllocationHints>;

/// GPUs that GetPreferredAllocation treats specially. The annotator publishes them, the device plugins read them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllocationHints {
    /// UUIDs of GPUs that recreated reservation pods should get, because pods that share these GPUs still run.
    pub wanted_gpus: BTreeSet<String>,
    /// GPUs whose reservation pod was deleted a moment ago.
    pub released_gpus: ReleasedGpus,
}

/// UUIDs of GPUs whose reservation pod was deleted, with the time of the deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReleasedGpus(BTreeMap<String, Instant>);

impl ReleasedGpus {
    /// Records that the reservation pod which held this GPU was deleted.
    pub fn add(&mut self, gpu: String, now: Instant) {
        self.0.retain(|_, at| now.duration_since(*at) < RELEASED_SECONDS_MAX);
        self.0.insert(gpu, now);
    }

    /// Records that a reservation pod holds this GPU again.
    pub fn remove(&mut self, gpu: &str) {
        self.0.remove(gpu);
    }

    /// The GPUs that were released less than a minute ago.
    pub fn recent(&self, now: Instant) -> BTreeSet<String> {
        let lately = self
            .0
            .iter()
            .filter(|(_, at)| now.duration_since(**at) < RELEASED_SECONDS_MAX);
        lately.map(|(gpu, _)| gpu.clone()).collect()
    }
}

/// What the annotator needs to know about its node.
#[derive(Debug, Clone)]
pub struct AnnotatorConfig {
    /// Namespace of reservation pods.
    pub namespace: String,
    /// This node.
    pub node: String,
    /// The kubelet's pod-resources socket.
    pub pod_resources: PathBuf,
    /// Pause between two calls of the pod-resources API while a pod waits.
    pub pace: Duration,
}

/// The reservation pods of this node, by name.
#[derive(Debug, Default)]
struct ReservationPods {
    by_name: BTreeMap<String, PodMeta>,
    /// Names whose pod was replaced by another pod, with the GPU that the kubelet listed last: the kubelet may still list the old pod's
    /// device.
    replaced: BTreeMap<String, Option<String>>,
    released_gpus: ReleasedGpus,
}

impl ReservationPods {
    fn apply(&mut self, change: PodChange) {
        match change {
            // Names stay known, so that a pod which was replaced while the watch was interrupted is recognised as a replacement.
            PodChange::Restarted => {}
            PodChange::Seen(pod) => {
                if let Some(gpu) = pod.annotations.get(ANNOTATION) {
                    self.released_gpus.remove(gpu);
                }
                let before = self.by_name.insert(pod.name.clone(), pod.clone());
                if before.is_some_and(|before| before.uid != pod.uid) {
                    self.replaced.insert(pod.name, None);
                }
            }
            PodChange::Gone(name) => {
                // The entry stays: the next pod of this name is a replacement.
                if let Some(pod) = self.by_name.get_mut(&name) {
                    if let Some(gpu) = pod.annotations.get(ANNOTATION).filter(|gpu| !gpu.is_empty()) {
                        self.released_gpus.add(gpu.clone(), Instant::now());
                    }
                    if pod.annotations.get(ANNOTATION) == pod.annotations.get(RESERVATION_WANTED_GPU) {
                        pod.annotations.remove(RESERVATION_WANTED_GPU);
                    }
                    pod.annotations.insert(ANNOTATION.to_owned(), String::new());
                    pod.uid.clear();
                }
            }
        }
    }

    fn waiting(&self) -> impl Iterator<Item = &PodMeta> {
        self.by_name
            .values()
            .filter(|pod| !pod.annotations.contains_key(ANNOTATION))
    }

    /// UUIDs that reservation pods should get and have not got. The binder deletes and recreates a reservation pod that got another GPU;
    /// the entry of the deleted pod stays, so that the hint is there before the kubelet allocates a device for its successor.
    fn wanted_gpus(&self) -> BTreeSet<String> {
        let wanting = self
            .by_name
            .values()
            .filter_map(|pod| Some((pod, pod.annotations.get(RESERVATION_WANTED_GPU)?)));
        wanting
            .filter(|(pod, wanted)| pod.annotations.get(ANNOTATION) != Some(wanted))
            .map(|(_, wanted)| wanted.clone())
            .collect()
    }

    fn hints(&self) -> AllocationHints {
        AllocationHints {
            wanted_gpus: self.wanted_gpus(),
            released_gpus: self.released_gpus.clone(),
        }
    }

    /// The pods that can be annotated, with their GPUs. For a replaced pod the kubelet must list the same device twice.
    fn plan_annotations(&mut self, namespace: &str, allocations: &[DeviceAllocation]) -> Vec<(PodMeta, String)> {
        let mut decided = Vec::new();
        let waiting: Vec<PodMeta> = self.waiting().cloned().collect();
        for pod in waiting {
            let own = allocations
                .iter()
                .filter(|allocation| allocation.namespace == namespace && allocation.pod == pod.name);
            let gpus: BTreeSet<&str> = own
                .flat_map(|allocation| allocation.device_ids.iter().map(|id| device_uuid(id)))
                .collect();
            let [gpu] = gpus.into_iter().collect::<Vec<_>>()[..] else {
                continue;
            };
            match self.replaced.get_mut(&pod.name) {
                Some(seen) if seen.as_deref() != Some(gpu) => *seen = Some(gpu.to_owned()),
                Some(_) | None => decided.push((pod, gpu.to_owned())),
            }
        }
        decided
    }

    fn annotated(&mut self, name: &str, gpu: &str) {
        self.released_gpus.remove(gpu);
        self.replaced.remove(name);
        if let Some(pod) = self.by_name.get_mut(name) {
            pod.annotations.insert(ANNOTATION.to_owned(), gpu.to_owned());
        }
    }
}

/// Watches the reservation pods and annotates them until the agent stops.
pub async fn run(client: Client, config: AnnotatorConfig, hints: watch::Sender<AllocationHints>) {
    let mut changes = pin!(client.watch_pods(&config.namespace, &config.node));
    let mut pods = ReservationPods::default();
    loop {
        let now = pods.hints();
        hints.send_if_modified(|known| std::mem::replace(known, now.clone()) != now);
        let anyone_waits = pods.waiting().next().is_some();
        tokio::select! {
            change = changes.next() => match change {
                Some(change) => pods.apply(change),
                None => return,
            },
            () = tokio::time::sleep(config.pace), if anyone_waits => annotate_waiting_pods(&client, &config, &mut pods).await,
        }
    }
}

async fn annotate_waiting_pods(client: &Client, config: &AnnotatorConfig, pods: &mut ReservationPods) {
    let allocations = match podresources::list(&config.pod_resources).await {
        Ok(allocations) => allocations,
        Err(error) => {
            tracing::warn!(%error, "a reservation pod waits for its annotation, but the kubelet does not list its devices");
            return;
        }
    };
    for (pod, gpu) in pods.plan_annotations(&config.namespace, &allocations) {
        match client.annotate_pod(&config.namespace, &pod, ANNOTATION, &gpu).await {
            Ok(()) => {
                tracing::info!(pod = pod.name, gpu, "wrote the GPU of a reservation pod");
                pods.annotated(&pod.name, &gpu);
            }
            Err(error) => tracing::warn!(pod = pod.name, %error, "could not annotate a reservation pod; trying again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NS: &str = "kai-resource-reservation";

    fn pod(name: &str, uid: &str) -> PodChange {
        PodChange::Seen(PodMeta {
            name: name.into(),
            uid: uid.into(),
            annotations: BTreeMap::new(),
        })
    }

    fn held(pod: &str, ids: &[&str]) -> DeviceAllocation {
        DeviceAllocation {
            namespace: NS.into(),
            pod: pod.into(),
            container: "resource-reservation".into(),
            resource: "nvidia.com/gpu".into(),
            device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        }
    }

    fn decide(pods: &mut ReservationPods, allocations: &[DeviceAllocation]) -> Vec<(String, String)> {
        pods.plan_annotations(NS, allocations)
            .into_iter()
            .map(|(pod, gpu)| (pod.name, gpu))
            .collect()
    }

    #[test]
    fn a_waiting_pod_gets_the_uuid_of_its_device() {
        let mut pods = ReservationPods::default();
        pods.apply(pod("a", "1"));
        assert!(decide(&mut pods, &[]).is_empty(), "not admitted yet");
        assert!(
            decide(&mut pods, &[held("a", &["GPU-1", "GPU-2"])]).is_empty(),
            "ambiguous"
        );
        assert_eq!(
            decide(&mut pods, &[held("a", &["GPU-1::3"])]),
            [("a".to_owned(), "GPU-1".to_owned())]
        );
        pods.annotated("a", "GPU-1");
        assert!(decide(&mut pods, &[held("a", &["GPU-1::3"])]).is_empty());
    }

    #[test]
    fn a_wish_lasts_until_it_is_granted() {
        let mut pods = ReservationPods::default();
        let anew = |uid: &str| {
            PodChange::Seen(PodMeta {
                name: "a".into(),
                uid: uid.into(),
                annotations: BTreeMap::from([(RESERVATION_WANTED_GPU.to_owned(), "GPU-2".to_owned())]),
            })
        };
        let wish = BTreeSet::from(["GPU-2".to_owned()]);
        pods.apply(anew("1"));
        assert_eq!(pods.wanted_gpus(), wish);
        pods.annotated("a", "GPU-1");
        assert_eq!(pods.wanted_gpus(), wish, "it got another one");
        pods.apply(PodChange::Gone("a".into()));
        assert_eq!(pods.wanted_gpus(), wish, "it will come again");
        pods.apply(anew("2"));
        pods.annotated("a", "GPU-2");
        assert!(pods.wanted_gpus().is_empty());
        pods.apply(PodChange::Gone("a".into()));
        assert!(pods.wanted_gpus().is_empty(), "nobody needs it any more");
    }

    #[tokio::test(start_paused = true)]
    async fn the_gpu_of_a_reservation_that_went_is_kept_for_a_while() {
        let mut pods = ReservationPods::default();
        pods.apply(pod("a", "1"));
        pods.annotated("a", "GPU-1");
        assert!(pods.released_gpus.recent(Instant::now()).is_empty());
        pods.apply(PodChange::Gone("a".into()));
        let released_gpus = BTreeSet::from(["GPU-1".to_owned()]);
        assert_eq!(pods.released_gpus.recent(Instant::now()), released_gpus);
        pods.apply(pod("a", "2"));
        assert_eq!(
            pods.released_gpus.recent(Instant::now()),
            released_gpus,
            "it has not got it yet"
        );
        pods.annotated("a", "GPU-1");
        assert!(pods.released_gpus.recent(Instant::now()).is_empty());
        pods.apply(PodChange::Gone("a".into()));
        tokio::time::advance(RELEASED_SECONDS_MAX).await;
        assert!(
            pods.released_gpus.recent(Instant::now()).is_empty(),
            "nobody needs it any more"
        );
    }

    #[test]
    fn a_replaced_pod_is_not_given_its_predecessors_gpu() {
        let mut pods = ReservationPods::default();
        pods.apply(pod("a", "1"));
        pods.annotated("a", "GPU-1");
        pods.apply(PodChange::Gone("a".into()));
        assert_eq!(pods.waiting().count(), 0);
        pods.apply(pod("a", "2"));
        assert!(
            decide(&mut pods, &[held("a", &["GPU-1"])]).is_empty(),
            "may be the old pod's"
        );
        assert!(
            decide(&mut pods, &[held("a", &["GPU-1"]), held("a", &["GPU-2"])]).is_empty(),
            "both are shown"
        );
        assert!(decide(&mut pods, &[held("a", &["GPU-2"])]).is_empty());
        assert_eq!(
            decide(&mut pods, &[held("a", &["GPU-2"])]),
            [("a".to_owned(), "GPU-2".to_owned())]
        );
    }
}
