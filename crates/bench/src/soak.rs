//! Pods come, run and go for a long time; the memory of `kai` must not grow.

use std::time::Duration;

use kai_api::{Object, keys};
use kai_cluster::{Deletion, Target};
use kai_embedded::kubelet::{Delays, Kubelets, NodeTemplate};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use crate::api_server::{ApiServer, NAMESPACE, one_gpu_pod};
use crate::process::KaiProcess;
use crate::table::Table;

const NODES: usize = 20;
const PODS_PER_SECOND: u64 = 20;
/// The time from creation to deletion, long enough for the binding and the start.
const POD_LIFETIME: Duration = Duration::from_secs(4);
/// The pause between two samples of the memory.
const SAMPLE_PERIOD: Duration = Duration::from_secs(1);

pub(crate) async fn run(server: &ApiServer, length: Duration, table: &mut Table) -> anyhow::Result<()> {
    server.clean().await?;
    let context = server.context();
    let kubelets = Kubelets::new(&context, Delays::default());
    for at in 0..NODES {
        let template = NodeTemplate::new(&format!("node-{at}"), "h100:8");
        kubelets.add(&template).await.map_err(anyhow::Error::msg)?;
    }
    let mut kubelet_tasks = JoinSet::new();
    let running = kubelets.clone();
    kubelet_tasks.spawn(async move { running.run().await });
    let mut kai = KaiProcess::all(server.kubeconfig.path(), &[])?;
    kai.ready().await?;

    let start = Instant::now();
    let mut ticker = tokio::time::interval(Duration::from_secs(1) / PODS_PER_SECOND as u32);
    // A slow machine does not catch up on missed pods.
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut made, mut ran) = (0_u64, 0_u64);
    let mut pod_tasks: JoinSet<bool> = JoinSet::new();
    let mut memory: Vec<f64> = Vec::new();
    let mut sampled = start;
    while start.elapsed() < length {
        ticker.tick().await;
        let (client, pods) = (server.client.clone(), context.informers.pods().clone());
        let name = format!("soak-{made}");
        made += 1;
        pod_tasks.spawn(async move {
            let body = one_gpu_pod(&name, keys::SCHEDULER_NAME);
            if client.create(&kai_api::Pod::RESOURCE, NAMESPACE, body).await.is_err() {
                return false;
            }
            tokio::time::sleep(POD_LIFETIME).await;
            let pod = pods.get(&kai_api::ObjectKey::new(NAMESPACE, &name));
            let ran = pod.is_some_and(|pod| pod.node_name().is_some());
            let target = Target::of::<kai_api::Pod>(NAMESPACE, &name);
            let deleted = client.delete(target, &Deletion::default()).await;
            ran && deleted.is_ok()
        });
        while let Some(ended) = pod_tasks.try_join_next() {
            ran += u64::from(ended?);
        }
        if sampled.elapsed() >= SAMPLE_PERIOD {
            sampled = Instant::now();
            memory.push(kai.usage()?.rss_mib);
        }
    }
    while let Some(ended) = pod_tasks.join_next().await {
        ran += u64::from(ended?);
    }
    add_rows(table, start.elapsed(), (ran, made), &memory);
    drop(kai);
    drop(kubelet_tasks);
    server.clean().await
}

fn add_rows(table: &mut Table, took: Duration, (ran, made): (u64, u64), memory: &[f64]) {
    let minutes = took.as_secs_f64() / 60.0;
    let figure = format!("{ran} of {made} pods ran, {:.1} a second", made as f64 / minutes / 60.0);
    table.row(&format!("soak of {minutes:.0} min"), figure, "", "");
    let [second, last] = [quarter(memory, 1), quarter(memory, 3)];
    let peak = memory.iter().copied().fold(0.0, f64::max);
    let figure = format!("{second:.1} MiB in the second quarter, {last:.1} in the last, {peak:.1} at most");
    table.row("... memory of `kai all`", figure, "flat", "");
}

/// The mean of one quarter of the samples.
fn quarter(values: &[f64], which: usize) -> f64 {
    let size = (values.len() / 4).max(1);
    let part: Vec<f64> = values.iter().copied().skip(which * size).take(size).collect();
    part.iter().sum::<f64>() / part.len().max(1) as f64
}
