//! Nodes from the view of a waiting pod: what is missing on each, who holds it, and the largest request that fits.
//!
//! Reads the cluster itself, so nothing here notes work in its ledger: explanations change no count of steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::cluster::Cluster;
use crate::fit::{fits, fits_empty_node};
use crate::ids::{GangId, NodeId, PodId, ShapeId};
use crate::ledger::Ledger;
use crate::model::{Gpus, MemoryKind, NodeSpec};
use crate::place::static_check;
use crate::reasons::Check;
use crate::remedies::{Claim, Holder, LargestNode, LargestRequest, NearestMiss};
use crate::share::within_deserved;
use crate::tables::{FreeResources, GpuKind, MIB, Node, Shape, When};

/// How many nodes an explanation shows.
const NEAREST_MAX: usize = 5;
/// How many holders it shows for each node.
const HOLDERS_MAX: usize = 4;

/// Nodes that may take pods of the shape, apart from a cordon or a condition.
fn usable<'l>(ledger: &'l Ledger, shape: &'l Shape) -> impl Iterator<Item = (NodeId, &'l Node)> {
    let accepts = |node: &Node| {
        node.present
            && matches!(
                static_check(node, shape),
                Ok(_) | Err(Check::Unschedulable | Check::NotReady)
            )
    };
    let nodes = ledger.nodes.iter().enumerate();
    nodes
        .filter(move |(_, node)| accepts(node))
        .map(|(at, node)| (NodeId::new(at), node))
}

/// The nodes on which the least is missing for a pod of the shape.
pub(super) fn nearest(cluster: &Cluster, gang: GangId, shape: ShapeId) -> Vec<NearestMiss> {
    let ledger = &cluster.ledger;
    let misses = nearest_nodes(cluster, shape, NEAREST_MAX).into_iter();
    misses
        .map(|(id, check, missing)| {
            let node = ledger.node(id);
            let (holders, more_holders) = holders(ledger, gang, node, check);
            NearestMiss {
                node: node.name.clone(),
                check,
                free_gpus: node.whole_units_of(node.free.total().gpus, When::AfterRelease).max(0),
                free_mib: node.memory_known.then(|| free_mib(node)),
                missing,
                holders,
                more_holders,
            }
        })
        .collect()
}

/// The nodes on which the least is missing, with the first check that fails, and what is missing in its unit.
pub(super) fn nearest_nodes(cluster: &Cluster, shape: ShapeId, max: usize) -> Vec<(NodeId, Check, i64)> {
    let ledger = &cluster.ledger;
    let shape = ledger.shape(shape);
    let mut found: Vec<(i64, u32, (NodeId, Check, i64))> = Vec::new();
    for (id, node) in usable(ledger, shape) {
        let check = match fits(node, shape, When::AfterRelease) {
            Err(check) => check,
            Ok(()) if node.unschedulable => Check::Unschedulable,
            Ok(()) if node.not_ready => Check::NotReady,
            // Another pod of the gang may have taken the room, or a rule other than resources keeps the pod away.
            Ok(()) => continue,
        };
        let (missing, of) = missing(node, shape, check);
        // Amounts of different resources are compared by their part of the request.
        let part = missing.saturating_mul(1000) / of.max(1);
        found.push((part, node.rank, (id, check, missing)));
    }
    found.sort_by_key(|(part, rank, _)| (*part, *rank));
    found.into_iter().map(|(_, _, miss)| miss).take(max).collect()
}

/// What is missing on the node by the check, and what the pod asks for.
fn missing(node: &Node, shape: &Shape, check: Check) -> (i64, i64) {
    let free = node.free.total();
    let mib = shape.need_mib(node.memory_mib);
    let (asked, has) = match check {
        Check::Gpus => (
            shape.devices().max(1),
            node.whole_units_of(free.gpus, When::AfterRelease).max(0),
        ),
        Check::GpuMemory => (mib, free_mib(node)),
        Check::GpuTooSmall => (mib, node.memory_mib),
        Check::Cpu => (shape.base.cpu_milli, free.cpu_milli),
        Check::Memory => (shape.base.memory_bytes + node.unified_bytes(shape), free.memory_bytes),
        Check::PodSlots => (1, free.pods),
        Check::Extended => {
            let short = |(resource, amount): &(_, i64)| {
                let has = node.free_extended(*resource, When::AfterRelease);
                (*amount > has).then_some((*amount, has))
            };
            shape.extended.iter().find_map(short).unwrap_or((1, 0))
        }
        Check::Unschedulable
        | Check::NotReady
        | Check::Leaving
        | Check::NodeAffinity
        | Check::Taints
        | Check::HostPorts
        | Check::PodAffinity
        | Check::PodAntiAffinity
        | Check::MigMismatch
        | Check::GpuMemoryUnknown
        | Check::Enforcement
        | Check::ComputeMode
        | Check::SmSharingOnly
        | Check::ComputeModeInUse
        | Check::Fractioning(_)
        | Check::VolumeNodes
        | Check::VolumesToBind
        | Check::Storage
        | Check::ExclusiveClaim
        | Check::AttachLimit
        | Check::QueueBound
        | Check::Domain => (0, 0),
    };
    ((asked - has).max(0), asked)
}

/// MiB that one more pod can get on the GPU with the most free memory.
fn free_mib(node: &Node) -> i64 {
    let when = When::AfterRelease;
    let opened = if node.shareable_devices(when) > 0 {
        node.memory_mib
    } else {
        0
    };
    let groups = node.gpu_groups.iter().filter(|group| group.holds_gpu(when));
    let shared = groups.map(|group| group.available_mib(node.memory_mib, when));
    let mib = shared.chain([opened]).max().unwrap_or(0).max(0);
    match node.memory_kind {
        MemoryKind::Dedicated => mib,
        MemoryKind::Unified => mib.min(node.free.total().memory_bytes.max(0) / MIB),
    }
}

/// The gangs that hold the most on a node, and the number of the others.
fn holders(ledger: &Ledger, gang: GangId, node: &Node, check: Check) -> (Vec<Holder>, u32) {
    // The core of a semi-preemptible gang is a holder of its own.
    let mut cores: BTreeMap<GangId, FxHashSet<PodId>> = BTreeMap::new();
    let mut held: BTreeMap<(GangId, bool), Gpus> = BTreeMap::new();
    for pod in &node.pods {
        let row = ledger.pod(*pod);
        if let Some(holder) = row
            .gang
            .filter(|holder| *holder != gang && row.placement.status.is_active_allocated())
        {
            let is_core = ledger.gang(holder).is_semi_preemptible() && {
                let core_of = || ledger.core_of(holder).into_iter().collect();
                cores.entry(holder).or_insert_with(core_of).contains(pod)
            };
            *held.entry((holder, is_core)).or_default() += ledger.shape(row.shape).accepted(node.memory_mib).gpus;
        }
    }
    if !matches!(check, Check::Cpu | Check::Memory | Check::PodSlots) {
        held.retain(|_, gpus| *gpus > Gpus::ZERO);
    }
    let mut holders: Vec<Holder> = held
        .into_iter()
        .map(|((holder, is_core), gpus)| Holder {
            gang: ledger.gang(holder).key.clone(),
            gpus,
            queue: ledger.symbols.text(ledger.gang(holder).queue_name).to_owned(),
            claim: if is_core {
                Claim::Core
            } else {
                claim(ledger, gang, holder)
            },
        })
        .collect();
    holders.sort_by(|a, b| b.gpus.cmp(&a.gpus).then_with(|| a.gang.cmp(&b.gang)));
    let more = holders.len().saturating_sub(HOLDERS_MAX) as u32;
    holders.truncate(HOLDERS_MAX);
    (holders, more)
}

/// By which rule `holder` could be evicted for `gang`.
fn claim(ledger: &Ledger, gang: GangId, holder: GangId) -> Claim {
    let (gang, holder) = (ledger.gang(gang), ledger.gang(holder));
    if holder.is_non_preemptible() {
        return Claim::NonPreemptible;
    }
    if gang.queue.is_some() && gang.queue == holder.queue {
        return if holder.priority < gang.priority {
            Claim::LowerPriority
        } else {
            Claim::SameQueue
        };
    }
    match holder.queue.map(|queue| ledger.queue(queue)) {
        Some(queue) if within_deserved(queue, queue.allocated) => Claim::WithinQuota,
        Some(_) | None => Claim::OverQuota,
    }
}

/// The largest GPU requests that fit, with the other requests and the constraints of the shape.
pub(super) fn largest(cluster: &Cluster, shape: ShapeId) -> LargestRequest {
    let ledger = &cluster.ledger;
    let shape = ledger.shape(shape);
    let mut largest = LargestRequest::default();
    let best = |best: &mut Option<(i64, Arc<str>)>, amount: i64, node: &Node| {
        let better = best
            .as_ref()
            .is_none_or(|(known, name)| amount > *known || (amount == *known && node.name < *name));
        if amount > 0 && better {
            *best = Some((amount, node.name.clone()));
        }
    };
    let whole = with_gpus(shape, GpuKind::Whole { devices: 1 });
    for (_, node) in usable(ledger, &whole) {
        let devices = node.whole_units_of(node.free.total().gpus, When::AfterRelease);
        if accepts(node, &with_gpus(shape, GpuKind::Whole { devices })) {
            best(&mut largest.whole, devices, node);
        }
    }
    let share = with_gpus(shape, GpuKind::Memory { mib: 1, devices: 1 });
    for (_, node) in usable(ledger, &share) {
        // On a node with unified memory, the RAM that the pod requests counts as well.
        let ram = match node.memory_kind {
            MemoryKind::Dedicated => i64::MAX,
            MemoryKind::Unified => (node.free.total().memory_bytes - shape.base.memory_bytes).max(0) / MIB,
        };
        let mib = free_mib(node).min(ram);
        if accepts(node, &with_gpus(shape, GpuKind::Memory { mib, devices: 1 })) {
            best(&mut largest.mib, mib, node);
        }
    }
    largest
}

fn accepts(node: &Node, shape: &Shape) -> bool {
    static_check(node, shape).is_ok() && fits(node, shape, When::AfterRelease).is_ok()
}

/// The shape with another GPU request.
fn with_gpus(shape: &Shape, gpu: GpuKind) -> Shape {
    let of_gpus = Shape::of_gpus(gpu, shape.constraints.share);
    let mut base = shape.base;
    base.gpus = of_gpus.base.gpus;
    Shape {
        base,
        constraints: shape.constraints.clone(),
        extended: Vec::new(),
        ..of_gpus
    }
}

/// Nodes that could take a pod of the shape if they were empty, schedulable and ready.
pub(super) fn large_enough(cluster: &Cluster, shape: ShapeId) -> Vec<NodeId> {
    let ledger = &cluster.ledger;
    let shape = ledger.shape(shape);
    let fits_empty = |node: &Node| fits_empty_node(node, shape) && fits(&emptied(node), shape, When::Now).is_ok();
    let mut nodes: Vec<(u32, NodeId)> = usable(ledger, shape)
        .filter(|(_, node)| fits_empty(node))
        .map(|(id, node)| (node.rank, id))
        .collect();
    nodes.sort_unstable();
    nodes.into_iter().map(|(_, id)| id).collect()
}

fn emptied(node: &Node) -> Node {
    let mut empty = node.clone();
    empty.free = FreeResources {
        idle: node.allocatable,
        ..FreeResources::default()
    };
    empty.gpu_groups.clear();
    empty.pods.clear();
    empty.legacy_mig_pods = 0;
    for extended in &mut empty.extended {
        (extended.idle, extended.releasing) = (extended.allocatable, 0);
    }
    empty
}

/// The node with the most GPUs, then the most GPU memory, of those that a pod of the shape may use.
pub(super) fn largest_node(cluster: &Cluster, shape: ShapeId) -> Option<LargestNode> {
    let ledger = &cluster.ledger;
    let size = |node: &Node| (node.allocatable.gpus, node.memory_known.then_some(node.memory_mib));
    let nodes = usable(ledger, ledger.shape(shape)).map(|(_, node)| node);
    let largest = nodes.max_by(|a, b| size(a).cmp(&size(b)).then_with(|| b.name.cmp(&a.name)))?;
    Some(LargestNode {
        node: largest.name.clone(),
        gpus: largest.allocatable.gpus,
        gpu_memory_mib: largest.memory_known.then_some(largest.memory_mib),
    })
}

/// One node of each kind that could take a pod of the shape if it were empty, those with the fewest GPUs first.
pub(super) fn templates(cluster: &Cluster, shape: ShapeId, max: usize) -> Vec<Arc<str>> {
    let kind = |spec: &NodeSpec| (spec.gpus, spec.gpu_memory_mib, spec.cpu_milli, spec.memory_bytes);
    let mut kinds = BTreeMap::new();
    for id in large_enough(cluster, shape) {
        let node = cluster.ledger.node(id);
        if let Some(spec) = cluster.node_specs[id.index()]
            .as_ref()
            .filter(|_| !node.unschedulable && !node.not_ready)
        {
            kinds.entry(kind(spec)).or_insert_with(|| node.name.clone());
        }
    }
    kinds.into_values().take(max).collect()
}
