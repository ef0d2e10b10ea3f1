//! From changes in the cluster to work: which bind requests to look at, and which groups. Watches only say where to look.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kai_api::{BindRequest, ObjectKey, Pod};
use kai_engine::model::GpuRequest;
use tokio::sync::Notify;

use crate::GroupKey;
use crate::books::{Identity, groups_of, is_about, is_active, is_reservation, user};
use crate::run::{Binder, PART};
use crate::step::Reservation;

/// How often everything is looked over for groups that nobody told us of.
const SWEEP_PAUSE: Duration = Duration::from_secs(30);

/// The groups of objects that were seen, to know them when the objects are gone.
#[derive(Debug, Default)]
struct Seen {
    pods: BTreeMap<ObjectKey, (String, Vec<GroupKey>)>,
    requests: BTreeMap<ObjectKey, (String, Vec<GroupKey>)>,
    /// The nodes of pods with whole GPUs.
    owners: BTreeMap<ObjectKey, Box<str>>,
}

impl Binder {
    /// Runs for ever.
    pub(crate) async fn watch(&self) {
        let wake = Arc::new(Notify::new());
        let requests = self.informers.bind_requests().subscribe(&wake);
        let pods = self.informers.pods().subscribe(&wake);
        self.informers.nodes().synced().await;
        requests.informer().synced().await;
        pods.informer().synced().await;
        let mut seen = Seen::default();
        let mut sweeps = tokio::time::interval(SWEEP_PAUSE);
        sweeps.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // In this order: changes without end must not keep the sweep from its turn.
                biased;
                _ = sweeps.tick() => {
                    let suspects = suspects(&pods.informer().all(), &requests.informer().all(), self.settings.identity());
                    suspects.into_iter().for_each(|key| self.care.add(key));
                    self.health.alive(PART);
                }
                () = wake.notified() => {
                    for (key, request) in requests.take() {
                        self.saw_request(key, request.as_deref(), &mut seen);
                    }
                    for (key, pod) in pods.take() {
                        self.saw_pod(key, pod.as_deref(), &mut seen);
                    }
                }
            }
        }
    }

    /// Runs for ever: reservations that ended while nobody looked. The watch shows only pods that have not.
    pub(crate) async fn look_for_ended(&self) {
        let mut looks = tokio::time::interval(SWEEP_PAUSE);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            match self.ended_reservations().await {
                Ok(groups) => groups.into_iter().for_each(|key| self.care.add(key)),
                Err(error) => tracing::debug!(%error, "reservations that ended are looked for again later"),
            }
        }
    }

    fn saw_request(&self, key: ObjectKey, request: Option<&BindRequest>, seen: &mut Seen) {
        let now = request.map(|request| {
            let node = request.selected_node();
            let groups = request
                .gpu_groups()
                .iter()
                .map(|group| GroupKey::new(node, group))
                .collect();
            (request.metadata.uid.as_deref().unwrap_or_default().to_owned(), groups)
        });
        for group in left(&mut seen.requests, &key, now) {
            self.care.add(group);
        }
        let Some(request) = request else { return };
        if is_active(request) {
            self.binds.add(key);
        } else if request.failed_for_good() {
            // Care that came before this news took the request for a live one.
            let groups = request.gpu_groups().iter();
            groups.for_each(|group| self.care.add(GroupKey::new(request.selected_node(), group)));
        }
    }

    fn saw_pod(&self, key: ObjectKey, pod: Option<&Pod>, seen: &mut Seen) {
        let identity = self.settings.identity();
        let owner_on = pod
            .filter(|pod| !is_reservation(pod, identity) && has_whole_gpus(pod))
            .and_then(Pod::node_name);
        let before = match owner_on {
            Some(node) => seen.owners.insert(key.clone(), node.into()),
            None => seen.owners.remove(&key),
        };
        if let Some(node) = before.filter(|node| Some(&**node) != owner_on) {
            self.placeholders
                .wake(&node)
                .into_iter()
                .for_each(|group| self.care.add(group));
        }
        let now = pod.map(|pod| {
            (
                pod.metadata.uid.as_deref().unwrap_or_default().to_owned(),
                groups_on(pod, identity),
            )
        });
        if let Some(pod) = pod.filter(|pod| is_reservation(pod, identity)) {
            let group = Reservation::of(pod).key();
            self.waits
                .call(&group)
                .into_iter()
                .for_each(|bind| self.binds.add(bind));
            if pod.is_terminating() {
                self.care.add(group);
            }
        }
        for group in left(&mut seen.pods, &key, now.filter(|(_, groups)| !groups.is_empty())) {
            self.waits
                .call(&group)
                .into_iter()
                .for_each(|bind| self.binds.add(bind));
            self.care.add(group);
        }
    }
}

/// Whether a kubelet gives the pod GPUs of its own.
fn has_whole_gpus(pod: &Pod) -> bool {
    matches!(pod.gpu_usage(), GpuRequest::Whole { .. })
}

/// Remembers the groups of an object; answers with those that it does not have any more.
fn left(
    seen: &mut BTreeMap<ObjectKey, (String, Vec<GroupKey>)>,
    key: &ObjectKey,
    now: Option<(String, Vec<GroupKey>)>,
) -> Vec<GroupKey> {
    let before = match &now {
        Some(now) => seen.insert(key.clone(), now.clone()),
        None => seen.remove(key),
    };
    let Some((uid, groups)) = before else { return Vec::new() };
    match now {
        Some((same, kept)) if same == uid => groups.into_iter().filter(|group| !kept.contains(group)).collect(),
        Some(_) | None => groups,
    }
}

/// The groups that a pod uses or holds by its own word. That word only says where to look.
fn groups_on(pod: &Pod, identity: Identity<'_>) -> Vec<GroupKey> {
    let Some(node) = pod.node_name() else { return Vec::new() };
    if is_reservation(pod, identity) || pod.scheduler_name() == identity.scheduler_name {
        return pod
            .gpu_groups()
            .into_iter()
            .map(|group| GroupKey::new(node, group))
            .collect();
    }
    Vec::new()
}

/// Groups that don't look right from here: a reservation without users, users without a reservation or with another GPU.
fn suspects(pods: &[Arc<Pod>], requests: &[Arc<BindRequest>], identity: Identity<'_>) -> BTreeSet<GroupKey> {
    let by_pod: BTreeMap<(&str, &str), &BindRequest> = requests
        .iter()
        .map(|request| ((request.metadata.namespace(), request.pod_name()), &**request))
        .collect();
    let mut held: BTreeMap<GroupKey, Option<String>> = BTreeMap::new();
    let mut used: BTreeMap<GroupKey, Vec<String>> = BTreeMap::new();
    let mut suspects = BTreeSet::new();
    for pod in pods {
        if is_reservation(pod, identity) {
            let reservation = Reservation::of(pod);
            if reservation.is_genuine() && !reservation.terminating {
                held.insert(reservation.key(), reservation.gpu);
            }
            continue;
        }
        let Some(node) = pod
            .node_name()
            .filter(|_| pod.scheduler_name() == identity.scheduler_name)
        else {
            continue;
        };
        let request = by_pod
            .get(&(pod.metadata.namespace(), pod.metadata.plain_name()))
            .copied();
        let request = request.filter(|request| is_about(request, pod) && request.selected_node() == node);
        let Some(user) = user(pod, request, 0) else { continue };
        for group in user.groups.iter().filter(|_| !user.terminating) {
            used.entry(GroupKey::new(node, group))
                .or_default()
                .extend(user.gpus.iter().cloned());
        }
    }
    let awaited: BTreeSet<GroupKey> = requests
        .iter()
        .filter(|request| is_active(request))
        .flat_map(|request| {
            groups_of(request)
                .into_iter()
                .map(|group| GroupKey::new(request.selected_node(), &group))
        })
        .collect();
    suspects.extend(
        held.keys()
            .filter(|key| !used.contains_key(key) && !awaited.contains(key))
            .cloned(),
    );
    for (key, gpus) in used {
        let well = match held.get(&key) {
            Some(Some(gpu)) => gpus.is_empty() || gpus.contains(gpu),
            Some(None) | None => false,
        };
        if !well {
            suspects.insert(key);
        }
    }
    suspects
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_an_object_had_are_known_when_it_is_gone() {
        let mut seen = BTreeMap::new();
        let (key, a, b) = (
            ObjectKey::new("ns", "p"),
            GroupKey::new("n", "a"),
            GroupKey::new("n", "b"),
        );
        let with = |uid: &str, groups: &[&GroupKey]| {
            Some((
                uid.to_owned(),
                groups.iter().map(|group| (*group).clone()).collect::<Vec<_>>(),
            ))
        };
        assert_eq!(left(&mut seen, &key, with("1", &[&a, &b])), []);
        assert_eq!(left(&mut seen, &key, with("1", &[&a, &b])), []);
        assert_eq!(left(&mut seen, &key, with("1", &[&a])), std::slice::from_ref(&b));
        assert_eq!(
            left(&mut seen, &key, with("2", &[&a])),
            std::slice::from_ref(&a),
            "another pod of the same name"
        );
        assert_eq!(left(&mut seen, &key, None), [a]);
        assert_eq!(left(&mut seen, &key, None), []);
    }
}
