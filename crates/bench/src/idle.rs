//! Memory and CPU time of `kai all` on a small cluster without work.

use std::time::Duration;

use crate::api_server::ApiServer;
use crate::process::KaiProcess;
use crate::table::Table;

const NODES: usize = 10;
/// The time after which the writes of the start are done.
const STARTUP_WRITES_MAX: Duration = Duration::from_secs(10);
/// The measured period.
const IDLE_PERIOD: Duration = Duration::from_secs(30);

pub(crate) async fn run(server: &ApiServer, table: &mut Table) -> anyhow::Result<()> {
    server.clean().await?;
    server.add_nodes("node", NODES, "h100:8").await?;
    let mut kai = KaiProcess::all(server.kubeconfig.path(), &[])?;
    kai.ready().await?;
    tokio::time::sleep(STARTUP_WRITES_MAX).await;
    let before = kai.usage()?;
    tokio::time::sleep(IDLE_PERIOD).await;
    let after = kai.usage()?;
    let share = (after.cpu_seconds - before.cpu_seconds) / IDLE_PERIOD.as_secs_f64() * 100.0;
    let what = format!("idle on {NODES} nodes: memory");
    table.row(&what, format!("{:.1} MiB", after.rss_mib), "30 MiB", "");
    let what = format!("idle on {NODES} nodes: processor");
    table.row(&what, format!("{share:.1} % of a core"), "1 %", "");
    server.clean().await
}
