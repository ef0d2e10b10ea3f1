//! Bind requests: which pod each is for, and which are of no use any more.

use std::sync::Arc;

use kai_api::{BindPhase, BindRequest, Object, ObjectKey};
use kai_engine::model::Millis;

use super::{ClusterMirror, StaleRequest, uid_of};

/// A deletion that failed is tried again after this time.
const RECHECK_AFTER: Millis = Millis::seconds(5);

/// What was done about a bind request, so that it is done once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Judged {
    /// Its failure was counted against the node.
    blamed: bool,
    /// Its deletion was asked for.
    condemned: bool,
}

impl ClusterMirror {
    /// The bind request was added or changed.
    pub fn apply_bind_request(&mut self, key: &ObjectKey, request: &Arc<BindRequest>) {
        let pod = pod_of(key, request);
        if let Some(before) = self.requests.insert(key.clone(), Arc::clone(request)) {
            let before = pod_of(key, &before);
            if before != pod {
                self.unlink(&before, key);
            }
        }
        let of = self.requests_of.entry(pod.clone()).or_default();
        if !of.contains(key) {
            of.push(key.clone());
        }
        self.check_request(key);
        self.refresh_pod(&pod);
    }

    /// The bind request was deleted.
    pub fn remove_bind_request(&mut self, key: &ObjectKey) {
        let Some(request) = self.requests.remove(key) else {
            return;
        };
        let pod = pod_of(key, &request);
        self.judged.remove(uid_of(&*request));
        self.unlink(&pod, key);
        self.refresh_pod(&pod);
        if request.phase() == BindPhase::Pending {
            self.presume_held(&request);
        }
    }

    /// The bind request that counts for a pod: one made for it and not given up.
    pub(super) fn request_for(&self, pod: &ObjectKey, uid: &str) -> Option<&Arc<BindRequest>> {
        let keys = self.requests_of.get(pod)?;
        let requests = keys.iter().filter_map(|key| self.requests.get(key));
        requests
            .filter(|request| is_for(request, uid) && !request.failed_for_good())
            .min_by_key(|request| request.metadata().plain_name())
    }

    /// The node left the partition: what is to be bound there won't be.
    pub(super) fn check_requests_to(&mut self, node: &str) {
        let there = self
            .requests
            .iter()
            .filter(|(_, request)| request.selected_node() == node);
        let keys: Vec<ObjectKey> = there.map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.check_request(&key);
            if let Some(pod) = self.requests.get(&key).map(|request| pod_of(&key, request)) {
                self.refresh_pod(&pod);
            }
        }
    }

    /// Has bind requests checked again: once all lists are complete, since before that every node seems gone.
    pub(super) fn check_all_requests(&mut self) {
        let keys: Vec<ObjectKey> = self.requests.keys().cloned().collect();
        for key in keys {
            self.check_request(&key);
        }
    }

    /// Puts it up for deletion if it is of no use. A failure is counted against its node.
    fn check_request(&mut self, key: &ObjectKey) {
        let Some(request) = self.requests.get(key).map(Arc::clone) else {
            return;
        };
        if request.metadata().is_terminating() || !self.partition.takes(request.metadata()) {
            return;
        }
        let pod_key = pod_of(key, &request);
        let pod = self.pods.get(&pod_key);
        let mine = pod.is_some_and(|pod| is_for(&request, &pod.uid));
        let why = if pod.is_some() && !mine {
            "it was for an earlier pod of the same name"
        } else if request.failed_for_good() {
            "it failed"
        } else if self.ready && request.phase() != BindPhase::Succeeded && !self.has_node(request.selected_node()) {
            "its node is not in this partition"
        } else {
            return;
        };
        let uid = uid_of(&*request);
        let pod = pod.map(|pod| pod.uid.clone()).unwrap_or_default();
        let judged = self.judged.entry(uid.into()).or_default();
        let condemned = std::mem::replace(&mut judged.condemned, true);
        if mine && request.failed_for_good() && !std::mem::replace(&mut judged.blamed, true) {
            let (node, message) = (request.selected_node(), request.reason().to_owned());
            self.assumptions.drop_assumption(&pod);
            self.assumptions.failed(&pod, node, message, self.now);
            self.refresh_pod(&pod_key);
            self.presume_held(&request);
        }
        if !condemned {
            self.outbox.to_delete.push(StaleRequest {
                key: key.clone(),
                uid: uid.to_owned(),
                why,
            });
        }
    }

    /// Its deletion failed: it is asked for again in a while.
    pub fn clean_up_failed(&mut self, request: &StaleRequest) {
        if let Some(judged) = self.judged.get_mut(request.uid.as_str()) {
            judged.condemned = false;
            self.recheck.push((self.now + RECHECK_AFTER, request.key.clone()));
        }
    }

    /// Looks again at bind requests that could not be deleted.
    pub(super) fn recheck_requests(&mut self) {
        let now = self.now;
        let (due, later) = std::mem::take(&mut self.recheck)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.recheck = later;
        let due: Vec<(Millis, ObjectKey)> = due;
        for (_, key) in due {
            self.check_request(&key);
        }
    }

    fn unlink(&mut self, pod: &ObjectKey, request: &ObjectKey) {
        if let Some(of) = self.requests_of.get_mut(pod) {
            of.retain(|key| key != request);
            if of.is_empty() {
                self.requests_of.remove(pod);
            }
        }
    }
}

fn pod_of(key: &ObjectKey, request: &BindRequest) -> ObjectKey {
    ObjectKey::new(&key.namespace, request.pod_name())
}

/// Requests of KAI name their pod as owner; one without an owner is taken at its word.
fn is_for(request: &BindRequest, uid: &str) -> bool {
    let mut pods = request
        .metadata()
        .owner_references
        .iter()
        .filter(|owner| &*owner.kind == "Pod");
    pods.next().is_none_or(|owner| &*owner.uid == uid)
}
