//! The agent: wiring only. One task owns the state; the rest are small loops that get snapshots of it and each do one thing. Each may
//! fail and try again without disturbing the others.

pub mod args;
pub mod driver_files;
mod dry_run;
pub mod files;
pub mod plugins;
pub mod report;
pub mod state;
pub mod watcher;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use kai_cluster::Client;
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
use crate::metrics::{self, Sources};
use crate::reservation_annotator::{self, AllocationHints, AnnotatorConfig};
use crate::share_devices::{self, ShareDevicePreparer};
use files::{IntegratedGpuIdentity, LastInventory};
use state::{Input, Snapshot, State};

/// Inputs that wait for the state's owner. The driver's thread waits when it is full: nothing is lost.
const INPUTS_QUEUED_MAX: usize = 16;
/// Health changes that wait to be told as events; more are dropped, since the condition has the state.
const EVENTS_QUEUED_MAX: usize = 64;

/// By then the kubelet and the cluster know the GPUs, if they answer at all.
const START_TAKES: Duration = Duration::from_secs(20);
/// How long code stays in memory that ran for a rare occasion, such as a driver upgrade.
const RARE_CODE_STAYS: Duration = Duration::from_secs(3600);

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
        tokio::spawn(release_code());
        serve(settings, Arc::from(opened.driver), stopped).await
    });
    // A driver call that hangs must not keep the process from ending.
    runtime.shutdown_background();
    Ok(())
}

/// Runs the agent with any driver until `stop` becomes true.
pub async fn serve(settings: Settings, driver: Arc<dyn Driver>, stop: watch::Receiver<bool>) {
    let last = LastInventory::new(&settings.state_dir);
    let state = State::new(
        settings.policy.clone(),
        settings.shared_policy,
        settings.rules.clone(),
        last.load(),
    );
    let (snapshots, seen) = watch::channel(Arc::new(state.snapshot()));
    let (inputs, received) = mpsc::channel(INPUTS_QUEUED_MAX);
    let (events, told) = mpsc::channel(EVENTS_QUEUED_MAX);
    let registrations = Arc::new(AtomicU64::new(0));
    let uses = DriverVolumeUses::load(settings.state_dir.join("volume-uses.json"));

    // What the kubelet needs comes first: with the last inventory it is served before the driver has answered.
    remove_leftovers(&settings.plugin_dir);
    // Every start of a container prepares its share device anew.
    if let Err(error) = CdiDir::new(&settings.cdi_dir).remove_share_devices() {
        tracing::warn!(%error, "specs of share devices of an earlier run stay until their share devices are handed out again");
    }
    let share_devices = Arc::new(ShareDevicePreparer::new(share_devices::prepare::Place {
        node: settings.node.clone(),
        reservation_namespace: settings.reservation_namespace.clone(),
        pod_resources: settings.pod_resources_socket.clone(),
        cdi_dir: settings.cdi_dir.clone(),
    }));
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
        inputs,
    ));
    if settings.policy.share_devices > 0 {
        let (share_devices, pace) = (share_devices.clone(), settings.pace.refresh);
        tasks.spawn(async move { share_devices.keep_clean(pace).await });
    }
    tasks.spawn(run_with_cluster(
        settings.clone(),
        share_devices,
        hints_sender,
        seen.clone(),
        told,
    ));
    let identity = IntegratedGpuIdentity::new(&settings.state_dir, &settings.search.roots);
    tasks.spawn(save_inventories(last, identity, seen.clone()));
    if let Some(address) = settings.metrics_address.clone() {
        let client = match &settings.access {
            Some(access) => Client::connect(access).await.ok(),
            None => None,
        };
        let sources = Sources {
            gate: kai_cluster::Gate::new(client),
            node: settings.node.clone(),
            driver,
            snapshots: seen,
            pod_resources: settings.pod_resources_socket.clone(),
            registrations,
        };
        tasks.spawn(async move {
            if let Err(error) = metrics::serve(&address, sources).await {
                tracing::error!(%error, "metrics are off");
            }
        });
    }
    run_state(state, received, snapshots, events, stop).await;
    // Close the kubelet's streams in order; the rest has nothing to lose.
    let _ = plugins.await;
    tasks.shutdown().await;
}

/// Keeps in memory what the agent lives on, and not what it started with.
async fn release_code() {
    tokio::time::sleep(START_TAKES).await;
    loop {
        if let Err(error) = kai_gpu::code_pages::release() {
            tracing::debug!(%error, "code that only the start needed stays in memory");
        }
        tokio::time::sleep(RARE_CODE_STAYS).await;
    }
}

/// How to open the driver, with the names that were served before.
fn open_options(args: &Args, settings: &Settings) -> Result<kai_gpu::OpenOptions, Error> {
    let options = args.host.open_options(&settings.node)?;
    let integrated_uuid = IntegratedGpuIdentity::new(&settings.state_dir, &options.roots).load();
    Ok(kai_gpu::OpenOptions {
        integrated_uuid,
        ..options
    })
}

/// How this node injects.
pub fn injector(settings: &Settings) -> DriverFileInjector {
    DriverFileInjector {
        mode: settings.mode,
        search: settings.search.clone(),
        cdi_dir: settings.cdi_dir.clone(),
        volume_dir: settings.state_dir.join("driver"),
        fake: settings.fake.clone().map(|fake| (fake.library, fake.env)),
    }
}

/// Owns the state: takes in what happens, publishes what follows.
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
        snapshots.send_replace(Arc::new(state.snapshot()));
    }
}

/// Everything that needs the cluster. Without one, the kubelet is served all the same.
async fn run_with_cluster(
    settings: Settings,
    share_devices: Arc<ShareDevicePreparer>,
    hints: watch::Sender<AllocationHints>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    events: mpsc::Receiver<kai_cluster::NodeEvent>,
) {
    let Some(access) = &settings.access else { return };
    let client = loop {
        match Client::connect(access).await {
            Ok(client) => break client,
            Err(error) => tracing::warn!(%error, "no labels, condition, reservations or shares yet"),
        }
        tokio::time::sleep(settings.pace.retry).await;
    };
    share_devices.connected(client.clone());
    let config = AnnotatorConfig {
        namespace: settings.reservation_namespace.clone(),
        node: settings.node.clone(),
        pod_resources: settings.pod_resources_socket.clone(),
        pace: settings.pace.reservation,
    };
    let report = report::run(
        client.clone(),
        settings.node.clone(),
        settings.pace.retry,
        snapshots,
        events,
    );
    tokio::join!(report, reservation_annotator::run(client, config, hints));
}

/// Keeps the inventory for the next start, whenever the driver's own list changes.
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
