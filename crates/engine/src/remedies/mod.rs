//! What would let a waiting gang start.
//!
//! [`Cluster::explain`] looks for candidates in the ledger, which its journal rolls back, and proves each on a copy of the cluster: the
//! steps are carried out as events, and one cycle runs at the same time and by the same policy. A remedy is offered as tried only if
//! that cycle binds or pipelines the gang. The cluster itself never changes, so no later decision depends on explanations.

mod candidates;
mod carry_out;
mod data;
mod ends;
mod nodes;
mod trial;

use crate::cluster::Cluster;
use crate::gangs::Candidates;
use crate::ids::{GangId, PodId};
use crate::model::{Action, Config, GangKey};
use crate::place::PlacementFailure;
use crate::reasons::{PodsLacking, Reason};
use crate::report::Status;
use crate::tables::GpuKind;
use candidates::{Allowed, repair};
use carry_out::pods_of;
pub use data::{
    Ask, Claim, Constraint, ExplainBudget, Explanation, GpuAmount, Holder, LargestNode, LargestRequest, NearestMiss,
    NoRemedy, Position, RaisedBound, Remedy, Request, Step, Wait,
};
use trial::Trials;

impl Cluster {
    /// Why the pod of this uid waits, and what would let its gang start; `None` if there is no such workload pod.
    ///
    /// The answer holds for the cluster and the time of the last cycle. It takes up to `budget.trials_max` copies of the cluster, one
    /// after the other.
    pub fn explain(&self, uid: &str, config: &Config, budget: ExplainBudget) -> Option<Explanation> {
        let views = self.pods_of([uid]);
        let reason = views.first()?.reason.clone();
        let pod = *self.pod_ids.get(uid)?;
        let row = self.ledger.pod(pod);
        let gang = row.gang.map(|gang| self.ledger.gang(gang).key.clone());
        let mut explanation = Explanation {
            gang,
            reason,
            position: None,
            request: Request::default(),
            nearest: Vec::new(),
            largest: LargestRequest::default(),
            remedies: Vec::new(),
            no_remedy: None,
            is_cut: false,
            trials: 0,
        };
        // A pod that the cycle placed and evicted again waits: there is nothing to delete.
        if !matches!(row.observed.status, Status::Pending | Status::Gated) {
            explanation.no_remedy = Some(NoRemedy::NotWaiting);
            return Some(explanation);
        }
        match row.gang.filter(|gang| self.ledger.gang(*gang).known) {
            Some(gang) => self.explain_gang(pod, gang, config, budget, &mut explanation),
            None => {
                let key = row.gang.map(|gang| (*self.ledger.gang(gang).key).clone());
                explanation.remedies = vec![untried(Step::CreateGang(key))];
            }
        }
        Some(explanation)
    }

    /// The pod by which [`Cluster::explain`] explains a gang: the first that waits, else its first pod.
    pub fn pod_to_explain(&self, gang: &GangKey) -> Option<&str> {
        let pods = pods_of(self.ledger.gang(*self.gang_ids.get(gang)?));
        let status = |pod: &&PodId| self.ledger.pod(**pod).placement.status;
        let waits = |wanted: Status| pods.iter().find(|pod| status(pod) == wanted);
        let found = waits(Status::Pending)
            .or_else(|| waits(Status::Gated))
            .or_else(|| waits(Status::Pipelined))
            .or_else(|| pods.first());
        found.map(|pod| &*self.ledger.pod(*pod).uid)
    }

    fn explain_gang(
        &self,
        pod: PodId,
        gang: GangId,
        config: &Config,
        budget: ExplainBudget,
        explanation: &mut Explanation,
    ) {
        let mut base = self.clone();
        base.revert_pipelined();
        explanation.position = base.clone().position(gang, config);
        let mut trials = Trials::new(&base, gang, config, budget);
        trials.spend(base.ledger.present_nodes as u64);
        let mut pods = Vec::new();
        base.ledger.pods_to_place(gang, Candidates::Waiting, &mut pods);
        let of = pods.first().copied().unwrap_or(pod);
        let failing = match self.explanations.failures.get(&gang) {
            Some(PlacementFailure::Pod { pod, .. }) if pods.contains(pod) => *pod,
            Some(_) | None => of,
        };
        explanation.request = self.request(failing, pods.len() as u32);
        let shape = self.ledger.pod(failing).shape;
        if self.ledger.pod(pod).placement.status != Status::Pipelined {
            explanation.nearest = nodes::nearest(self, gang, shape);
            explanation.largest = nodes::largest(self, shape);
        }
        explanation.remedies = match base.precondition(gang, explanation.reason.as_ref()) {
            Some(precondition) => precondition.remedies(&mut trials),
            None => self.remedies_by_trial(pod, &pods, &mut trials),
        };
        (explanation.is_cut, explanation.trials) = (trials.is_cut, trials.trials);
        if explanation.remedies.is_empty() {
            explanation.no_remedy = Some(if nodes::large_enough(self, shape).is_empty() {
                let largest = nodes::largest_node(self, shape);
                NoRemedy::NoNodeLargeEnough { largest }
            } else if config.actions.contains(&Action::Allocate) {
                NoRemedy::NotFound
            } else {
                NoRemedy::NoAllocate
            });
        }
    }

    fn remedies_by_trial(&self, pod: PodId, pods: &[PodId], trials: &mut Trials<'_>) -> Vec<Remedy> {
        let row = self.ledger.gang(trials.gang);
        if !row.schedulable {
            return vec![untried(Step::Wait(Wait::BackOff))];
        }
        let Some(outcome) = trials.run(&[]) else {
            return Vec::new();
        };
        if outcome.started {
            let wait = match self.ledger.pod(pod).placement.node {
                Some(node) if self.ledger.pod(pod).placement.status == Status::Pipelined => Wait::Release {
                    node: self.ledger.node(node).name.to_string(),
                    pods: self.releasing_pods(node),
                },
                Some(_) | None => Wait::NextCycle,
            };
            let steps = vec![Step::Wait(wait)];
            return vec![Remedy { steps, tried: true }];
        }
        let unknown_topology = match outcome.failure(trials.gang) {
            Some(PlacementFailure::TopologyUnknown { topology, level }) => Some(Step::CreateTopology {
                topology: topology.clone(),
                level: level.clone(),
            }),
            Some(_) | None => None,
        };
        let was_cut = matches!(outcome.failure(trials.gang), Some(PlacementFailure::OutOfWork))
            || outcome.cluster.explanations.cut_searches.contains(&trials.gang);
        let mut remedies: Vec<Remedy> = unknown_topology.map(untried).into_iter().collect();
        if !pods.is_empty() {
            remedies.extend(candidates::remedies(trials, &outcome, pods));
        }
        if was_cut {
            remedies.push(untried(Step::Wait(Wait::LaterCycles)));
        }
        remedies
    }

    /// Pods that are being deleted on a node.
    fn releasing_pods(&self, node: crate::ids::NodeId) -> u32 {
        let releasing = |pod: &&PodId| {
            let status = self.ledger.pod(**pod).observed.status;
            matches!(status, Status::Releasing | Status::StuckInReleasing)
        };
        self.ledger.node(node).pods.iter().filter(releasing).count() as u32
    }

    /// The position of a gang in the order in which the next cycle serves gangs. Reverts pipelined placements: called on a copy.
    fn position(mut self, gang: GangId, config: &Config) -> Option<Position> {
        let key = self.ledger.gang(gang).key.clone();
        let order = self.serving_order(config);
        let at = order.iter().position(|pending| pending.gang == key)?;
        let (own, before) = (&order[at].queue, &order[..at]);
        let same = before.iter().filter(|pending| pending.queue == *own).count();
        Some(Position {
            before_in_queue: same as u32,
            before_in_others: (before.len() - same) as u32,
        })
    }

    fn request(&self, pod: PodId, pods: u32) -> Request {
        let shape = self.ledger.shape_of(pod);
        let gpus = match shape.gpu {
            GpuKind::None => GpuAmount::None,
            GpuKind::Whole { devices } => GpuAmount::Whole(devices),
            GpuKind::Memory { mib, devices } => GpuAmount::Memory { mib, devices },
            GpuKind::Fraction { fraction, devices } => GpuAmount::Fraction {
                hundredths: fraction.nearest_hundredths(),
                devices,
            },
            GpuKind::Mig { .. } => GpuAmount::Mig,
        };
        Request {
            gpus,
            cpu_milli: shape.base.cpu_milli,
            memory_bytes: shape.base.memory_bytes,
            pods,
        }
    }

    /// What must be settled before any cycle tries the gang.
    fn precondition(&self, gang: GangId, reason: Option<&Reason>) -> Option<Precondition> {
        let row = self.ledger.gang(gang);
        let untried = |step| Some(Precondition::Untried(vec![step]));
        match reason {
            Some(Reason::Refused(_) | Reason::AffinityTermsExceeded(_) | Reason::SubGroupsExceeded(_)) => {
                untried(Step::Correct)
            }
            Some(Reason::QueueMissing(queue)) => untried(Step::CreateQueue(queue.clone())),
            Some(Reason::QueueDisconnected { queue, missing }) => untried(match missing {
                Some(missing) => Step::CreateQueue(missing.clone()),
                None => Step::ChangeParent(queue.clone()),
            }),
            Some(Reason::QueueNotLeaf(queue)) => untried(Step::NameLeafQueue(queue.clone())),
            Some(Reason::UnknownSubGroup(name)) => untried(Step::NameSubGroup(name.clone())),
            // Pods that the cycle placed and evicted again are ready once more.
            Some(Reason::GangNotReady { .. }) if row.is_ready() => None,
            Some(Reason::GangNotReady { .. }) => Some(Precondition::PodsLacking {
                gated: self.gated_pods(gang),
                lacking: row.pods_lacking(),
                ready: row
                    .pod_sets
                    .iter()
                    .map(|set| (set.name.to_string(), set.ready()))
                    .collect(),
            }),
            Some(Reason::Gated) => Some(Precondition::PodsLacking {
                gated: self.gated_pods(gang),
                lacking: Vec::new(),
                ready: Vec::new(),
            }),
            Some(_) | None => None,
        }
    }

    fn gated_pods(&self, gang: GangId) -> u32 {
        self.ledger.gang(gang).count(Status::Gated)
    }
}

/// What must be settled before any cycle tries a gang.
enum Precondition {
    /// Steps of which nothing more is known.
    Untried(Vec<Step>),
    /// Too few pods exist without gates.
    PodsLacking {
        gated: u32,
        lacking: Vec<PodsLacking>,
        /// Pods that can start, by pod set.
        ready: Vec<(String, u32)>,
    },
}

impl Precondition {
    fn remedies(self, trials: &mut Trials<'_>) -> Vec<Remedy> {
        let (gated, lacking, ready) = match self {
            Precondition::Untried(steps) => return vec![Remedy { steps, tried: false }],
            Precondition::PodsLacking { gated, lacking, ready } => (gated, lacking, ready),
        };
        let mut remedies = Vec::new();
        let mut offer = |steps: Option<Vec<Step>>| {
            remedies.extend(steps.map(|steps| Remedy { steps, tried: true }));
        };
        let completed = Allowed {
            raise: true,
            end: Some(ends::Whose::Any),
        };
        if gated > 0 {
            let gates = vec![Step::RemoveGates { pods: gated }];
            let steps = repair(trials, gates.clone(), completed);
            let found = steps.is_some();
            offer(steps);
            if !found && lacking.is_empty() {
                return vec![Remedy {
                    steps: gates,
                    tried: false,
                }];
            }
        }
        let lower = |lacking: &PodsLacking| {
            let name = lacking.sub_group.as_deref().unwrap_or(crate::gangs::DEFAULT_SUB_GROUP);
            let (_, to) = ready.iter().find(|(set, _)| set == name)?;
            (*to > 0).then(|| Step::LowerMinimum {
                sub_group: lacking.sub_group.clone(),
                from: lacking.required,
                to: *to,
            })
        };
        let lowered: Option<Vec<Step>> = lacking.iter().map(lower).collect();
        if let Some(steps) = lowered.filter(|steps| !steps.is_empty()) {
            offer(repair(trials, steps, completed));
        }
        let create = |lacking: &PodsLacking| {
            let count = lacking.required.saturating_sub(lacking.existing);
            (count > 0).then(|| Step::CreatePods {
                sub_group: lacking.sub_group.clone(),
                count,
            })
        };
        let steps: Vec<Step> = lacking.iter().filter_map(create).collect();
        if !steps.is_empty() {
            remedies.push(Remedy { steps, tried: false });
        }
        remedies
    }
}

fn untried(step: Step) -> Remedy {
    Remedy {
        steps: vec![step],
        tried: false,
    }
}
