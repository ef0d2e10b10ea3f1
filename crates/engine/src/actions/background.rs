//! Background pods, which never stand in the way of other workloads.
//!
//! A gang is a background gang if all its pods are background pods. Allocate first places the other gangs beside them. If it fails to place
//! some, this action evicts the background pods that are in their way tentatively: the pods count as releasing, and the gangs are tried once
//! more. The actions that follow see the same. Afterwards the evictions whose room no gang got are undone, and the others are reported. At
//! last, waiting background gangs get what is left.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::cycle::Cycle;
use crate::fit::fits_empty_node;
use crate::ids::{GangId, NodeId, PodId, QueueId, ShapeId};
use crate::model::Action;
use crate::place::{PlacementFailure, static_check};
use crate::reasons::{BackgroundCause, EvictionReason};
use crate::report::Status;
use crate::share::{self, AllocatedBefore};
use crate::work::RoundOf;

/// If more shapes than this lack room, every node counts as useful to one of them.
const SHAPES_MAX: usize = 64;

/// Background gangs with pods that were evicted tentatively.
#[derive(Debug)]
pub(crate) struct TentativeEvictions {
    gangs: FxHashSet<GangId>,
    /// Resources of all queues before the evictions.
    before: AllocatedBefore,
    /// Steps of work of the evictions. Undoing them takes as many, which are kept out of the budgets of other actions.
    steps: u64,
}

/// Gangs that allocate failed to place, and what they lack.
#[derive(Debug, Default)]
struct Unplaced {
    gangs: Vec<GangId>,
    shapes: FxHashSet<ShapeId>,
    /// Queues whose limit or quota the gangs would exceed.
    queues: FxHashSet<QueueId>,
    /// Whether an empty node could take a pod of one of the shapes, by node.
    nodes: FxHashMap<NodeId, bool>,
}

impl Cycle<'_> {
    /// Tries the gangs that allocate failed to place on the room of background gangs.
    pub(crate) fn place_on_background_room(&mut self) {
        let mut unplaced = self.unplaced_gangs();
        if unplaced.gangs.is_empty() {
            return;
        }
        self.ledger.settle_cores();
        let mut evictions = TentativeEvictions {
            gangs: FxHashSet::default(),
            before: share::allocated_of_queues(self.ledger),
            steps: 0,
        };
        // A GPU whose pods are all releasing is a free one that no pod can join. One of its pods stays as long as that suffices.
        for empties_gpus in [false, true] {
            let start = self.ledger.work();
            let evicted = self.evict_tentatively(&mut evictions.gangs, &mut unplaced, empties_gpus);
            let steps = self.ledger.work() - start;
            evictions.steps += steps;
            self.cycle_end = self.cycle_end.saturating_sub(steps);
            if evicted {
                self.place_in_order(RoundOf::BackgroundRoom, unplaced.gangs.clone());
                unplaced.gangs.retain(|gang| self.ledger.gang(*gang).waiting() > 0);
            }
            if unplaced.gangs.is_empty() {
                break;
            }
        }
        self.tentative_evictions = Some(evictions);
    }

    /// The gangs that allocate tried and failed to place, if room can help them.
    fn unplaced_gangs(&mut self) -> Unplaced {
        let mut unplaced = Unplaced::default();
        for gang in self.waiting_gangs(|gang| !gang.is_background()) {
            match self.explanations.failures.get(&gang) {
                None
                | Some(
                    PlacementFailure::OutOfWork | PlacementFailure::NoPods | PlacementFailure::TopologyUnknown { .. },
                ) => continue,
                Some(PlacementFailure::Bound(bound)) => {
                    unplaced.queues.insert(bound.queue);
                }
                Some(PlacementFailure::Pod { .. } | PlacementFailure::NoDomain { .. }) => {}
            }
            unplaced.gangs.push(gang);
            let pods = self.pods_of(gang).into_iter().map(|pod| self.ledger.pod(pod));
            let waiting = pods.filter(|pod| pod.is_waiting());
            unplaced.shapes.extend(waiting.map(|pod| pod.shape));
        }
        unplaced
    }

    /// Evicts pods of background gangs that are in the way of unplaced gangs, the youngest of the lowest priority first, within a budget;
    /// whether there are any.
    fn evict_tentatively(
        &mut self,
        evicted: &mut FxHashSet<GangId>,
        unplaced: &mut Unplaced,
        empties_gpus: bool,
    ) -> bool {
        let mut gangs = self.background_gangs_with_places();
        gangs.reverse();
        let mut round = self.begin_round(RoundOf::TentativeEvictions { empties_gpus }, &mut gangs);
        let mut has_evicted = false;
        for gang in gangs {
            if !self.may_try_next(&mut round) {
                break;
            }
            let is_over_bound = self.is_in_one_of(gang, &unplaced.queues);
            for pod in self.pods_of(gang).into_iter().rev() {
                if self.is_out_of_work() {
                    break;
                }
                let placement = &self.ledger.pod(pod).placement;
                // A pod on a node that the engine does not know takes no room.
                let Some(node) = placement.node.filter(|_| placement.status.is_active_allocated()) else {
                    continue;
                };
                let is_in_the_way = is_over_bound || self.is_useful(node, unplaced);
                if is_in_the_way && (empties_gpus || !self.is_last_of_a_gpu(pod, node)) {
                    self.ledger.evict(pod);
                    evicted.insert(gang);
                    has_evicted = true;
                }
            }
            round.record_failure(gang, self.is_out_of_work());
        }
        self.end_round(round);
        self.ledger.commit();
        has_evicted
    }

    /// Background gangs with placed pods. Those that keep their places first come first.
    fn background_gangs_with_places(&self) -> Vec<GangId> {
        let rows = self.ledger.gangs.iter().enumerate();
        let mut known = 0;
        let holders = rows.filter(|(_, gang)| gang.known).filter_map(|(at, gang)| {
            known += 1;
            (gang.is_background() && gang.active_allocated() > 0).then(|| GangId::new(at))
        });
        let mut gangs: Vec<GangId> = holders.collect();
        // Not the rows: how many gangs are gone depends on the cluster's past.
        self.ledger.note_work(known);
        self.sort_by_rank(&mut gangs);
        gangs
    }

    /// Orders background gangs by priority, then by age.
    fn sort_by_rank(&self, gangs: &mut [GangId]) {
        gangs.sort_by_key(|gang| {
            let row = self.ledger.gang(*gang);
            (std::cmp::Reverse(row.priority), row.seniority)
        });
    }

    fn is_in_one_of(&self, gang: GangId, queues: &FxHashSet<QueueId>) -> bool {
        let mut path = self
            .ledger
            .gang(gang)
            .queue
            .into_iter()
            .flat_map(|leaf| self.ledger.queue_path(leaf));
        path.any(|queue| queues.contains(&queue))
    }

    /// Whether some unplaced pod could run on the node if that were empty.
    fn is_useful(&self, node: NodeId, unplaced: &mut Unplaced) -> bool {
        let Unplaced { shapes, nodes, .. } = unplaced;
        let takes_some_shape = || {
            self.ledger.note_work(shapes.len());
            let row = self.ledger.node(node);
            let mut shapes = shapes.iter().map(|shape| self.ledger.shape(*shape));
            shapes.any(|shape| fits_empty_node(row, shape) && static_check(row, shape).is_ok())
        };
        shapes.len() > SHAPES_MAX || *nodes.entry(node).or_insert_with(takes_some_shape)
    }

    /// Whether the pod is the last one on a shared GPU that does not leave.
    fn is_last_of_a_gpu(&self, pod: PodId, node: NodeId) -> bool {
        let row = self.ledger.node(node);
        let need = self.ledger.shape_of(pod).need_mib(row.memory_mib);
        let groups = &self.ledger.pod(pod).placement.gpu_groups;
        let mut groups = groups.iter().filter_map(|group| row.gpu_group(*group));
        groups.any(|group| group.active_mib + group.pipelined_mib <= need)
    }

    /// Undoes the tentative evictions whose room no gang got, reports the others, and places waiting background gangs.
    pub(crate) fn finish_background_gangs(&mut self) {
        if let Some(TentativeEvictions { gangs, before, steps }) = self.tentative_evictions.take() {
            self.cycle_end = self.cycle_end.saturating_add(steps);
            let mut gangs: Vec<GangId> = gangs.into_iter().collect();
            self.sort_by_rank(&mut gangs);
            for gang in gangs {
                self.undo_evictions_of(gang, &before);
            }
            self.ledger.commit();
        }
        if self.config.actions.contains(&Action::Allocate) {
            let waiting = self.waiting_gangs(crate::tables::Gang::is_background);
            self.place_in_order(RoundOf::Action(Action::BackgroundPods), waiting);
        }
    }

    /// Leaves as many pods of a gang at their places as possible, but at least its minimum; evicts the others.
    fn undo_evictions_of(&mut self, gang: GangId, before: &AllocatedBefore) {
        let is_non_preemptible = self.ledger.gang(gang).is_non_preemptible();
        let start = self.ledger.checkpoint();
        let mut lost: SmallVec<[PodId; 4]> = SmallVec::new();
        let mut cause = None;
        for pod in self.pods_of(gang) {
            if !self.is_tentatively_evicted(pod) {
                continue;
            }
            let checkpoint = self.ledger.checkpoint();
            let obstacle = if self.place_is_free(pod) {
                self.ledger.undo_eviction(pod);
                let exceeds = !share::limits_hold(self.ledger, gang, before)
                    || (is_non_preemptible && !self.quotas_hold(gang, before));
                exceeds.then_some(BackgroundCause::QueueBound)
            } else {
                Some(BackgroundCause::Room)
            };
            if let Some(obstacle) = obstacle {
                self.ledger.rollback(checkpoint);
                cause.get_or_insert(obstacle);
                lost.push(pod);
            }
        }
        // Which pods are the core is known once the last one has its place.
        let is_over_quota = self.ledger.gang(gang).is_semi_preemptible() && !self.quotas_hold(gang, before);
        if is_over_quota {
            cause.get_or_insert(BackgroundCause::QueueBound);
        }
        let Some(cause) = cause else { return };
        if is_over_quota || !self.ledger.gang(gang).is_satisfied() {
            self.ledger.rollback(start);
            lost.clear();
            for pod in self.pods_of(gang) {
                let status = self.ledger.pod(pod).placement.status;
                let stays = matches!(status, Status::Binding | Status::Bound | Status::Running);
                if stays && self.ledger.pod(pod).placement.node.is_some() {
                    self.ledger.evict(pod);
                }
                if self.is_tentatively_evicted(pod) {
                    lost.push(pod);
                }
            }
        }
        let pods = lost.len() as u32;
        for pod in lost {
            if self.report_eviction(pod, EvictionReason::Background { pods, cause }) {
                self.record_eviction(gang);
            }
        }
    }

    fn quotas_hold(&mut self, gang: GangId, before: &AllocatedBefore) -> bool {
        self.ledger.settle_cores();
        share::quotas_hold(self.ledger, gang, before)
    }

    fn is_tentatively_evicted(&self, pod: PodId) -> bool {
        let row = self.ledger.pod(pod);
        row.placement.status == Status::Releasing && row.evicted_from.is_some()
    }

    /// The pods of a gang in task order: the first is evicted last.
    fn pods_of(&self, gang: GangId) -> Vec<PodId> {
        let sets = self.ledger.gang(gang).pod_sets.iter();
        let pods: Vec<PodId> = sets.flat_map(|set| &set.pods).copied().collect();
        self.ledger.note_work(pods.len());
        pods
    }
}

#[cfg(test)]
mod tests {
    use crate::clusters::{NOW, background_and_other};
    use crate::model::Gpus;

    #[test]
    fn background_gangs_are_served_last_whatever_their_priority() {
        let mut case = background_and_other();
        case.cluster.cycle_observed(
            NOW,
            &crate::model::Config {
                actions: Vec::new(),
                ..case.config.clone()
            },
            &mut |_| {},
        );
        let order = case.cluster.serving_order(&case.config);
        let names: Vec<&str> = order.iter().map(|gang| gang.gang.name.as_str()).collect();
        assert_eq!(names, ["pending-0000001", "pending-0000000"]);
    }

    #[test]
    fn background_gangs_count_in_the_request_of_their_queue_and_not_in_its_fair_share() {
        let mut case = background_and_other();
        for cycle in ["waiting", "running"] {
            case.cluster.cycle(NOW, &case.config);
            let queues = case.cluster.queues();
            let queue = queues
                .iter()
                .find(|queue| queue.name == "queue-0")
                .expect("the queue exists");
            assert_eq!(queue.requested.gpus, Gpus::whole(2), "{cycle}");
            assert_eq!(queue.fair_share.gpus, Gpus::whole(1), "{cycle}");
        }
    }
}
