//! Gangs: pods that start together (a PodGroup), possibly split into nested subgroups.

use super::Millis;

/// Subgroups that a gang may have. Groupers make one for each replica of a job set and each segment of a job, so this is as many as
/// large clusters have nodes; the work per gang and cycle, which grows with their number, stays below a millisecond.
pub const SUB_GROUPS_MAX: usize = 4_096;

/// Levels of subgroups that a gang may have. Groupers make three at most. Walks through the tree go down by recursion and cost up to
/// one look at each subgroup per level above it.
pub const SUB_GROUP_DEPTH_MAX: usize = 16;

/// Identity of a gang. The namespace is part of it: equal names in two namespaces are two gangs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GangKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// A gang.
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
    /// Whether others may take its place.
    pub preemptible: bool,
    /// How many pods must run together; ignored once there are subgroups.
    pub min_member: u32,
    /// How many direct subgroups must be satisfied; `None` = all.
    pub min_sub_group: Option<u32>,
    /// Where the whole gang must or should be together.
    pub topology: Option<TopologyConstraint>,
    /// Subgroups, a forest by `parent`.
    pub sub_groups: Vec<SubGroupSpec>,
    /// When it last started from nothing.
    pub last_start: Option<Millis>,
    /// When one of its pods was last evicted for others.
    pub last_eviction: Option<Millis>,
    /// Since when it runs with less than its minimum.
    pub stale_since: Option<Millis>,
    /// How long after creation or eviction it may not evict others.
    pub preemption_delay: Millis,
    /// How long it may run below its minimum: `None` = the configured default, `Some(None)` = for ever.
    pub staleness_grace: Option<Option<Millis>>,
    /// False while a back-off of the edge keeps it from being tried.
    pub schedulable: bool,
    /// Why nothing of it may start, in the words of the edge; `None` = it may. Pods that run go on.
    pub refused: Option<String>,
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
    /// Where this subgroup must or should be together.
    pub topology: Option<TopologyConstraint>,
}

/// Pods of one group shall share a domain of a topology.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopologyConstraint {
    /// Name of the topology.
    pub topology: String,
    /// Level (node label or alias) within which all pods must be.
    pub required_level: Option<String>,
    /// Level within which they should be.
    pub preferred_level: Option<String>,
}
