//! The cluster as tables for a person: GPUs of each node, pods and why they wait, queues.

use std::collections::BTreeMap;
use std::io::{self, Write};

use api::keys;
use comfy_table::Table;
use engine::model::{GpuRequest, Millis};

use super::world::World;

/// Letters per GPU in a bar.
const BAR_WIDTH: usize = 4;
/// GPUs of a node that are drawn.
const BARS_MAX: usize = 8;

/// Letters per line; longer reasons go on in the next one.
const WIDTH: u16 = 140;

pub(super) fn show(world: &World, out: &mut impl Write) -> io::Result<()> {
    let feeds = &world.context.feeds;
    let mut nodes = table(&["node", "GPU", "GPUs"]);
    for node in feeds.nodes().all() {
        let label = |key: &str| node.metadata.labels.text(key).unwrap_or("-").to_owned();
        let name = node.metadata.plain_name();
        let gpus = match slices(world, &node) {
            slices if slices.is_empty() => bars(world, name),
            slices => slices,
        };
        nodes.add_row([name.to_owned(), label("nvidia.com/gpu.product"), gpus]);
    }
    let mut pods = table(&["pod", "asks for", "status", "node", "why it waits"]);
    for pod in feeds.pods().all() {
        if pod.metadata.namespace() == keys::RESERVATION {
            continue;
        }
        let condition = pod.condition(api::PodCondition::SCHEDULED);
        let waits = condition.filter(|condition| condition.status == api::ConditionStatus::False);
        let reason = waits
            .and_then(|condition| condition.message.as_deref())
            .unwrap_or_default();
        pods.add_row([
            pod.metadata.plain_name().to_owned(),
            ask(&pod),
            format!("{:?}", pod.phase()),
            pod.node_name().unwrap_or("-").to_owned(),
            reason.to_owned(),
        ]);
    }
    let mut queues = table(&["queue", "parent", "GPUs in use", "GPUs asked for"]);
    for queue in feeds.queues().all() {
        let status = queue.status();
        let gpus = |list: &std::collections::BTreeMap<String, api::QuantityText>| {
            let quantity = list
                .get(keys::RESOURCE_GPU)
                .and_then(|text| api::Quantity::parse(text.as_str()).ok());
            quantity.map_or_else(|| "0".to_owned(), |gpus| hundredths(gpus.milli() / 10))
        };
        queues.add_row([
            queue.display_name().to_owned(),
            queue.parent().unwrap_or("-").to_owned(),
            gpus(&status.allocated),
            gpus(&status.requested),
        ]);
    }
    writeln!(out, "\n{nodes}\n\n{pods}\n\n{queues}")
}

/// `2`, `1.75`.
fn hundredths(amount: i64) -> String {
    match (amount / 100, amount % 100) {
        (whole, 0) => whole.to_string(),
        (whole, part) => format!("{whole}.{part:02}"),
    }
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(comfy_table::presets::NOTHING)
        .set_content_arrangement(comfy_table::ContentArrangement::Dynamic)
        .set_width(WIDTH)
        .set_header(header);
    table
}

fn ask(pod: &api::Pod) -> String {
    let Ok(read) = pod.read(&api::PodIdentity::default(), Millis(0)) else {
        return "?".to_owned();
    };
    let times = |devices: i64| {
        if devices > 1 {
            format!(" of {devices} GPUs")
        } else {
            " of a GPU".to_owned()
        }
    };
    match read.value.requests.gpu {
        GpuRequest::None => "no GPU".to_owned(),
        GpuRequest::Whole { devices: 1 } => "1 GPU".to_owned(),
        GpuRequest::Whole { devices } => format!("{devices} GPUs"),
        GpuRequest::Fraction { billionths, devices } => format!("{}%{}", billionths / 10_000_000, times(devices)),
        GpuRequest::Memory { mib, devices } => format!("{mib} MiB{}", times(devices)),
        GpuRequest::Mig { slices, .. } => slices
            .iter()
            .map(|(name, count)| format!("{count} x {}", name.trim_start_matches("nvidia.com/")))
            .collect::<Vec<_>>()
            .join(", "),
    }
}

/// MIG slices in use, by profile. Empty for a node without.
fn slices(world: &World, node: &api::Node) -> String {
    let name = node.metadata.plain_name();
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    for pod in world
        .context
        .feeds
        .pods()
        .all()
        .iter()
        .filter(|pod| pod.node_name() == Some(name))
    {
        let read = pod.read(&api::PodIdentity::default(), Millis(0));
        if let Ok(GpuRequest::Mig { slices, .. }) = read.map(|read| read.value.requests.gpu) {
            slices
                .into_iter()
                .for_each(|(profile, count)| *used.entry(profile).or_default() += count);
        }
    }
    let offered = node.allocatable().into_iter().flat_map(|list| list.iter());
    let profiles = offered.filter(|(resource, _)| resource.starts_with(keys::MIG_PREFIX));
    let words = profiles.map(|(resource, count)| {
        let used = used.get(resource).copied().unwrap_or(0);
        format!(
            "{used} of {count} slices {}",
            resource.trim_start_matches(keys::MIG_PREFIX)
        )
    });
    words.collect::<Vec<_>>().join(", ")
}

/// A bar per physical GPU: how much of its memory is promised.
fn bars(world: &World, node: &str) -> String {
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    let pods = world.context.feeds.pods().all();
    for pod in pods.iter().filter(|pod| pod.node_name() == Some(node)) {
        let (namespace, name) = (pod.metadata.namespace(), pod.metadata.plain_name());
        for uuid in world.kubelets.gpus_of(namespace, name) {
            *used.entry(uuid).or_default() += held_by(&pods, pod, node, memory_of(world, node));
        }
    }
    let drawn = world.kubelets.gpus_on(node).into_iter().map(|(uuid, memory)| {
        let promised = used.get(&uuid).copied().unwrap_or(0).min(memory.max(1));
        let filled = (promised * i64::try_from(BAR_WIDTH).unwrap_or(1) + memory / 2) / memory.max(1);
        let filled = usize::try_from(filled).unwrap_or(0).min(BAR_WIDTH);
        format!("[{}{}]", "#".repeat(filled), ".".repeat(BAR_WIDTH - filled))
    });
    drawn.take(BARS_MAX).collect::<Vec<_>>().join(" ")
}

fn memory_of(world: &World, node: &str) -> i64 {
    world.kubelets.gpus_on(node).first().map_or(0, |(_, memory)| *memory)
}

/// MiB of a device that the pod, or those for whom it reserves the device, may use.
fn held_by(pods: &[std::sync::Arc<api::Pod>], holder: &api::Pod, node: &str, memory: i64) -> i64 {
    let Some(group) = holder
        .metadata
        .labels
        .text(keys::GPU_GROUP)
        .filter(|_| holder.metadata.namespace() == keys::RESERVATION)
    else {
        return memory;
    };
    let sharers = pods
        .iter()
        .filter(|pod| pod.node_name() == Some(node) && pod.metadata.namespace() != keys::RESERVATION);
    let of_group = sharers.filter(|pod| pod.gpu_groups().contains(&group));
    of_group
        .filter_map(|pod| pod.read(&api::PodIdentity::default(), Millis(0)).ok())
        .map(|read| match read.value.requests.gpu {
            GpuRequest::Fraction { billionths, .. } => {
                i64::try_from(i128::from(billionths) * i128::from(memory) / 1_000_000_000).unwrap_or(memory)
            }
            GpuRequest::Memory { mib, .. } => mib,
            GpuRequest::None | GpuRequest::Whole { .. } | GpuRequest::Mig { .. } => memory,
        })
        .sum()
}
