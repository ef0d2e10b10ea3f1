//! What every role of the cluster's side is given, and how it says that it is well. What a role does is its own crate's matter.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::{Client, Clock, Informers, Leadership};

/// What a role works with. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    /// The API.
    pub client: Client,
    /// The watches, shared with the other roles of the process.
    pub informers: Arc<Informers>,
    /// The time of day.
    pub clock: Clock,
    /// Where to register metrics.
    pub metrics: Metrics,
    /// Where to say that one is well.
    pub health: Health,
}

impl Context {
    /// A context with watches of its own.
    pub fn new(client: Client, clock: Clock) -> Context {
        Context {
            informers: Arc::new(Informers::new(&client)),
            client,
            clock,
            metrics: Metrics::default(),
            health: Health::default(),
        }
    }

    /// The same, with writes only while the leadership is held.
    pub fn guarded(&self, leadership: &Leadership) -> Context {
        self.with_client(self.client.guarded(leadership))
    }

    /// The same watches, with calls by another client.
    pub fn with_client(&self, client: Client) -> Context {
        Context { client, ..self.clone() }
    }
}

/// The metrics of a process. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
}

impl Metrics {
    /// To register metrics with.
    pub fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All metrics as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string can't fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry());
        text
    }
}

/// The health of a process: each part that has work to do says now and then that it got along. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Health {
    parts: Arc<Mutex<Vec<Part>>>,
}

#[derive(Clone, Debug)]
struct Part {
    name: &'static str,
    ready: bool,
    alive: Instant,
    silence_max: Duration,
}

impl Health {
    /// Announces a part that is not ready yet and has to be heard of at least every `silence_max`.
    pub fn announce(&self, name: &'static str, silence_max: Duration) {
        self.lock().push(Part {
            name,
            ready: false,
            alive: Instant::now(),
            silence_max,
        });
    }

    /// The part is at work.
    pub fn alive(&self, name: &'static str) {
        for part in self.lock().iter_mut().filter(|part| part.name == name) {
            part.ready = true;
            part.alive = Instant::now();
        }
    }

    /// Parts that are not ready to work.
    pub fn not_ready(&self) -> Vec<&'static str> {
        let parts = self.lock();
        parts.iter().filter(|part| !part.ready).map(|part| part.name).collect()
    }

    /// Parts that were not heard of for too long.
    pub fn stuck(&self) -> Vec<&'static str> {
        let parts = self.lock();
        let stuck = parts.iter().filter(|part| part.alive.elapsed() > part.silence_max);
        stuck.map(|part| part.name).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Part>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_silent_part_is_stuck() {
        let health = Health::default();
        health.announce("cycle", Duration::from_secs(30));
        assert_eq!(health.not_ready(), ["cycle"]);
        health.alive("cycle");
        assert!(health.not_ready().is_empty());
        tokio::time::sleep(Duration::from_secs(31)).await;
        assert_eq!(health.stuck(), ["cycle"]);
        health.alive("cycle");
        assert!(health.stuck().is_empty());
    }
}
