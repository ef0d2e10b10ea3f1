//! Labels of pods, stored once for all pods of a namespace with the same labels. The last of these pods removes them.

use rustc_hash::FxHashMap;

use crate::ids::{LabelSetId, PodId, Symbol, TermId};
use crate::tables::PackedLabels;

/// All label sets in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct LabelSets {
    rows: Vec<LabelSet>,
    ids: FxHashMap<(Symbol, PackedLabels), LabelSetId>,
    free: Vec<LabelSetId>,
    /// Label sets by each `key=value` that they have.
    by_pair: FxHashMap<Box<str>, Vec<LabelSetId>>,
}

/// A namespace and labels that some pods have in common.
#[derive(Clone, Debug)]
pub(crate) struct LabelSet {
    pub(crate) namespace: Symbol,
    pub(crate) labels: PackedLabels,
    /// The pods with these labels, in any status.
    pub(crate) pods: Vec<PodId>,
    /// Terms that match these pods.
    pub(crate) terms: Vec<TermId>,
}

impl LabelSets {
    pub(crate) fn row(&self, id: LabelSetId) -> &LabelSet {
        &self.rows[id.index()]
    }

    pub(crate) fn row_mut(&mut self, id: LabelSetId) -> &mut LabelSet {
        &mut self.rows[id.index()]
    }

    /// Adds a pod. Returns its label set, and whether that is new.
    pub(crate) fn add(&mut self, pod: PodId, namespace: Symbol, labels: &PackedLabels) -> (LabelSetId, bool) {
        let key = (namespace, labels.clone());
        if let Some(id) = self.ids.get(&key) {
            self.rows[id.index()].pods.push(pod);
            return (*id, false);
        }
        let row = LabelSet {
            namespace,
            labels: labels.clone(),
            pods: vec![pod],
            terms: Vec::new(),
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.rows[id.index()] = row;
                id
            }
            None => {
                self.rows.push(row);
                LabelSetId::new(self.rows.len() - 1)
            }
        };
        for pair in labels.pairs() {
            match self.by_pair.get_mut(pair) {
                Some(sets) => sets.push(id),
                None => drop(self.by_pair.insert(pair.into(), vec![id])),
            }
        }
        self.ids.insert(key, id);
        (id, true)
    }

    /// Removes a pod. Returns whether it was the last one; then the id is free for another label set.
    pub(crate) fn remove(&mut self, id: LabelSetId, pod: PodId) -> bool {
        let row = &mut self.rows[id.index()];
        remove_item(&mut row.pods, pod);
        if !row.pods.is_empty() {
            return false;
        }
        let (namespace, labels) = (row.namespace, std::mem::take(&mut row.labels));
        row.terms = Vec::new();
        row.pods = Vec::new();
        for pair in labels.pairs() {
            if let Some(sets) = self.by_pair.get_mut(pair) {
                remove_item(sets, id);
                if sets.is_empty() {
                    self.by_pair.remove(pair);
                }
            }
        }
        self.ids.remove(&(namespace, labels));
        self.free.push(id);
        true
    }

    /// Label sets that have this `key=value`.
    pub(crate) fn with_pair(&self, pair: &str) -> &[LabelSetId] {
        self.by_pair.get(pair).map_or(&[], Vec::as_slice)
    }

    /// All label sets.
    pub(crate) fn ids(&self) -> impl Iterator<Item = LabelSetId> {
        self.ids.values().copied()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }
}

/// Removes one item from an unordered list.
pub(crate) fn remove_item<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if let Some(at) = list.iter().rposition(|other| *other == item) {
        list.swap_remove(at);
    }
}
