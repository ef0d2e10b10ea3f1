//! Labels of pods, stored once for all pods of a namespace with the same labels. The last of these pods removes them.
//!
//! Every list here is unordered, and each item knows its position in it, so that no removal searches a list.

use rustc_hash::FxHashMap;

use crate::affinity::selectors::SelectorRef;
use crate::ids::{LabelSetId, PodId, Symbol};
use crate::tables::PackedLabels;

/// All label sets in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct LabelSets {
    rows: Vec<LabelSet>,
    ids: FxHashMap<(Symbol, PackedLabels), LabelSetId>,
    free: Vec<LabelSetId>,
    /// Label sets by each `key=value` that they have, each with the number of that pair among its pairs.
    by_pair: FxHashMap<Box<str>, Vec<(LabelSetId, u32)>>,
}

/// A namespace and labels that some pods have in common.
#[derive(Clone, Debug)]
pub(crate) struct LabelSet {
    pub(crate) namespace: Symbol,
    pub(crate) labels: PackedLabels,
    /// The pods with these labels, in any status.
    pub(crate) pods: Vec<PodId>,
    /// For each pair, the position of this label set in its list of [`LabelSets::by_pair`].
    positions: Vec<u32>,
    /// Selectors that match these pods, some of them no longer in use.
    pub(crate) selectors: Vec<SelectorRef>,
}

/// The label set of a pod, and the position of the pod in its list of pods.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LabelSetMember {
    pub(crate) set: LabelSetId,
    pub(crate) at: u32,
}

impl LabelSets {
    pub(crate) fn row(&self, id: LabelSetId) -> &LabelSet {
        &self.rows[id.index()]
    }

    pub(crate) fn row_mut(&mut self, id: LabelSetId) -> &mut LabelSet {
        &mut self.rows[id.index()]
    }

    /// Adds a pod. Returns its label set, and whether that is new.
    pub(crate) fn add(&mut self, pod: PodId, namespace: Symbol, labels: &PackedLabels) -> (LabelSetMember, bool) {
        let key = (namespace, labels.clone());
        if let Some(set) = self.ids.get(&key).copied() {
            let pods = &mut self.rows[set.index()].pods;
            pods.push(pod);
            let at = pods.len() as u32 - 1;
            return (LabelSetMember { set, at }, false);
        }
        let set = self.free.pop().unwrap_or_else(|| LabelSetId::new(self.rows.len()));
        let mut positions = Vec::new();
        for (number, pair) in labels.pairs().enumerate() {
            let sets = match self.by_pair.get_mut(pair) {
                Some(sets) => sets,
                None => self.by_pair.entry(pair.into()).or_default(),
            };
            positions.push(sets.len() as u32);
            sets.push((set, number as u32));
        }
        let row = LabelSet {
            namespace,
            labels: labels.clone(),
            pods: vec![pod],
            positions,
            selectors: Vec::new(),
        };
        if set.index() == self.rows.len() {
            self.rows.push(row);
        } else {
            self.rows[set.index()] = row;
        }
        self.ids.insert(key, set);
        (LabelSetMember { set, at: 0 }, true)
    }

    /// Removes a pod. Returns the pod that takes over its position, if any. The last pod removes the label set.
    pub(crate) fn remove(&mut self, member: LabelSetMember) -> Option<PodId> {
        let row = &mut self.rows[member.set.index()];
        row.pods.swap_remove(member.at as usize);
        if !row.pods.is_empty() {
            return row.pods.get(member.at as usize).copied();
        }
        let (namespace, labels) = (row.namespace, std::mem::take(&mut row.labels));
        let positions = std::mem::take(&mut row.positions);
        (row.selectors, row.pods) = (Vec::new(), Vec::new());
        for (pair, at) in labels.pairs().zip(positions) {
            let sets = self
                .by_pair
                .get_mut(pair)
                .expect("a label set is in the lists of its pairs");
            sets.swap_remove(at as usize);
            if let Some((moved, number)) = sets.get(at as usize) {
                self.rows[moved.index()].positions[*number as usize] = at;
            }
            if sets.is_empty() {
                self.by_pair.remove(pair);
            }
        }
        self.ids.remove(&(namespace, labels));
        self.free.push(member.set);
        None
    }

    /// Label sets that have this `key=value`.
    pub(crate) fn with_pair(&self, pair: &str) -> impl Iterator<Item = LabelSetId> {
        self.by_pair.get(pair).into_iter().flatten().map(|(set, _)| *set)
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
