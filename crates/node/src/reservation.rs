//! `kai resource-reservation`: runs in a reservation pod. On nodes without our agent it finds the one GPU of its pod and annotates the pod
//! with the UUID. Then it sleeps until SIGTERM. It never holds the GPU open.

use kai_cluster::{Client, ClientConfig, PodMeta};
use kai_gpu::Driver;

use crate::Error;
use crate::agent::HostArgs;
use crate::reservation_annotator::ANNOTATION;

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
    /// Only hold the GPU: the node agent writes down which one it is. Needs neither driver nor API.
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
        crate::signals::terminated().await;
        Ok(())
    });
    runtime.shutdown_background();
    done
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
    tracing::info!(namespace, name, "Looking for GPU device id for pod");
    let driver = kai_gpu::open(args.host.open_options(&name)?)?.driver;
    let uuid = the_one_device(driver.as_ref())?;
    client.annotate_pod(&namespace, &pod, ANNOTATION, &uuid).await?;
    tracing::info!(namespace, name, "Pod was updated with GPU device UUID");
    Ok(())
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
    tracing::info!(deviceId = %uuid, "Found GPU device");
    Ok(uuid.clone())
}
