//! Node labels that affinity terms compare: which value each node has, and which nodes have a value.

use rustc_hash::FxHashMap;

use crate::affinity::label_sets::remove_item;
use crate::ids::{NodeId, Symbol, TopologyKeyId};
use crate::intern::Symbols;
use crate::model::Labels;
use crate::tables::Node;

/// All topology keys in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct TopologyKeys {
    rows: Vec<TopologyKey>,
    ids: FxHashMap<Box<str>, TopologyKeyId>,
    free: Vec<TopologyKeyId>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct TopologyKey {
    name: Box<str>,
    /// Terms with this key.
    terms: u32,
    /// By node; shorter than the table of nodes if the last ones lack the label.
    values: Vec<Option<Symbol>>,
    nodes: FxHashMap<Symbol, Vec<NodeId>>,
    /// Nodes that have the label.
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

    /// How many values there are.
    pub(crate) fn value_count(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn labelled(&self) -> usize {
        self.labelled
    }

    fn learn(&mut self, node: NodeId, value: Symbol) {
        if self.values.len() <= node.index() {
            self.values.resize(node.index() + 1, None);
        }
        self.values[node.index()] = Some(value);
        self.nodes.entry(value).or_default().push(node);
        self.labelled += 1;
    }

    fn forget(&mut self, node: NodeId) {
        let Some(value) = self.values.get_mut(node.index()).and_then(Option::take) else {
            return;
        };
        self.labelled -= 1;
        if let Some(nodes) = self.nodes.get_mut(&value) {
            remove_item(nodes, node);
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

    /// Adds a term with this key.
    pub(crate) fn add_term(&mut self, name: &str, nodes: &[Node], symbols: &mut Symbols) -> TopologyKeyId {
        if let Some(id) = self.ids.get(name) {
            self.rows[id.index()].terms += 1;
            return *id;
        }
        let mut row = TopologyKey {
            name: name.into(),
            terms: 1,
            ..TopologyKey::default()
        };
        for (at, node) in nodes.iter().enumerate().filter(|(_, node)| node.present) {
            if let Some(value) = node.labels.get(name) {
                row.learn(NodeId::new(at), symbols.intern(value));
            }
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.rows.push(TopologyKey::default());
            TopologyKeyId::new(self.rows.len() - 1)
        });
        self.rows[id.index()] = row;
        self.ids.insert(name.into(), id);
        id
    }

    /// Removes a term with this key, and the key with its last one.
    pub(crate) fn remove_term(&mut self, id: TopologyKeyId) {
        let row = &mut self.rows[id.index()];
        row.terms -= 1;
        if row.terms == 0 {
            let row = std::mem::take(row);
            self.ids.remove(&row.name);
            self.free.push(id);
        }
    }

    /// A node has these labels now.
    pub(crate) fn learn_node(&mut self, node: NodeId, labels: &Labels, symbols: &mut Symbols) {
        if self.ids.is_empty() {
            return;
        }
        for (name, value) in labels {
            if let Some(id) = self.ids.get(name.as_str()) {
                self.rows[id.index()].learn(node, symbols.intern(value));
            }
        }
    }

    /// A node with these labels goes or changes.
    pub(crate) fn forget_node(&mut self, node: NodeId, labels: &Labels) {
        if self.ids.is_empty() {
            return;
        }
        for name in labels.keys() {
            if let Some(id) = self.ids.get(name.as_str()) {
                self.rows[id.index()].forget(node);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }
}
