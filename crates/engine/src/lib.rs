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
//!     priority: 50,
//!     min_member: 2,
//!     ..GangSpec::new(key.clone(), "research")
//! };
//! let pod = |name: &str| PodSpec {
//!     gang: Some(key.clone()),
//!     requests: Requests { gpu: GpuRequest::Whole { devices: 1 }, ..Requests::default() },
//!     ..PodSpec::new("ns", name)
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
