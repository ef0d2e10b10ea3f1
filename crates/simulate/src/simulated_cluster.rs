//! A cluster in memory: the scheduler's mirror and engine, and the other components, which carry out decisions between two cycles.
//!
//! The objects of the files go through the mirror that the scheduler uses, so that the engine sees the same as in production. Between two
//! cycles the simulated cluster changes the objects and applies them to the mirror again: a bound pod runs; an evicted or terminating pod
//! is deleted and re-created, so that it is pending again; a pipelined pod stays pending; bind requests are completed; reservation pods are
//! created and deleted (`reservations`); claims of bound pods get their volumes (`volumes`). Pods of the groups in `holdReleasing` stay terminating.

mod load;
mod reservations;
mod volumes;

use std::sync::Arc;

use kai_api::{ObjectKey, Pod};
use kai_engine::Cluster;
use kai_engine::model::{Event, GangKey, Millis, PodSpec};
use kai_engine::report::{Decision, PodView, Report, Status};
use kai_mirror::{ClusterMirror, GangTimestamp, ObjectProblem, pod_group_key};
use rustc_hash::{FxHashMap, FxHashSet};

use reservations::SimulatedReservations;

/// The cluster of a scenario.
#[derive(Debug)]
pub struct SimulatedCluster {
    mirror: ClusterMirror,
    engine: RememberingEngine,
    hold_releasing: FxHashSet<String>,
    /// Bind requests that the binder has not completed yet.
    bind_requests: Vec<ObjectKey>,
    /// `None` if the files have no reservation pods.
    reservations: Option<SimulatedReservations>,
    /// Ended pods. The mirror does not keep them, as the watch of a scheduler does not.
    ended_pods: Vec<Arc<Pod>>,
    /// Problems of objects that nobody has taken yet.
    problems: Vec<ObjectProblem>,
}

/// What to remember of the engine's events, for checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Remember {
    /// Pods as the engine has them.
    pub(crate) pods: bool,
    /// Minimums of gangs.
    pub(crate) gang_minimums: bool,
}

/// The engine, and parts of its input.
#[derive(Debug, Default)]
struct RememberingEngine {
    cluster: Cluster,
    remember: Remember,
    pods: FxHashMap<String, PodSpec>,
    gang_minimums: FxHashMap<GangKey, u32>,
}

impl RememberingEngine {
    fn apply(&mut self, event: Event) {
        match &event {
            Event::Pod(pod) if self.remember.pods => {
                self.pods.insert(pod.uid.clone(), pod.clone());
            }
            Event::Gang(gang) if self.remember.gang_minimums => {
                self.gang_minimums
                    .insert(gang.key.clone(), crate::check::gang_minimum(gang));
            }
            _ => {}
        }
        self.cluster.apply(event);
    }
}

/// The transition of a pod between two cycles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Transition {
    /// The pod stays as it is.
    Unchanged,
    /// The pod runs on the node it was bound to.
    Starts,
    /// The pod is deleted and re-created.
    Recreated,
    /// The pod stays terminating.
    StaysTerminating,
}

impl SimulatedCluster {
    /// The engine as of the last cycle.
    pub fn engine(&self) -> &Cluster {
        &self.engine.cluster
    }

    /// The engine, to run a cycle. [`SimulatedCluster::begin_cycle`] comes first.
    pub fn engine_mut(&mut self) -> &mut Cluster {
        &mut self.engine.cluster
    }

    /// The scheduler's mirror.
    pub(crate) fn mirror(&self) -> &ClusterMirror {
        &self.mirror
    }

    /// The pod as the engine got it, if pods are remembered.
    pub(crate) fn pod(&self, uid: &str) -> Option<&PodSpec> {
        self.engine.pods.get(uid)
    }

    /// The minimums of gangs by key, if they are remembered.
    pub(crate) fn gang_minimums(&self) -> Vec<(&GangKey, u32)> {
        let mut minimums: Vec<_> = self
            .engine
            .gang_minimums
            .iter()
            .map(|(gang, minimum)| (gang, *minimum))
            .collect();
        minimums.sort_unstable();
        minimums
    }

    /// Pods that had ended before the first cycle.
    pub(crate) fn ended_pods(&self) -> &[Arc<Pod>] {
        &self.ended_pods
    }

    /// The problems of objects that the mirror reported since the last call.
    pub(crate) fn take_problems(&mut self) -> Vec<ObjectProblem> {
        std::mem::take(&mut self.problems)
    }

    /// Sets the time, carries out what the mirror wants done, and passes all events to the engine, as the scheduler does before a cycle.
    pub fn begin_cycle(&mut self, now: Millis) {
        self.mirror.tick(now);
        self.pass_events();
    }

    fn pass_events(&mut self) {
        let mut outbox = self.mirror.take_outbox();
        // The API server deletes stale bind requests at once.
        while !outbox.stale_bind_requests.is_empty() {
            for request in std::mem::take(&mut outbox.stale_bind_requests) {
                self.mirror.remove_bind_request(&request.key);
                self.bind_requests.retain(|key| *key != request.key);
            }
            let more = self.mirror.take_outbox();
            outbox.events.extend(more.events);
            outbox.problems.extend(more.problems);
            outbox.stale_bind_requests = more.stale_bind_requests;
        }
        for event in outbox.events {
            self.engine.apply(event);
        }
        self.problems.extend(outbox.problems);
    }

    /// The transition of a pod. `evicted` says that this cycle evicted it.
    pub(crate) fn transition(&self, pod: &PodView<'_>, evicted: bool) -> Transition {
        let held = pod.gang.is_some_and(|gang| self.hold_releasing.contains(&gang.name));
        match pod.status {
            Status::Binding | Status::Bound => Transition::Starts,
            Status::Releasing if held => Transition::StaysTerminating,
            Status::Releasing => Transition::Recreated,
            // Evicted and pipelined to another node: the pod leaves the old node.
            Status::Pipelined if evicted && held => Transition::StaysTerminating,
            Status::Pipelined if evicted => Transition::Recreated,
            Status::Pipelined
            | Status::Pending
            | Status::Gated
            | Status::Running
            | Status::StuckInReleasing
            | Status::Succeeded
            | Status::Failed
            | Status::Unknown => Transition::Unchanged,
        }
    }

    /// Carries out the decisions of a cycle, and applies the changed objects to the mirror.
    pub(crate) fn apply_decisions(&mut self, report: &Report, now: Millis) {
        for decision in &report.decisions {
            if let Decision::Bind(placed) = decision {
                volumes::bind(&mut self.mirror, &placed.volumes);
            }
        }
        for (key, pod) in self.changed_pods(report, now) {
            self.mirror.apply_pod(&key, &pod);
            self.mirror.drain_event_batch(|event| self.engine.apply(event));
        }
        for decision in &report.decisions {
            let (gang, timestamp) = match decision {
                Decision::Started(gang) => (gang, GangTimestamp::Started(now)),
                Decision::Evicted(gang) => (gang, GangTimestamp::Evicted(now)),
                Decision::Stale { gang, since } => (gang, GangTimestamp::Stale(Some(*since))),
                Decision::Recovered(gang) => (gang, GangTimestamp::Stale(None)),
                Decision::Bind(_) | Decision::Pipeline(_) | Decision::Evict { .. } => continue,
            };
            // The engine has the time already; the mirror keeps it over later changes of the pod group.
            self.mirror.record_timestamp(&pod_group_key(gang), timestamp);
        }
        // Their pods run by now, so that no reservation is suspected for them.
        for request in std::mem::take(&mut self.bind_requests) {
            self.mirror.remove_bind_request(&request);
        }
        if let Some(reservations) = &mut self.reservations {
            reservations.reconcile(&mut self.mirror);
        }
    }

    /// The pods that change between two cycles, in their new state.
    fn changed_pods(&self, report: &Report, now: Millis) -> Vec<(ObjectKey, Arc<Pod>)> {
        let evicted = evicted_pods(report);
        let changed = self.engine().pods().into_iter().filter_map(|view| {
            let transition = self.transition(&view, evicted.contains(view.uid));
            if transition == Transition::Unchanged {
                return None;
            }
            let (key, pod) = self.mirror.pod_by_uid(view.uid)?;
            let next = match transition {
                Transition::Unchanged => return None,
                Transition::Starts => pod.started_on(view.node?, &view.gpu_groups),
                Transition::Recreated => pod.recreated(),
                Transition::StaysTerminating if pod.is_terminating() => return None,
                Transition::StaysTerminating => pod.terminating_since(now),
            };
            Some((key.clone(), Arc::new(next)))
        });
        changed.collect()
    }
}

/// The uids of the pods that a cycle evicted.
pub(crate) fn evicted_pods(report: &Report) -> FxHashSet<&str> {
    let evicted = report.decisions.iter().filter_map(|decision| match decision {
        Decision::Evict { pod, .. } => Some(&**pod),
        Decision::Bind(_)
        | Decision::Pipeline(_)
        | Decision::Started(_)
        | Decision::Evicted(_)
        | Decision::Stale { .. }
        | Decision::Recovered(_) => None,
    });
    evicted.collect()
}
