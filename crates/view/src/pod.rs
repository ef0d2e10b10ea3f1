//! Pods.

use std::collections::VecDeque;

use kai_api::{Object as _, ObjectKey, PodCondition};
use kai_engine::model::Millis;
use kai_engine::reasons::{Reason, Refusal};
use kai_engine::report::{GangView, PodGpus as EngineGpus, PodView, Status};
use kai_mirror::ClusterMirror;
use serde::{Deserialize, Serialize};

use crate::enforcement::{self, PodLimit};
use crate::interner::Interner;
use crate::{Knowledge, PodStatus, Text, Time};

/// A pod of this scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pod {
    /// Namespace.
    pub namespace: Text,
    /// Name.
    pub name: Text,
    /// Uid.
    pub uid: Text,
    /// Name of its pod group, in the same namespace.
    pub pod_group: Option<Text>,
    /// Status in scheduling, as in the answer of `/explain`.
    pub status: PodStatus,
    /// Node, where it has one or is promised one.
    pub node: Option<Text>,
    /// GPUs that it holds or requests.
    pub gpus: PodGpus,
    /// What holds it to its GPU memory; `None` for a pod without a GPU share.
    #[serde(default)]
    pub gpu_limit: Option<PodLimit>,
    /// GPU groups that it shares.
    pub gpu_groups: Vec<Text>,
    /// Creation time.
    pub created: Time,
    /// Since when it has its status: the creation of a pod that waits, the deletion time of a pod that is being deleted, the last start of
    /// the gang of a pod that starts, the start of the containers of a running pod. `None` = unknown.
    pub since: Option<Time>,
    /// Why it waits or was evicted.
    pub reason: Option<Text>,
    /// Where the reason is from; `None` without a reason.
    pub reason_source: Option<ReasonSource>,
}

impl Pod {
    /// Whether it has no place yet, or only the promise of one.
    pub fn waits(&self) -> bool {
        matches!(
            self.status,
            PodStatus::Pending | PodStatus::Gated | PodStatus::Pipelined
        )
    }
}

/// Where a reason is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ReasonSource {
    /// From the engine, with the whole cluster as its input.
    Engine,
    /// From the condition that the scheduler wrote to the pod: lists are missing, so that the engine can't tell.
    Condition,
}

/// GPUs of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum PodGpus {
    /// None.
    None,
    /// Whole devices.
    Whole {
        /// How many.
        devices: i64,
    },
    /// The same part of each of several devices.
    #[serde(rename_all = "camelCase")]
    Share {
        /// How many.
        devices: i64,
        /// The part of each in percent; `None` for a request in MiB.
        percent: Option<i64>,
        /// MiB of each; `None` = not known yet.
        mib: Option<i64>,
    },
    /// MIG slices.
    Mig {
        /// Resource name and count.
        slices: Vec<(Text, i64)>,
    },
}

impl From<&EngineGpus<'_>> for PodGpus {
    fn from(gpus: &EngineGpus<'_>) -> PodGpus {
        match gpus {
            EngineGpus::None => PodGpus::None,
            EngineGpus::Whole { devices } => PodGpus::Whole { devices: *devices },
            EngineGpus::Share { devices, fraction, mib } => PodGpus::Share {
                devices: *devices,
                percent: fraction.map(kai_engine::model::GpuFraction::percent),
                mib: *mib,
            },
            EngineGpus::Mig(slices) => PodGpus::Mig {
                slices: slices.iter().map(|(name, count)| (Text::from(*name), *count)).collect(),
            },
        }
    }
}

/// The pods, of the engine's views and the metadata of the mirror's objects in the same order.
pub(crate) fn pods(
    views: Vec<PodView<'_>>,
    objects: &[Option<&kai_api::Metadata>],
    gangs: &[GangView<'_>],
    mirror: &ClusterMirror,
    knowledge: &Knowledge,
    texts: &mut Interner,
) -> Vec<Pod> {
    let starts: rustc_hash::FxHashMap<_, _> = gangs
        .iter()
        .filter_map(|gang| Some((gang.gang, gang.last_start?)))
        .collect();
    let mut reasons = ReasonTexts::default();
    let pods = views.into_iter().enumerate().map(|(at, view)| {
        let object = objects[at];
        let start = view.gang.and_then(|gang| starts.get(gang)).copied();
        let (reason, reason_source) = reason(&view, mirror, knowledge, &mut reasons);
        Pod {
            namespace: texts.text(view.namespace),
            name: texts.text(view.name),
            uid: object
                .and_then(|metadata| metadata.uid.clone())
                .unwrap_or_else(|| view.uid.into()),
            pod_group: view.gang.map(|gang| texts.text(&gang.name)),
            status: view.status.into(),
            node: view.node.map(|node| texts.text(node)),
            gpus: PodGpus::from(&view.gpus),
            gpu_limit: enforcement::of_pod(&view.gpus, object),
            gpu_groups: view.gpu_groups.iter().map(|group| texts.text(group)).collect(),
            created: view.created.into(),
            since: since(&view, start, pod_started(&view, mirror)).map(Time::from),
            reason: reason.map(|reason| texts.text(&reason)),
            reason_source,
        }
    });
    // In the memory of the engine's views, which is larger.
    let mut pods: Vec<Pod> = pods.collect();
    pods.shrink_to_fit();
    pods
}

/// The pod's metadata in the mirror; `None` if the mirror does not have the pod.
pub(crate) fn metadata<'a>(view: &PodView<'_>, mirror: &'a ClusterMirror) -> Option<&'a kai_api::Metadata> {
    mirror.pod_by_uid(view.uid).map(|(_, pod)| pod.metadata())
}

fn pod_started(view: &PodView<'_>, mirror: &ClusterMirror) -> Option<Millis> {
    mirror.pod_by_uid(view.uid).and_then(|(_, pod)| pod.started())
}

/// `start` is the last start of the gang, `started` that of the pod's containers.
fn since(view: &PodView<'_>, start: Option<Millis>, started: Option<Millis>) -> Option<Millis> {
    match view.status {
        Status::Pending | Status::Gated | Status::Pipelined => Some(view.created),
        Status::Releasing | Status::StuckInReleasing => view.deletion,
        Status::Binding | Status::Bound => start.filter(|start| *start >= view.created),
        Status::Running => started,
        Status::Succeeded | Status::Failed | Status::Unknown => None,
    }
}

/// The texts of the last different reasons. Thousands of pods wait for the same reason, whose text has the names of many gangs.
#[derive(Default)]
struct ReasonTexts {
    recent: VecDeque<(Reason, String)>,
}

/// Different reasons at a time: pods are in the order of names, and those of a gang or of a kind of workload have few.
const RECENT_REASONS_MAX: usize = 16;

impl ReasonTexts {
    fn text(&mut self, reason: &Reason, mirror: &ClusterMirror) -> String {
        if let Some((_, text)) = self.recent.iter().find(|(recent, _)| recent == reason) {
            return text.clone();
        }
        let text = mirror.shared_reason_text(reason);
        self.recent.truncate(RECENT_REASONS_MAX - 1);
        self.recent.push_front((reason.clone(), text.clone()));
        text
    }
}

fn reason(
    view: &PodView<'_>,
    mirror: &ClusterMirror,
    knowledge: &Knowledge,
    texts: &mut ReasonTexts,
) -> (Option<String>, Option<ReasonSource>) {
    let Some(reason) = &view.reason else {
        return (None, None);
    };
    if let Reason::Refused(Refusal::AsTheConditionSays(message)) = reason {
        return (Some(message.clone()), Some(ReasonSource::Condition));
    }
    if knowledge.is_complete() {
        let text = mirror.with_avoided_node(view.uid, texts.text(reason, mirror));
        return (Some(text), Some(ReasonSource::Engine));
    }
    let pod = mirror.pod(&ObjectKey::new(view.namespace, view.name));
    let condition = pod.and_then(|pod| pod.condition(PodCondition::SCHEDULED));
    match condition.and_then(|condition| condition.message.as_deref()) {
        Some(message) => (Some(message.to_owned()), Some(ReasonSource::Condition)),
        None => (None, None),
    }
}
