//! Rules between pods: affinity, anti-affinity in both directions, host ports. The index of terms is read per node; what
//! is the same for all nodes is found once per pod.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::affinity::TermCount;
use crate::ids::{NodeId, PodId, Symbol, TermId, TopologyKeyId};
use crate::ledger::Ledger;
use crate::place::ports::Ports;
use crate::reasons::Check;

/// Weight of one point of preferred pod affinity.
const AFFINITY_POINT: i64 = 1_000_000;
/// More points than this do not count.
const POINTS_MAX: i64 = 100_000;

/// What the pods that are in place mean for one more pod.
#[derive(Debug)]
pub(crate) struct Neighbours<'a> {
    ledger: &'a Ledger,
    /// Required affinity terms; pods that match all of them have to be near.
    near: &'a [TermId],
    /// No pod is there to be near to, and the pod matches its own terms: it may be the first anywhere.
    is_first: bool,
    /// Own anti-affinity terms: pods that match are to be avoided.
    away: &'a [TermId],
    /// Anti-affinity terms of others that match the pod.
    avoiding: SmallVec<[TermId; 4]>,
    /// Own preferences.
    preferred: &'a [(TermId, i64)],
    /// Preferences of others that match the pod.
    preferring: SmallVec<[TermId; 4]>,
    /// The terms to avoid, merged by value where they are many.
    excluded: Option<Merged>,
    /// The preferences, merged by value where they are many.
    points: Option<Merged>,
    ports: Ports<'a>,
    /// Where the pod itself is: it is no neighbour of its own.
    own: SmallVec<[NodeId; 2]>,
    pod: PodId,
}

/// Terms by the values of their topology keys: a node is looked up once per key, not once per term.
#[derive(Debug, Default)]
struct Merged {
    keys: Vec<TopologyKeyId>,
    values: FxHashMap<(TopologyKeyId, Symbol), i64>,
}

/// More terms than this are merged.
const TERMS_MAX: usize = 4;

impl Merged {
    fn add(&mut self, key: TopologyKeyId, value: Symbol, amount: i64) {
        if !self.keys.contains(&key) {
            self.keys.push(key);
        }
        *self.values.entry((key, value)).or_default() += amount;
    }

    /// What the node's values come to.
    fn at(&self, ledger: &Ledger, node: NodeId) -> i64 {
        ledger.note_work(self.keys.len());
        let of_key = |key: &TopologyKeyId| {
            let value = ledger.affinity.value_on(*key, node)?;
            self.values.get(&(*key, value)).copied()
        };
        self.keys.iter().filter_map(of_key).sum()
    }
}

impl<'a> Neighbours<'a> {
    /// Whether nothing needs to be looked up for the pod.
    pub(crate) fn are_irrelevant(ledger: &Ledger, pod: PodId) -> bool {
        ledger.terms_matching(pod).is_empty() && !ledger.shape_of(pod).depends_on_other_pods()
    }

    pub(crate) fn of(ledger: &'a Ledger, pod: PodId, score: bool) -> Neighbours<'a> {
        let (shape, matching) = (ledger.shape_of(pod), ledger.terms_matching(pod));
        let mut neighbours = Neighbours {
            ledger,
            near: &[],
            is_first: false,
            away: &[],
            avoiding: SmallVec::new(),
            preferred: &[],
            preferring: SmallVec::new(),
            excluded: None,
            points: None,
            ports: Ports::new(&shape.constraints.host_ports),
            own: ledger.pod(pod).nodes_in_use().collect(),
            pod,
        };
        if let Some(terms) = &shape.terms {
            (neighbours.near, neighbours.away) = (&terms.near, &terms.away);
            if score {
                neighbours.preferred = &terms.preferred;
            }
        }
        let total = |term: TermId| neighbours.others(term, None);
        let is_first = neighbours
            .near
            .iter()
            .all(|term| matching.contains(term) && total(*term).matching == 0);
        let avoiding = matching.iter().copied().filter(|term| total(*term).avoiding > 0);
        let avoiding: SmallVec<[TermId; 4]> = avoiding.collect();
        let preferring = matching.iter().copied().filter(|term| total(*term).preferring > 0);
        let preferring: SmallVec<[TermId; 4]> = if score { preferring.collect() } else { SmallVec::new() };
        ledger.note_work(matching.len());
        (neighbours.is_first, neighbours.avoiding, neighbours.preferring) = (is_first, avoiding, preferring);
        if neighbours.away.len() + neighbours.avoiding.len() > TERMS_MAX {
            let away = neighbours.away.iter().map(|term| (*term, true));
            let avoiding = neighbours.avoiding.iter().map(|term| (*term, false));
            let counted = |at: TermCount, own: bool| i64::from(if own { at.matching > 0 } else { at.avoiding > 0 });
            neighbours.excluded = Some(neighbours.merge(away.chain(avoiding), counted));
        }
        if neighbours.preferred.len() + neighbours.preferring.len() > TERMS_MAX {
            let own = neighbours.preferred.iter().map(|(term, weight)| (*term, *weight));
            let others = neighbours.preferring.iter().map(|term| (*term, 0));
            let own = neighbours.merge(own, |at, weight| at.matching * weight);
            let mut points = neighbours.merge(others, |at, _| at.weight);
            for ((key, value), amount) in own.values {
                points.add(key, value, amount);
            }
            neighbours.points = Some(points);
        }
        neighbours
    }

    fn merge<T: Copy>(
        &self,
        terms: impl Iterator<Item = (TermId, T)>,
        counted: impl Fn(TermCount, T) -> i64,
    ) -> Merged {
        let index = &self.ledger.affinity;
        let mut merged = Merged::default();
        for (term, which) in terms {
            self.ledger.note_work(index.term(term).value_count());
            for (value, _) in index.term(term).values() {
                let amount = counted(self.others(term, Some(value)), which);
                if amount != 0 {
                    merged.add(index.key_id(term), value, amount);
                }
            }
        }
        merged
    }

    /// Counts of a term at a value, or at all values, without the pod itself.
    fn others(&self, term: TermId, value: Option<Symbol>) -> TermCount {
        let index = &self.ledger.affinity;
        let row = index.term(term);
        let mut count = value.map_or(row.total, |value| row.at(value));
        if self.own.is_empty() {
            return count;
        }
        let key = index.key_of(term);
        let at_value = |node: &&NodeId| {
            key.value(**node)
                .is_some_and(|own| value.is_none_or(|value| own == value))
        };
        let times = self.own.iter().filter(at_value).count() as i64;
        if self.ledger.terms_matching(self.pod).contains(&term) {
            count.matching -= times;
        }
        if let Some(terms) = &self.ledger.shape_of(self.pod).terms {
            count.avoiding -= times * i64::from(terms.away.contains(&term));
            for (_, weight) in terms.preferred.iter().filter(|(own, _)| *own == term) {
                count.preferring -= times;
                count.weight -= times * weight;
            }
        }
        count
    }

    /// Counts of a term on the node's value of its topology key; none if the node lacks the label.
    fn around(&self, term: TermId, node: NodeId) -> Option<TermCount> {
        let value = self.ledger.affinity.key_of(term).value(node)?;
        Some(self.others(term, Some(value)))
    }

    /// Whether the node is ruled out.
    pub(crate) fn check(&self, node: NodeId) -> Result<(), Check> {
        self.ledger.note_work(self.near.len());
        if self.has_port_conflict(node) {
            return Err(Check::HostPorts);
        }
        let meets =
            |term: &TermId, counted: fn(TermCount) -> i64| self.around(*term, node).is_some_and(|at| counted(at) > 0);
        let is_excluded = match &self.excluded {
            Some(excluded) => excluded.at(self.ledger, node) > 0,
            None => {
                self.ledger.note_work(self.away.len() + self.avoiding.len());
                self.away.iter().any(|term| meets(term, |at| at.matching))
                    || self.avoiding.iter().any(|term| meets(term, |at| at.avoiding))
            }
        };
        if is_excluded {
            return Err(Check::PodAntiAffinity);
        }
        // A node without the label is near to nobody, as in kube-scheduler.
        let is_near = |term: &TermId| match self.around(*term, node) {
            Some(count) => self.is_first || count.matching > 0,
            None => false,
        };
        if !self.near.iter().all(is_near) {
            return Err(Check::PodAffinity);
        }
        Ok(())
    }

    fn has_port_conflict(&self, node: NodeId) -> bool {
        if self.ports.is_empty() {
            return false;
        }
        let ports = |pod: &PodId| &self.ledger.shape_of(*pod).constraints.host_ports;
        let pods = &self.ledger.node(node).pods;
        let taken = || pods.iter().flat_map(ports);
        self.ledger
            .note_work(pods.len() + pods.iter().map(|pod| ports(pod).len()).sum::<usize>());
        taken().any(|taken| self.ports.conflict(taken))
    }

    /// Whether no node at all can take the pod: every value of a topology key is to be avoided.
    pub(crate) fn rule_out_all(&self) -> bool {
        let index = &self.ledger.affinity;
        let present = self.ledger.present_nodes;
        let everywhere = |term: &TermId, counted: fn(TermCount) -> i64| {
            let (row, key) = (index.term(*term), index.key_of(*term));
            row.value_count() >= key.value_count() && key.labelled() == present && {
                self.ledger.note_work(row.value_count());
                let met = row
                    .values()
                    .filter(|(value, _)| counted(self.others(*term, Some(*value))) > 0);
                met.count() == key.value_count()
            }
        };
        present > 0
            && (self.away.iter().any(|term| everywhere(term, |at| at.matching))
                || self.avoiding.iter().any(|term| everywhere(term, |at| at.avoiding)))
    }

    /// The nodes that required affinity leaves, if they are few.
    pub(crate) fn candidates(&self) -> Option<Vec<NodeId>> {
        /// Up to this part of all nodes they are few.
        const FEW_PART: usize = 8;
        if self.is_first {
            return None;
        }
        let index = &self.ledger.affinity;
        let most = self.ledger.nodes.len() / FEW_PART;
        let few = |term: &&TermId| {
            let (row, key) = (index.term(**term), index.key_of(**term));
            row.value_count() <= most && row.values().map(|(value, _)| key.nodes(value).len()).sum::<usize>() <= most
        };
        let term = self.near.iter().find(few)?;
        let (row, key) = (index.term(*term), index.key_of(*term));
        let matching = row.values().filter(|(_, count)| count.matching > 0);
        Some(matching.flat_map(|(value, _)| key.nodes(value)).copied().collect())
    }

    /// Whether nodes differ in points at all.
    pub(crate) fn has_points(&self) -> bool {
        let counts = |(term, _): &(TermId, i64)| self.others(*term, None).matching > 0;
        !self.preferring.is_empty() || self.preferred.iter().any(counts)
    }

    /// Weight of the node by preferred pod affinity.
    pub(crate) fn weight(&self, node: NodeId) -> i64 {
        if let Some(points) = &self.points {
            return points.at(self.ledger, node).clamp(-POINTS_MAX, POINTS_MAX) * AFFINITY_POINT;
        }
        self.ledger.note_work(self.preferred.len() + self.preferring.len());
        let own = self.preferred.iter().filter_map(|(term, weight)| {
            let count = self.around(*term, node)?;
            Some(count.matching * weight)
        });
        let others = self
            .preferring
            .iter()
            .filter_map(|term| Some(self.around(*term, node)?.weight));
        own.chain(others).sum::<i64>().clamp(-POINTS_MAX, POINTS_MAX) * AFFINITY_POINT
    }
}
