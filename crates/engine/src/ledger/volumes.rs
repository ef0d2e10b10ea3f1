//! The volumes that placements take: amounts of one each, which the journal covers like every other amount.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Ledger;
use super::journal::Undo;
use crate::ids::NodeId;
use crate::tables::{ChosenVolume, Placement};

/// Volumes and claims in use by placements of pods whose claims have no volume yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct VolumeUses {
    /// Placements by volume.
    taken: FxHashMap<Arc<str>, u32>,
    /// What placements chose, by claim.
    claims: FxHashMap<Arc<str>, SmallVec<[ClaimUse; 1]>>,
}

/// Placements that chose the same for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimUse {
    /// `None` = a node that the engine does not know.
    pub(crate) node: Option<NodeId>,
    /// `None` = a new volume.
    pub(crate) volume: Option<Arc<str>>,
    pub(crate) placements: u32,
}

impl VolumeUses {
    /// The number of placements that take the volume.
    pub(crate) fn placements_with(&self, volume: &str) -> u32 {
        self.taken.get(volume).copied().unwrap_or_default()
    }

    /// What placements chose for the claim.
    pub(crate) fn uses_of(&self, claim: &str) -> &[ClaimUse] {
        self.claims.get(claim).map_or(&[], |uses| uses.as_slice())
    }

    /// Adds what a placement on the node chose (`sign` 1), or takes it away (-1).
    pub(super) fn count(&mut self, node: Option<NodeId>, volumes: &[ChosenVolume], sign: i32) {
        for ChosenVolume { claim, volume } in volumes {
            if let Some(volume) = volume {
                let taken = self.taken.entry(Arc::clone(volume)).or_default();
                *taken = add(*taken, sign);
                if *taken == 0 {
                    self.taken.remove(volume);
                }
            }
            let uses = self.claims.entry(Arc::clone(claim)).or_default();
            match uses
                .iter()
                .position(|known| known.node == node && known.volume == *volume)
            {
                Some(at) => {
                    uses[at].placements = add(uses[at].placements, sign);
                    if uses[at].placements == 0 {
                        uses.swap_remove(at);
                    }
                }
                None => uses.push(ClaimUse {
                    node,
                    volume: volume.clone(),
                    placements: add(0, sign),
                }),
            }
            if uses.is_empty() {
                self.claims.remove(claim);
            }
        }
    }

    /// The content in an order that does not depend on history, for tests.
    #[cfg(test)]
    pub(crate) fn sorted(&self) -> Vec<(&str, Option<NodeId>, Option<&str>, u32)> {
        let mut all: Vec<_> = self
            .claims
            .iter()
            .flat_map(|(claim, uses)| {
                uses.iter()
                    .map(move |used| (&**claim, used.node, used.volume.as_deref(), used.placements))
            })
            .collect();
        all.sort_unstable();
        all
    }
}

fn add(count: u32, sign: i32) -> u32 {
    count
        .checked_add_signed(sign)
        .expect("a placement takes away only what it added")
}

impl Ledger {
    /// Adds what a placement chose for its claims, or takes it away. A binding to a node that is gone takes its volumes, too.
    pub(super) fn use_volumes(&mut self, placement: &Placement, sign: i32) {
        let Some(volumes) = placement.volumes.as_ref().filter(|_| placement.status.is_active_used()) else {
            return;
        };
        let node = placement.node;
        self.note_work(volumes.len());
        self.volumes.count(node, volumes, sign);
        let volumes = Arc::clone(volumes);
        self.log(Undo::Volumes { node, volumes, sign });
    }
}
