//! Carries out steps of remedies on a copy of the cluster, as the events that would follow in a real one.

use std::sync::Arc;

use crate::cluster::Cluster;
use crate::ids::{GangId, PodId, QueueId};
use crate::model::{
    Affinity, ComputeMode, Constraints, Enforcement, Event, GpuFraction, GpuRequest, Labels, Millis, NodeSpec,
    PodPhase, PodSpec, Preemptibility, QueueSpec, Requests, ResourceQuota, Toleration,
};
use crate::reasons::Resource;
use crate::remedies::{Ask, Constraint, RaisedBound, Step, Wait};
use crate::report::Status;
use crate::tables::Gang;

/// The label with a node's own name.
const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";

impl Cluster {
    /// Carries out a step for a gang; returns the time until which the step waits. Steps that create objects of which nothing is known
    /// change nothing.
    pub(super) fn carry_out(&mut self, gang: GangId, step: &Step) -> Option<Millis> {
        match step {
            Step::End { gang: ended, .. } => self.end_gang(ended),
            Step::Raise {
                queue,
                bound,
                resource,
                to,
                ..
            } => self.raise_bound(queue, *bound, *resource, *to),
            Step::MakePreemptible => self.change_gang(gang, |row| row.preemptibility = Preemptibility::Preemptible),
            Step::AskAtMost(ask) => self.change_waiting_pods(gang, |spec| ask.reduce(&mut spec.requests)),
            Step::LowerMinimum { sub_group, to, .. } => self.change_gang(gang, |row| {
                let named = |name: &str| sub_group.as_deref().is_none_or(|sub_group| sub_group == name);
                let sets = row.pod_sets.iter_mut().filter(|set| named(&set.name));
                sets.for_each(|set| set.min = *to);
            }),
            Step::Uncordon(node) => self.change_node(node, |spec| spec.unschedulable = false),
            Step::MakeReady { node, .. } => self.change_node(node, |spec| spec.conditions.clear()),
            Step::AddNodes { count, like } => self.add_nodes(*count, like),
            Step::Relax(Constraint::Topology) => self.change_gang(gang, drop_topology),
            Step::Relax(constraint) => {
                self.change_waiting_pods(gang, |spec| constraint.drop_from(&mut spec.constraints));
            }
            Step::RemoveGates { .. } => self.change_waiting_pods(gang, |spec| spec.gated = false),
            Step::Wait(Wait::PreemptionDelay(until) | Wait::MinRuntime(until)) => return Some(*until),
            Step::CreatePods { .. }
            | Step::CreateGang(_)
            | Step::CreateQueue(_)
            | Step::NameLeafQueue(_)
            | Step::ChangeParent(_)
            | Step::NameSubGroup(_)
            | Step::CreateTopology { .. }
            | Step::Correct
            | Step::Wait(Wait::NextCycle | Wait::Release { .. } | Wait::LaterCycles | Wait::BackOff) => {}
        }
        None
    }

    /// Deletes a gang and its pods.
    fn end_gang(&mut self, key: &crate::model::GangKey) {
        let Some(id) = self.gang_ids.get(key).copied() else {
            return;
        };
        for pod in pods_of(self.ledger.gang(id)) {
            let uid = self.ledger.pod(pod).uid.to_string();
            self.apply(Event::PodGone(uid));
        }
        self.apply(Event::GangGone(key.clone()));
    }

    fn raise_bound(&mut self, queue: &str, bound: RaisedBound, resource: Resource, to: i64) {
        let Some(id) = self.queue_ids.get(queue).copied() else {
            return;
        };
        let mut spec = self.queue_spec(id);
        let quota: &mut ResourceQuota = match resource {
            Resource::Cpu => &mut spec.quota.cpu,
            Resource::Memory => &mut spec.quota.memory,
            Resource::Gpu => &mut spec.quota.gpu,
        };
        match bound {
            RaisedBound::Limit => quota.limit = Some(to),
            RaisedBound::Quota => quota.deserved = Some(to),
        }
        self.apply(Event::Queue(spec));
    }

    fn queue_spec(&self, id: QueueId) -> QueueSpec {
        let row = self.ledger.queue(id);
        QueueSpec {
            name: row.name.to_string(),
            display_name: row.display_name.to_string(),
            parent: row.parent_name.as_deref().map(str::to_owned),
            created: row.created,
            uid: row.uid.to_string(),
            priority: row.priority,
            quota: row.quota,
            preempt_min_runtime: row.preempt_min_runtime,
            reclaim_min_runtime: row.reclaim_min_runtime,
        }
    }

    fn change_node(&mut self, name: &str, change: impl FnOnce(&mut NodeSpec)) {
        if let Some(mut spec) = self.node_spec(name) {
            change(&mut spec);
            self.apply(Event::Node(spec));
        }
    }

    fn node_spec(&self, name: &str) -> Option<NodeSpec> {
        let id = self.node_ids.get(&self.ledger.symbols.get(name)?)?;
        self.node_specs[id.index()].clone()
    }

    fn add_nodes(&mut self, count: u32, like: &str) {
        let Some(spec) = self.node_spec(like) else { return };
        for copy in copies_of(&spec, count, |name| self.node_spec(name).is_some()) {
            self.apply(Event::Node(copy));
        }
    }

    /// Changes the pending and gated pods of a gang.
    fn change_waiting_pods(&mut self, gang: GangId, change: impl Fn(&mut PodSpec)) {
        self.revert_pipelined();
        for pod in pods_of(self.ledger.gang(gang)) {
            let status = self.ledger.pod(pod).observed.status;
            if matches!(status, Status::Pending | Status::Gated) {
                let mut spec = self.waiting_pod_spec(pod);
                change(&mut spec);
                self.apply(Event::Pod(spec));
            }
        }
    }

    /// The spec of a pod without a node.
    fn waiting_pod_spec(&self, pod: PodId) -> PodSpec {
        let row = self.ledger.pod(pod);
        let text = |symbol| self.ledger.symbols.text(symbol).to_owned();
        let (requests, mut constraints) = self.request_of_shape(row.shape);
        for (claim, name) in constraints.claims.iter_mut().zip(row.claims.iter().flatten()) {
            claim.claim = name.to_string();
        }
        PodSpec {
            uid: row.uid.to_string(),
            namespace: text(row.namespace),
            name: row.name.to_string(),
            created: row.created,
            kind: row.kind,
            gang: row.gang.map(|gang| (*self.ledger.gang(gang).key).clone()),
            sub_group: row.sub_group.map(text),
            phase: PodPhase::Pending,
            node: None,
            deletion: row.deletion,
            gated: row.observed.status == Status::Gated,
            background: row.background,
            bind_in_flight: None,
            gpu_groups: Vec::new(),
            requests,
            constraints,
            volumes: row
                .volumes
                .as_ref()
                .map(|volumes| volumes.to_spec())
                .unwrap_or_default(),
            labels: row
                .labels
                .pairs()
                .filter_map(|pair| pair.split_once('='))
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect::<Labels>(),
            rank: row.rank.as_deref().copied().unwrap_or_default(),
            nominated_node: row.nominated.map(text),
            refused: row.refused.as_deref().cloned(),
        }
    }

    /// Requests and constraints of a shape.
    pub(super) fn request_of_shape(&self, shape: crate::ids::ShapeId) -> (Requests, Constraints) {
        // At most one key has this id, so the order of the map has no effect.
        let found = self.shapes.iter().find(|(_, id)| **id == shape);
        let ((requests, constraints, _), _) = found.expect("the shape of a pod is known");
        (requests.clone(), constraints.clone())
    }
}

/// Copies of a node with names of their own.
pub(crate) fn copies_of(spec: &NodeSpec, count: u32, is_taken: impl Fn(&str) -> bool) -> Vec<NodeSpec> {
    let names = (1u32..).map(|number| format!("{}-copy-{number}", spec.name));
    let free = names.filter(|name| !is_taken(name)).take(count as usize);
    free.map(|name| {
        let mut copy = spec.clone();
        if let Some(label) = copy.labels.get_mut(HOSTNAME_LABEL) {
            label.clone_from(&name);
        }
        copy.name = name;
        copy
    })
    .collect()
}

/// The pods of a gang, those of unknown subgroups included.
pub(super) fn pods_of(gang: &Gang) -> Vec<PodId> {
    let sets = gang.pod_sets.iter().flat_map(|set| &set.pods);
    sets.chain(&gang.unmatched_pods).copied().collect()
}

fn drop_topology(gang: &mut Gang) {
    let mut sub_groups = gang.sub_groups.to_vec();
    sub_groups.iter_mut().for_each(|group| group.topology = None);
    gang.sub_groups = Arc::from(sub_groups);
    gang.pod_sets.iter_mut().for_each(|set| set.topology = None);
}

impl Ask {
    /// Lowers requests to this one.
    pub fn reduce(self, requests: &mut Requests) {
        match (self, &mut requests.gpu) {
            (Ask::Gpus(most), GpuRequest::Whole { devices }) => *devices = (*devices).min(most),
            (Ask::GpuMemoryMib(most), GpuRequest::Memory { mib, .. }) => *mib = (*mib).min(most),
            (Ask::GpuHundredths(most), GpuRequest::Fraction { fraction, .. }) => {
                let most = GpuFraction::from_hundredths(most);
                if fraction.billionths() > most.billionths() {
                    *fraction = most;
                }
            }
            (Ask::CpuMilli(most), _) => requests.cpu_milli = requests.cpu_milli.min(most),
            (Ask::MemoryBytes(most), _) => requests.memory_bytes = requests.memory_bytes.min(most),
            (Ask::Gpus(_) | Ask::GpuMemoryMib(_) | Ask::GpuHundredths(_), _) => {}
        }
    }
}

impl Constraint {
    /// Drops this constraint of a pod. A topology is a constraint of the gang, not of its pods.
    pub fn drop_from(self, constraints: &mut Constraints) {
        match self {
            Constraint::NodeAffinity => {
                constraints.node_selector.clear();
                constraints.required_nodes = None;
            }
            Constraint::Taints => constraints.tolerations.push(Toleration {
                key: None,
                value: None,
                effect: None,
            }),
            Constraint::HostPorts => constraints.host_ports.clear(),
            Constraint::PodAffinity => constraints.affinity = Affinity::default(),
            Constraint::PodAntiAffinity => constraints.anti_affinity = Affinity::default(),
            Constraint::Enforcement => constraints.share.enforcement = Enforcement::Preferred,
            Constraint::ComputeMode => constraints.share.compute_mode = ComputeMode::TimeSlicing,
            Constraint::Topology => {}
        }
    }
}
