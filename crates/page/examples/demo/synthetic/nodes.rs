//! The nodes of a synthetic cluster, and what their agents say of them.

use kai_view::{EnforcementTier, NodeCondition, NodeEnforcement, TopologyDomain};

pub(super) struct SimNode {
    pub(super) name: String,
    pub(super) model: &'static str,
    pub(super) memory_mib: i64,
    /// Millionths that are used, of each GPU.
    pub(super) gpus: Vec<i64>,
    pub(super) kind: NodeKind,
    pub(super) zone: String,
    pub(super) rack: String,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum NodeKind {
    Plain,
    Mig(i64),
    TimeSliced(i64),
    Unified,
    Broken,
    Cordoned,
}

pub(super) fn topology(node: &SimNode) -> Vec<TopologyDomain> {
    let domain = |level: &str, value: &str| TopologyDomain {
        topology: "datacenter".into(),
        level: level.into(),
        value: value.into(),
    };
    vec![
        domain("topology.kubernetes.io/zone", &node.zone),
        domain("example.com/rack", &node.rack),
    ]
}

/// What the driver of such a node can do. The agent of the cordoned node has not come yet.
pub(super) fn enforcement(kind: NodeKind) -> NodeEnforcement {
    let (tier, message) = match kind {
        NodeKind::Plain => (
            EnforcementTier::Driver,
            "the driver limits the GPU memory of each container",
        ),
        NodeKind::Mig(_) => (
            EnforcementTier::None,
            "MIG slices need no limit: the hardware divides the memory",
        ),
        NodeKind::TimeSliced(_) | NodeKind::Broken => (
            EnforcementTier::Watch,
            "the driver is 570.133.20, and limits of GPU memory need 615; containers above their share are reported",
        ),
        NodeKind::Unified => (
            EnforcementTier::Watch,
            "GPU memory is system memory, which the driver does not limit; containers above their share are reported",
        ),
        NodeKind::Cordoned => return NodeEnforcement::default(),
    };
    NodeEnforcement {
        tier: Some(tier),
        message: Some(message.into()),
    }
}

pub(super) fn conditions(kind: NodeKind) -> Vec<NodeCondition> {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| NodeCondition {
        kind: kind.into(),
        status: status.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
    };
    let gpus = match kind {
        NodeKind::Broken => condition(
            "GPUsHealthy",
            "False",
            "GPUUnhealthy",
            "GPU 3: XID 79, the GPU has fallen off the bus; restart the node",
        ),
        _ => condition("GPUsHealthy", "True", "AllHealthy", "all GPUs are healthy"),
    };
    let limits = match enforcement(kind) {
        NodeEnforcement {
            tier: Some(tier),
            message,
        } => {
            let holds = tier == EnforcementTier::Driver;
            let (status, reason) = if holds {
                ("True", "Enforced")
            } else {
                ("False", "NotEnforced")
            };
            Some(condition(
                "GPULimits",
                status,
                reason,
                message.as_deref().unwrap_or_default(),
            ))
        }
        NodeEnforcement { tier: None, .. } => None,
    };
    let mut conditions = vec![
        gpus,
        condition("GPUSetupHealthy", "True", "NoProblems", "no problems were found"),
        condition(
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        ),
        condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ];
    conditions.extend(limits);
    conditions.sort_by(|a, b| a.kind.cmp(&b.kind));
    conditions
}
