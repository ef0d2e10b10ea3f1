//! `kai all` on a large canned cluster: the time until it is ready, its memory, and the cost of a thousand changes.

use std::time::Duration;

use crate::canned_server::{CannedServer, Size};
use crate::process::KaiProcess;
use crate::table::Table;

const PODS_PER_NODE: usize = 35;
/// Changed pods per burst.
const CHANGES: usize = 1_000;
/// The number of bursts.
const BURSTS: u32 = 10;
/// The pause between two bursts. The work of a burst is done by then.
const PAUSE: Duration = Duration::from_secs(1);
/// The time after which the writes of the start are done.
const STARTUP_WRITES_MAX: Duration = Duration::from_secs(5);

pub(crate) async fn run(pods: usize, table: &mut Table) -> anyhow::Result<()> {
    let size = Size {
        pods,
        pods_per_node: PODS_PER_NODE,
        waiting_gangs: 0,
        slots: 0,
    };
    let server = CannedServer::serve(size).await?;
    let kubeconfig = server.kubeconfig()?;
    // The canned server calls no webhooks, and the lists of the audit would disturb the bursts.
    let flags = [
        "--no-admission",
        "--plugin-server-port=0",
        "--role=scheduler=--audit-period=0s",
    ];
    let mut kai = KaiProcess::start("all", kubeconfig.path(), &flags)?;
    let cold = kai.ready().await?;
    let start = kai.usage()?;
    let shape = format!("{} nodes, {pods} pods", size.nodes());
    let mib = server.bytes() / (1 << 20);
    let figure = format!(
        "{:.1} s, {:.1} s of processor, {mib} MiB of lists",
        cold.as_secs_f64(),
        start.cpu_seconds
    );
    table.row(&format!("cold start, {shape}"), figure, "10 s", "3 s");

    tokio::time::sleep(STARTUP_WRITES_MAX).await;
    let before = kai.usage()?;
    let (mut cycles, mut take_in) = (Vec::new(), Vec::new());
    for _ in 0..BURSTS {
        let spent = || -> anyhow::Result<(f64, f64)> {
            let millis = |name: &str| kai.metric(name).map(|seconds| seconds * 1e3);
            Ok((
                millis("kai_cycle_duration_seconds_sum")?,
                millis("kai_take_in_duration_seconds_sum")?,
            ))
        };
        let earlier = spent()?;
        server.change(CHANGES);
        tokio::time::sleep(PAUSE).await;
        let now = spent()?;
        cycles.push(now.0 - earlier.0);
        take_in.push(now.1 - earlier.1);
    }
    let after = kai.usage()?;
    let changes = format!("... {CHANGES} changes, all cycles");
    table.row(&changes, spread(cycles), "10 ms", "1 ms");
    let changes = "... taking them in, in cycles and between them";
    table.row(changes, spread(take_in), "", "");
    let cpu = (after.cpu_seconds - before.cpu_seconds) / f64::from(BURSTS) * 1e3;
    let figure = format!("{cpu:.0} ms of processor");
    table.row("... with reading and all other roles", figure, "", "");
    let figure = format!("{:.0} MiB, {:.0} at most", after.rss_mib, after.peak_mib);
    table.row("... memory of `kai all`", figure, "400 MiB", "");
    println!("    {} writes", server.writes());
    Ok(())
}

fn spread(mut millis: Vec<f64>) -> String {
    millis.sort_by(f64::total_cmp);
    let (best, median) = (millis[0], millis[millis.len() / 2]);
    format!("{median:.1} ms ({best:.1} at best)")
}
