//! Trials: steps are carried out on a copy of the cluster, and one cycle runs there.

use crate::cluster::Cluster;
use crate::ids::GangId;
use crate::model::{Config, Millis};
use crate::place::PlacementFailure;
use crate::remedies::carry_out::pods_of;
use crate::remedies::{ExplainBudget, Step};
use crate::report::Status;

/// The budget of an explanation is this many times that of a cycle, unless the caller gives one.
const CYCLES_PER_EXPLANATION: u64 = 32;

/// The trials of one explanation.
pub(super) struct Trials<'a> {
    /// The cluster as it is, without pipelined placements.
    pub(super) base: &'a Cluster,
    pub(super) gang: GangId,
    pub(super) config: &'a Config,
    now: Millis,
    trials_left: u32,
    steps_left: u64,
    pub(super) trials: u32,
    /// Whether a trial was left out for lack of budget.
    pub(super) is_cut: bool,
}

/// The result of a trial.
pub(super) struct Outcome {
    pub(super) started: bool,
    /// The cluster after the cycle.
    pub(super) cluster: Cluster,
}

impl Outcome {
    /// Why the gang was not placed.
    pub(super) fn failure(&self, gang: GangId) -> Option<&PlacementFailure> {
        self.cluster.explanations.failures.get(&gang)
    }
}

impl<'a> Trials<'a> {
    pub(super) fn new(base: &'a Cluster, gang: GangId, config: &'a Config, budget: ExplainBudget) -> Trials<'a> {
        let per_cycle = config.work_for(base.node_ids.len(), base.pod_ids.len());
        Trials {
            base,
            gang,
            config,
            now: base.now,
            trials_left: budget.trials_max,
            steps_left: budget
                .steps_max
                .unwrap_or_else(|| per_cycle.saturating_mul(CYCLES_PER_EXPLANATION)),
            trials: 0,
            is_cut: false,
        }
    }

    /// Steps of work that are left.
    pub(super) fn steps_left(&self) -> u64 {
        self.steps_left
    }

    pub(super) fn spend(&mut self, steps: u64) {
        self.steps_left = self.steps_left.saturating_sub(steps);
    }

    /// Tries these steps; `None` if the budget is used up.
    pub(super) fn run(&mut self, steps: &[Step]) -> Option<Outcome> {
        if self.trials_left == 0 || self.steps_left == 0 {
            self.is_cut = true;
            return None;
        }
        (self.trials_left, self.trials) = (self.trials_left - 1, self.trials + 1);
        let mut cluster = self.base.clone();
        let before = cluster.steps();
        let waits = steps.iter().filter_map(|step| cluster.carry_out(self.gang, step)).max();
        let now = waits.map_or(self.now, |until| until.max(self.now));
        let waiting: Vec<_> = pods_of(cluster.ledger.gang(self.gang))
            .into_iter()
            .filter(|pod| cluster.ledger.pod(*pod).observed.status == Status::Pending)
            .collect();
        cluster.cycle(now, self.config);
        let has_place = |status| matches!(status, Status::Binding | Status::Pipelined);
        let started = waiting
            .iter()
            .any(|pod| has_place(cluster.ledger.pod(*pod).placement.status));
        // The copy itself is a step for each object.
        let objects = cluster.pod_ids.len() + cluster.node_ids.len();
        self.spend(cluster.steps() - before + objects as u64);
        Some(Outcome { started, cluster })
    }

    /// Whether these steps start the gang; `false` if the budget is used up.
    pub(super) fn starts(&mut self, steps: &[Step]) -> bool {
        self.run(steps).is_some_and(|outcome| outcome.started)
    }

    /// Leaves out steps without which the others start the gang all the same.
    pub(super) fn only_needed(&mut self, mut steps: Vec<Step>) -> Vec<Step> {
        /// A longer list was reduced in the ledger already, and each step costs a trial.
        const STEPS_MAX: usize = 6;
        if steps.len() > STEPS_MAX {
            return steps;
        }
        let mut at = 0;
        while steps.len() > 1 && at < steps.len() {
            let mut fewer = steps.clone();
            fewer.remove(at);
            if self.starts(&fewer) {
                steps = fewer;
            } else {
                at += 1;
            }
        }
        steps
    }
}
