//! Owner of every number that a decision can change: what is free on nodes and devices, who is where, what queues hold.
//!
//! All changes go through the few operations below and are journaled while a cycle runs, so that a what-if costs what
//! it changes: [`Ledger::checkpoint`], try, [`Ledger::rollback`]. Nothing here decides anything.

use std::cell::Cell;

use smallvec::SmallVec;

use crate::affinity::AffinityIndex;
use crate::ids::{GangId, GroupId, NodeId, PodId, QueueId, ShapeId};
use crate::intern::Symbols;
use crate::model::PodKind;
use crate::place::fits;
use crate::report::Status;
use crate::tables::{GPU, Gang, Group, Groups, Node, Place, Pod, Queue, SHARE_GPU, Shape, Share, When};

/// The tables and their journal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) nodes: Vec<Node>,
    pub(crate) pods: Vec<Pod>,
    pub(crate) gangs: Vec<Gang>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) shapes: Vec<Shape>,
    pub(crate) symbols: Symbols,
    /// Which affinity terms match how many pods where.
    pub(crate) affinity: AffinityIndex,
    /// Shared devices in use on all nodes.
    pub(crate) shared_devices: usize,
    /// Rows of nodes that are there.
    pub(crate) present_nodes: usize,
    /// See [`Ledger::note_work`].
    work: Cell<u64>,
    journal: Vec<Undo>,
    recording: bool,
    /// Pods that the last cycle changed, some of them more than once.
    decided: Vec<PodId>,
    /// Nodes whose numbers changed, in order; indexes over nodes catch up from it.
    pub(crate) touched: TouchLog,
    /// Gangs that changed, or of which pods came, went or changed their status. One may be there twice if another took its place.
    pub(crate) stirred: Vec<GangId>,
}

/// How to take back one change.
#[derive(Clone, Debug)]
enum Undo {
    Pod {
        pod: PodId,
        place: Place,
        leaving: Option<Box<Place>>,
        evicted_from: Option<Status>,
    },
    Free {
        node: NodeId,
        free: crate::tables::Free,
    },
    Extended {
        node: NodeId,
        at: u32,
        idle: i64,
        releasing: i64,
    },
    Group {
        node: NodeId,
        id: GroupId,
        old: Option<Group>,
    },
    PodAdded {
        node: NodeId,
    },
    PodRemoved {
        node: NodeId,
        pod: PodId,
        at: u32,
    },
}

/// Up to so many pods a look through a list is quicker than a set.
const FEW: usize = 16;

/// Steps of work that a change of a pod's place counts as, and to take it back.
const WORK_PER_CHANGE: usize = 4;
const WORK_PER_UNDO: usize = 2;

/// A point in the journal to go back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint(usize);

/// Which nodes changed since when. Readers keep a cursor; when the log is cut they must start over.
#[derive(Clone, Debug, Default)]
pub(crate) struct TouchLog {
    nodes: Vec<NodeId>,
    /// Cursor value of the first entry.
    start: u64,
}

impl TouchLog {
    pub(crate) fn touch(&mut self, node: NodeId) {
        self.nodes.push(node);
    }

    /// The cursor after everything logged so far.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.nodes.len() as u64
    }

    /// What was touched since `cursor`; `None` = too long ago, look at everything.
    pub(crate) fn since(&self, cursor: u64) -> Option<&[NodeId]> {
        let skip = usize::try_from(cursor.checked_sub(self.start)?).ok()?;
        self.nodes.get(skip..)
    }

    /// Forgets the past once it is longer than a look at everything.
    pub(crate) fn trim(&mut self, nodes: usize) {
        if self.nodes.len() > 4 * nodes + 1024 {
            self.start = self.end();
            self.nodes.clear();
        }
    }

    /// Makes every reader start over.
    pub(crate) fn invalidate(&mut self) {
        self.start = self.end() + 1;
        self.nodes.clear();
    }
}

impl Ledger {
    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    pub(crate) fn pod(&self, id: PodId) -> &Pod {
        &self.pods[id.index()]
    }

    pub(crate) fn gang(&self, id: GangId) -> &Gang {
        &self.gangs[id.index()]
    }

    pub(crate) fn queue(&self, id: QueueId) -> &Queue {
        &self.queues[id.index()]
    }

    pub(crate) fn shape(&self, id: ShapeId) -> &Shape {
        &self.shapes[id.index()]
    }

    pub(crate) fn shape_of(&self, pod: PodId) -> &Shape {
        self.shape(self.pod(pod).shape)
    }

    /// Notes steps of work: nodes, pods, victims, domains or terms that were looked at.
    pub(crate) fn note_work(&self, steps: usize) {
        self.work.set(self.work.get() + steps as u64);
    }

    /// Steps of work so far, over all cycles.
    pub(crate) fn work(&self) -> u64 {
        self.work.get()
    }

    /// The queue and its ancestors, leaf first.
    pub(crate) fn queue_path(&self, leaf: QueueId) -> impl Iterator<Item = QueueId> + '_ {
        std::iter::successors(Some(leaf), |queue| self.queue(*queue).parent)
    }

    /// Starts journaling.
    pub(crate) fn record(&mut self) {
        debug_assert!(self.journal.is_empty());
        self.recording = true;
    }

    /// Ends journaling; what was done stays done.
    pub(crate) fn stop_recording(&mut self) {
        self.recording = false;
        self.commit();
    }

    /// Pods that cycles changed since the last call, in the order of their ids.
    pub(crate) fn take_decided(&mut self) -> Vec<PodId> {
        let mut decided = std::mem::take(&mut self.decided);
        decided.sort_unstable();
        decided.dedup();
        decided
    }

    /// Pods changed since the checkpoint, each once, in the order of their first change.
    pub(crate) fn changed_since(&self, checkpoint: Checkpoint) -> SmallVec<[PodId; FEW]> {
        let mut changed: SmallVec<[PodId; FEW]> = SmallVec::new();
        let mut seen = rustc_hash::FxHashSet::default();
        for undo in &self.journal[checkpoint.0..] {
            let Undo::Pod { pod, .. } = undo else { continue };
            if changed.len() < FEW {
                if !changed.contains(pod) {
                    changed.push(*pod);
                }
                continue;
            }
            if seen.is_empty() {
                seen.extend(changed.iter().copied());
            }
            if seen.insert(*pod) {
                changed.push(*pod);
            }
        }
        changed
    }

    /// Makes everything done so far final.
    pub(crate) fn commit(&mut self) {
        let pods = self.journal.drain(..).filter_map(|undo| match undo {
            Undo::Pod { pod, .. } => Some(pod),
            Undo::Free { .. }
            | Undo::Extended { .. }
            | Undo::Group { .. }
            | Undo::PodAdded { .. }
            | Undo::PodRemoved { .. } => None,
        });
        self.decided.extend(pods);
    }

    pub(crate) fn checkpoint(&self) -> Checkpoint {
        Checkpoint(self.journal.len())
    }

    /// Takes back everything since the checkpoint.
    pub(crate) fn rollback(&mut self, to: Checkpoint) {
        while self.journal.len() > to.0 {
            match self.journal.pop().expect("the journal is longer than the checkpoint") {
                Undo::Pod {
                    pod,
                    place,
                    leaving,
                    evicted_from,
                } => {
                    self.note_work(WORK_PER_UNDO);
                    self.swap_row(pod, place, leaving, evicted_from);
                }
                Undo::Free { node, free } => {
                    self.nodes[node.index()].free = free;
                    self.touched.touch(node);
                }
                Undo::Extended {
                    node,
                    at,
                    idle,
                    releasing,
                } => {
                    let extended = &mut self.nodes[node.index()].extended[at as usize];
                    (extended.idle, extended.releasing) = (idle, releasing);
                    self.touched.touch(node);
                }
                Undo::Group { node, id, old } => {
                    let groups = &mut self.nodes[node.index()].groups;
                    match (groups.binary_search_by_key(&id, |group| group.id), old) {
                        (Ok(at), Some(old)) => groups[at] = old,
                        (Ok(at), None) => {
                            groups.remove(at);
                            self.shared_devices -= 1;
                        }
                        (Err(at), Some(old)) => {
                            groups.insert(at, old);
                            self.shared_devices += 1;
                        }
                        (Err(_), None) => {}
                    }
                    self.touched.touch(node);
                }
                Undo::PodAdded { node } => {
                    if let Some(pod) = self.nodes[node.index()].pods.pop() {
                        self.count_terms(pod, node, -1);
                    }
                }
                Undo::PodRemoved { node, pod, at } => {
                    self.count_terms(pod, node, 1);
                    let pods = &mut self.nodes[node.index()].pods;
                    pods.push(pod);
                    let last = pods.len() - 1;
                    pods.swap(at as usize, last);
                }
            }
        }
    }

    fn log(&mut self, undo: Undo) {
        if self.recording {
            self.journal.push(undo);
        }
    }

    // ---- operations -------------------------------------------------------------------------------------------------

    /// Gives a waiting pod its place, now.
    pub(crate) fn bind(&mut self, pod: PodId, node: NodeId, groups: Groups) {
        assert_eq!(
            self.pod(pod).place.status,
            Status::Pending,
            "only a pending pod can be bound"
        );
        let place = Place {
            status: Status::Binding,
            node: Some(node),
            groups,
        };
        self.enter(pod, &place);
        self.replace_row(pod, place, None, None);
    }

    /// Promises a pod a place that is being freed. A pod evicted before keeps what it occupies until it is gone.
    pub(crate) fn pipeline(&mut self, pod: PodId, node: NodeId, groups: Groups) {
        let row = self.pod(pod);
        let (old, evicted_from) = (row.place.clone(), row.evicted_from);
        let mut leaving = row.leaving.clone();
        if old.status == Status::Releasing {
            if evicted_from == Some(Status::Pipelined) {
                // It never came to the place it was promised before: nothing is left behind there.
                self.leave(pod, &old);
            } else {
                leaving = Some(Box::new(old));
            }
        }
        let place = Place {
            status: Status::Pipelined,
            node: Some(node),
            groups,
        };
        self.enter(pod, &place);
        self.replace_row(pod, place, leaving, evicted_from);
    }

    /// Turns a binding of this cycle into a promise: its gang can't start whole.
    pub(crate) fn bind_to_pipeline(&mut self, pod: PodId) {
        let old = self.pod(pod).place.clone();
        assert_eq!(old.status, Status::Binding, "only a binding can become a promise");
        let new = Place {
            status: Status::Pipelined,
            ..old.clone()
        };
        self.leave(pod, &old);
        self.enter(pod, &new);
        self.replace_row(pod, new, None, None);
    }

    /// Asks a pod to leave.
    pub(crate) fn evict(&mut self, pod: PodId) {
        let old = self.pod(pod).place.clone();
        assert!(
            old.status.is_active_allocated(),
            "only a pod with a place can be evicted"
        );
        let leaving = self.pod(pod).leaving.clone();
        let new = Place {
            status: Status::Releasing,
            ..old.clone()
        };
        self.leave(pod, &old);
        self.enter(pod, &new);
        self.replace_row(pod, new, leaving, Some(old.status));
    }

    /// Lets an evicted pod stay after all.
    pub(crate) fn keep(&mut self, pod: PodId) {
        let old = self.pod(pod).place.clone();
        let status = self
            .pod(pod)
            .evicted_from
            .expect("only a pod evicted in this cycle can be kept");
        let leaving = self.pod(pod).leaving.clone();
        let new = Place { status, ..old.clone() };
        self.leave(pod, &old);
        self.enter(pod, &new);
        self.replace_row(pod, new, leaving, None);
    }

    /// Takes back the new place of a pod that was evicted and moved within the running simulation: it is one that leaves
    /// again.
    pub(crate) fn unmove(&mut self, pod: PodId) {
        let row = self.pod(pod);
        let (place, evicted_from) = (row.place.clone(), row.evicted_from);
        let home = row.leaving.clone().expect("a moved pod still has its old place");
        self.leave(pod, &place);
        self.replace_row(pod, *home, None, evicted_from);
    }

    /// The eviction of the pod is decided: from now on it is one that leaves, like any other.
    pub(crate) fn finish_eviction(&mut self, pod: PodId) {
        let row = &mut self.pods[pod.index()];
        row.evicted_from = None;
    }

    /// Believes that a binding is carried out, until the world says otherwise.
    pub(crate) fn assume_bound(&mut self, pod: PodId) {
        let row = &mut self.pods[pod.index()];
        row.observed = row.place.clone();
        let node = row.place.node.expect("a bound pod has a node");
        row.world_node = Some(self.nodes[node.index()].symbol);
    }

    /// Believes no longer that a binding of this cycle is carried out.
    pub(crate) fn forget_binding(&mut self, pod: PodId) {
        let row = &mut self.pods[pod.index()];
        row.observed = Place::none(Status::Pending);
        row.world_node = None;
    }

    /// Takes back a binding of this cycle that was undone in the same cycle: the pod waits as before, or for the place it
    /// was promised since.
    pub(crate) fn retract(&mut self, pod: PodId) {
        self.forget_binding(pod);
        let row = &self.pods[pod.index()];
        let (place, leaving) = (row.place.clone(), row.leaving.clone());
        if let Some(leaving) = leaving {
            self.leave(pod, &leaving);
            return self.replace_row(pod, place, None, None);
        }
        self.leave(pod, &place);
        self.replace_row(pod, Place::none(Status::Pending), None, None);
    }

    /// Turns a promise into a binding if its place is free now; leaves a journal either way.
    pub(crate) fn redeem(&mut self, pod: PodId) -> bool {
        let old = self.pod(pod).place.clone();
        let Some(node) = old.node else { return false };
        self.leave(pod, &old);
        let (row, shape) = (self.node(node), self.shape_of(pod));
        let need = shape.need_mib(row.memory_mib);
        let opened = old
            .groups
            .iter()
            .filter(|id| row.group(**id).is_none_or(|group| group.allocated() == 0))
            .count();
        let joins = |id: &GroupId| {
            row.group(*id)
                .is_none_or(|group| group.allocated() == 0 || group.fits_now(need, row.memory_mib))
        };
        let free = row.free.idle;
        let fits = fits(row, shape, free, When::Now).is_ok()
            && old.groups.iter().all(joins)
            && opened as i64 <= row.openable_devices(free[GPU], When::Now);
        if !fits {
            return false;
        }
        let new = Place {
            status: Status::Binding,
            ..old
        };
        self.enter(pod, &new);
        self.replace_row(pod, new, None, None);
        true
    }

    /// Whether a pod that was evicted within the running simulation would still fit where it was, once those who leave
    /// are gone.
    pub(crate) fn still_fits(&self, pod: PodId) -> bool {
        let place = &self.pod(pod).place;
        let Some(node) = place.node else { return false };
        let (row, shape) = (self.node(node), self.shape_of(pod));
        let (free, need) = (row.free.total(), shape.need_mib(row.memory_mib));
        let nobody_else = |id: &&GroupId| row.group(**id).is_none_or(|group| group.is_emptying());
        let opened = place.groups.iter().filter(nobody_else).count() as i64;
        let joins = |id: &GroupId| row.group(*id).is_none_or(|group| group.room(row.memory_mib) >= need);
        fits(row, shape, free, When::AfterRelease).is_ok()
            && place.groups.iter().all(joins)
            && opened <= row.openable_devices(free[GPU], When::AfterRelease)
    }

    /// Puts a pod where the world has it. Only between cycles.
    pub(crate) fn observe(&mut self, pod: PodId, observed: Place) {
        debug_assert!(!self.recording);
        self.withdraw(pod);
        self.enter(pod, &observed);
        self.pods[pod.index()].observed = observed.clone();
        self.replace_row(pod, observed, None, None);
    }

    /// Takes a pod out of all accounting. Only between cycles.
    pub(crate) fn withdraw(&mut self, pod: PodId) {
        debug_assert!(!self.recording);
        let row = self.pod(pod);
        let (place, leaving) = (row.place.clone(), row.leaving.clone());
        self.leave(pod, &place);
        if let Some(leaving) = leaving {
            self.leave(pod, &leaving);
        }
        self.replace_row(pod, Place::none(Status::Unknown), None, None);
    }

    // ---- a pod's row and what is summed over rows --------------------------------------------------------------------

    fn replace_row(&mut self, pod: PodId, place: Place, leaving: Option<Box<Place>>, evicted_from: Option<Status>) {
        self.note_work(WORK_PER_CHANGE);
        let (place, leaving, evicted_from) = self.swap_row(pod, place, leaving, evicted_from);
        self.log(Undo::Pod {
            pod,
            place,
            leaving,
            evicted_from,
        });
    }

    fn swap_row(
        &mut self,
        pod: PodId,
        place: Place,
        leaving: Option<Box<Place>>,
        evicted_from: Option<Status>,
    ) -> (Place, Option<Box<Place>>, Option<Status>) {
        self.count(pod, -1);
        let row = &mut self.pods[pod.index()];
        let old = (
            std::mem::replace(&mut row.place, place),
            std::mem::replace(&mut row.leaving, leaving),
            std::mem::replace(&mut row.evicted_from, evicted_from),
        );
        self.count(pod, 1);
        old
    }

    /// Adds (or takes) the pod to everything that is summed by status: pod set counters, gang and queue shares.
    pub(crate) fn count(&mut self, pod: PodId, sign: i64) {
        let Ledger {
            nodes,
            pods,
            gangs,
            queues,
            shapes,
            stirred,
            ..
        } = self;
        let row = &pods[pod.index()];
        let (Some(id), Some(pod_set)) = (row.gang, row.pod_set) else {
            return;
        };
        let gang = &mut gangs[id.index()];
        if !std::mem::replace(&mut gang.stirred, true) {
            stirred.push(id);
        }
        let status = row.place.status;
        let set = &mut gang.pod_sets[pod_set as usize];
        let counter = &mut set.counts[status as usize];
        *counter = counter.wrapping_add_signed(sign as i32);
        if row.refused.is_some() && status == Status::Pending {
            set.refused = set.refused.wrapping_add_signed(sign as i32);
        }
        let shape = &shapes[row.shape.index()];
        let accepted = match row.place.node {
            Some(node) if status.is_active_allocated() => shape.accepted(nodes[node.index()].memory_mib),
            _ => [0; 3],
        };
        if accepted == [0; 3] {
            return;
        }
        if status.is_allocated() {
            add(&mut gang.allocated, accepted, sign);
        }
        let mut queue = gang.queue;
        while let Some(id) = queue {
            let row = &mut queues[id.index()];
            add(&mut row.allocated, accepted, sign);
            if !gang.preemptible {
                add(&mut row.allocated_non_preemptible, accepted, sign);
            }
            queue = row.parent;
        }
    }

    /// Notes that the gang itself changed.
    pub(crate) fn stir(&mut self, gang: GangId) {
        if !std::mem::replace(&mut self.gangs[gang.index()].stirred, true) {
            self.stirred.push(gang);
        }
    }

    /// [`Ledger::stirred`] since the last call.
    pub(crate) fn take_stirred(&mut self) -> Vec<GangId> {
        let stirred = std::mem::take(&mut self.stirred);
        for gang in &stirred {
            self.gangs[gang.index()].stirred = false;
        }
        stirred
    }

    // ---- accounting on a node ----------------------------------------------------------------------------------------

    fn enter(&mut self, pod: PodId, place: &Place) {
        let Some(node) = place.node.filter(|_| place.status.is_active_used()) else {
            return;
        };
        self.log(Undo::PodAdded { node });
        self.nodes[node.index()].pods.push(pod);
        self.count_terms(pod, node, 1);
        self.account(pod, node, place, 1);
    }

    fn leave(&mut self, pod: PodId, place: &Place) {
        let Some(node) = place.node.filter(|_| place.status.is_active_used()) else {
            return;
        };
        let pods = &mut self.nodes[node.index()].pods;
        let at = pods
            .iter()
            .rposition(|on_node| *on_node == pod)
            .expect("a pod with a place is listed on its node");
        pods.swap_remove(at);
        self.count_terms(pod, node, -1);
        self.log(Undo::PodRemoved {
            node,
            pod,
            at: at as u32,
        });
        self.account(pod, node, place, -1);
    }

    fn account(&mut self, pod: PodId, node: NodeId, place: &Place, sign: i64) {
        let row = &self.pods[pod.index()];
        let (kind, shape) = (row.kind, row.shape);
        let old_free = self.nodes[node.index()].free;
        self.log(Undo::Free { node, free: old_free });
        let shape_row = &self.shapes[shape.index()];
        let target = &mut self.nodes[node.index()];
        let charge = target.charge(shape_row, kind);
        shift(
            &mut target.free.idle,
            &mut target.free.releasing,
            charge,
            place.status,
            sign,
        );
        target.free.used_gpus += sign * charge[GPU];
        if place.status == Status::Releasing {
            target.free.leaving_gpus += sign * charge[GPU];
        }
        if kind == PodKind::Foreign {
            let foreign = [
                shape_row.base[0],
                shape_row.base[1],
                shape_row.requested(None)[SHARE_GPU],
            ];
            add(&mut target.foreign, foreign, sign);
        }
        if let crate::tables::GpuKind::Mig { legacy: true } = shape_row.gpu {
            target.legacy_mig_pods = target.legacy_mig_pods.wrapping_add_signed(sign as i32);
        }
        for at in 0..self.shapes[shape.index()].extended.len() {
            let (resource, amount) = self.shapes[shape.index()].extended[at];
            let target = &mut self.nodes[node.index()];
            let Some(at) = target
                .extended
                .iter()
                .position(|extended| extended.resource == resource)
            else {
                continue;
            };
            let extended = &mut target.extended[at];
            if extended.allocatable == 0 {
                continue;
            }
            let undo = Undo::Extended {
                node,
                at: at as u32,
                idle: extended.idle,
                releasing: extended.releasing,
            };
            let (mut idle, mut releasing) = ([extended.idle], [extended.releasing]);
            shift(&mut idle, &mut releasing, [amount], place.status, sign);
            (extended.idle, extended.releasing) = (idle[0], releasing[0]);
            self.log(undo);
        }
        if self.shapes[shape.index()].is_shared() {
            let need = self.shapes[shape.index()].need_mib(self.nodes[node.index()].memory_mib);
            for group in &place.groups {
                self.account_group(node, *group, need, place.status, sign);
            }
        }
        self.touched.touch(node);
    }

    /// Accounts `need` MiB of one pod on a shared device, and what that means for the node's whole devices.
    fn account_group(&mut self, node: NodeId, id: GroupId, need: i64, status: Status, sign: i64) {
        let groups = &self.nodes[node.index()].groups;
        let found = groups.binary_search_by_key(&id, |group| group.id);
        let old = found.ok().map(|at| groups[at]);
        self.log(Undo::Group { node, id, old });
        let before = old.unwrap_or(Group {
            id,
            staying: 0,
            leaving: 0,
            promised: 0,
        });
        let mut after = before;
        let part = match status {
            Status::Releasing => &mut after.leaving,
            Status::Pipelined => &mut after.promised,
            _ => &mut after.staying,
        };
        *part += sign * need;
        let target = &mut self.nodes[node.index()];
        target.free.idle[GPU] -= after.takes_idle() - before.takes_idle();
        target.free.releasing[GPU] += after.gives_releasing() - before.gives_releasing();
        match (found, after.is_unused()) {
            (Ok(at), true) => {
                target.groups.remove(at);
                self.shared_devices -= 1;
            }
            (Ok(at), false) => target.groups[at] = after,
            (Err(_), true) => {}
            (Err(at), false) => {
                target.groups.insert(at, after);
                self.shared_devices += 1;
            }
        }
    }
}

/// Moves `amount` between idle and releasing as a pod of this status comes (`sign` 1) or goes (-1).
fn shift<const N: usize>(idle: &mut [i64; N], releasing: &mut [i64; N], amount: [i64; N], status: Status, sign: i64) {
    for at in 0..N {
        let amount = sign * amount[at];
        match status {
            Status::Releasing => {
                idle[at] -= amount;
                releasing[at] += amount;
            }
            Status::Pipelined => releasing[at] -= amount,
            _ => idle[at] -= amount,
        }
    }
}

/// Adds `sign` times `amount`.
pub(crate) fn add(share: &mut Share, amount: Share, sign: i64) {
    for (share, amount) in share.iter_mut().zip(amount) {
        *share += sign * amount;
    }
}
