//! The context that every control-plane role gets: client, informers, clock, metrics, health.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::{Mutex, MutexGuard};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::{Client, Clock, Informers, Leadership, VERSION};

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
    /// The namespace of kai.
    pub namespace: Arc<str>,
}

/// The namespace of kai, if nothing says otherwise.
pub const NAMESPACE: &str = "kai-scheduler";

impl Context {
    /// A context with its own informers.
    pub fn new(client: Client, clock: Clock) -> Context {
        let metrics = Metrics::default();
        metrics.register_process_metrics(&client);
        Context {
            informers: Arc::new(Informers::new(&client)),
            client,
            clock,
            metrics,
            health: Health::default(),
            namespace: NAMESPACE.into(),
        }
    }

    /// The same context, with another namespace of kai.
    pub fn in_namespace(self, namespace: &str) -> Context {
        Context {
            namespace: namespace.into(),
            ..self
        }
    }

    /// The same context, limited to writes while `leadership` is held.
    pub fn guarded(&self, leadership: &Leadership) -> Context {
        self.with_client(self.client.guarded(leadership))
    }

    /// The context of a role that may end before the process, such as the scheduler of a shard. Its metrics have these labels; they end
    /// with the last clone of the context, as its health does.
    pub fn part(&self, labels: &[(&'static str, String)]) -> Context {
        Context {
            metrics: self.metrics.part(labels),
            health: self.health.part(),
            ..self.clone()
        }
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
    /// Registries of parts that still run.
    parts: Arc<Mutex<Vec<Weak<Mutex<Registry>>>>>,
    /// 1 for each lease that this process holds, 0 for each that it wants to hold. The process and its parts share it.
    leader: Family<[(&'static str, String); 1], Gauge>,
}

impl Metrics {
    /// Registers the metrics that every process has.
    fn register_process_metrics(&self, client: &Client) {
        let mut registry = self.registry();
        let build: Family<[(&'static str, &'static str); 1], Gauge> = Family::default();
        build.get_or_create(&[("version", VERSION)]).set(1);
        registry.register("kai_build_info", "1, with the version of the program", build);
        let help = "1 if this process holds the lease, 0 if another one does";
        registry.register("kai_leader", help, self.leader.clone());
        client.call_metrics.register(&mut registry);
    }

    /// The gauge of a lease that this process wants to hold.
    pub fn leader(&self, lease: &str) -> LeaderGauge {
        let gauge = LeaderGauge {
            leader: self.leader.clone(),
            labels: [("lease", lease.to_owned())],
        };
        gauge.set(false);
        gauge
    }

    fn part(&self, labels: &[(&'static str, String)]) -> Metrics {
        let labels = labels
            .iter()
            .map(|(name, value)| (Cow::Borrowed(*name), Cow::Owned(value.clone())));
        let registry = Arc::new(Mutex::new(Registry::with_labels(labels)));
        let mut parts = self.parts.lock();
        parts.retain(|part| part.strong_count() > 0);
        parts.push(Arc::downgrade(&registry));
        Metrics {
            registry,
            parts: Arc::default(),
            leader: self.leader.clone(),
        }
    }

    /// The registry, locked.
    pub fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock()
    }

    /// All metrics in the OpenMetrics text format.
    pub fn text(&self) -> String {
        let parts: Vec<_> = self.parts.lock().iter().filter_map(Weak::upgrade).collect();
        let text = |registry: &Mutex<Registry>| {
            let mut text = String::new();
            // Writing to a string can't fail.
            let _ = prometheus_client::encoding::text::encode(&mut text, &registry.lock());
            text
        };
        let own = text(&self.registry);
        match parts.as_slice() {
            [] => own,
            parts => merged(std::iter::once(own).chain(parts.iter().map(|part| text(part)))),
        }
    }
}

/// Whether a process holds a lease, as a metric. Dropping it removes the series.
#[derive(Debug)]
pub struct LeaderGauge {
    leader: Family<[(&'static str, String); 1], Gauge>,
    labels: [(&'static str, String); 1],
}

impl LeaderGauge {
    /// Sets whether this process holds the lease.
    pub fn set(&self, is_held: bool) {
        self.leader.get_or_create(&self.labels).set(i64::from(is_held));
    }
}

impl Drop for LeaderGauge {
    fn drop(&mut self) {
        self.leader.remove(&self.labels);
    }
}

/// One text of several. The format requires that all lines of a metric stand together, after one description.
fn merged(texts: impl Iterator<Item = String>) -> String {
    /// The description and the lines of one metric.
    type Family = (Vec<String>, Vec<String>);
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for text in texts {
        let mut name = String::new();
        let mut is_first = true;
        for line in text.lines().filter(|line| *line != "# EOF") {
            match line.strip_prefix("# ") {
                Some(description) => {
                    let of = description.split(' ').nth(1).unwrap_or_default();
                    if of != name {
                        name = of.to_owned();
                        is_first = !families.contains_key(&name);
                    }
                    if is_first {
                        families.entry(name.clone()).or_default().0.push(line.to_owned());
                    }
                }
                None => families.entry(name.clone()).or_default().1.push(line.to_owned()),
            }
        }
    }
    let lines = families
        .into_values()
        .flat_map(|(description, lines)| description.into_iter().chain(lines));
    let mut text: String = lines.map(|line| line + "\n").collect();
    text.push_str("# EOF\n");
    text
}

/// The health of a process: every component reports regularly that it makes progress. Cheap to clone.
///
/// Readiness is about the start. A process that was ready stays ready: the webhooks of a replica must not leave their Service when the
/// replica becomes the leader and its other roles start.
#[derive(Clone, Debug, Default)]
pub struct Health {
    progress: Arc<Mutex<Progress>>,
    /// The progress of parts that still run.
    parts: Arc<Mutex<Vec<Weak<Mutex<Progress>>>>>,
    was_ready: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Progress {
    components: Vec<Component>,
    /// Steps of the start that are not done.
    holds: Vec<&'static str>,
}

/// A step of the start of a process, which is not ready until the step releases or drops this value.
#[derive(Debug)]
pub struct ReadinessHold {
    name: &'static str,
    released: AtomicBool,
    progress: Arc<Mutex<Progress>>,
}

impl ReadinessHold {
    /// The step is done. A second call has no effect.
    pub fn release(&self) {
        if self.released.swap(true, Ordering::SeqCst) {
            return;
        }
        let holds = &mut self.progress.lock().holds;
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
        self.progress.lock().components.push(Component {
            name,
            ready: false,
            last_report: Instant::now(),
            silence_max,
        });
    }

    /// The component reports that it makes progress.
    pub fn alive(&self, name: &'static str) {
        let components = &mut self.progress.lock().components;
        for component in components.iter_mut().filter(|component| component.name == name) {
            component.ready = true;
            component.last_report = Instant::now();
        }
    }

    /// Begins a step of the start.
    pub fn hold(&self, name: &'static str) -> ReadinessHold {
        self.progress.lock().holds.push(name);
        ReadinessHold {
            name,
            released: AtomicBool::new(false),
            progress: Arc::clone(&self.progress),
        }
    }

    /// Steps of the start that are not done, and components without a report yet.
    pub fn not_ready(&self) -> Vec<&'static str> {
        self.names(|progress| {
            let silent = progress.components.iter().filter(|component| !component.ready);
            let mut names = progress.holds.clone();
            names.extend(silent.map(|component| component.name));
            names
        })
    }

    /// Whether the process has been ready once, for the readiness probe. `is_ready` is whether it is ready now.
    pub fn has_become_ready(&self, is_ready: bool) -> bool {
        self.was_ready.fetch_or(is_ready, Ordering::SeqCst) || is_ready
    }

    /// Components whose last report is too old, for the liveness probe.
    pub fn stuck(&self) -> Vec<&'static str> {
        self.names(|progress| {
            let stuck = progress
                .components
                .iter()
                .filter(|component| component.last_report.elapsed() > component.silence_max);
            stuck.map(|component| component.name).collect()
        })
    }

    fn part(&self) -> Health {
        let part = Health::default();
        let mut parts = self.parts.lock();
        parts.retain(|part| part.strong_count() > 0);
        parts.push(Arc::downgrade(&part.progress));
        part
    }

    /// Names of the process itself, and of its parts.
    fn names(&self, of: impl Fn(&Progress) -> Vec<&'static str>) -> Vec<&'static str> {
        let parts: Vec<_> = self.parts.lock().iter().filter_map(Weak::upgrade).collect();
        let all = std::iter::once(&self.progress).chain(&parts);
        all.flat_map(|progress| of(&progress.lock())).collect()
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

    #[tokio::test]
    async fn a_part_ends_with_its_metrics_and_its_health() {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>()
        });
        let context = Context::new(Client::in_process(service), Clock::System);
        let count = |context: &Context| {
            let counter = prometheus_client::metrics::counter::Counter::<u64>::default();
            counter.inc();
            context.metrics.registry().register("cycles", "Cycles", counter);
        };
        count(&context);
        let part = context.part(&[("shard", "a100".to_owned())]);
        count(&part);
        part.health.announce("cycle", Duration::from_secs(30));
        assert_eq!(context.health.not_ready(), ["cycle"]);
        let told = "# HELP cycles Cycles.\n# TYPE cycles counter\ncycles_total 1\ncycles_total{shard=\"a100\"} 1\n";
        let leader = part.metrics.leader("kai-scheduler");
        let leads = "kai_leader{lease=\"kai-scheduler\"}";
        let text = context.metrics.text();
        assert!(text.contains(told) && text.contains(&format!("{leads} 0\n")), "{text}");
        assert!(text.ends_with("# EOF\n"));
        leader.set(true);
        assert!(context.metrics.text().contains(&format!("{leads} 1\n")));
        drop(leader);
        drop(part);
        assert!(context.health.not_ready().is_empty());
        let text = context.metrics.text();
        assert!(!text.contains(leads) && !text.contains("a100"), "{text}");
        assert!(text.contains("cycles_total 1\n"), "{text}");
    }
}
