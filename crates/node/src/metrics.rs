//! Prometheus metrics: gauges per GPU with the names of NVIDIA's DCGM exporter, so that existing dashboards work, and the agent's own
//! health. The driver is asked at every scrape, never in between.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::{ConnectInfo, State as Shared};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use kai_gpu::{Device, Driver, Sample};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::Error;
use crate::agent::limits_audit::LimitMetrics;
use crate::agent::state::Snapshot;
use crate::allocator::plan::device_uuid;
use crate::enforcement::audit::Enforced;
use crate::enforcement::watch::{WatchReport, metrics as watch_metrics};
use crate::kubelet::deviceplugin::HEALTHY;
use crate::podresources::{self, DeviceAllocation};

type Labels = Vec<(&'static str, String)>;
type Values = Family<Labels, Gauge<f64, AtomicU64>>;

/// Where the values of the metrics come from.
#[derive(Clone)]
pub struct Sources {
    /// The node's name.
    pub node: String,
    /// The GPU driver, for measurements.
    pub driver: Arc<dyn Driver>,
    /// The agent's latest snapshot.
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    /// The kubelet's pod-resources socket.
    pub pod_resources: std::path::PathBuf,
    /// Registrations that the kubelet accepted since the start.
    pub registrations: Arc<AtomicU64>,
    /// What the last audit of limits found.
    pub limits: watch::Receiver<Arc<LimitMetrics>>,
    /// What the last measurement of tier watch found.
    pub watched: watch::Receiver<WatchReport>,
    /// Whether limits are also told by KAI's names.
    pub fractioning: FractioningMetrics,
    /// Decides who may read the metrics.
    pub authorizer: kai_cluster::MetricsAuthorizer,
}

/// Whether the use of limited memory is also told by the names of KAI's GPU fractioning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FractioningMetrics {
    /// By our names only.
    #[default]
    Off,
    /// By both.
    On,
}

const METRICS: &str = "/metrics";

/// Serves `/metrics`, `/healthz` and `/readyz` until the agent stops.
pub async fn serve(address: &str, sources: Sources) -> Result<(), Error> {
    let fail = |source| Error::Metrics {
        address: address.to_owned(),
        source,
    };
    let listener = tokio::net::TcpListener::bind(address).await.map_err(fail)?;
    let app = Router::new()
        .route(METRICS, get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(sources);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await.map_err(fail)
}

/// Ready once the driver has answered and the kubelet has accepted a registration.
async fn ready(Shared(sources): Shared<Sources>) -> (StatusCode, &'static str) {
    let snapshot = sources.snapshots.borrow().clone();
    if !snapshot.confirmed {
        return (StatusCode::SERVICE_UNAVAILABLE, "the GPU driver has not answered yet\n");
    }
    if !snapshot.offers.is_empty() && sources.registrations.load(Ordering::Relaxed) == 0 {
        return (StatusCode::SERVICE_UNAVAILABLE, "not registered with the kubelet yet\n");
    }
    (StatusCode::OK, "ok\n")
}

/// Serves the metrics to authorized readers only, because they say which pods hold which GPUs.
async fn metrics(
    Shared(sources): Shared<Sources>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
) -> Response {
    let token = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if let Some((code, text)) = sources.authorizer.authorize(peer.ip(), token, METRICS).await.refusal() {
        let code = StatusCode::from_u16(code).unwrap_or(StatusCode::FORBIDDEN);
        return (code, text).into_response();
    }
    let driver = sources.driver.clone();
    let samples = tokio::task::spawn_blocking(move || driver.samples()).await;
    let samples = samples.ok().and_then(Result::ok).unwrap_or_default();
    let allocations = podresources::list(&sources.pod_resources).await.unwrap_or_default();
    let snapshot = sources.snapshots.borrow().clone();
    let text = render(&Scrape {
        node: &sources.node,
        snapshot: &snapshot,
        samples: &samples,
        allocations: &allocations,
        registrations: sources.registrations.load(Ordering::Relaxed),
        limits: &sources.limits.borrow().clone(),
        watched: &sources.watched.borrow().clone(),
        fractioning: sources.fractioning,
    });
    (
        [(
            header::CONTENT_TYPE,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        )],
        text,
    )
        .into_response()
}

/// The values of one scrape.
#[derive(Debug)]
pub struct Scrape<'a> {
    /// The node's name.
    pub node: &'a str,
    /// The agent's latest snapshot.
    pub snapshot: &'a Snapshot,
    /// The driver's measurements.
    pub samples: &'a [Sample],
    /// The kubelet's device allocations.
    pub allocations: &'a [DeviceAllocation],
    /// Registrations that the kubelet accepted since the start.
    pub registrations: u64,
    /// What the last audit of limits found.
    pub limits: &'a LimitMetrics,
    /// What the last measurement of tier watch found.
    pub watched: &'a WatchReport,
    /// Whether limits are also told by KAI's names.
    pub fractioning: FractioningMetrics,
}

/// The metrics in Prometheus' text format.
pub fn render(scrape: &Scrape) -> String {
    let mut registry = Registry::default();
    add_gpu_gauges(&mut registry, scrape);
    add_agent_gauges(&mut registry, scrape);
    add_limits(&mut registry, scrape);
    watch_metrics::add_metrics(&mut registry, scrape.node, scrape.watched);
    if scrape.fractioning == FractioningMetrics::On {
        add_fractioning(&mut registry, scrape);
    }
    let mut text = String::new();
    encode(&mut text, &registry).expect("writing to a string does not fail");
    text
}

fn register(registry: &mut Registry, name: &str, help: &str) -> Values {
    let values = Values::default();
    registry.register(name, help, values.clone());
    values
}

/// The measurements of each GPU.
fn add_gpu_gauges(registry: &mut Registry, scrape: &Scrape) {
    let mut register = |name: &str, help: &str| register(registry, name, help);
    let utilisation = register("DCGM_FI_DEV_GPU_UTIL", "GPU utilisation in percent");
    let copying = register("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory bandwidth utilisation in percent");
    let used = register("DCGM_FI_DEV_FB_USED", "GPU memory in use in MiB");
    let free = register("DCGM_FI_DEV_FB_FREE", "GPU memory that is free in MiB");
    let temperature = register("DCGM_FI_DEV_GPU_TEMP", "GPU temperature in degrees Celsius");
    let power = register("DCGM_FI_DEV_POWER_USAGE", "Power draw in watts");
    for sample in scrape.samples {
        let Some(device) = scrape.snapshot.inventory.device(&sample.uuid) else {
            continue;
        };
        let labels = gpu_labels(scrape, device);
        let set = |values: &Values, value: Option<f64>| {
            if let Some(value) = value {
                values.get_or_create(&labels).set(value);
            }
        };
        set(&utilisation, sample.utilization_percent.map(f64::from));
        set(&copying, sample.memory_utilization_percent.map(f64::from));
        set(&used, sample.memory_used_mib.map(|mib| mib as f64));
        set(&free, sample.memory_free_mib.map(|mib| mib as f64));
        set(&temperature, sample.temperature_celsius.map(f64::from));
        set(
            &power,
            sample.power_milliwatts.map(|milliwatts| milliwatts as f64 / 1000.0),
        );
    }
}

/// The memory limits of containers with a GPU share.
fn add_limits(registry: &mut Registry, scrape: &Scrape) {
    let failures: Family<Labels, Counter> = Family::default();
    registry.register(
        "kai_gpu_limit_failures",
        "Failures to set the memory limit of a container, by the driver's error constant; other where the driver was not the cause",
        failures.clone(),
    );
    for (code, count) in &scrape.limits.failures {
        failures.get_or_create(&vec![("code", code.clone())]).inc_by(*count);
    }
    let mut register = |name: &str, help: &str| register(registry, name, help);
    let limit = register("kai_gpu_limit_bytes", "The most GPU memory that the container may use");
    let used = register(
        "kai_gpu_limit_used_bytes",
        "GPU memory that the container uses, by the driver's count",
    );
    let enforced = register(
        "kai_gpu_limit_enforced",
        "1 if the driver has the limit, 0 if it has none or another one",
    );
    for row in &scrape.limits.rows {
        let labels = vec![
            ("node", scrape.node.to_owned()),
            ("namespace", row.container.namespace.clone()),
            ("pod", row.container.pod.clone()),
            ("container", row.container.container.clone()),
            ("UUID", row.gpu.clone()),
            ("gpu", gpu_index(scrape, &row.gpu)),
        ];
        if let Some(bytes) = row.limit_bytes {
            limit.get_or_create(&labels).set(bytes as f64);
        }
        if let Some(bytes) = row.used_bytes {
            used.get_or_create(&labels).set(bytes as f64);
        }
        match row.enforced {
            Enforced::Yes => {
                enforced.get_or_create(&labels).set(1.0);
            }
            Enforced::No => {
                enforced.get_or_create(&labels).set(0.0);
            }
            Enforced::Unknown => {}
        }
    }
}

/// What this node counts for, by the names of KAI's GPU fractioning: KAI's values are the sums over the agents. The number of nodes that are to
/// have a daemon is in none of them, because an agent that does not run serves nothing.
fn add_fractioning_nodes(registry: &mut Registry, scrape: &Scrape) {
    let decided = scrape
        .snapshot
        .enforcement
        .as_ref()
        .filter(|_| scrape.snapshot.confirmed);
    let limits = decided.is_some_and(|decided| decided.tier.limits_memory());
    let broken = !scrape.snapshot.limits.broken.is_empty();
    for (name, help, holds) in [
        (
            "gpu_fractioning_daemon_ready_nodes",
            "1 if the agent of this node has decided how containers are held to their GPU share",
            decided.is_some(),
        ),
        (
            "gpu_fractioning_nodes_ready",
            "1 if the driver of this node limits the GPU memory of containers, and all limits are in force",
            limits && !broken,
        ),
        (
            "gpu_fractioning_nodes_degraded",
            "1 if the driver of this node limits the GPU memory of containers, and a limit is gone or could not be set",
            limits && broken,
        ),
    ] {
        register(registry, name, help)
            .get_or_create(&vec![("node", scrape.node.to_owned())])
            .set(f64::from(u8::from(holds)));
    }
}

/// The memory that pods with a GPU share use, by the names of KAI's GPU fractioning.
fn add_fractioning(registry: &mut Registry, scrape: &Scrape) {
    add_fractioning_nodes(registry, scrape);
    let used = register(
        registry,
        "gpu_fractioning_gpu_memory_used_bytes",
        "GPU memory that the pod uses, by the name of KAI's GPU fractioning",
    );
    let set = |namespace: &str, pod: &str, uid: &str, gpu: &str, bytes: u64| {
        let labels = vec![
            ("namespace", namespace.to_owned()),
            ("pod", pod.to_owned()),
            ("pod_uuid", uid.to_owned()),
            ("gpu_uuid", gpu.to_owned()),
            ("gpu", gpu_index(scrape, gpu)),
        ];
        used.get_or_create(&labels).set(bytes as f64);
    };
    for row in &scrape.limits.rows {
        let pod = &row.container;
        if let Some(bytes) = row.used_bytes {
            set(&pod.namespace, &pod.pod, &pod.uid, &row.gpu, bytes);
        }
    }
    for watched in &scrape.watched.watched {
        let pod = &watched.pod;
        set(&pod.namespace, &pod.name, &pod.uid, &watched.gpu, watched.used.bytes);
    }
}

fn gpu_index(scrape: &Scrape, uuid: &str) -> String {
    let device = scrape.snapshot.inventory.device(uuid);
    device.map_or_else(String::new, |device| device.index.to_string())
}

/// What the agent offers, and whether the driver and the kubelet answer.
fn add_agent_gauges(registry: &mut Registry, scrape: &Scrape) {
    let mut register = |name: &str, help: &str| register(registry, name, help);
    let healthy = register("kai_node_gpu_healthy", "1 if the GPU is offered, 0 if it failed");
    for device in &scrape.snapshot.inventory.devices {
        let failed = scrape.snapshot.failed.iter().any(|(gpu, _)| *gpu == device.uuid);
        let labels = vec![
            ("node", scrape.node.to_owned()),
            ("UUID", device.uuid.clone()),
            ("gpu", device.index.to_string()),
        ];
        healthy.get_or_create(&labels).set(f64::from(u8::from(!failed)));
    }
    let offered = register(
        "kai_node_devices",
        "Devices offered to the kubelet, by resource and health",
    );
    for (resource, offer) in &scrape.snapshot.offers {
        let mut counts: BTreeMap<bool, f64> = BTreeMap::from([(true, 0.0), (false, 0.0)]);
        for device in offer.devices() {
            *counts.entry(device.health == HEALTHY).or_default() += 1.0;
        }
        for (fine, count) in counts {
            let word = if fine { "healthy" } else { "unhealthy" };
            let labels = vec![
                ("node", scrape.node.to_owned()),
                ("health", word.to_owned()),
                ("resource", resource.clone()),
            ];
            offered.get_or_create(&labels).set(count);
        }
    }
    let of_node = vec![("node", scrape.node.to_owned())];
    let up = register("kai_node_driver_up", "1 if the GPU driver answers");
    let works = scrape.snapshot.confirmed && scrape.snapshot.driver_problem.is_none();
    up.get_or_create(&of_node).set(f64::from(u8::from(works)));
    register(
        "kai_node_registrations",
        "Registrations that the kubelet accepted since the start",
    )
    .get_or_create(&of_node)
    .set(scrape.registrations as f64);
    register("kai_build_info", "1, with the version of the program")
        .get_or_create(&vec![("version", kai_cluster::VERSION.to_owned())])
        .set(1.0);
}

/// The labels of the DCGM exporter. For a GPU that several pods hold, the labels name the first pod in alphabetical order.
fn gpu_labels(scrape: &Scrape, device: &Device) -> Labels {
    let holds = |allocation: &&DeviceAllocation| {
        let whole = |uuid: &str| uuid == device.uuid || device.mig_devices.iter().any(|mig| mig.uuid == uuid);
        allocation.device_ids.iter().any(|id| whole(device_uuid(id)))
    };
    let holder = scrape
        .allocations
        .iter()
        .filter(holds)
        .min_by_key(|allocation| (&allocation.namespace, &allocation.pod));
    let mut labels = vec![
        ("gpu", device.index.to_string()),
        ("UUID", device.uuid.clone()),
        ("device", format!("nvidia{}", device.minor.unwrap_or(device.index))),
        ("modelName", device.name.clone()),
        ("Hostname", scrape.node.to_owned()),
    ];
    if let Some(holder) = holder {
        labels.push(("namespace", holder.namespace.clone()));
        labels.push(("pod", holder.pod.clone()));
        labels.push(("container", holder.container.clone()));
    }
    labels
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use kai_api::EnforcementTier;

    use super::*;
    use crate::agent::state::{Input, State};
    use crate::allocator::plan::Policy;
    use crate::enforcement::audit::{LimitRow, LimitsSummary};
    use crate::enforcement::receipt::ContainerName;
    use crate::enforcement::tier::NodeEnforcement;
    use crate::enforcement::watch::{SharePod, UsedMemory, Watched};
    use crate::health::Rules;

    /// Names and labels of the series in the text.
    fn series(text: &str) -> BTreeMap<String, BTreeSet<String>> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let series = lines.filter_map(|line| {
            let (name, rest) = line.split_once('{')?;
            let labels = rest
                .split_once('}')?
                .0
                .split(',')
                .filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
            Some((name.to_owned(), labels.collect()))
        });
        series.collect()
    }

    #[test]
    fn the_metrics_of_gpu_shares_are_those_of_the_operations_page() {
        let row = LimitRow {
            container: ContainerName {
                namespace: "team".to_owned(),
                pod: "half".to_owned(),
                uid: "u".to_owned(),
                container: "main".to_owned(),
            },
            gpu: "GPU-1".to_owned(),
            limit_bytes: Some(8),
            used_bytes: Some(7),
            enforced: Enforced::No,
        };
        let limits = LimitMetrics {
            rows: vec![row],
            failures: BTreeMap::from([("NO_PERMISSION".to_owned(), 2)]),
        };
        let pod = SharePod {
            namespace: "team".to_owned(),
            name: "other".to_owned(),
            uid: "v".to_owned(),
            container: "main".to_owned(),
            share_mib: BTreeMap::new(),
        };
        let watched = WatchReport {
            watched: vec![Watched {
                pod,
                gpu: "GPU-1".to_owned(),
                used: UsedMemory::default(),
                share_bytes: 5,
                exceeded: true,
            }],
            evictions: 0,
        };
        let text = render(&Scrape {
            node: "n1",
            snapshot: &Snapshot::default(),
            samples: &[],
            allocations: &[],
            registrations: 0,
            limits: &limits,
            watched: &watched,
            fractioning: FractioningMetrics::On,
        });
        assert!(
            text.contains("kai_gpu_limit_failures_total{code=\"NO_PERMISSION\"} 2"),
            "{text}"
        );
        let page = include_str!("../../../docs/operations.md");
        let about_shares = |name: &String| {
            ["kai_gpu_", "gpu_fractioning_"]
                .iter()
                .any(|start| name.starts_with(start))
        };
        let served: BTreeMap<_, _> = series(&text)
            .into_iter()
            .filter(|(name, _)| about_shares(name))
            .collect();
        let quoted = |text: &str| {
            text.split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect::<BTreeSet<_>>()
        };
        let rows = page.lines().filter_map(|line| {
            let columns: Vec<&str> = line.split(" | ").collect();
            let name = columns[0].strip_prefix("| `")?.strip_suffix('`')?.to_owned();
            Some((name, quoted(columns.get(2)?)))
        });
        let documented: BTreeMap<_, _> = rows.filter(|(name, _)| about_shares(name)).collect();
        assert_eq!(served, documented);
    }

    #[test]
    fn a_node_counts_as_ready_or_as_degraded_by_the_names_of_kai() {
        let limiting = NodeEnforcement {
            tier: EnforcementTier::Driver,
            ..NodeEnforcement::switched_off()
        };
        let broken = LimitsSummary {
            broken: vec!["team/half: gone".to_owned()],
            ..LimitsSummary::default()
        };
        for (confirmed, enforcement, limits, expected) in [
            (false, None, LimitsSummary::default(), [0, 0, 0]),
            // The last run's decision, before the driver has answered.
            (false, Some(limiting.clone()), LimitsSummary::default(), [0, 0, 0]),
            (
                true,
                Some(NodeEnforcement::switched_off()),
                LimitsSummary::default(),
                [1, 0, 0],
            ),
            (true, Some(limiting.clone()), LimitsSummary::default(), [1, 1, 0]),
            (true, Some(limiting.clone()), broken.clone(), [1, 0, 1]),
            (true, Some(NodeEnforcement::switched_off()), broken, [1, 0, 0]),
        ] {
            let snapshot = Snapshot {
                confirmed,
                enforcement: enforcement.map(Arc::new),
                limits,
                ..Snapshot::default()
            };
            let text = render(&Scrape {
                node: "n1",
                snapshot: &snapshot,
                samples: &[],
                allocations: &[],
                registrations: 0,
                limits: &LimitMetrics::default(),
                watched: &WatchReport::default(),
                fractioning: FractioningMetrics::On,
            });
            let names = ["daemon_ready_nodes", "nodes_ready", "nodes_degraded"];
            for (name, value) in names.into_iter().zip(expected) {
                let line = format!("gpu_fractioning_{name}{{node=\"n1\"}} {value}.0");
                assert!(text.contains(&line), "{line} in {text}");
            }
        }
    }

    #[test]
    fn gauges_have_the_names_that_dashboards_know() {
        let settings = kai_gpu::fake::Settings::of("orin-agx", 1).seeded("n1");
        let driver = kai_gpu::fake::FakeDriver::new(&settings).unwrap();
        let mut state = State::new(Policy::default(), Rules::default(), None);
        state.apply(Input::Listed(Box::new(driver.devices().unwrap())));
        let snapshot = state.snapshot();
        let allocations = [DeviceAllocation {
            namespace: "default".into(),
            pod: "train".into(),
            container: "main".into(),
            resource: "nvidia.com/gpu".into(),
            device_ids: vec![format!("{}::1", snapshot.inventory.devices[0].uuid)],
        }];
        let samples = driver.samples().unwrap();
        let scrape = Scrape {
            node: "n1",
            snapshot: &snapshot,
            samples: &samples,
            allocations: &allocations,
            registrations: 2,
            limits: &LimitMetrics::default(),
            watched: &WatchReport::default(),
            fractioning: FractioningMetrics::Off,
        };
        // The encoder keeps label sets in a hash map: their order is not a promise.
        let text = render(&scrape).replace(kai_cluster::VERSION, "1.2.3");
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        insta::assert_snapshot!(lines.join("\n"));
    }
}
