//! The pod grouper: creates a pod group for every pod of this scheduler. The pod group says how many pods start together, in which
//! queue and with which priority.
//!
//! The grouping rules are pure functions ([`desired_pod_group()`]) of the pod, its owners' metadata and a few objects. The grouper reads
//! those, writes the pod group first and the pod second. It never schedules, and never overwrites fields of an existing pod group that
//! other components own.

mod cluster_reader;
mod default_rules;
mod desired_pod_group;
mod field;
mod grouped_pods;
mod ignored_values;
mod kind_defaults;
mod kinds;
mod owners;
mod patches;
mod reconcile;
pub mod rules;
mod workload;

#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use kai_api::{Backoff, ObjectKey, keys};
use kai_cluster::{Context, WorkQueue, WorkResult};
use tokio::sync::Notify;
use tokio::time::Instant;

pub use cluster_reader::ClusterReader;
pub use desired_pod_group::{DesiredPodGroup, Origins, OwnerRef};
pub use ignored_values::{IgnoredValue, ignored_values};
pub use kind_defaults::{KindDefaults, TYPES_KEY};
pub use kinds::desired_pod_group;
pub use patches::{pod_group_body, pod_patch};
pub use workload::{GroupingError, GroupingOptions, ObjectRef, Objects, Owner, PodOrigin, Refusal, Workload};

use crate::Error;
use reconcile::{Grouper, RulesRead};

/// The controller's name in health reports, metrics and events.
const NAME: &str = "pod-grouper";
/// After this time without a change, the grouper reports that it is alive and reads the kind defaults again.
const RESYNC_INTERVAL: Duration = Duration::from_secs(15);
/// The pause between attempts to read the rules at the start.
const RULES_RETRY_PAUSE: Duration = Duration::from_secs(2);
/// The controller counts as dead after this time; enqueueing a batch of changes takes far less.
const HEARTBEAT_MAX: Duration = Duration::from_secs(120);
/// An owner whose operator is about to complete it is read again soon, an invalid one every minute.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(500),
    longest: Duration::from_secs(60),
};

/// The settings of the pod grouper.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The grouper handles pods whose `spec.schedulerName` is this name.
    pub scheduler_name: String,
    /// Options of the grouping rules.
    pub options: GroupingOptions,
    /// Pods reconciled at a time.
    pub workers_max: usize,
    /// The grouper handles only pods with these labels.
    pub pod_labels: Vec<(String, String)>,
    /// The grouper handles only pods in namespaces with these labels.
    pub namespace_labels: Vec<(String, String)>,
    /// Namespace and name of the ConfigMap with defaults by kind.
    pub kind_defaults: Option<(String, String)>,
    /// Namespace and name of the ConfigMap with declared rules; `None` for the shipped rules alone.
    pub rules: Option<(String, String)>,
}

/// The ConfigMap with declared rules, and its usual namespace.
pub const RULES_CONFIG_MAP: &str = "kai-grouping-rules";
const RULES_NAMESPACE: &str = "kai-scheduler";

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            scheduler_name: keys::SCHEDULER_NAME.to_owned(),
            options: GroupingOptions::default(),
            workers_max: 10,
            pod_labels: Vec::new(),
            namespace_labels: Vec::new(),
            kind_defaults: None,
            rules: Some((RULES_NAMESPACE.to_owned(), RULES_CONFIG_MAP.to_owned())),
        }
    }
}

/// Runs the grouper until dropped.
pub async fn run(context: Context, settings: Settings) -> Result<Infallible, Error> {
    context.health.announce(NAME, HEARTBEAT_MAX);
    let (pods, groups) = (context.informers.pods().clone(), context.informers.pod_groups().clone());
    let wake = Arc::new(Notify::new());
    let (changed_pods, changed_groups) = (pods.subscribe(&wake), groups.subscribe(&wake));
    // Without the priority classes, every class would count as unknown; without the pod groups, every group would count as missing.
    context.informers.priority_classes().synced().await;
    groups.synced().await;

    let grouper = Arc::new(Grouper::new(&context, settings));
    grouper.read_kind_defaults().await;
    // Without its rule, a gang would be grouped as single pods.
    while grouper.read_rules().await == RulesRead::Failed {
        context.health.alive(NAME);
        tokio::time::sleep(RULES_RETRY_PAUSE).await;
    }
    let queue: WorkQueue<ObjectKey> = WorkQueue::new(BACKOFF);
    let enqueue_changes = async {
        let mut last_resync = Instant::now();
        loop {
            for (key, pod) in changed_pods.take() {
                if grouper.has_work(&key, pod.as_deref()) {
                    queue.add(key);
                }
            }
            let gone = changed_groups.take().into_iter().filter(|(_, group)| group.is_none());
            for key in grouper.members_of(gone.map(|(key, _)| key).collect()) {
                queue.add(key);
            }
            context.health.alive(NAME);
            if tokio::time::timeout(RESYNC_INTERVAL, wake.notified()).await.is_err() {
                grouper.read_kind_defaults().await;
            }
            if last_resync.elapsed() >= RESYNC_INTERVAL {
                last_resync = Instant::now();
                if grouper.read_rules().await == RulesRead::Changed {
                    for key in grouper.pods_to_group_again() {
                        queue.forget(&key);
                        queue.add(key);
                    }
                }
            }
        }
    };
    let work = {
        let grouper = Arc::clone(&grouper);
        queue.run(grouper.workers_max(), move |key| {
            let grouper = Arc::clone(&grouper);
            async move { grouper.reconcile(&key).await }
        })
    };
    tokio::select! {
        biased;
        never = enqueue_changes => never,
        () = work => Err(Error::Ended { part: NAME }),
    }
}

/// Another writer was faster; the informer will have its object soon.
const RETRY_SOON: WorkResult = WorkResult::RequeueAfter(Duration::from_millis(200));
