//! Benchmarks of the released program `kai`, which runs as a process of its own. docs/performance.md has the targets.
//!
//! | part | module | API server | measures |
//! |---|---|---|---|
//! | `bind` | `bind` | real | pods bound per second, and writes per pod |
//! | `idle` | `idle` | real | memory and CPU time without work |
//! | `soak` | `soak` | real | memory while pods come and go |
//! | `cold` | `cold_start` | canned | time to ready, memory and cycles on a large cluster |
//! | `page` | `page` | canned | memory, cycles and delays of bindings while people look at the page |
//! | `live` | `live` | canned | views of a cluster that `kai ui` and `kai top` follow with a person's rights |
//!
//! `process` starts and measures `kai`, `api_server` puts load on the real server, `canned_server` serves a generated cluster, and
//! `table` prints the figures. `.ci/bench` starts a real API server and runs all parts. The parts `cold`, `page` and `live` need no server:
//! `cargo build --release && cargo run --release -p kai-bench -- cold`.

mod api_server;
mod bind;
mod canned_server;
mod cold_start;
mod idle;
mod live;
mod page;
mod process;
mod soak;
mod table;

use std::time::Duration;

use anyhow::bail;
use clap::Parser;

use table::Table;

/// Benchmarks of the released program `kai`.
#[derive(Debug, Parser)]
struct Arguments {
    /// The parts to run: bind, idle and soak need a real API server, the others use a canned one. Runs all parts by default.
    #[arg(value_parser = PARTS)]
    parts: Vec<String>,
    /// The duration of the soak test.
    #[arg(long, default_value = "1m", value_parser = duration)]
    soak: Duration,
    /// The number of nodes of the bind test. Each has eight GPUs, and each GPU gets a pod.
    #[arg(long, default_value_t = 500)]
    nodes: usize,
    /// The number of pods of the canned cluster.
    #[arg(long, default_value_t = 140_000)]
    pods: usize,
}

const PARTS: [&str; 6] = ["bind", "idle", "soak", "cold", "page", "live"];
/// Parts that need no API server.
const WITHOUT_SERVER: [&str; 3] = ["cold", "page", "live"];

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut table = Table::default();
    let wanted = |part: &str| arguments.parts.is_empty() || arguments.parts.iter().any(|name| name == part);
    runtime.block_on(async {
        if wanted("cold") {
            cold_start::run(arguments.pods, &mut table).await?;
        }
        if wanted("page") {
            page::run(&mut table).await?;
        }
        if wanted("live") {
            live::run(&mut table).await?;
        }
        let Some(kubeconfig) = std::env::var_os("KAI_E2E_KUBECONFIG") else {
            let needs_server = |part: &String| !WITHOUT_SERVER.contains(&part.as_str());
            if arguments.parts.iter().any(needs_server) {
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
