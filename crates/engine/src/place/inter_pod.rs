//! Rules between a pod and the pods on nodes: pod affinity, anti-affinity in both directions, host ports. The parts that
//! are the same for all nodes are computed once per pod; the counts of the affinity index are read per node.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::affinity::TermCount;
use crate::ids::{NodeId, PodId, Symbol, TermId, TopologyKeyId};
use crate::ledger::Ledger;
use crate::place::host_ports::HostPorts;
use crate::place::weights::{AFFINITY_POINT, AFFINITY_POINTS_MAX};
use crate::reasons::Check;

/// The rules between one pod and the pods that are on nodes.
#[derive(Debug)]
pub(crate) struct InterPodRules<'a> {
    ledger: &'a Ledger,
    /// Required affinity terms of the pod.
    affinity: &'a [TermId],
    /// The pod matches its own affinity terms and no other pod does: as in kube-scheduler, it may be placed first.
    is_first: bool,
    /// Required anti-affinity terms of the pod.
    anti_affinity: &'a [TermId],
    /// Required anti-affinity terms of pods on nodes that match the pod.
    others_anti_affinity: SmallVec<[TermId; 4]>,
    /// Preferred terms of the pod with their weights.
    own_preferred: &'a [(TermId, i64)],
    /// Preferred terms of pods on nodes that match the pod.
    others_preferred: SmallVec<[TermId; 4]>,
    /// All anti-affinity terms, merged if there are more than [`UNMERGED_MAX`].
    excluded: Option<MergedTerms>,
    /// All preferred terms, merged if there are more than [`UNMERGED_MAX`].
    scores: Option<MergedTerms>,
    ports: HostPorts<'a>,
    /// The nodes that the pod itself occupies: the counts of the index include it there.
    own_nodes: SmallVec<[NodeId; 2]>,
    /// What the pod adds to the counts on each of them.
    own_counts: FxHashMap<TermId, TermCount>,
}

/// Sums over terms by the values of their topology keys, so that a check of a node reads one value per key instead of one
/// per term.
#[derive(Debug, Default)]
struct MergedTerms {
    keys: Vec<TopologyKeyId>,
    values: FxHashMap<(TopologyKeyId, Symbol), i64>,
}

/// Up to this many terms are checked one by one.
const UNMERGED_MAX: usize = 4;

impl MergedTerms {
    fn add(&mut self, key: TopologyKeyId, value: Symbol, amount: i64) {
        *self.values.entry((key, value)).or_default() += amount;
    }

    fn add_key(&mut self, key: TopologyKeyId) {
        if !self.keys.contains(&key) {
            self.keys.push(key);
        }
    }

    fn add_all(&mut self, other: MergedTerms) {
        other.keys.iter().for_each(|key| self.add_key(*key));
        for ((key, value), amount) in other.values {
            self.add(key, value, amount);
        }
    }

    /// The sum for a node over all keys.
    fn sum_at(&self, ledger: &Ledger, node: NodeId) -> i64 {
        ledger.note_work(self.keys.len());
        let of_key = |key: &TopologyKeyId| {
            let value = ledger.affinity.value_on(*key, node)?;
            self.values.get(&(*key, value)).copied()
        };
        self.keys.iter().filter_map(of_key).sum()
    }
}

impl<'a> InterPodRules<'a> {
    /// Whether no rule concerns the pod.
    pub(crate) fn are_not_needed(ledger: &Ledger, pod: PodId) -> bool {
        ledger.terms_matching(pod).next().is_none() && !ledger.shape_of(pod).depends_on_other_pods()
    }

    /// `score` = include preferred terms.
    pub(crate) fn of(ledger: &'a Ledger, pod: PodId, score: bool) -> InterPodRules<'a> {
        let shape = ledger.shape_of(pod);
        let matching: SmallVec<[TermId; 8]> = ledger.terms_matching(pod).collect();
        let own_nodes: SmallVec<[NodeId; 2]> = ledger.pod(pod).nodes_in_use().collect();
        let own_counts = (!own_nodes.is_empty()).then(|| ledger.counts_of(pod));
        let mut rules = InterPodRules {
            ledger,
            affinity: &[],
            is_first: false,
            anti_affinity: &[],
            others_anti_affinity: SmallVec::new(),
            own_preferred: &[],
            others_preferred: SmallVec::new(),
            excluded: None,
            scores: None,
            ports: HostPorts::new(&shape.constraints.host_ports),
            own_nodes,
            own_counts: own_counts.unwrap_or_default(),
        };
        if let Some(terms) = ledger.terms_of(pod) {
            (rules.affinity, rules.anti_affinity) = (&terms.required_affinity, &terms.required_anti_affinity);
            if score {
                rules.own_preferred = &terms.preferred;
            }
        }
        let total = |term: TermId| rules.count_of_others(term, None);
        // The required affinity terms have one selector: the pod matches all of them or none.
        let matches_own = rules.affinity.first().is_none_or(|term| matching.contains(term));
        let is_first = matches_own && rules.affinity.iter().all(|term| total(*term).matching == 0);
        let avoiding = matching.iter().copied().filter(|term| total(*term).avoiding > 0);
        let avoiding: SmallVec<[TermId; 4]> = avoiding.collect();
        let preferring = matching.iter().copied().filter(|term| total(*term).preferring > 0);
        let preferring: SmallVec<[TermId; 4]> = if score { preferring.collect() } else { SmallVec::new() };
        ledger.note_work(matching.len());
        (rules.is_first, rules.others_anti_affinity, rules.others_preferred) = (is_first, avoiding, preferring);
        if rules.anti_affinity.len() + rules.others_anti_affinity.len() > UNMERGED_MAX {
            let own = rules.anti_affinity.iter().map(|term| (*term, 1));
            let own = rules.merge_own(own, |at, _| i64::from(at.matching > 0));
            let others = rules.others_anti_affinity.iter().copied();
            let mut excluded = rules.merge_others(others, |at| i64::from(at.avoiding > 0));
            excluded.add_all(own);
            rules.excluded = Some(excluded);
        }
        if rules.own_preferred.len() + rules.others_preferred.len() > UNMERGED_MAX {
            let own = rules.own_preferred.iter().map(|(term, weight)| (*term, *weight));
            let others = rules.others_preferred.iter().copied();
            let own = rules.merge_own(own, |at, weight| at.matching * weight);
            let mut scores = rules.merge_others(others, |at| at.weight);
            scores.add_all(own);
            rules.scores = Some(scores);
        }
        rules
    }

    /// Sums over terms of the pod, by the pods that match.
    fn merge_own(
        &self,
        terms: impl Iterator<Item = (TermId, i64)>,
        counted: impl Fn(TermCount, i64) -> i64,
    ) -> MergedTerms {
        let mut merged = MergedTerms::default();
        for (term, weight) in terms {
            let values = self.ledger.affinity.term(term).values_matching();
            self.merge(&mut merged, term, values, |at| counted(at, weight));
        }
        merged
    }

    /// Sums over terms of other pods, by the pods that have them.
    fn merge_others(&self, terms: impl Iterator<Item = TermId>, counted: impl Fn(TermCount) -> i64) -> MergedTerms {
        let mut merged = MergedTerms::default();
        for term in terms {
            let values = self.ledger.affinity.term(term).values_carried();
            self.merge(&mut merged, term, values, &counted);
        }
        merged
    }

    fn merge(
        &self,
        merged: &mut MergedTerms,
        term: TermId,
        values: impl ExactSizeIterator<Item = Symbol>,
        counted: impl Fn(TermCount) -> i64,
    ) {
        self.ledger.note_work(1 + values.len());
        let key = self.ledger.affinity.key_id(term);
        if values.len() > 0 {
            merged.add_key(key);
        }
        for value in values {
            let amount = counted(self.count_of_others(term, Some(value)));
            if amount != 0 {
                merged.add(key, value, amount);
            }
        }
    }

    /// Counts of a term at one value of its topology key, or at all values, without the pod itself.
    fn count_of_others(&self, term: TermId, value: Option<Symbol>) -> TermCount {
        let index = &self.ledger.affinity;
        let row = index.term(term);
        let mut count = value.map_or(row.total, |value| row.at(value));
        if self.own_nodes.is_empty() {
            return count;
        }
        let key = index.key_of(term);
        let at_value = |node: &&NodeId| {
            key.value(**node)
                .is_some_and(|own| value.is_none_or(|value| own == value))
        };
        let times = self.own_nodes.iter().filter(at_value).count() as i64;
        if let Some(own) = self.own_counts.get(&term) {
            count.add(*own, -times);
        }
        count
    }

    /// Counts of a term at the node's value of its topology key; `None` = the node lacks the label.
    fn count_at_node(&self, term: TermId, node: NodeId) -> Option<TermCount> {
        let value = self.ledger.affinity.key_of(term).value(node)?;
        Some(self.count_of_others(term, Some(value)))
    }

    /// Whether a required rule rejects the node.
    pub(crate) fn check(&self, node: NodeId) -> Result<(), Check> {
        self.ledger.note_work(self.affinity.len());
        if self.has_port_conflict(node) {
            return Err(Check::HostPorts);
        }
        let meets = |term: &TermId, counted: fn(TermCount) -> i64| {
            self.count_at_node(*term, node).is_some_and(|at| counted(at) > 0)
        };
        let is_excluded = match &self.excluded {
            Some(excluded) => excluded.sum_at(self.ledger, node) > 0,
            None => {
                self.ledger
                    .note_work(self.anti_affinity.len() + self.others_anti_affinity.len());
                self.anti_affinity.iter().any(|term| meets(term, |at| at.matching))
                    || self
                        .others_anti_affinity
                        .iter()
                        .any(|term| meets(term, |at| at.avoiding))
            }
        };
        if is_excluded {
            return Err(Check::PodAntiAffinity);
        }
        // A node without the label never satisfies the term, as in kube-scheduler.
        let is_near = |term: &TermId| match self.count_at_node(*term, node) {
            Some(count) => self.is_first || count.matching > 0,
            None => false,
        };
        if !self.affinity.iter().all(is_near) {
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
        taken().any(|taken| self.ports.conflict_with(taken))
    }

    /// Whether anti-affinity excludes every value of some topology key, so that no node accepts the pod.
    pub(crate) fn rule_out_all_nodes(&self) -> bool {
        let index = &self.ledger.affinity;
        let present = self.ledger.present_nodes;
        let everywhere =
            |term: &TermId, values: &mut dyn ExactSizeIterator<Item = Symbol>, counted: fn(TermCount) -> i64| {
                let key = index.key_of(*term);
                values.len() >= key.value_count() && key.labelled_nodes() == present && {
                    self.ledger.note_work(values.len());
                    let met = values.filter(|value| counted(self.count_of_others(*term, Some(*value))) > 0);
                    met.count() == key.value_count()
                }
            };
        let own = |term: &TermId| everywhere(term, &mut index.term(*term).values_matching(), |at| at.matching);
        let others = |term: &TermId| everywhere(term, &mut index.term(*term).values_carried(), |at| at.avoiding);
        present > 0 && (self.anti_affinity.iter().any(own) || self.others_anti_affinity.iter().any(others))
    }

    /// The nodes that satisfy a required affinity term, if they are few.
    pub(crate) fn candidates(&self) -> Option<Vec<NodeId>> {
        /// They are few if they are at most one in this many nodes.
        const FEW_DIVISOR: usize = 8;
        if self.is_first {
            return None;
        }
        let index = &self.ledger.affinity;
        let most = self.ledger.nodes.len() / FEW_DIVISOR;
        let few = |term: &&TermId| {
            let (row, key) = (index.term(**term), index.key_of(**term));
            let values = row.values_matching();
            values.len() <= most && values.map(|value| key.nodes(value).len()).sum::<usize>() <= most
        };
        let term = self.affinity.iter().find(few)?;
        let (row, key) = (index.term(*term), index.key_of(*term));
        let matching = row.values_matching();
        Some(matching.flat_map(|value| key.nodes(value)).copied().collect())
    }

    /// Whether preferred terms can give nodes different scores.
    pub(crate) fn has_scores(&self) -> bool {
        let counts = |(term, _): &(TermId, i64)| self.count_of_others(*term, None).matching > 0;
        !self.others_preferred.is_empty() || self.own_preferred.iter().any(counts)
    }

    /// The score of the node by preferred pod affinity.
    pub(crate) fn score(&self, node: NodeId) -> i64 {
        if let Some(scores) = &self.scores {
            return weight_of(scores.sum_at(self.ledger, node));
        }
        self.ledger
            .note_work(self.own_preferred.len() + self.others_preferred.len());
        let own = self.own_preferred.iter().filter_map(|(term, weight)| {
            let count = self.count_at_node(*term, node)?;
            Some(count.matching * weight)
        });
        let others = self
            .others_preferred
            .iter()
            .filter_map(|term| Some(self.count_at_node(*term, node)?.weight));
        weight_of(own.chain(others).sum())
    }
}

fn weight_of(points: i64) -> i64 {
    points.clamp(-AFFINITY_POINTS_MAX, AFFINITY_POINTS_MAX) * AFFINITY_POINT
}
