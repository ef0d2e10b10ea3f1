//! Gangs: pods that start together (a PodGroup), possibly split into nested subgroups.

use super::Millis;
use crate::reasons::Refusal;

/// How many subgroups a gang may have. Groupers make one for each replica of a JobSet and each segment of a job, so the bound is the
/// number of nodes of a large cluster. The work per gang and cycle grows with the number of subgroups; at the bound it takes less
/// than a millisecond.
pub const SUB_GROUPS_MAX: usize = 4_096;

/// How many levels of subgroups a gang may have; groupers make three at most. Functions on the tree are recursive, and may visit a
/// subgroup once for each level above it.
pub const SUB_GROUP_DEPTH_MAX: usize = 16;

/// Identity of a gang. The namespace is part of it: equal names in two namespaces are two gangs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GangKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// Which pods of a gang may be evicted for other gangs. The quota of a queue bounds the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preemptibility {
    /// All pods.
    Preemptible,
    /// The pods beyond the core of the gang. The core is the smallest part of the gang that has its minimum.
    SemiPreemptible,
    /// No pod.
    NonPreemptible,
}

/// A gang: a PodGroup with its priority and preemptibility resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct GangSpec {
    /// Identity.
    pub key: GangKey,
    /// Tie-break after the creation time.
    pub uid: String,
    /// Creation time: older first.
    pub created: Millis,
    /// Name of the leaf queue.
    pub queue: String,
    /// Resolved priority value.
    pub priority: i32,
    /// Which of its pods may be evicted for other gangs.
    pub preemptibility: Preemptibility,
    /// How many pods must run together; ignored once there are subgroups.
    pub min_member: u32,
    /// How many direct subgroups must be satisfied; `None` = all.
    pub min_sub_group: Option<u32>,
    /// Topology constraint of the whole gang.
    pub topology: Option<TopologyConstraint>,
    /// Subgroups, a forest by `parent`.
    pub sub_groups: Vec<SubGroupSpec>,
    /// When the gang was last started without running pods.
    pub last_start: Option<Millis>,
    /// When one of its pods was last evicted for another gang.
    pub last_eviction: Option<Millis>,
    /// Since when the gang has run below its minimum.
    pub stale_since: Option<Millis>,
    /// How long after its creation or its last eviction the gang may not evict other gangs.
    pub preemption_delay: Millis,
    /// How long the gang may run below its minimum: `None` = the configured default, `Some(None)` = without end.
    pub staleness_grace: Option<Option<Millis>>,
    /// False during a back-off that the caller decided: no cycle tries the gang.
    pub schedulable: bool,
    /// Why no pod of the gang may start; `None` = they may. Running pods are not affected.
    pub refused: Option<Refusal>,
}

impl GangSpec {
    /// A preemptible gang of one pod, of priority zero and created at time zero, without subgroups and constraints. Its uid is its name.
    pub fn new(key: GangKey, queue: &str) -> GangSpec {
        GangSpec {
            uid: key.name.clone(),
            key,
            created: Millis(0),
            queue: queue.to_owned(),
            priority: 0,
            preemptibility: Preemptibility::Preemptible,
            min_member: 1,
            min_sub_group: None,
            topology: None,
            sub_groups: Vec::new(),
            last_start: None,
            last_eviction: None,
            stale_since: None,
            preemption_delay: Millis(0),
            staleness_grace: None,
            schedulable: true,
            refused: None,
        }
    }
}

/// A subgroup of a gang. A leaf holds pods, a parent holds subgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubGroupSpec {
    /// Unique within the gang.
    pub name: String,
    /// Parent subgroup; `None` = directly under the gang.
    pub parent: Option<String>,
    /// Leaf only: pods that must run together; `None` = 0.
    pub min_member: Option<u32>,
    /// Parent only: children that must be satisfied; `None` = all.
    pub min_sub_group: Option<u32>,
    /// Topology constraint of the subgroup.
    pub topology: Option<TopologyConstraint>,
}

/// The pods of a gang or subgroup must or should be in one domain of a topology.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopologyConstraint {
    /// Name of the topology.
    pub topology: String,
    /// Level (node label or alias) of the domain that all pods must share.
    pub required_level: Option<String>,
    /// Level of the domain that all pods should share.
    pub preferred_level: Option<String>,
}
