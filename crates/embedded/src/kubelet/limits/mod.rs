//! Limits of GPU memory on one simulated node: the node agent that prepares a container, the hook that the container runtime runs, and the
//! agent's audit. All of them are the node agent's own functions, with the fake driver. A container is a directory in a cgroup tree, and an
//! entry of a process in a directory that stands for `/proc`.
//!
//! Faults are injected here: an agent that is dead, a driver that refuses, lies or forgets, and a node that changes its tier.

mod audit;
mod facts;
mod node;
mod spec;

use std::collections::BTreeSet;
use std::time::Duration;

use kai_api::{EnforcementTier, ObjectKey, ObjectReference};
use kai_cluster::ObjectEvent;
pub use kai_gpu::fake::MemoryLimitFaults;
pub use kai_node::enforcement::audit::EVENT_MISSING;
use kai_node::enforcement::audit::PodEvent;
pub use kai_node::enforcement::tier::Enforce;

use super::{Kubelets, State};
pub(super) use node::NodeLimits;

/// Between two audits of a node agent.
pub const AUDIT_PERIOD: Duration = Duration::from_secs(30);

/// An event about a pod, as the node agent records it.
fn object_event(event: PodEvent) -> ObjectEvent {
    ObjectEvent {
        about: ObjectReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            namespace: event.container.namespace,
            name: event.container.pod,
            uid: event.container.uid,
        },
        severity: event.severity,
        reason: event.reason,
        message: event.message,
        annotations: Vec::new(),
    }
}

/// A container with a GPU share that runs on a simulated node, as the driver and the runtime know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitedContainer {
    /// Namespace and name of the pod.
    pub pod: ObjectKey,
    /// The pod's uid.
    pub uid: String,
    /// The pod's node.
    pub node: String,
    /// The node's tier when the agent prepared the container; while the driver was away, the tier before.
    pub tier: EnforcementTier,
    /// The hard limit in the driver's record for the container's own cgroup, in bytes by GPU; `None` = no limit.
    pub limits: Vec<(String, Option<u64>)>,
    /// GPUs that were torn down after the container started: the driver has forgotten its limits.
    pub lost: BTreeSet<String>,
    /// How long the node agent has been able to notice that a limit is lost; `None` if none is, or it can't.
    pub noticeable_for: Option<Duration>,
}

/// A fault of a node's limits, or its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitFault {
    /// The node agent dies.
    AgentDies,
    /// The node agent starts.
    AgentStarts,
    /// Calls of the driver misbehave from now on.
    Driver(MemoryLimitFaults),
    /// A GPU is torn down: the driver forgets all limits on it.
    Teardown(usize),
    /// The driver does not answer, as while it is updated. Its limits stay.
    DriverGoes,
    /// The driver answers again.
    DriverReturns,
    /// The agent is started again with another wish of the operator.
    Enforce(Enforce),
    /// Seconds of virtual time between the agent's preparation of a container and the hook.
    SlowRuntime(u64),
}

impl State {
    pub(super) fn limited_containers(&self) -> Vec<LimitedContainer> {
        let nodes = self.nodes.iter();
        let limits = nodes.filter_map(|(name, node)| Some((name, node.limits.as_ref()?)));
        let mut all: Vec<LimitedContainer> = limits.flat_map(|(name, limits)| limits.running(name)).collect();
        all.sort_by(|a, b| (&a.pod, &a.node).cmp(&(&b.pod, &b.node)));
        all
    }

    pub(super) fn stray_limits(&self) -> Vec<String> {
        let nodes = self.nodes.values().filter_map(|node| node.limits.as_ref());
        nodes.flat_map(NodeLimits::strays).collect()
    }
}

impl Kubelets {
    /// Injects a fault into the limits of a node. A node that does not exist, or has no limits, is left alone.
    pub async fn inject(&self, node: &str, fault: &LimitFault) -> Result<(), String> {
        {
            let mut state = self.lock();
            let limits = state.nodes.get_mut(node).and_then(|node| node.limits.as_mut());
            let Some(limits) = limits else { return Ok(()) };
            limits.inject(fault, self.inner.now_seconds());
        }
        self.write_enforcement(node).await
    }

    /// The node agents' audits, each at its pace. Runs until dropped.
    pub(super) async fn run_audits(&self) {
        loop {
            tokio::time::sleep(AUDIT_PERIOD).await;
            let nodes: Vec<String> = self.lock().nodes.keys().cloned().collect();
            for node in nodes {
                self.audit(&node).await;
            }
        }
    }

    async fn audit(&self, node: &str) {
        let audited = {
            let mut state = self.lock();
            let limits = state.nodes.get_mut(node).and_then(|node| node.limits.as_mut());
            limits.map(NodeLimits::audit)
        };
        let Some((news, tier_changed)) = audited else { return };
        for event in news {
            self.inner.events.record(object_event(event)).await;
        }
        if tier_changed && let Err(error) = self.write_enforcement(node).await {
            tracing::warn!(node, %error, "a simulated node agent could not write its tier");
        }
    }

    /// Ends all faults of a node's limits. Limits that the driver forgot stay forgotten.
    pub async fn heal_limits(&self, node: &str) -> Result<(), String> {
        for fault in [
            LimitFault::DriverReturns,
            LimitFault::Driver(MemoryLimitFaults::default()),
            LimitFault::Enforce(Enforce::Auto),
            LimitFault::SlowRuntime(0),
            LimitFault::AgentStarts,
        ] {
            self.inject(node, &fault).await?;
        }
        Ok(())
    }

    /// Restarts the containers of a pod with a GPU share, as a kubelet does after a container has ended.
    pub fn restart_containers(&self, namespace: &str, name: &str) {
        let key = ObjectKey::new(namespace, name);
        {
            let mut state = self.lock();
            let Some(record) = state.pods.get_mut(&key) else { return };
            if !matches!(record.stage, super::Stage::Running { .. }) || record.stopping.is_some() {
                return;
            }
            let (uid, node) = (record.uid.clone(), record.node.clone());
            record.stage = super::Stage::Starting {
                since: tokio::time::Instant::now(),
            };
            if let Some(limits) = state.nodes.get_mut(&node).and_then(|node| node.limits.as_mut()) {
                limits.stop(&uid);
            }
        }
        self.inner.queue.add(key);
    }
}
