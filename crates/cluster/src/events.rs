//! Events, as `kubectl describe` shows them. A repeated event increments the count of the existing Event object.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use kai_api::{ObjectReference, Resource, Scope};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use crate::{Client, Clock, Error, Part, Patch, Severity, Target};

const EVENT: Resource = Resource::new("", "v1", "Event", "events", Scope::Namespaced);
/// Events that the recorder can still count up: enough for all pending pods of a large cluster.
const RECENT_MAX: usize = 16_384;
/// The API's limit for an event's message.
const MESSAGE_BYTES_MAX: usize = 1024;

/// An event to be recorded about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectEvent {
    /// The involved object.
    pub about: ObjectReference,
    /// Type of the event.
    pub severity: Severity,
    /// Reason: one word in camel case.
    pub reason: &'static str,
    /// Message for people.
    pub message: String,
    /// Annotations of the event.
    pub annotations: Vec<(&'static str, String)>,
}

/// Records the events of one component. Cheap to clone.
#[derive(Clone, Debug)]
pub struct EventRecorder {
    client: Client,
    component: &'static str,
    clock: Clock,
    /// A plain lock: held for map operations only, never across an await.
    recent: Arc<Mutex<RecentEvents>>,
}

/// The latest events by a digest of UID, reason, message and annotations: the texts themselves would need more memory than the pods of a small
/// cluster. A collision is most unlikely and only makes a count wrong.
#[derive(Debug, Default)]
struct RecentEvents {
    hasher: RandomState,
    by_digest: FxHashMap<u64, RecordedEvent>,
    order: VecDeque<u64>,
}

/// An Event object on the API server.
#[derive(Clone, Debug)]
struct RecordedEvent {
    name: Box<str>,
    count: u64,
}

impl EventRecorder {
    /// Recorder for this component.
    pub fn new(client: &Client, component: &'static str, clock: Clock) -> EventRecorder {
        EventRecorder {
            client: client.clone(),
            component,
            clock,
            recent: Arc::default(),
        }
    }

    /// Records the event. Failures are only logged: events are for people, and no decision depends on them.
    pub async fn record(&self, event: ObjectEvent) {
        let about = format!("{} {}/{}", event.about.kind, event.about.namespace, event.about.name);
        if let Err(error) = self.try_record(event).await {
            tracing::debug!(%error, about, "an event was lost");
        }
    }

    async fn try_record(&self, mut event: ObjectEvent) -> Result<(), Error> {
        shorten(&mut event.message);
        // Events of cluster-scoped objects live in the default namespace.
        let namespace = match &*event.about.namespace {
            "" => "default".to_owned(),
            namespace => namespace.to_owned(),
        };
        let (digest, recorded) = self.recent.lock().look_up(&event);
        if let Some(RecordedEvent { name, count }) = recorded {
            let body = json!({ "count": count + 1, "lastTimestamp": self.clock.now_text() });
            let target = Target {
                resource: &EVENT,
                namespace: &namespace,
                name: &name,
            };
            match self.client.patch(target, Part::Object, Patch::Merge(body)).await {
                Ok(_) => {
                    let count = count + 1;
                    self.recent.lock().remember(digest, RecordedEvent { name, count });
                    return Ok(());
                }
                // Events expire on the API server.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let created = self.client.create(&EVENT, &namespace, self.body(&event)).await?;
        let name = created["metadata"]["name"].as_str().unwrap_or_default().into();
        self.recent.lock().remember(digest, RecordedEvent { name, count: 1 });
        Ok(())
    }

    fn body(&self, event: &ObjectEvent) -> Value {
        let now = self.clock.now_text();
        let severity = match event.severity {
            Severity::Normal => "Normal",
            Severity::Warning => "Warning",
        };
        let annotations: serde_json::Map<String, Value> = event
            .annotations
            .iter()
            .map(|(key, value)| ((*key).to_owned(), Value::from(value.as_str())))
            .collect();
        json!({
            "metadata": { "generateName": format!("{}.", event.about.name), "annotations": annotations },
            "involvedObject": {
                "apiVersion": event.about.api_version,
                "kind": event.about.kind,
                "namespace": event.about.namespace,
                "name": event.about.name,
                "uid": event.about.uid,
            },
            "type": severity,
            "reason": event.reason,
            "message": event.message,
            "source": { "component": self.component },
            "reportingComponent": self.component,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        })
    }
}

impl RecentEvents {
    /// The digest of the event, and the Event object that recorded the same event before.
    fn look_up(&self, event: &ObjectEvent) -> (u64, Option<RecordedEvent>) {
        let digest = self
            .hasher
            .hash_one((&event.about.uid, event.reason, &event.message, &event.annotations));
        (digest, self.by_digest.get(&digest).cloned())
    }

    fn remember(&mut self, digest: u64, recorded: RecordedEvent) {
        if self.by_digest.insert(digest, recorded).is_none() {
            self.order.push_back(digest);
        }
        while self.order.len() > RECENT_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.by_digest.remove(&oldest);
            }
        }
    }
}

fn shorten(message: &mut String) {
    const MORE: &str = "...";
    if message.len() > MESSAGE_BYTES_MAX {
        let ends = (0..=MESSAGE_BYTES_MAX - MORE.len()).rev();
        let end = ends.into_iter().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
        message.truncate(end);
        message.push_str(MORE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(uid: &str, message: &str) -> ObjectEvent {
        ObjectEvent {
            about: ObjectReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                namespace: "n".to_owned(),
                name: "p".to_owned(),
                uid: uid.to_owned(),
            },
            severity: Severity::Normal,
            reason: "Scheduled",
            message: message.to_owned(),
            annotations: Vec::new(),
        }
    }

    #[test]
    fn the_latest_events_are_known_again_and_no_more_than_that() {
        let mut recent = RecentEvents::default();
        let numbers = 0..RECENT_MAX + 10;
        for number in numbers.clone() {
            let (digest, recorded) = recent.look_up(&event(&number.to_string(), "here"));
            assert!(recorded.is_none());
            let name = number.to_string().into();
            recent.remember(digest, RecordedEvent { name, count: 1 });
        }
        for number in numbers {
            let (_, recorded) = recent.look_up(&event(&number.to_string(), "here"));
            let name = recorded.map(|recorded| recorded.name.into_string());
            assert_eq!(name, (number >= 10).then(|| number.to_string()));
        }
        let (_, other) = recent.look_up(&event("20", "there"));
        assert!(other.is_none());
    }
}
