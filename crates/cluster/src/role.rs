//! The context that every control-plane role gets: client, informers, clock, metrics, health.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::{Mutex, MutexGuard};
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::{Client, Clock, Informers, Leadership};

/// A role at work. Boxed, so that the crate of the role compiles it, and not every crate that awaits it.
pub type RoleFuture<'a, E> = BoxFuture<'a, Result<Infallible, E>>;

/// The context of a role. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    /// The Kubernetes client.
    pub client: Client,
    /// The informers, shared with the other roles of the process.
    pub informers: Arc<Informers>,
    /// The time of day.
    pub clock: Clock,
    /// The role registers its metrics here.
    pub metrics: Metrics,
    /// The role reports here that it makes progress.
    pub health: Health,
}

impl Context {
    /// A context with its own informers.
    pub fn new(client: Client, clock: Clock) -> Context {
        Context {
            informers: Arc::new(Informers::new(&client)),
            client,
            clock,
            metrics: Metrics::default(),
            health: Health::default(),
        }
    }

    /// The same context, limited to writes while `leadership` is held.
    pub fn guarded(&self, leadership: &Leadership) -> Context {
        self.with_client(self.client.guarded(leadership))
    }

    /// The same informers with another client for calls.
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
    /// The registry, locked.
    pub fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock()
    }

    /// All metrics in the OpenMetrics text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string can't fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry());
        text
    }
}

/// The health of a process: every component reports regularly that it makes progress. Cheap to clone.
///
/// Readiness is about the start. A process that was ready stays ready: the webhooks of a replica must not leave their Service when the
/// replica becomes the leader and its other roles start.
#[derive(Clone, Debug, Default)]
pub struct Health {
    components: Arc<Mutex<Vec<Component>>>,
    /// Steps of the start that are not done.
    holds: Arc<Mutex<Vec<&'static str>>>,
    was_ready: Arc<AtomicBool>,
}

/// A step of the start of a process, which is not ready until the step releases or drops this value.
#[derive(Debug)]
pub struct ReadinessHold {
    name: &'static str,
    released: AtomicBool,
    holds: Arc<Mutex<Vec<&'static str>>>,
}

impl ReadinessHold {
    /// The step is done. A second call has no effect.
    pub fn release(&self) {
        if self.released.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut holds = self.holds.lock();
        if let Some(at) = holds.iter().position(|name| *name == self.name) {
            holds.remove(at);
        }
    }
}

impl Drop for ReadinessHold {
    fn drop(&mut self) {
        self.release();
    }
}

#[derive(Clone, Debug)]
struct Component {
    name: &'static str,
    ready: bool,
    last_report: Instant,
    silence_max: Duration,
}

impl Health {
    /// Registers a component. It is not ready until its first report, and must report at least every `silence_max`.
    pub fn announce(&self, name: &'static str, silence_max: Duration) {
        self.components.lock().push(Component {
            name,
            ready: false,
            last_report: Instant::now(),
            silence_max,
        });
    }

    /// The component reports that it makes progress.
    pub fn alive(&self, name: &'static str) {
        for component in self
            .components
            .lock()
            .iter_mut()
            .filter(|component| component.name == name)
        {
            component.ready = true;
            component.last_report = Instant::now();
        }
    }

    /// Begins a step of the start.
    pub fn hold(&self, name: &'static str) -> ReadinessHold {
        let holds = Arc::clone(&self.holds);
        holds.lock().push(name);
        ReadinessHold {
            name,
            released: AtomicBool::new(false),
            holds,
        }
    }

    /// Steps of the start that are not done, and components without a report yet.
    pub fn not_ready(&self) -> Vec<&'static str> {
        let components = self.components.lock();
        let silent = components.iter().filter(|component| !component.ready);
        let mut names = self.holds.lock().clone();
        names.extend(silent.map(|component| component.name));
        names
    }

    /// Whether the process has been ready once, for the readiness probe. `is_ready` is whether it is ready now.
    pub fn has_become_ready(&self, is_ready: bool) -> bool {
        self.was_ready.fetch_or(is_ready, Ordering::SeqCst) || is_ready
    }

    /// Components whose last report is too old, for the liveness probe.
    pub fn stuck(&self) -> Vec<&'static str> {
        let components = self.components.lock();
        let stuck = components
            .iter()
            .filter(|component| component.last_report.elapsed() > component.silence_max);
        stuck.map(|component| component.name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_process_is_ready_after_its_last_step_and_stays_so() {
        let health = Health::default();
        let (first, second) = (health.hold("installation"), health.hold("binder"));
        assert_eq!(health.not_ready(), ["installation", "binder"]);
        first.release();
        drop(first);
        assert_eq!(health.not_ready(), ["binder"]);
        assert!(!health.has_become_ready(health.not_ready().is_empty()));
        drop(second);
        assert!(health.has_become_ready(health.not_ready().is_empty()));
        health.announce("cycle", Duration::from_secs(30));
        assert!(health.has_become_ready(health.not_ready().is_empty()), "it was ready");
    }

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
