//! `kai resource-reservation`: runs in a reservation pod. On nodes without our agent it finds the one GPU of its pod and annotates the pod
//! with the UUID. On nodes with the agent it logs the GPU that the agent annotated the pod with. Then it sleeps until SIGTERM. It never
//! holds the GPU open.
//!
//! Its log has the lines of KAI's reservation pods, because the instructions of KAI's users look for them.

use std::path::Path;
use std::time::Duration;

use kai_api::keys;
use kai_cluster::{Client, ClientConfig, PodMeta};
use kai_gpu::Driver;

use crate::Error;
use crate::agent::HostArgs;
use crate::reservation_annotator::ANNOTATION;

/// Lines of the log, in KAI's words.
const LOOKING: &str = "Looking for GPU device id for pod";
const FOUND: &str = "Found GPU device";
const UPDATED: &str = "Pod was updated with GPU device UUID";
/// How often the process looks for the agent's annotation. The kubelet updates the file within a second or so.
const ANNOTATION_POLL: Duration = Duration::from_secs(1);

/// Options of the reservation process.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub host: HostArgs,
    /// Name of this pod.
    #[arg(long, env = "POD_NAME")]
    pub pod_name: Option<String>,
    /// Namespace of this pod.
    #[arg(long, env = "POD_NAMESPACE")]
    pub pod_namespace: Option<String>,
    /// Only hold the GPU and log which one it is: the node agent annotates the pod. Needs neither driver nor API.
    #[arg(long)]
    pub sleep: bool,
    /// Kubeconfig to use. Default: those that KUBECONFIG names, ~/.kube/config, or the pod's service account.
    #[arg(long)]
    pub kubeconfig: Option<std::path::PathBuf>,
    /// Address of an API server that wants no credentials.
    #[arg(long, hide = true)]
    pub api_url: Option<String>,
}

/// Annotates the pod, then waits for SIGTERM. An error means exit code 1, so that the kubelet tries again.
pub fn run(args: Args) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::Start)?;
    let done = runtime.block_on(async {
        if !args.sleep {
            annotate(&args).await?;
        }
        tokio::select! {
            () = crate::signals::terminated() => {}
            () = log_annotation(&args, Path::new(keys::RESERVATION_INFO_DIRECTORY)), if args.sleep => {}
        }
        Ok(())
    });
    runtime.shutdown_background();
    done
}

/// Logs the GPU once the agent has annotated the pod with it. Never ends: the pod holds the GPU until it is deleted.
pub async fn log_annotation(args: &Args, directory: &Path) {
    let (name, namespace) = (args.pod_name.as_deref(), args.pod_namespace.as_deref());
    let (name, namespace) = (name.unwrap_or_default(), namespace.unwrap_or_default());
    tracing::info!(namespace, name, "{LOOKING}");
    let file = directory.join(keys::RESERVATION_GPU_FILE);
    loop {
        // A pod of an older binder has no such file; then the agent's log alone names the GPU.
        let uuid = std::fs::read_to_string(&file).unwrap_or_default();
        if !uuid.trim().is_empty() {
            tracing::info!("Found 1 GPU devices");
            tracing::info!(deviceId = uuid.trim(), "{FOUND}");
            tracing::info!(namespace, name, "{UPDATED}");
            return std::future::pending().await;
        }
        tokio::time::sleep(ANNOTATION_POLL).await;
    }
}

/// Finds the pod's GPU and annotates the pod, unless it is annotated already.
pub async fn annotate(args: &Args) -> Result<(), Error> {
    let name = args.pod_name.clone().ok_or(Error::Identity { variable: "POD_NAME" })?;
    let namespace = args.pod_namespace.clone().ok_or(Error::Identity {
        variable: "POD_NAMESPACE",
    })?;
    let access = match (&args.api_url, &args.kubeconfig) {
        (Some(url), _) => ClientConfig::Url(url.clone()),
        (None, Some(path)) => ClientConfig::Kubeconfig(path.clone()),
        (None, None) => ClientConfig::Infer,
    };
    let client = Client::connect(&access).await?;
    let pod: PodMeta = client.pod(&namespace, &name).await?;
    if let Some(uuid) = pod.annotations.get(ANNOTATION).filter(|uuid| !uuid.is_empty()) {
        tracing::info!(namespace, name, device_id = uuid, "Pod already has its GPU device UUID");
        return Ok(());
    }
    tracing::info!(namespace, name, "{LOOKING}");
    let driver = kai_gpu::open(args.host.open_options(&name)?)?.driver;
    let uuid = match the_one_device(driver.as_ref()) {
        Err(Error::NotOneDevice { found: 0 }) => return Err(no_device(args, &name)),
        found => found?,
    };
    client.annotate_pod(&namespace, &pod, ANNOTATION, &uuid).await?;
    tracing::info!(namespace, name, "{UPDATED}");
    Ok(())
}

/// Why the pod sees no device. The kubelet gave it one, so a missing driver is the likely reason; detection alone would not name it.
fn no_device(args: &Args, name: &str) -> Error {
    let mut host = args.host.clone();
    if host.driver == "auto" {
        host.driver = "nvml".to_owned();
    }
    let asked = || the_one_device(kai_gpu::open(host.open_options(name)?)?.driver.as_ref());
    asked().err().unwrap_or(Error::NotOneDevice { found: 0 })
}

/// The UUID of the only visible device.
fn the_one_device(driver: &dyn Driver) -> Result<String, Error> {
    let inventory = driver.devices()?;
    let mut uuids: Vec<String> = Vec::new();
    for device in inventory.devices {
        // A container with a MIG device sees the parent GPU too.
        match &device.mig_devices[..] {
            [mig] => uuids.push(mig.uuid.clone()),
            _ => uuids.push(device.uuid),
        }
    }
    tracing::info!("Found {} GPU devices", uuids.len());
    let [uuid] = &uuids[..] else {
        return Err(Error::NotOneDevice { found: uuids.len() });
    };
    tracing::info!(deviceId = %uuid, "{FOUND}");
    Ok(uuid.clone())
}
