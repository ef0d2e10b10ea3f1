//! Keeps the node's configuration current: reads the file that the node's label names, whenever the label or the mounted ConfigMap
//! changes, and sends the result to the task that owns the state. It decides nothing; `plugin_config` does.

use std::pin::pin;
use std::time::Duration;

use kai_api::keys::NODE_DEVICE_PLUGIN_CONFIG;
use kai_cluster::Client;
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;

use super::files::{self, LastConfig};
use super::state::Input;
use crate::allocator::plan::Policy;
use crate::plugin_config::{AppliedConfig, ConfigSource, load};

/// What the agent knows of the node's label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigLabel {
    /// The node was not read yet.
    Unknown,
    /// The value, if the node has the label.
    Known(Option<String>),
}

/// What the task needs.
#[derive(Debug)]
pub struct ConfigReader {
    /// Where the files are.
    pub source: ConfigSource,
    /// The policy of the flags, which a file adds to.
    pub flags: Policy,
    /// Where the configuration is kept for the next start.
    pub last: LastConfig,
    /// Between readings without a file event: the system may refuse the watch, and mounts may appear late.
    pub refresh: Duration,
}

impl ConfigReader {
    /// Reads and sends until the agent stops. Waits for the label first.
    pub async fn run(self, mut label: watch::Receiver<ConfigLabel>, inputs: mpsc::Sender<Input>) {
        // The kubelet replaces the link `..data` in this directory when the ConfigMap changes.
        let (mut files_changed, _watching) = files::watch_directory(&self.source.directory);
        let mut sent: Option<Result<AppliedConfig, String>> = None;
        loop {
            files_changed.mark_unchanged();
            let known = label.borrow_and_update().clone();
            if let ConfigLabel::Known(value) = known {
                let config = load(&self.source, value.as_deref(), &self.flags);
                if sent.as_ref() != Some(&config) {
                    self.keep(&config);
                    if inputs.send(Input::Config(config.clone())).await.is_err() {
                        return;
                    }
                    sent = Some(config);
                }
            }
            tokio::select! {
                Ok(()) = label.changed() => {}
                Ok(()) = files_changed.changed() => {}
                () = tokio::time::sleep(self.refresh) => {}
            }
        }
    }

    fn keep(&self, config: &Result<AppliedConfig, String>) {
        if let Ok(applied) = config
            && let Err(error) = self.last.save(applied)
        {
            tracing::warn!(%error, "the next start will not know the node's configuration at once");
        }
    }
}

/// Reads the node's label and follows its changes until the agent stops.
pub async fn watch_label(client: Client, node: String, retry: Duration, label: watch::Sender<ConfigLabel>) {
    let publish = |labels: &std::collections::BTreeMap<String, String>| {
        let known = ConfigLabel::Known(labels.get(NODE_DEVICE_PLUGIN_CONFIG).cloned());
        label.send_if_modified(|before| std::mem::replace(before, known.clone()) != known);
    };
    // The first reading is a plain call: an account that may not watch nodes still gets the right configuration at the start.
    loop {
        match client.node_labels(&node).await {
            Ok(labels) => break publish(&labels),
            Err(error) => {
                tracing::warn!(%error, "could not read which configuration the node's label names; trying again")
            }
        }
        tokio::time::sleep(retry).await;
    }
    let mut changes = pin!(client.watch_node_labels(&node));
    while let Some(labels) = changes.next().await {
        publish(&labels);
    }
}
