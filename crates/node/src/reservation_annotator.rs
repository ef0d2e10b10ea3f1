//! The agent's duty towards reservation pods: it sees in the kubelet's books which GPU such a pod holds, and writes the UUID on the
//! pod, so that the pod itself needs no driver, no device access and no token. Nothing is asked while no pod waits.

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

/// The annotation that a binder waits for. Its name says index; its value is, by contract, the UUID.
pub const ANNOTATION: &str = kai_api::keys::RESERVED_GPU;

/// After this time a reservation that was lost is there again, or nobody needs it.
const RELEASED_SECONDS_MAX: Duration = Duration::from_secs(60);

/// What the kubelet should know when it chooses GPUs.
pub type HintsReceiver = watch::Receiver<AllocationHints>;

/// Which GPUs are for whom.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllocationHints {
    /// UUIDs of GPUs that reservations which were made anew should get: pods run on them.
    pub wanted_gpus: BTreeSet<String>,
    /// GPUs whose reservation pod went.
    pub released_gpus: ReleasedGpus,
}

/// UUIDs of GPUs that reservation pods held which are gone, and since when.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReleasedGpus(BTreeMap<String, Instant>);

impl ReleasedGpus {
    /// The reservation pod that held this GPU is gone.
    pub fn add(&mut self, gpu: String, now: Instant) {
        self.0.retain(|_, at| now.duration_since(*at) < RELEASED_SECONDS_MAX);
        self.0.insert(gpu, now);
    }

    /// A reservation pod has this GPU again.
    pub fn remove(&mut self, gpu: &str) {
        self.0.remove(gpu);
    }

    /// Those that left a moment ago.
    pub fn recent(&self, now: Instant) -> BTreeSet<String> {
        let lately = self
            .0
            .iter()
            .filter(|(_, at)| now.duration_since(**at) < RELEASED_SECONDS_MAX);
        lately.map(|(gpu, _)| gpu.clone()).collect()
    }
}

/// Where the duty is done.
#[derive(Debug, Clone)]
pub struct AnnotatorConfig {
    /// Namespace of reservation pods.
    pub namespace: String,
    /// This node.
    pub node: String,
    /// The kubelet's pod-resources socket.
    pub pod_resources: PathBuf,
    /// Pause between looks while a pod waits.
    pub pace: Duration,
}

/// The reservation pods of this node, as far as they matter.
#[derive(Debug, Default)]
struct Pods {
    by_name: BTreeMap<String, PodMeta>,
    /// Names whose pod was replaced by another one: the kubelet may show the old one's device for a moment.
    replaced: BTreeMap<String, Option<String>>,
    released_gpus: ReleasedGpus,
}

impl Pods {
    fn apply(&mut self, change: PodChange) {
        match change {
            // Names are kept: a pod that was replaced while the watch was broken must be recognised as such.
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
                // The next pod of this name is a replacement.
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

    /// What reservations should get and have not got. One that got another GPU is removed and comes again: the wish outlives it, so that
    /// it is known before the kubelet asks.
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

    /// Which pods can be annotated, and with what. A replaced pod's device must be seen twice.
    fn decide(&mut self, namespace: &str, allocations: &[DeviceAllocation]) -> Vec<(PodMeta, String)> {
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

/// Runs until the agent stops.
pub async fn run(client: Client, config: AnnotatorConfig, hints: watch::Sender<AllocationHints>) {
    let mut changes = pin!(client.watch_pods(&config.namespace, &config.node));
    let mut pods = Pods::default();
    loop {
        let now = pods.hints();
        hints.send_if_modified(|known| std::mem::replace(known, now.clone()) != now);
        let anyone_waits = pods.waiting().next().is_some();
        tokio::select! {
            change = changes.next() => match change {
                Some(change) => pods.apply(change),
                None => return,
            },
            () = tokio::time::sleep(config.pace), if anyone_waits => look(&client, &config, &mut pods).await,
        }
    }
}

async fn look(client: &Client, config: &AnnotatorConfig, pods: &mut Pods) {
    let allocations = match podresources::list(&config.pod_resources).await {
        Ok(allocations) => allocations,
        Err(error) => {
            tracing::warn!(%error, "a reservation pod waits, but the kubelet does not say what it holds");
            return;
        }
    };
    for (pod, gpu) in pods.decide(&config.namespace, &allocations) {
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

    fn decide(pods: &mut Pods, allocations: &[DeviceAllocation]) -> Vec<(String, String)> {
        pods.decide(NS, allocations)
            .into_iter()
            .map(|(pod, gpu)| (pod.name, gpu))
            .collect()
    }

    #[test]
    fn a_waiting_pod_gets_the_uuid_of_its_device() {
        let mut pods = Pods::default();
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
        let mut pods = Pods::default();
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
        let mut pods = Pods::default();
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
        let mut pods = Pods::default();
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
