//! Volume claims of pending pods. A bound claim restricts its pod to the nodes that reach the volume. A claim that is not bound keeps the
//! pod pending: binding at the first consumer (`WaitForFirstConsumer`) is not supported yet.

use std::sync::Arc;

use kai_api::{ConditionStatus, Object, ObjectKey, PersistentVolume, PersistentVolumeClaim, Pod, PodCondition};
use kai_engine::model::{NodeSelectorTerm, PodSpec};
use kai_engine::reasons::Refusal;
use kai_engine::steps;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{ClusterMirror, ObjectList};

/// Node selector terms that the volumes of one pod may lead to. Terms of several volumes multiply; a pod beyond this is refused.
const TERMS_MAX: usize = 64;

/// Claims, volumes, and the pending pods by the claims that they name.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    claims: FxHashMap<ObjectKey, Arc<PersistentVolumeClaim>>,
    volumes: FxHashMap<Box<str>, Arc<PersistentVolume>>,
    pending_pods: FxHashMap<ObjectKey, FxHashSet<ObjectKey>>,
}

impl ClusterMirror {
    /// The volume claim was added or changed.
    pub fn apply_volume_claim(&mut self, key: &ObjectKey, claim: &Arc<PersistentVolumeClaim>) {
        self.volumes.claims.insert(key.clone(), Arc::clone(claim));
        self.refresh_pods_of_claim(key);
    }

    /// The volume claim was deleted.
    pub fn remove_volume_claim(&mut self, key: &ObjectKey) {
        self.volumes.claims.remove(key);
        self.refresh_pods_of_claim(key);
    }

    /// The volume was added or changed.
    pub fn apply_volume(&mut self, volume: &Arc<PersistentVolume>) {
        let name = volume.metadata().plain_name();
        self.volumes.volumes.insert(name.into(), Arc::clone(volume));
        if let Some((namespace, claim)) = volume.claim() {
            self.refresh_pods_of_claim(&ObjectKey::new(namespace, claim));
        }
    }

    /// The volume was deleted.
    pub fn remove_volume(&mut self, name: &str) {
        if let Some(volume) = self.volumes.volumes.remove(name)
            && let Some((namespace, claim)) = volume.claim()
        {
            self.refresh_pods_of_claim(&ObjectKey::new(namespace, claim));
        }
    }

    /// Restricts the pod to the nodes that reach its volumes, or refuses the pod with the reason.
    pub(super) fn apply_volume_constraints(&mut self, key: &ObjectKey, pod: &Pod, spec: &mut PodSpec) {
        match self.volume_list {
            ObjectList::Complete => {}
            ObjectList::Unknown => return,
            ObjectList::ByCondition => {
                if !pod.volume_claims().is_empty() {
                    keep_condition(pod, spec);
                }
                return;
            }
        }
        // Several volumes may name one claim; each claim restricts the pod once.
        let mut seen = FxHashSet::default();
        for claim in pod.volume_claims() {
            steps::count(1);
            let name = claim.claim_name(&key.name);
            let claim = ObjectKey::new(&key.namespace, &name);
            if !seen.insert(claim.clone()) {
                continue;
            }
            self.volumes
                .pending_pods
                .entry(claim.clone())
                .or_default()
                .insert(key.clone());
            if let Err(refusal) = self.volumes.restrict(&claim, spec) {
                spec.refused.get_or_insert(refusal);
            }
        }
    }

    /// The pod is bound or gone.
    pub(super) fn forget_volume_user(&mut self, key: &ObjectKey, pod: &Pod) {
        for claim in pod.volume_claims() {
            let claim = ObjectKey::new(&key.namespace, &claim.claim_name(&key.name));
            if let Some(pods) = self.volumes.pending_pods.get_mut(&claim) {
                pods.remove(key);
                if pods.is_empty() {
                    self.volumes.pending_pods.remove(&claim);
                }
            }
        }
    }

    fn refresh_pods_of_claim(&mut self, claim: &ObjectKey) {
        let pods = self.volumes.pending_pods.get(claim).into_iter().flatten();
        let pods: Vec<ObjectKey> = pods.cloned().collect();
        for pod in pods {
            self.refresh_pod(&pod);
        }
    }
}

/// Refuses the pod with the message of the scheduler's condition, if it has one: what the scheduler knows is not known here.
pub(super) fn keep_condition(pod: &Pod, spec: &mut PodSpec) {
    let condition = pod.condition(PodCondition::SCHEDULED);
    let condition = condition.filter(|condition| condition.status == ConditionStatus::False);
    if let Some(message) = condition.and_then(|condition| condition.message.as_deref()) {
        spec.refused
            .get_or_insert_with(|| Refusal::AsTheConditionSays(message.to_owned()));
    }
}

impl Volumes {
    fn restrict(&self, claim: &ObjectKey, spec: &mut PodSpec) -> Result<(), Refusal> {
        let name = || claim.name.to_string();
        let Some(object) = self.claims.get(claim) else {
            return Err(Refusal::VolumeClaimMissing { claim: name() });
        };
        if object.is_lost() {
            return Err(Refusal::VolumeClaimLost { claim: name() });
        }
        let Some(volume) = object.volume_name().filter(|_| object.is_bound()) else {
            return Err(Refusal::VolumeClaimUnbound { claim: name() });
        };
        let Some(volume) = self.volumes.get(volume) else {
            return Err(Refusal::VolumeMissing {
                volume: volume.to_owned(),
                claim: name(),
            });
        };
        let terms = volume
            .node_terms()
            .map_err(|problem| Refusal::VolumeInvalid(Box::new(problem)))?;
        if let Some(terms) = terms {
            let terms = intersect(spec.constraints.required_nodes.take(), terms);
            spec.constraints.required_nodes = Some(terms.ok_or(Refusal::VolumeTermsExceeded { max: TERMS_MAX })?);
        }
        Ok(())
    }
}

/// Terms that match the nodes which a term of each list matches; `None` if there are too many.
fn intersect(left: Option<Vec<NodeSelectorTerm>>, right: Vec<NodeSelectorTerm>) -> Option<Vec<NodeSelectorTerm>> {
    let Some(left) = left else { return Some(right) };
    // A term without requirements matches no node.
    let is_satisfiable = |term: &&NodeSelectorTerm| !term.labels.is_empty() || !term.fields.is_empty();
    let mut terms = Vec::new();
    for a in left.iter().filter(is_satisfiable) {
        for b in right.iter().filter(is_satisfiable) {
            steps::count(a.labels.len() + a.fields.len() + b.labels.len() + b.fields.len());
            let mut term = a.clone();
            term.labels.extend(b.labels.iter().cloned());
            term.fields.extend(b.fields.iter().cloned());
            terms.push(term);
        }
    }
    (terms.len() <= TERMS_MAX).then_some(terms)
}
