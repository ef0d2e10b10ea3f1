//! The policy of a cycle. All defaults are those of KAI.

use super::Millis;

/// One step of a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Place pending gangs on idle and releasing resources.
    Allocate,
    /// Move running gangs to other nodes, so that a pending gang fits.
    Consolidation,
    /// Evict gangs of queues above their fair share for a queue below its own.
    Reclaim,
    /// Evict gangs of lower priority in the same queue.
    Preempt,
    /// Evict gangs that run below their minimum for too long.
    StaleGangEviction,
    /// Evict background pods whose room other gangs got, and place pending background gangs. Not configured: it follows the last action
    /// that places gangs, in clusters with background pods.
    BackgroundPods,
}

impl Action {
    /// All actions that a configuration may list, in their usual order.
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
            Action::BackgroundPods => "backgroundpods",
        }
    }

    /// Whether the action places gangs.
    pub(crate) fn places(self) -> bool {
        match self {
            Action::Allocate | Action::Consolidation | Action::Reclaim | Action::Preempt => true,
            Action::StaleGangEviction | Action::BackgroundPods => false,
        }
    }

    /// The action of this name that a configuration may list.
    pub fn by_name(name: &str) -> Option<Action> {
        Action::ALL.into_iter().find(|action| action.name() == name)
    }
}

/// How pods are distributed over nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementStrategy {
    /// The fullest node that fits.
    Binpack,
    /// The emptiest node that fits.
    Spread,
    /// The node that loses least of what it is worth for the pods that are still to come, by the typical mix of pods.
    Frag,
}

impl PlacementStrategy {
    /// The names used in configuration, for messages.
    pub const NAMES: &str = "binpack, spread and frag";

    /// The strategy of this name.
    pub fn by_name(name: &str) -> Option<PlacementStrategy> {
        match name {
            "binpack" => Some(PlacementStrategy::Binpack),
            "spread" => Some(PlacementStrategy::Spread),
            "frag" => Some(PlacementStrategy::Frag),
            _ => None,
        }
    }
}

/// The placement strategy for each kind of pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementStrategies {
    /// Pods that request GPUs; also the choice of the GPU for a pod that shares one.
    pub gpu: PlacementStrategy,
    /// Pods that request none.
    pub cpu: PlacementStrategy,
}

/// Which queue's minimum runtime protects a victim of reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinRuntimeResolve {
    /// The child of the lowest common ancestor of both queues, on the side of the victim.
    LowestCommonAncestor,
    /// The victim's own queue, then its ancestors.
    Queue,
}

/// Which gangs of a queue come first, of those with equal priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuJobOrder {
    /// Gangs that request more GPUs.
    PreferLarger,
    /// Gangs that request fewer GPUs.
    PreferSmaller,
}

/// The policy of a cycle.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The actions of a cycle, in order.
    pub actions: Vec<Action>,
    /// How pods are distributed over nodes.
    pub placement: PlacementStrategies,
    /// How many gangs consolidation may move for one pending gang; `None` = any number, 0 turns it off.
    pub consolidation_preemptees_max: Option<u32>,
    /// Whether a victim of reclaim that gets another node counts as no loss of its queue.
    pub allow_consolidating_reclaim: bool,
    /// The weight of historic usage in the fair division, in millionths.
    pub usage_weight_millionths: i64,
    /// The factor by which the saturation of a reclaiming queue is multiplied before it is compared with that of its siblings, in
    /// millionths; at least 1_000_000.
    pub saturation_multiplier_millionths: i64,
    /// How long a gang may run below its minimum; `None` = without end.
    pub staleness_grace: Option<Millis>,
    /// How long past its deletion time a pod counts as releasing; then it counts as stuck.
    pub stuck_in_releasing: Millis,
    /// Minimum runtime against preemption, for queues that set none.
    pub preempt_min_runtime: Millis,
    /// Minimum runtime against reclaim, for queues that set none.
    pub reclaim_min_runtime: Millis,
    /// How the minimum runtime against reclaim is found.
    pub reclaim_min_runtime_resolve: MinRuntimeResolve,
    /// How many gangs per leaf queue an action tries at most.
    pub queue_depth: Vec<(Action, u32)>,
    /// Whether an action skips a gang that has the same signature (queue, pods to place, constraints) as one for which it found no
    /// victims.
    pub use_signatures: bool,
    /// Whether preferred pod affinity counts in node scores.
    pub score_pod_affinity: bool,
    /// How the requested GPUs order the gangs of a queue, after priority and before age; `None` = not at all.
    pub gpu_job_order: Option<GpuJobOrder>,
    /// How many failed simulations the victim search of one gang may take.
    pub failed_scenarios_per_gang_max: u32,
    /// How many failed simulations an action may take in one cycle. A gang whose search was cut pauses for a few cycles, so that other
    /// gangs get a search.
    pub failed_scenarios_per_action_max: u32,
    /// How many steps of work a cycle may take: a step is a visit of a node, pod, victim, domain or affinity term.
    /// `None` = in proportion to the size of the cluster, see [`Config::work_for`].
    pub work_per_cycle_max: Option<u64>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            actions: Action::ALL.to_vec(),
            placement: PlacementStrategies {
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
            gpu_job_order: None,
            failed_scenarios_per_gang_max: 128,
            failed_scenarios_per_action_max: 256,
            work_per_cycle_max: None,
        }
    }
}

/// Steps of work of a cycle on an empty cluster.
const WORK_BASE: u64 = 1_000_000;
/// Additional steps of work for each node and each pod.
const WORK_PER_OBJECT: u64 = 100;

impl Config {
    /// How many steps of work a cycle may take on a cluster of this size.
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
