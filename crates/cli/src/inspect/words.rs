//! Words and cells that several commands show.

use kai_view::{
    Amounts, ClusterView, EnforcementTier, Gpu, GpuAmount, GpuState, GpuUser, List, MissingList, Node, PodGpus,
    PodStatus, Slices, SlicesKind, Time,
};

use crate::draw::{DIM, GREEN, RED, YELLOW, bar_of, bytes, number};
use crate::grid::{Cell, Colour};

/// Shown in place of a value that is not known.
pub(crate) const UNKNOWN: &str = "?";
/// Letters of a GPU's bar.
const BAR_WIDTH: usize = 10;

/// A list that is missing, with its consequence.
pub(crate) fn missing(missing: &MissingList) -> String {
    format!(
        "{} ({}); what depends on them is unknown",
        not_listed(missing),
        missing.message
    )
}

/// Why nothing was tried that would help; `None` if all lists are there.
pub(crate) fn not_tried(view: &ClusterView) -> Option<String> {
    let lists: Vec<String> = view.missing.iter().map(not_listed).collect();
    (!lists.is_empty()).then(|| format!("not tried, since {}", lists.join(", and ")))
}

fn not_listed(missing: &MissingList) -> String {
    let name = match missing.list {
        List::Nodes => "nodes",
        List::Pods => "pods",
        List::Queues => "queues",
        List::PodGroups => "pod groups",
        List::BindRequests => "bind requests",
        List::Topologies => "topologies",
        List::PriorityClasses => "priority classes",
        List::Volumes => "volumes",
        List::ConfigMaps => "ConfigMaps",
    };
    match &missing.only_namespace {
        Some(namespace) => format!("{name} of namespaces other than {namespace} can't be listed"),
        None => format!("{name} can't be listed"),
    }
}

/// `12s`, `5m`, `3h`, `2d` since the time, as kubectl shows ages.
pub(crate) fn age(since: Option<Time>, now: Time) -> String {
    let Some(since) = since else {
        return UNKNOWN.to_owned();
    };
    let seconds = now.millis().saturating_sub(since.millis()).max(0) / 1000;
    match seconds {
        ..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// The time of day in UTC: `12:34:56`.
pub(crate) fn time_of_day(time: Time) -> String {
    let text = time.to_string();
    text.get(11..19).unwrap_or(&text).to_owned()
}

/// A value or the sign of an unknown one.
pub(crate) fn or_unknown<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| value.to_string())
}

/// A bound of a queue.
pub(crate) fn or_unlimited<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "unlimited".to_owned(), |value| value.to_string())
}

/// Milli-cores as cores.
pub(super) fn cores(milli: i64) -> String {
    number(milli as f64 / 1e3)
}

/// The amounts of a queue in words of their unit.
pub(crate) fn texts<T: Copy>(amounts: &Amounts<T>, text: impl Fn(T) -> String) -> Amounts<String> {
    Amounts {
        quota: amounts.quota.map(&text),
        limit: amounts.limit.map(&text),
        fair_share: amounts.fair_share.map(&text),
        used: amounts.used.map(&text),
        requested: amounts.requested.map(&text),
        non_preemptible: amounts.non_preemptible.map(&text),
        borrowed: amounts.borrowed.map(&text),
        reclaimable: amounts.reclaimable.map(&text),
    }
}

/// `2 GPUs`, `50% of a GPU`, `10,000 MiB of 2 GPUs`, `1 x 1g.5gb`.
pub(crate) fn pod_gpus(gpus: &PodGpus) -> String {
    let of = |devices: i64| match devices {
        1 => "a GPU".to_owned(),
        devices => format!("{devices} GPUs"),
    };
    match gpus {
        PodGpus::None => "none".to_owned(),
        PodGpus::Whole { devices: 1 } => "1 GPU".to_owned(),
        PodGpus::Whole { devices } => format!("{devices} GPUs"),
        PodGpus::Share {
            devices,
            percent: Some(percent),
            mib,
        } => {
            let memory = mib.map(|mib| format!(" ({} MiB)", grouped(mib))).unwrap_or_default();
            format!("{percent}% of {}{memory}", of(*devices))
        }
        PodGpus::Share {
            devices,
            percent: None,
            mib,
        } => format!("{} MiB of {}", or_unknown(mib.map(grouped)), of(*devices)),
        PodGpus::Mig { slices } => {
            let words = slices.iter().map(|(name, count)| format!("{count} x {}", short(name)));
            words.collect::<Vec<_>>().join(", ")
        }
    }
}

/// A number with commas between thousands.
pub(super) fn grouped(amount: i64) -> String {
    let digits = amount.unsigned_abs().to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    match amount < 0 {
        true => format!("-{text}"),
        false => text,
    }
}

fn short(resource: &str) -> &str {
    resource.trim_start_matches(kai_api::keys::MIG_PREFIX)
}

/// The bar of a GPU: the part of its memory that pods hold or are promised.
pub(super) fn gpu_bar(gpu: &Gpu, node: &Node) -> Cell {
    let whole = node.gpu_memory_mib.unwrap_or(0);
    match gpu.state {
        GpuState::Idle => bar_of(0, 1, BAR_WIDTH, DIM),
        GpuState::Whole => bar_of(1, 1, BAR_WIDTH, GREEN),
        GpuState::Held => bar_of(1, 1, BAR_WIDTH, YELLOW),
        GpuState::Shared => match gpu.used_mib.filter(|_| whole > 0) {
            Some(used) => bar_of(used, whole, BAR_WIDTH, GREEN),
            None => Cell::coloured("shared", YELLOW),
        },
        GpuState::TimeSliced => Cell::coloured("time-sliced", DIM),
        GpuState::Unhealthy => Cell::coloured("unhealthy", RED),
        GpuState::Unknown => Cell::coloured("unknown", YELLOW),
    }
}

/// `50,000 of 80,000` MiB.
pub(super) fn gpu_memory(gpu: &Gpu, node: &Node) -> String {
    match (gpu.state, gpu.used_mib, node.gpu_memory_mib) {
        (GpuState::Unhealthy | GpuState::TimeSliced, _, _) => String::new(),
        (_, used, whole) => format!(
            "{} of {}",
            or_unknown(used.map(grouped)),
            or_unknown(whole.map(grouped))
        ),
    }
}

/// What [`users`] says about the memory of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UserMemory {
    /// Nothing: a pod has the whole GPU.
    Hidden,
    /// The MiB that count in scheduling.
    Share,
    /// Also the limit that was promised.
    ShareAndLimit,
}

/// The pods of a GPU or of slices.
pub(super) fn users(pods: &[GpuUser], memory: UserMemory) -> String {
    let words = pods.iter().map(|pod| {
        let mut text = format!("{}/{}", pod.namespace, pod.name);
        match pod.mib.filter(|_| memory != UserMemory::Hidden) {
            Some(mib) => text.push_str(&format!(" {}", grouped(mib))),
            None if pod.slices > 1 => text.push_str(&format!(" x{}", pod.slices)),
            None => {}
        }
        let limit = pod.limit_mib.filter(|_| memory == UserMemory::ShareAndLimit);
        if let Some(mib) = limit.and_then(|mib| i64::try_from(mib).ok()) {
            text.push_str(&format!(" limit {}", grouped(mib)));
        }
        match pod.status {
            PodStatus::Running => {}
            other => text.push_str(&format!(" ({})", other.name().to_lowercase())),
        }
        if pod.foreign {
            text.push_str(" (other scheduler)");
        }
        text
    });
    words.collect::<Vec<_>>().join(", ")
}

/// The name of slices, and their bar.
pub(crate) fn slices(slices: &Slices) -> (String, Cell, String) {
    let name = match slices.kind {
        SlicesKind::Mig => short(&slices.resource).to_owned(),
        SlicesKind::Replica => "replicas".to_owned(),
    };
    let bar = match slices.used {
        Some(used) => bar_of(used, slices.allocatable, BAR_WIDTH, GREEN),
        None => Cell::coloured("unknown", YELLOW),
    };
    let count = format!("{} of {}", or_unknown(slices.used), slices.allocatable);
    (name, bar, count)
}

/// What is to be known about a node in a line: model, memory, and what is not as it should be.
pub(super) fn node_notes(node: &Node) -> Cell {
    let mut cell = Cell::default();
    cell.push(
        node.gpu_model.as_deref().unwrap_or(if node.gpus.is_empty() {
            ""
        } else {
            "GPU of unknown model"
        }),
        None,
    );
    let mut note = |text: &str, colour: Option<Colour>| {
        if !cell.is_empty() {
            cell.push(", ", None);
        }
        cell.push(text, colour);
    };
    if node.unified_memory {
        note("unified memory", None);
    }
    if let Some(strategy) = &node.mig_strategy {
        note(&format!("MIG {strategy}"), None);
    }
    match node.gpus_unhealthy {
        Some(0) => {}
        Some(count) => note(&format!("{count} unhealthy"), Some(RED)),
        None if node.gpus.is_empty() => {}
        None => note("health unknown", Some(YELLOW)),
    }
    if !node.ready {
        note("not ready", Some(RED));
    }
    if node.cordoned {
        note("cordoned", Some(YELLOW));
    }
    cell
}

/// The tier of a node with GPUs, in a word.
pub(super) fn tier(node: &Node) -> String {
    match node.gpus.is_empty() && node.slices.is_empty() {
        true => String::new(),
        false => or_unknown(node.gpu_enforcement.tier.map(EnforcementTier::name)),
    }
}

/// Used and allocatable CPU and memory of a node.
pub(super) fn node_usage(node: &Node) -> (String, String) {
    let cpu = format!(
        "{} of {}",
        or_unknown(node.cpu_milli.used.map(cores)),
        cores(node.cpu_milli.allocatable)
    );
    let memory = format!(
        "{} of {}",
        or_unknown(node.memory_bytes.used.map(bytes)),
        bytes(node.memory_bytes.allocatable)
    );
    (cpu, memory)
}

/// GPUs with two decimals at most.
pub(crate) fn gpu_amount(amount: GpuAmount) -> String {
    number(amount.millionths as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let now: Time = "2026-01-10T00:00:00Z".parse().unwrap();
        let check = |since: &str, expect: &str| assert_eq!(age(since.parse().ok(), now), expect);
        check("2026-01-09T23:59:01Z", "59s");
        check("2026-01-09T23:50:00Z", "10m");
        check("2026-01-09T21:00:00Z", "3h");
        check("2026-01-01T00:00:00Z", "9d");
        check("2026-02-01T00:00:00Z", "0s");
        assert_eq!(age(None, now), UNKNOWN);
    }

    #[test]
    fn thousands_are_grouped() {
        let texts = [0, 999, 1_000, 81_559, -1_234_567].map(grouped);
        assert_eq!(texts, ["0", "999", "1,000", "81,559", "-1,234,567"]);
    }
}
