//! The views of the cluster after a cycle.

mod gangs;
mod pod_gpus;

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::affinity::TermsState;
use crate::cluster::Cluster;
use crate::explain::holders;
use crate::ids::{GangId, PodId, QueueId, ShapeId};
use crate::model::{GangKey, Gpus, PodKind};
use crate::place::PlacementFailure;
use crate::reasons::{QueueBound, Reason, Rejections};
use crate::report::{Anomaly, NodeView, PodView, QueueView, QueueWait, SharedGpuView, Status};
use crate::share::BoundKind;
use crate::tables::PodSet;

/// The gangs that hold the most GPUs, by shape: found once per call.
type Holders = FxHashMap<ShapeId, Arc<[(GangKey, Gpus)]>>;

impl Cluster {
    /// Workload pods, by namespace and name.
    pub fn pods(&self) -> Vec<PodView<'_>> {
        let mut holders = Holders::default();
        let all = (0..self.ledger.pods.len()).map(PodId::new);
        // One allocation of the right size: these views are large, and growing would need twice the memory for a moment.
        let mut views = Vec::with_capacity(self.pod_ids.len());
        views.extend(all.filter_map(|pod| self.view(pod, &mut holders)));
        by_name(views)
    }

    /// The pods of other schedulers and of the scheduler itself, by namespace and name. They hold resources too.
    pub fn other_pods(&self) -> Vec<PodView<'_>> {
        let mut holders = Holders::default();
        // A removed pod leaves a row that no id refers to.
        let all = self.pod_ids.values().copied();
        let others = all.filter(|pod| self.ledger.pod(*pod).kind != PodKind::Workload);
        by_name(others.map(|pod| self.view_of_any(pod, &mut holders)).collect())
    }

    /// The workload pods of these uids, in this order. The cost is in proportion to their number, not to the size of the cluster.
    pub fn pods_of<'u>(&self, uids: impl IntoIterator<Item = &'u str>) -> Vec<PodView<'_>> {
        let mut holders = Holders::default();
        let known = uids.into_iter().filter_map(|uid| self.pod_ids.get(uid).copied());
        known.filter_map(|pod| self.view(pod, &mut holders)).collect()
    }

    fn view(&self, pod: PodId, holders: &mut Holders) -> Option<PodView<'_>> {
        (self.ledger.pod(pod).kind == PodKind::Workload).then(|| self.view_of_any(pod, holders))
    }

    fn view_of_any(&self, pod: PodId, holders: &mut Holders) -> PodView<'_> {
        let row = self.ledger.pod(pod);
        PodView {
            uid: &row.uid,
            namespace: self.ledger.symbols.text(row.namespace),
            name: &row.name,
            gang: row.gang.map(|gang| &*self.ledger.gang(gang).key),
            status: row.placement.status,
            node: match row.placement.node {
                Some(node) => Some(&*self.ledger.node(node).name),
                None => row.observed_node_name.map(|name| self.ledger.symbols.text(name)),
            },
            gpu_groups: row
                .placement
                .gpu_groups
                .iter()
                .map(|group| self.gpu_group_names.text(*group))
                .collect(),
            reason: self.reason(pod, holders),
            kind: row.kind,
            gpus: self.gpus_of(pod),
            created: row.created,
            deletion: row.deletion,
        }
    }

    /// Why a pod waits or was evicted; `None` for other pods.
    fn reason(&self, pod: PodId, holders: &mut Holders) -> Option<Reason> {
        let row = self.ledger.pod(pod);
        if let Some(eviction) = self.explanations.evictions.get(&pod) {
            return Some(Reason::Evicted(eviction.clone()));
        }
        match row.placement.status {
            Status::Gated => Some(Reason::Gated),
            Status::Pipelined => {
                let node = row.placement.node.map(|node| self.ledger.node(node).name.to_string());
                node.map(|node| Reason::WaitsForRelease { node })
            }
            Status::Pending => Some(self.why_pending(pod, holders)),
            _ => None,
        }
    }

    /// Why a gang that names this queue has no leaf queue.
    fn why_no_queue(&self, name: &str) -> Reason {
        let row = |name: &str| self.queue_ids.get(name).map(|id| self.ledger.queue(*id));
        let Some(queue) = row(name) else {
            return Reason::QueueMissing(name.to_owned());
        };
        if queue.connected {
            return Reason::QueueNotLeaf(name.to_owned());
        }
        let mut ancestor = queue.parent_name.as_deref();
        let mut missing = None;
        // A path with more steps than there are queues is a cycle.
        for _ in 0..=self.queue_ids.len() {
            let Some(parent) = ancestor else { break };
            match row(parent) {
                Some(queue) => ancestor = queue.parent_name.as_deref(),
                None => {
                    missing = Some(parent.to_owned());
                    break;
                }
            }
        }
        Reason::QueueDisconnected {
            queue: name.to_owned(),
            missing,
        }
    }

    fn why_pending(&self, pod: PodId, holders: &mut Holders) -> Reason {
        let row = self.ledger.pod(pod);
        let Some(gang_id) = row.gang else {
            return Reason::GangMissing(None);
        };
        let gang = self.ledger.gang(gang_id);
        if !gang.known {
            return Reason::GangMissing(Some((*gang.key).clone()));
        }
        if let Some(refusal) = gang.refused.as_deref().or(row.refused.as_deref()) {
            return Reason::Refused(refusal.clone());
        }
        match row.terms {
            TermsState::Indexed => {}
            TermsState::New => return Reason::CutShort,
            TermsState::Exceeded(bound) => return Reason::AffinityTermsExceeded(bound),
        }
        if row.pod_set.is_none() {
            let name = row
                .sub_group
                .map_or(crate::gangs::DEFAULT_SUB_GROUP, |name| self.ledger.symbols.text(name));
            return Reason::UnknownSubGroup(name.to_owned());
        }
        let queue_name = self.ledger.symbols.text(gang.queue_name);
        if gang.queue.is_none() {
            return self.why_no_queue(queue_name);
        }
        if let Some(excess) = gang.excess {
            return Reason::SubGroupsExceeded(excess);
        }
        if !gang.is_ready() {
            return not_ready(gang);
        }
        let Some(failure) = self.explanations.failures.get(&gang_id) else {
            return match gang.delayed_until(self.now) {
                Some(until) => Reason::PreemptionDelay { until },
                None => Reason::NotTried,
            };
        };
        self.why_not_placed(gang_id, failure, holders)
    }

    fn why_not_placed(&self, gang: GangId, failure: &PlacementFailure, holders: &mut Holders) -> Reason {
        match failure {
            // The pods that wait belong to optional subgroups that lack pods.
            PlacementFailure::NoPods if !self.ledger.gang(gang).pods_lacking().is_empty() => {
                not_ready(self.ledger.gang(gang))
            }
            PlacementFailure::NoPods => Reason::NotTried,
            PlacementFailure::OutOfWork => Reason::CutShort,
            PlacementFailure::Bound(bound) => {
                let of = QueueBound {
                    queue: self.ledger.queue(bound.queue).display().to_owned(),
                    resource: bound.resource,
                    bound: bound.bound,
                    used: bound.used,
                    requested: bound.requested,
                };
                match bound.kind {
                    BoundKind::Limit => Reason::OverLimit(of),
                    BoundKind::Quota if self.ledger.gang(gang).is_semi_preemptible() => Reason::CoreOverQuota(of),
                    BoundKind::Quota => Reason::OverQuota(of),
                }
            }
            PlacementFailure::Pod {
                pod: failed,
                placed,
                rejections,
            } => {
                let mut rejections = rejections.as_deref().cloned().unwrap_or_default();
                let shape = self.ledger.pod(*failed).shape;
                rejections.holders = self.holders_if_short(&rejections, shape, holders);
                rejections.extended = self.extended_if_short(&rejections, shape);
                rejections.search_cut = self.explanations.cut_searches.contains(&gang);
                self.short_of(gang, *failed, *placed, rejections)
            }
            PlacementFailure::NoDomain {
                topology,
                level,
                domains,
                required,
            } => Reason::NoDomain {
                topology: topology.clone(),
                level: level.clone(),
                domains: domains.clone(),
                required: *required,
            },
            PlacementFailure::TopologyUnknown { topology, level } => Reason::TopologyUnknown {
                topology: topology.clone(),
                level: level.clone(),
            },
        }
    }

    /// The gangs that hold the most GPUs, if nodes were rejected for lack of GPUs.
    fn holders_if_short(&self, rejections: &Rejections, shape: ShapeId, known: &mut Holders) -> Arc<[(GangKey, Gpus)]> {
        use crate::reasons::Check::{Extended, GpuMemory, Gpus};
        let short = rejections
            .checks
            .iter()
            .any(|(check, _)| matches!(check, Gpus | GpuMemory | Extended));
        if !short {
            return Arc::default();
        }
        known
            .entry(shape)
            .or_insert_with(|| holders(&self.ledger, shape))
            .clone()
    }

    /// The extended resources of the shape, if nodes were rejected for lack of them.
    fn extended_if_short(&self, rejections: &Rejections, shape: ShapeId) -> Vec<String> {
        let is_short = |(check, _): &(crate::reasons::Check, u32)| *check == crate::reasons::Check::Extended;
        if !rejections.checks.iter().any(is_short) {
            return Vec::new();
        }
        let asked = self.ledger.shape(shape).extended.iter();
        asked
            .map(|(resource, _)| self.resources.name(*resource).to_owned())
            .collect()
    }

    /// The reason of a gang of which a pod does not fit: too few pods fit, or, above the minimum, this pod does not.
    fn short_of(&self, gang: GangId, pod: PodId, placed: u32, rejections: Rejections) -> Reason {
        let gang = self.ledger.gang(gang);
        let set = self.ledger.pod(pod).pod_set.map(|set| &gang.pod_sets[set as usize]);
        let is_gang = gang.pod_sets.iter().any(|set| set.min > 1);
        match set {
            Some(set) if is_gang && set.active_used() < set.min => Reason::GangShort {
                placed,
                required: set.min,
                sub_group: (gang.pod_sets.len() > 1).then(|| set.name.to_string()),
                rejections,
            },
            Some(_) | None => Reason::NoNode(rejections),
        }
    }

    /// All nodes, by name.
    pub fn nodes(&self) -> Vec<NodeView<'_>> {
        let mig = |resource| self.resources.mig_gpus(resource);
        let present = self.ledger.nodes.iter().filter(|node| node.present);
        let mut views: Vec<NodeView<'_>> = present
            .map(|node| NodeView {
                name: &node.name,
                idle_gpus: node.idle_gpus(mig),
                releasing_gpus: node.releasing_gpus(mig),
                allocatable_gpus: Gpus::whole(node.allocatable.gpus)
                    + node
                        .extended
                        .iter()
                        .map(|extended| mig(extended.resource) * extended.allocatable)
                        .sum::<Gpus>(),
                gpus: node.allocatable.gpus,
                gpu_memory_mib: node.memory_known.then_some(node.memory_mib),
                shared: node
                    .gpu_groups
                    .iter()
                    .map(|group| SharedGpuView {
                        gpu_group: self.gpu_group_names.text(group.id),
                        used_mib: group.used_mib(),
                        allocated_mib: group.allocated_mib(),
                    })
                    .collect(),
                idle_devices: node.free.idle.gpus,
                whole_used: node.free.whole_gpus_used,
                mig: node
                    .extended
                    .iter()
                    .filter(|extended| mig(extended.resource) > Gpus::ZERO)
                    .map(|extended| {
                        (
                            self.resources.name(extended.resource),
                            extended.idle,
                            extended.allocatable,
                        )
                    })
                    .collect(),
                cpu_idle_milli: node.free.idle.cpu_milli,
                cpu_milli: node.allocatable.cpu_milli,
                memory_idle_bytes: node.free.idle.memory_bytes,
                memory_bytes: node.allocatable.memory_bytes,
                ready: !node.not_ready && !node.unschedulable,
                cordoned: node.unschedulable,
                unhealthy: node.not_ready && !node.leaving,
                labels: &node.labels,
                physical_gpus: node.gpu_physical,
                memory_kind: node.memory_kind,
                mig_strategy: node.mig_strategy,
            })
            .collect();
        views.iter_mut().for_each(|view| view.mig.sort_unstable());
        views.sort_by_key(|view| view.name);
        views
    }

    /// Connected queues, parents before children.
    pub fn queues(&self) -> Vec<QueueView<'_>> {
        let mut views = Vec::new();
        let unsettled = self.ledger.unsettled_charges();
        let mut stack: Vec<QueueId> = self.roots.iter().rev().copied().collect();
        while let Some(id) = stack.pop() {
            let queue = self.ledger.queue(id);
            stack.extend(queue.children.iter().rev());
            views.push(QueueView {
                name: &queue.name,
                display_name: queue.display(),
                parent: queue.parent.map(|parent| &*self.ledger.queue(parent).name),
                priority: queue.priority,
                quota: queue.quota,
                fair_share: queue.fair_share,
                allocated: queue.allocated,
                allocated_non_preemptible: queue.allocated_non_preemptible
                    + unsettled.get(&id).copied().unwrap_or_default(),
                usage_billionths: queue.usage_billionths,
                requested: queue.requested,
            });
        }
        views
    }

    /// Leaf queues with gangs that could start and that the last cycle neither started nor promised a place. A running gang whose further
    /// pods wait is not counted.
    pub fn waits(&self) -> BTreeMap<&str, QueueWait> {
        let mut waits: BTreeMap<&str, QueueWait> = BTreeMap::new();
        for id in &self.waiting {
            let gang = self.ledger.gang(*id);
            let Some(queue) = gang.queue else { continue };
            if gang.waiting() == 0 || gang.active_used() > 0 || !gang.schedulable || !gang.is_ready() {
                continue;
            }
            // One pod of each set: the pods of a gang are created together.
            let pending = |set: &PodSet| {
                let mut rows = set.pods.iter().map(|pod| &self.ledger.pods[pod.index()]);
                rows.find(|row| row.is_waiting()).map(|row| row.created)
            };
            let Some(since) = gang.pod_sets.iter().filter_map(pending).min() else {
                continue;
            };
            let wait = waits
                .entry(&*self.ledger.queue(queue).name)
                .or_insert(QueueWait { gangs: 0, since });
            wait.gangs += 1;
            wait.since = wait.since.min(since);
        }
        waits
    }

    /// Problems of objects that were applied, as of the last cycle.
    pub fn anomalies(&self) -> Vec<Anomaly> {
        self.anomalies.values().flatten().cloned().collect()
    }
}

fn by_name(mut views: Vec<PodView<'_>>) -> Vec<PodView<'_>> {
    // Uids are unique, so that the order is the same each time.
    views.sort_unstable_by(|a, b| (a.namespace, a.name, a.uid).cmp(&(b.namespace, b.name, b.uid)));
    views
}

/// The gang lacks pods, or a subgroup lacks pods that the gang can start without.
fn not_ready(gang: &crate::tables::Gang) -> Reason {
    let ready = gang.pod_sets.iter().map(PodSet::ready).sum();
    Reason::GangNotReady {
        ready,
        required: if gang.is_ready() { ready } else { gang.required_pods() },
        lacking: gang.pods_lacking(),
    }
}
