//! The log of nodes whose resources changed, from which indexes over nodes are brought up to date.

use crate::ids::NodeId;

/// Nodes whose resources changed, in order. Each reader keeps a cursor into the log; once its cursor is no longer covered, the reader
/// reads all nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangedNodes {
    nodes: Vec<NodeId>,
    /// Cursor value of the first entry.
    start: u64,
    /// By node: the cursor value of its last entry.
    last: Vec<u64>,
}

impl ChangedNodes {
    pub(crate) fn push(&mut self, node: NodeId) {
        if self.last.len() <= node.index() {
            self.last.resize(node.index() + 1, 0);
        }
        self.last[node.index()] = self.end();
        self.nodes.push(node);
    }

    /// The cursor of the last entry of a node: another one after each change of its resources.
    pub(crate) fn version(&self, node: NodeId) -> u64 {
        self.last.get(node.index()).map_or(0, |last| last + 1)
    }

    /// Whether the entry at `cursor` is the last one of its node.
    pub(crate) fn is_last(&self, cursor: u64, node: NodeId) -> bool {
        self.last[node.index()] == cursor
    }

    /// The cursor behind the last entry.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.nodes.len() as u64
    }

    /// The nodes that changed since `cursor`; `None` if the log no longer goes back that far.
    pub(crate) fn since(&self, cursor: u64) -> Option<&[NodeId]> {
        let skip = usize::try_from(cursor.checked_sub(self.start)?).ok()?;
        self.nodes.get(skip..)
    }

    /// Drops all entries once reading them costs more than reading all nodes.
    pub(crate) fn trim(&mut self, nodes: usize) {
        if self.nodes.len() > 4 * nodes + 1024 {
            self.start = self.end();
            self.nodes.clear();
        }
    }

    /// Makes every reader read all nodes.
    pub(crate) fn invalidate(&mut self) {
        self.start = self.end() + 1;
        self.nodes.clear();
    }
}
