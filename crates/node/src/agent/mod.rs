//! Wires the agent together. One task owns the state; the other tasks receive snapshots of it, and each does one thing. A task that fails
//! tries again without disturbing the others.

pub mod args;
pub mod config;
pub mod driver_files;
mod dry_run;
pub mod enforcement;
pub mod files;
pub mod limits_audit;
pub mod plugins;
pub mod report;
pub mod setup_condition;
pub mod state;
pub mod watcher;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use kai_api::EnforcementTier;
use kai_cluster::{Client, Clock, EventRecorder};
use kai_gpu::Driver;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

pub use args::{Args, HostArgs, Settings};
pub use dry_run::dry_run;

use self::driver_files::DriverVolumeUses;
use crate::Error;
use crate::allocator::register::{PluginContext, remove_leftovers};
use crate::driver_files::prepare::DriverFileInjector;
use crate::driver_files::store::CdiDir;
use crate::enforcement::facts::Decider;
use crate::enforcement::mps::MpsService;
use crate::enforcement::tier::{Enforce, NodeEnforcement};
use crate::enforcement::watch::{self as watched, WatchConfig, WatchReport};
use crate::metrics::{self, Sources};
use crate::plugin_config::ConfigStatus;
use crate::reservation_annotator::{self, AllocationHints, AnnotatorConfig};
use crate::share_devices::{self, ShareDevicePreparer};
use config::{ConfigLabel, ConfigReader};
use enforcement::EnforcementTask;
use files::{IntegratedGpuIdentity, LastConfig, LastEnforcement, LastInventory};
use limits_audit::{AuditOutputs, LimitMetrics, LimitsAudit};
use setup_condition::{SetupCheck, SetupPace};
use state::{Input, Snapshot, State};

/// Inputs that wait for the task that owns the state. When the queue is full, the driver's thread waits, so no input is lost.
const INPUTS_QUEUED_MAX: usize = 16;
/// Health changes that wait to be recorded as Kubernetes events. More are dropped: the node condition has the current state.
const EVENTS_QUEUED_MAX: usize = 64;

/// Runs the agent until SIGTERM or SIGINT.
pub fn run(args: Args) -> Result<(), Error> {
    let settings = args.settings()?;
    let opened = kai_gpu::open(open_options(&args, &settings)?)?;
    tracing::info!(driver = %opened.driver.kind(), platform = %opened.detection.platform.kind, "opened the GPU driver");
    // One thread is enough for a few calls a minute, and costs the least memory.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::Start)?;
    runtime.block_on(async {
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(async move {
            crate::signals::terminated().await;
            tracing::info!("stopping");
            stop.send_replace(true);
        });
        tokio::spawn(crate::release_unused_code());
        serve(settings, Arc::from(opened.driver), stopped).await
    });
    // The process must end even if a driver call hangs.
    runtime.shutdown_background();
    Ok(())
}

/// Runs the agent with any driver until `stop` becomes true.
pub async fn serve(settings: Settings, driver: Arc<dyn Driver>, stop: watch::Receiver<bool>) {
    let last = LastInventory::new(&settings.state_dir);
    let last_config = LastConfig::new(&settings.state_dir);
    let mut state = State::new(settings.policy.clone(), settings.rules.clone(), last.load());
    let last_enforcement = LastEnforcement::new(&settings.state_dir);
    state = state.await_enforcement(match settings.enforcement.enforce {
        Enforce::None => Some(NodeEnforcement::switched_off()),
        Enforce::Auto | Enforce::Driver | Enforce::Mps | Enforce::Watch => last_enforcement.load(),
    });
    match &settings.config {
        Some(source) => {
            tracing::info!(source = source.name(), "files configure this node");
            state = state.await_config(last_config.load());
        }
        None => last_config.remove(),
    }
    let (snapshots, seen) = watch::channel(Arc::new(state.snapshot()));
    let (inputs, received) = mpsc::channel(INPUTS_QUEUED_MAX);
    let (events, told) = mpsc::channel(EVENTS_QUEUED_MAX);
    let registrations = Arc::new(AtomicU64::new(0));
    let uses = DriverVolumeUses::load(settings.state_dir.join("volume-uses.json"));

    // The device plugins start first: they serve the last run's inventory until the driver has answered.
    remove_leftovers(&settings.plugin_dir);
    let share_devices = Arc::new(share_device_preparer(&settings));
    let mps = mps_service(&settings, &driver);
    if let Some(mps) = mps.clone() {
        share_devices.set_mps(mps);
    }
    let (files_changed, _watching) = files::watch_directory(&settings.plugin_dir);
    let noted = uses.clone();
    let (hints_sender, hints) = watch::channel(AllocationHints::default());
    let context = PluginContext {
        directory: settings.plugin_dir.clone(),
        files_changed,
        on_allocate: Arc::new(move |ids| noted.allocated(ids)),
        share_devices: share_devices.clone(),
        hints,
        retry_policy: settings.pace.kubelet.clone(),
        stop: stop.clone(),
        registrations: registrations.clone(),
    };
    let plugins = tokio::spawn(plugins::run(context, seen.clone()));

    let mut tasks = JoinSet::new();
    watcher::start(
        driver.clone(),
        settings.pace.probe,
        settings.pace.refresh,
        inputs.clone(),
    );
    let pace = settings.pace.clone();
    let injector = injector(&settings);
    tasks.spawn(driver_files::run(
        injector,
        uses,
        settings.pod_resources_socket.clone(),
        pace,
        seen.clone(),
        inputs.clone(),
    ));
    let (label_sender, label) = watch::channel(match settings.access {
        Some(_) => ConfigLabel::Unknown,
        None => ConfigLabel::Known(None),
    });
    if let Some(source) = settings.config.clone() {
        let reader = ConfigReader {
            source,
            flags: settings.policy.clone(),
            last: last_config,
            refresh: settings.pace.refresh,
        };
        tasks.spawn(reader.run(label, inputs.clone()));
    }
    let (given_up_sender, given_up) = watch::channel(None);
    let (limits_sender, limits) = watch::channel(Arc::new(LimitMetrics::default()));
    let decisions = EnforcementTask {
        decider: Decider::new(settings.enforcement.clone()).with_mps(mps.clone()),
        driver: driver.clone(),
        cdi: CdiDir::new(&settings.cdi_dir),
        last: last_enforcement,
        mps: mps.clone(),
        refresh: settings.pace.refresh,
    };
    tasks.spawn(enforcement::run(decisions, seen.clone(), given_up, inputs.clone()));
    let (watch_sender, watched) = watch::channel(WatchReport::default());
    let limits_tasks = LimitsTasks {
        watch: WatchConfig {
            pod_resources: settings.pod_resources_socket.clone(),
            files: settings.enforcement.processes.clone(),
            grace: settings.watch_grace,
            pace: settings.pace.watch,
            repair: settings.repair,
        },
        driver: driver.clone(),
        watch_report: watch_sender,
        config: LimitsAudit {
            driver: driver.clone(),
            cdi: CdiDir::new(&settings.cdi_dir),
            state_dir: settings.state_dir.clone(),
            host_root: settings.search.roots.host.clone(),
            pod_resources: settings.pod_resources_socket.clone(),
            repair: settings.repair,
            evict_after: settings.pace.evict_after,
            pace: settings.pace.audit,
        },
        outputs: AuditOutputs {
            inputs,
            metrics: limits_sender,
            given_up: given_up_sender,
        },
    };
    if settings.policy.share_devices > 0 {
        let (share_devices, pace) = (share_devices.clone(), settings.pace.refresh);
        tasks.spawn(async move { share_devices.run_cleanup(pace).await });
    }
    tasks.spawn(run_with_cluster(
        settings.clone(),
        share_devices,
        hints_sender,
        label_sender,
        seen.clone(),
        told,
        limits_tasks,
    ));
    let identity = IntegratedGpuIdentity::new(&settings.state_dir, &settings.search.roots);
    tasks.spawn(save_inventories(last, identity, seen.clone()));
    spawn_metrics(&settings, driver, seen, registrations, (limits, watched), &mut tasks).await;
    run_state(state, received, snapshots, events, stop).await;
    // The device plugins close the kubelet's streams before the other tasks are aborted.
    let _ = plugins.await;
    if let Some(mps) = mps {
        mps.stop().await;
    }
    tasks.shutdown().await;
}

/// The multi-process server, where the operator wants one. It is started when the driver has answered.
fn mps_service(settings: &Settings, driver: &Arc<dyn Driver>) -> Option<Arc<MpsService>> {
    let limits = &settings.enforcement;
    match limits.enforce {
        Enforce::Mps => Some(Arc::new(MpsService::new(driver.clone(), limits))),
        Enforce::Auto | Enforce::Driver | Enforce::Watch | Enforce::None => None,
    }
}

/// Creates the preparer of share devices and removes the specs of an earlier run.
fn share_device_preparer(settings: &Settings) -> ShareDevicePreparer {
    // The agent writes the spec of a share device before every start of its container, so old specs are not needed.
    if let Err(error) = CdiDir::new(&settings.cdi_dir).remove_share_devices() {
        tracing::warn!(%error, "could not remove share device specs of an earlier run; each is removed when its device is allocated again");
    }
    ShareDevicePreparer::new(share_devices::prepare::PreparerConfig {
        node: settings.node.clone(),
        reservation_namespace: settings.reservation_namespace.clone(),
        pod_resources: settings.pod_resources_socket.clone(),
        cdi_dir: settings.cdi_dir.clone(),
        state_dir: settings.state_dir.clone(),
        unified: settings.enforcement.unified,
    })
}

/// The tasks about limits, until the agent has reached the API server.
struct LimitsTasks {
    config: LimitsAudit,
    outputs: AuditOutputs,
    watch: WatchConfig,
    driver: Arc<dyn Driver>,
    watch_report: watch::Sender<WatchReport>,
}

impl LimitsTasks {
    /// Runs them until the agent stops.
    async fn run(self, client: Client, snapshots: watch::Receiver<Arc<Snapshot>>) {
        let (tier_sender, tier) = watch::channel(EnforcementTier::None);
        let events = EventRecorder::new(&client, report::FIELD_MANAGER, Clock::System);
        tokio::join!(
            follow_tier(snapshots.clone(), tier_sender),
            watched::run(self.watch, client.clone(), events, self.driver, tier, self.watch_report),
            limits_audit::run(self.config, client, snapshots, self.outputs),
        );
    }
}

/// Passes the node's tier on.
async fn follow_tier(mut snapshots: watch::Receiver<Arc<Snapshot>>, tier: watch::Sender<EnforcementTier>) {
    loop {
        let decided = snapshots
            .borrow_and_update()
            .enforcement
            .as_ref()
            .map(|decided| decided.tier);
        let decided = decided.unwrap_or(EnforcementTier::None);
        tier.send_if_modified(|before| std::mem::replace(before, decided) != decided);
        if snapshots.changed().await.is_err() {
            return;
        }
    }
}

/// Serves the metrics, if an address is set.
async fn spawn_metrics(
    settings: &Settings,
    driver: Arc<dyn Driver>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    registrations: Arc<AtomicU64>,
    (limits, watched): (watch::Receiver<Arc<LimitMetrics>>, watch::Receiver<WatchReport>),
    tasks: &mut JoinSet<()>,
) {
    if let Some(address) = settings.metrics_address.clone() {
        let client = match &settings.access {
            Some(access) => Client::connect(access).await.ok(),
            None => None,
        };
        let sources = Sources {
            authorizer: kai_cluster::MetricsAuthorizer::new(client),
            node: settings.node.clone(),
            driver,
            snapshots,
            pod_resources: settings.pod_resources_socket.clone(),
            registrations,
            limits,
            watched,
            fractioning: settings.fractioning_metrics,
        };
        tasks.spawn(async move {
            if let Err(error) = metrics::serve(&address, sources).await {
                tracing::error!(%error, "metrics are off");
            }
        });
    }
}

/// How to open the driver, with the UUID of the integrated GPU that an earlier run offered.
fn open_options(args: &Args, settings: &Settings) -> Result<kai_gpu::OpenOptions, Error> {
    let options = args.host.open_options(&settings.node)?;
    let integrated_uuid = IntegratedGpuIdentity::new(&settings.state_dir, &options.roots).load();
    Ok(kai_gpu::OpenOptions {
        integrated_uuid,
        ..options
    })
}

/// The injector of this node, from the agent's settings.
pub fn injector(settings: &Settings) -> DriverFileInjector {
    DriverFileInjector {
        mode: settings.mode,
        search: settings.search.clone(),
        cdi_dir: settings.cdi_dir.clone(),
        volume_dir: settings.state_dir.join("driver"),
        fake: settings.fake.clone(),
    }
}

/// Owns the state: applies inputs, logs health changes and publishes a snapshot after each input.
async fn run_state(
    mut state: State,
    mut inputs: mpsc::Receiver<Input>,
    snapshots: watch::Sender<Arc<Snapshot>>,
    events: mpsc::Sender<kai_cluster::NodeEvent>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let input = tokio::select! {
            input = inputs.recv() => input,
            _ = stop.wait_for(|stop| *stop) => None,
        };
        let Some(input) = input else { return };
        for change in state.apply(input) {
            if change.healthy {
                tracing::info!(gpu = change.gpu, reason = change.reason, "a GPU is healthy again");
            } else {
                tracing::warn!(gpu = change.gpu, reason = change.reason, "a GPU is unhealthy");
            }
            let _ = events.try_send(report::event(&change, &snapshots.borrow().inventory));
        }
        let (before, after) = (snapshots.borrow().clone(), Arc::new(state.snapshot()));
        log_changes(&before, &after);
        if let Some(event) = report::config_event(&before, &after) {
            let _ = events.try_send(event);
        }
        snapshots.send_replace(after);
    }
}

/// Logs a new configuration, and new reasons why something is not offered.
fn log_changes(before: &Snapshot, after: &Snapshot) {
    if before.config != after.config {
        match &after.config {
            ConfigStatus::FlagsOnly | ConfigStatus::Pending => {}
            ConfigStatus::Applied(applied) => {
                tracing::info!(
                    source = applied.source,
                    policy = after.policy_summary,
                    "configured the node"
                );
                for warning in &applied.warnings {
                    tracing::warn!(
                        source = applied.source,
                        warning,
                        "a field of the configuration has no effect"
                    );
                }
            }
            ConfigStatus::Rejected { problem } => {
                tracing::warn!(problem, kept = after.policy_summary, "did not use a configuration");
            }
        }
    }
    if before.notes != after.notes {
        for note in &after.notes {
            tracing::warn!(note, "a resource is not offered as configured");
        }
    }
}

/// Runs the tasks that need the API server. Without a cluster the agent still serves the kubelet.
async fn run_with_cluster(
    settings: Settings,
    share_devices: Arc<ShareDevicePreparer>,
    hints: watch::Sender<AllocationHints>,
    label: watch::Sender<ConfigLabel>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    events: mpsc::Receiver<kai_cluster::NodeEvent>,
    limits: LimitsTasks,
) {
    let Some(access) = &settings.access else { return };
    let client = loop {
        match Client::connect(access).await {
            Ok(client) => break client,
            Err(error) => {
                tracing::warn!(%error, "could not reach the API server; no labels, condition, reservations or GPU shares yet")
            }
        }
        tokio::time::sleep(settings.pace.retry).await;
    };
    share_devices.set_client(client.clone());
    let annotator = AnnotatorConfig {
        namespace: settings.reservation_namespace.clone(),
        node: settings.node.clone(),
        pod_resources: settings.pod_resources_socket.clone(),
        pace: settings.pace.reservation,
    };
    let report = report::run(
        client.clone(),
        settings.node.clone(),
        settings.pace.retry,
        snapshots.clone(),
        events,
    );
    let setup = setup_condition::run(
        client.clone(),
        settings.node.clone(),
        SetupCheck::new(settings.search.clone(), settings.mode),
        SetupPace::default(),
        snapshots.clone(),
    );
    let limits = async {
        if settings.policy.share_devices > 0 {
            limits.run(client.clone(), snapshots).await;
        }
    };
    let watch_label = async {
        if settings.config.is_some() {
            config::watch_label(client.clone(), settings.node.clone(), settings.pace.retry, label).await;
        }
    };
    tokio::join!(
        report,
        setup,
        limits,
        watch_label,
        reservation_annotator::run(client.clone(), annotator, hints)
    );
}

/// Saves the inventory for the next start whenever the driver's list changes.
async fn save_inventories(
    last: LastInventory,
    identity: IntegratedGpuIdentity,
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
) {
    let mut kept: Option<Arc<kai_gpu::Inventory>> = None;
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        if snapshot.confirmed && kept.as_ref() != Some(&snapshot.inventory) {
            if let Err(error) = last.save(&snapshot.inventory) {
                tracing::warn!(%error, "the next start will not know the GPUs at once");
            }
            if let Err(error) = identity.save(&snapshot.inventory) {
                tracing::warn!(%error, "the next start may give the integrated GPU another name");
            }
            kept = Some(snapshot.inventory.clone());
        }
        if snapshots.changed().await.is_err() {
            return;
        }
    }
}
