//! The whole system in numbers: `.ci/bench` with a real API server, or `cargo build --release && cargo run --release -p kai-bench -- cold`
//! for what needs none. `kai` runs as a process of its own, as it is released. What the figures have to be is in docs/performance.md.

mod api_server;
mod bind;
mod canned_server;
mod cold_start;
mod idle;
mod process;
mod soak;
mod table;

use std::time::Duration;

use anyhow::bail;
use clap::Parser;

use table::Table;

/// The whole system in numbers.
#[derive(Debug, Parser)]
struct Arguments {
    /// Which parts: bind, idle and soak on a real API server, cold (and warm cycles) on a canned one. All of them without.
    #[arg(value_parser = PARTS)]
    parts: Vec<String>,
    /// How long to create and delete pods.
    #[arg(long, default_value = "1m", value_parser = duration)]
    soak: Duration,
    /// Nodes of eight GPUs, each of which gets a pod.
    #[arg(long, default_value_t = 500)]
    nodes: usize,
    /// Pods of the canned cluster.
    #[arg(long, default_value_t = 140_000)]
    pods: usize,
}

const PARTS: [&str; 4] = ["bind", "idle", "soak", "cold"];

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut table = Table::default();
    let wanted = |part: &str| arguments.parts.is_empty() || arguments.parts.iter().any(|name| name == part);
    runtime.block_on(async {
        if wanted("cold") {
            cold_start::run(arguments.pods, &mut table).await?;
        }
        let Some(kubeconfig) = std::env::var_os("KAI_E2E_KUBECONFIG") else {
            if !arguments.parts.iter().all(|part| part == "cold") {
                bail!("KAI_E2E_KUBECONFIG does not name an API server; .ci/bench starts one");
            }
            return Ok(());
        };
        let server = api_server::ApiServer::install(kubeconfig.into()).await?;
        if wanted("idle") {
            idle::run(&server, &mut table).await?;
        }
        if wanted("bind") {
            bind::run(&server, arguments.nodes, &mut table).await?;
        }
        if wanted("soak") {
            soak::run(&server, arguments.soak, &mut table).await?;
        }
        Ok(())
    })?;
    println!("\n{table}");
    Ok(())
}

fn duration(text: &str) -> Result<Duration, String> {
    let millis = kai_api::parse_duration(text).map_err(|error| error.to_string())?;
    u64::try_from(millis.0)
        .map(Duration::from_millis)
        .map_err(|_| "it is negative".to_owned())
}
