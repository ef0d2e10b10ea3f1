//! An index for pod affinity and anti-affinity: for each distinct term (selector and topology key) and each value of the
//! node label, how many pods on nodes match the term, and how many have the term in their spec.
//!
//! The ledger updates the counts with every pod that is added to a node or removed from it, also in a rollback. Labels are
//! matched with a term once for all pods with the same labels. The index does not decide where a pod may be placed.

mod keys;
mod label_sets;
#[cfg(test)]
mod laws;
mod selectors;

use rustc_hash::FxHashMap;

use crate::ids::{NodeId, PodId, SelectorId, Symbol, TermId, TopologyKeyId};
use crate::ledger::Ledger;
use crate::model::{Constraints, PodAffinityTerm};
use label_sets::{LabelSets, remove_item};
use selectors::{PodSelector, PodSelectors, Selectors};

use keys::{TopologyKey, TopologyKeys};

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
}

/// A term of at least one pod.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    selector: SelectorId,
    key: TopologyKeyId,
    /// How many times shapes refer to the term.
    references: u32,
    counts: FxHashMap<Symbol, TermCount>,
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

impl TermCount {
    fn add(&mut self, other: TermCount, sign: i64) {
        self.matching += sign * other.matching;
        self.avoiding += sign * other.avoiding;
        self.preferring += sign * other.preferring;
        self.weight += sign * other.weight;
    }
}

impl Term {
    pub(crate) fn at(&self, value: Symbol) -> TermCount {
        self.counts.get(&value).copied().unwrap_or_default()
    }

    /// Values with pods that match or have the term.
    pub(crate) fn values(&self) -> impl Iterator<Item = (Symbol, TermCount)> {
        self.counts.iter().map(|(value, count)| (*value, *count))
    }

    /// The number of [`Term::values`].
    pub(crate) fn value_count(&self) -> usize {
        self.counts.len()
    }

    fn add(&mut self, value: Symbol, change: TermCount, sign: i64) {
        self.total.add(change, sign);
        let count = self.counts.entry(value).or_default();
        count.add(change, sign);
        if *count == TermCount::default() {
            self.counts.remove(&value);
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
    pub(crate) fn terms_matching(&self, pod: PodId) -> &[TermId] {
        match self.pod(pod).label_set {
            Some(set) => &self.affinity.label_sets.row(set).terms,
            None => &[],
        }
    }

    /// Adds the labels and terms of a pod that is on no node yet.
    pub(crate) fn add_pod_terms(&mut self, pod: PodId) {
        if self.affinity.enabled {
            self.add_label_set(pod);
        }
        let shape = self.pod(pod).shape;
        self.shapes[shape.index()].pods += 1;
        if self.shape(shape).pods == 1 && self.has_terms(pod) {
            let constraints = self.shape(shape).constraints.clone();
            let terms = self.add_terms(&constraints);
            self.shapes[shape.index()].terms = Some(Box::new(terms));
        }
    }

    /// Removes the labels and terms of a pod that is on no node any more.
    pub(crate) fn remove_pod_terms(&mut self, pod: PodId) {
        let shape = self.pod(pod).shape;
        let row = &mut self.shapes[shape.index()];
        row.pods -= 1;
        if row.pods == 0
            && let Some(terms) = row.terms.take()
        {
            terms.all().for_each(|term| self.release_term(term));
        }
        let Some(set) = self.pods[pod.index()].label_set.take() else {
            return;
        };
        let index = &mut self.affinity;
        let mut selectors: Vec<SelectorId> = {
            let terms = index.label_sets.row(set).terms.iter();
            terms.map(|term| index.terms[term.index()].selector).collect()
        };
        if index.label_sets.remove(set, pod) {
            selectors.sort_unstable();
            selectors.dedup();
            for selector in selectors {
                index.selectors.remove_label_set(selector, set);
            }
        }
    }

    /// Adds the labels of a pod.
    pub(crate) fn add_label_set(&mut self, pod: PodId) {
        let row = &mut self.pods[pod.index()];
        let AffinityIndex {
            label_sets, selectors, ..
        } = &mut self.affinity;
        let (set, is_new) = label_sets.add(pod, row.namespace, &row.labels);
        row.label_set = Some(set);
        if is_new {
            let terms = selectors.add_label_set(set, label_sets.row(set), &self.symbols);
            label_sets.row_mut(set).terms = terms;
        } else {
            row.labels = label_sets.row(set).labels.clone();
        }
    }

    fn add_terms(&mut self, constraints: &Constraints) -> ShapeTerms {
        let Constraints {
            affinity,
            anti_affinity,
            ..
        } = constraints;
        let mut terms = ShapeTerms::default();
        if !affinity.required.is_empty() {
            let together = self.add_selector(affinity.required.iter().map(PodSelector::of).collect());
            for term in &affinity.required {
                let term = self.add_term(together, &term.topology_key);
                self.add_once(&mut terms.required_affinity, term);
            }
        }
        for term in &anti_affinity.required {
            let selector = self.add_selector(vec![PodSelector::of(term)]);
            let term = self.add_term(selector, &term.topology_key);
            self.add_once(&mut terms.required_anti_affinity, term);
        }
        for (preferred, sign) in [(&affinity.preferred, 1), (&anti_affinity.preferred, -1)] {
            for weighted in preferred {
                let PodAffinityTerm { topology_key, .. } = &weighted.term;
                let selector = self.add_selector(vec![PodSelector::of(&weighted.term)]);
                let term = self.add_term(selector, topology_key);
                terms.preferred.push((term, sign * i64::from(weighted.weight)));
            }
        }
        terms
    }

    /// Adds a term to a list unless the list has it; then the reference is released.
    fn add_once(&mut self, terms: &mut Vec<TermId>, term: TermId) {
        if terms.contains(&term) {
            self.release_term(term);
        } else {
            terms.push(term);
        }
    }

    /// Interns a selector. The caller has to add a term with it.
    fn add_selector(&mut self, parts: PodSelectors) -> SelectorId {
        let AffinityIndex {
            label_sets, selectors, ..
        } = &mut self.affinity;
        selectors.intern(parts, label_sets, &self.symbols)
    }

    fn add_term(&mut self, selector: SelectorId, topology_key: &str) -> TermId {
        let AffinityIndex {
            label_sets,
            selectors,
            keys,
            terms,
            free_terms,
            term_ids,
            ..
        } = &mut self.affinity;
        let key = keys.add_term(topology_key, &self.nodes, &mut self.symbols);
        if let Some(id) = term_ids.get(&(selector, key)) {
            keys.remove_term(key);
            terms[id.index()].references += 1;
            return *id;
        }
        let mut term = Term {
            selector,
            key,
            references: 1,
            counts: FxHashMap::default(),
            total: TermCount::default(),
        };
        let matching = TermCount {
            matching: 1,
            ..TermCount::default()
        };
        for set in &selectors.row(selector).label_sets {
            for pod in &label_sets.row(*set).pods {
                for node in self.pods[pod.index()].nodes_in_use() {
                    if let Some(value) = keys.row(key).value(node) {
                        term.add(value, matching, 1);
                    }
                }
            }
        }
        let id = free_terms.pop().unwrap_or_else(|| TermId::new(terms.len()));
        if id.index() == terms.len() {
            terms.push(term);
        } else {
            terms[id.index()] = term;
        }
        selectors.add_term(selector, id);
        for set in &selectors.row(selector).label_sets {
            label_sets.row_mut(*set).terms.push(id);
        }
        term_ids.insert((selector, key), id);
        id
    }

    fn release_term(&mut self, id: TermId) {
        let AffinityIndex {
            label_sets,
            selectors,
            keys,
            terms,
            free_terms,
            term_ids,
            ..
        } = &mut self.affinity;
        let term = &mut terms[id.index()];
        term.references -= 1;
        if term.references > 0 {
            return;
        }
        term.counts = FxHashMap::default();
        term.total = TermCount::default();
        for set in &selectors.row(term.selector).label_sets {
            remove_item(&mut label_sets.row_mut(*set).terms, id);
        }
        selectors.remove_term(term.selector, id);
        keys.remove_term(term.key);
        term_ids.remove(&(term.selector, term.key));
        free_terms.push(id);
    }

    /// Counts a pod that is added to a node (`sign` 1) or removed from it (-1).
    pub(crate) fn count_terms(&mut self, pod: PodId, node: NodeId, sign: i64) {
        let row = &self.pods[pod.index()];
        let AffinityIndex {
            label_sets,
            terms,
            keys,
            ..
        } = &mut self.affinity;
        let mut steps = 0;
        let mut count = |id: TermId, change: TermCount| {
            let term = &mut terms[id.index()];
            steps += 1;
            if let Some(value) = keys.row(term.key).value(node) {
                term.add(value, change, sign);
            }
        };
        if let Some(set) = row.label_set {
            let matching = TermCount {
                matching: 1,
                ..TermCount::default()
            };
            for term in &label_sets.row(set).terms {
                count(*term, matching);
            }
        }
        if let Some(carried) = &self.shapes[row.shape.index()].terms {
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
