//! Decisions from the Events that the scheduler writes, with the caller's own rights. An Event is about the pod or, for evictions, about the
//! pod group, and names its pods in an annotation; the rest is looked up in the view.

use std::sync::Arc;

use kai_api::{Metadata, Object, ObjectKey, Resource, Scope, keys};
use kai_cluster::{Client, Error, Informer, Selection, Subscription};
use kai_view::{Beneficiary, ClusterView, Decision, DecisionKind, Gang, Pod, PodStatus, Text, Time};
use rustc_hash::FxHashMap;
use serde::Deserialize;
use tokio::sync::Notify;

/// Decisions of this time are shown.
const HOUR_MILLIS: i64 = 3_600_000;

/// An Event, as far as decisions need it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SchedulerEvent {
    pub(crate) metadata: Metadata,
    involved_object: Involved,
    reason: String,
    message: Option<String>,
    first_timestamp: Option<String>,
    last_timestamp: Option<String>,
    count: Option<u32>,
    source: Source,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Involved {
    namespace: String,
    name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Source {
    component: Option<String>,
}

impl Object for SchedulerEvent {
    const RESOURCE: Resource = Resource::new("", "v1", "Event", "events", Scope::Namespaced);

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// The reasons of the Events that tell of decisions.
const REASONS: [(&str, DecisionKind); 3] = [
    ("Scheduled", DecisionKind::Bind),
    ("Pipelined", DecisionKind::Promise),
    ("Evict", DecisionKind::Evict),
];

/// The Events of decisions: a selection for each kind of them, of a namespace or of all.
fn selections(namespace: Option<&str>) -> impl Iterator<Item = Selection> {
    REASONS.into_iter().map(move |(reason, _)| Selection {
        namespace: namespace.map(str::to_owned),
        fields: format!("reason={reason}"),
        ..Selection::default()
    })
}

/// Lists the Events of decisions.
pub(crate) async fn list(client: &Client, namespace: Option<&str>) -> Result<Vec<Arc<SchedulerEvent>>, Error> {
    let mut events = Vec::new();
    for selection in selections(namespace) {
        events.extend(client.list(&selection).await?.into_iter().map(Arc::new));
    }
    Ok(events)
}

/// The Events of decisions, by watches.
pub(crate) struct EventWatch {
    subscriptions: Vec<Subscription<SchedulerEvent>>,
    scheduler: String,
    log: DecisionLog,
}

impl EventWatch {
    /// Starts the watches. `wake` is notified about new Events.
    pub(crate) fn start(client: &Client, namespace: Option<&str>, scheduler: &str, wake: &Arc<Notify>) -> EventWatch {
        let subscriptions = selections(namespace)
            .map(|selection| Informer::<SchedulerEvent>::start(client, &selection).subscribe(wake))
            .collect();
        EventWatch {
            subscriptions,
            scheduler: scheduler.to_owned(),
            log: DecisionLog::default(),
        }
    }

    /// Waits for the first lists.
    pub(crate) async fn synced(&self) {
        for subscription in &self.subscriptions {
            subscription.informer().synced().await;
        }
    }

    /// The decisions of the last hour, newest first.
    pub(crate) fn decisions(&mut self, view: &ClusterView) -> Vec<Arc<Decision>> {
        let mut events = Vec::new();
        for (key, event) in self.subscriptions.iter().flat_map(Subscription::take) {
            match event {
                Some(event) => events.push(event),
                None => drop(self.log.seen.remove(&key)),
            }
        }
        self.log.add(&events, &self.scheduler, view);
        self.log.newest_first()
    }
}

/// Decisions in the order in which they became known, with stable numbers. Keeps those of the last hour.
#[derive(Debug, Default)]
pub(crate) struct DecisionLog {
    count: u64,
    /// Oldest first.
    decisions: Vec<Arc<Decision>>,
    /// The Events that were added, with the count of their repetitions.
    seen: FxHashMap<ObjectKey, u32>,
}

impl DecisionLog {
    /// Adds the Events that are new and of this scheduler.
    pub(crate) fn add(&mut self, events: &[Arc<SchedulerEvent>], scheduler: &str, view: &ClusterView) {
        let mut fresh: Vec<(&SchedulerEvent, DecisionKind, Time)> = Vec::new();
        for event in events {
            let kind = REASONS.iter().find(|(reason, _)| *reason == event.reason);
            let time = event.last_timestamp.as_deref().or(event.first_timestamp.as_deref());
            let time = time.and_then(|time| time.parse::<Time>().ok());
            let (Some((_, kind)), Some(time)) = (kind, time) else {
                continue;
            };
            let is_ours = event.source.component.as_deref() == Some(scheduler);
            if is_ours && is_recent(time, view.time) && self.note(event) {
                fresh.push((event, *kind, time));
            }
        }
        // Times have a precision of a second. In one second places are made before they are taken; then the order of writing counts.
        let rank = |kind: DecisionKind| match kind {
            DecisionKind::Evict => 0,
            DecisionKind::Promise => 1,
            DecisionKind::Bind => 2,
        };
        let version = |event: &SchedulerEvent| {
            let version = event.metadata.resource_version.as_deref();
            version.and_then(|version| version.parse::<u64>().ok()).unwrap_or(0)
        };
        fresh.sort_by_key(|(event, kind, time)| (*time, rank(*kind), version(event)));
        let lookup = Lookup { view };
        for (event, kind, time) in fresh {
            for decision in lookup.decisions(event, kind, time) {
                self.count += 1;
                self.decisions.push(Arc::new(Decision {
                    number: self.count,
                    ..decision
                }));
            }
        }
        self.decisions.retain(|decision| is_recent(decision.time, view.time));
    }

    /// Remembers the Event; false if it was there before.
    fn note(&mut self, event: &SchedulerEvent) -> bool {
        let count = event.count.unwrap_or(1);
        self.seen.insert(ObjectKey::of(event), count) != Some(count)
    }

    /// The decisions of the last hour, newest first.
    pub(crate) fn newest_first(&self) -> Vec<Arc<Decision>> {
        self.decisions.iter().rev().cloned().collect()
    }
}

fn is_recent(time: Time, now: Time) -> bool {
    now.millis().saturating_sub(time.millis()) <= HOUR_MILLIS
}

/// Finds the objects of Events in a view.
struct Lookup<'a> {
    view: &'a ClusterView,
}

impl Lookup<'_> {
    /// One for each pod.
    fn decisions(&self, event: &SchedulerEvent, kind: DecisionKind, time: Time) -> Vec<Decision> {
        let Involved { namespace, name } = &event.involved_object;
        let message = event.message.as_deref().unwrap_or_default();
        let decision = Decision {
            number: 0,
            time,
            kind,
            action: None,
            namespace: namespace.clone(),
            pod: String::new(),
            pod_group: None,
            workload: String::new(),
            queue: None,
            node: None,
            gpus: None,
            beneficiary: None,
            reason: None,
            fairness: None,
            waiting_since: None,
            waiting_reason: None,
        };
        match kind {
            DecisionKind::Evict => self.evictions(decision, event, message),
            DecisionKind::Bind | DecisionKind::Promise => {
                let pod = self.pod(namespace, name);
                let pod_group = pod.and_then(|pod| pod.pod_group.as_ref().map(Text::to_string));
                let gang = pod_group.as_deref().and_then(|group| self.gang(namespace, group));
                vec![Decision {
                    pod: name.clone(),
                    action: annotation(event, keys::EVENT_PLACED_BY),
                    workload: gang.map_or_else(|| format!("Pod {name}"), workload),
                    queue: gang.map(|gang| gang.queue.to_string()),
                    pod_group,
                    node: node_of(message).or_else(|| pod.and_then(|pod| pod.node.as_ref().map(Text::to_string))),
                    gpus: pod.map(|pod| pod.gpus.clone()),
                    reason: (kind == DecisionKind::Promise).then(|| message.to_owned()),
                    ..decision
                }]
            }
        }
    }

    /// An Event about the pods that a gang loses: a decision for each pod that it names, and one without a pod for those that it does not.
    fn evictions(&self, decision: Decision, event: &SchedulerEvent, message: &str) -> Vec<Decision> {
        let group = &event.involved_object.name;
        let gang = self.gang(&decision.namespace, group);
        let annotation = |key: &str| annotation(event, key);
        // For a pod group that is gone. Schedulers of earlier versions do not write it.
        let named = |key: &str| annotation(key).map(|text| without_namespace(&text));
        let evictor = annotation(keys::EVENT_EVICTOR).zip(annotation(keys::EVENT_EVICTOR_NAMESPACE));
        let beneficiary = evictor.map(|(name, namespace)| {
            let gang = self.gang(&namespace, &name);
            Beneficiary {
                workload: gang
                    .map(workload)
                    .or_else(|| named(keys::EVENT_EVICTOR_WORKLOAD))
                    .unwrap_or_else(|| format!("pod group {name}")),
                queue: gang.map(|gang| gang.queue.to_string()),
                namespace,
                pod_group: name,
            }
        });
        let of_gang = Decision {
            action: annotation(keys::EVENT_ACTION),
            workload: gang
                .map(workload)
                .or_else(|| named(keys::EVENT_WORKLOAD))
                .unwrap_or_else(|| format!("pod group {group}")),
            queue: gang.map(|gang| gang.queue.to_string()),
            pod_group: Some(group.clone()),
            beneficiary,
            reason: Some(message.to_owned()),
            fairness: annotation(keys::EVENT_FAIRNESS).and_then(|text| serde_json::from_str(&text).ok()),
            ..decision
        };
        // Schedulers of earlier versions write no names.
        let names = annotation(keys::EVENT_EVICTED_POD_NAMES).unwrap_or_default();
        let of_pod = |name: &str| self.eviction_of(name, &of_gang);
        names.split(',').map(of_pod).collect()
    }

    /// The decision about one pod of a gang. `+` and a number stand for pods that the Event does not name.
    fn eviction_of(&self, name: &str, of_gang: &Decision) -> Decision {
        if name.starts_with('+') {
            return of_gang.clone();
        }
        let pod = self.pod(&of_gang.namespace, name);
        // A pod of the same name that has another place by now says nothing about the node that the pod leaves.
        let leaving = pod.filter(|pod| pod.status == PodStatus::Releasing);
        Decision {
            pod: name.to_owned(),
            node: leaving.and_then(|pod| pod.node.as_ref().map(Text::to_string)),
            gpus: pod.map(|pod| pod.gpus.clone()),
            ..of_gang.clone()
        }
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<&Pod> {
        // Pods are sorted by namespace and name.
        let pods = self.view.pods.as_deref()?;
        let at = pods.binary_search_by(|pod| (pod.namespace.as_str(), pod.name.as_str()).cmp(&(namespace, name)));
        at.ok().and_then(|at| pods.get(at))
    }

    fn gang(&self, namespace: &str, pod_group: &str) -> Option<&Gang> {
        let gangs = self.view.gangs.as_deref()?;
        let key = |gang: &Gang| (gang.namespace.as_str().cmp(namespace)).then(gang.pod_group.as_str().cmp(pod_group));
        let at = gangs.binary_search_by(key);
        at.ok().and_then(|at| gangs.get(at))
    }
}

fn annotation(event: &SchedulerEvent, key: &str) -> Option<String> {
    let value = event.metadata.annotations.get(key).map(|value| value.to_string());
    value.filter(|value| !value.is_empty())
}

/// The workload of a gang as people name it.
fn workload(gang: &Gang) -> String {
    format!("{} {}", gang.workload_kind, gang.workload_name)
}

/// `Deployment llm` of `Deployment team/llm`.
fn without_namespace(workload: &str) -> String {
    match workload.rsplit_once(' ') {
        Some((kind, name)) => format!("{kind} {}", name.rsplit('/').next().unwrap_or(name)),
        None => workload.to_owned(),
    }
}

/// The node in the message of a Scheduled event: `team/llm is assigned to node h100-1 of node pool default`.
fn node_of(message: &str) -> Option<String> {
    let (_, rest) = message.split_once(" is assigned to node ")?;
    rest.split(' ').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn view(now: &str) -> ClusterView {
        let gang = |name: &str, queue: &str| {
            json!({
                "namespace": "team", "podGroup": format!("pg-{name}"), "workloadKind": "Deployment", "workloadName": name, "queue": queue,
                "priority": 50, "preemptible": true, "min": 1, "pods": 1, "running": 1, "starting": 0, "waiting": 0, "releasing": 0,
                "needed": 0, "position": null, "created": "2026-01-01T00:00:00Z", "waitingSince": null, "lastStart": null, "lastEviction": null,
                "staleSince": null, "reason": null, "reasonSource": null,
            })
        };
        let pod = json!({
            "namespace": "team", "name": "llm-0", "uid": "u", "podGroup": "pg-llm", "status": "Running", "node": "h100-9",
            "gpus": { "kind": "whole", "devices": 2 }, "gpuGroups": [], "created": "2026-01-01T00:00:00Z", "since": null, "reason": null, "reasonSource": null,
        });
        let view = json!({
            "version": "v1", "time": now, "missing": [], "nodes": null, "queues": null, "pods": [pod],
            "gangs": [gang("blue", "team-blue"), gang("llm", "team-red")], "decisions": null, "hidden": null,
        });
        serde_json::from_value(view).unwrap()
    }

    fn event(
        uid: &str,
        reason: &str,
        time: &str,
        about: &str,
        message: &str,
        annotations: Value,
    ) -> Arc<SchedulerEvent> {
        let event = json!({
            "metadata": { "name": uid, "namespace": "team", "uid": uid, "annotations": annotations, "resourceVersion": "7" },
            "involvedObject": { "namespace": "team", "name": about }, "reason": reason, "message": message,
            "lastTimestamp": time, "count": 1, "source": { "component": "kai-scheduler" },
        });
        Arc::new(serde_json::from_value(event).unwrap())
    }

    #[test]
    fn events_become_decisions_newest_first() {
        let evictor = json!({
            "evictor-action-type": "reclaim", "evictor-pod-group-name": "pg-llm", "evictor-pod-group-namespace": "team",
        });
        let second = "2026-01-01T10:00:01Z";
        let events = [
            event(
                "1",
                "Scheduled",
                second,
                "llm-0",
                "team/llm-0 is assigned to node h100-1 of node pool default",
                json!({ "kai.scheduler/action": "allocate" }),
            ),
            event(
                "2",
                "Evict",
                second,
                "pg-blue",
                "2 pods evicted: reclaimed for Deployment team/llm (2 pods in all)",
                evictor,
            ),
            event("3", "Unschedulable", second, "llm-1", "no node", json!({})),
            event(
                "4",
                "Scheduled",
                "2026-01-01T08:00:00Z",
                "old",
                "team/old is assigned to node a of node pool default",
                json!({}),
            ),
        ];
        let mut log = DecisionLog::default();
        log.add(&events, "kai-scheduler", &view("2026-01-01T10:30:00Z"));
        let told = log.newest_first();
        let kinds: Vec<_> = told.iter().map(|decision| (decision.kind, decision.number)).collect();
        assert_eq!(kinds, [(DecisionKind::Bind, 2), (DecisionKind::Evict, 1)]);
        let bound = &told[0];
        assert_eq!(
            (bound.workload.as_str(), bound.node.as_deref()),
            ("Deployment llm", Some("h100-1"))
        );
        assert_eq!(bound.action.as_deref(), Some("allocate"));
        assert_eq!(bound.gpus, Some(kai_view::PodGpus::Whole { devices: 2 }));
        let evicted = &told[1];
        assert_eq!(evicted.action.as_deref(), Some("reclaim"));
        let beneficiary = evicted.beneficiary.as_ref().unwrap();
        assert_eq!(beneficiary.workload, "Deployment llm");
        assert_eq!(beneficiary.queue.as_deref(), Some("team-red"));

        // The same Events again, one of them repeated; then an hour later.
        log.add(&events, "kai-scheduler", &view("2026-01-01T10:30:00Z"));
        assert_eq!(log.newest_first().len(), 2);
        let mut again = (*events[0]).clone();
        (again.count, again.last_timestamp) = (Some(2), Some("2026-01-01T10:31:00Z".to_owned()));
        log.add(&[Arc::new(again)], "kai-scheduler", &view("2026-01-01T10:31:00Z"));
        assert_eq!(log.newest_first()[0].number, 3);
        log.add(&[], "kai-scheduler", &view("2026-01-01T11:10:00Z"));
        assert_eq!(log.newest_first().len(), 1);
    }

    /// A pod without an owner takes its pod group with it.
    #[test]
    fn a_workload_that_is_gone_keeps_the_name_that_people_know() {
        let told = |annotations: Value| {
            let evicted = event(
                "1",
                "Evict",
                "2026-01-01T10:00:01Z",
                "pg-gone-0-fc4b27ea",
                "1 pod evicted",
                annotations,
            );
            let mut log = DecisionLog::default();
            log.add(&[evicted], "kai-scheduler", &view("2026-01-01T10:30:00Z"));
            let decision = log.newest_first().remove(0).as_ref().clone();
            (decision.workload, decision.beneficiary.map(|gang| gang.workload))
        };
        let mut annotations = json!({
            "evictor-pod-group-name": "pg-winner-0-ed8916b3", "evictor-pod-group-namespace": "team",
            "kai.scheduler/evicted-workload": "Pod team/gone-0", "kai.scheduler/evictor-workload": "Pod team/winner-0",
        });
        assert_eq!(
            told(annotations.clone()),
            ("Pod gone-0".to_owned(), Some("Pod winner-0".to_owned()))
        );
        for key in ["kai.scheduler/evicted-workload", "kai.scheduler/evictor-workload"] {
            annotations.as_object_mut().unwrap().remove(key);
        }
        let by_pod_group = (
            "pod group pg-gone-0-fc4b27ea".to_owned(),
            Some("pod group pg-winner-0-ed8916b3".to_owned()),
        );
        assert_eq!(told(annotations), by_pod_group);
    }

    #[test]
    fn an_eviction_names_each_pod_and_why_it_was_fair() {
        let fairness = json!({ "rule": "priority", "victim": 50, "beneficiary": 100 });
        let annotations =
            json!({ "kai.scheduler/evicted-pods": "blue-0,llm-0,+3", "kai.scheduler/fairness": fairness.to_string() });
        let evicted = event(
            "1",
            "Evict",
            "2026-01-01T10:00:01Z",
            "pg-blue",
            "5 pods evicted",
            annotations,
        );
        let mut log = DecisionLog::default();
        log.add(&[evicted], "kai-scheduler", &view("2026-01-01T10:30:00Z"));
        let told = log.newest_first();
        let pods: Vec<_> = told
            .iter()
            .map(|decision| (decision.number, decision.pod.as_str()))
            .collect();
        assert_eq!(pods, [(3, ""), (2, "llm-0"), (1, "blue-0")]);
        assert_eq!(
            (&told[1].gpus.is_some(), &told[1].node),
            (&true, &None),
            "llm-0 runs again, elsewhere"
        );
        let fair: kai_view::Fairness = serde_json::from_value(fairness).unwrap();
        assert!(told.iter().all(|decision| decision.fairness.as_ref() == Some(&fair)));
    }

    #[test]
    fn events_of_other_schedulers_do_not_count() {
        let scheduled = event("1", "Scheduled", "2026-01-01T10:00:00Z", "llm-0", "", json!({}));
        let mut log = DecisionLog::default();
        log.add(&[scheduled], "another", &view("2026-01-01T10:00:00Z"));
        assert!(log.newest_first().is_empty());
    }
}
