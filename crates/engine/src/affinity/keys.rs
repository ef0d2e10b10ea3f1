//! Topology keys of affinity terms: the value of each node, and the nodes of each value.
//!
//! A key that nodes have as a label is kept also without terms: whoever labels nodes decides how many there are. A key that no
//! node has costs no visit of the nodes.

use rustc_hash::FxHashMap;

use crate::ids::{NodeId, Symbol, TopologyKeyId};
use crate::intern::Symbols;
use crate::model::Labels;
use crate::tables::Node;

/// All topology keys of terms in use, and those that once had terms and are labels of nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct TopologyKeys {
    /// How many nodes have each label.
    label_counts: FxHashMap<Box<str>, u32>,
    rows: Vec<TopologyKey>,
    ids: FxHashMap<Box<str>, TopologyKeyId>,
    free: Vec<TopologyKeyId>,
}

/// One topology key.
#[derive(Clone, Debug, Default)]
pub(crate) struct TopologyKey {
    name: Box<str>,
    /// How many terms have this key.
    terms: u32,
    /// By node; shorter than the table of nodes if the last nodes lack the label.
    values: Vec<Option<Symbol>>,
    nodes: FxHashMap<Symbol, Vec<NodeId>>,
    /// How many nodes have the label.
    labelled: usize,
}

impl TopologyKey {
    pub(crate) fn value(&self, node: NodeId) -> Option<Symbol> {
        self.values.get(node.index()).copied().flatten()
    }

    /// Nodes with this value.
    pub(crate) fn nodes(&self, value: Symbol) -> &[NodeId] {
        self.nodes.get(&value).map_or(&[], Vec::as_slice)
    }

    /// How many values nodes have.
    pub(crate) fn value_count(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn labelled_nodes(&self) -> usize {
        self.labelled
    }

    fn add_value(&mut self, node: NodeId, value: Symbol) {
        if self.values.len() <= node.index() {
            self.values.resize(node.index() + 1, None);
        }
        self.values[node.index()] = Some(value);
        self.nodes.entry(value).or_default().push(node);
        self.labelled += 1;
    }

    fn remove_value(&mut self, node: NodeId) {
        let Some(value) = self.values.get_mut(node.index()).and_then(Option::take) else {
            return;
        };
        self.labelled -= 1;
        if let Some(nodes) = self.nodes.get_mut(&value) {
            if let Some(at) = nodes.iter().rposition(|other| *other == node) {
                nodes.swap_remove(at);
            }
            if nodes.is_empty() {
                self.nodes.remove(&value);
            }
        }
    }
}

impl TopologyKeys {
    pub(crate) fn row(&self, id: TopologyKeyId) -> &TopologyKey {
        &self.rows[id.index()]
    }

    /// Adds a term with this key; returns the steps that it took as well.
    pub(crate) fn add_term(&mut self, name: &str, nodes: &[Node], symbols: &mut Symbols) -> (TopologyKeyId, usize) {
        if let Some(id) = self.ids.get(name) {
            self.rows[id.index()].terms += 1;
            return (*id, 1);
        }
        let mut row = TopologyKey {
            name: name.into(),
            terms: 1,
            ..TopologyKey::default()
        };
        let nodes = if self.label_counts.contains_key(name) {
            nodes
        } else {
            &[]
        };
        for (at, node) in nodes.iter().enumerate().filter(|(_, node)| node.present) {
            if let Some(value) = node.labels.get(name) {
                row.add_value(NodeId::new(at), symbols.intern(value));
            }
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.rows.push(TopologyKey::default());
            TopologyKeyId::new(self.rows.len() - 1)
        });
        self.rows[id.index()] = row;
        self.ids.insert(name.into(), id);
        (id, 1 + nodes.len())
    }

    /// Removes a term with this key.
    pub(crate) fn remove_term(&mut self, id: TopologyKeyId) {
        self.rows[id.index()].terms -= 1;
        self.remove_if_unused(id);
    }

    fn remove_if_unused(&mut self, id: TopologyKeyId) {
        let row = &mut self.rows[id.index()];
        if row.terms == 0 && row.labelled == 0 {
            let row = std::mem::take(row);
            self.ids.remove(&row.name);
            self.free.push(id);
        }
    }

    /// Adds the labels of a node.
    pub(crate) fn add_node(&mut self, node: NodeId, labels: &Labels, symbols: &mut Symbols) {
        for (name, value) in labels {
            match self.label_counts.get_mut(name.as_str()) {
                Some(count) => *count += 1,
                None => drop(self.label_counts.insert(name.as_str().into(), 1)),
            }
            if let Some(id) = self.ids.get(name.as_str()) {
                self.rows[id.index()].add_value(node, symbols.intern(value));
            }
        }
    }

    /// Removes the labels of a node.
    pub(crate) fn remove_node(&mut self, node: NodeId, labels: &Labels) {
        for name in labels.keys() {
            if let Some(count) = self.label_counts.get_mut(name.as_str()) {
                *count -= 1;
                if *count == 0 {
                    self.label_counts.remove(name.as_str());
                }
            }
            if let Some(id) = self.ids.get(name.as_str()).copied() {
                self.rows[id.index()].remove_value(node);
                self.remove_if_unused(id);
            }
        }
    }

    /// How many keys have terms.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.rows.iter().filter(|row| row.terms > 0).count()
    }
}
