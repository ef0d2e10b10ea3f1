//! Which devices of a node a shared pod gets.

use smallvec::SmallVec;

use crate::ids::{GpuGroupId, NodeId, PodId};
use crate::intern::new_gpu_group_id;
use crate::ledger::Ledger;
use crate::model::PlacementStrategy;
use crate::place::fit::fits;
use crate::tables::{GPU, GpuGroup, GpuGroupIds, When};

/// The devices chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Devices {
    pub(crate) groups: GpuGroupIds,
    /// Some of them have to be left by others first.
    pub(crate) must_wait: bool,
}

/// Chooses devices for a shared pod on a node: those in use by others first when packing, free ones first when
/// spreading. `None` = not enough of them.
pub(crate) fn choose_devices(
    ledger: &Ledger,
    pod: PodId,
    node: NodeId,
    strategy: PlacementStrategy,
    only_promise: bool,
) -> Option<Devices> {
    let (row, shape) = (ledger.node(node), ledger.shape_of(pod));
    let (need, wanted) = (shape.need_mib(row.memory_mib), shape.devices() as usize);
    let mut shared: SmallVec<[&GpuGroup; 16]> = row
        .gpu_groups
        .iter()
        .filter(|group| group.fits_after_release(need, row.memory_mib))
        .collect();
    match strategy {
        PlacementStrategy::Binpack => {
            shared.sort_unstable_by_key(|group| (std::cmp::Reverse(group.used_mib()), group.id))
        }
        PlacementStrategy::Spread => shared.sort_unstable_by_key(|group| (group.used_mib(), group.id)),
    }
    let openable = row
        .shareable_devices(row.free.idle[GPU] + row.free.releasing[GPU], When::AfterRelease)
        .max(0) as usize;
    if shared.len() + openable < wanted {
        return None;
    }
    let from_shared = match strategy {
        PlacementStrategy::Binpack => shared.len().min(wanted),
        PlacementStrategy::Spread => wanted.saturating_sub(openable),
    };
    let fits_now = fits(row, shape, row.free.idle, When::Now).is_ok();
    let joined = &shared[..from_shared];
    let opened = (wanted - from_shared) as i64;
    let opens_now = opened <= row.shareable_devices(row.free.idle[GPU], When::Now);
    let joins_now = joined.iter().all(|group| group.fits_now(need, row.memory_mib));
    let must_wait = !fits_now || !joins_now || (opened > 0 && (only_promise || !opens_now));
    let mut groups: GpuGroupIds = joined.iter().map(|group| group.id).collect();
    let uid = &ledger.pod(pod).uid;
    let mut ordinal = 0;
    while groups.len() < wanted {
        let group = unused_group(uid, &row.name, &mut ordinal, |id| row.gpu_group(id).is_some());
        groups.push(group);
    }
    Some(Devices { groups, must_wait })
}

fn unused_group(uid: &str, node: &str, ordinal: &mut u32, in_use: impl Fn(GpuGroupId) -> bool) -> GpuGroupId {
    loop {
        let group = new_gpu_group_id(uid, node, *ordinal);
        *ordinal += 1;
        if !in_use(group) {
            return group;
        }
    }
}
