//! The rest of the cluster between two cycles, which applies the scheduler's decisions at once.
//!
//! A bound pod runs. An evicted or terminating pod is deleted and re-created: it is pending again. A pipelined pod stays pending. Bind
//! requests are completed. Pods of the groups in `holdReleasing` stay terminating.

use kai_engine::Cluster;
use kai_engine::model::{Event, GangKey, GangSpec, Millis, PodPhase, PodSpec};
use kai_engine::report::{Decision, PodView, Report, Status};
use rustc_hash::{FxHashMap, FxHashSet};

/// The objects as the API server would have them.
#[derive(Debug, Default)]
pub(crate) struct SimulatedCluster {
    pods: FxHashMap<String, PodSpec>,
    gangs: FxHashMap<GangKey, GangSpec>,
    hold_releasing: FxHashSet<String>,
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
    pub(crate) fn new(hold_releasing: &[String]) -> SimulatedCluster {
        SimulatedCluster {
            hold_releasing: hold_releasing.iter().cloned().collect(),
            ..SimulatedCluster::default()
        }
    }

    pub(crate) fn add_pod(&mut self, pod: &PodSpec) {
        self.pods.insert(pod.uid.clone(), pod.clone());
    }

    pub(crate) fn add_gang(&mut self, gang: &GangSpec) {
        self.gangs.insert(gang.key.clone(), gang.clone());
    }

    pub(crate) fn pod(&self, uid: &str) -> Option<&PodSpec> {
        self.pods.get(uid)
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

    /// Applies the decisions of a cycle and sends the changes to the engine.
    pub(crate) fn apply_decisions(&mut self, cluster: &mut Cluster, report: &Report, now: Millis) {
        let evicted = evicted_pods(report);
        let mut changed = Vec::new();
        for view in cluster.pods() {
            let transition = self.transition(&view, evicted.contains(view.uid));
            let Some(pod) = self.pods.get_mut(view.uid) else {
                continue;
            };
            match transition {
                Transition::Unchanged => continue,
                Transition::Starts => run(pod, &view),
                Transition::Recreated => recreate(pod),
                Transition::StaysTerminating if pod.deletion.is_some() => continue,
                Transition::StaysTerminating => pod.deletion = Some(now),
            }
            changed.push(Event::Pod(pod.clone()));
        }
        for decision in &report.decisions {
            let update = |gang: &mut GangSpec| match decision {
                Decision::Started(_) => gang.last_start = Some(now),
                Decision::Evicted(_) => gang.last_eviction = Some(now),
                Decision::Stale { since, .. } => gang.stale_since = Some(*since),
                Decision::Recovered(_) => gang.stale_since = None,
                Decision::Bind(_) | Decision::Pipeline(_) | Decision::Evict { .. } => {}
            };
            let (Decision::Started(key)
            | Decision::Evicted(key)
            | Decision::Stale { gang: key, .. }
            | Decision::Recovered(key)) = decision
            else {
                continue;
            };
            if let Some(gang) = self.gangs.get_mut(key) {
                update(gang);
                changed.push(Event::Gang(gang.clone()));
            }
        }
        for event in changed {
            cluster.apply(event);
        }
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

fn run(pod: &mut PodSpec, view: &PodView<'_>) {
    pod.phase = PodPhase::Running;
    pod.node = view.node.map(str::to_owned);
    pod.gpu_groups.clone_from(&view.gpu_groups);
    pod.bind_in_flight = None;
    pod.nominated_node = None;
}

fn recreate(pod: &mut PodSpec) {
    pod.phase = PodPhase::Pending;
    pod.node = None;
    pod.deletion = None;
    pod.gpu_groups.clear();
    pod.bind_in_flight = None;
    pod.nominated_node = None;
    pod.labels.retain(|key, _| !kai_api::keys::is_gpu_group_label(key));
}
