//! `kai all` on a small cluster where nothing happens.

use std::time::Duration;

use crate::kai::Kai;
use crate::kube::Kube;
use crate::table::Table;

const NODES: usize = 10;
/// What a start leaves to do is done by then.
const SETTLED: Duration = Duration::from_secs(10);
/// How long nothing happens.
const IDLE: Duration = Duration::from_secs(30);

pub(crate) async fn run(kube: &Kube, table: &mut Table) -> anyhow::Result<()> {
    kube.clean().await?;
    kube.add_nodes("node", NODES, "h100:8").await?;
    let mut kai = Kai::all(kube.kubeconfig.path(), &[])?;
    kai.ready().await?;
    tokio::time::sleep(SETTLED).await;
    let before = kai.weight()?;
    tokio::time::sleep(IDLE).await;
    let after = kai.weight()?;
    let share = (after.cpu_seconds - before.cpu_seconds) / IDLE.as_secs_f64() * 100.0;
    let what = format!("idle on {NODES} nodes: memory");
    table.row(&what, format!("{:.1} MiB", after.rss_mib), "30 MiB", "");
    let what = format!("idle on {NODES} nodes: processor");
    table.row(&what, format!("{share:.1} % of a core"), "1 %", "");
    kube.clean().await
}
