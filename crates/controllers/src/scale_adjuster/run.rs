//! The loop of the node-scale adjuster: reads pods, asks `plan`, and writes scaling pods.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use kai_api::{Object, ObjectKey, Pod, keys};
use kai_cluster::{Client, Context, Deletion, Informers, Part, Patch, Selection, Target};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Settings;
use super::plan::{Missing, Progress, ScalingPod, missing};
use super::scaling_pod::scaling_pod;
use super::waiting::{WaitingPod, is_unschedulable, waiting_pod};
use crate::Error;
use crate::reconciles::Reconciles;

/// The adjuster's name in health reports.
const NAME: &str = "node-scale-adjuster";
/// Delay after a round: pods of a workload begin to wait one after the other.
const COALESCE: Duration = Duration::from_secs(2);
/// Interval of rounds without changes, while scaling pods exist: a scaling pod gets its node without a change of a waiting pod.
const RESYNC_INTERVAL: Duration = Duration::from_secs(10);
/// After a scaling pod has got a node, no new ones for this time: the scheduler places waiting pods on the new node meanwhile. As in KAI.
const COOL_DOWN: Duration = Duration::from_secs(60);
/// The adjuster counts as dead after this time; a round makes a hundred calls at most.
const HEARTBEAT_MAX: Duration = Duration::from_secs(300);

/// Runs the adjuster until dropped.
pub async fn run(context: Context, settings: Settings) -> Result<Infallible, Error> {
    context.health.announce(NAME, HEARTBEAT_MAX);
    let wake = Arc::new(Notify::new());
    let pods = context.informers.pods().subscribe(&wake);
    context.informers.pod_groups().synced().await;
    context.informers.pods().synced().await;
    let mut adjuster = Adjuster {
        reconciles: Reconciles::registered(
            &context.metrics,
            "node_scale_adjuster",
            &["created", "deleted", "failed"],
        ),
        client: context.client.clone(),
        informers: Arc::clone(&context.informers),
        settings,
        unschedulable: BTreeSet::new(),
        may_have_scaling_pods: true,
        cool_down_until: None,
    };
    loop {
        for (key, pod) in pods.take() {
            adjuster.observe(key, pod.as_deref());
        }
        adjuster.round().await;
        context.health.alive(NAME);
        tokio::time::sleep(COALESCE).await;
        // On a time-out, the next round looks at the scaling pods again.
        let _ = tokio::time::timeout(RESYNC_INTERVAL, wake.notified()).await;
    }
}

struct Adjuster {
    client: Client,
    informers: Arc<Informers>,
    settings: Settings,
    reconciles: Reconciles,
    /// Pods of our scheduler without room, also those without a GPU share.
    unschedulable: BTreeSet<ObjectKey>,
    /// Without waiting and scaling pods a round makes no call.
    may_have_scaling_pods: bool,
    cool_down_until: Option<Instant>,
}

impl Adjuster {
    fn observe(&mut self, key: ObjectKey, pod: Option<&Pod>) {
        match pod.is_some_and(|pod| is_unschedulable(pod, &self.settings.scheduler_name)) {
            true => drop(self.unschedulable.insert(key)),
            false => drop(self.unschedulable.remove(&key)),
        }
    }

    async fn round(&mut self) {
        let waiting = self.waiting();
        if waiting.is_empty() && !self.may_have_scaling_pods {
            return;
        }
        let present = match self.scaling_pods().await {
            Ok(present) => present,
            Err(error) => return self.failed(&error, "listing scaling pods failed"),
        };
        self.may_have_scaling_pods = !present.is_empty();
        let mut kept = Vec::new();
        for pod in present {
            if pod.progress == Progress::Leaving || pod.is_needed(&waiting) {
                self.mark_unschedulable(&pod).await;
                kept.push(pod);
            } else {
                self.delete(&pod).await;
                self.cool_down_until = Some(Instant::now() + COOL_DOWN);
            }
        }
        if self.cool_down_until.is_some_and(|end| Instant::now() < end) {
            return;
        }
        for missing in missing(&waiting, &kept) {
            self.create(missing).await;
        }
    }

    /// The pods that a new node with GPUs would help.
    fn waiting(&self) -> Vec<WaitingPod> {
        let waiting = |key: &ObjectKey| {
            let pod = self.informers.pods().get(key)?;
            let group = pod.pod_group().map(|name| ObjectKey::new(&key.namespace, name));
            let group = group.and_then(|group| self.informers.pod_groups().get(&group));
            waiting_pod(key, &pod, group.as_deref(), &self.settings)
        };
        self.unschedulable.iter().filter_map(waiting).collect()
    }

    /// A list, because informers keep no pods that have ended.
    async fn scaling_pods(&self) -> Result<Vec<ScalingPod>, kai_cluster::Error> {
        let selection = Selection {
            namespace: Some(self.settings.namespace.clone()),
            labels: format!("{}={}", keys::APP, keys::SCALING_POD),
            ..Selection::default()
        };
        let pods: Vec<Pod> = self.client.list(&selection).await?;
        Ok(pods.iter().map(ScalingPod::of).collect())
    }

    async fn create(&mut self, missing: Missing<'_>) {
        let origin = &missing.origin.key;
        let object = match self
            .client
            .get_value(Target::of::<Pod>(&origin.namespace, &origin.name))
            .await
        {
            Ok(Some(object)) => object,
            Ok(None) => return,
            Err(error) => return self.failed(&error, "reading a pod that waits for a node failed"),
        };
        let pod = scaling_pod(&missing.name, missing.origin, &object, &self.settings);
        match self.client.create(&Pod::RESOURCE, &self.settings.namespace, pod).await {
            Ok(_) => {
                tracing::info!(
                    pod = missing.name,
                    "created a scaling pod, so that an autoscaler adds a node"
                );
                self.reconciles.count("created");
                self.may_have_scaling_pods = true;
                let created = ScalingPod {
                    name: missing.name,
                    uid: None,
                    origin: Some(origin.clone()),
                    gpus: missing.origin.gpus,
                    progress: Progress::Fresh,
                };
                self.mark_unschedulable(&created).await;
            }
            Err(error) => self.failed(&error, "creating a scaling pod failed"),
        }
    }

    /// Autoscalers act for pods with this condition. The default scheduler would write it only after it has tried to place the pod.
    async fn mark_unschedulable(&self, pod: &ScalingPod) {
        if pod.progress != Progress::Fresh {
            return;
        }
        let message = "no node has a free GPU for the pods that share GPUs and wait";
        let condition =
            json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message });
        let status = json!({ "status": { "conditions": [condition] } });
        let target = Target::of::<Pod>(&self.settings.namespace, &pod.name);
        match self.client.patch(target, Part::Status, Patch::Strategic(status)).await {
            Err(error) if !error.is_not_found() => self.failed(&error, "writing the condition of a scaling pod failed"),
            _ => {}
        }
    }

    async fn delete(&self, pod: &ScalingPod) {
        let deletion = Deletion {
            uid: pod.uid.clone(),
            ..Deletion::default()
        };
        let target = Target::of::<Pod>(&self.settings.namespace, &pod.name);
        match self.client.delete(target, &deletion).await {
            Ok(()) => {
                tracing::info!(pod = pod.name, "deleted a scaling pod that is no longer needed");
                self.reconciles.count("deleted");
            }
            Err(error) => self.failed(&error, "deleting a scaling pod failed"),
        }
    }

    fn failed(&self, error: &kai_cluster::Error, attempt: &str) {
        self.reconciles.count("failed");
        tracing::warn!(%error, "{attempt}; the next round tries again");
    }
}
