//! Selectors of affinity terms, stored once for all terms with the same selector.

use rustc_hash::FxHashMap;

use crate::affinity::label_sets::{LabelSet, LabelSets, remove_item};
use crate::ids::{LabelSetId, SelectorId, TermId};
use crate::intern::Symbols;
use crate::model::{LabelSelector, Operator, PodAffinityTerm};

/// Selects the pods that match all of these: one for an anti-affinity or preferred term, several for the required affinity
/// terms of a pod.
pub(crate) type PodSelectors = Vec<PodSelector>;

/// Selects pods by namespaces (`None` = all) and labels (`None` = no pod).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PodSelector {
    namespaces: Option<Vec<String>>,
    labels: Option<LabelSelector>,
}

impl PodSelector {
    pub(crate) fn of(term: &PodAffinityTerm) -> PodSelector {
        PodSelector {
            namespaces: term.namespaces.clone(),
            labels: term.selector.clone(),
        }
    }

    fn matches(&self, set: &LabelSet, symbols: &Symbols) -> bool {
        let namespace = symbols.text(set.namespace);
        let in_namespace = self
            .namespaces
            .as_ref()
            .is_none_or(|names| names.iter().any(|name| name == namespace));
        in_namespace
            && self
                .labels
                .as_ref()
                .is_some_and(|selector| selector.matches(|key| set.labels.get(key)))
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
}

/// All selectors in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selectors {
    rows: Vec<Selector>,
    ids: FxHashMap<PodSelectors, SelectorId>,
    free: Vec<SelectorId>,
    /// Selectors by each of their `key=value` pairs.
    by_pair: FxHashMap<String, Vec<SelectorId>>,
    /// Selectors without pairs: every label set has to be compared with them.
    without_pair: Vec<SelectorId>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    parts: PodSelectors,
    /// Label sets that match.
    pub(crate) label_sets: Vec<LabelSetId>,
    /// Terms with this selector.
    pub(crate) terms: Vec<TermId>,
}

impl Selector {
    fn pairs(&self) -> Option<Vec<String>> {
        let pairs = self.parts.iter().filter_map(PodSelector::pairs);
        let mut fewest = pairs.min_by_key(Vec::len)?;
        fewest.sort_unstable();
        fewest.dedup();
        Some(fewest)
    }

    fn matches(&self, set: &LabelSet, symbols: &Symbols) -> bool {
        self.parts.iter().all(|part| part.matches(set, symbols))
    }
}

impl Selectors {
    pub(crate) fn row(&self, id: SelectorId) -> &Selector {
        &self.rows[id.index()]
    }

    /// The id of a selector. A new selector is matched with all label sets.
    pub(crate) fn intern(&mut self, parts: PodSelectors, label_sets: &LabelSets, symbols: &Symbols) -> SelectorId {
        if let Some(id) = self.ids.get(&parts) {
            return *id;
        }
        let mut row = Selector {
            parts: parts.clone(),
            ..Selector::default()
        };
        let id = self.free.pop().unwrap_or_else(|| {
            self.rows.push(Selector::default());
            SelectorId::new(self.rows.len() - 1)
        });
        let mut candidates: Vec<LabelSetId> = match row.pairs() {
            Some(pairs) => {
                let sets = pairs.iter().flat_map(|pair| label_sets.with_pair(pair));
                let sets = sets.copied().collect();
                for pair in pairs {
                    self.by_pair.entry(pair).or_default().push(id);
                }
                sets
            }
            None => {
                self.without_pair.push(id);
                label_sets.ids().collect()
            }
        };
        candidates.sort_unstable();
        candidates.dedup();
        candidates.retain(|set| row.matches(label_sets.row(*set), symbols));
        row.label_sets = candidates;
        self.rows[id.index()] = row;
        self.ids.insert(parts, id);
        id
    }

    /// Adds a term of a selector.
    pub(crate) fn add_term(&mut self, id: SelectorId, term: TermId) {
        self.rows[id.index()].terms.push(term);
    }

    /// Removes a term of a selector; the last one removes the selector.
    pub(crate) fn remove_term(&mut self, id: SelectorId, term: TermId) {
        remove_item(&mut self.rows[id.index()].terms, term);
        if !self.rows[id.index()].terms.is_empty() {
            return;
        }
        let row = std::mem::take(&mut self.rows[id.index()]);
        match row.pairs() {
            Some(pairs) => {
                for pair in pairs {
                    if let Some(selectors) = self.by_pair.get_mut(&pair) {
                        remove_item(selectors, id);
                        if selectors.is_empty() {
                            self.by_pair.remove(&pair);
                        }
                    }
                }
            }
            None => remove_item(&mut self.without_pair, id),
        }
        self.ids.remove(&row.parts);
        self.free.push(id);
    }

    /// Matches a new label set with the selectors, and returns the terms of those that match.
    pub(crate) fn add_label_set(&mut self, id: LabelSetId, set: &LabelSet, symbols: &Symbols) -> Vec<TermId> {
        let by_pair = set.labels.pairs().filter_map(|pair| self.by_pair.get(pair));
        let mut candidates: Vec<SelectorId> = by_pair.flatten().chain(&self.without_pair).copied().collect();
        candidates.sort_unstable();
        candidates.dedup();
        let mut terms = Vec::new();
        for selector in candidates {
            let row = &mut self.rows[selector.index()];
            if row.matches(set, symbols) {
                row.label_sets.push(id);
                terms.extend(&row.terms);
            }
        }
        terms
    }

    /// Removes a label set from a selector that matches it.
    pub(crate) fn remove_label_set(&mut self, selector: SelectorId, id: LabelSetId) {
        remove_item(&mut self.rows[selector.index()].label_sets, id);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }
}
