//! Bind requests: the pod of each, and which of them are stale and have to be deleted.

use std::sync::Arc;

use kai_api::{BindPhase, BindRequest, Object, ObjectKey};
use kai_engine::model::Millis;

use super::{ClusterMirror, StaleBindRequest, uid_of};

/// The pause after a failed deletion.
const DELETION_RETRY_DELAY: Millis = Millis::seconds(5);

/// What the mirror did about a bind request, so that it does it once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HandledRequest {
    /// The failure was recorded for the pod and the node.
    failure_counted: bool,
    /// The request is in the outbox for deletion, or was.
    deletion_requested: bool,
}

impl ClusterMirror {
    /// The bind request was added or changed.
    pub fn apply_bind_request(&mut self, key: &ObjectKey, request: &Arc<BindRequest>) {
        let pod = pod_of(key, request);
        if let Some(before) = self.bind_requests.insert(key.clone(), Arc::clone(request)) {
            let before = pod_of(key, &before);
            if before != pod {
                self.unlink(&before, key);
            }
        }
        let of_pod = self.bind_requests_by_pod.entry(pod.clone()).or_default();
        if !of_pod.contains(key) {
            of_pod.push(key.clone());
        }
        self.check_request(key);
        self.refresh_pod(&pod);
    }

    /// The bind request was deleted.
    pub fn remove_bind_request(&mut self, key: &ObjectKey) {
        let Some(request) = self.bind_requests.remove(key) else {
            return;
        };
        let pod = pod_of(key, &request);
        self.handled_requests.remove(uid_of(&*request));
        self.unlink(&pod, key);
        self.refresh_pod(&pod);
        if request.phase() == BindPhase::Pending {
            self.suspect_reservations(&request);
        }
    }

    /// The pod's bind request that the binder still works on or has carried out.
    pub(super) fn active_request(&self, pod: &ObjectKey, uid: &str) -> Option<&Arc<BindRequest>> {
        let keys = self.bind_requests_by_pod.get(pod)?;
        let requests = keys.iter().filter_map(|key| self.bind_requests.get(key));
        requests
            .filter(|request| request.is_for_pod(uid) && !request.failed_for_good())
            .min_by_key(|request| request.metadata().plain_name())
    }

    /// The node left the partition: bind requests to it become stale.
    pub(super) fn check_requests_to(&mut self, node: &str) {
        let there = self
            .bind_requests
            .iter()
            .filter(|(_, request)| request.selected_node() == node);
        let keys: Vec<ObjectKey> = there.map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.check_request(&key);
            if let Some(pod) = self.bind_requests.get(&key).map(|request| pod_of(&key, request)) {
                self.refresh_pod(&pod);
            }
        }
    }

    /// Checks all bind requests once the initial lists are complete. Before that every node seems to be missing.
    pub(super) fn check_all_requests(&mut self) {
        let keys: Vec<ObjectKey> = self.bind_requests.keys().cloned().collect();
        for key in keys {
            self.check_request(&key);
        }
    }

    /// Puts a stale bind request into the outbox for deletion, and records the failure of a failed one.
    fn check_request(&mut self, key: &ObjectKey) {
        let Some(request) = self.bind_requests.get(key).map(Arc::clone) else {
            return;
        };
        if request.metadata().is_terminating() || !self.partition.contains(request.metadata()) {
            return;
        }
        let pod_key = pod_of(key, &request);
        let pod = self.pods.get(&pod_key);
        let is_for_pod = pod.is_some_and(|pod| request.is_for_pod(&pod.uid));
        let reason = if pod.is_some() && !is_for_pod {
            "it was for an earlier pod of the same name"
        } else if request.failed_for_good() {
            "it failed"
        } else if self.synced && request.phase() != BindPhase::Succeeded && !self.has_node(request.selected_node()) {
            "its node is not in this partition"
        } else {
            return;
        };
        let uid = uid_of(&*request);
        let pod = pod.map(|pod| pod.uid.clone()).unwrap_or_default();
        let handled = self.handled_requests.entry(uid.into()).or_default();
        let deletion_requested = std::mem::replace(&mut handled.deletion_requested, true);
        if is_for_pod && request.failed_for_good() && !std::mem::replace(&mut handled.failure_counted, true) {
            let (node, message) = (request.selected_node(), request.reason().to_owned());
            self.assumptions.drop_assumption(&pod);
            self.assumptions.record_bind_failure(&pod, node, message, self.now);
            self.refresh_pod(&pod_key);
            self.suspect_reservations(&request);
        }
        if !deletion_requested {
            self.outbox.stale_bind_requests.push(StaleBindRequest {
                key: key.clone(),
                uid: uid.to_owned(),
                reason,
            });
        }
    }

    /// The scheduler could not delete the bind request: the mirror puts it into the outbox again after a pause.
    pub fn deletion_failed(&mut self, request: &StaleBindRequest) {
        if let Some(handled) = self.handled_requests.get_mut(request.uid.as_str()) {
            handled.deletion_requested = false;
            self.deletion_retries
                .push((self.now + DELETION_RETRY_DELAY, request.key.clone()));
        }
    }

    /// Checks bind requests again whose deletion failed a while ago.
    pub(super) fn retry_deletions(&mut self) {
        let now = self.now;
        let (due, later) = std::mem::take(&mut self.deletion_retries)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.deletion_retries = later;
        let due: Vec<(Millis, ObjectKey)> = due;
        for (_, key) in due {
            self.check_request(&key);
        }
    }

    fn unlink(&mut self, pod: &ObjectKey, request: &ObjectKey) {
        if let Some(of_pod) = self.bind_requests_by_pod.get_mut(pod) {
            of_pod.retain(|key| key != request);
            if of_pod.is_empty() {
                self.bind_requests_by_pod.remove(pod);
            }
        }
    }
}

fn pod_of(key: &ObjectKey, request: &BindRequest) -> ObjectKey {
    ObjectKey::new(&key.namespace, request.pod_name())
}
