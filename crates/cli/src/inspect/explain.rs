//! `kai explain`: everything about one object.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use kai_mirror::ExplanationView;
use kai_view::{Amounts, ClusterView, Gang, Node, Pod, PodLimit, Queue};
use kai_yaml::suggestion;
use serde_json::json;

use super::{Format, Origin, block_on, document, gpus, load, pending, queues, words};
use crate::draw::bytes;
use crate::grid::{Align, Cell, Grid, Screen};
use crate::remedies;

/// The flags of `kai explain`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Kind of the object.
    #[arg(value_enum)]
    kind: Kind,
    /// Its name; NAMESPACE/NAME in another namespace. A pod group can also be named by its workload, such as llm for Deployment llm.
    name: String,
    /// Namespace of the object [default: that of the kubeconfig's context].
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    origin: Origin,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// A pod.
    #[value(alias = "pods", alias = "po")]
    Pod,
    /// A gang.
    #[value(alias = "podgroups", alias = "pg", alias = "gang")]
    Podgroup,
    /// A queue.
    #[value(alias = "queues")]
    Queue,
    /// A node.
    #[value(alias = "nodes", alias = "no")]
    Node,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let (namespace, name) = match arguments.name.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (arguments.namespace.as_deref(), arguments.name.as_str()),
    };
    block_on(explain(&arguments, namespace, name))
}

async fn explain(arguments: &Arguments, namespace: Option<&str>, name: &str) -> anyhow::Result<ExitCode> {
    let loaded = load::load(&arguments.origin, namespace).await?;
    let (view, namespace) = (&loaded.view, loaded.namespace.as_str());
    match arguments.kind {
        Kind::Pod => {
            let pods = known(view, view.pods.as_deref(), "pods")?;
            let pod = pods.iter().find(|pod| pod.namespace == namespace && pod.name == name);
            let pod = pod.ok_or_else(|| no_pod(view, pods, namespace, name))?;
            let gang = gang_of(view, pod);
            let remedies = loaded.remedies(pod).await;
            let value = json!({ "pod": pod, "gang": gang, "queue": queue_of(view, gang), "explanation": remedies });
            let value = document(view, value);
            arguments
                .format
                .print(view, &value, |screen| pod_lines(view, pod, remedies.as_ref(), screen))
        }
        Kind::Podgroup => {
            let gangs = known(view, view.gangs.as_deref(), "pod groups")?;
            let gang = find_gang(gangs, namespace, name)?;
            let pods = pods_of(view, gang);
            let waiting = pods.iter().find(|pod| pod.waits());
            let remedies = match waiting {
                Some(pod) => loaded.remedies(pod).await,
                None => None,
            };
            let value = json!({
                "gang": gang, "queue": queue_of(view, Some(gang)), "pods": pods, "explanation": remedies,
            });
            let value = document(view, value);
            arguments.format.print(view, &value, |screen| {
                gang_lines(view, gang, &pods, remedies.as_ref(), screen)
            })
        }
        Kind::Queue => {
            let all = known(view, view.queues.as_deref(), "queues")?;
            let queue = all.iter().find(|queue| queue.name == name);
            let queue = queue.ok_or_else(|| {
                let near = suggestion(name, all.iter().map(|queue| queue.name.as_str()));
                anyhow::anyhow!("there is no queue {name}{near}; `kai queues` lists them")
            })?;
            let gangs = gangs_of(view, queue);
            let value = document(view, json!({ "queue": queue, "gangs": gangs }));
            arguments.format.print(view, &value, |screen| {
                queue_lines(view, queue, gangs.as_deref(), screen)
            })
        }
        Kind::Node => {
            let nodes = known(view, view.nodes.as_deref(), "nodes")?;
            let node = nodes.iter().find(|node| node.name == name);
            let node = node.ok_or_else(|| gpus::no_node(nodes, name))?;
            let pods = pods_on(view, node);
            let value = document(view, json!({ "node": node, "pods": pods }));
            arguments.format.print(view, &value, |screen| {
                node_lines(view, node, &pods, arguments.format.is_wide(), screen)
            })
        }
    }
}

/// Everything about a pod; `None` if the view does not have it.
pub(crate) fn pod(
    view: &ClusterView,
    namespace: &str,
    name: &str,
    remedies: Option<&ExplanationView>,
    screen: Screen,
) -> Option<Vec<String>> {
    let mut pods = view.pods.iter().flatten();
    let pod = pods.find(|pod| pod.namespace == namespace && pod.name == name)?;
    Some(pod_lines(view, pod, remedies, screen))
}

/// Everything about a gang.
pub(crate) fn gang(
    view: &ClusterView,
    namespace: &str,
    pod_group: &str,
    remedies: Option<&ExplanationView>,
    screen: Screen,
) -> Option<Vec<String>> {
    let mut gangs = view.gangs.iter().flatten();
    let gang = gangs.find(|gang| gang.namespace == namespace && gang.pod_group == pod_group)?;
    Some(gang_lines(view, gang, &pods_of(view, gang), remedies, screen))
}

/// Everything about a queue.
pub(crate) fn queue(view: &ClusterView, name: &str, screen: Screen) -> Option<Vec<String>> {
    let queue = view.queues.iter().flatten().find(|queue| queue.name == name)?;
    Some(queue_lines(view, queue, gangs_of(view, queue).as_deref(), screen))
}

/// Everything about a node.
pub(crate) fn node(view: &ClusterView, name: &str, screen: Screen) -> Option<Vec<String>> {
    let node = view.nodes.iter().flatten().find(|node| node.name == name)?;
    Some(node_lines(view, node, &pods_on(view, node), false, screen))
}

/// The list, or an error that says why it is unknown.
fn known<'a, T>(view: &ClusterView, list: Option<&'a [T]>, name: &str) -> anyhow::Result<&'a [T]> {
    list.ok_or_else(|| {
        let reasons: Vec<String> = view.missing.iter().map(words::missing).collect();
        anyhow::anyhow!("{name} are unknown: {}", reasons.join("; "))
    })
}

/// What may have been meant by the name of a pod that does not exist.
fn no_pod(view: &ClusterView, pods: &[Pod], namespace: &str, name: &str) -> anyhow::Error {
    let mut gangs = view.gangs.iter().flatten();
    if let Some(gang) = gangs.find(|gang| gang.namespace == namespace && gang.workload_name == name) {
        let workload = gang.workload();
        return anyhow::anyhow!(
            "there is no pod {name} in namespace {namespace}, but {workload}: `kai explain podgroup {namespace}/{name}` explains it"
        );
    }
    let here = pods.iter().filter(|pod| pod.namespace == namespace);
    let near = suggestion(name, here.map(|pod| pod.name.as_str()));
    anyhow::anyhow!(
        "there is no pod {name} of this scheduler in namespace {namespace}{near}; name another namespace with -n"
    )
}

/// The gang of this pod group or workload.
fn find_gang<'a>(gangs: &'a [Gang], namespace: &str, name: &str) -> anyhow::Result<&'a Gang> {
    let here = || gangs.iter().filter(|gang| gang.namespace == namespace);
    if let Some(gang) = here().find(|gang| gang.pod_group == name) {
        return Ok(gang);
    }
    let named: Vec<&Gang> = here().filter(|gang| gang.workload_name == name).collect();
    match named.as_slice() {
        [gang] => Ok(gang),
        [] => {
            let near = suggestion(name, here().map(|gang| gang.workload_name.as_str()));
            anyhow::bail!(
                "there is no pod group and no workload {name} in namespace {namespace}{near}; name another namespace with -n"
            )
        }
        several => {
            let names: Vec<&str> = several.iter().map(|gang| gang.pod_group.as_str()).collect();
            anyhow::bail!("{name} has several pod groups; name one of them: {}", names.join(", "))
        }
    }
}

fn gang_of<'a>(view: &'a ClusterView, pod: &Pod) -> Option<&'a Gang> {
    let pod_group = pod.pod_group.as_ref()?;
    let mut gangs = view.gangs.iter().flatten();
    gangs.find(|gang| gang.namespace == pod.namespace && gang.pod_group == *pod_group)
}

fn queue_of<'a>(view: &'a ClusterView, gang: Option<&Gang>) -> Option<&'a Queue> {
    let name = &gang?.queue;
    view.queues.iter().flatten().find(|queue| queue.name == *name)
}

fn pods_of<'a>(view: &'a ClusterView, gang: &Gang) -> Vec<&'a Pod> {
    let pods = view.pods.iter().flatten();
    let of_gang = pods.filter(|pod| pod.namespace == gang.namespace && pod.pod_group.as_ref() == Some(&gang.pod_group));
    of_gang.collect()
}

fn pods_on<'a>(view: &'a ClusterView, node: &Node) -> Vec<&'a Pod> {
    let pods = view.pods.iter().flatten();
    pods.filter(|pod| pod.node.as_ref() == Some(&node.name)).collect()
}

/// The gangs of a queue with pods, those that wait first; `None` if they are unknown.
fn gangs_of<'a>(view: &'a ClusterView, queue: &Queue) -> Option<Vec<&'a Gang>> {
    let gangs = view.gangs.as_ref()?.iter();
    let mut gangs: Vec<&Gang> = gangs.filter(|gang| gang.queue == queue.name && gang.pods > 0).collect();
    gangs.sort_by_key(|gang| (gang.position.is_none(), gang.position));
    Some(gangs)
}

/// A table of names and values.
struct Facts(Grid);

impl Facts {
    fn new(kind: &str, name: &str) -> Facts {
        Facts(Grid::new(&[(kind, Align::Left), (name, Align::Left)]))
    }

    fn add(&mut self, name: &str, value: impl Into<Cell>) {
        self.0.row(vec![name.into(), value.into()]);
    }

    fn add_known(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }
}

fn pod_lines(view: &ClusterView, pod: &Pod, remedies: Option<&ExplanationView>, screen: Screen) -> Vec<String> {
    let mut facts = Facts::new("pod", &format!("{}/{}", pod.namespace, pod.name));
    facts.add("status", pod.status.name());
    facts.add_known("reason", pod.reason.as_deref());
    facts.add_known("node", pod.node.as_deref());
    facts.add("GPUs", words::pod_gpus(&pod.gpus));
    let limit = pod.gpu_limit.as_ref().and_then(PodLimit::words);
    facts.add_known("GPU limit", limit.as_deref());
    facts.add("since", words::age(pod.since, view.time));
    let gang = gang_of(view, pod);
    match gang {
        Some(gang) => {
            facts.add("workload", gang.workload());
            facts.add("pod group", gang.pod_group.as_str());
            add_gang(&mut facts, view, gang, remedies);
        }
        None => facts.add("workload", words::UNKNOWN),
    }
    let mut lines = facts.0.lines(screen);
    lines.extend(remedies.into_iter().flat_map(|found| remedies::lines(found, screen)));
    if let Some(queue) = queue_of(view, gang) {
        lines.extend(amounts_lines(queue, screen));
    }
    lines
}

fn add_gang(facts: &mut Facts, view: &ClusterView, gang: &Gang, remedies: Option<&ExplanationView>) {
    facts.add("pods", format!("{} with a place", pending::progress(gang)));
    if gang.waiting > 0 {
        facts.add("waiting since", words::age(gang.waiting_since, view.time));
        match remedies {
            Some(remedies) => remedies::facts(remedies).for_each(|(name, text)| facts.add(name, text.as_ref())),
            None => {
                facts.add("position", position(gang));
                facts.add_known("remedy", words::not_tried(view).as_deref());
            }
        }
    }
    facts.add(
        "priority",
        format!("{}, {}", gang.priority, gang.preemptibility().name()),
    );
    facts.add("queue", gang.queue.as_str());
    for (name, time) in [
        ("last start", gang.last_start),
        ("last eviction", gang.last_eviction),
        ("stale since", gang.stale_since),
    ] {
        if time.is_some() {
            facts.add(name, format!("{} ago", words::age(time, view.time)));
        }
    }
}

fn position(gang: &Gang) -> String {
    gang.position.map_or_else(
        || "none: no cycle tries the gang, or it is unknown".to_owned(),
        |position| format!("{position} of the waiting gangs in its queue"),
    )
}

fn gang_lines(
    view: &ClusterView,
    gang: &Gang,
    pods: &[&Pod],
    remedies: Option<&ExplanationView>,
    screen: Screen,
) -> Vec<String> {
    let name = format!("{}/{}", gang.namespace, gang.workload_name);
    let is_known_by_workload = gang.workload_name != gang.pod_group;
    let mut facts = match is_known_by_workload {
        true => Facts::new("workload", &format!("{} {name}", gang.workload_kind)),
        false => Facts::new("pod group", &name),
    };
    facts.add_known("reason", gang.reason.as_deref());
    if is_known_by_workload {
        facts.add("pod group", gang.pod_group.as_str());
    }
    add_gang(&mut facts, view, gang, remedies);
    let mut lines = facts.0.lines(screen);
    lines.extend(remedies.into_iter().flat_map(|found| remedies::lines(found, screen)));
    if let Some(queue) = queue_of(view, Some(gang)) {
        lines.extend(amounts_lines(queue, screen));
    }
    lines.extend(pods_lines(view, pods, screen));
    lines
}

fn pods_lines(view: &ClusterView, pods: &[&Pod], screen: Screen) -> Vec<String> {
    if pods.is_empty() {
        return Vec::new();
    }
    // A column of its own only where a pod was promised something: narrow terminals need the room.
    let limit = |pod: &Pod| {
        let promised = pod.gpu_limit.as_ref().and_then(|limit| limit.memory_mib);
        promised.and_then(|mib| i64::try_from(mib).ok()).map(words::grouped)
    };
    let has_limits = pods.iter().any(|pod| limit(pod).is_some());
    let mut columns = vec![
        ("POD", Align::Left),
        ("STATUS", Align::Left),
        ("NODE", Align::Left),
        ("GPUS", Align::Left),
        ("SINCE", Align::Right),
    ];
    if has_limits {
        columns.insert(4, ("LIMIT MIB", Align::Right));
    }
    let mut grid = Grid::new(&columns);
    for pod in pods {
        let mut row: Vec<Cell> = vec![
            format!("{}/{}", pod.namespace, pod.name).into(),
            pod.status.name().into(),
            pod.node.as_deref().unwrap_or_default().into(),
            words::pod_gpus(&pod.gpus).into(),
            words::age(pod.since, view.time).into(),
        ];
        if has_limits {
            row.insert(4, limit(pod).unwrap_or_default().into());
        }
        grid.row(row);
    }
    after_blank(grid.lines(screen))
}

fn after_blank(lines: Vec<String>) -> Vec<String> {
    std::iter::once(String::new()).chain(lines).collect()
}

/// The amounts of a queue, a row per resource.
fn amounts_lines(queue: &Queue, screen: Screen) -> Vec<String> {
    let heading = format!("QUEUE {}", queue.name);
    let columns = [
        heading.as_str(),
        "QUOTA",
        "LIMIT",
        "FAIR SHARE",
        "USED",
        "REQUESTED",
        "RECLAIMABLE",
    ];
    let mut at = 0;
    let columns = columns.map(|name| {
        at += 1;
        (name, if at == 1 { Align::Left } else { Align::Right })
    });
    let mut grid = Grid::new(&columns);
    let mut row = |name: &str, amounts: Amounts<String>| {
        grid.row(vec![
            name.into(),
            words::or_unlimited(amounts.quota).into(),
            words::or_unlimited(amounts.limit).into(),
            words::or_unknown(amounts.fair_share).into(),
            words::or_unknown(amounts.used).into(),
            words::or_unknown(amounts.requested).into(),
            words::or_unknown(amounts.reclaimable).into(),
        ]);
    };
    row("GPUs", words::texts(&queue.gpus, words::gpu_amount));
    row("CPU", words::texts(&queue.cpu_milli, words::cores));
    row("memory", words::texts(&queue.memory_bytes, bytes));
    after_blank(grid.lines(screen))
}

fn queue_lines(view: &ClusterView, queue: &Queue, gangs: Option<&[&Gang]>, screen: Screen) -> Vec<String> {
    let mut facts = Facts::new("queue", &queue.name);
    if queue.display_name != queue.name {
        facts.add("display name", queue.display_name.as_str());
    }
    facts.add("parent", queue.parent.as_deref().unwrap_or("none"));
    let children = view
        .queues
        .iter()
        .flatten()
        .filter(|child| child.parent.as_ref() == Some(&queue.name));
    let children: Vec<&str> = children.map(|child| child.name.as_str()).collect();
    if !children.is_empty() {
        facts.add("queues below", children.join(", "));
    }
    facts.add("priority", queue.priority.to_string());
    let over = queues::over_quota(queue);
    match over.is_empty() {
        true => facts.add("over quota", "no"),
        false => facts.add("over quota", over),
    }
    facts.add_known("borrows from", queues::lenders(queue).as_deref());
    let mut lines = facts.0.lines(screen);
    lines.extend(amounts_lines(queue, screen));
    let Some(gangs) = gangs else {
        lines.push("its gangs are unknown: pod groups can't be listed".to_owned());
        return lines;
    };
    if gangs.is_empty() {
        return lines;
    }
    let mut grid = Grid::new(&[
        ("#", Align::Right),
        ("WORKLOAD", Align::Left),
        ("PODS", Align::Left),
        ("PRIORITY", Align::Right),
        ("REASON", Align::Left),
    ]);
    for gang in gangs {
        grid.row(vec![
            gang.position
                .map(|position| position.to_string())
                .unwrap_or_default()
                .into(),
            format!("{} {}/{}", gang.workload_kind, gang.namespace, gang.workload_name).into(),
            pending::progress(gang).into(),
            gang.priority.to_string().into(),
            gang.reason.as_deref().unwrap_or_default().into(),
        ]);
    }
    lines.extend(after_blank(grid.lines(screen)));
    lines
}

fn node_lines(view: &ClusterView, node: &Node, pods: &[&Pod], wide: bool, screen: Screen) -> Vec<String> {
    let mut facts = Facts::new("node", &node.name);
    facts.add(
        "ready",
        match (node.ready, node.reports_readiness()) {
            (true, true) => "yes",
            (true, false) => words::UNKNOWN,
            (false, _) => "no: a condition keeps pods away",
        },
    );
    facts.add("cordoned", if node.cordoned { "yes" } else { "no" });
    let (cpu, memory) = words::node_usage(node);
    facts.add("CPU used", cpu);
    facts.add("memory used", memory);
    if !node.gpus.is_empty() || !node.slices.is_empty() {
        facts.add("GPU model", words::or_unknown(node.gpu_model.as_deref()));
        let unified = if node.unified_memory { " of the node's RAM" } else { "" };
        facts.add(
            "GPU memory",
            format!(
                "{} MiB{unified}",
                words::or_unknown(node.gpu_memory_mib.map(words::grouped))
            ),
        );
        facts.add("GPU limits", node.gpu_enforcement.words());
        facts.add("unhealthy GPUs", words::or_unknown(node.gpus_unhealthy));
    }
    let mut lines = facts.0.lines(screen);
    if !node.gpus.is_empty() || !node.slices.is_empty() {
        let mut grid = gpus::table(wide);
        gpus::rows(&mut grid, node, wide);
        lines.extend(after_blank(grid.lines(screen)));
    }
    lines.extend(pods_lines(view, pods, screen));
    lines
}
