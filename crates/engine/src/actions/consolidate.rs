//! Places preemptible gangs, and elastic pods of semi-preemptible ones, by moving running pods that may be evicted to other nodes. Every
//! victim gets a new node.

use std::cell::Cell;

use crate::cycle::Cycle;
use crate::ids::{GangId, PodId};
use crate::model::{Action, Gpus, PlacementStrategy, Preemptibility};
use crate::tables::GpuKind;
use crate::victims::Search;

impl Cycle<'_> {
    pub(crate) fn consolidate(&mut self) {
        // Consolidation packs pods; with a policy that spreads them, pods would move back and forth.
        let spread = [self.config.placement.gpu, self.config.placement.cpu].contains(&PlacementStrategy::Spread);
        if self.config.consolidation_preemptees_max == Some(0) || spread {
            return;
        }
        let cached = Cell::new(None);
        self.place_with_victims(
            Action::Consolidation,
            |cycle, _: &Search<'_>, pods: &[PodId]| cycle.has_available_gpus(pods, &cached),
            |cycle: &Cycle<'_>, gang: GangId| {
                let row = cycle.ledger.gang(gang);
                match row.preemptibility {
                    Preemptibility::Preemptible => true,
                    // Only elastic pods are left to place.
                    Preemptibility::SemiPreemptible => row.is_satisfied(),
                    Preemptibility::NonPreemptible => false,
                }
            },
        );
    }

    /// Whether the cluster has enough idle and releasing GPUs and GPU memory in sum: moving pods does not change the sum.
    fn has_available_gpus(&self, pods: &[PodId], cached: &Cell<Option<AvailableGpus>>) -> bool {
        let cursor = self.ledger.changed_nodes.end();
        let available = cached
            .get()
            .filter(|available| available.cursor == cursor)
            .unwrap_or_else(|| self.available_gpus());
        cached.set(Some(available));
        let needed: Gpus = pods.iter().map(|pod| self.ledger.shape_of(*pod).gpus_by_count()).sum();
        let needed_mib = pods.iter().map(|pod| match self.ledger.shape_of(*pod).gpu {
            GpuKind::Memory { mib, devices } => mib.saturating_mul(devices),
            GpuKind::None | GpuKind::Whole { .. } | GpuKind::Fraction { .. } | GpuKind::Mig { .. } => 0,
        });
        available.gpus >= needed && available.mib >= needed_mib.fold(0, i64::saturating_add)
    }

    fn available_gpus(&self) -> AvailableGpus {
        let mig = |resource| self.resources.mig_gpus(resource);
        let ready = || {
            self.ledger
                .nodes
                .iter()
                .filter(|node| !node.not_ready && !node.unschedulable)
        };
        AvailableGpus {
            cursor: self.ledger.changed_nodes.end(),
            gpus: ready().map(|node| node.idle_gpus(mig) + node.releasing_gpus(mig)).sum(),
            mib: ready().map(|node| node.available_memory_mib()).sum(),
        }
    }
}

/// Idle and releasing GPUs of all ready nodes. Valid while `cursor` is the end of the ledger's log of changed nodes.
#[derive(Clone, Copy, Debug)]
struct AvailableGpus {
    cursor: u64,
    gpus: Gpus,
    mib: i64,
}
