//! Reservation pods whose GPU nobody shares any more. The engine charges a shared GPU to those who share it; when the last of them is
//! gone the GPU looks free, while the kubelet still counts it to the reservation pod until the binder has removed that. A pod bound in
//! between would be rejected for good. So such a reservation pod is shown to the engine as what it is: one that holds a whole GPU and
//! is about to leave.
//!
//! A group whose reservation pod is gone, or holds another GPU, is *lost*: its pods run on a GPU that the kubelet takes to be free and may
//! give to anybody. How many GPUs a node has left does not say which one comes next, so the node's idle GPUs are shown to the engine as
//! held and about to be free, until the binder has got the group's own GPU back. The binder removes a reservation pod that got another
//! GPU and tries again; one that stays shows that somebody else has the group's GPU, and then the node's other GPUs are safe to give.
//!
//! A bind that came to nothing may have made reservation pods that the watch of pods does not show yet: it may lag behind the watch of
//! bind requests. They are presumed until they show, or for so long that they would have.

use std::collections::{BTreeMap, BTreeSet};

use kai_api::{BindRequest, ObjectKey, Pod, keys};
use kai_engine::model::{
    Constraints, Event, GpuRequest, Labels, Millis, PodKind, PodPhase, PodSpec, Requests, TaskRank,
};
use kai_engine::report::NodeView;
use rustc_hash::FxHashMap;

use super::ClusterMirror;

/// Watches lag by seconds when an API server is in trouble. A GPU that nobody reserved idles for this time after a bind that failed.
const PRESUMED_FOR: Millis = Millis::seconds(10);
/// The binder removes a reservation pod with the wrong GPU within seconds, unless it has given up.
const WRONG_GPU_FOR: Millis = Millis::seconds(60);

/// Who shares which GPU group, and who holds it.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    sharers: FxHashMap<Box<str>, usize>,
    holders: FxHashMap<Box<str>, Vec<Holder>>,
    /// Groups that may have a holder which is not to be seen yet.
    presumed: BTreeMap<Box<str>, Presumed>,
    /// Pods that run on groups' GPUs, by node and group: the GPUs that each of them was told.
    users: FxHashMap<Box<str>, BTreeMap<Box<str>, Users>>,
    /// Nodes to look at again for lost groups.
    dirty: BTreeSet<Box<str>>,
    /// Nodes with lost groups, and how many GPUs are shown as held there.
    lost: BTreeMap<Box<str>, i64>,
}

/// UUIDs of GPUs.
type Gpus = Box<[Box<str>]>;
/// The pods on a group's GPU, with the GPUs that each of them was told.
type Users = FxHashMap<ObjectKey, Gpus>;

/// A reservation pod.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Holder {
    key: ObjectKey,
    node: Box<str>,
    /// The GPU that it holds and will go on to hold.
    gpu: Option<Box<str>>,
    /// Whether the kubelet has said which GPU it holds.
    told: bool,
    /// Since when it is as it is.
    since: Millis,
}

#[derive(Clone, Debug)]
struct Presumed {
    node: Box<str>,
    until: Millis,
}

/// What a pod is to GPU groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Ties {
    /// Nothing.
    #[default]
    None,
    /// Shares GPUs.
    Shares(Box<Shares>),
    /// Holds a group's GPU.
    Holds(Box<Holds>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    groups: Box<[Box<str>]>,
    /// The node that it is bound to, and the GPUs that it was told; `None` while it waits for its binding.
    bound: Option<(Box<str>, Gpus)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holds {
    group: Box<str>,
    node: Box<str>,
    gpu: Option<Box<str>>,
    leaves: bool,
}

impl Ties {
    pub(super) fn of(spec: &PodSpec, pod: &Pod) -> Ties {
        let annotation = |key: &str| pod.metadata.annotations.text(key).filter(|text| !text.is_empty());
        match spec.kind {
            PodKind::Reservation => spec.gpu_groups.first().map_or(Ties::None, |group| {
                Ties::Holds(Box::new(Holds {
                    group: group.as_str().into(),
                    node: spec.node.as_deref().unwrap_or_default().into(),
                    gpu: annotation(keys::RESERVED_GPU).map(Into::into),
                    leaves: spec.deletion.is_some(),
                }))
            }),
            PodKind::Workload => {
                let in_flight = spec.bind_in_flight.iter().flat_map(|bind| &bind.gpu_groups);
                let placed = spec.gpu_groups.iter().filter(|_| spec.node.is_some());
                let mut ties = Ties::sharing(in_flight.chain(placed));
                // The label alone makes no pod a user of a GPU.
                let has_part = matches!(
                    spec.requests.gpu,
                    GpuRequest::Fraction { .. } | GpuRequest::Memory { .. }
                );
                if let (Ties::Shares(shares), Some(node), true) = (&mut ties, &spec.node, has_part) {
                    let gpus = annotation(keys::RECEIVED_GPUS)
                        .into_iter()
                        .flat_map(|text| text.split(','));
                    shares.bound = Some((node.as_str().into(), gpus.map(Into::into).collect()));
                }
                ties
            }
            PodKind::Utility | PodKind::Foreign => Ties::None,
        }
    }

    pub(super) fn sharing<'g>(groups: impl Iterator<Item = &'g String>) -> Ties {
        let mut groups: Vec<Box<str>> = groups.map(|group| group.as_str().into()).collect();
        groups.sort_unstable();
        groups.dedup();
        if groups.is_empty() {
            Ties::None
        } else {
            Ties::Shares(Box::new(Shares {
                groups: groups.into(),
                bound: None,
            }))
        }
    }
}

impl ClusterMirror {
    /// A reservation pod without sharers holds its GPU for nobody.
    pub(super) fn show_unused(&self, spec: &mut PodSpec) {
        if spec.kind != PodKind::Reservation {
            return;
        }
        let shared = spec
            .gpu_groups
            .iter()
            .any(|group| self.reservations.sharers.contains_key(group.as_str()));
        if !shared {
            spec.kind = PodKind::Utility;
            spec.gpu_groups.clear();
            spec.deletion.get_or_insert(self.now);
        }
    }

    /// The request's bind came to nothing. What it reserved counts until it is seen to be gone.
    pub(super) fn presume_held(&mut self, request: &BindRequest) {
        for group in request.gpu_groups() {
            let known =
                self.reservations.sharers.contains_key(&**group) || self.reservations.holders.contains_key(&**group);
            if known {
                continue;
            }
            let presumed = Presumed {
                node: request.selected_node().into(),
                until: self.now + PRESUMED_FOR,
            };
            self.reservations.presumed.insert((&**group).into(), presumed);
            let pod = helper_pod(presumed_uid(group), request.selected_node(), 1, self.now);
            self.outbox.events.push(Event::Pod(pod));
        }
    }

    /// What was presumed and did not show is not there.
    pub(super) fn end_presumptions(&mut self) {
        let over = self
            .reservations
            .presumed
            .iter()
            .filter(|(_, presumed)| presumed.until <= self.now);
        let over: Vec<Box<str>> = over.map(|(group, _)| group.clone()).collect();
        over.iter().for_each(|group| self.stop_presuming(group));
    }

    fn stop_presuming(&mut self, group: &str) {
        if self.reservations.presumed.remove(group).is_some() {
            self.outbox.events.push(Event::PodGone(presumed_uid(group)));
        }
    }

    /// The pod is tied so from now on. Holders of groups that gained their first sharer or lost their last one are looked at again.
    pub(super) fn tie(&mut self, key: &ObjectKey, before: &Ties, now: &Ties) {
        if before == now {
            return;
        }
        self.reservations.untie(key, before);
        let mut turned: Vec<Box<str>> = Vec::new();
        match now {
            Ties::Shares(shares) => {
                for group in &shares.groups {
                    let sharers = self.reservations.sharers.entry(group.clone()).or_default();
                    *sharers += 1;
                    if *sharers == 1 {
                        turned.push(group.clone());
                    }
                }
                self.reservations.add_user(key, shares);
            }
            Ties::Holds(holds) => {
                self.reservations.add_holder(key, holds, self.now);
                self.stop_presuming(&holds.group);
            }
            Ties::None => {}
        }
        match before {
            Ties::Shares(shares) => {
                for group in &shares.groups {
                    let Some(sharers) = self.reservations.sharers.get_mut(group) else {
                        continue;
                    };
                    *sharers -= 1;
                    if *sharers == 0 {
                        self.reservations.sharers.remove(group);
                        turned.push(group.clone());
                    }
                }
            }
            Ties::Holds(_) | Ties::None => {}
        }
        for group in turned {
            for holder in self.reservations.holders.get(&group).cloned().unwrap_or_default() {
                self.refresh_pod(&holder.key);
            }
        }
    }

    /// The node came, changed or went.
    pub(super) fn recheck_lost_groups(&mut self, node: &str) {
        if self.reservations.users.contains_key(node) {
            self.reservations.dirty.insert(node.into());
        }
    }

    /// Shows the idle GPUs of nodes with lost groups as held, and no longer those of others.
    pub(super) fn hold_where_lost(&mut self) {
        let lost: Vec<Box<str>> = self.reservations.lost.keys().cloned().collect();
        self.reservations.dirty.extend(lost);
        for node in std::mem::take(&mut self.reservations.dirty) {
            let gpus = self.nodes.get(&node).map(|entry| entry.gpus);
            let devices = gpus.filter(|gpus| *gpus > 0 && self.reservations.has_lost_group(&node, self.now));
            if devices == self.reservations.lost.get(&node).copied() {
                continue;
            }
            match devices {
                Some(devices) => {
                    self.reservations.lost.insert(node.clone(), devices);
                    let pod = helper_pod(lost_uid(&node), &node, devices, self.now);
                    self.outbox.events.push(Event::Pod(pod));
                }
                None => {
                    self.reservations.lost.remove(&node);
                    self.outbox.events.push(Event::PodGone(lost_uid(&node)));
                }
            }
        }
    }

    /// GPUs of the node that the engine counts as held, or as not there, although no pod is promised one beyond what the node has: those
    /// that failed under their pods, and those of helper pods that are presumed, that are shown for lost groups, or that no kubelet has
    /// taken in yet.
    fn uncounted_gpus(&self, node: &str) -> i64 {
        let known = &self.reservations;
        let presumed = known.presumed.values().filter(|presumed| *presumed.node == *node);
        let unused = known
            .holders
            .iter()
            .filter(|(group, _)| !known.sharers.contains_key(*group))
            .flat_map(|(_, holders)| holders)
            .filter(|holder| *holder.node == *node && !holder.told);
        let unconfirmed = i64::try_from(presumed.count() + unused.count()).unwrap_or(i64::MAX);
        let shown = known.lost.get(node).copied().unwrap_or(0);
        let failed = self.nodes.get(node).map_or(0, |entry| entry.failed_gpus);
        unconfirmed.saturating_add(shown).saturating_add(failed)
    }
}

impl ClusterMirror {
    /// Whether pods on the node hold more GPUs than the node has.
    pub fn exceeds_gpus(&self, node: &NodeView<'_>) -> bool {
        node.idle_devices < 0 && node.idle_devices.saturating_add(self.uncounted_gpus(node.name)) < 0
    }
}

impl Reservations {
    fn untie(&mut self, key: &ObjectKey, ties: &Ties) {
        match ties {
            Ties::Shares(shares) => self.remove_user(key, shares),
            Ties::Holds(holds) => self.remove_holder(key, holds),
            Ties::None => {}
        }
    }

    fn add_user(&mut self, key: &ObjectKey, shares: &Shares) {
        let Some((node, gpus)) = &shares.bound else { return };
        let of_node = self.users.entry(node.clone()).or_default();
        for group in &shares.groups {
            let users = of_node.entry(group.clone()).or_default();
            users.insert(key.clone(), gpus.clone());
        }
        self.dirty.insert(node.clone());
    }

    fn remove_user(&mut self, key: &ObjectKey, shares: &Shares) {
        let Some((node, _)) = &shares.bound else { return };
        let Some(of_node) = self.users.get_mut(node) else {
            return;
        };
        for group in &shares.groups {
            if let Some(users) = of_node.get_mut(group) {
                users.remove(key);
                if users.is_empty() {
                    of_node.remove(group);
                }
            }
        }
        if of_node.is_empty() {
            self.users.remove(node);
        }
        self.dirty.insert(node.clone());
    }

    fn add_holder(&mut self, key: &ObjectKey, holds: &Holds, now: Millis) {
        let holder = Holder {
            key: key.clone(),
            node: holds.node.clone(),
            gpu: holds.gpu.clone().filter(|_| !holds.leaves),
            told: holds.gpu.is_some(),
            since: now,
        };
        self.holders.entry(holds.group.clone()).or_default().push(holder);
        self.dirty.insert(holds.node.clone());
    }

    fn remove_holder(&mut self, key: &ObjectKey, holds: &Holds) {
        if let Some(holders) = self.holders.get_mut(&holds.group) {
            holders.retain(|holder| holder.key != *key);
            if holders.is_empty() {
                self.holders.remove(&holds.group);
            }
        }
        self.dirty.insert(holds.node.clone());
    }

    /// Whether pods of the node run on a GPU that no reservation pod holds for them.
    fn has_lost_group(&self, node: &str, now: Millis) -> bool {
        let groups = self.users.get(node).into_iter().flatten();
        let is_held = |group: &str, users: &Users| {
            let mut holders = self.holders.get(group).into_iter().flatten();
            holders.any(|holder| match &holder.gpu {
                // Pods that another binder bound do not say which GPU they were told.
                Some(gpu) if *holder.node == *node => {
                    let is_own = users.values().all(|told| told.is_empty() || told.contains(gpu));
                    is_own || holder.since + WRONG_GPU_FOR <= now
                }
                Some(_) => false,
                None => false,
            })
        };
        groups.into_iter().any(|(group, users)| !is_held(group, users))
    }
}

fn presumed_uid(group: &str) -> String {
    format!("presumed reservation of {group}")
}

fn lost_uid(node: &str) -> String {
    format!("idle GPUs of {node}, which has a GPU group without its reservation")
}

/// A pod that holds GPUs and is about to leave, as it is shown to the engine.
fn helper_pod(uid: String, node: &str, devices: i64, now: Millis) -> PodSpec {
    PodSpec {
        namespace: kai_api::keys::RESERVATION.to_owned(),
        name: uid.clone(),
        uid,
        created: now,
        kind: PodKind::Utility,
        gang: None,
        sub_group: None,
        phase: PodPhase::Pending,
        node: Some(node.to_owned()),
        deletion: Some(now),
        gated: false,
        bind_in_flight: None,
        gpu_groups: Vec::new(),
        requests: Requests {
            gpu: GpuRequest::Whole { devices },
            ..Requests::default()
        },
        constraints: Constraints::default(),
        labels: Labels::default(),
        rank: TaskRank::default(),
        nominated_node: None,
        refused: None,
    }
}
