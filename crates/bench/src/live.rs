//! A cluster that is followed with a person's rights, as `kai ui` and `kai top` do: lists, watches, and for each view a cycle on a copy of the
//! engine. Measured by the page of `kai ui`, whose overview takes the least to render. The figures are reported, not checked.

use std::time::Duration;

use anyhow::{bail, ensure};
use tokio::time::Instant;

use crate::canned_server::CannedServer;
use crate::page::SIZE;
use crate::process::KaiProcess;
use crate::table::Table;

/// Views that are measured.
const VIEWS: usize = 20;
/// Pods that change before each view.
const CHANGES: usize = 20;
/// Longer than the page keeps a view while nothing changes.
const BETWEEN: Duration = Duration::from_secs(1);
/// The longest wait for the first view.
const FIRST_VIEW_MAX: Duration = Duration::from_secs(120);

pub(crate) async fn run(table: &mut Table) -> anyhow::Result<()> {
    let server = CannedServer::serve(SIZE).await?;
    let kubeconfig = server.kubeconfig()?;
    let started = Instant::now();
    let kai = KaiProcess::ui(kubeconfig.path())?;
    let first = loop {
        match kai.get("/") {
            Ok(page) if page.starts_with("HTTP/1.0 200") => break started.elapsed(),
            answer if started.elapsed() > FIRST_VIEW_MAX => bail!("kai ui shows no view: {answer:?}"),
            Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let before = kai.usage()?;
    let mut times = Vec::with_capacity(VIEWS);
    for _ in 0..VIEWS {
        server.change(CHANGES);
        tokio::time::sleep(BETWEEN).await;
        let asked = Instant::now();
        let page = kai.get("/")?;
        times.push(asked.elapsed());
        ensure!(page.starts_with("HTTP/1.0 200"), "kai ui shows no view: {page}");
    }
    times.sort();
    let after = kai.usage()?;
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let cpu = (after.cpu_seconds - before.cpu_seconds) / VIEWS as f64 * 1e3;
    let figure = format!(
        "first view after {:.1} s; then {:.0} ms (median), {:.0} ms (longest) and {cpu:.0} ms of processor time each; {:.0} MiB (highest {:.0})",
        first.as_secs_f64(),
        millis(times[VIEWS / 2]),
        millis(times[VIEWS - 1]),
        after.rss_mib,
        after.peak_mib,
    );
    let what = format!("kai ui, {} pods on {} nodes", SIZE.pods_in_all(), SIZE.nodes());
    table.row(&what, figure, "", "");
    Ok(())
}
