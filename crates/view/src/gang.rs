//! Gangs.

use std::sync::Arc;

use kai_engine::model::{self, GangKey};
use kai_engine::report::GangView;
use kai_mirror::{ClusterMirror, pod_group_key};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::interner::Interner;
use crate::pod::{Pod, ReasonSource};
use crate::{Preemptibility, Text, Time};

/// A gang: the pods of a pod group. The counts are of pods that have not ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gang {
    /// Namespace.
    pub namespace: Text,
    /// Name of the pod group.
    pub pod_group: Text,
    /// Kind of the workload that people know, such as `Deployment`; `pod group` if it has no owner.
    pub workload_kind: Text,
    /// Name of that workload.
    pub workload_name: Text,
    /// Name of the queue that it names, whether or not the queue exists.
    pub queue: Text,
    /// Priority.
    pub priority: i32,
    /// Whether pods of it may be evicted for other gangs.
    pub preemptible: bool,
    /// Which of its pods may be; `None` = the scheduler is older than the field.
    #[serde(default)]
    pub preemptibility: Option<Preemptibility>,
    /// How many pods must run together.
    pub min: u32,
    /// All pods.
    pub pods: u32,
    /// Running pods.
    pub running: u32,
    /// Pods that are bound or being bound, and do not run yet.
    pub starting: u32,
    /// Pods that wait for a place.
    pub waiting: u32,
    /// Pods that are being deleted.
    pub releasing: u32,
    /// How many more pods must get a place before the gang has its minimum.
    pub needed: u32,
    /// Its position among the waiting gangs of its queue, from 1; `None` = it does not wait, or no cycle tries it.
    pub position: Option<u32>,
    /// Creation time of the pod group.
    pub created: Time,
    /// Creation time of its oldest pod that waits.
    pub waiting_since: Option<Time>,
    /// When the gang was last started without running pods.
    pub last_start: Option<Time>,
    /// When one of its pods was last evicted for another gang.
    pub last_eviction: Option<Time>,
    /// Since when it has run below its minimum.
    pub stale_since: Option<Time>,
    /// Why it waits: the reason of its first pod that waits.
    pub reason: Option<Text>,
    /// Where the reason is from.
    pub reason_source: Option<ReasonSource>,
}

impl Gang {
    /// The workload as people name it: `Deployment llm`.
    pub fn workload(&self) -> String {
        format!("{} {}", self.workload_kind, self.workload_name)
    }

    /// Which of its pods may be evicted for other gangs.
    pub fn preemptibility(&self) -> Preemptibility {
        self.preemptibility.unwrap_or(match self.preemptible {
            true => Preemptibility::Preemptible,
            false => Preemptibility::NonPreemptible,
        })
    }
}

/// The first waiting pod of each gang with a reason, and the creation time of the oldest one.
struct Waiting<'a> {
    first: Option<&'a Pod>,
    since: Time,
}

pub(crate) fn gangs(views: Vec<GangView<'_>>, mirror: &ClusterMirror, pods: &[Pod], texts: &mut Interner) -> Vec<Gang> {
    let mut waiting: FxHashMap<(&str, &str), Waiting<'_>> = FxHashMap::default();
    for pod in pods.iter().filter(|pod| pod.waits()) {
        let Some(gang) = pod.pod_group.as_deref() else { continue };
        let entry = waiting.entry((&pod.namespace, gang)).or_insert(Waiting {
            first: None,
            since: pod.created,
        });
        entry.since = entry.since.min(pod.created);
        if entry.first.is_none() && pod.reason.is_some() {
            entry.first = Some(pod);
        }
    }
    let gangs = views.into_iter().map(|view| {
        let waits = waiting.get(&(view.gang.namespace.as_str(), view.gang.name.as_str()));
        let first = waits.and_then(|waits| waits.first);
        let (workload_kind, workload_name) = match mirror.pod_group(&pod_group_key(view.gang)) {
            Some(pod_group) => pod_group.workload_kind_and_name(),
            None => ("pod group".to_owned(), view.gang.name.clone()),
        };
        let time = |time: Option<kai_engine::model::Millis>| time.map(Time::from);
        Gang {
            namespace: texts.text(&view.gang.namespace),
            pod_group: texts.text(&view.gang.name),
            workload_kind: texts.text(&workload_kind),
            workload_name: texts.text(&workload_name),
            queue: texts.text(view.queue),
            priority: view.priority,
            preemptible: view.preemptibility != model::Preemptibility::NonPreemptible,
            preemptibility: Some(view.preemptibility.into()),
            min: view.required,
            pods: view.pods,
            running: view.running,
            starting: view.starting,
            waiting: view.waiting,
            releasing: view.releasing,
            needed: view.required.saturating_sub(view.running + view.starting),
            position: None,
            created: view.created.into(),
            waiting_since: waits.map(|waits| waits.since),
            last_start: time(view.last_start),
            last_eviction: time(view.last_eviction),
            stale_since: time(view.stale_since),
            reason: first.and_then(|pod| pod.reason.clone()),
            reason_source: first.and_then(|pod| pod.reason_source),
        }
    });
    // In the memory of the engine's views, which may be larger.
    let mut gangs: Vec<Gang> = gangs.collect();
    gangs.shrink_to_fit();
    gangs
}

/// Sets the positions. `gangs` is sorted by namespace and name.
pub(crate) fn set_positions(gangs: &mut [Gang], order: impl Iterator<Item = (Arc<GangKey>, u32)>) {
    for (key, position) in order {
        let found = gangs.binary_search_by(|gang| {
            (gang.namespace.as_str(), gang.pod_group.as_str()).cmp(&(key.namespace.as_str(), key.name.as_str()))
        });
        if let Ok(at) = found {
            gangs[at].position = Some(position);
        }
    }
}
