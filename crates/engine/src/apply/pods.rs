//! Events about pods.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::affinity::TermsState;
use crate::cluster::Cluster;
use crate::ids::{GangId, PodId, ShapeId, Symbol};
use crate::model::{AFFINITY_TERMS_MAX, Constraints, Millis, PodKind, PodPhase, PodSpec, TaskRank, UsedVolumes};
use crate::reasons::Refusal;
use crate::report::Status;
use crate::tables::{ChosenVolume, ChosenVolumes, DriverVolumes, PackedLabels, Placement, Pod, PodVolumes, add_row};

impl Cluster {
    pub(super) fn apply_pod(&mut self, mut spec: PodSpec) {
        limit_affinity_terms(&mut spec);
        let namespace = self.ledger.symbols.intern(&spec.namespace);
        let labels = PackedLabels::new(&spec.labels);
        let (requests, mut constraints) = (
            std::mem::take(&mut spec.requests),
            std::mem::take(&mut spec.constraints),
        );
        let storage = storage_of_claims(&spec, &constraints);
        let claims = names_of_claims(&mut constraints);
        let shape = self.shape_id(requests, constraints, namespace);
        let known = self.pod_ids.get(spec.uid.as_str()).map(|id| self.ledger.pod(*id));
        // Most events of a pod leave these as they are; then the pod keeps its place in the affinity index.
        let kept = known
            .filter(|row| row.shape == shape && row.namespace == namespace && row.labels == labels)
            .map(|row| (row.labels.clone(), row.label_set, row.terms));
        let id = self.detached_pod(&spec.uid, kept.is_some());
        let (observed_node_name, placement) = self.observe(id, &spec, &storage);
        let gang = self.gang_of(&spec);
        self.ledger.pods[id.index()] = Pod {
            observed_node_name,
            gang,
            claims,
            ..self.pod_row(spec, namespace, shape, labels)
        };
        match kept {
            Some((labels, label_set, terms)) => {
                let row = &mut self.ledger.pods[id.index()];
                (row.labels, row.label_set, row.terms) = (labels, label_set, terms);
            }
            None => self.index_terms(id),
        }
        if let Some(gang) = gang {
            self.add_to_pod_set(gang, id);
            self.ledger.count_pod(id, 1);
        }
        self.ledger.set_observed(id, placement);
    }

    /// The name of the node on which the pod was observed, and the pod's placement there.
    fn observe(&mut self, id: PodId, spec: &PodSpec, storage: &ClaimStorage) -> (Option<Symbol>, Placement) {
        let (status, node, groups) = observed_placement(spec);
        let name = node.map(|name| self.ledger.symbols.intern(name));
        let node = name.and_then(|name| self.node_ids.get(&name).copied());
        if let (Some(name), None) = (name, node) {
            self.pods_on_unknown_nodes.entry(name).or_default().push(id);
        }
        if spec.deletion.is_some() {
            self.terminating_pods.push(id);
        }
        let placement = Placement {
            status,
            node,
            gpu_groups: groups.iter().map(|name| self.gpu_group_names.id(name)).collect(),
            volumes: in_flight_volumes(spec, status, storage),
        };
        (name, placement)
    }

    fn gang_of(&mut self, spec: &PodSpec) -> Option<GangId> {
        let key = spec.gang.as_ref().filter(|_| spec.kind == PodKind::Workload)?;
        Some(self.gang_id(key))
    }

    /// The row of a pod without gang and placement.
    fn pod_row(&mut self, spec: PodSpec, namespace: Symbol, shape: ShapeId, labels: PackedLabels) -> Pod {
        let uid = self.pod_ids.get_key_value(spec.uid.as_str());
        let symbols = &mut self.ledger.symbols;
        Pod {
            uid: uid.expect("the pod was listed just now").0.clone(),
            namespace,
            name: spec.name.into(),
            created: spec.created,
            rank: (spec.rank != TaskRank::default()).then(|| Box::new(spec.rank)),
            kind: spec.kind,
            background: spec.background,
            gang: None,
            sub_group: spec.sub_group.as_deref().map(|name| symbols.intern(name)),
            pod_set: None,
            shape,
            labels,
            label_set: None,
            terms: TermsState::Indexed,
            deletion: spec.deletion,
            nominated: spec.nominated_node.as_deref().map(|name| symbols.intern(name)),
            refused: spec.refused.map(Box::new),
            claims: None,
            volumes: pod_volumes(spec.volumes),
            observed_node_name: None,
            observed: Placement::none(Status::Unknown),
            placement: Placement::none(Status::Unknown),
            old_placement: None,
            evicted_from: None,
        }
    }

    /// The row of the pod of this uid, to which nothing refers: a new one, or that of a known pod once it is detached.
    fn detached_pod(&mut self, uid: &str, keep_terms: bool) -> PodId {
        if let Some(id) = self.pod_ids.get(uid) {
            let id = *id;
            self.detach_pod(id, keep_terms);
            return id;
        }
        let id = self.free_pods.pop().unwrap_or_else(|| {
            add_row(&mut self.ledger.pods, absent_pod());
            PodId::new(self.ledger.pods.len() - 1)
        });
        self.pod_ids.insert(uid.into(), id);
        self.prices.pods_changed += 1;
        id
    }

    pub(super) fn remove_pod(&mut self, uid: &str) {
        let Some(id) = self.pod_ids.remove(uid) else { return };
        self.prices.pods_changed += 1;
        self.detach_pod(id, false);
        self.ledger.pods[id.index()] = absent_pod();
        self.free_pods.push(id);
    }

    /// Adds the pod to the affinity index. The index is empty until a pod has affinity terms; the first such pod adds all pods.
    fn index_terms(&mut self, id: PodId) {
        let enables = self.ledger.has_terms(id) && !self.ledger.affinity.is_enabled();
        if !enables {
            return self.ledger.add_pod_terms(id);
        }
        self.ledger.affinity.enable();
        let mut pods: Vec<PodId> = self.pod_ids.values().copied().collect();
        pods.sort_unstable();
        for pod in pods.into_iter().filter(|pod| *pod != id) {
            self.ledger.add_label_set(pod);
        }
        self.ledger.add_pod_terms(id);
    }

    /// Removes a pod from everything that refers to it, apart from the affinity index if `keep_terms`.
    fn detach_pod(&mut self, id: PodId, keep_terms: bool) {
        self.ledger.remove_placement(id);
        let row = self.ledger.pod(id);
        let waiting_for_node = row
            .observed_node_name
            .and_then(|name| self.pods_on_unknown_nodes.get_mut(&name));
        if let Some(pods) = waiting_for_node {
            pods.retain(|pod| *pod != id);
        }
        if row.deletion.is_some() {
            self.terminating_pods.retain(|pod| *pod != id);
        }
        if !keep_terms {
            self.ledger.remove_pod_terms(id);
        }
        if let Some(gang) = self.ledger.pod(id).gang {
            self.remove_from_pod_set(gang, id);
            self.ledger.pods[id.index()].gang = None;
            self.drop_if_unused(gang);
        }
    }
}

/// Takes the names of the claims out of the constraints: pods whose claims differ in nothing else have one shape.
fn names_of_claims(constraints: &mut Constraints) -> Option<Box<[Arc<str>]>> {
    let claims = &mut constraints.claims;
    let names = claims.iter_mut().map(|claim| std::mem::take(&mut claim.claim).into());
    let names: Box<[Arc<str>]> = names.collect();
    (!names.is_empty()).then_some(names)
}

fn pod_volumes(used: UsedVolumes) -> Option<Arc<PodVolumes>> {
    let UsedVolumes {
        exclusive_claims,
        attached,
    } = used;
    let volumes = PodVolumes {
        exclusive_claims: exclusive_claims.into_iter().map(Arc::from).collect(),
        attached: attached
            .into_iter()
            .map(|(driver, volumes)| DriverVolumes {
                driver: driver.into(),
                volumes: volumes.into_iter().map(Arc::from).collect(),
            })
            .collect(),
    };
    (volumes.count() > 0).then(|| Arc::new(volumes))
}

/// By claim: the class and the bytes of its new volume, for claims whose storage is counted.
type ClaimStorage = FxHashMap<String, (Arc<str>, i64)>;

/// What the claims of a binding in flight take; empty for other pods.
fn storage_of_claims(spec: &PodSpec, constraints: &Constraints) -> ClaimStorage {
    let claims = constraints.claims.iter().filter(|_| spec.bind_in_flight.is_some());
    let counted = claims.filter_map(|claim| {
        let storage = claim.storage.as_ref()?;
        Some((claim.claim.clone(), (storage.class.as_str().into(), storage.bytes)))
    });
    counted.collect()
}

/// The volumes that a binding in flight takes.
fn in_flight_volumes(spec: &PodSpec, status: Status, storage: &ClaimStorage) -> ChosenVolumes {
    let bind = spec.bind_in_flight.as_ref().filter(|_| status == Status::Binding)?;
    let chosen = bind.volumes.iter().map(|choice| ChosenVolume {
        claim: choice.claim.as_str().into(),
        volume: choice.volume.as_deref().map(Arc::from),
        storage: match &choice.volume {
            Some(_) => None,
            None => storage.get(choice.claim.as_str()).cloned(),
        },
    });
    let chosen: Arc<[ChosenVolume]> = chosen.collect();
    (!chosen.is_empty()).then_some(chosen)
}

/// Refuses a pod with too many affinity terms, and drops the terms beyond the bound: such a pod may be running already.
fn limit_affinity_terms(spec: &mut PodSpec) {
    let (near, away) = (&mut spec.constraints.affinity, &mut spec.constraints.anti_affinity);
    let terms = near.required.len() + near.preferred.len() + away.required.len() + away.preferred.len();
    if terms <= AFFINITY_TERMS_MAX {
        return;
    }
    let mut left = AFFINITY_TERMS_MAX;
    for affinity in [away, near] {
        affinity.required.truncate(left);
        left -= affinity.required.len();
        affinity.preferred.truncate(left);
        left -= affinity.preferred.len();
    }
    spec.refused.get_or_insert(Refusal::AffinityTermsExceeded(terms));
}

/// Status, node and GPU groups of a pod, by its spec.
fn observed_placement(spec: &PodSpec) -> (Status, Option<&str>, &[String]) {
    let node = spec.node.as_deref();
    let in_flight = spec.bind_in_flight.as_ref();
    let groups = match in_flight {
        Some(in_flight) if spec.gpu_groups.is_empty() => &in_flight.gpu_groups,
        Some(_) | None => &spec.gpu_groups,
    };
    let status = match (spec.phase, spec.deletion.is_some()) {
        // A pod whose binding is under way holds what it was promised until it is gone.
        (PodPhase::Running | PodPhase::Pending, true) => {
            let promised = || in_flight.map(|in_flight| &*in_flight.node);
            return (Status::Releasing, node.or_else(promised), groups);
        }
        (PodPhase::Running, false) => Status::Running,
        (PodPhase::Pending, false) => match (node, in_flight) {
            (Some(_), _) => Status::Bound,
            (None, Some(in_flight)) => return (Status::Binding, Some(&in_flight.node), groups),
            (None, None) if spec.gated => Status::Gated,
            (None, None) => Status::Pending,
        },
        (PodPhase::Succeeded, _) => Status::Succeeded,
        (PodPhase::Failed, _) => Status::Failed,
        (PodPhase::Unknown, _) => Status::Unknown,
    };
    let groups = if matches!(status, Status::Pending | Status::Gated) {
        &[]
    } else {
        groups.as_slice()
    };
    (status, node, groups)
}

/// The content of an unused row.
fn absent_pod() -> Pod {
    Pod {
        uid: "".into(),
        namespace: Symbol::new(0),
        name: "".into(),
        created: Millis(0),
        rank: None,
        kind: PodKind::Utility,
        background: false,
        gang: None,
        sub_group: None,
        pod_set: None,
        shape: ShapeId::new(0),
        labels: PackedLabels::default(),
        label_set: None,
        terms: TermsState::Indexed,
        deletion: None,
        nominated: None,
        refused: None,
        claims: None,
        volumes: None,
        observed_node_name: None,
        observed: Placement::none(Status::Unknown),
        placement: Placement::none(Status::Unknown),
        old_placement: None,
        evicted_from: None,
    }
}
