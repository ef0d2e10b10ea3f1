//! An index over nodes per shape: the best node is at the root of a tournament tree, and a change of one node costs the
//! way from its leaf to the root. Indexes catch up with the ledger's touch log when they are asked.

use crate::ids::{NodeId, ShapeId};
use crate::ledger::Ledger;
use crate::model::{Placement, PlacementStrategy};
use crate::place::fit::{Worth, static_check, worth};

/// More indexes than this are not kept: memory per node stays bounded, and clusters with so many shapes of pods at once
/// pay a look at all nodes instead.
const INDEXES_MAX: usize = 48;

/// The indexes of the shapes in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShapeIndexes {
    indexes: Vec<ShapeIndex>,
    /// Where the index of a shape is; by shape.
    slots: Vec<Option<u8>>,
    placement: Option<Placement>,
    clock: u64,
}

/// All nodes by their worth for one shape.
#[derive(Clone, Debug)]
pub(crate) struct ShapeIndex {
    shape: ShapeId,
    placement: Placement,
    cursor: Option<u64>,
    last_use: u64,
    /// Number of leaves, a power of two.
    leaves: usize,
    /// Tournament tree: children of `i` are `2i` and `2i + 1`, leaf of node `n` is `leaves + n`.
    tree: Vec<Worth>,
    /// What the node's spec means for the shape; `None` = keeps it away.
    preference: Vec<Option<i16>>,
}

impl ShapeIndexes {
    /// The index of a shape, up to date.
    pub(crate) fn fresh(&mut self, ledger: &Ledger, shape: ShapeId, placement: Placement) -> &mut ShapeIndex {
        if self.placement != Some(placement) {
            self.clear();
            self.placement = Some(placement);
        }
        self.clock += 1;
        let slot = match self.slots.get(shape.index()) {
            Some(Some(slot)) => usize::from(*slot),
            Some(None) | None => self.assign(ledger, shape, placement),
        };
        let index = &mut self.indexes[slot];
        index.last_use = self.clock;
        index.catch_up(ledger);
        index
    }

    /// A slot for one more shape: a new one, or that of the shape asked for longest ago.
    fn assign(&mut self, ledger: &Ledger, shape: ShapeId, placement: Placement) -> usize {
        let index = ShapeIndex::new(shape, placement);
        let slot = if self.indexes.len() < INDEXES_MAX {
            self.indexes.push(index);
            self.indexes.len() - 1
        } else {
            let oldest = (0..INDEXES_MAX).min_by_key(|slot| self.indexes[*slot].last_use);
            let slot = oldest.expect("there is at least one index");
            let old = std::mem::replace(&mut self.indexes[slot], index);
            self.slots[old.shape.index()] = None;
            slot
        };
        if self.slots.len() < ledger.shapes.len() {
            self.slots.resize(ledger.shapes.len(), None);
        }
        self.slots[shape.index()] = Some(slot as u8);
        slot
    }

    /// Forgets everything: nodes came, went or changed their spec.
    pub(crate) fn clear(&mut self) {
        self.indexes.clear();
        self.slots.clear();
    }
}

impl Default for ShapeIndex {
    fn default() -> ShapeIndex {
        let placement = Placement {
            gpu: PlacementStrategy::Binpack,
            cpu: PlacementStrategy::Binpack,
        };
        ShapeIndex::new(ShapeId::new(0), placement)
    }
}

impl ShapeIndex {
    fn new(shape: ShapeId, placement: Placement) -> ShapeIndex {
        ShapeIndex {
            shape,
            placement,
            cursor: None,
            last_use: 0,
            leaves: 0,
            tree: Vec::new(),
            preference: Vec::new(),
        }
    }

    fn catch_up(&mut self, ledger: &Ledger) {
        /// So far ahead a node is looked for that is touched once more: about as long as to evaluate it takes.
        const AHEAD: usize = 16;
        let touched = self.cursor.and_then(|cursor| ledger.touched.since(cursor));
        match touched {
            Some(touched) if touched.len() <= self.leaves => {
                for (at, node) in touched.iter().enumerate() {
                    // Packing touches the same few nodes again and again: only the last time counts.
                    if !touched[at + 1..].iter().take(AHEAD).any(|later| later == node) {
                        let worth = self.evaluate(ledger, *node);
                        self.set(*node, worth);
                    }
                }
            }
            Some(_) | None => self.rebuild(ledger),
        }
        self.cursor = Some(ledger.touched.end());
    }

    fn rebuild(&mut self, ledger: &Ledger) {
        let shape = ledger.shape(self.shape);
        if self.preference.len() != ledger.nodes.len() {
            let preference = |node| static_check(node, shape).ok().map(|points| points as i16);
            self.preference = ledger.nodes.iter().map(preference).collect();
            self.leaves = ledger.nodes.len().next_power_of_two();
            self.tree = vec![Worth::UNFIT; 2 * self.leaves];
        }
        for at in 0..ledger.nodes.len() {
            self.tree[self.leaves + at] = self.evaluate(ledger, NodeId::new(at));
        }
        for at in (1..self.leaves).rev() {
            self.tree[at] = self.tree[2 * at].max(self.tree[2 * at + 1]);
        }
    }

    fn evaluate(&self, ledger: &Ledger, node: NodeId) -> Worth {
        match self.preference[node.index()] {
            Some(preference) => worth(
                ledger.node(node),
                ledger.shape(self.shape),
                i64::from(preference),
                self.placement,
            ),
            None => Worth::UNFIT,
        }
    }

    fn set(&mut self, node: NodeId, worth: Worth) {
        let mut at = self.leaves + node.index();
        if self.tree[at] == worth {
            return;
        }
        self.tree[at] = worth;
        while at > 1 {
            at /= 2;
            let best = self.tree[2 * at].max(self.tree[2 * at + 1]);
            if self.tree[at] == best {
                return;
            }
            self.tree[at] = best;
        }
    }

    /// The worth of one node.
    pub(crate) fn worth(&self, node: NodeId) -> Worth {
        self.tree[self.leaves + node.index()]
    }

    /// Whether no node can take the shape.
    pub(crate) fn is_barren(&self) -> bool {
        self.leaves == 0 || self.tree[1] == Worth::UNFIT
    }

    /// The best node that `accept` agrees to, best first.
    pub(crate) fn best<T>(&mut self, mut accept: impl FnMut(NodeId) -> Option<T>) -> Option<T> {
        let mut refused: Vec<(NodeId, Worth)> = Vec::new();
        let mut found = None;
        while !self.is_barren() {
            let node = self.champion();
            found = accept(node);
            if found.is_some() {
                break;
            }
            refused.push((node, self.worth(node)));
            self.set(node, Worth::UNFIT);
        }
        for (node, worth) in refused {
            self.set(node, worth);
        }
        found
    }

    fn champion(&self) -> NodeId {
        let (mut at, best) = (1, self.tree[1]);
        while at < self.leaves {
            at = if self.tree[2 * at] == best { 2 * at } else { 2 * at + 1 };
        }
        NodeId::new(at - self.leaves)
    }
}
