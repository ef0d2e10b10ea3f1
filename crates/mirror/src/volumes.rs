//! Volume claims of pending pods. A bound claim restricts its pod to the nodes that reach the volume. A claim whose storage class waits for
//! the first consumer gets its volume together with the pod's node: the engine chooses both, from the pools of [`pools`]. Every other claim
//! without a volume keeps its pod pending.

mod in_use;
mod pools;
mod storage;

use std::sync::Arc;

use kai_api::{
    ConditionStatus, Object, ObjectKey, PersistentVolume, PersistentVolumeClaim, Pod, PodCondition, StorageClass,
    VolumeBinding, VolumeClaim,
};
use kai_engine::model::{Event, FreeVolume, NodeSelectorTerm, PodSpec, StorageRequest, UnboundClaim};
use kai_engine::reasons::Refusal;
use kai_engine::steps;
use rustc_hash::{FxHashMap, FxHashSet};

use self::in_use::ClaimUse;
use self::pools::{Pools, REQUESTS_MAX, Source};
use self::storage::Storage;
use super::{ClusterMirror, ObjectList};

/// Node selector terms of all volumes of one pod: the check of a node compares each. A pod beyond this is refused.
const TERMS_MAX: usize = 64;
/// Claims of one pod that get their volume with its node: the check of a node finds each a volume. A pod beyond this is refused.
const UNBOUND_CLAIMS_MAX: usize = 16;

/// Claims, volumes and storage classes, and the pending pods by the claims that they name.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    claims: FxHashMap<ObjectKey, Arc<PersistentVolumeClaim>>,
    volumes: FxHashMap<Box<str>, Arc<PersistentVolume>>,
    classes: FxHashMap<Box<str>, Arc<StorageClass>>,
    /// Every volume, free or not, as pools have it; those with an invalid node affinity are missing.
    described: FxHashMap<Box<str>, Arc<FreeVolume>>,
    /// Names of the volumes of each storage class.
    by_class: FxHashMap<Box<str>, FxHashSet<Box<str>>>,
    /// Names of the volumes that name a claim, whether or not the claim is bound to them.
    by_claim: FxHashMap<ObjectKey, FxHashSet<Box<str>>>,
    pending_pods: FxHashMap<ObjectKey, FxHashSet<ObjectKey>>,
    /// All pods that have not ended, by the claims that they name.
    users: FxHashMap<ObjectKey, FxHashSet<ObjectKey>>,
    storage: Storage,
    pools: Pools,
}

/// What a claim means for its pod.
enum Need {
    /// The claim is bound: one of the terms must match the node; `None` = any node.
    Bound(Option<Vec<NodeSelectorTerm>>),
    /// The claim gets its volume with the pod's node.
    Unbound {
        from: Source,
        many_nodes: bool,
        /// What the claim asks for; smaller claims choose first.
        bytes: i64,
        /// What a new volume takes; `None` = nobody counts it.
        storage: Option<StorageRequest>,
    },
}

impl ClusterMirror {
    /// The volume claim was added or changed.
    pub fn apply_volume_claim(&mut self, key: &ObjectKey, claim: &Arc<PersistentVolumeClaim>) {
        let before = self.volumes.use_of(key);
        self.volumes.claims.insert(key.clone(), Arc::clone(claim));
        self.refresh_users_of_claim(key, &before);
    }

    /// The volume claim was deleted.
    pub fn remove_volume_claim(&mut self, key: &ObjectKey) {
        let before = self.volumes.use_of(key);
        self.volumes.claims.remove(key);
        self.refresh_users_of_claim(key, &before);
    }

    /// The volume was added or changed.
    pub fn apply_volume(&mut self, volume: &Arc<PersistentVolume>) {
        let name: Box<str> = volume.metadata().plain_name().into();
        let before = self.volumes.volumes.get(&name).map(Arc::clone);
        let claims = self.claims_of_change(before.as_deref(), Some(volume));
        if let Some(before) = &before {
            self.volumes.unlist(&name, before);
        }
        self.volumes.volumes.insert(name.clone(), Arc::clone(volume));
        self.volumes.list(name, volume);
        self.refresh_users_of_claims(claims);
    }

    /// The volume was deleted.
    pub fn remove_volume(&mut self, name: &str) {
        if let Some(volume) = self.volumes.volumes.get(name).map(Arc::clone) {
            let claims = self.claims_of_change(Some(&volume), None);
            self.volumes.volumes.remove(name);
            self.volumes.unlist(name, &volume);
            self.refresh_users_of_claims(claims);
        }
    }

    /// The volume claim of this name.
    pub fn volume_claim(&self, key: &ObjectKey) -> Option<&Arc<PersistentVolumeClaim>> {
        self.volumes.claims.get(key)
    }

    /// The volume of this name.
    pub fn volume(&self, name: &str) -> Option<&Arc<PersistentVolume>> {
        self.volumes.volumes.get(name)
    }

    /// The storage class of this name.
    pub fn storage_class(&self, name: &str) -> Option<&Arc<StorageClass>> {
        self.volumes.classes.get(name)
    }

    /// The storage class was added or changed.
    pub fn apply_storage_class(&mut self, class: &Arc<StorageClass>) {
        let name = class.metadata().plain_name();
        self.volumes.classes.insert(name.into(), Arc::clone(class));
        self.refresh_pods_of_class(name);
    }

    /// The storage class was deleted.
    pub fn remove_storage_class(&mut self, name: &str) {
        self.volumes.classes.remove(name);
        self.refresh_pods_of_class(name);
    }

    /// Adds to the pod what its volumes need, or refuses the pod with the reason.
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
        let mut unbound: Vec<(i64, UnboundClaim)> = Vec::new();
        // Several volumes may name one claim; each claim restricts the pod once.
        let mut seen = FxHashSet::default();
        for named in pod.volume_claims() {
            steps::count(1);
            let claim = ObjectKey::new(&key.namespace, &named.claim_name(&key.name));
            if !seen.insert(claim.clone()) {
                continue;
            }
            let volumes = &mut self.volumes;
            let users = volumes.pending_pods.entry(claim.clone()).or_default();
            users.insert(key.clone());
            match volumes.need(&claim, named, &spec.uid) {
                Err(refusal) => {
                    volumes.pools.leave(&claim);
                    spec.refused.get_or_insert(refusal);
                }
                Ok(Need::Bound(terms)) => {
                    volumes.pools.leave(&claim);
                    spec.constraints.volume_nodes.extend(terms);
                }
                Ok(Need::Unbound {
                    from,
                    many_nodes,
                    bytes,
                    storage,
                }) => {
                    let Some(pool) = volumes.pools.join(&claim, from) else {
                        spec.refused.get_or_insert(Refusal::VolumeRequestsExceeded {
                            namespace: key.namespace.to_string(),
                            max: REQUESTS_MAX,
                        });
                        continue;
                    };
                    let claim = claim.to_string();
                    unbound.push((
                        bytes,
                        UnboundClaim {
                            claim,
                            pool,
                            many_nodes,
                            storage,
                        },
                    ));
                }
            }
        }
        let terms = spec.constraints.volume_nodes.iter().map(Vec::len).sum::<usize>();
        if terms > TERMS_MAX {
            spec.constraints.volume_nodes.clear();
            spec.refused
                .get_or_insert(Refusal::VolumeTermsExceeded { max: TERMS_MAX });
        }
        if unbound.len() > UNBOUND_CLAIMS_MAX {
            unbound.clear();
            spec.refused.get_or_insert(Refusal::UnboundClaimsExceeded {
                max: UNBOUND_CLAIMS_MAX,
            });
        }
        unbound.sort_by(|a, b| (a.0, &a.1.claim).cmp(&(b.0, &b.1.claim)));
        spec.constraints.claims = unbound.into_iter().map(|(_, claim)| claim).collect();
    }

    /// The pod is bound or gone.
    pub(super) fn forget_volume_user(&mut self, key: &ObjectKey, pod: &Pod) {
        for claim in pod.volume_claims() {
            let claim = ObjectKey::new(&key.namespace, &claim.claim_name(&key.name));
            if let Some(pods) = self.volumes.pending_pods.get_mut(&claim) {
                pods.remove(key);
                if pods.is_empty() {
                    self.volumes.pending_pods.remove(&claim);
                    self.volumes.pools.leave(&claim);
                }
            }
        }
    }

    /// Sends the pools that changed to the engine.
    pub(super) fn send_volume_pools(&mut self) {
        while let Some(claim) = self.volumes.pools.next_admitted() {
            self.refresh_pods_of_claim(&claim);
            self.volumes.pools.pass_on_turn(&claim);
        }
        let Volumes {
            pools,
            volumes,
            classes,
            described,
            by_class,
            storage,
            ..
        } = &mut self.volumes;
        for name in pools.take_unused() {
            self.outbox.events.push(Event::VolumePoolGone(name));
        }
        let objects = pools::Objects {
            volumes,
            classes,
            described,
            by_class,
            storage,
        };
        let changed = pools.take_changed(&objects);
        self.outbox.events.extend(changed.into_iter().map(Event::VolumePool));
    }

    fn refresh_pods_of_class(&mut self, class: &str) {
        self.volumes.pools.class_changed(class);
        let pending = self.volumes.pending_pods.keys();
        let of_class = |claim: &&ObjectKey| {
            let claim = self.volumes.claims.get(*claim);
            claim.is_some_and(|claim| claim.storage_class_name() == Some(class))
        };
        let claims: Vec<ObjectKey> = pending.filter(of_class).cloned().collect();
        for claim in claims {
            self.refresh_pods_of_claim(&claim);
        }
    }

    /// The claims that a volume names before and after a change, with what they mean before it.
    fn claims_of_change(
        &self,
        before: Option<&PersistentVolume>,
        after: Option<&PersistentVolume>,
    ) -> Vec<(ObjectKey, ClaimUse)> {
        let mut claims: Vec<ObjectKey> = [before, after].into_iter().flatten().filter_map(claim_of).collect();
        claims.dedup();
        let of_claim = |claim: ObjectKey| {
            let used = self.volumes.use_of(&claim);
            (claim, used)
        };
        claims.into_iter().map(of_claim).collect()
    }

    fn refresh_users_of_claims(&mut self, claims: Vec<(ObjectKey, ClaimUse)>) {
        for (claim, before) in claims {
            self.refresh_users_of_claim(&claim, &before);
        }
    }

    /// Refreshes the pods of a claim that changed. Its pods on nodes are the same if the claim means what it meant before.
    fn refresh_users_of_claim(&mut self, claim: &ObjectKey, before: &ClaimUse) {
        if self.volumes.use_of(claim) == *before {
            return self.refresh_pods_of_claim(claim);
        }
        let pods = self.volumes.users.get(claim).into_iter().flatten();
        let pods: Vec<ObjectKey> = pods.cloned().collect();
        for pod in pods {
            self.refresh_pod(&pod);
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

/// The claim that a volume names.
fn claim_of(volume: &PersistentVolume) -> Option<ObjectKey> {
    volume
        .claim()
        .map(|(namespace, claim)| ObjectKey::new(namespace, claim))
}

impl Volumes {
    fn list(&mut self, name: Box<str>, volume: &PersistentVolume) {
        self.pools.volume_changed(&name, volume);
        if let Some(claim) = claim_of(volume) {
            self.by_claim.entry(claim).or_default().insert(name.clone());
        }
        if let Some(described) = pools::describe(volume) {
            self.described.insert(name.clone(), Arc::new(described));
        }
        let class = volume.storage_class_name().unwrap_or_default();
        self.by_class.entry(class.into()).or_default().insert(name);
    }

    fn unlist(&mut self, name: &str, volume: &PersistentVolume) {
        self.pools.volume_changed(name, volume);
        self.described.remove(name);
        if let Some(claim) = claim_of(volume)
            && let Some(names) = self.by_claim.get_mut(&claim)
        {
            names.remove(name);
            if names.is_empty() {
                self.by_claim.remove(&claim);
            }
        }
        let class = volume.storage_class_name().unwrap_or_default();
        if let Some(names) = self.by_class.get_mut(class) {
            names.remove(name);
            if names.is_empty() {
                self.by_class.remove(class);
            }
        }
    }

    /// What the claim means for a pod of this uid that names it.
    fn need(&self, key: &ObjectKey, named: &VolumeClaim, pod: &str) -> Result<Need, Refusal> {
        let name = || key.name.to_string();
        let Some(claim) = self.claims.get(key) else {
            return Err(match named {
                VolumeClaim::Persistent { .. } => Refusal::VolumeClaimMissing { claim: name() },
                VolumeClaim::Ephemeral { .. } => Refusal::EphemeralClaimMissing { claim: name() },
            });
        };
        let is_of_pod = || claim.metadata.controller().is_some_and(|owner| &*owner.uid == pod);
        match named {
            VolumeClaim::Ephemeral { .. } if !is_of_pod() => {
                return Err(Refusal::EphemeralClaimForeign { claim: name() });
            }
            VolumeClaim::Ephemeral { .. } | VolumeClaim::Persistent { .. } => {}
        }
        if claim.metadata.is_terminating() {
            return Err(Refusal::VolumeClaimDeleted { claim: name() });
        }
        if claim.is_lost() {
            return Err(Refusal::VolumeClaimLost {
                claim: name(),
                volume: claim.volume_name().unwrap_or_default().to_owned(),
            });
        }
        if claim.is_bound() {
            return self.terms_of_volume(key, claim).map(Need::Bound);
        }
        self.unbound(key, claim)
    }

    /// The terms of the volume that the claim is bound to.
    fn terms_of_volume(
        &self,
        key: &ObjectKey,
        claim: &PersistentVolumeClaim,
    ) -> Result<Option<Vec<NodeSelectorTerm>>, Refusal> {
        let volume = claim.volume_name().unwrap_or_default();
        let Some(volume) = self.volumes.get(volume) else {
            return Err(Refusal::VolumeMissing {
                volume: volume.to_owned(),
                claim: key.name.to_string(),
            });
        };
        volume
            .node_terms()
            .map_err(|problem| Refusal::VolumeInvalid(Box::new(problem)))
    }

    fn unbound(&self, key: &ObjectKey, claim: &PersistentVolumeClaim) -> Result<Need, Refusal> {
        let name = || key.name.to_string();
        // A claim that names a volume, or no class, waits for no pod.
        let class = claim.storage_class_name().filter(|class| !class.is_empty());
        let Some(class) = class.filter(|_| claim.volume_name().is_none()) else {
            return Err(Refusal::VolumeClaimUnbound { claim: name() });
        };
        let object = self.classes.get(class);
        match object.map(|class| class.volume_binding()) {
            None => {
                let class = class.to_owned();
                return Err(Refusal::StorageClassMissing { claim: name(), class });
            }
            Some(VolumeBinding::Immediate) => return Err(Refusal::VolumeClaimUnbound { claim: name() }),
            Some(VolumeBinding::WaitForFirstConsumer) => {}
        }
        let request = claim
            .request()
            .map_err(|problem| Refusal::VolumeInvalid(Box::new(problem)))?;
        let bytes = request.bytes;
        let counted = object.filter(|class| self.storage.is_counted(class));
        let storage = counted.map(|_| StorageRequest {
            class: class.to_owned(),
            bytes,
        });
        let uid = claim.metadata.uid.as_deref();
        let is_reserved = |name: &str| {
            let volume = self.volumes.get(name);
            volume.is_some_and(|volume| volume.claim_uid().is_none_or(|reserved| Some(reserved) == uid))
        };
        let named = self.by_claim.get(key).into_iter().flatten();
        let reserved = named.filter(|volume| is_reserved(volume)).min();
        let from = match (reserved, claim.selected_node()) {
            (Some(volume), _) => Source::Reserved(volume.clone()),
            (None, Some(node)) => Source::MadeFor(node.into()),
            (None, None) => Source::Request(Box::new(request)),
        };
        Ok(Need::Unbound {
            from,
            many_nodes: claim.is_for_many_nodes(),
            bytes,
            storage,
        })
    }
}
