//! Reservation pods whose GPU nobody shares any more. The engine charges a shared GPU to those who share it; when the last of them is
//! gone the GPU looks free, while the kubelet still counts it to the reservation pod until the binder has removed that. A pod bound in
//! between would be rejected for good. So such a reservation pod is shown to the engine as what it is: one that holds a whole GPU and
//! is about to leave.

use cluster::Key;
use engine::model::{PodKind, PodSpec};
use rustc_hash::FxHashMap;

use super::Index;

/// Who shares which GPU group, and who holds it.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    sharers: FxHashMap<Box<str>, usize>,
    holders: FxHashMap<Box<str>, Vec<Key>>,
}

/// What a pod is to GPU groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Ties {
    /// Nothing.
    #[default]
    None,
    /// Shares these.
    Shares(Vec<Box<str>>),
    /// Holds this one.
    Holds(Box<str>),
}

impl Ties {
    pub(super) fn of(spec: &PodSpec) -> Ties {
        match spec.kind {
            PodKind::Reservation => spec
                .gpu_groups
                .first()
                .map_or(Ties::None, |group| Ties::Holds(group.as_str().into())),
            PodKind::Workload => {
                let in_flight = spec.bind_in_flight.iter().flat_map(|bind| &bind.gpu_groups);
                let placed = spec.gpu_groups.iter().filter(|_| spec.node.is_some());
                Ties::sharing(in_flight.chain(placed))
            }
            PodKind::Utility | PodKind::Foreign => Ties::None,
        }
    }

    pub(super) fn sharing<'g>(groups: impl Iterator<Item = &'g String>) -> Ties {
        let mut groups: Vec<Box<str>> = groups.map(|group| group.as_str().into()).collect();
        groups.sort_unstable();
        groups.dedup();
        if groups.is_empty() {
            Ties::None
        } else {
            Ties::Shares(groups)
        }
    }
}

impl Index {
    /// A reservation pod without sharers holds its GPU for nobody.
    pub(super) fn show_unused(&self, spec: &mut PodSpec) {
        if spec.kind != PodKind::Reservation {
            return;
        }
        let shared = spec
            .gpu_groups
            .iter()
            .any(|group| self.reservations.sharers.contains_key(group.as_str()));
        if !shared {
            spec.kind = PodKind::Utility;
            spec.gpu_groups.clear();
            spec.deletion.get_or_insert(self.now);
        }
    }

    /// The pod is tied so from now on. Holders of groups that gained their first sharer or lost their last one are looked at again.
    pub(super) fn tie(&mut self, key: &Key, before: &Ties, now: &Ties) {
        if before == now {
            return;
        }
        let mut turned: Vec<Box<str>> = Vec::new();
        match now {
            Ties::Shares(groups) => {
                for group in groups {
                    let sharers = self.reservations.sharers.entry(group.clone()).or_default();
                    *sharers += 1;
                    if *sharers == 1 {
                        turned.push(group.clone());
                    }
                }
            }
            Ties::Holds(group) => self
                .reservations
                .holders
                .entry(group.clone())
                .or_default()
                .push(key.clone()),
            Ties::None => {}
        }
        match before {
            Ties::Shares(groups) => {
                for group in groups {
                    let Some(sharers) = self.reservations.sharers.get_mut(group) else {
                        continue;
                    };
                    *sharers -= 1;
                    if *sharers == 0 {
                        self.reservations.sharers.remove(group);
                        turned.push(group.clone());
                    }
                }
            }
            Ties::Holds(group) => {
                if let Some(holders) = self.reservations.holders.get_mut(group) {
                    holders.retain(|holder| holder != key);
                    if holders.is_empty() {
                        self.reservations.holders.remove(group);
                    }
                }
            }
            Ties::None => {}
        }
        for group in turned {
            for holder in self.reservations.holders.get(&group).cloned().unwrap_or_default() {
                self.refresh_pod(&holder);
            }
        }
    }
}
