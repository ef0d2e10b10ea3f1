//! The pod-group controller: writes the status of pod groups, which sums up the resources that their pods request and have.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use kai_api::crd::{PodCounts, ResourcesStatus};
use kai_api::{Backoff, Node, ObjectKey, Pod, PodGroup, PodIdentity, PriorityClasses, keys};
use kai_cluster::{Client, Context, Informers, Part, Patch, Target, WorkQueue, WorkResult};
use kai_engine::core_of;
use kai_engine::model::{GpuRequest, Millis, PodPhase, PodSpec, Preemptibility};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::resource_amounts::{NANO_PER_UNIT, ResourceAmounts};
use crate::Error;
use crate::merge_patch::difference;
use crate::reconciles::Reconciles;

/// The controller's name in health reports.
const NAME: &str = "pod-group-controller";
/// Delay before a write. A new pod is grouped and bound within a moment, and one write covers all of that; a write costs the API server
/// as much as several bindings.
const COALESCE: Duration = Duration::from_secs(1);
/// A slower write means that the API server is busy, mostly with bindings, which matter more than a status.
const FAST_WRITE: Duration = Duration::from_millis(20);
/// A worker pauses this many times the excess over `FAST_WRITE`, at most `PAUSE_MAX`.
const PAUSE_FACTOR: u32 = 8;
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// After this time without a change, the controller recomputes all pod groups: the meaning of a GPU memory request depends on the
/// node's GPUs.
const RESYNC_INTERVAL: Duration = Duration::from_secs(30);
/// The controller counts as dead after this time; enqueueing a batch of changes takes far less.
const HEARTBEAT_MAX: Duration = Duration::from_secs(120);

/// The settings of the pod-group controller.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The controller counts pods whose `spec.schedulerName` is this name.
    pub scheduler_name: String,
    /// Pod groups reconciled at a time.
    pub workers_max: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            scheduler_name: keys::SCHEDULER_NAME.to_owned(),
            workers_max: 10,
        }
    }
}

/// The pods of each pod group, by the annotation of the pods. A pod group is in the namespace of its pods.
#[derive(Debug, Default)]
struct GroupMembers {
    group_of: BTreeMap<ObjectKey, Arc<str>>,
    /// Names of the pods, sorted. Most groups have few pods.
    pods_of: BTreeMap<ObjectKey, Vec<Arc<str>>>,
}

impl GroupMembers {
    /// Records a pod's group; returns the pod groups whose members change.
    fn record(&mut self, pod: &ObjectKey, group: Option<Arc<str>>) -> Vec<ObjectKey> {
        let before = match &group {
            Some(group) => self.group_of.insert(pod.clone(), Arc::clone(group)),
            None => self.group_of.remove(pod),
        };
        let key = |name: Arc<str>| pod.beside(&name);
        let (before, group) = (before.map(key), group.map(key));
        if before != group {
            if let Some(before) = &before {
                self.leave(before, &pod.name);
            }
            if let Some(group) = &group {
                let pods = self.pods_of.entry(group.clone()).or_default();
                if let Err(at) = pods.binary_search(&pod.name) {
                    pods.insert(at, Arc::clone(&pod.name));
                }
            }
        }
        let changed: BTreeSet<ObjectKey> = before.into_iter().chain(group).collect();
        changed.into_iter().collect()
    }

    fn leave(&mut self, group: &ObjectKey, pod: &Arc<str>) {
        let Some(pods) = self.pods_of.get_mut(group) else {
            return;
        };
        if let Ok(at) = pods.binary_search(pod) {
            pods.remove(at);
        }
        if pods.is_empty() {
            self.pods_of.remove(group);
        }
    }

    fn of(&self, group: &ObjectKey) -> Vec<ObjectKey> {
        let names = self.pods_of.get(group).into_iter().flatten();
        names.map(|name| group.beside(name)).collect()
    }
}

struct Controller {
    client: Client,
    informers: Arc<Informers>,
    reconciles: Reconciles,
    settings: Settings,
    /// Held for map operations only, never across an await.
    members: Mutex<GroupMembers>,
}

/// Runs the pod-group controller until dropped.
pub async fn run(context: Context, settings: Settings) -> Result<Infallible, Error> {
    context.health.announce(NAME, HEARTBEAT_MAX);
    let informers = &context.informers;
    let wake = Arc::new(Notify::new());
    let pods = informers.pods().subscribe(&wake);
    let groups = informers.pod_groups().subscribe(&wake);
    let classes = informers.priority_classes().subscribe(&wake);
    informers.nodes().synced().await;
    informers.priority_classes().synced().await;
    informers.pods().synced().await;

    let queue: WorkQueue<ObjectKey> = WorkQueue::new(Backoff::default());
    let workers_max = settings.workers_max;
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        informers: Arc::clone(informers),
        reconciles: Reconciles::registered(
            &context.metrics,
            "pod_group_controller",
            &["unchanged", "changed", "failed"],
        ),
        settings,
        members: Mutex::default(),
    });
    let enqueue_changes = async {
        loop {
            for (key, pod) in pods.take() {
                let group = pod.and_then(|pod| controller.group_of(&pod));
                let changed = controller.members.lock().record(&key, group);
                changed.into_iter().for_each(|group| queue.add_after(group, COALESCE));
            }
            for (key, group) in groups.take() {
                if group.is_some() {
                    queue.add_after(key, COALESCE);
                }
            }
            let mut all = !classes.take().is_empty();
            context.health.alive(NAME);
            let changed = tokio::time::timeout(RESYNC_INTERVAL, wake.notified()).await;
            all |= changed.is_err();
            if all {
                let all = context.informers.pod_groups().all();
                all.iter().for_each(|group| queue.add(ObjectKey::of(&**group)));
            }
        }
    };
    let work = {
        let controller = Arc::clone(&controller);
        queue.run(workers_max, move |key| {
            let controller = Arc::clone(&controller);
            async move { controller.reconcile(&key).await }
        })
    };
    tokio::select! {
        biased;
        never = enqueue_changes => never,
        () = work => Err(Error::Ended { part: NAME }),
    }
}

impl Controller {
    fn group_of(&self, pod: &Pod) -> Option<Arc<str>> {
        let ours = pod.scheduler_name() == self.settings.scheduler_name;
        pod.pod_group_text().filter(|_| ours).map(kai_api::Text::shared)
    }

    async fn reconcile(&self, key: &ObjectKey) -> WorkResult {
        let Some(group) = self.informers.pod_groups().get(key) else {
            return WorkResult::Done;
        };
        let members = self.members.lock().of(key);
        let pods: Vec<Arc<Pod>> = members
            .iter()
            .filter_map(|key| self.informers.pods().get(key))
            .collect();
        let is_non_preemptible = non_preemptible_pods(&group, &classes(&self.informers), &pods);
        let gpu_memory_mib = |node: &str| {
            self.informers
                .nodes()
                .get(&ObjectKey::new("", node))
                .and_then(|node| gpu_memory_mib(&node))
        };
        let status = resources_status(&pods, gpu_memory_mib, &is_non_preemptible);
        let counts = pod_counts(&pods);
        let Some(change) = change(&group, &status, &counts) else {
            self.reconciles.count("unchanged");
            return WorkResult::Done;
        };
        let target = Target::of::<PodGroup>(&key.namespace, &key.name);
        let started = Instant::now();
        match self.client.patch(target, Part::Status, Patch::Merge(change)).await {
            Ok(_) => {
                self.reconciles.count("changed");
                tokio::time::sleep(pause_after(started.elapsed())).await;
                WorkResult::Done
            }
            Err(error) if error.is_not_found() => WorkResult::Done,
            Err(error) => {
                self.reconciles.count("failed");
                tracing::warn!(%error, "writing the status of a pod group failed");
                WorkResult::Retry
            }
        }
    }
}

/// The pause after a write that took this long.
fn pause_after(took: Duration) -> Duration {
    PAUSE_MAX.min(took.saturating_sub(FAST_WRITE) * PAUSE_FACTOR)
}

fn classes(informers: &Informers) -> PriorityClasses {
    let mut classes = PriorityClasses::default();
    informers
        .priority_classes()
        .all()
        .iter()
        .for_each(|class| classes.insert(class));
    classes
}

/// MiB of one GPU of the node.
fn gpu_memory_mib(node: &Node) -> Option<i64> {
    node.read().ok()?.value.gpu_memory_mib
}

fn change(group: &PodGroup, status: &ResourcesStatus, counts: &PodCounts) -> Option<serde_json::Value> {
    let before = group.resources_status().unwrap_or_default();
    let resources = difference(&json!(before), &json!(status));
    let counts = difference(&json!(group.pod_counts()), &json!(counts));
    if resources.is_none() && counts.is_none() {
        return None;
    }
    let mut status = counts.unwrap_or_else(|| json!({}));
    if let Some(resources) = resources {
        status["resourcesStatus"] = resources;
    }
    Some(json!({ "status": status }))
}

/// A pod counts as running once it has a node: the resources change at the same moment, so no further write is needed.
fn pod_counts(pods: &[Arc<Pod>]) -> PodCounts {
    let placed = pods.iter().filter(|pod| pod.node_name().is_some()).count();
    PodCounts::of(placed, pods.len() - placed)
}

/// Which pods are non-preemptible. Of a semi-preemptible pod group it is the core of the pods with a node that do not terminate, by the
/// scheduler's rule.
fn non_preemptible_pods(group: &PodGroup, classes: &PriorityClasses, pods: &[Arc<Pod>]) -> Vec<bool> {
    let all = |is: bool| vec![is; pods.len()];
    match group.rank(classes).1 {
        Preemptibility::Preemptible => all(false),
        Preemptibility::NonPreemptible => all(true),
        Preemptibility::SemiPreemptible => {
            let mut is_core = all(false);
            // The scheduler skips a pod group or pod that it can't read.
            let Ok(gang) = group.read(classes, Millis(0)) else {
                return is_core;
            };
            let placed = |pod: &Pod| {
                let has_place = pod.node_name().is_some() && !pod.is_terminating();
                let is_alive = matches!(pod.phase(), PodPhase::Pending | PodPhase::Running);
                (has_place && is_alive).then(|| pod.read(&PodIdentity::default(), Millis(0)).ok())?
            };
            let placed: Vec<(usize, PodSpec)> = (0..pods.len())
                .filter_map(|at| Some((at, placed(&pods[at])?.value)))
                .collect();
            let specs: Vec<&PodSpec> = placed.iter().map(|(_, spec)| spec).collect();
            for ((at, _), of_core) in placed.iter().zip(core_of(&gang.value, &specs)) {
                is_core[*at] = of_core;
            }
            is_core
        }
    }
}

/// The resources that pods request and have. Pods that have ended do not count.
pub(crate) fn resources_status(
    pods: &[Arc<Pod>],
    gpu_memory_mib: impl Fn(&str) -> Option<i64>,
    is_non_preemptible: &[bool],
) -> ResourcesStatus {
    let mut requested = ResourceAmounts::default();
    let (mut allocated, mut non_preemptible) = (ResourceAmounts::default(), ResourceAmounts::default());
    for (pod, is_non_preemptible) in pods.iter().zip(is_non_preemptible) {
        let mut own = ResourceAmounts::default();
        for (name, milli) in pod.requests_milli() {
            own.add_milli(&name, milli);
        }
        requested.add(&own);
        let gpus = pod.gpu_usage();
        add_requested_share(&mut requested, &gpus);
        if let Some(node) = pod.node_name() {
            add_allocated_share(&mut own, &gpus, || gpu_memory_mib(node));
            allocated.add(&own);
            if *is_non_preemptible {
                non_preemptible.add(&own);
            }
        }
    }
    ResourcesStatus {
        allocated_non_preemptible: non_preemptible.to_list(),
        allocated: allocated.to_list(),
        requested: requested.to_list(),
    }
}

/// Adds the GPU share that the pod requests by annotation, beside its containers' resources.
fn add_requested_share(amounts: &mut ResourceAmounts, request: &GpuRequest) {
    match *request {
        GpuRequest::Fraction { fraction, devices } => {
            let nano = i128::from(fraction.billionths()) * i128::from(devices);
            amounts.add_nano(keys::RESOURCE_GPU, nano);
        }
        GpuRequest::Memory { mib, devices } => {
            let nano = i128::from(mib) * i128::from(devices) * NANO_PER_UNIT;
            amounts.add_nano(keys::RESOURCE_GPU_MEMORY, nano);
        }
        GpuRequest::None | GpuRequest::Whole { .. } | GpuRequest::Mig { .. } => {}
    }
}

/// Adds the GPU share that the pod has on its node.
fn add_allocated_share(
    amounts: &mut ResourceAmounts,
    request: &GpuRequest,
    gpu_memory_mib: impl FnOnce() -> Option<i64>,
) {
    match *request {
        GpuRequest::Memory { mib, devices } => {
            // Without the size of the GPU, the fraction is unknown and not counted.
            if let Some(gpu) = gpu_memory_mib().filter(|gpu| *gpu > 0) {
                let nano = i128::from(mib) * i128::from(devices) * NANO_PER_UNIT / i128::from(gpu);
                amounts.add_nano(keys::RESOURCE_GPU, nano);
            }
        }
        GpuRequest::None | GpuRequest::Fraction { .. } | GpuRequest::Whole { .. } | GpuRequest::Mig { .. } => {
            add_requested_share(amounts, request);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_busy_server_is_left_alone_for_a_while() {
        let millis = Duration::from_millis;
        let pauses = [0, 20, 120, 60_000].map(|took| pause_after(millis(took)));
        assert_eq!(pauses, [millis(0), millis(0), millis(800), PAUSE_MAX]);
    }

    fn pod(annotations: Value, requests: Value, node: Option<&str>) -> Arc<Pod> {
        let pod = json!({
            "metadata": { "name": "p", "annotations": annotations },
            "spec": { "nodeName": node, "containers": [{ "resources": { "requests": requests } }] },
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn check(pods: &[Arc<Pod>], preemptible: bool, expect: Value) {
        let status = resources_status(pods, |_| Some(40_000), &vec![!preemptible; pods.len()]);
        assert_eq!(json!(status), expect);
    }

    #[test]
    fn waiting_pods_are_requested_and_placed_ones_allocated() {
        let pods = [
            pod(
                json!({}),
                json!({ "cpu": "1", "memory": "1Gi", "nvidia.com/gpu": 2 }),
                None,
            ),
            pod(json!({}), json!({ "cpu": "500m", "nvidia.com/gpu": 1 }), Some("n")),
        ];
        let allocated = json!({ "cpu": "500m", "nvidia.com/gpu": "1" });
        let requested = json!({ "cpu": "1500m", "memory": "1Gi", "nvidia.com/gpu": "3" });
        check(&pods, true, json!({ "allocated": allocated, "requested": requested }));
        check(
            &pods,
            false,
            json!({ "allocated": allocated, "allocatedNonPreemptible": allocated, "requested": requested }),
        );
    }

    #[test]
    fn of_a_semi_preemptible_group_the_minimum_is_non_preemptible() {
        let group = |spec: Value| -> PodGroup {
            serde_json::from_value(json!({ "metadata": { "name": "g", "namespace": "a" }, "spec": spec })).unwrap()
        };
        let pod = |name: &str, sub_group: &str, rest: Value| -> Arc<Pod> {
            let mut pod = json!({
                "metadata": { "name": name, "uid": name, "labels": {} },
                "spec": { "nodeName": "n" },
                "status": { "phase": "Running" },
            });
            if !sub_group.is_empty() {
                pod["metadata"]["labels"]["kai.scheduler/subgroup-name"] = json!(sub_group);
            }
            json_patch(&mut pod, rest);
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let check = |spec: Value, pods: &[Arc<Pod>], expect: &[bool]| {
            let found = non_preemptible_pods(&group(spec.clone()), &PriorityClasses::default(), pods);
            assert_eq!(found, expect, "{spec}");
        };
        let plain = |name: &str, rest: Value| pod(name, "", rest);
        let pods = [
            plain(
                "a",
                json!({ "metadata": { "deletionTimestamp": "2026-01-31T12:00:00Z" } }),
            ),
            plain("b", json!({ "status": { "phase": "Failed" } })),
            plain("c", json!({ "spec": { "nodeName": null } })),
            plain("e", json!({})),
            plain("d", json!({})),
            plain("f", json!({})),
            plain(
                "leader",
                json!({ "metadata": { "labels": { "kai.scheduler/task-priority": "5" } } }),
            ),
        ];
        let semi = |min: u32| json!({ "preemptibility": "semi-preemptible", "minMember": min });
        check(semi(2), &pods, &[false, false, false, false, true, false, true]);
        check(semi(0), &pods, &[false; 7]);
        check(semi(9), &pods, &[false, false, false, true, true, true, true]);
        check(
            json!({ "preemptibility": "non-preemptible", "minMember": 2 }),
            &pods,
            &[true; 7],
        );
        check(json!({ "minMember": 2 }), &pods, &[false; 7]);
        let replica = |name: &str| json!({ "name": name, "minMember": 1 });
        let replicas = json!({ "preemptibility": "semi-preemptible", "minSubGroup": 1, "subGroups": [replica("r0"), replica("r1")] });
        let pods = [
            pod("a", "r1", json!({})),
            pod("b", "r0", json!({})),
            pod("c", "r0", json!({})),
        ];
        check(replicas, &pods, &[false, true, false]);
    }

    /// Merges `patch` into `into`.
    fn json_patch(into: &mut Value, patch: Value) {
        match (into, patch) {
            (Value::Object(into), Value::Object(patch)) => {
                for (key, value) in patch {
                    json_patch(into.entry(key).or_insert(Value::Null), value);
                }
            }
            (into, patch) => *into = patch,
        }
    }

    #[test]
    fn shares_count_for_each_device() {
        let fraction = json!({ "gpu-fraction": "0.3", "gpu-fraction-num-devices": "2" });
        check(
            &[
                pod(fraction.clone(), json!({}), Some("n")),
                pod(fraction, json!({}), None),
            ],
            true,
            json!({ "allocated": { "nvidia.com/gpu": "600m" }, "requested": { "nvidia.com/gpu": "1200m" } }),
        );
        let memory = json!({ "gpu-memory": "10000", "gpu-fraction-num-devices": "2" });
        check(
            &[pod(memory, json!({}), Some("n"))],
            true,
            json!({ "allocated": { "nvidia.com/gpu": "500m" }, "requested": { "run.ai/gpu.memory": "20000" } }),
        );
    }

    #[test]
    fn a_status_is_cleared_of_what_ended() {
        let group: PodGroup = serde_json::from_value(json!({
            "status": { "resourcesStatus": {
                "allocated": { "cpu": "1", "nvidia.com/gpu": "1" }, "allocatedNonPreemptible": { "cpu": "1" },
                "requested": { "cpu": "1" } } },
        }))
        .unwrap();
        let status = resources_status(&[pod(json!({}), json!({ "cpu": "1" }), Some("n"))], |_| None, &[false]);
        let expect = json!({ "status": { "resourcesStatus": {
            "allocated": { "nvidia.com/gpu": null }, "allocatedNonPreemptible": null } } });
        assert_eq!(change(&group, &status, &PodCounts::default()), Some(expect));
    }

    #[test]
    fn pods_are_counted_by_whether_they_have_a_node() {
        let pods = [
            pod(json!({}), json!({}), Some("n")),
            pod(json!({}), json!({}), None),
            pod(json!({}), json!({}), None),
        ];
        let counts = |of: &[Arc<Pod>]| json!(pod_counts(of));
        assert_eq!(counts(&pods), json!({ "phase": "Running", "running": 1, "pending": 2 }));
        assert_eq!(
            counts(&pods[1..]),
            json!({ "phase": "Pending", "running": 0, "pending": 2 })
        );
        let group: PodGroup =
            serde_json::from_value(json!({ "status": { "phase": "Running", "running": 1, "pending": 0 } })).unwrap();
        let none = ResourcesStatus::default();
        assert_eq!(
            change(&group, &none, &pod_counts(&pods)),
            Some(json!({ "status": { "pending": 2 } }))
        );
        assert_eq!(change(&group, &none, &pod_counts(&pods[..1])), None);
        let gone = json!({ "status": { "phase": null, "running": null, "pending": null } });
        assert_eq!(change(&group, &none, &pod_counts(&[])), Some(gone));
    }

    #[test]
    fn a_pod_that_moves_changes_both_groups() {
        let mut members = GroupMembers::default();
        let (pod, a, b) = (
            ObjectKey::new("n", "p"),
            ObjectKey::new("n", "a"),
            ObjectKey::new("n", "b"),
        );
        assert_eq!(members.record(&pod, Some("a".into())), vec![a.clone()]);
        assert_eq!(members.record(&pod, Some("b".into())), [a.clone(), b.clone()]);
        assert_eq!((members.of(&a), members.of(&b)), (vec![], vec![pod.clone()]));
        assert_eq!(members.record(&pod, None), vec![b.clone()]);
        assert_eq!(members.of(&b), []);
    }
}
