//! Events: what people see under `kubectl describe`. The same event again only counts up the one that is there.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use kai_api::{ObjectReference, Resource, Scope};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use crate::{Client, Clock, Error, Part, Patch, Severity, Target};

const EVENT: Resource = Resource::new("", "v1", "Event", "events", Scope::Namespaced);
/// Events that are remembered for counting up. Enough for the pods of a large cluster that wait at one time.
const REMEMBERED_MAX: usize = 16_384;
/// The API's limit of an event's message.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Something to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// ObjectReference what.
    pub about: ObjectReference,
    /// How bad.
    pub severity: Severity,
    /// One word in camel case.
    pub reason: &'static str,
    /// Sentences.
    pub message: String,
    /// Annotations of the event.
    pub annotations: Vec<(&'static str, String)>,
}

/// Writes events of one component. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Events {
    client: Client,
    component: &'static str,
    clock: Clock,
    /// A plain lock: held for map operations only, never across an await.
    remembered: Arc<Mutex<Remembered>>,
}

/// Events by a digest of what they say, since their texts would outweigh the pods of a small cluster. That two have the same is most
/// unlikely, and no more than a wrong count.
#[derive(Debug, Default)]
struct Remembered {
    hasher: RandomState,
    by_digest: FxHashMap<u64, Known>,
    order: VecDeque<u64>,
}

/// An event that is on the server.
#[derive(Clone, Debug)]
struct Known {
    name: Box<str>,
    count: u64,
}

impl Events {
    /// Events of this component.
    pub fn new(client: &Client, component: &'static str, clock: Clock) -> Events {
        Events {
            client: client.clone(),
            component,
            clock,
            remembered: Arc::default(),
        }
    }

    /// Writes the event. Failures are logged only: events are for people, nothing depends on them.
    pub async fn record(&self, note: Note) {
        let about = format!("{} {}/{}", note.about.kind, note.about.namespace, note.about.name);
        if let Err(error) = self.try_record(note).await {
            tracing::debug!(%error, about, "an event was lost");
        }
    }

    async fn try_record(&self, mut note: Note) -> Result<(), Error> {
        shorten(&mut note.message);
        // Events of cluster-wide objects live in the default namespace.
        let namespace = match &*note.about.namespace {
            "" => "default".to_owned(),
            namespace => namespace.to_owned(),
        };
        let (digest, known) = self.lock().look_up(&note);
        if let Some(Known { name, count }) = known {
            let body = json!({ "count": count + 1, "lastTimestamp": self.clock.now_text() });
            let target = Target {
                resource: &EVENT,
                namespace: &namespace,
                name: &name,
            };
            match self.client.patch(target, Part::Object, Patch::Merge(body)).await {
                Ok(_) => {
                    let count = count + 1;
                    self.lock().remember(digest, Known { name, count });
                    return Ok(());
                }
                // Events expire on the server.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let created = self.client.create(&EVENT, &namespace, self.body(&note)).await?;
        let name = created["metadata"]["name"].as_str().unwrap_or_default().into();
        self.lock().remember(digest, Known { name, count: 1 });
        Ok(())
    }

    fn body(&self, note: &Note) -> Value {
        let now = self.clock.now_text();
        let severity = match note.severity {
            Severity::Normal => "Normal",
            Severity::Warning => "Warning",
        };
        let annotations: serde_json::Map<String, Value> = note
            .annotations
            .iter()
            .map(|(key, value)| ((*key).to_owned(), Value::from(value.as_str())))
            .collect();
        json!({
            "metadata": { "generateName": format!("{}.", note.about.name), "annotations": annotations },
            "involvedObject": {
                "apiVersion": note.about.api_version,
                "kind": note.about.kind,
                "namespace": note.about.namespace,
                "name": note.about.name,
                "uid": note.about.uid,
            },
            "type": severity,
            "reason": note.reason,
            "message": note.message,
            "source": { "component": self.component },
            "reportingComponent": self.component,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Remembered> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Remembered {
    /// The digest of the event, and the same one if it is on the server.
    fn look_up(&self, note: &Note) -> (u64, Option<Known>) {
        let digest = self.hasher.hash_one((&note.about.uid, note.reason, &note.message));
        (digest, self.by_digest.get(&digest).cloned())
    }

    fn remember(&mut self, digest: u64, known: Known) {
        if self.by_digest.insert(digest, known).is_none() {
            self.order.push_back(digest);
        }
        while self.order.len() > REMEMBERED_MAX {
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

    fn note(uid: &str, message: &str) -> Note {
        Note {
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
        let mut remembered = Remembered::default();
        let numbers = 0..REMEMBERED_MAX + 10;
        for number in numbers.clone() {
            let (digest, known) = remembered.look_up(&note(&number.to_string(), "here"));
            assert!(known.is_none());
            let name = number.to_string().into();
            remembered.remember(digest, Known { name, count: 1 });
        }
        for number in numbers {
            let (_, known) = remembered.look_up(&note(&number.to_string(), "here"));
            let name = known.map(|known| known.name.into_string());
            assert_eq!(name, (number >= 10).then(|| number.to_string()));
        }
        let (_, other) = remembered.look_up(&note("20", "there"));
        assert!(other.is_none());
    }
}
