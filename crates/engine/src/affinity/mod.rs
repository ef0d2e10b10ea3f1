//! An index for pod affinity and anti-affinity: for each distinct term (selector and topology key) and each value of the
//! node label, how many pods on nodes match the term, and how many have the term in their spec.
//!
//! The ledger updates the counts with every pod that is added to a node or removed from it, also in a rollback. Labels are
//! matched with a selector once for all pods with the same labels. The index does not decide where a pod may be placed.
//!
//! Events add no terms: a cycle begins with the terms that are new (`waiting`), within its budget of work and within bounds
//! on the terms that can match one pod (`buckets`). A pod whose terms are not in the index is not placed.

mod buckets;
mod keys;
mod label_sets;
#[cfg(test)]
mod laws;
mod selectors;
mod terms;
#[cfg(all(test, debug_assertions))]
mod tests;
mod waiting;

use rustc_hash::FxHashMap;

use crate::ids::{NodeId, PodId, SelectorId, Symbol, TermId, TopologyKeyId};
use crate::ledger::Ledger;
use crate::model::Constraints;

pub(crate) use buckets::{TERMS_OF_ALL_MAX, TERMS_OF_NAMESPACE_MAX};
use keys::{TopologyKey, TopologyKeys};
pub(crate) use label_sets::LabelSetMember;
use label_sets::LabelSets;
use selectors::Selectors;
pub(crate) use waiting::TermsState;
use waiting::WaitingPods;

/// The index; a part of the ledger.
#[derive(Clone, Debug, Default)]
pub(crate) struct AffinityIndex {
    /// Whether a pod with affinity terms was ever seen. Only then are pods indexed by their labels.
    enabled: bool,
    label_sets: LabelSets,
    selectors: Selectors,
    keys: TopologyKeys,
    terms: Vec<Term>,
    free_terms: Vec<TermId>,
    term_ids: FxHashMap<(SelectorId, TopologyKeyId), TermId>,
    waiting: WaitingPods,
}

/// A term of at least one pod.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    selector: SelectorId,
    key: TopologyKeyId,
    /// How many times shapes with indexed pods refer to the term.
    references: u32,
    /// Whether the pods on nodes that match are counted, and label sets list the selector.
    is_matched: bool,
    /// Pods that match, by value.
    matching: FxHashMap<Symbol, i64>,
    /// Pods that have the term, by value: `matching` is 0.
    carried: FxHashMap<Symbol, TermCount>,
    /// The sum over all values.
    pub(crate) total: TermCount,
}

/// Counts over the pods on nodes with one value of a topology key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TermCount {
    /// Pods that match the term.
    pub(crate) matching: i64,
    /// Pods that have the term as required anti-affinity.
    pub(crate) avoiding: i64,
    /// How many times pods have the term as a preference.
    pub(crate) preferring: i64,
    /// Sum of the weights of these preferences, negative for anti-affinity.
    pub(crate) weight: i64,
}

/// The count of one pod that matches.
const MATCHING: TermCount = TermCount {
    matching: 1,
    avoiding: 0,
    preferring: 0,
    weight: 0,
};

impl TermCount {
    pub(crate) fn add(&mut self, other: TermCount, sign: i64) {
        self.matching += sign * other.matching;
        self.avoiding += sign * other.avoiding;
        self.preferring += sign * other.preferring;
        self.weight += sign * other.weight;
    }
}

impl Term {
    pub(crate) fn at(&self, value: Symbol) -> TermCount {
        TermCount {
            matching: self.matching.get(&value).copied().unwrap_or_default(),
            ..self.carried.get(&value).copied().unwrap_or_default()
        }
    }

    /// Values with pods that match.
    pub(crate) fn values_matching(&self) -> impl ExactSizeIterator<Item = Symbol> {
        self.matching.keys().copied()
    }

    /// Values with pods that have the term.
    pub(crate) fn values_carried(&self) -> impl ExactSizeIterator<Item = Symbol> {
        self.carried.keys().copied()
    }

    fn add(&mut self, value: Symbol, change: TermCount, sign: i64) {
        self.total.add(change, sign);
        if change.matching != 0 {
            let count = self.matching.entry(value).or_default();
            *count += sign * change.matching;
            if *count == 0 {
                self.matching.remove(&value);
            }
            return;
        }
        let count = self.carried.entry(value).or_default();
        count.add(change, sign);
        if *count == TermCount::default() {
            self.carried.remove(&value);
        }
    }
}

/// The terms of a shape.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShapeTerms {
    /// A pod matches only if it matches all of these terms at once, as in kube-scheduler.
    pub(crate) required_affinity: Vec<TermId>,
    pub(crate) required_anti_affinity: Vec<TermId>,
    /// Preferences with their weights, negative for anti-affinity.
    pub(crate) preferred: Vec<(TermId, i64)>,
    /// Terms that may still have to be matched with label sets; the terms of one selector follow each other.
    unmatched: Vec<TermId>,
}

impl ShapeTerms {
    fn all(&self) -> impl Iterator<Item = TermId> {
        let preferred = self.preferred.iter().map(|(term, _)| term);
        self.required_affinity
            .iter()
            .chain(&self.required_anti_affinity)
            .chain(preferred)
            .copied()
    }

    /// What one pod of the shape adds to the counts of its terms.
    fn carried_counts(&self) -> impl Iterator<Item = (TermId, TermCount)> {
        let avoiding = TermCount {
            avoiding: 1,
            ..TermCount::default()
        };
        let preferring = |weight: i64| TermCount {
            preferring: 1,
            weight,
            ..TermCount::default()
        };
        let anti_affinity = self.required_anti_affinity.iter().map(move |term| (*term, avoiding));
        anti_affinity.chain(
            self.preferred
                .iter()
                .map(move |(term, weight)| (*term, preferring(*weight))),
        )
    }
}

impl AffinityIndex {
    /// Whether pods are indexed by their labels.
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Indexes pods by their labels from now on. The caller adds the pods that exist already.
    pub(crate) fn enable(&mut self) {
        self.enabled = true;
    }

    /// Label sets, selectors, topology keys and terms in use.
    #[cfg(test)]
    pub(crate) fn sizes(&self) -> [usize; 4] {
        let terms = self.terms.len() - self.free_terms.len();
        [self.label_sets.len(), self.selectors.len(), self.keys.len(), terms]
    }

    pub(crate) fn term(&self, id: TermId) -> &Term {
        &self.terms[id.index()]
    }

    pub(crate) fn key_of(&self, term: TermId) -> &TopologyKey {
        self.keys.row(self.term(term).key)
    }

    pub(crate) fn key_id(&self, term: TermId) -> TopologyKeyId {
        self.term(term).key
    }

    /// The node's value of a topology key.
    pub(crate) fn value_on(&self, key: TopologyKeyId, node: NodeId) -> Option<Symbol> {
        self.keys.row(key).value(node)
    }
}

impl Ledger {
    /// Whether the pod's spec has affinity terms.
    pub(crate) fn has_terms(&self, pod: PodId) -> bool {
        let Constraints {
            affinity,
            anti_affinity,
            ..
        } = &self.shape_of(pod).constraints;
        !affinity.is_empty() || !anti_affinity.is_empty()
    }

    /// Terms that match the pod.
    pub(crate) fn terms_matching(&self, pod: PodId) -> impl Iterator<Item = TermId> {
        let set = self.pod(pod).label_set.map(|member| member.set);
        let matching = set
            .into_iter()
            .flat_map(|set| &self.affinity.label_sets.row(set).selectors);
        let selectors = matching.filter_map(|matching| self.affinity.selectors.get(*matching));
        let terms = selectors.flat_map(|selector| &selector.terms).copied();
        terms.filter(|term| self.affinity.term(*term).is_matched)
    }

    /// The pod's own terms, if they are in the index.
    pub(crate) fn terms_of(&self, pod: PodId) -> Option<&ShapeTerms> {
        let row = self.pod(pod);
        let is_indexed = row.terms == TermsState::Indexed;
        self.shape(row.shape).terms.as_deref().filter(|_| is_indexed)
    }

    /// What the pod adds to the counts of its terms and of those that match it, on each node that it is on.
    pub(crate) fn counts_of(&self, pod: PodId) -> FxHashMap<TermId, TermCount> {
        let mut counts: FxHashMap<TermId, TermCount> = FxHashMap::default();
        let matching = self.terms_matching(pod).map(|term| (term, MATCHING));
        let carried = self.terms_of(pod).into_iter().flat_map(ShapeTerms::carried_counts);
        for (term, change) in matching.chain(carried) {
            counts.entry(term).or_default().add(change, 1);
        }
        self.note_work(counts.len());
        counts
    }

    /// Counts a pod that is added to a node (`sign` 1) or removed from it (-1).
    pub(crate) fn count_terms(&mut self, pod: PodId, node: NodeId, sign: i64) {
        let row = &self.pods[pod.index()];
        let AffinityIndex {
            label_sets,
            selectors,
            terms,
            keys,
            ..
        } = &mut self.affinity;
        let mut steps = 0;
        let mut count = |id: TermId, change: TermCount| {
            let term = &mut terms[id.index()];
            steps += 1;
            if let Some(value) = keys.row(term.key).value(node).filter(|_| term.is_matched) {
                term.add(value, change, sign);
            }
        };
        if let Some(member) = row.label_set {
            let matching = &label_sets.row(member.set).selectors;
            for selector in matching.iter().filter_map(|matching| selectors.get(*matching)) {
                selector.terms.iter().for_each(|term| count(*term, MATCHING));
            }
        }
        if let Some(carried) = &self.shapes[row.shape.index()].terms
            && row.terms == TermsState::Indexed
        {
            carried.carried_counts().for_each(|(term, change)| count(term, change));
        }
        if steps > 0 {
            self.note_work(steps);
        }
    }

    /// Adds the labels of a node.
    pub(crate) fn add_node_labels(&mut self, node: NodeId) {
        let labels = &self.nodes[node.index()].labels;
        self.affinity.keys.add_node(node, labels, &mut self.symbols);
    }

    /// Removes the labels of a node without pods, before they change or the node goes.
    pub(crate) fn remove_node_labels(&mut self, node: NodeId) {
        self.affinity.keys.remove_node(node, &self.nodes[node.index()].labels);
    }
}
