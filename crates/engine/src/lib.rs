//! The scheduling decision of kai-rs: which pod gets which node and GPUs, which pods are evicted for it, and why.
//!
//! [`Cluster`] is long-lived: [`Cluster::apply`] takes events, [`Cluster::cycle`] makes decisions. Equal events and equal times give
//! equal decisions, on every machine and in any order of objects.
//!
//! The engine never does I/O, never reads a clock, never spawns a thread, and never fails: an invalid object becomes a reason that is
//! shown to people.
//!
//! A gang of two pods waits for the second GPU, then both start:
//!
//! ```
//! use kai_engine::Cluster;
//! use kai_engine::model::*;
//! use kai_engine::report::Decision;
//!
//! let node = |gpus| NodeSpec {
//!     name: "node-1".to_owned(),
//!     labels: Labels::new(),
//!     taints: Vec::new(),
//!     unschedulable: false,
//!     conditions: Vec::new(),
//!     cpu_milli: 8_000,
//!     memory_bytes: 32 << 30,
//!     gpus,
//!     pods: 110,
//!     extended: Vec::new(),
//!     gpu_count_label: Some(gpus),
//!     gpu_memory_mib: Some(80_000),
//!     gpu_memory_kind: MemoryKind::Dedicated,
//!     mig_enabled: false,
//!     mig_strategy: MigStrategy::None,
//!     enforcement: EnforcementTier::None,
//!     fractioning: FractioningCondition::Met,
//! };
//! let queue = QueueSpec {
//!     name: "research".to_owned(),
//!     display_name: String::new(),
//!     parent: None,
//!     created: Millis(0),
//!     uid: "queue-uid".to_owned(),
//!     priority: 100,
//!     quota: Quota::UNBOUNDED,
//!     preempt_min_runtime: None,
//!     reclaim_min_runtime: None,
//! };
//! let key = GangKey { namespace: "ns".to_owned(), name: "training".to_owned() };
//! let gang = GangSpec {
//!     key: key.clone(),
//!     uid: "gang-uid".to_owned(),
//!     created: Millis(0),
//!     queue: "research".to_owned(),
//!     priority: 50,
//!     preemptibility: Preemptibility::Preemptible,
//!     min_member: 2,
//!     min_sub_group: None,
//!     topology: None,
//!     sub_groups: Vec::new(),
//!     last_start: None,
//!     last_eviction: None,
//!     stale_since: None,
//!     preemption_delay: Millis(0),
//!     staleness_grace: None,
//!     schedulable: true,
//!     refused: None,
//! };
//! let pod = |name: &str| PodSpec {
//!     uid: name.to_owned(),
//!     namespace: "ns".to_owned(),
//!     name: name.to_owned(),
//!     created: Millis(0),
//!     kind: PodKind::Workload,
//!     gang: Some(key.clone()),
//!     sub_group: None,
//!     phase: PodPhase::Pending,
//!     node: None,
//!     deletion: None,
//!     gated: false,
//!     bind_in_flight: None,
//!     background: false,
//!     gpu_groups: Vec::new(),
//!     requests: Requests { gpu: GpuRequest::Whole { devices: 1 }, ..Requests::default() },
//!     constraints: Constraints::default(),
//!     volumes: UsedVolumes::default(),
//!     labels: Labels::new(),
//!     rank: TaskRank::default(),
//!     nominated_node: None,
//!     refused: None,
//! };
//!
//! let mut cluster = Cluster::new();
//! cluster.apply(Event::Node(node(1)));
//! cluster.apply(Event::Queue(queue));
//! cluster.apply(Event::Gang(gang));
//! cluster.apply(Event::Pod(pod("worker-0")));
//! cluster.apply(Event::Pod(pod("worker-1")));
//! let bound = |cluster: &mut Cluster, now| {
//!     let report = cluster.cycle(now, &Config::default());
//!     let is_bind = |decision: &&Decision| matches!(decision, Decision::Bind(_));
//!     report.decisions.iter().filter(is_bind).count()
//! };
//! assert_eq!(bound(&mut cluster, Millis::seconds(1)), 0);
//! cluster.apply(Event::Node(node(2)));
//! assert_eq!(bound(&mut cluster, Millis::seconds(2)), 2);
//! ```

// The clusters of the benchmarks refer to this crate by its name; tests include them as a module.
#[cfg(test)]
extern crate self as kai_engine;

mod actions;
mod affinity;
mod apply;
mod cluster;
#[cfg(test)]
#[path = "../benches/clusters/mod.rs"]
mod clusters;
mod cycle;
mod explain;
mod fit;
mod gangs;
mod ids;
mod intern;
#[cfg(test)]
mod laws;
mod ledger;
pub mod model;
mod order;
mod place;
pub mod reasons;
pub mod remedies;
pub mod replay;
pub mod report;
mod share;
pub mod steps;
mod tables;
mod victims;
mod views;
mod work;

pub use cluster::Cluster;
pub use gangs::core_of;
pub use share::{ShareRequest, fair_shares};
