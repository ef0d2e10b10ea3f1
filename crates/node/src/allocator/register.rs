//! Keeps one resource registered with the kubelet for as long as the agent offers it: serves, registers, and does both again whenever the
//! kubelet restarts, our socket vanishes or the kubelet closes its ListAndWatch stream (it never reconnects by itself). It never gives up.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::offer::Offer;
use super::serve::{OnAllocate, Server};
use super::socket;
use crate::Error;
use crate::kubelet::deviceplugin::registration_client::RegistrationClient;
use crate::kubelet::deviceplugin::{DevicePluginOptions, KUBELET_SOCKET, RegisterRequest, VERSION};
use crate::reservation_annotator::HintsReceiver;
use crate::share_devices::ShareDevicePreparer;

/// Where the kubelet looks for device plugins.
pub const PLUGIN_DIR: &str = "/var/lib/kubelet/device-plugins";
const SOCKET_PREFIX: &str = "kai-";
const SOCKET_SUFFIX: &str = ".sock";

/// Timing of registrations with the kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Pause after the first failed registration; doubles up to `retry_max`.
    pub retry_min: Duration,
    /// Longest pause between registrations.
    pub retry_max: Duration,
    /// How often the sockets are checked without a file event.
    pub poll: Duration,
    /// How long a registered plugin waits for the kubelet's stream before it registers again.
    pub stream_grace: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            retry_min: Duration::from_secs(1),
            retry_max: Duration::from_secs(30),
            poll: Duration::from_secs(10),
            stream_grace: Duration::from_secs(5),
        }
    }
}

/// What a device plugin needs besides its offer. All plugins of the agent share it.
#[derive(Clone)]
pub struct PluginContext {
    /// The kubelet's device plugin directory.
    pub directory: PathBuf,
    /// Changes whenever a file in that directory changes.
    pub files_changed: watch::Receiver<u64>,
    /// Called with the device ids of every allocation of GPUs.
    pub on_allocate: OnAllocate,
    /// Writes the CDI specs of share devices.
    pub share_devices: Arc<ShareDevicePreparer>,
    /// GPUs that reservation pods should get.
    pub hints: HintsReceiver,
    /// Timing of registrations.
    pub retry_policy: RetryPolicy,
    /// Set to true when the agent ends.
    pub stop: watch::Receiver<bool>,
    /// Count of registrations that the kubelet accepted.
    pub registrations: Arc<AtomicU64>,
}

/// Keeps the resource of `offer` registered until the agent stops or the offer's sender is dropped.
pub async fn keep_registered(mut context: PluginContext, offer: watch::Receiver<Arc<Offer>>) {
    let name = offer.borrow().name().to_owned();
    let mut pause = context.retry_policy.retry_min;
    loop {
        if is_finished(&context, &offer) {
            return;
        }
        context.files_changed.mark_unchanged();
        let kubelet = socket_identity(&context.directory);
        match serve_once(&mut context, &offer, &name, kubelet).await {
            Ok(()) => pause = context.retry_policy.retry_min,
            Err(error) => {
                tracing::warn!(resource = name, %error, "could not register with the kubelet; trying again");
                wait_to_retry(&mut context, &offer, pause, kubelet).await;
                pause = (pause * 2).min(context.retry_policy.retry_max);
            }
        }
    }
}

/// Serves and registers; returns when the plugin has to register again.
async fn serve_once(
    context: &mut PluginContext,
    offer: &watch::Receiver<Arc<Offer>>,
    name: &str,
    kubelet: Option<SocketIdentity>,
) -> Result<(), Error> {
    // Serve first: the kubelet dials back while it handles the registration.
    let file = fresh_name(name);
    let server = Server::start(
        &context.directory.join(&file),
        offer.clone(),
        context.on_allocate.clone(),
        context.share_devices.clone(),
        context.hints.clone(),
    )?;
    let options = offer.borrow().options();
    let registered = register(&context.directory, &file, name, options).await;
    if registered.is_ok() {
        context.registrations.fetch_add(1, Ordering::Relaxed);
        tracing::info!(resource = name, socket = file, "registered with the kubelet");
        let why = wait_until_lost(context, offer, &server, kubelet).await;
        tracing::info!(resource = name, why, "closing the device plugin's socket");
    }
    server.stop().await;
    registered
}

/// Waits until the registration is lost, and returns the reason.
async fn wait_until_lost(
    context: &mut PluginContext,
    offer: &watch::Receiver<Arc<Offer>>,
    server: &Server,
    kubelet: Option<SocketIdentity>,
) -> &'static str {
    let mut streams = server.streams();
    let mut offer = offer.clone();
    let mut streamed_last = Instant::now();
    loop {
        if is_finished(context, &offer) {
            return "no longer offered";
        }
        if socket_identity(&context.directory) != kubelet {
            return "the kubelet restarted";
        }
        if !server.socket_exists() {
            return "the socket was removed";
        }
        if server.has_ended() {
            return "the server ended";
        }
        let deadline = if *streams.borrow_and_update() > 0 {
            streamed_last = Instant::now();
            streamed_last + context.retry_policy.poll
        } else if streamed_last.elapsed() >= context.retry_policy.stream_grace {
            return "the kubelet holds no stream";
        } else {
            (streamed_last + context.retry_policy.stream_grace).min(Instant::now() + context.retry_policy.poll)
        };
        tokio::select! {
            Ok(()) = context.files_changed.changed() => {}
            Ok(()) = streams.changed() => {}
            // Only the end of the channel matters here; the ListAndWatch stream reads new offers itself.
            ended = offer.changed() => if ended.is_err() { return "no longer offered" },
            Ok(()) = context.stop.changed() => {}
            () = tokio::time::sleep_until(deadline) => {}
        }
    }
}

/// Waits out the pause, or until the kubelet's socket changes.
async fn wait_to_retry(
    context: &mut PluginContext,
    offer: &watch::Receiver<Arc<Offer>>,
    pause: Duration,
    kubelet: Option<SocketIdentity>,
) {
    let pause = tokio::time::sleep(pause);
    tokio::pin!(pause);
    loop {
        tokio::select! {
            () = &mut pause => return,
            Ok(()) = context.stop.changed() => return,
            // A file watcher that failed never reports a change; the pause still ends.
            Ok(()) = context.files_changed.changed() => if is_finished(context, offer) || socket_identity(&context.directory) != kubelet {
                return;
            },
        }
    }
}

fn is_finished(context: &PluginContext, offer: &watch::Receiver<Arc<Offer>>) -> bool {
    *context.stop.borrow() || offer.has_changed().is_err()
}

async fn register(directory: &Path, file: &str, resource: &str, options: DevicePluginOptions) -> Result<(), Error> {
    let path = directory.join(KUBELET_SOCKET);
    let mut client = RegistrationClient::new(socket::connect(&path).await?);
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: file.to_owned(),
        resource_name: resource.to_owned(),
        options: Some(options),
    };
    client
        .register(request)
        .await
        .map(|_| ())
        .map_err(|status| socket::refusal(&path, &status))
}

/// Distinguishes a kubelet socket from its successor at the same path: device, inode and change time.
type SocketIdentity = (u64, u64, i64, i64);

fn socket_identity(directory: &Path) -> Option<SocketIdentity> {
    let facts = std::fs::metadata(directory.join(KUBELET_SOCKET)).ok()?;
    Some((facts.dev(), facts.ino(), facts.ctime(), facts.ctime_nsec()))
}

/// Every server gets a new socket name: newer kubelets refuse a path that they still believe to be connected.
fn fresh_name(resource: &str) -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let resource: String = resource
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' })
        .collect();
    let serial = COUNTER.fetch_add(1, Ordering::Relaxed);
    let start = jiff::Timestamp::now().as_millisecond();
    format!("{SOCKET_PREFIX}{resource}-{start:x}-{serial}{SOCKET_SUFFIX}")
}

/// Removes sockets that an earlier agent left behind. Other vendors' plugins share the directory, so only files with our prefix are
/// removed.
pub fn remove_leftovers(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let ours = name
            .to_str()
            .is_some_and(|name| name.starts_with(SOCKET_PREFIX) && name.ends_with(SOCKET_SUFFIX));
        if ours {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
