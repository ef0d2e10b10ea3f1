//! Placement strategy `frag`: a pod goes where the node loses least of what it is worth for the pods that are still to come.
//!
//! | step | module |
//! |---|---|
//! | the kinds of nodes and the typical mix of pods, from all pods that the cluster knows | [`mix`] |
//! | how much of the mix fits if pods could be cut in pieces; its prices: the value of hosting a pod of each type | [`relaxation`], by [`simplex`] and [`knapsack`] |
//! | what a node is worth: tables from the prices, and fragmentation | [`potential`] |
//! | when the prices are computed again | [`refresh`] |
//!
//! Prices are integers once they are computed, so that scores are the same on every machine. Nothing here looks at single pods, queues or
//! time. Prices never change within a cycle.

mod knapsack;
mod mix;
mod potential;
mod refresh;
mod relaxation;
mod simplex;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cell::RefCell;

use smallvec::SmallVec;

use crate::ids::{GpuGroupId, ShapeId};
use crate::ledger::{Ledger, NodeAt};
use crate::tables::{GpuGroup, GpuKind, Node, Shape, When};

use mix::{Mix, NodeKind};
use potential::{NodeProfile, Potential, Taken, steps_of};
pub(crate) use refresh::PriceState;

/// Steps of a GPU: hundredths.
pub(crate) const STEPS: u8 = 100;
/// Nodes whose costs differ by less than this part of a GPU, in millionths, are equally good: the first by name is taken. Pods then fill the nodes in one
/// order, and the last nodes of each kind stay free for pods that run on this kind alone or take a whole node. Exact costs would spread pods
/// over all nodes of the kind that suits them best by a trifle (docs/placement.md).
pub(crate) const COST_STEP: i64 = 40_000;

/// What nodes are worth, for one mix of pods and one set of nodes.
#[derive(Clone, Debug)]
pub(crate) struct Prices {
    /// By node id: the kind; `None` = the node has no GPUs.
    kind_of: Vec<Option<u8>>,
    potential: Potential,
    /// See [`relaxation::Relaxed::load_bound`].
    load_bound: f64,
    /// By node id: the profile of the node at a version of it. Many shapes ask for the same.
    profiles: RefCell<Vec<Option<KnownProfile>>>,
}

#[derive(Clone, Debug)]
struct KnownProfile {
    version: u64,
    profile: NodeProfile,
    potential: i64,
}

/// Where a pod costs the node least.
#[derive(Clone, Debug)]
pub(crate) struct CheapestPlace {
    /// How much of its worth the node loses, in millionths of a GPU.
    pub(crate) cost: i64,
    /// For a pod that shares GPUs: the groups that it joins.
    pub(crate) joined: SmallVec<[GpuGroupId; 4]>,
}

impl Prices {
    /// The prices for these pods; `None` if they or the nodes need no GPUs.
    pub(crate) fn of(ledger: &Ledger, pods: &[(ShapeId, u64)]) -> Option<Prices> {
        let (kinds, kind_of) = mix::node_kinds(ledger);
        Prices::of_mix(ledger, &Mix::of(ledger, &kinds, pods), &kinds, kind_of)
    }

    fn of_mix(ledger: &Ledger, mix: &Mix, kinds: &[NodeKind], kind_of: Vec<Option<u8>>) -> Option<Prices> {
        let relaxed = relaxation::solve(mix, kinds)?;
        // A pivot passes over the rows of the program twice, the tables over the types for each step of a GPU.
        ledger.note_work(relaxed.pivots as usize * 8 + mix.types.len() * usize::from(STEPS));
        Some(Prices {
            kind_of,
            potential: Potential::new(mix, kinds, &relaxed.values),
            load_bound: relaxed.load_bound,
            profiles: RefCell::default(),
        })
    }

    /// A load up to which, at most, every pod of the mix can be placed: 1 = the pods request all GPUs of the cluster.
    pub(crate) fn load_bound(&self) -> f64 {
        self.load_bound
    }

    /// Where on the node the pod costs least; `None` if the node has no GPUs, or not enough for the pod.
    pub(crate) fn cheapest(&self, at: NodeAt<'_>, shape: &Shape) -> Option<CheapestPlace> {
        let NodeAt { id, row: node, version } = at;
        let kind = usize::from((*self.kind_of.get(id.index())?)?);
        let mut profiles = self.profiles.borrow_mut();
        profiles.resize(self.kind_of.len(), None);
        let known = &mut profiles[id.index()];
        if known.as_ref().is_none_or(|known| known.version != version) {
            let profile = self.potential.profile(kind, node);
            let potential = self.potential.after(kind, &profile, 0, Taken::default());
            *known = Some(KnownProfile {
                version,
                profile,
                potential,
            });
        }
        let KnownProfile { profile, potential, .. } = known.as_ref()?;
        let cpu_milli = shape.base.cpu_milli;
        let (after, joined) = match shape.gpu {
            GpuKind::None | GpuKind::Mig { .. } => {
                let after = self.potential.after(kind, profile, cpu_milli, Taken::default());
                (after, SmallVec::new())
            }
            GpuKind::Whole { devices } => {
                let taken = Taken {
                    gpus: devices,
                    before: STEPS,
                    after: 0,
                };
                (self.potential.after(kind, profile, cpu_milli, taken), SmallVec::new())
            }
            GpuKind::Fraction { devices, .. } | GpuKind::Memory { devices, .. } => {
                self.cheapest_gpus(kind, profile, (node, shape), devices)?
            }
        };
        Some(CheapestPlace {
            cost: after - potential,
            joined,
        })
    }

    /// The potential of the node with the pod on the GPUs where that is smallest, and the groups that the pod joins. Of several GPUs each
    /// is the best after the ones before.
    fn cheapest_gpus(
        &self,
        kind: usize,
        profile: &NodeProfile,
        (node, shape): (&Node, &Shape),
        devices: i64,
    ) -> Option<(i64, SmallVec<[GpuGroupId; 4]>)> {
        let when = When::AfterRelease;
        let need = shape.need_mib(node.memory_mib);
        let holds = |group: &&GpuGroup| group.holds_gpu(when);
        // In the order of the parts of the profile.
        let groups: SmallVec<[&GpuGroup; 16]> = node.gpu_groups.iter().filter(holds).collect();
        let opened = Taken {
            gpus: 1,
            before: STEPS,
            after: steps_of(node.memory_mib - need, node.memory_mib),
        };
        let mut joined: SmallVec<[GpuGroupId; 4]> = SmallVec::new();
        let mut openable = node.shareable_devices(when);
        let mut potential = 0;
        let mut profile = Cow::Borrowed(profile);
        for at_device in 1..=devices {
            let mut best: Option<(i64, Option<usize>, Taken)> = None;
            let mut consider = |group: Option<usize>, taken: Taken| {
                let after = self.potential.after(kind, &profile, shape.base.cpu_milli, taken);
                if best.is_none_or(|(least, ..)| after < least) {
                    best = Some((after, group, taken));
                }
            };
            let mut tried: SmallVec<[(u8, u8); 16]> = SmallVec::new();
            for (at, group) in groups.iter().enumerate() {
                if joined.contains(&group.id) || !group.fits(shape, node.memory_mib, when) {
                    continue;
                }
                let before = profile.parts[at];
                let after = steps_of(group.available_mib(node.memory_mib, when) - need, node.memory_mib);
                // GPUs with equal room are worth the same; the first is taken.
                if !tried.contains(&(before, after)) {
                    tried.push((before, after));
                    consider(Some(at), Taken { gpus: 1, before, after });
                }
            }
            if openable > 0 {
                consider(None, opened);
            }
            let (after, group, taken) = best?;
            potential = after;
            match group {
                Some(at) => joined.push(groups[at].id),
                None => openable -= 1,
            }
            if at_device < devices {
                self.potential.take(kind, profile.to_mut(), taken);
            }
        }
        Some((potential, joined))
    }
}
