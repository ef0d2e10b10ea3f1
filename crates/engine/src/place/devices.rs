//! The choice of GPUs on a node for a pod that shares GPUs.

use smallvec::SmallVec;

use crate::fit::fits;
use crate::ids::{GpuGroupId, NodeId, PodId};
use crate::intern::new_gpu_group_id;
use crate::ledger::Ledger;
use crate::model::PlacementStrategy;
use crate::place::NodeScoring;
use crate::tables::{GpuGroup, GpuGroupIds, When};

/// The GPU groups that were chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceChoice {
    pub(crate) gpu_groups: GpuGroupIds,
    /// The pod can't start before other pods have released resources.
    pub(crate) must_wait: bool,
}

/// Chooses GPUs on a node for a pod that shares GPUs: `Binpack` prefers GPUs that other pods share already, `Spread` prefers
/// free ones, `Frag` those by which the node loses least. `None` = the node has not enough of them.
pub(crate) fn choose_devices(
    ledger: &Ledger,
    pod: PodId,
    node: NodeId,
    scoring: &NodeScoring<'_>,
    only_pipeline: bool,
) -> Option<DeviceChoice> {
    let (row, shape) = (ledger.node(node), ledger.shape_of(pod));
    let wanted = shape.devices() as usize;
    let strategy = scoring.strategies.gpu;
    let mut shared: SmallVec<[&GpuGroup; 16]> = row
        .gpu_groups
        .iter()
        .filter(|group| group.fits(shape, row.memory_mib, When::AfterRelease))
        .collect();
    let cheapest = scoring
        .prices_for(strategy)
        .and_then(|prices| prices.cheapest(ledger.node_at(node), shape));
    match strategy {
        PlacementStrategy::Frag if cheapest.is_some() => {}
        PlacementStrategy::Binpack | PlacementStrategy::Frag => {
            shared.sort_unstable_by_key(|group| (std::cmp::Reverse(group.used_mib()), group.id))
        }
        PlacementStrategy::Spread => shared.sort_unstable_by_key(|group| (group.used_mib(), group.id)),
    }
    let free_gpus = row.shareable_devices(When::AfterRelease).max(0) as usize;
    if shared.len() + free_gpus < wanted {
        return None;
    }
    let from_shared = match (strategy, cheapest) {
        (PlacementStrategy::Frag, Some(place)) => {
            shared.retain(|group| place.joined.contains(&group.id));
            shared.len()
        }
        (PlacementStrategy::Binpack | PlacementStrategy::Frag, _) => shared.len().min(wanted),
        (PlacementStrategy::Spread, _) => wanted.saturating_sub(free_gpus),
    };
    let fits_now = fits(row, shape, When::Now).is_ok();
    let joined = &shared[..from_shared];
    let opened = (wanted - from_shared) as i64;
    let opens_now = opened <= row.shareable_devices(When::Now);
    let joins_now = joined.iter().all(|group| group.fits(shape, row.memory_mib, When::Now));
    let must_wait = !fits_now || !joins_now || (opened > 0 && (only_pipeline || !opens_now));
    let mut gpu_groups: GpuGroupIds = joined.iter().map(|group| group.id).collect();
    let uid = &ledger.pod(pod).uid;
    let mut ordinal = 0;
    while gpu_groups.len() < wanted {
        let group = unused_gpu_group(uid, &row.name, &mut ordinal, |id| row.gpu_group(id).is_some());
        gpu_groups.push(group);
    }
    Some(DeviceChoice { gpu_groups, must_wait })
}

/// A new GPU group id that the node does not use yet.
fn unused_gpu_group(uid: &str, node: &str, ordinal: &mut u32, in_use: impl Fn(GpuGroupId) -> bool) -> GpuGroupId {
    loop {
        let group = new_gpu_group_id(uid, node, *ordinal);
        *ordinal += 1;
        if !in_use(group) {
            return group;
        }
    }
}
