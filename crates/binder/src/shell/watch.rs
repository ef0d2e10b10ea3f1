//! Turns changes in the cluster into keys for the work queues: BindRequests to carry out, and groups to reconcile. The caches only say
//! where to look; decisions depend on fresh reads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kai_api::{BindRequest, ObjectKey, Pod, PodIdentity};
use kai_engine::model::GpuRequest;
use tokio::sync::Notify;

use crate::GpuGroupKey;
use crate::node::allocations::{groups_of, is_active, sharing_pod, targets_pod};
use crate::reservation::state::Reservation;
use crate::shell::run::{Binder, HEALTH_COMPONENT};

/// How often all groups are checked for inconsistencies that no change has shown.
const RESYNC_PERIOD: Duration = Duration::from_secs(30);

/// The groups of known objects, so that the groups of a deleted object can be queued.
#[derive(Debug, Default)]
struct KnownGroups {
    pods: BTreeMap<ObjectKey, (String, Vec<GpuGroupKey>)>,
    requests: BTreeMap<ObjectKey, (String, Vec<GpuGroupKey>)>,
    /// Nodes of pods with whole GPUs.
    whole_gpu_pods: BTreeMap<ObjectKey, Box<str>>,
}

impl Binder {
    /// Fills the work queues. Runs for ever.
    pub(crate) async fn watch(&self) {
        let wake = Arc::new(Notify::new());
        let requests = self.informers.bind_requests().subscribe(&wake);
        let pods = self.informers.pods().subscribe(&wake);
        self.informers.nodes().synced().await;
        requests.informer().synced().await;
        pods.informer().synced().await;
        let mut known = KnownGroups::default();
        let mut resync = tokio::time::interval(RESYNC_PERIOD);
        resync.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // In this order, so that a constant stream of changes does not starve the resync.
                biased;
                _ = resync.tick() => {
                    let groups = inconsistent_groups(&pods.informer().all(), &requests.informer().all(), &self.settings.identity);
                    groups.into_iter().for_each(|key| self.gc_queue.add(key));
                    self.health.alive(HEALTH_COMPONENT);
                }
                () = wake.notified() => {
                    for (key, request) in requests.take() {
                        self.on_request_change(key, request.as_deref(), &mut known);
                    }
                    for (key, pod) in pods.take() {
                        self.on_pod_change(key, pod.as_deref(), &mut known);
                    }
                }
            }
        }
    }

    /// Queues the groups of reservation pods that have ended, which the pod informer does not show. Runs for ever.
    pub(crate) async fn collect_ended_reservations(&self) {
        let mut period = tokio::time::interval(RESYNC_PERIOD);
        period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            period.tick().await;
            match self.ended_reservations().await {
                Ok(groups) => groups.into_iter().for_each(|key| self.gc_queue.add(key)),
                Err(error) => tracing::debug!(%error, "listing ended reservation pods failed; it is tried again"),
            }
        }
    }

    fn on_request_change(&self, key: ObjectKey, request: Option<&BindRequest>, known: &mut KnownGroups) {
        let now = request.map(|request| {
            let node = request.selected_node();
            let groups = request
                .gpu_groups()
                .iter()
                .map(|group| GpuGroupKey::new(node, group))
                .collect();
            (request.metadata.uid.as_deref().unwrap_or_default().to_owned(), groups)
        });
        for group in groups_left(&mut known.requests, &key, now) {
            self.gc_queue.add(group);
        }
        let Some(request) = request else { return };
        if is_active(request) {
            self.bind_queue.add(key);
        } else if request.failed_for_good() {
            // A garbage collection that ran before this change took the request for an active one.
            let groups = request.gpu_groups().iter();
            groups.for_each(|group| self.gc_queue.add(GpuGroupKey::new(request.selected_node(), group)));
        }
    }

    fn on_pod_change(&self, key: ObjectKey, pod: Option<&Pod>, known: &mut KnownGroups) {
        let identity = &self.settings.identity;
        let whole_gpu_node = pod
            .filter(|pod| !identity.reservation_pods.contains(pod) && has_whole_gpus(pod))
            .and_then(Pod::node_name);
        let before = match whole_gpu_node {
            Some(node) => known.whole_gpu_pods.insert(key.clone(), node.into()),
            None => known.whole_gpu_pods.remove(&key),
        };
        if let Some(node) = before.filter(|node| Some(&**node) != whole_gpu_node) {
            self.placeholders
                .end_cooldown(&node)
                .into_iter()
                .for_each(|group| self.gc_queue.add(group));
        }
        let now = pod.map(|pod| {
            (
                pod.metadata.uid.as_deref().unwrap_or_default().to_owned(),
                claimed_groups(pod, identity),
            )
        });
        if let Some(pod) = pod.filter(|pod| identity.reservation_pods.contains(pod)) {
            let group = Reservation::of(pod).key();
            self.requeue_waiting_binds(&group);
            if pod.is_terminating() {
                self.gc_queue.add(group);
            }
        }
        for group in groups_left(&mut known.pods, &key, now.filter(|(_, groups)| !groups.is_empty())) {
            self.requeue_waiting_binds(&group);
            self.gc_queue.add(group);
        }
    }

    fn requeue_waiting_binds(&self, group: &GpuGroupKey) {
        let binds = self.pending.take_waiting_binds(group);
        binds.into_iter().for_each(|bind| self.bind_queue.add(bind));
    }
}

/// Whether the kubelet gives the pod whole GPUs.
fn has_whole_gpus(pod: &Pod) -> bool {
    matches!(pod.gpu_usage(), GpuRequest::Whole { .. })
}

/// Stores the groups of an object, and returns the groups that it no longer has.
fn groups_left(
    known: &mut BTreeMap<ObjectKey, (String, Vec<GpuGroupKey>)>,
    key: &ObjectKey,
    now: Option<(String, Vec<GpuGroupKey>)>,
) -> Vec<GpuGroupKey> {
    let before = match &now {
        Some(now) => known.insert(key.clone(), now.clone()),
        None => known.remove(key),
    };
    let Some((uid, groups)) = before else { return Vec::new() };
    match now {
        Some((same, kept)) if same == uid => groups.into_iter().filter(|group| !kept.contains(group)).collect(),
        Some(_) | None => groups,
    }
}

/// The groups in a pod's labels. Tenants can write labels, so they only say which groups to reconcile.
fn claimed_groups(pod: &Pod, identity: &PodIdentity) -> Vec<GpuGroupKey> {
    let Some(node) = pod.node_name() else { return Vec::new() };
    if identity.reservation_pods.contains(pod) || pod.scheduler_name() == identity.scheduler_name {
        return pod
            .gpu_groups()
            .into_iter()
            .map(|group| GpuGroupKey::new(node, group))
            .collect();
    }
    Vec::new()
}

/// Groups that look inconsistent in the caches: a reservation pod without users, or pods without a reservation pod or with another GPU.
fn inconsistent_groups(
    pods: &[Arc<Pod>],
    requests: &[Arc<BindRequest>],
    identity: &PodIdentity,
) -> BTreeSet<GpuGroupKey> {
    let reserved = reserved_groups(pods, identity);
    let used = used_groups(pods, requests, identity);
    let requested: BTreeSet<GpuGroupKey> = requests
        .iter()
        .filter(|request| is_active(request))
        .flat_map(|request| {
            groups_of(request)
                .into_iter()
                .map(|group| GpuGroupKey::new(request.selected_node(), &group))
        })
        .collect();
    let unused = reserved
        .keys()
        .filter(|key| !used.contains_key(key) && !requested.contains(key));
    let is_consistent = |key: &GpuGroupKey, gpus: &[String]| match reserved.get(key) {
        Some(Some(gpu)) => gpus.is_empty() || gpus.contains(gpu),
        Some(None) | None => false,
    };
    let badly_reserved = used
        .iter()
        .filter(|(key, gpus)| !is_consistent(key, gpus))
        .map(|(key, _)| key);
    unused.chain(badly_reserved).cloned().collect()
}

/// The groups with a reservation pod, each with its GPU.
fn reserved_groups(pods: &[Arc<Pod>], identity: &PodIdentity) -> BTreeMap<GpuGroupKey, Option<String>> {
    pods.iter()
        .filter(|pod| identity.reservation_pods.contains(pod))
        .map(|pod| Reservation::of(pod))
        .filter(|reservation| reservation.is_genuine() && !reservation.terminating)
        .map(|reservation| (reservation.key(), reservation.gpu))
        .collect()
}

/// The groups with bound pods that are not terminating, each with the GPUs of these pods.
fn used_groups(
    pods: &[Arc<Pod>],
    requests: &[Arc<BindRequest>],
    identity: &PodIdentity,
) -> BTreeMap<GpuGroupKey, Vec<String>> {
    let by_pod: BTreeMap<(&str, &str), &BindRequest> = requests
        .iter()
        .map(|request| ((request.metadata.namespace(), request.pod_name()), &**request))
        .collect();
    let mut used: BTreeMap<GpuGroupKey, Vec<String>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !identity.reservation_pods.contains(pod)) {
        let Some(node) = pod
            .node_name()
            .filter(|_| pod.scheduler_name() == identity.scheduler_name)
        else {
            continue;
        };
        let request = by_pod
            .get(&(pod.metadata.namespace(), pod.metadata.plain_name()))
            .copied();
        let request = request.filter(|request| targets_pod(request, pod) && request.selected_node() == node);
        let Some(sharing) = sharing_pod(pod, request, 0).filter(|sharing| !sharing.terminating) else {
            continue;
        };
        for group in &sharing.groups {
            used.entry(GpuGroupKey::new(node, group))
                .or_default()
                .extend(sharing.gpus.iter().cloned());
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_an_object_had_are_known_when_it_is_gone() {
        let mut known = BTreeMap::new();
        let (key, a, b) = (
            ObjectKey::new("ns", "p"),
            GpuGroupKey::new("n", "a"),
            GpuGroupKey::new("n", "b"),
        );
        let with = |uid: &str, groups: &[&GpuGroupKey]| {
            Some((
                uid.to_owned(),
                groups.iter().map(|group| (*group).clone()).collect::<Vec<_>>(),
            ))
        };
        assert_eq!(groups_left(&mut known, &key, with("1", &[&a, &b])), []);
        assert_eq!(groups_left(&mut known, &key, with("1", &[&a, &b])), []);
        assert_eq!(
            groups_left(&mut known, &key, with("1", &[&a])),
            std::slice::from_ref(&b)
        );
        assert_eq!(
            groups_left(&mut known, &key, with("2", &[&a])),
            std::slice::from_ref(&a),
            "another pod of the same name"
        );
        assert_eq!(groups_left(&mut known, &key, None), [a]);
        assert_eq!(groups_left(&mut known, &key, None), []);
    }
}
