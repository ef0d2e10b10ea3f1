//! The audit of a node's agent.

use std::path::Path;

use kai_gpu::Driver;
use kai_node::enforcement::audit::{AuditedReceipt, Observation, PodEvent, answer};
use kai_node::enforcement::receipt::Receipt;
use kai_node::enforcement::receipt_dir::ReceiptDir;

use super::node::{Agent, NodeLimits, ROOT, share_name};

impl NodeLimits {
    /// The agent compares its receipts with the driver. Returns news for the owners of pods, and whether the node's tier changed.
    pub(super) fn audit(&mut self) -> (Vec<PodEvent>, bool) {
        let (Some(directory), Agent::Running) = (&self.directory, self.agent) else {
            return (Vec::new(), false);
        };
        let receipts = ReceiptDir::new(directory.path());
        let observation = Observation {
            receipts: receipts
                .read()
                .into_iter()
                .map(|(share_device, receipt)| self.observed(share_device, receipt))
                .collect(),
            held: Some(self.share_devices.values().map(|number| share_name(*number)).collect()),
            ..Observation::default()
        };
        let random_name = directory.path().display().to_string();
        let mut audited = self.audit.step(&observation);
        for event in &mut audited.events {
            event.message = event.message.replace(&random_name, ROOT);
        }
        audited
            .remove
            .iter()
            .for_each(|share_device| receipts.remove(share_device));
        let gives_up = audited.give_up.is_some() && self.given_up != audited.give_up;
        if gives_up {
            self.given_up = audited.give_up;
            self.decide();
        }
        (audited.events, gives_up)
    }

    fn observed(&self, share_device: String, receipt: Receipt) -> AuditedReceipt {
        let cgroup = Path::new(&receipt.cgroup);
        let limits = receipt.limits.iter();
        let answers = limits.map(|limit| answer(limit, self.driver.memory_limits(&limit.gpu, cgroup)));
        AuditedReceipt {
            answers: answers.collect(),
            cgroup_exists: cgroup.is_dir(),
            share_device,
            receipt,
        }
    }
}
