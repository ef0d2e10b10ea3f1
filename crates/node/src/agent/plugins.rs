//! Runs one device plugin per offered resource: starts one when a resource appears, ends it when the resource is no longer offered.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::state::Snapshot;
use crate::allocator::offer::Offer;
use crate::allocator::register::{PluginContext, keep_registered};

struct Running {
    offer: watch::Sender<Arc<Offer>>,
    task: JoinHandle<()>,
}

/// Runs until the agent stops; returns when all sockets are closed.
pub async fn run(context: PluginContext, mut snapshots: watch::Receiver<Arc<Snapshot>>) {
    let mut running: BTreeMap<String, Running> = BTreeMap::new();
    let mut stop = context.stop.clone();
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        let ended: Vec<String> = running
            .keys()
            .filter(|name| !snapshot.offers.contains_key(*name))
            .cloned()
            .collect();
        for name in ended {
            if let Some(plugin) = running.remove(&name) {
                drop(plugin.offer);
                let _ = plugin.task.await;
            }
        }
        for (name, offer) in &snapshot.offers {
            match running.get(name) {
                Some(plugin) => {
                    plugin.offer.send_replace(offer.clone());
                }
                None => {
                    let (sender, receiver) = watch::channel(offer.clone());
                    let task = tokio::spawn(keep_registered(context.clone(), receiver));
                    running.insert(name.clone(), Running { offer: sender, task });
                }
            }
        }
        tokio::select! {
            changed = snapshots.changed() => if changed.is_err() { break },
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    for plugin in running.into_values() {
        drop(plugin.offer);
        let _ = plugin.task.await;
    }
}
