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
    /// Bytes of new volumes whose storage is counted, by class and node.
    storage: FxHashMap<Arc<str>, FxHashMap<NodeId, i64>>,
}

/// Placements that chose the same for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimUse {
    /// `None` = a node that the engine does not know.
    pub(crate) node: Option<NodeId>,
    /// `None` = a new volume.
    pub(crate) volume: Option<Arc<str>>,
    pub(crate) placements: u32,
    /// What the new volume takes: pods with one claim get one volume, so it counts once on a node.
    storage: Option<(Arc<str>, i64)>,
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

    /// Bytes that placements take for new volumes of the class, by node.
    pub(crate) fn storage_of(&self, class: &str) -> impl Iterator<Item = (NodeId, i64)> {
        let of_class = self.storage.get(class).into_iter().flatten();
        of_class.map(|(node, bytes)| (*node, *bytes))
    }

    fn count_storage(&mut self, node: Option<NodeId>, storage: Option<&(Arc<str>, i64)>, sign: i64) {
        let (Some(node), Some((class, bytes))) = (node, storage) else {
            return;
        };
        let of_class = self.storage.entry(Arc::clone(class)).or_default();
        let taken = of_class.entry(node).or_default();
        *taken += sign * bytes;
        if *taken == 0 {
            of_class.remove(&node);
        }
        if of_class.is_empty() {
            self.storage.remove(class);
        }
    }

    /// Adds what a placement on the node chose (`sign` 1), or takes it away (-1).
    pub(super) fn count(&mut self, node: Option<NodeId>, volumes: &[ChosenVolume], sign: i32) {
        for ChosenVolume { claim, volume, storage } in volumes {
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
                        let gone = uses.swap_remove(at);
                        if uses.is_empty() {
                            self.claims.remove(claim);
                        }
                        self.count_storage(node, gone.storage.as_ref(), -1);
                    }
                }
                None => {
                    uses.push(ClaimUse {
                        node,
                        volume: volume.clone(),
                        placements: add(0, sign),
                        storage: storage.clone(),
                    });
                    self.count_storage(node, storage.as_ref(), 1);
                }
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

    /// The storage that is taken, in an order that does not depend on history, for tests.
    #[cfg(test)]
    pub(crate) fn sorted_storage(&self) -> Vec<(&str, NodeId, i64)> {
        let classes = self.storage.keys();
        let mut all: Vec<_> = classes
            .flat_map(|class| self.storage_of(class).map(move |(node, bytes)| (&**class, node, bytes)))
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
