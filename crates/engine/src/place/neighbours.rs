//! Rules between pods: affinity, anti-affinity in both directions, host ports. Such rules can't be indexed; they are
//! looked up once per pod and then asked per node.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::ids::{NodeId, PodId};
use crate::ledger::Ledger;
use crate::model::{HostPort, Labels, PodAffinityTerm};
use crate::reasons::Check;

/// Weight of one point of preferred pod affinity.
const AFFINITY_POINT: i64 = 1_000_000;

/// What the pods that are in place mean for one more pod. Values of topology labels are borrowed from nodes.
#[derive(Debug, Default)]
pub(crate) struct Neighbours<'a> {
    /// Per required affinity term: the label and the values it must have; `None` = any value will do.
    near: Vec<(&'a str, Option<FxHashSet<&'a str>>)>,
    /// Labels and values to stay away from.
    away: FxHashMap<&'a str, FxHashSet<&'a str>>,
    ports: &'a [HostPort],
    /// Points per label and value.
    points: FxHashMap<&'a str, FxHashMap<&'a str, i64>>,
}

impl<'a> Neighbours<'a> {
    /// Whether nothing needs to be looked up for the pod.
    pub(crate) fn are_irrelevant(ledger: &Ledger, pod: PodId) -> bool {
        ledger.opinionated.is_empty() && !ledger.shape_of(pod).has_neighbour_rules()
    }

    pub(crate) fn of(ledger: &'a Ledger, pod: PodId, score: bool) -> Neighbours<'a> {
        let constraints = &ledger.shape_of(pod).constraints;
        let mut neighbours = Neighbours {
            ports: &constraints.host_ports,
            ..Neighbours::default()
        };
        let required = &constraints.affinity.required;
        for term in required {
            neighbours.near.push((&term.topology_key, Some(FxHashSet::default())));
        }
        if !constraints.affinity.is_empty() || !constraints.anti_affinity.is_empty() {
            for node in &ledger.nodes {
                for other in node.pods.iter().filter(|other| **other != pod) {
                    neighbours.weigh_own_terms(ledger, pod, *other, &node.labels, score);
                }
            }
        }
        // The first of a group that wants to be together has nobody to join: it may start anywhere.
        let alone = neighbours
            .near
            .iter()
            .all(|(_, values)| values.as_ref().is_some_and(FxHashSet::is_empty));
        if alone && required.iter().all(|term| matches(ledger, term, pod)) {
            neighbours.near.iter_mut().for_each(|(_, values)| *values = None);
        }
        for other in ledger.opinionated.iter().filter(|other| **other != pod) {
            neighbours.weigh_terms_of(ledger, pod, *other, score);
        }
        neighbours
    }

    fn weigh_own_terms(&mut self, ledger: &'a Ledger, pod: PodId, other: PodId, labels: &'a Labels, score: bool) {
        let constraints = &ledger.shape_of(pod).constraints;
        for (term, (_, values)) in constraints.affinity.required.iter().zip(&mut self.near) {
            if let (Some(value), true) = (labels.get(&term.topology_key), matches(ledger, term, other)) {
                values.get_or_insert_default().insert(value);
            }
        }
        for term in &constraints.anti_affinity.required {
            if let (Some(value), true) = (labels.get(&term.topology_key), matches(ledger, term, other)) {
                self.away.entry(&term.topology_key).or_default().insert(value);
            }
        }
        if score {
            self.add_points(ledger, &constraints.affinity.preferred, other, labels, 1);
            self.add_points(ledger, &constraints.anti_affinity.preferred, other, labels, -1);
        }
    }

    /// What `other`, already in place, thinks of the pod.
    fn weigh_terms_of(&mut self, ledger: &'a Ledger, pod: PodId, other: PodId, score: bool) {
        let row = ledger.pod(other);
        let places = row.leaving.iter().map(|place| &**place).chain([&row.place]);
        for node in places
            .filter(|place| place.status.is_active_used())
            .filter_map(|place| place.node)
        {
            let labels = &ledger.node(node).labels;
            let constraints = &ledger.shape_of(other).constraints;
            for term in &constraints.anti_affinity.required {
                if let (Some(value), true) = (labels.get(&term.topology_key), matches(ledger, term, pod)) {
                    self.away.entry(&term.topology_key).or_default().insert(value);
                }
            }
            if score {
                self.add_points(ledger, &constraints.affinity.preferred, pod, labels, 1);
                self.add_points(ledger, &constraints.anti_affinity.preferred, pod, labels, -1);
            }
        }
    }

    fn add_points(
        &mut self,
        ledger: &Ledger,
        terms: &'a [crate::model::WeightedPodAffinityTerm],
        subject: PodId,
        labels: &'a Labels,
        sign: i64,
    ) {
        for weighted in terms {
            let key = &weighted.term.topology_key;
            if let (Some(value), true) = (labels.get(key), matches(ledger, &weighted.term, subject)) {
                *self.points.entry(key).or_default().entry(value).or_default() += sign * i64::from(weighted.weight);
            }
        }
    }

    /// Whether the node is ruled out.
    pub(crate) fn check(&self, ledger: &Ledger, node: NodeId) -> Result<(), Check> {
        let row = ledger.node(node);
        if !self.ports.is_empty() {
            let taken = row
                .pods
                .iter()
                .flat_map(|pod| &ledger.shape_of(*pod).constraints.host_ports);
            if taken
                .into_iter()
                .any(|taken| self.ports.iter().any(|port| port.conflicts(taken)))
            {
                return Err(Check::HostPorts);
            }
        }
        for (key, values) in &self.away {
            if row
                .labels
                .get(*key)
                .is_some_and(|value| values.contains(value.as_str()))
            {
                return Err(Check::PodAntiAffinity);
            }
        }
        for (key, values) in &self.near {
            let value = row.labels.get(*key);
            let near = value.is_some_and(|value| values.as_ref().is_none_or(|values| values.contains(value.as_str())));
            if !near {
                return Err(Check::PodAffinity);
            }
        }
        Ok(())
    }

    /// Whether nodes differ in points at all.
    pub(crate) fn has_points(&self) -> bool {
        !self.points.is_empty()
    }

    /// Weight of the node by preferred pod affinity.
    pub(crate) fn weight(&self, ledger: &Ledger, node: NodeId) -> i64 {
        let labels = &ledger.node(node).labels;
        let points = self
            .points
            .iter()
            .filter_map(|(key, values)| values.get(labels.get(*key)?.as_str()));
        points.sum::<i64>().clamp(-100_000, 100_000) * AFFINITY_POINT
    }
}

fn matches(ledger: &Ledger, term: &PodAffinityTerm, pod: PodId) -> bool {
    let row = ledger.pod(pod);
    let namespace = ledger.symbols.text(row.namespace);
    let in_namespace = term
        .namespaces
        .as_ref()
        .is_none_or(|names| names.iter().any(|name| name == namespace));
    in_namespace
        && term
            .selector
            .as_ref()
            .is_some_and(|selector| selector.matches(|key| row.labels.get(key)))
}
