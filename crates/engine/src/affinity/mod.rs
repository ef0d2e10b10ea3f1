//! Pod affinity and anti-affinity as an index: for each distinct term (selector and topology key) and each value of the
//! node label, how many pods in place match the term, and how many carry it.
//!
//! The ledger keeps the counts with every pod that comes to a node or leaves it, rollbacks included. Whether the labels of
//! pods match a term is decided once for all pods with the same labels. Nothing here decides where a pod may go.

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
use selectors::{Part, Parts, Selectors};

use keys::{TopologyKey, TopologyKeys};

/// The index.
#[derive(Clone, Debug, Default)]
pub(crate) struct AffinityIndex {
    /// Some pod has or had affinity terms: all pods are listed by their labels.
    enabled: bool,
    label_sets: LabelSets,
    selectors: Selectors,
    keys: TopologyKeys,
    terms: Vec<Term>,
    free_terms: Vec<TermId>,
    term_ids: FxHashMap<(SelectorId, TopologyKeyId), TermId>,
}

/// A term that pods have.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    selector: SelectorId,
    key: TopologyKeyId,
    /// How often shapes of pods have it.
    users: u32,
    counts: FxHashMap<Symbol, TermCount>,
    /// The sum over all values.
    pub(crate) total: TermCount,
}

/// Pods in place on nodes with one value of a topology key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TermCount {
    /// Pods that match the term.
    pub(crate) matching: i64,
    /// Pods that carry the term as required anti-affinity.
    pub(crate) avoiding: i64,
    /// How often pods carry the term as a preference.
    pub(crate) preferring: i64,
    /// Weights of these preferences, negative for anti-affinity.
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

    /// Values with pods that match or carry the term.
    pub(crate) fn values(&self) -> impl Iterator<Item = (Symbol, TermCount)> {
        self.counts.iter().map(|(value, count)| (*value, *count))
    }

    /// How many values these are.
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

/// The terms of the pods of a shape.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShapeTerms {
    /// Required affinity: a matching pod has to match all terms at once, as in kube-scheduler.
    pub(crate) required_affinity: Vec<TermId>,
    /// Required anti-affinity.
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

    /// What one pod adds to the counts of terms that it carries.
    fn carried(&self) -> impl Iterator<Item = (TermId, TermCount)> {
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
    /// Whether pods are listed by their labels.
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Lists pods by their labels from now on. The caller adds those that there are.
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

    /// Lists a pod that has no place yet by its labels and terms.
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

    /// The reverse, for a pod that has no place any more.
    pub(crate) fn drop_pod_terms(&mut self, pod: PodId) {
        let shape = self.pod(pod).shape;
        let row = &mut self.shapes[shape.index()];
        row.pods -= 1;
        if row.pods == 0
            && let Some(terms) = row.terms.take()
        {
            terms.all().for_each(|term| self.drop_term(term));
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

    /// Lists a pod by its labels.
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
            let together = self.add_selector(affinity.required.iter().map(Part::of).collect());
            for term in &affinity.required {
                let term = self.add_term(together, &term.topology_key);
                self.add_once(&mut terms.required_affinity, term);
            }
        }
        for term in &anti_affinity.required {
            let selector = self.add_selector(vec![Part::of(term)]);
            let term = self.add_term(selector, &term.topology_key);
            self.add_once(&mut terms.required_anti_affinity, term);
        }
        for (preferred, sign) in [(&affinity.preferred, 1), (&anti_affinity.preferred, -1)] {
            for weighted in preferred {
                let PodAffinityTerm { topology_key, .. } = &weighted.term;
                let selector = self.add_selector(vec![Part::of(&weighted.term)]);
                let term = self.add_term(selector, topology_key);
                terms.preferred.push((term, sign * i64::from(weighted.weight)));
            }
        }
        terms
    }

    /// Adds a term to a list that has each once.
    fn add_once(&mut self, terms: &mut Vec<TermId>, term: TermId) {
        if terms.contains(&term) {
            self.drop_term(term);
        } else {
            terms.push(term);
        }
    }

    /// The selector with these parts. A term of it has to follow.
    fn add_selector(&mut self, parts: Parts) -> SelectorId {
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
            terms[id.index()].users += 1;
            return *id;
        }
        let mut term = Term {
            selector,
            key,
            users: 1,
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

    fn drop_term(&mut self, id: TermId) {
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
        term.users -= 1;
        if term.users > 0 {
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

    /// A pod comes to a node (`sign` 1) or leaves it (-1).
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
            carried.carried().for_each(|(term, change)| count(term, change));
        }
        if steps > 0 {
            self.note_work(steps);
        }
    }

    /// A node has its labels now.
    pub(crate) fn learn_node_labels(&mut self, node: NodeId) {
        let labels = &self.nodes[node.index()].labels;
        self.affinity.keys.learn_node(node, labels, &mut self.symbols);
    }

    /// A node without pods is about to lose or change its labels.
    pub(crate) fn forget_node_labels(&mut self, node: NodeId) {
        self.affinity.keys.forget_node(node, &self.nodes[node.index()].labels);
    }
}
