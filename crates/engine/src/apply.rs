//! Taking in what changed in the world. One method per kind of object; nothing here decides.

use std::cmp::Ordering;

use crate::cluster::Cluster;
use crate::gangs::{DEFAULT_SUB_GROUP, build_tree, task_order};
use crate::ids::{GangId, NodeId, PodId, QueueId, ShapeId, Symbol};
use crate::model::{
    Event, GangKey, GangSpec, GpuRequest, Gpus, Labels, MemoryKind, MigStrategy, Millis, NodeSpec, PodKind, PodPhase,
    PodSpec, QueueSpec, Quota, TaskRank, Usage,
};
use crate::report::{Anomaly, Status};
use crate::tables::{Extended, Free, GPU, Gang, GpuKind, Groups, Node, Place, Pod, Queue, Shape};

/// Device memory assumed where a node does not tell: fractions are hundredths of it.
const UNKNOWN_MEMORY_MIB: i64 = 100;

impl Cluster {
    /// Takes in one change.
    pub fn apply(&mut self, event: Event) {
        self.settle();
        match event {
            Event::Node(spec) => self.apply_node(spec),
            Event::NodeGone(name) => self.remove_node(&name),
            Event::Pod(spec) => self.apply_pod(spec),
            Event::PodGone(uid) => self.remove_pod(&uid),
            Event::Gang(spec) => self.apply_gang(spec),
            Event::GangGone(key) => self.remove_gang(&key),
            Event::Queue(spec) => self.apply_queue(spec),
            Event::QueueGone(name) => self.remove_queue(&name),
            Event::Topology(spec) => {
                self.domains.specs.insert(spec.name.clone(), spec);
                self.domains.clear();
            }
            Event::TopologyGone(name) => {
                self.domains.specs.remove(&name);
                self.domains.clear();
            }
            Event::Usage(usage) => self.apply_usage(&usage),
        }
    }

    // ---- nodes ---------------------------------------------------------------------------------------------------------

    fn apply_node(&mut self, spec: NodeSpec) {
        let name = self.ledger.symbols.intern(&spec.name);
        let id = match self.node_ids.get(&name) {
            Some(id) if self.node_specs[id.index()].as_ref() == Some(&spec) => return,
            Some(id) => *id,
            None => {
                let id = self.free_nodes.pop().unwrap_or_else(|| {
                    self.ledger.nodes.push(absent_node());
                    self.node_specs.push(None);
                    NodeId::new(self.ledger.nodes.len() - 1)
                });
                self.node_ids.insert(name, id);
                self.ranks_changed = true;
                id
            }
        };
        let pods = self.clear_node(id);
        self.ledger.nodes[id.index()] = self.node_row(&spec, self.ledger.nodes[id.index()].rank);
        self.node_specs[id.index()] = Some(spec);
        self.node_changed();
        for pod in pods.into_iter().chain(self.homeless.remove(&name).unwrap_or_default()) {
            self.rehome(pod);
        }
    }

    fn remove_node(&mut self, name: &str) {
        let Some(name) = self.ledger.symbols.get(name) else {
            return;
        };
        let Some(id) = self.node_ids.remove(&name) else { return };
        let pods = self.clear_node(id);
        self.ledger.nodes[id.index()] = absent_node();
        self.node_specs[id.index()] = None;
        self.free_nodes.push(id);
        self.ranks_changed = true;
        self.node_changed();
        // Pods that ended there are not in its books, but they remember it.
        let ended = (0..self.ledger.pods.len())
            .map(PodId::new)
            .filter(|pod| self.ledger.pod(*pod).observed.node == Some(id));
        let ended: Vec<PodId> = ended.filter(|pod| !pods.contains(pod)).collect();
        for pod in pods.into_iter().chain(ended) {
            self.rehome(pod);
        }
    }

    /// Takes all pods off a node; they have to find out anew where they are.
    fn clear_node(&mut self, id: NodeId) -> Vec<PodId> {
        let mut pods = self.ledger.node(id).pods.clone();
        pods.sort_unstable();
        pods.dedup();
        for pod in &pods {
            self.ledger.withdraw(*pod);
        }
        pods
    }

    /// Puts a pod where the world has it, now that its node came, went or changed.
    fn rehome(&mut self, pod: PodId) {
        let row = self.ledger.pod(pod);
        let mut place = row.observed.clone();
        place.node = row.world_node.and_then(|name| self.node_ids.get(&name).copied());
        if let (Some(name), None) = (row.world_node, place.node) {
            self.homeless.entry(name).or_default().push(pod);
        }
        self.ledger.observe(pod, place);
    }

    fn node_changed(&mut self) {
        self.indexes.clear();
        self.domains.clear();
        self.ledger.touched.invalidate();
        self.memory_changed = true;
    }

    /// Finds the smallest and largest GPU memory anew once nodes changed.
    pub(crate) fn measure_memory(&mut self) {
        if !std::mem::take(&mut self.memory_changed) {
            return;
        }
        let known = || {
            self.ledger
                .nodes
                .iter()
                .filter(|node| node.memory_known && node.memory_mib > UNKNOWN_MEMORY_MIB)
        };
        self.memory_min = known().map(|node| node.memory_mib).min();
        self.memory_max = known().map(|node| node.memory_mib).max();
    }

    fn node_row(&mut self, spec: &NodeSpec, rank: u32) -> Node {
        let mut extended: Vec<Extended> = spec
            .extended
            .iter()
            .map(|(name, amount)| {
                let (resource, amount) = (self.resources.intern(name), (*amount).max(0));
                Extended {
                    resource,
                    allocatable: amount,
                    idle: amount,
                    releasing: 0,
                }
            })
            .collect();
        extended.sort_by_key(|extended| extended.resource);
        let allocatable = [spec.cpu_milli, spec.memory_bytes, spec.gpus, spec.pods].map(|amount| amount.max(0));
        let has_mig = extended
            .iter()
            .any(|extended| self.resources.mig_gpus(extended.resource) > Gpus::ZERO && extended.allocatable > 0);
        let physical = spec
            .gpu_count_label
            .filter(|count| *count > 0)
            .unwrap_or(allocatable[GPU]);
        Node {
            name: spec.name.as_str().into(),
            present: true,
            rank,
            labels: spec.labels.clone(),
            taints: spec.taints.clone(),
            unschedulable: spec.unschedulable,
            not_ready: !spec.conditions.is_empty(),
            allocatable,
            free: Free {
                idle: allocatable,
                ..Free::default()
            },
            extended,
            groups: Vec::new(),
            pods: Vec::new(),
            gpu_units: allocatable[GPU],
            gpu_physical: physical.min(allocatable[GPU]),
            memory_mib: spec.gpu_memory_mib.filter(|mib| *mib > 0).unwrap_or(UNKNOWN_MEMORY_MIB),
            memory_known: spec.gpu_memory_mib.is_some_and(|mib| mib > 0),
            memory_kind: spec.gpu_memory_kind,
            mig_enabled: spec.mig_enabled,
            mig_strategy: spec.mig_strategy,
            has_mig,
            legacy_mig_pods: 0,
            foreign: [0; 3],
        }
    }

    /// Numbers nodes by name.
    pub(crate) fn rank_nodes(&mut self) {
        if !std::mem::take(&mut self.ranks_changed) {
            return;
        }
        let mut order: Vec<usize> = (0..self.ledger.nodes.len()).collect();
        order.sort_by(|a, b| self.ledger.nodes[*a].name.cmp(&self.ledger.nodes[*b].name));
        for (rank, at) in order.into_iter().enumerate() {
            self.ledger.nodes[at].rank = rank as u32;
        }
        self.indexes.clear();
        self.ledger.touched.invalidate();
    }

    // ---- pods ----------------------------------------------------------------------------------------------------------

    fn apply_pod(&mut self, spec: PodSpec) {
        let id = match self.pod_ids.get(spec.uid.as_str()) {
            Some(id) => {
                let id = *id;
                self.detach_pod(id);
                id
            }
            None => {
                let id = self.free_pods.pop().unwrap_or_else(|| {
                    self.ledger.pods.push(absent_pod());
                    PodId::new(self.ledger.pods.len() - 1)
                });
                self.pod_ids.insert(spec.uid.as_str().into(), id);
                id
            }
        };
        let (status, node, groups) = derive_place(&spec);
        let world_node = node.map(|name| self.ledger.symbols.intern(name));
        let node = world_node.and_then(|name| self.node_ids.get(&name).copied());
        if let (Some(name), None) = (world_node, node) {
            self.homeless.entry(name).or_default().push(id);
        }
        let groups: Groups = groups.iter().map(|name| self.groups.id(name)).collect();
        let gang = spec
            .gang
            .as_ref()
            .filter(|_| spec.kind == PodKind::Workload)
            .map(|key| self.gang_id(key));
        if spec.deletion.is_some() {
            self.leaving.push(id);
        }
        let has_opinion = !spec.constraints.anti_affinity.is_empty() || !spec.constraints.affinity.preferred.is_empty();
        if has_opinion {
            self.ledger.opinionated.push(id);
        }
        let row = Pod {
            uid: spec.uid.into(),
            namespace: self.ledger.symbols.intern(&spec.namespace),
            name: spec.name.into(),
            created: spec.created,
            rank: spec.rank,
            kind: spec.kind,
            gang,
            sub_group: spec.sub_group.as_deref().map(|name| self.ledger.symbols.intern(name)),
            pod_set: None,
            shape: self.shape_id(spec.requests, spec.constraints),
            labels: self.ledger.labels.intern(spec.labels),
            deletion: spec.deletion,
            nominated: spec
                .nominated_node
                .as_deref()
                .map(|name| self.ledger.symbols.intern(name)),
            refused: spec.refused.map(Into::into),
            world_node,
            observed: Place::none(Status::Unknown),
            place: Place::none(Status::Unknown),
            leaving: None,
            evicted_from: None,
        };
        self.ledger.pods[id.index()] = row;
        if let Some(gang) = gang {
            self.enlist(gang, id);
            self.ledger.count(id, 1);
        }
        self.ledger.observe(id, Place { status, node, groups });
    }

    fn remove_pod(&mut self, uid: &str) {
        let Some(id) = self.pod_ids.remove(uid) else { return };
        self.detach_pod(id);
        self.ledger.pods[id.index()] = absent_pod();
        self.free_pods.push(id);
    }

    /// Takes a pod out of everything that refers to it.
    fn detach_pod(&mut self, id: PodId) {
        self.ledger.withdraw(id);
        let row = self.ledger.pod(id);
        if let Some(homeless) = row.world_node.and_then(|name| self.homeless.get_mut(&name)) {
            homeless.retain(|pod| *pod != id);
        }
        if row.deletion.is_some() {
            self.leaving.retain(|pod| *pod != id);
        }
        if self.ledger.opinionated.contains(&id) {
            self.ledger.opinionated.retain(|pod| *pod != id);
        }
        if let Some(gang) = self.ledger.pod(id).gang {
            self.ledger.count(id, -1);
            let row = &mut self.ledger.gangs[gang.index()];
            row.strays.retain(|pod| *pod != id);
            row.pod_sets
                .iter_mut()
                .for_each(|set| set.pods.retain(|pod| *pod != id));
            self.ledger.pods[id.index()].gang = None;
            self.drop_if_forgotten(gang);
        }
    }

    fn shape_id(&mut self, requests: crate::model::Requests, constraints: crate::model::Constraints) -> ShapeId {
        let key = (requests, constraints);
        if let Some(id) = self.shapes.get(&key) {
            return *id;
        }
        let (requests, constraints) = &key;
        let (mut extended, mut mig, mut whole) = (requests.extended.clone(), Gpus::ZERO, 0);
        let gpu = match &requests.gpu {
            GpuRequest::None => GpuKind::None,
            GpuRequest::Whole { devices } => {
                whole = *devices;
                GpuKind::Whole { devices: *devices }
            }
            GpuRequest::Fraction { billionths, devices } => GpuKind::Fraction {
                billionths: *billionths,
                devices: *devices,
            },
            GpuRequest::Memory { mib, devices } => GpuKind::Memory {
                mib: *mib,
                devices: *devices,
            },
            GpuRequest::Mig { slices, legacy } => {
                mig = slices
                    .iter()
                    .map(|(name, count)| Gpus::whole(crate::cluster::mig_slices(name)) * *count)
                    .sum();
                if !legacy {
                    extended.extend(slices.iter().cloned());
                }
                GpuKind::Mig { legacy: *legacy }
            }
        };
        let shape = Shape {
            base: [requests.cpu_milli, requests.memory_bytes, whole, 1],
            extended: extended
                .iter()
                .map(|(name, amount)| (self.resources.intern(name), *amount))
                .collect(),
            gpu,
            mig,
            constraints: constraints.clone(),
        };
        let id = ShapeId::new(self.ledger.shapes.len());
        self.ledger.shapes.push(shape);
        self.shapes.insert(key, id);
        id
    }

    // ---- gangs ---------------------------------------------------------------------------------------------------------

    fn gang_id(&mut self, key: &GangKey) -> GangId {
        if let Some(id) = self.gang_ids.get(key) {
            return *id;
        }
        let row = unknown_gang(key.clone(), self.ledger.symbols.intern(""));
        let id = match self.free_gangs.pop() {
            Some(id) => {
                self.ledger.gangs[id.index()] = row;
                id
            }
            None => {
                self.ledger.gangs.push(row);
                GangId::new(self.ledger.gangs.len() - 1)
            }
        };
        self.gang_ids.insert(key.clone(), id);
        id
    }

    /// Puts a pod into the pod set that it names.
    fn enlist(&mut self, gang: GangId, pod: PodId) {
        let row = self.ledger.pod(pod);
        let name = row
            .sub_group
            .map_or(DEFAULT_SUB_GROUP, |name| self.ledger.symbols.text(name));
        let found = self
            .ledger
            .gang(gang)
            .pod_sets
            .iter()
            .position(|set| &*set.name == name);
        self.ledger.pods[pod.index()].pod_set = found.map(|at| at as u32);
        match found {
            Some(at) => {
                let set = &self.ledger.gangs[gang.index()].pod_sets[at];
                let order = |other: &PodId| task_order(self.ledger.pod(*other), self.ledger.pod(pod));
                let position = set.pods.partition_point(|other| order(other) == Ordering::Less);
                self.ledger.gangs[gang.index()].pod_sets[at].pods.insert(position, pod);
            }
            None => self.ledger.gangs[gang.index()].strays.push(pod),
        }
    }

    fn apply_gang(&mut self, spec: GangSpec) {
        let id = self.gang_id(&spec.key);
        let pods = self.disband(id);
        let (groups, pod_sets, problems) = build_tree(&spec);
        let problems = problems.into_iter().map(|problem| {
            let text = format!("{}; the subgroup is left out", problem.problem);
            (format!("spec.subGroups[{}]", problem.sub_group), text)
        });
        self.note(&format!("PodGroup {}", spec.key), problems.collect());
        let queue_name = self.ledger.symbols.intern(&spec.queue);
        let queue = self.leaf_queue(&spec.queue);
        let row = &mut self.ledger.gangs[id.index()];
        let listed = row.known;
        let same_age = listed && (row.created, &*row.uid) == (spec.created, spec.uid.as_str());
        *row = Gang {
            key: spec.key,
            known: true,
            uid: spec.uid.into(),
            created: spec.created,
            seniority: row.seniority,
            queue_name,
            queue,
            priority: spec.priority,
            preemptible: spec.preemptible,
            groups,
            pod_sets,
            strays: Vec::new(),
            last_start: spec.last_start,
            last_eviction: spec.last_eviction,
            stale_since: spec.stale_since,
            preemption_delay: spec.preemption_delay,
            staleness_grace: spec.staleness_grace,
            schedulable: spec.schedulable,
            allocated: [0; 3],
            searches_cut: row.searches_cut,
            search_from: row.search_from,
        };
        self.regroup(id, pods);
        if !same_age {
            if listed {
                self.old_gangs.retain(|gang| *gang != id);
                self.young_gangs.retain(|gang| *gang != id);
            }
            self.young_gangs.push(id);
            /// So many gangs are merged in one go, so that none of them costs a look at all.
            const YOUNG_GANGS_MAX: usize = 4096;
            if self.young_gangs.len() >= YOUNG_GANGS_MAX.max(self.old_gangs.len() / 4) {
                self.merge_gangs();
            }
        }
    }

    fn remove_gang(&mut self, key: &GangKey) {
        let Some(id) = self.gang_ids.get(key).copied() else {
            return;
        };
        let pods = self.disband(id);
        self.anomalies.remove(&format!("PodGroup {key}"));
        let empty = self.ledger.symbols.intern("");
        self.ledger.gangs[id.index()] = unknown_gang(key.clone(), empty);
        self.old_gangs.retain(|gang| *gang != id);
        self.young_gangs.retain(|gang| *gang != id);
        self.regroup(id, pods);
        self.drop_if_forgotten(id);
    }

    /// Takes all pods out of a gang's sums; returns them.
    fn disband(&mut self, id: GangId) -> Vec<PodId> {
        let row = self.ledger.gang(id);
        let pods: Vec<PodId> = row
            .pod_sets
            .iter()
            .flat_map(|set| &set.pods)
            .chain(&row.strays)
            .copied()
            .collect();
        for pod in &pods {
            self.ledger.count(*pod, -1);
        }
        pods
    }

    fn regroup(&mut self, id: GangId, pods: Vec<PodId>) {
        for pod in pods {
            self.enlist(id, pod);
            self.ledger.count(pod, 1);
        }
    }

    /// Forgets a gang that neither exists nor has pods.
    fn drop_if_forgotten(&mut self, id: GangId) {
        let row = self.ledger.gang(id);
        let has_pods = !row.strays.is_empty() || row.pod_sets.iter().any(|set| !set.pods.is_empty());
        if !row.known && !has_pods {
            let key = row.key.clone();
            self.gang_ids.remove(&key);
            self.free_gangs.push(id);
        }
    }

    /// Numbers gangs by age.
    pub(crate) fn merge_gangs(&mut self) {
        if self.young_gangs.is_empty() {
            return;
        }
        let gangs = &self.ledger.gangs;
        let order = |a: &GangId, b: &GangId| {
            let (a, b) = (&gangs[a.index()], &gangs[b.index()]);
            a.created
                .cmp(&b.created)
                .then_with(|| a.uid.cmp(&b.uid))
                .then_with(|| a.key.cmp(&b.key))
        };
        let mut young = std::mem::take(&mut self.young_gangs);
        young.sort_unstable_by(order);
        let old = std::mem::take(&mut self.old_gangs);
        let mut merged = Vec::with_capacity(old.len() + young.len());
        let (mut old, mut young) = (old.into_iter().peekable(), young.into_iter().peekable());
        loop {
            let next = match (old.peek(), young.peek()) {
                (Some(a), Some(b)) if order(a, b) == Ordering::Less => old.next(),
                (_, Some(_)) => young.next(),
                (_, None) => old.next(),
            };
            let Some(next) = next else { break };
            merged.push(next);
        }
        for (seniority, gang) in merged.iter().enumerate() {
            self.ledger.gangs[gang.index()].seniority = seniority as u32;
        }
        self.old_gangs = merged;
    }

    // ---- queues --------------------------------------------------------------------------------------------------------

    fn apply_queue(&mut self, spec: QueueSpec) {
        let id = match self.queue_ids.get(spec.name.as_str()) {
            Some(id) => *id,
            None => {
                let id = self.free_queues.pop().unwrap_or_else(|| {
                    self.ledger.queues.push(absent_queue());
                    QueueId::new(self.ledger.queues.len() - 1)
                });
                self.queue_ids.insert(spec.name.as_str().into(), id);
                self.queues_changed = true;
                id
            }
        };
        let usage = self.usage.get(spec.name.as_str()).copied();
        let row = &mut self.ledger.queues[id.index()];
        row.usage = usage.unwrap_or_default();
        let parent_name: Option<Box<str>> = spec.parent.filter(|name| !name.is_empty()).map(Into::into);
        self.queues_changed |= row.parent_name != parent_name;
        row.name = spec.name.into();
        row.display_name = spec.display_name.into();
        row.uid = spec.uid.into();
        row.parent_name = parent_name;
        row.created = spec.created;
        row.priority = spec.priority;
        row.quota = spec.quota;
        row.preempt_min_runtime = spec.preempt_min_runtime;
        row.reclaim_min_runtime = spec.reclaim_min_runtime;
    }

    fn remove_queue(&mut self, name: &str) {
        let Some(id) = self.queue_ids.remove(name) else { return };
        self.uncount_all();
        self.ledger.queues[id.index()] = absent_queue();
        self.unlink_queues();
        self.recount_all();
        self.free_queues.push(id);
        self.anomalies.remove(&format!("Queue {name}"));
        self.queues_changed = true;
    }

    fn apply_usage(&mut self, usage: &Usage) {
        let share = [usage.cpu_billionths, usage.memory_billionths, usage.gpu_billionths];
        self.usage.insert(usage.queue.as_str().into(), share);
        if let Some(id) = self.queue_ids.get(usage.queue.as_str()) {
            self.ledger.queues[id.index()].usage = share;
        }
    }

    fn leaf_queue(&self, name: &str) -> Option<QueueId> {
        let id = *self.queue_ids.get(name)?;
        let queue = self.ledger.queue(id);
        (queue.connected && queue.children.is_empty()).then_some(id)
    }

    fn uncount_all(&mut self) {
        for at in 0..self.ledger.pods.len() {
            self.ledger.count(PodId::new(at), -1);
        }
    }

    fn recount_all(&mut self) {
        for at in 0..self.ledger.pods.len() {
            self.ledger.count(PodId::new(at), 1);
        }
    }

    fn unlink_queues(&mut self) {
        for gang in &mut self.ledger.gangs {
            gang.queue = None;
        }
        for queue in &mut self.ledger.queues {
            queue.parent = None;
            queue.children.clear();
            queue.connected = false;
            queue.depth = 0;
        }
    }

    /// Builds the queue tree anew once queues came, went or moved.
    pub(crate) fn relink_queues(&mut self) {
        if !std::mem::take(&mut self.queues_changed) {
            return;
        }
        self.uncount_all();
        self.unlink_queues();
        let mut order: Vec<QueueId> = self.queue_ids.values().copied().collect();
        order.sort_by(|a, b| self.ledger.queue(*a).name.cmp(&self.ledger.queue(*b).name));
        let by_name = |cluster: &Cluster, name: &str| cluster.queue_ids.get(name).copied();
        self.roots = order
            .iter()
            .copied()
            .filter(|id| self.ledger.queue(*id).parent_name.is_none())
            .collect();
        // From the roots down; what is not reached hangs in a cycle or on a missing parent.
        let mut reached = self.roots.clone();
        for root in &self.roots {
            self.ledger.queues[root.index()].connected = true;
        }
        let mut next = 0;
        while next < reached.len() {
            let parent = reached[next];
            next += 1;
            for child in &order {
                let wanted = self
                    .ledger
                    .queue(*child)
                    .parent_name
                    .as_deref()
                    .and_then(|name| by_name(self, name));
                if wanted == Some(parent) && !self.ledger.queue(*child).connected {
                    let depth = self.ledger.queue(parent).depth + 1;
                    let row = &mut self.ledger.queues[child.index()];
                    (row.parent, row.connected, row.depth) = (Some(parent), true, depth);
                    self.ledger.queues[parent.index()].children.push(*child);
                    reached.push(*child);
                }
            }
        }
        for id in order {
            let row = self.ledger.queue(id);
            let problems = match &row.parent_name {
                Some(parent) if !row.connected => {
                    let problem = match by_name(self, parent) {
                        None => format!("queue {parent} does not exist; this queue and those below it are left out"),
                        Some(_) => format!(
                            "queue {parent} does not lead to a root (a cycle, or a missing queue above it); this queue is left out"
                        ),
                    };
                    vec![("spec.parentQueue".to_owned(), problem)]
                }
                Some(_) | None => Vec::new(),
            };
            let object = format!("Queue {}", row.name);
            self.note(&object, problems);
        }
        for at in 0..self.ledger.gangs.len() {
            let gang = &self.ledger.gangs[at];
            let queue = self.leaf_queue(self.ledger.symbols.text(gang.queue_name));
            self.ledger.gangs[at].queue = queue.filter(|_| self.ledger.gangs[at].known);
        }
        self.recount_all();
    }

    fn note(&mut self, object: &str, problems: Vec<(String, String)>) {
        if problems.is_empty() {
            self.anomalies.remove(object);
            return;
        }
        let anomaly = |(field, problem)| Anomaly {
            object: object.to_owned(),
            field,
            problem,
        };
        self.anomalies
            .insert(object.to_owned(), problems.into_iter().map(anomaly).collect());
    }
}

/// Status, node and groups of a pod as the world has it.
fn derive_place(spec: &PodSpec) -> (Status, Option<&str>, &[String]) {
    let node = spec.node.as_deref();
    let in_flight = spec.bind_in_flight.as_ref();
    let groups = match in_flight {
        Some(in_flight) if spec.gpu_groups.is_empty() => &in_flight.gpu_groups,
        Some(_) | None => &spec.gpu_groups,
    };
    let status = match (spec.phase, spec.deletion.is_some()) {
        (PodPhase::Running | PodPhase::Pending, true) => Status::Releasing,
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

fn absent_node() -> Node {
    Node {
        name: "".into(),
        present: false,
        rank: 0,
        labels: Labels::new(),
        taints: Vec::new(),
        unschedulable: true,
        not_ready: true,
        allocatable: [0; 4],
        free: Free::default(),
        extended: Vec::new(),
        groups: Vec::new(),
        pods: Vec::new(),
        gpu_units: 0,
        gpu_physical: 0,
        memory_mib: UNKNOWN_MEMORY_MIB,
        memory_known: false,
        memory_kind: MemoryKind::Dedicated,
        mig_enabled: false,
        mig_strategy: MigStrategy::None,
        has_mig: false,
        legacy_mig_pods: 0,
        foreign: [0; 3],
    }
}

fn absent_pod() -> Pod {
    Pod {
        uid: "".into(),
        namespace: Symbol(0),
        name: "".into(),
        created: Millis(0),
        rank: TaskRank::default(),
        kind: PodKind::Utility,
        gang: None,
        sub_group: None,
        pod_set: None,
        shape: ShapeId(0),
        labels: 0,
        deletion: None,
        nominated: None,
        refused: None,
        world_node: None,
        observed: Place::none(Status::Unknown),
        place: Place::none(Status::Unknown),
        leaving: None,
        evicted_from: None,
    }
}

fn unknown_gang(key: GangKey, no_queue: Symbol) -> Gang {
    Gang {
        key,
        known: false,
        uid: "".into(),
        created: Millis(0),
        seniority: 0,
        queue_name: no_queue,
        queue: None,
        priority: 0,
        preemptible: false,
        groups: Vec::new(),
        pod_sets: Vec::new(),
        strays: Vec::new(),
        last_start: None,
        last_eviction: None,
        stale_since: None,
        preemption_delay: Millis(0),
        staleness_grace: None,
        schedulable: true,
        allocated: [0; 3],
        searches_cut: 0,
        search_from: 0,
    }
}

fn absent_queue() -> Queue {
    Queue {
        name: "".into(),
        display_name: "".into(),
        uid: "".into(),
        parent_name: None,
        created: Millis(0),
        priority: 0,
        quota: Quota::UNBOUNDED,
        preempt_min_runtime: None,
        reclaim_min_runtime: None,
        usage: [0; 3],
        parent: None,
        children: Vec::new(),
        connected: false,
        depth: 0,
        allocated: [0; 3],
        allocated_non_preemptible: [0; 3],
        pending: [0; 3],
        requested: [0; 3],
        fair_share: [0; 3],
    }
}
