//! Topologies: levels such as zones and racks, defined by node labels.

/// A topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologySpec {
    /// Unique name; constraints refer to it.
    pub name: String,
    /// Levels, coarse to fine.
    pub levels: Vec<TopologyLevel>,
}

/// One level of a topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyLevel {
    /// The node label whose value names the domain.
    pub node_label: String,
    /// Another name that constraints may use for this level.
    pub alias: Option<String>,
}
