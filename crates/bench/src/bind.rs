//! Pods bound per second on a real API server, compared with the highest rate that the server reaches with bindings alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kai_api::{Object, ObjectKey, keys};
use kai_cluster::{Context, Subscription};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::api_server::{ApiServer, IN_FLIGHT, NAMESPACE, audit_log_len, run_in_parallel, until, writes_since};
use crate::process::KaiProcess;
use crate::table::Table;

/// GPUs per node, each for one pod.
const GPUS_PER_NODE: usize = 8;
/// The longest wait until all pods are bound.
const BIND_ALL_MAX: Duration = Duration::from_secs(300);
/// The scheduler name of pods that no scheduler places.
const NO_SCHEDULER: &str = "nobody";

/// The figures of one run.
struct BindFigures {
    /// Bound pods per second.
    rate: f64,
    /// Writes per pod until all were bound, by verb and resource.
    writes: BTreeMap<String, f64>,
    /// Conditions and events per pod that were still queued then.
    later: f64,
    peak_mib: f64,
    cpu_seconds: f64,
}

pub(crate) async fn run(server: &ApiServer, nodes: usize, table: &mut Table) -> anyhow::Result<()> {
    let pods = nodes * GPUS_PER_NODE;
    server.clean().await?;
    let max_rate = max_bind_rate(server, nodes, pods).await?;
    table.row(
        &format!("bindings alone, {IN_FLIGHT} in flight, {pods} pods"),
        format!("{max_rate:.0} pods/s"),
        "",
        "",
    );
    for mode in ["when-needed", "always"] {
        let (must, aim) = match mode {
            "when-needed" => ("60 %", "80 %"),
            _ => ("", ""),
        };
        server.clean().await?;
        let figures = bind_pending_pods(server, nodes, pods, mode).await?;
        add_rows(
            table,
            &format!("{mode}: {pods} grouped pods wait, kai starts"),
            &figures,
            max_rate,
            (must, aim),
        );
        server.clean().await?;
        let figures = bind_created_pods(server, nodes, pods, mode).await?;
        add_rows(
            table,
            &format!("{mode}: {pods} pods are created, kai runs"),
            &figures,
            max_rate,
            ("", ""),
        );
    }
    server.clean().await
}

fn add_rows(table: &mut Table, what: &str, figures: &BindFigures, max_rate: f64, (must, aim): (&str, &str)) {
    let share = figures.rate / max_rate * 100.0;
    table.row(what, format!("{:.0} pods/s, {share:.0} %", figures.rate), must, aim);
    let sum: f64 = figures.writes.values().sum();
    let kinds: Vec<String> = figures
        .writes
        .iter()
        .filter(|(_, count)| **count >= 0.005)
        .map(|(kind, count)| format!("{kind} {count:.2}"))
        .collect();
    println!("    writes per pod: {}", kinds.join(", "));
    let figure = format!("{sum:.1} when bound, {:.1} later", figures.later);
    table.row("... writes per pod", figure, "", "");
    let figure = format!(
        "{:.0} MiB at most, {:.1} s of processor",
        figures.peak_mib, figures.cpu_seconds
    );
    table.row("... memory of `kai all`", figure, "120 MiB", "60 MiB");
}

/// Pods per second that the server binds without any other work.
async fn max_bind_rate(server: &ApiServer, nodes: usize, pods: usize) -> anyhow::Result<f64> {
    server.add_nodes("node", nodes, "h100:8").await?;
    let context = server.context();
    let bound = BindWatcher::watch(&context, pods).await?;
    server.create_pods("max-rate", pods, NO_SCHEDULER).await?;
    until("the pods to be seen", async || context.informers.pods().len() == pods).await?;
    let all = Arc::new(context.informers.pods().all());
    let client = server.client.clone();
    let start = Instant::now();
    run_in_parallel(pods, move |at| {
        let (client, all) = (client.clone(), Arc::clone(&all));
        async move {
            let (pod, node) = (&all[at], format!("node-{}", at / GPUS_PER_NODE));
            let uid = pod.metadata().uid.as_deref().unwrap_or_default();
            Ok(client.bind(NAMESPACE, pod.metadata.plain_name(), uid, &node).await?)
        }
    })
    .await?;
    let rate = pods as f64 / start.elapsed().as_secs_f64();
    bound.all().await?;
    Ok(rate)
}

/// Pending pods have their pod groups; `kai` starts and binds them. Measures from the first binding to the last.
async fn bind_pending_pods(server: &ApiServer, nodes: usize, pods: usize, mode: &str) -> anyhow::Result<BindFigures> {
    server.add_nodes("node", nodes, "h100:8").await?;
    let context = server.context();
    let bound = BindWatcher::watch(&context, pods).await?;
    // An earlier process of `kai` that schedules no pod creates the groups and registers webhooks and policies.
    let earlier = [
        "--role=scheduler=--scheduler-name=nobody",
        "--role=controllers=--max-concurrent-reconciles=64",
    ];
    let mut earlier = KaiProcess::all(server.kubeconfig.path(), &earlier)?;
    earlier.ready().await?;
    server.create_pods("waiting", pods, keys::SCHEDULER_NAME).await?;
    context.informers.pod_groups().synced().await;
    until("the pods to be grouped", async || {
        let groups = context.informers.pod_groups();
        groups.len() == pods
            && groups.all().iter().all(|group| group.resources_status().is_some())
            && context
                .informers
                .pods()
                .all()
                .iter()
                .all(|pod| pod.pod_group().is_some())
    })
    .await?;
    drop(earlier);
    let before = audit_log_len();
    let kai = KaiProcess::all(server.kubeconfig.path(), &[&bind_requests_flag(mode)])?;
    let (first, last) = bound.all().await?;
    measure(kai, pods, last - first, before)
}

/// Creates pods without groups while `kai` runs. Measures from the first creation to the last binding.
async fn bind_created_pods(server: &ApiServer, nodes: usize, pods: usize, mode: &str) -> anyhow::Result<BindFigures> {
    server.add_nodes("node", nodes, "h100:8").await?;
    let context = server.context();
    let bound = BindWatcher::watch(&context, pods).await?;
    let mut kai = KaiProcess::all(server.kubeconfig.path(), &[&bind_requests_flag(mode)])?;
    kai.ready().await?;
    let before = audit_log_len();
    let start = Instant::now();
    server.create_pods("bare", pods, keys::SCHEDULER_NAME).await?;
    println!(
        "    created at {:.0} pods/s",
        pods as f64 / start.elapsed().as_secs_f64()
    );
    let (_, last) = bound.all().await?;
    measure(kai, pods, last - start, before)
}

fn bind_requests_flag(mode: &str) -> String {
    format!("--role=scheduler=--bind-requests={mode}")
}

fn measure(kai: KaiProcess, pods: usize, took: Duration, before: u64) -> anyhow::Result<BindFigures> {
    let later = kai.metric("kai_status_backlog")?;
    let usage = kai.usage()?;
    let writes = writes_since(before)?.into_iter();
    Ok(BindFigures {
        rate: pods as f64 / took.as_secs_f64(),
        // Without the creations of the benchmark itself.
        writes: writes
            .filter(|(kind, _)| kind != "create pods")
            .map(|(kind, count)| (kind, count as f64 / pods as f64))
            .collect(),
        later: later / pods as f64,
        peak_mib: usage.peak_mib,
        cpu_seconds: usage.cpu_seconds,
    })
}

/// Watches pods until all have a node.
struct BindWatcher {
    pods: Subscription<kai_api::Pod>,
    wake: Arc<Notify>,
    expected: usize,
}

impl BindWatcher {
    async fn watch(context: &Context, expected: usize) -> anyhow::Result<BindWatcher> {
        let wake = Arc::new(Notify::new());
        let pods = context.informers.pods().subscribe(&wake);
        pods.informer().synced().await;
        ensure!(pods.informer().is_empty(), "there are pods already");
        Ok(BindWatcher { pods, wake, expected })
    }

    /// The times at which the first and the last pod were seen bound.
    async fn all(self) -> anyhow::Result<(Instant, Instant)> {
        let mut bound: BTreeSet<ObjectKey> = BTreeSet::new();
        let mut first = None;
        let seen = async {
            while bound.len() < self.expected {
                self.wake.notified().await;
                for (key, pod) in self.pods.take() {
                    if pod.is_some_and(|pod| pod.node_name().is_some()) {
                        bound.insert(key);
                    }
                }
                if !bound.is_empty() {
                    first.get_or_insert_with(Instant::now);
                }
            }
        };
        let seen = tokio::time::timeout(BIND_ALL_MAX, seen).await;
        seen.with_context(|| format!("{} of {} pods were bound", bound.len(), self.expected))?;
        Ok((first.context("there are pods")?, Instant::now()))
    }
}
