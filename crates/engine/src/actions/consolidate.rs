//! Moves running gangs together so that a pending one finds room; nobody loses its place for good.

use std::cell::Cell;

use crate::cycle::Cycle;
use crate::ids::{GangId, PodId};
use crate::model::{Action, Gpus, PlacementStrategy};
use crate::tables::GpuKind;
use crate::victims::Search;

impl Cycle<'_> {
    pub(crate) fn consolidate(&mut self) {
        // Packing what the placement policy spreads would start a tug of war.
        let spread = [self.config.placement.gpu, self.config.placement.cpu].contains(&PlacementStrategy::Spread);
        if self.config.consolidation_preemptees_max == Some(0) || spread {
            return;
        }
        let known = Cell::new(None);
        self.make_room(
            Action::Consolidation,
            |cycle, _: &Search<'_>, pods: &[PodId]| cycle.has_free_gpus(pods, &known),
            |cycle: &Cycle<'_>, gang: GangId| cycle.ledger.gang(gang).preemptible,
        );
    }

    /// Whether the cluster has enough GPUs and GPU memory free in sum; moving can't make more.
    fn has_free_gpus(&self, pods: &[PodId], known: &Cell<Option<FreeGpus>>) -> bool {
        let stamp = self.ledger.changed_nodes.end();
        let free = known
            .get()
            .filter(|free| free.stamp == stamp)
            .unwrap_or_else(|| self.free_gpus());
        known.set(Some(free));
        let needed: Gpus = pods.iter().map(|pod| self.ledger.shape_of(*pod).gpus_by_count()).sum();
        let needed_mib = pods.iter().map(|pod| match self.ledger.shape_of(*pod).gpu {
            GpuKind::Memory { mib, devices } => mib.saturating_mul(devices),
            GpuKind::None | GpuKind::Whole { .. } | GpuKind::Fraction { .. } | GpuKind::Mig { .. } => 0,
        });
        free.gpus >= needed && free.mib >= needed_mib.fold(0, i64::saturating_add)
    }

    fn free_gpus(&self) -> FreeGpus {
        let mig = |resource| self.resources.mig_gpus(resource);
        let ready = || {
            self.ledger
                .nodes
                .iter()
                .filter(|node| !node.not_ready && !node.unschedulable)
        };
        FreeGpus {
            stamp: self.ledger.changed_nodes.end(),
            gpus: ready().map(|node| node.idle_gpus(mig) + node.releasing_gpus(mig)).sum(),
            mib: ready().map(|node| node.available_memory_mib()).sum(),
        }
    }
}

/// What is free in sum, as of a state of the ledger.
#[derive(Clone, Copy, Debug)]
struct FreeGpus {
    stamp: u64,
    gpus: Gpus,
    mib: i64,
}
