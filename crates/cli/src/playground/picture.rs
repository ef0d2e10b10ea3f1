//! The cluster as tables for a person: GPUs of each node, pods and why they wait, queues.

use std::collections::BTreeMap;
use std::io::{self, Write};

use comfy_table::Table;
use kai_api::keys;
use kai_engine::model::{GpuRequest, Millis};

use super::screen::Screen;
use super::world::World;

/// Characters of a GPU's bar.
const BAR_WIDTH: usize = 4;
/// The same on a narrow terminal.
const BAR_WIDTH_NARROW: usize = 2;
const NARROW: u16 = 96;
/// GPUs of a node that are drawn.
const BARS_MAX: usize = 8;

pub(super) fn show(world: &World, out: &mut impl Write, screen: Screen) -> io::Result<()> {
    let informers = &world.context.informers;
    let table = |header: &[&str]| table(header, screen.width);
    let bar_width = if screen.width < NARROW {
        BAR_WIDTH_NARROW
    } else {
        BAR_WIDTH
    };
    let mut nodes = table(&["node", "GPU", "GPUs"]);
    for node in informers.nodes().all() {
        let label = |key: &str| node.metadata.labels.text(key).unwrap_or("-").to_owned();
        let name = node.metadata.plain_name();
        let gpus = match slices(world, &node) {
            slices if slices.is_empty() => bars(world, name, bar_width),
            slices => slices,
        };
        nodes.add_row([name.to_owned(), label("nvidia.com/gpu.product"), gpus]);
    }
    let mut pods = table(&["pod", "asks for", "status", "node"]);
    let mut reasons = String::new();
    for pod in informers.pods().all() {
        if world.kubelets.reservation_pods().contains(&pod) {
            continue;
        }
        let condition = pod.condition(kai_api::PodCondition::SCHEDULED);
        let waits = condition.filter(|condition| condition.status == kai_api::ConditionStatus::False);
        let name = pod.metadata.plain_name();
        if let Some(reason) = waits.and_then(|condition| condition.message.as_deref()) {
            let waits = screen.sentence(" ", 1, &format!("{name} waits: {reason}"));
            reasons.push_str(&format!("\n\n{waits}"));
        }
        pods.add_row([
            name.to_owned(),
            ask(&pod),
            format!("{:?}", pod.phase()),
            pod.node_name().unwrap_or("-").to_owned(),
        ]);
    }
    let mut queues = table(&["queue", "parent", "GPUs in use", "GPUs asked for"]);
    for queue in informers.queues().all() {
        let status = queue.status();
        queues.add_row([
            queue.display_name().to_owned(),
            queue.parent().unwrap_or("-").to_owned(),
            gpus(&status.allocated),
            gpus(&status.requested),
        ]);
    }
    writeln!(
        out,
        "\n{}\n\n{}{reasons}\n\n{}",
        lines(&nodes),
        lines(&pods),
        lines(&queues)
    )
}

/// GPUs of a resource list: `2`, `1.75`, `40000 MiB`, `2 + 40000 MiB`. A memory request is no fraction yet: that depends on the GPU that the
/// pod gets.
fn gpus(list: &BTreeMap<String, kai_api::QuantityText>) -> String {
    match amounts(list) {
        (gpus, 0) => hundredths(gpus),
        (0, mib) => format!("{mib} MiB"),
        (gpus, mib) => format!("{} + {mib} MiB", hundredths(gpus)),
    }
}

/// Hundredths of GPUs, and MiB of GPU memory, in a resource list.
pub(super) fn amounts(list: &BTreeMap<String, kai_api::QuantityText>) -> (i64, i64) {
    let amount = |key: &str| {
        let quantity = list
            .get(key)
            .and_then(|text| kai_api::Quantity::parse(text.as_str()).ok());
        quantity.unwrap_or_default()
    };
    let memory = amount(keys::RESOURCE_GPU_MEMORY);
    (amount(keys::RESOURCE_GPU).milli() / 10, memory.units_up())
}

/// `2`, `1.75`.
fn hundredths(amount: i64) -> String {
    match (amount / 100, amount % 100) {
        (whole, 0) => whole.to_string(),
        (whole, part) => format!("{whole}.{part:02}"),
    }
}

/// The lines of a table, without the blanks at their ends.
fn lines(table: &Table) -> String {
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

/// A table of this width; longer cells are wrapped.
fn table(header: &[&str], width: u16) -> Table {
    let mut table = Table::new();
    table
        .load_style(comfy_table::presets::NOTHING)
        .set_content_arrangement(comfy_table::ContentArrangement::Dynamic)
        .set_width(width)
        .set_header(header);
    table
}

fn ask(pod: &kai_api::Pod) -> String {
    let Ok(read) = pod.read(&kai_api::PodIdentity::default(), Millis(0)) else {
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
        GpuRequest::Fraction { fraction, devices } => format!("{}%{}", fraction.percent(), times(devices)),
        GpuRequest::Memory { mib, devices } => format!("{mib} MiB{}", times(devices)),
        GpuRequest::Mig { slices, .. } => slices
            .iter()
            .map(|(name, count)| format!("{count} x {}", name.trim_start_matches("nvidia.com/")))
            .collect::<Vec<_>>()
            .join(", "),
    }
}

/// MIG slices in use, by profile. Empty for a node without MIG.
fn slices(world: &World, node: &kai_api::Node) -> String {
    let name = node.metadata.plain_name();
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    for pod in world
        .context
        .informers
        .pods()
        .all()
        .iter()
        .filter(|pod| pod.node_name() == Some(name))
    {
        let read = pod.read(&kai_api::PodIdentity::default(), Millis(0));
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

/// A bar per physical GPU: the part of its memory that is allocated.
fn bars(world: &World, node: &str, width: usize) -> String {
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    let pods = world.context.informers.pods().all();
    for pod in pods.iter().filter(|pod| pod.node_name() == Some(node)) {
        let (namespace, name) = (pod.metadata.namespace(), pod.metadata.plain_name());
        for uuid in world.kubelets.gpus_of(namespace, name) {
            *used.entry(uuid).or_default() += held_by(world, &pods, pod, node);
        }
    }
    let drawn = world.kubelets.gpus_on(node).into_iter().map(|(uuid, memory)| {
        let promised = used.get(&uuid).copied().unwrap_or(0).min(memory.max(1));
        let filled = (promised * i64::try_from(width).unwrap_or(1) + memory / 2) / memory.max(1);
        let filled = usize::try_from(filled).unwrap_or(0).min(width);
        format!("[{}{}]", "#".repeat(filled), ".".repeat(width - filled))
    });
    drawn.take(BARS_MAX).collect::<Vec<_>>().join(" ")
}

fn memory_of(world: &World, node: &str) -> i64 {
    world.kubelets.gpus_on(node).first().map_or(0, |(_, memory)| *memory)
}

/// MiB of a device that the pod may use; for a reservation pod, those of the pods that share the device.
fn held_by(world: &World, pods: &[std::sync::Arc<kai_api::Pod>], holder: &kai_api::Pod, node: &str) -> i64 {
    let (memory, reservation_pods) = (memory_of(world, node), world.kubelets.reservation_pods());
    let Some(group) = holder
        .metadata
        .labels
        .text(keys::GPU_GROUP)
        .filter(|_| reservation_pods.contains(holder))
    else {
        return memory;
    };
    let sharers = pods
        .iter()
        .filter(|pod| pod.node_name() == Some(node) && !reservation_pods.contains(pod));
    let of_group = sharers.filter(|pod| pod.gpu_groups().contains(&group));
    of_group
        .filter_map(|pod| pod.read(&kai_api::PodIdentity::default(), Millis(0)).ok())
        .map(|read| match read.value.requests.gpu {
            GpuRequest::Fraction { fraction, .. } => fraction.of_mib(memory),
            GpuRequest::Memory { mib, .. } => mib,
            GpuRequest::None | GpuRequest::Whole { .. } | GpuRequest::Mig { .. } => memory,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_is_asked_for_gpu_memory_shows_it() {
        let check = |list: &[(&str, &str)], expect: &str| {
            let list = list.iter().map(|(key, text)| {
                let quantity: kai_api::QuantityText = serde_json::from_value((*text).into()).unwrap();
                ((*key).to_owned(), quantity)
            });
            assert_eq!(gpus(&list.collect()), expect);
        };
        check(&[], "0");
        check(&[("cpu", "1"), ("nvidia.com/gpu", "1500m")], "1.50");
        check(&[("run.ai/gpu.memory", "40000")], "40000 MiB");
        check(
            &[("nvidia.com/gpu", "2"), ("run.ai/gpu.memory", "40000")],
            "2 + 40000 MiB",
        );
    }

    #[test]
    fn a_table_is_no_wider_than_the_screen() {
        let mut table = table(&["pod", "node"], 80);
        table.add_row(["llm-0", &"no node has as much memory as the pod asks for ".repeat(5)]);
        assert!(
            table.to_string().lines().all(|line| line.chars().count() <= 80),
            "{table}"
        );
    }
}
