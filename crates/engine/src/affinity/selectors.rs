//! Selectors of affinity terms, stored once for all terms of a namespace with the same selector.
//!
//! A label set lists the selectors that match it. A selector that is removed stays in these lists with an old generation;
//! a list drops such entries when it would have to grow. No removal therefore visits the label sets.

use rustc_hash::FxHashMap;

use crate::affinity::buckets::Buckets;
use crate::affinity::label_sets::{LabelSet, LabelSets};
use crate::ids::{LabelSetId, SelectorId, Symbol, TermId};
use crate::intern::Symbols;
use crate::model::{LabelSelector, Operator, PodAffinityTerm, Requirement};
use crate::reasons::AffinityTermBound;
use crate::steps;

/// Selects the pods that match all of these: one for an anti-affinity or preferred term, several for the required affinity
/// terms of a pod.
pub(crate) type PodSelectors = Vec<PodSelector>;

/// Selects pods by namespaces (`None` = all) and labels (`None` = no pod). Namespaces and values are sorted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PodSelector {
    namespaces: Option<Vec<String>>,
    labels: Option<LabelSelector>,
}

impl PodSelector {
    pub(crate) fn of(term: &PodAffinityTerm) -> PodSelector {
        let (mut namespaces, mut labels) = (term.namespaces.clone(), term.selector.clone());
        if let Some(namespaces) = &mut namespaces {
            namespaces.sort_unstable();
            namespaces.dedup();
        }
        for requirement in labels.iter_mut().flat_map(|labels| &mut labels.requirements) {
            requirement.values.sort_unstable();
        }
        PodSelector { namespaces, labels }
    }

    /// Whether only pods of this namespace can match.
    fn is_within(&self, namespace: &str) -> bool {
        self.namespaces.as_ref().is_some_and(|names| *names == [namespace])
    }

    fn matches(&self, set: &LabelSet, symbols: &Symbols) -> bool {
        let namespace = symbols.text(set.namespace);
        let in_namespace = self.namespaces.as_ref().is_none_or(|names| {
            let found = names.binary_search_by(|name| name.as_str().cmp(namespace));
            found.is_ok()
        });
        in_namespace
            && self
                .labels
                .as_ref()
                .is_some_and(|selector| selector.requirements.iter().all(|requirement| meets(set, requirement)))
    }

    /// The shortest list of `key=value` pairs of which a matching pod must have one; `None` = no requirement names values.
    fn pairs(&self) -> Option<Vec<String>> {
        let Some(labels) = &self.labels else {
            return Some(Vec::new());
        };
        let named = labels.requirements.iter().filter(|it| it.operator == Operator::In);
        let fewest = named.min_by_key(|requirement| requirement.values.len())?;
        let pair = |value: &String| format!("{}={value}", fewest.key);
        Some(fewest.values.iter().map(pair).collect())
    }

    fn requirements(&self) -> usize {
        self.labels.as_ref().map_or(0, |labels| labels.requirements.len())
    }
}

/// Whether a label set meets a requirement with sorted values.
fn meets(set: &LabelSet, requirement: &Requirement) -> bool {
    steps::count(1);
    let value = set.labels.get(&requirement.key);
    let is_listed = |value: &str| {
        let found = requirement
            .values
            .binary_search_by(|operand| operand.as_str().cmp(value));
        found.is_ok()
    };
    match requirement.operator {
        Operator::In => value.is_some_and(is_listed),
        Operator::NotIn => !value.is_some_and(is_listed),
        Operator::Exists | Operator::DoesNotExist | Operator::Gt | Operator::Lt => requirement.matches_value(value),
    }
}

/// All selectors in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selectors {
    rows: Vec<Selector>,
    ids: FxHashMap<(Symbol, PodSelectors), SelectorId>,
    free: Vec<SelectorId>,
    buckets: Buckets,
}

/// A selector of the pods of one namespace, called its owner.
#[derive(Clone, Debug)]
pub(crate) struct Selector {
    owner: Symbol,
    parts: PodSelectors,
    /// Terms with this selector.
    pub(crate) terms: Vec<TermId>,
    /// Whether the label sets that match list this selector.
    is_matched: bool,
    /// Counts the selectors that had this row.
    generation: u32,
}

/// A selector that matches a label set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SelectorRef {
    id: SelectorId,
    generation: u32,
}

impl Selector {
    /// The pairs of which a matching pod must have one; `None` = there are none such.
    fn pairs(&self) -> Option<Vec<String>> {
        let pairs = self.parts.iter().filter_map(PodSelector::pairs);
        let mut fewest = pairs.min_by_key(Vec::len)?;
        fewest.sort_unstable();
        fewest.dedup();
        Some(fewest)
    }

    /// The namespace of all pods that can match; `None` = they can be in other namespaces than the owner.
    fn scope(&self, symbols: &Symbols) -> Option<Symbol> {
        let owner = symbols.text(self.owner);
        let is_own = self.parts.iter().any(|part| part.is_within(owner));
        is_own.then_some(self.owner)
    }

    fn matches(&self, set: &LabelSet, symbols: &Symbols) -> bool {
        self.parts.iter().all(|part| part.matches(set, symbols))
    }

    /// Steps of work that a comparison with a label set counts as.
    fn work(&self) -> usize {
        self.parts.iter().map(|part| 1 + part.requirements()).sum()
    }
}

impl Selectors {
    /// The row of a selector that is in use.
    pub(crate) fn get(&self, matching: SelectorRef) -> Option<&Selector> {
        let row = &self.rows[matching.id.index()];
        (row.generation == matching.generation).then_some(row)
    }

    /// The id of a selector. The caller has to add a term to it.
    pub(crate) fn intern(&mut self, owner: Symbol, parts: PodSelectors) -> SelectorId {
        let key = (owner, parts);
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        let mut row = Selector {
            owner,
            parts: key.1.clone(),
            terms: Vec::new(),
            is_matched: false,
            generation: 0,
        };
        let id = self.free.pop().unwrap_or_else(|| SelectorId::new(self.rows.len()));
        match self.rows.get_mut(id.index()) {
            Some(old) => {
                row.generation = old.generation;
                *old = row;
            }
            None => self.rows.push(row),
        }
        self.ids.insert(key, id);
        id
    }

    /// Adds a term of a selector, and says whether the bounds allow it. If they do not, the caller removes the term.
    pub(crate) fn add_term(
        &mut self,
        id: SelectorId,
        term: TermId,
        symbols: &Symbols,
    ) -> Result<(), AffinityTermBound> {
        let row = &mut self.rows[id.index()];
        row.terms.push(term);
        self.buckets.add(id, row.owner, row.scope(symbols), row.pairs())
    }

    /// Removes a term of a selector; the last one removes the selector.
    pub(crate) fn remove_term(&mut self, id: SelectorId, term: TermId, symbols: &Symbols) {
        let row = &mut self.rows[id.index()];
        let at = row.terms.iter().rposition(|other| *other == term);
        row.terms
            .swap_remove(at.expect("a term is in the list of its selector"));
        self.buckets.remove(id, row.owner, row.scope(symbols), row.pairs());
        if !row.terms.is_empty() {
            return;
        }
        row.generation = row.generation.wrapping_add(1);
        let key = (row.owner, std::mem::take(&mut row.parts));
        self.ids.remove(&key);
        self.free.push(id);
    }

    /// The label sets that match a selector, and the steps that it took. They list the selector from now on.
    pub(crate) fn match_label_sets(
        &mut self,
        id: SelectorId,
        label_sets: &mut LabelSets,
        symbols: &Symbols,
    ) -> (Vec<LabelSetId>, usize) {
        let row = &self.rows[id.index()];
        let mut sets: Vec<LabelSetId> = match row.pairs() {
            Some(pairs) => pairs.iter().flat_map(|pair| label_sets.with_pair(pair)).collect(),
            None => label_sets.ids().collect(),
        };
        let steps = sets.len() * row.work();
        sets.sort_unstable();
        sets.retain(|set| row.matches(label_sets.row(*set), symbols));
        if !std::mem::replace(&mut self.rows[id.index()].is_matched, true) {
            let found = self.reference(id);
            sets.iter()
                .for_each(|set| self.list(&mut label_sets.row_mut(*set).selectors, found));
        }
        (sets, steps)
    }

    /// Matches a new label set with the selectors; returns the steps that it took.
    pub(crate) fn add_label_set(&self, set: LabelSetId, label_sets: &mut LabelSets, symbols: &Symbols) -> usize {
        let row = label_sets.row(set);
        let mut candidates = self.buckets.of(row);
        candidates.sort_unstable();
        candidates.dedup();
        let mut steps = 0;
        candidates.retain(|id| {
            let selector = &self.rows[id.index()];
            steps += selector.work();
            selector.is_matched && selector.matches(row, symbols)
        });
        let row = label_sets.row_mut(set);
        row.selectors = candidates.into_iter().map(|id| self.reference(id)).collect();
        steps
    }

    fn reference(&self, id: SelectorId) -> SelectorRef {
        let generation = self.rows[id.index()].generation;
        SelectorRef { id, generation }
    }

    /// Adds a selector to the list of a label set. A full list drops the selectors that are no longer in use.
    fn list(&self, list: &mut Vec<SelectorRef>, found: SelectorRef) {
        if list.len() == list.capacity() {
            list.retain(|other| self.get(*other).is_some());
        }
        list.push(found);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }
}
