//! The view model: the cluster as people look at it. Page, terminal and `-o json` show this one value; docs/view.md describes its fields.
//!
//! [`ClusterView::new`] computes it from a mirror and the engine behind it, after a cycle. It does no I/O, reads no clock and decides
//! nothing. Its cost is linear in the number of objects (and sorting by name).
//!
//! A field that is not known is `null`, never a zero: a caller with fewer rights than the scheduler says by [`Knowledge`] which lists it
//! has, and everything that would need the others is unknown.

mod amounts;
mod decision;
mod enforcement;
mod fairness;
mod foreign_names;
mod gang;
mod interner;
mod knowledge;
mod node;
mod node_facts;
mod pod;
mod queue;
mod restrict;
mod status;
mod time;

use std::sync::Arc;

use kai_engine::Cluster;
use kai_engine::model::{Config, Millis};
use kai_mirror::ClusterMirror;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use interner::Interner;

pub use amounts::GpuAmount;
pub use decision::{Beneficiary, Decision, DecisionKind};
pub use enforcement::{NodeEnforcement, PodLimit};
pub use fairness::{Fairness, Held, HeldAmount, HeldByQueue};
pub use foreign_names::OTHER_WORK;
pub use gang::Gang;
pub use kai_api::crd::Preemptibility;
pub use kai_api::{EnforcementTier, Text, TextMap};
pub use kai_mirror::ExplanationView;
pub use knowledge::{Knowledge, List, MissingList};
pub use node::{Gpu, GpuState, GpuUser, Node, Slices, SlicesKind, Usage};
pub use node_facts::{NodeCondition, TopologyDomain};
pub use pod::{Pod, PodGpus, ReasonSource};
pub use queue::{Amounts, Lender, Queue};
pub use restrict::Hidden;
pub use status::PodStatus;
pub use time::Time;

/// The version of the JSON form. Fields may be added to it; a change of meaning or a removed field is another version.
pub const VERSION: &str = "v1";

/// A cluster at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterView {
    /// [`VERSION`].
    pub version: String,
    /// The time of the view.
    pub time: Time,
    /// The lists that are missing. Everything computed from them is `null`.
    pub missing: Vec<MissingList>,
    /// Nodes of the partition, by name.
    pub nodes: Option<Vec<Node>>,
    /// Queues, parents before children, siblings by name.
    pub queues: Option<Vec<Queue>>,
    /// Gangs, by namespace and name of the pod group.
    pub gangs: Option<Vec<Gang>>,
    /// Pods of this scheduler, by namespace and name.
    pub pods: Option<Vec<Pod>>,
    /// Decisions of the last hour, newest first, shared by the views that show them. `None` = unknown: only the scheduler itself has them.
    pub decisions: Option<Vec<Arc<Decision>>>,
    /// Set in a view that shows only some namespaces.
    pub hidden: Option<Hidden>,
}

/// What a view is computed from.
#[derive(Debug)]
pub struct Sources<'a> {
    /// The mirror.
    pub mirror: &'a ClusterMirror,
    /// The engine behind it, after a cycle, or before any if [`Knowledge::is_complete`] is false. The view reverts the pipelined placements of that cycle, as the next cycle does.
    pub engine: &'a mut Cluster,
    /// The policy of that cycle.
    pub config: &'a Config,
    /// The time of that cycle.
    pub now: Millis,
    /// Which lists the mirror was given.
    pub knowledge: Knowledge,
}

impl ClusterView {
    /// The view after a cycle.
    pub fn new(sources: Sources<'_>) -> ClusterView {
        let Sources {
            mirror,
            engine,
            config,
            now,
            knowledge,
        } = sources;
        let mut texts = Interner::default();
        let gangs = engine.gangs();
        let views = engine.pods();
        // Found once: the objects of thousands of pods are in no processor cache.
        let objects: Vec<_> = views.iter().map(|view| pod::metadata(view, mirror)).collect();
        for name in objects.iter().flatten().filter_map(|metadata| metadata.name.as_ref()) {
            texts.adopt(name);
        }
        let nodes = knowledge
            .nodes()
            .then(|| node::nodes(engine, &views, mirror, &knowledge, &mut texts));
        let pods = pod::pods(views, &objects, &gangs, mirror, &knowledge, &mut texts);
        let mut gangs = gang::gangs(gangs, mirror, &pods, &mut texts);
        let queues = knowledge.queues().then(|| queue::queues(engine, &gangs, &knowledge));
        // Last: `serving_order` reverts the pipelined placements, which the views above show.
        if knowledge.is_complete() {
            let mut at: FxHashMap<String, u32> = FxHashMap::default();
            let order = engine.serving_order(config).into_iter().map(|gang| {
                let position = at.entry(gang.queue).or_default();
                *position += 1;
                (gang.gang, *position)
            });
            gang::set_positions(&mut gangs, order);
        }
        ClusterView {
            version: VERSION.to_owned(),
            time: now.into(),
            nodes,
            queues,
            gangs: knowledge.gangs().then_some(gangs),
            pods: knowledge.pods().then_some(pods),
            missing: knowledge.missing,
            decisions: None,
            hidden: None,
        }
    }

    /// Whether every list that changes decisions is in the view. Without one of them positions are unknown.
    pub fn is_complete(&self) -> bool {
        knowledge::is_complete(&self.missing)
    }

    /// Whether the pods of this namespace could be read. If not, the counts of its gangs say nothing.
    pub fn has_pods_of(&self, namespace: &str) -> bool {
        knowledge::has_pods_of(&self.missing, namespace)
    }

    /// The gangs that wait, in the order of queues and positions: what `kai pending` shows.
    pub fn waiting_gangs(&self) -> Vec<&Gang> {
        let mut waiting: Vec<&Gang> = self.gangs.iter().flatten().filter(|gang| gang.waiting > 0).collect();
        let rank = |gang: &Gang| gang.position.unwrap_or(u32::MAX);
        waiting.sort_by(|a, b| {
            (&a.queue, rank(a), &a.waiting_since, &a.namespace, &a.pod_group).cmp(&(
                &b.queue,
                rank(b),
                &b.waiting_since,
                &b.namespace,
                &b.pod_group,
            ))
        });
        waiting
    }
}
