//! `kai ui`: the page of any cluster, on this machine, with the caller's own rights. Writes nothing to the cluster.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;

use kai_page::Source;

use crate::inspect::Origin;
use crate::inspect::live::LiveCluster;
use crate::page::{LiveSource, LoopbackOnly, Page, SchedulerSource};

/// The flags of `kai ui`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Port on the loopback interface; 0 for any that is free.
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Where you may not list pods of all namespaces, those of this one are shown [default: that of the kubeconfig's context].
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    origin: Origin,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let (source, cluster_name) = source(&arguments).await?;
        let page = Page {
            source,
            authorizer: Arc::new(LoopbackOnly),
            story: None,
            cluster_name: cluster_name.clone(),
            forwarder: None,
        };
        let served = page.serve(&format!("127.0.0.1:{}", arguments.port), "--port")?;
        let address = served.address().map(|address| address.to_string()).unwrap_or_default();
        crate::print(&format!(
            "The page of {cluster_name} is at http://{address}/\nCtrl-C ends it.\n"
        ))?;
        tokio::select! {
            ended = served.ended() => Err(anyhow::anyhow!("serving the page ended: {ended:?}")),
            () = crate::roles::stopped() => Ok(ExitCode::SUCCESS),
        }
    })
}

/// Where the page gets the cluster from, and the cluster's name.
async fn source(arguments: &Arguments) -> anyhow::Result<(Arc<dyn Source>, String)> {
    if let Some(scheduler) = arguments.origin.scheduler() {
        // Errors of the connection are told at once; later the page says that it has no view.
        scheduler.view().await?;
        let name = scheduler.to_string();
        return Ok((Arc::new(SchedulerSource(scheduler)), name));
    }
    let namespace = arguments.namespace.as_deref();
    let live = LiveCluster::connect(arguments.origin.connection(), namespace).await?;
    for missing in live.missing() {
        eprintln!("warning: {}", crate::inspect::words::missing(missing));
    }
    let (live, decisions) = live.with_decisions(namespace).await;
    if let Err(error) = decisions {
        eprintln!("warning: decisions are unknown: {error}");
    }
    let name = live.address().to_owned();
    Ok((Arc::new(LiveSource::start(live)), name))
}
