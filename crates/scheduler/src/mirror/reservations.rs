//! Reservation pods whose GPU nobody shares any more. The engine charges a shared GPU to those who share it; when the last of them is
//! gone the GPU looks free, while the kubelet still counts it to the reservation pod until the binder has removed that. A pod bound in
//! between would be rejected for good. So such a reservation pod is shown to the engine as what it is: one that holds a whole GPU and
//! is about to leave.
//!
//! A bind that came to nothing may have made reservation pods that the watch of pods does not show yet: it may lag behind the watch of
//! bind requests. They are presumed until they show, or for so long that they would have.

use api::BindRequest;
use cluster::Key;
use engine::model::{Constraints, Event, GpuRequest, Labels, Millis, PodKind, PodPhase, PodSpec, Requests, TaskRank};
use rustc_hash::FxHashMap;

use super::Index;

/// Watches lag by seconds when an API server is in trouble. A GPU that nobody reserved idles for this time after a bind that failed.
const PRESUMED_FOR: Millis = Millis::seconds(10);

/// Who shares which GPU group, and who holds it.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    sharers: FxHashMap<Box<str>, usize>,
    holders: FxHashMap<Box<str>, Vec<Key>>,
    /// Groups that may have a holder which is not to be seen yet, each until then.
    presumed: std::collections::BTreeMap<Box<str>, Millis>,
}

/// What a pod is to GPU groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Ties {
    /// Nothing.
    #[default]
    None,
    /// Shares these.
    Shares(Box<[Box<str>]>),
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
            Ties::Shares(groups.into())
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

    /// The request's bind came to nothing. What it reserved counts until it is seen to be gone.
    pub(super) fn presume_held(&mut self, request: &BindRequest) {
        for group in request.gpu_groups() {
            let known =
                self.reservations.sharers.contains_key(&**group) || self.reservations.holders.contains_key(&**group);
            if known {
                continue;
            }
            let until = self.now + PRESUMED_FOR;
            self.reservations.presumed.insert((&**group).into(), until);
            let pod = presumed_pod(request.selected_node(), group, self.now);
            self.outbox.events.push(Event::Pod(pod));
        }
    }

    /// What was presumed and did not show is not there.
    pub(super) fn end_presumptions(&mut self) {
        let over = self
            .reservations
            .presumed
            .iter()
            .filter(|(_, until)| **until <= self.now);
        let over: Vec<Box<str>> = over.map(|(group, _)| group.clone()).collect();
        over.iter().for_each(|group| self.stop_presuming(group));
    }

    fn stop_presuming(&mut self, group: &str) {
        if self.reservations.presumed.remove(group).is_some() {
            self.outbox.events.push(Event::PodGone(presumed_uid(group)));
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
            Ties::Holds(group) => {
                let holders = self.reservations.holders.entry(group.clone()).or_default();
                holders.push(key.clone());
                self.stop_presuming(group);
            }
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

fn presumed_uid(group: &str) -> String {
    format!("presumed reservation of {group}")
}

/// A reservation pod without sharers, as it is shown to the engine.
fn presumed_pod(node: &str, group: &str, now: Millis) -> PodSpec {
    PodSpec {
        uid: presumed_uid(group),
        namespace: api::keys::RESERVATION.to_owned(),
        name: presumed_uid(group),
        created: now,
        kind: PodKind::Utility,
        gang: None,
        sub_group: None,
        phase: PodPhase::Pending,
        node: Some(node.to_owned()),
        deletion: Some(now),
        gated: false,
        bind_in_flight: None,
        gpu_groups: Vec::new(),
        requests: Requests {
            gpu: GpuRequest::Whole { devices: 1 },
            ..Requests::default()
        },
        constraints: Constraints::default(),
        labels: Labels::default(),
        rank: TaskRank::default(),
        nominated_node: None,
        refused: None,
    }
}
