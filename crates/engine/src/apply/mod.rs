//! Events into tables, a file per kind of object. Nothing here decides.

mod gangs;
mod nodes;
mod pods;
mod queues;
mod shapes;

use crate::cluster::Cluster;
use crate::model::Event;
use crate::report::Anomaly;

impl Cluster {
    /// Applies one event to the tables.
    pub fn apply(&mut self, event: Event) {
        self.revert_pipelined();
        match event {
            Event::Node(spec) => self.apply_node(spec),
            Event::NodeGone(name) => self.remove_node(&name),
            Event::Pod(spec) => self.apply_pod(spec),
            Event::PodGone(uid) => self.remove_pod(&uid),
            Event::Gang(spec) => self.apply_gang(spec),
            Event::GangGone(key) => self.remove_gang(&key),
            Event::Queue(spec) => self.apply_queue(spec),
            Event::QueueGone(name) => self.remove_queue(&name),
            Event::Topology(spec) => {
                self.domains.specs.insert(spec.name.clone(), spec);
                self.domains.clear();
            }
            Event::TopologyGone(name) => {
                self.domains.specs.remove(&name);
                self.domains.clear();
            }
            Event::AttachLimits(limits) => {
                let node = self.ledger.symbols.intern(&limits.node);
                self.ledger.attachments.set_limits(node, &limits);
            }
            Event::VolumePool(spec) => {
                self.explanations.rejections.clear();
                self.volume_pools.insert(spec);
            }
            Event::VolumePoolGone(name) => {
                self.explanations.rejections.clear();
                self.volume_pools.remove(&name);
            }
            Event::Usage(usage) => self.apply_usage(&usage),
        }
    }

    /// Replaces the anomalies of an object by these problems: field and text each.
    pub(super) fn set_anomalies(&mut self, object: &str, problems: Vec<(String, String)>) {
        if problems.is_empty() {
            self.anomalies.remove(object);
            return;
        }
        let anomaly = |(field, problem)| Anomaly {
            object: object.to_owned(),
            field,
            problem,
        };
        self.anomalies
            .insert(object.to_owned(), problems.into_iter().map(anomaly).collect());
    }
}
