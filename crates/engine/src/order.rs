//! The order in which gangs are served: a tournament over the queue tree, and sorted lists of gangs per leaf queue.

use std::cmp::Ordering;

use smallvec::SmallVec;

use crate::gangs::GangRank;
use crate::ids::{GangId, QueueId};
use crate::ledger::Ledger;
use crate::share::{Load, Standing};
use crate::tables::Share;

/// Who comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The queue that is served next.
    Serve,
    /// The queue that loses next.
    Take,
}

/// Finds the leaf queue whose turn it is. A queue stands for its best leaf; only what changed is compared anew.
#[derive(Clone, Debug)]
pub(crate) struct Tournament {
    direction: Direction,
    total: Share,
    nodes: Vec<Node>,
    roots: Vec<QueueId>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    /// Takes part: it, or a leaf below it, has something to offer.
    active: bool,
    children: Vec<QueueId>,
    /// What the best gang of a leaf would change; for an inner queue that of its best leaf, while `standing` is valid.
    load: Load,
    /// The best leaf below an inner queue.
    leaf: Option<QueueId>,
    /// The comparison values, while valid.
    standing: Option<Standing>,
}

impl Tournament {
    pub(crate) fn new(ledger: &Ledger, direction: Direction, total: Share) -> Tournament {
        Tournament {
            direction,
            total,
            nodes: vec![Node::default(); ledger.queues.len()],
            roots: Vec::new(),
        }
    }

    /// Sets what the best gang of a leaf would change; `None` = the leaf has nothing left.
    pub(crate) fn set(&mut self, ledger: &Ledger, leaf: QueueId, load: Option<Load>) {
        match load {
            Some(load) => {
                self.nodes[leaf.index()].load = load;
                self.activate(ledger, leaf);
            }
            None => self.retire(ledger, leaf),
        }
        self.touch(ledger, leaf);
    }

    /// What the queue holds changed.
    pub(crate) fn touch(&mut self, ledger: &Ledger, queue: QueueId) {
        for id in ledger.queue_path(queue) {
            self.nodes[id.index()].standing = None;
        }
    }

    /// What any queue holds may have changed.
    pub(crate) fn touch_all(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.standing = None);
    }

    /// The leaf whose turn it is.
    pub(crate) fn best_leaf(&mut self, ledger: &Ledger) -> Option<QueueId> {
        let roots = std::mem::take(&mut self.roots);
        let best = self.best_of(ledger, &roots);
        self.roots = roots;
        best.map(|best| self.nodes[best.index()].leaf.unwrap_or(best))
    }

    /// The leaf below one of these queues whose turn it is.
    pub(crate) fn best_leaf_below(&mut self, ledger: &Ledger, queues: &[QueueId]) -> Option<QueueId> {
        let active = |queue: &QueueId| self.nodes[queue.index()].active;
        let active: SmallVec<[QueueId; 8]> = queues.iter().copied().filter(active).collect();
        let best = self.best_of(ledger, &active)?;
        Some(self.nodes[best.index()].leaf.unwrap_or(best))
    }

    fn best_of(&mut self, ledger: &Ledger, queues: &[QueueId]) -> Option<QueueId> {
        let mut best: Option<(Standing, QueueId)> = None;
        for queue in queues {
            let candidate = self.standing(ledger, *queue);
            let better = best.as_ref().is_none_or(|(best, _)| {
                let order = candidate.compare(best, ledger, self.total);
                match self.direction {
                    Direction::Serve => order == Ordering::Less,
                    Direction::Take => order == Ordering::Greater,
                }
            });
            if better {
                best = Some((candidate, *queue));
            }
        }
        best.map(|(_, queue)| queue)
    }

    fn standing(&mut self, ledger: &Ledger, queue: QueueId) -> Standing {
        let node = &mut self.nodes[queue.index()];
        if let Some(known) = node.standing {
            return known;
        }
        if !node.children.is_empty() {
            let children = std::mem::take(&mut node.children);
            let best = self.best_of(ledger, &children);
            let best = best.map(|best| {
                (
                    self.nodes[best.index()].load,
                    self.nodes[best.index()].leaf.unwrap_or(best),
                )
            });
            let node = &mut self.nodes[queue.index()];
            node.children = children;
            if let Some((load, leaf)) = best {
                (node.load, node.leaf) = (load, Some(leaf));
            }
        }
        let node = &mut self.nodes[queue.index()];
        *node.standing.insert(Standing::of(ledger, queue, node.load, self.total))
    }

    fn activate(&mut self, ledger: &Ledger, leaf: QueueId) {
        let mut at = leaf;
        while !std::mem::replace(&mut self.nodes[at.index()].active, true) {
            let Some(parent) = ledger.queue(at).parent else {
                self.roots.push(at);
                return;
            };
            self.nodes[parent.index()].children.push(at);
            at = parent;
        }
    }

    fn retire(&mut self, ledger: &Ledger, leaf: QueueId) {
        let mut at = leaf;
        loop {
            if !std::mem::replace(&mut self.nodes[at.index()].active, false) {
                return;
            }
            let Some(parent) = ledger.queue(at).parent else {
                self.roots.retain(|root| *root != at);
                return;
            };
            let siblings = &mut self.nodes[parent.index()].children;
            siblings.retain(|child| *child != at);
            if !siblings.is_empty() {
                return;
            }
            at = parent;
        }
    }
}

/// A gang's place in a list: the greatest is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn(u128);

impl Turn {
    pub(crate) fn new(direction: Direction, rank: GangRank) -> Turn {
        match direction {
            Direction::Serve => Turn(!rank.0),
            Direction::Take => Turn(rank.0),
        }
    }
}

/// Gangs by leaf queue, each list sorted so that the next one is last.
#[derive(Clone, Debug)]
pub(crate) struct ByLeaf {
    direction: Direction,
    lists: Vec<Vec<(Turn, GangId)>>,
}

impl ByLeaf {
    /// Lists these gangs.
    pub(crate) fn build(ledger: &Ledger, direction: Direction, listed: impl Iterator<Item = GangId>) -> ByLeaf {
        let mut gangs = ByLeaf::empty(ledger, direction);
        for id in listed {
            let gang = ledger.gang(id);
            if let Some(queue) = gang.queue {
                gangs.add(queue, GangRank::of(gang), id);
            }
        }
        gangs.sort();
        gangs
    }

    pub(crate) fn empty(ledger: &Ledger, direction: Direction) -> ByLeaf {
        ByLeaf {
            direction,
            lists: vec![Vec::new(); ledger.queues.len()],
        }
    }

    /// Adds a gang out of order; [`ByLeaf::sort`] has to follow.
    pub(crate) fn add(&mut self, queue: QueueId, rank: GangRank, gang: GangId) {
        self.lists[queue.index()].push((Turn::new(self.direction, rank), gang));
    }

    pub(crate) fn sort(&mut self) {
        self.lists.iter_mut().for_each(|list| list.sort_unstable());
    }

    /// Keeps only the next `depth` gangs of every leaf.
    pub(crate) fn cap(&mut self, depth: usize) {
        for list in &mut self.lists {
            let excess = list.len().saturating_sub(depth);
            list.drain(..excess);
        }
    }

    /// The gangs of a leaf; the next one is last.
    pub(crate) fn leaf(&self, queue: QueueId) -> &[(Turn, GangId)] {
        &self.lists[queue.index()]
    }

    /// Leaves with at least one gang.
    pub(crate) fn leaves(&self) -> Vec<QueueId> {
        let filled = self.lists.iter().enumerate().filter(|(_, list)| !list.is_empty());
        filled.map(|(at, _)| QueueId::new(at)).collect()
    }

    pub(crate) fn next(&self, queue: QueueId) -> Option<GangId> {
        self.lists[queue.index()].last().map(|(_, gang)| *gang)
    }

    pub(crate) fn pop(&mut self, queue: QueueId) -> Option<GangId> {
        self.lists[queue.index()].pop().map(|(_, gang)| gang)
    }

    /// Puts a gang where it belongs now.
    pub(crate) fn insert(&mut self, ledger: &Ledger, gang: GangId) {
        let row = ledger.gang(gang);
        let Some(queue) = row.queue else { return };
        let entry = (Turn::new(self.direction, GangRank::of(row)), gang);
        let list = &mut self.lists[queue.index()];
        if let Err(at) = list.binary_search(&entry) {
            list.insert(at, entry);
        }
    }

    /// Takes a gang out that was listed with this rank.
    pub(crate) fn remove(&mut self, ledger: &Ledger, gang: GangId, rank: GangRank) {
        let Some(queue) = ledger.gang(gang).queue else { return };
        let list = &mut self.lists[queue.index()];
        if let Ok(at) = list.binary_search(&(Turn::new(self.direction, rank), gang)) {
            list.remove(at);
        }
    }
}
