//! Volume claims of waiting pods. A claim that is bound limits its pod to the nodes that reach the volume; one that is not keeps the
//! pod waiting, since binding volumes late is not supported yet.

use std::sync::Arc;

use kai_api::{Object, ObjectKey, PersistentVolume, PersistentVolumeClaim, Pod};
use kai_engine::model::{NodeSelectorTerm, PodSpec};
use kai_engine::steps;
use rustc_hash::{FxHashMap, FxHashSet};

use super::ClusterMirror;

/// Combining the alternatives of several volumes multiplies them; pods beyond this many are refused.
const TERMS_MAX: usize = 64;

/// Claims, volumes, and the pods that wait with them.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    claims: FxHashMap<ObjectKey, Arc<PersistentVolumeClaim>>,
    volumes: FxHashMap<Box<str>, Arc<PersistentVolume>>,
    users: FxHashMap<ObjectKey, FxHashSet<ObjectKey>>,
}

impl ClusterMirror {
    /// The volume claim was added or changed.
    pub fn apply_volume_claim(&mut self, key: &ObjectKey, claim: &Arc<PersistentVolumeClaim>) {
        self.volumes.claims.insert(key.clone(), Arc::clone(claim));
        self.refresh_users(key);
    }

    /// The volume claim was deleted.
    pub fn remove_volume_claim(&mut self, key: &ObjectKey) {
        self.volumes.claims.remove(key);
        self.refresh_users(key);
    }

    /// The volume was added or changed.
    pub fn apply_volume(&mut self, volume: &Arc<PersistentVolume>) {
        let name = volume.metadata().plain_name();
        self.volumes.volumes.insert(name.into(), Arc::clone(volume));
        if let Some((namespace, claim)) = volume.claim() {
            self.refresh_users(&ObjectKey::new(namespace, claim));
        }
    }

    /// The volume was deleted.
    pub fn remove_volume(&mut self, name: &str) {
        if let Some(volume) = self.volumes.volumes.remove(name)
            && let Some((namespace, claim)) = volume.claim()
        {
            self.refresh_users(&ObjectKey::new(namespace, claim));
        }
    }

    /// Limits the pod to where its volumes are, or refuses it.
    pub(super) fn follow_volumes(&mut self, key: &ObjectKey, pod: &Pod, spec: &mut PodSpec) {
        // Many volumes may have one claim: each claim limits the pod once.
        let mut followed = FxHashSet::default();
        for claim in pod.volume_claims() {
            steps::count(1);
            let name = claim.claim_name(&key.name);
            let claim = ObjectKey::new(&key.namespace, &name);
            if !followed.insert(claim.clone()) {
                continue;
            }
            self.volumes.users.entry(claim.clone()).or_default().insert(key.clone());
            if let Err(refusal) = self.volumes.limit(&claim, spec) {
                spec.refused.get_or_insert(refusal);
            }
        }
    }

    /// The pod does not wait for its claims any more.
    pub(super) fn leave_volumes(&mut self, key: &ObjectKey, pod: &Pod) {
        for claim in pod.volume_claims() {
            let claim = ObjectKey::new(&key.namespace, &claim.claim_name(&key.name));
            if let Some(users) = self.volumes.users.get_mut(&claim) {
                users.remove(key);
                if users.is_empty() {
                    self.volumes.users.remove(&claim);
                }
            }
        }
    }

    fn refresh_users(&mut self, claim: &ObjectKey) {
        let users: Vec<ObjectKey> = self.volumes.users.get(claim).into_iter().flatten().cloned().collect();
        for pod in users {
            self.refresh_pod(&pod);
        }
    }
}

impl Volumes {
    fn limit(&self, claim: &ObjectKey, spec: &mut PodSpec) -> Result<(), String> {
        let name = &claim.name;
        let Some(object) = self.claims.get(claim) else {
            return Err(format!("persistent volume claim {name} does not exist"));
        };
        if object.is_lost() {
            return Err(format!("persistent volume claim {name} lost its volume"));
        }
        let Some(volume) = object.volume_name().filter(|_| object.is_bound()) else {
            return Err(format!(
                "persistent volume claim {name} is not bound; claims that wait for their first consumer are not supported yet: use a \
                 storage class with immediate binding"
            ));
        };
        let Some(volume) = self.volumes.get(volume) else {
            return Err(format!("persistent volume {volume} of claim {name} does not exist"));
        };
        let terms = volume.node_terms().map_err(|problem| problem.to_string())?;
        if let Some(terms) = terms {
            spec.constraints.required_nodes =
                Some(both(spec.constraints.required_nodes.take(), terms).ok_or_else(|| {
                    format!(
                        "the volumes of the pod are bound to too many different sets of nodes ({TERMS_MAX} at most)"
                    )
                })?);
        }
        Ok(())
    }
}

/// Terms that match where one of each list does; `None` if there are too many.
fn both(left: Option<Vec<NodeSelectorTerm>>, right: Vec<NodeSelectorTerm>) -> Option<Vec<NodeSelectorTerm>> {
    let Some(left) = left else { return Some(right) };
    let matches_some = |term: &&NodeSelectorTerm| !term.labels.is_empty() || !term.fields.is_empty();
    let mut terms = Vec::new();
    for a in left.iter().filter(matches_some) {
        for b in right.iter().filter(matches_some) {
            steps::count(a.labels.len() + a.fields.len() + b.labels.len() + b.fields.len());
            let mut term = a.clone();
            term.labels.extend(b.labels.iter().cloned());
            term.fields.extend(b.fields.iter().cloned());
            terms.push(term);
        }
    }
    (terms.len() <= TERMS_MAX).then_some(terms)
}
