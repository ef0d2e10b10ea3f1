//! Adds the labels and terms of pods to the index, and removes them.

use rustc_hash::FxHashMap;

use crate::affinity::selectors::{PodSelector, PodSelectors};
use crate::affinity::{AffinityIndex, MATCHING, ShapeTerms, Term, TermCount, TermsState};
use crate::ids::{PodId, SelectorId, ShapeId, Symbol, TermId};
use crate::ledger::Ledger;
use crate::model::{Constraints, PodAffinityTerm};
use crate::reasons::AffinityTermBound;

/// Steps of work that a new term counts as, apart from matching it with label sets.
const WORK_PER_TERM: usize = 16;

/// The terms of a shape while they are added.
struct NewTerms {
    terms: ShapeTerms,
    room: Result<(), AffinityTermBound>,
}

/// Labels and terms of a pod.
impl Ledger {
    /// Adds the labels of a pod that is on no node yet, and notes its terms for the next cycle unless other pods have them.
    pub(crate) fn add_pod_terms(&mut self, pod: PodId) {
        if self.affinity.enabled {
            self.add_label_set(pod);
        }
        if !self.has_terms(pod) {
            return;
        }
        let shape = self.pod(pod).shape;
        if self.is_shape_matched(shape) {
            self.shapes[shape.index()].indexed_pods += 1;
            return;
        }
        self.pods[pod.index()].terms = TermsState::New;
        self.affinity.waiting.add(pod);
    }

    /// Removes the labels and terms of a pod that is on no node any more.
    pub(crate) fn remove_pod_terms(&mut self, pod: PodId) {
        let row = &mut self.pods[pod.index()];
        let (state, shape) = (row.terms, row.shape);
        if let Some(member) = row.label_set.take()
            && let Some(moved) = self.affinity.label_sets.remove(member)
        {
            self.pods[moved.index()].label_set = Some(member);
        }
        if state != TermsState::Indexed {
            self.affinity.waiting.remove(pod);
        }
        let row = &mut self.shapes[shape.index()];
        if row.terms.is_none() {
            return;
        }
        // Terms that are not all matched have waiting pods only. Those that are left add them again.
        row.indexed_pods -= u32::from(state == TermsState::Indexed);
        if row.indexed_pods == 0
            && let Some(terms) = row.terms.take()
        {
            terms.all().for_each(|term| self.release_term(term));
            self.affinity.waiting.retry();
        }
    }

    /// Adds the labels of a pod.
    pub(crate) fn add_label_set(&mut self, pod: PodId) {
        let row = &mut self.pods[pod.index()];
        let AffinityIndex {
            label_sets, selectors, ..
        } = &mut self.affinity;
        let (member, is_new) = label_sets.add(pod, row.namespace, &row.labels);
        row.label_set = Some(member);
        if is_new {
            let steps = selectors.add_label_set(member.set, label_sets, &self.symbols);
            self.note_work(steps);
        } else {
            row.labels = label_sets.row(member.set).labels.clone();
        }
    }

    /// Adds a waiting pod to the counts of its terms, which are in the index.
    pub(super) fn index_pod(&mut self, pod: PodId) {
        let shape = self.pod(pod).shape;
        let row = &mut self.shapes[shape.index()];
        row.indexed_pods += 1;
        let carried = row.terms.as_ref().expect("the terms of the shape are in the index");
        let AffinityIndex { terms, keys, .. } = &mut self.affinity;
        let mut steps = 0;
        for node in self.pods[pod.index()].nodes_in_use() {
            for (term, change) in carried.carried_counts() {
                let term = &mut terms[term.index()];
                steps += 1;
                if let Some(value) = keys.row(term.key).value(node) {
                    term.add(value, change, 1);
                }
            }
        }
        self.note_work(steps);
    }
}

/// Terms of a shape.
impl Ledger {
    /// Whether the terms of a shape are in the index and matched with all label sets.
    pub(super) fn is_shape_matched(&self, shape: ShapeId) -> bool {
        let terms = self.shape(shape).terms.as_ref();
        terms.is_some_and(|terms| terms.unmatched.is_empty())
    }

    /// Adds the terms of a shape, not matched yet, or none of them if they exceed a bound.
    pub(super) fn add_shape_terms(&mut self, shape: ShapeId, owner: Symbol) -> Result<(), AffinityTermBound> {
        let constraints = std::mem::take(&mut self.shapes[shape.index()].constraints);
        let NewTerms { mut terms, room } = self.add_terms(&constraints, owner);
        self.shapes[shape.index()].constraints = constraints;
        if room.is_err() {
            terms.all().for_each(|term| self.release_term(term));
            return room;
        }
        terms
            .unmatched
            .sort_unstable_by_key(|id| (self.affinity.term(*id).selector, *id));
        terms.unmatched.dedup();
        self.shapes[shape.index()].terms = Some(Box::new(terms));
        Ok(())
    }

    /// Adds the terms one by one, until one has no room.
    fn add_terms(&mut self, constraints: &Constraints, owner: Symbol) -> NewTerms {
        let Constraints {
            affinity,
            anti_affinity,
            ..
        } = constraints;
        let mut new = NewTerms {
            terms: ShapeTerms::default(),
            room: Ok(()),
        };
        self.add_required_affinity(&mut new, &affinity.required, owner);
        for term in &anti_affinity.required {
            let Some(term) = self.add_one(&mut new, term, owner) else {
                break;
            };
            if new.terms.required_anti_affinity.contains(&term) {
                self.release_term(term);
            } else {
                new.terms.required_anti_affinity.push(term);
            }
        }
        let preferred = [(&affinity.preferred, 1), (&anti_affinity.preferred, -1)];
        for (weighted, sign) in preferred
            .into_iter()
            .flat_map(|(all, sign)| all.iter().map(move |it| (it, sign)))
        {
            let Some(term) = self.add_one(&mut new, &weighted.term, owner) else {
                break;
            };
            new.terms.preferred.push((term, sign * i64::from(weighted.weight)));
        }
        new
    }

    /// Adds the required affinity terms of a pod: they have one selector, with all topology keys.
    fn add_required_affinity(&mut self, new: &mut NewTerms, terms: &[PodAffinityTerm], owner: Symbol) {
        if terms.is_empty() {
            return;
        }
        let selector = self.intern_selector(terms.iter().map(PodSelector::of).collect(), owner);
        for term in terms {
            let term = self.add_term(new, selector, &term.topology_key);
            if new.terms.required_affinity.contains(&term) {
                self.release_term(term);
            } else {
                new.terms.required_affinity.push(term);
            }
            if new.room.is_err() {
                return;
            }
        }
    }

    /// Adds a term with a selector of its own; `None` = a term before it had no room.
    fn add_one(&mut self, new: &mut NewTerms, term: &PodAffinityTerm, owner: Symbol) -> Option<TermId> {
        if new.room.is_err() {
            return None;
        }
        let selector = self.intern_selector(vec![PodSelector::of(term)], owner);
        Some(self.add_term(new, selector, &term.topology_key))
    }

    fn intern_selector(&mut self, parts: PodSelectors, owner: Symbol) -> SelectorId {
        self.note_work(parts.len());
        self.affinity.selectors.intern(owner, parts)
    }

    /// Adds a reference to a term. A term that is new has no counts yet.
    fn add_term(&mut self, new: &mut NewTerms, selector: SelectorId, topology_key: &str) -> TermId {
        let AffinityIndex {
            selectors,
            keys,
            terms,
            free_terms,
            term_ids,
            ..
        } = &mut self.affinity;
        let (key, steps) = keys.add_term(topology_key, &self.nodes, &mut self.symbols);
        let id = match term_ids.get(&(selector, key)) {
            Some(id) => {
                keys.remove_term(key);
                terms[id.index()].references += 1;
                *id
            }
            None => {
                let id = free_terms.pop().unwrap_or_else(|| TermId::new(terms.len()));
                let term = Term {
                    selector,
                    key,
                    references: 1,
                    is_matched: false,
                    matching: FxHashMap::default(),
                    carried: FxHashMap::default(),
                    total: TermCount::default(),
                };
                match terms.get_mut(id.index()) {
                    Some(free) => *free = term,
                    None => terms.push(term),
                }
                term_ids.insert((selector, key), id);
                let room = selectors.add_term(selector, id, &self.symbols);
                new.room = new.room.and(room);
                id
            }
        };
        if !terms[id.index()].is_matched {
            new.terms.unmatched.push(id);
        }
        self.note_work(WORK_PER_TERM + steps);
        id
    }

    /// Matches terms of a shape with all label sets until the work is done or `end` is reached; returns whether it is done.
    pub(super) fn match_terms(&mut self, shape: ShapeId, end: u64) -> bool {
        while self.work() < end {
            let terms = self.shapes[shape.index()].terms.as_mut();
            let unmatched = &mut terms.expect("the terms of the shape are in the index").unmatched;
            let index = &self.affinity;
            let selector_of = |id: &TermId| index.term(*id).selector;
            let Some(selector) = unmatched.last().map(selector_of) else {
                return true;
            };
            let first = unmatched.partition_point(|id| selector_of(id) < selector);
            let mut same = unmatched.split_off(first);
            same.retain(|id| !index.term(*id).is_matched);
            self.match_selector(selector, &same);
        }
        self.is_shape_matched(shape)
    }

    /// Matches terms with one selector, and counts the pods on nodes that match.
    fn match_selector(&mut self, selector: SelectorId, new_terms: &[TermId]) {
        if new_terms.is_empty() {
            return;
        }
        let AffinityIndex {
            label_sets,
            selectors,
            keys,
            terms,
            ..
        } = &mut self.affinity;
        new_terms.iter().for_each(|term| terms[term.index()].is_matched = true);
        let (sets, mut steps) = selectors.match_label_sets(selector, label_sets, &self.symbols);
        for pod in sets.iter().flat_map(|set| &label_sets.row(*set).pods) {
            steps += 1;
            for node in self.pods[pod.index()].nodes_in_use() {
                steps += new_terms.len();
                for term in new_terms {
                    let term = &mut terms[term.index()];
                    if let Some(value) = keys.row(term.key).value(node) {
                        term.add(value, MATCHING, 1);
                    }
                }
            }
        }
        self.note_work(steps);
    }

    fn release_term(&mut self, id: TermId) {
        let AffinityIndex {
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
        (term.matching, term.carried) = (FxHashMap::default(), FxHashMap::default());
        term.total = TermCount::default();
        selectors.remove_term(term.selector, id, &self.symbols);
        keys.remove_term(term.key);
        term_ids.remove(&(term.selector, term.key));
        free_terms.push(id);
        self.note_work(1);
    }
}
