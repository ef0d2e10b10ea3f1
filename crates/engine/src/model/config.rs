//! How the engine shall decide. Every default is the one that users of KAI know.

use super::Millis;

/// One step of a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Place pending gangs on free and soon-free capacity.
    Allocate,
    /// Move running gangs together to make room.
    Consolidation,
    /// Take back what a queue deserves from queues above their share.
    Reclaim,
    /// Replace lower-priority gangs of the same queue.
    Preempt,
    /// End gangs that run below their minimum for too long.
    StaleGangEviction,
}

impl Action {
    /// All actions in their usual order.
    pub const ALL: [Action; 5] = [
        Action::Allocate,
        Action::Consolidation,
        Action::Reclaim,
        Action::Preempt,
        Action::StaleGangEviction,
    ];

    /// The name used in configuration, metrics and events.
    pub fn name(self) -> &'static str {
        match self {
            Action::Allocate => "allocate",
            Action::Consolidation => "consolidation",
            Action::Reclaim => "reclaim",
            Action::Preempt => "preempt",
            Action::StaleGangEviction => "stalegangeviction",
        }
    }

    /// The action of this name.
    pub fn by_name(name: &str) -> Option<Action> {
        Action::ALL.into_iter().find(|action| action.name() == name)
    }
}

/// Fill nodes up, or even them out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementStrategy {
    /// The fullest node that fits.
    Binpack,
    /// The emptiest.
    Spread,
}

/// Placement per kind of pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Pods that ask for GPUs; also which device of a node a shared pod gets.
    pub gpu: PlacementStrategy,
    /// Pods that don't.
    pub cpu: PlacementStrategy,
}

/// Whose minimum runtime protects a victim of reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinRuntimeResolve {
    /// The victim's side of the lowest common ancestor of both queues.
    LowestCommonAncestor,
    /// The victim's own queue, then its ancestors.
    Queue,
}

/// Policy of a cycle.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What a cycle does, in order.
    pub actions: Vec<Action>,
    /// Pack or spread.
    pub placement: Placement,
    /// How many gangs consolidation may move for one pending gang; `None` = any number, 0 turns it off.
    pub consolidation_preemptees_max: Option<u32>,
    /// Whether reclaim may move gangs that stay within their rights.
    pub allow_consolidating_reclaim: bool,
    /// How strongly historic usage counts, in millionths.
    pub usage_weight_millionths: i64,
    /// How much less saturated than its siblings a reclaiming queue must stay, in millionths; at least 1_000_000.
    pub saturation_multiplier_millionths: i64,
    /// How long a gang may run below its minimum; `None` = for ever.
    pub staleness_grace: Option<Millis>,
    /// How long past its deletion time a pod is believed to be stuck.
    pub stuck_in_releasing: Millis,
    /// Minimum runtime against preemption where no queue says otherwise.
    pub preempt_min_runtime: Millis,
    /// Minimum runtime against reclaim where no queue says otherwise.
    pub reclaim_min_runtime: Millis,
    /// How the minimum runtime against reclaim is found.
    pub reclaim_min_runtime_resolve: MinRuntimeResolve,
    /// At most so many gangs per leaf queue are tried by an action.
    pub queue_depth: Vec<(Action, u32)>,
    /// Skip gangs no easier than one of the same shape that failed already in this action.
    pub use_signatures: bool,
    /// Whether preferred pod affinity scores nodes.
    pub score_pod_affinity: bool,
    /// How many simulations in vain the victim search of one gang may cost. Successful ones don't count.
    pub failed_scenarios_per_gang_max: u32,
    /// How many simulations in vain an action may cost in one cycle. A gang whose search was cut short steps back for a
    /// few cycles, so that it does not keep others from their turn.
    pub failed_scenarios_per_action_max: u32,
    /// How many steps of work a cycle may take: a step is a node, pod, victim, domain or affinity term that is looked at.
    /// `None` = in proportion to the size of the cluster, see [`Config::work_for`].
    pub work_per_cycle_max: Option<u64>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            actions: Action::ALL.to_vec(),
            placement: Placement {
                gpu: PlacementStrategy::Binpack,
                cpu: PlacementStrategy::Binpack,
            },
            consolidation_preemptees_max: Some(16),
            allow_consolidating_reclaim: true,
            usage_weight_millionths: 1_000_000,
            saturation_multiplier_millionths: 1_000_000,
            staleness_grace: Some(Millis::seconds(60)),
            stuck_in_releasing: Millis::seconds(120),
            preempt_min_runtime: Millis(0),
            reclaim_min_runtime: Millis(0),
            reclaim_min_runtime_resolve: MinRuntimeResolve::LowestCommonAncestor,
            queue_depth: Vec::new(),
            use_signatures: true,
            score_pod_affinity: true,
            failed_scenarios_per_gang_max: 128,
            failed_scenarios_per_action_max: 256,
            work_per_cycle_max: None,
        }
    }
}

/// Steps of work that a cycle may take on a cluster of any size.
const WORK_BASE: u64 = 1_000_000;
/// And for each node and each pod.
const WORK_PER_OBJECT: u64 = 100;

impl Config {
    /// How many steps of work a cycle may take on a cluster with so many nodes and pods.
    pub fn work_for(&self, nodes: usize, pods: usize) -> u64 {
        let objects = (nodes as u64).saturating_add(pods as u64);
        self.work_per_cycle_max
            .unwrap_or_else(|| WORK_BASE.saturating_add(WORK_PER_OBJECT.saturating_mul(objects)))
    }

    /// How many gangs per leaf queue the action tries; `None` = all.
    pub fn depth(&self, action: Action) -> Option<usize> {
        self.queue_depth
            .iter()
            .find(|(of, _)| *of == action)
            .map(|(_, depth)| *depth as usize)
    }
}
