//! Events: what people see under `kubectl describe`. The same event again only counts up the one that is there.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use api::{Resource, Scope};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use crate::{Client, Clock, Error, Part, Patch, Severity, Target};

const EVENT: Resource = Resource::new("", "v1", "Event", "events", Scope::Namespaced);
/// Events that are remembered for counting up. Enough for the pods of a large cluster that wait at one time.
const REMEMBERED_MAX: usize = 16_384;
/// The API's limit of an event's message.
const MESSAGE_BYTES_MAX: usize = 1024;

/// What an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct About {
    /// apiVersion of the object.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace; empty for resources without one.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its unique id.
    pub uid: String,
}

/// Something to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// About what.
    pub about: About,
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

#[derive(Debug, Default)]
struct Remembered {
    by_content: FxHashMap<(String, &'static str, String), (String, u64)>,
    order: VecDeque<(String, &'static str, String)>,
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
        let content = (note.about.uid.clone(), note.reason, note.message.clone());
        let known = self.lock().by_content.get(&content).cloned();
        if let Some((name, count)) = known {
            let body = json!({ "count": count + 1, "lastTimestamp": self.clock.now_text() });
            let target = Target {
                resource: &EVENT,
                namespace: &namespace,
                name: &name,
            };
            match self.client.patch(target, Part::Object, Patch::Merge(body)).await {
                Ok(_) => {
                    self.remember(content, name, count + 1);
                    return Ok(());
                }
                // Events expire on the server.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let created = self.client.create(&EVENT, &namespace, self.body(&note)).await?;
        let name = created["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        self.remember(content, name, 1);
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

    fn remember(&self, content: (String, &'static str, String), name: String, count: u64) {
        let mut remembered = self.lock();
        if remembered.by_content.insert(content.clone(), (name, count)).is_none() {
            remembered.order.push_back(content);
        }
        while remembered.order.len() > REMEMBERED_MAX {
            if let Some(oldest) = remembered.order.pop_front() {
                remembered.by_content.remove(&oldest);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Remembered> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
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
