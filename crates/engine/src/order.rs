//! The order in which gangs are served or evicted: the queue tree as a heap, and a sorted list of gangs per leaf queue.

use std::cmp::Ordering;

use smallvec::SmallVec;

use crate::gangs::GangRank;
use crate::ids::{GangId, QueueId};
use crate::ledger::Ledger;
use crate::model::QueueResources;
use crate::share::{QueueChange, QueueSortKey};

/// The purpose of an order of queues and gangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The first queue is the one to be served next.
    Serve,
    /// The first queue is the one that loses pods next.
    Evict,
}

/// Finds the best leaf queue. An inner queue is compared by its best leaf; sort keys are kept until they are invalidated.
#[derive(Clone, Debug)]
pub(crate) struct QueueHeap {
    direction: Direction,
    total: QueueResources,
    /// By queue id.
    nodes: Vec<HeapNode>,
    /// Active queues without a parent.
    roots: Vec<QueueId>,
}

#[derive(Clone, Debug, Default)]
struct HeapNode {
    /// Whether the queue is a leaf with a gang, or has such a leaf below it.
    active: bool,
    /// Active children.
    children: Vec<QueueId>,
    /// The change by the best gang of a leaf; of an inner queue that of its best leaf, valid while `key` is set.
    change: QueueChange,
    /// The best leaf below an inner queue.
    leaf: Option<QueueId>,
    /// `None` = invalidated.
    key: Option<QueueSortKey>,
}

impl QueueHeap {
    pub(crate) fn new(ledger: &Ledger, direction: Direction, total: QueueResources) -> QueueHeap {
        QueueHeap {
            direction,
            total,
            nodes: vec![HeapNode::default(); ledger.queues.len()],
            roots: Vec::new(),
        }
    }

    /// Sets the change by the best gang of a leaf; `None` = the leaf has no gangs left.
    pub(crate) fn set(&mut self, ledger: &Ledger, leaf: QueueId, change: Option<QueueChange>) {
        match change {
            Some(change) => {
                self.nodes[leaf.index()].change = change;
                self.activate(ledger, leaf);
            }
            None => self.deactivate(ledger, leaf),
        }
        self.invalidate(ledger, leaf);
    }

    /// Invalidates the sort keys of a queue whose resources changed, and of its ancestors.
    pub(crate) fn invalidate(&mut self, ledger: &Ledger, queue: QueueId) {
        for id in ledger.queue_path(queue) {
            self.nodes[id.index()].key = None;
        }
    }

    /// Invalidates all sort keys.
    pub(crate) fn invalidate_all(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.key = None);
    }

    /// The best of all active leaves.
    pub(crate) fn best_leaf(&mut self, ledger: &Ledger) -> Option<QueueId> {
        let roots = std::mem::take(&mut self.roots);
        let best = self.best_of(ledger, &roots);
        self.roots = roots;
        best.map(|best| self.nodes[best.index()].leaf.unwrap_or(best))
    }

    /// The best active leaf at or below one of these queues.
    pub(crate) fn best_leaf_below(&mut self, ledger: &Ledger, queues: &[QueueId]) -> Option<QueueId> {
        let active = |queue: &QueueId| self.nodes[queue.index()].active;
        let active: SmallVec<[QueueId; 8]> = queues.iter().copied().filter(active).collect();
        let best = self.best_of(ledger, &active)?;
        Some(self.nodes[best.index()].leaf.unwrap_or(best))
    }

    fn best_of(&mut self, ledger: &Ledger, queues: &[QueueId]) -> Option<QueueId> {
        let mut best: Option<(QueueSortKey, QueueId)> = None;
        for queue in queues {
            let candidate = self.key(ledger, *queue);
            let better = best.as_ref().is_none_or(|(best, _)| {
                let order = candidate.compare(best, ledger, self.total);
                match self.direction {
                    Direction::Serve => order == Ordering::Less,
                    Direction::Evict => order == Ordering::Greater,
                }
            });
            if better {
                best = Some((candidate, *queue));
            }
        }
        best.map(|(_, queue)| queue)
    }

    fn key(&mut self, ledger: &Ledger, queue: QueueId) -> QueueSortKey {
        let node = &mut self.nodes[queue.index()];
        if let Some(known) = node.key {
            return known;
        }
        if !node.children.is_empty() {
            let children = std::mem::take(&mut node.children);
            let best = self.best_of(ledger, &children);
            let best = best.map(|best| {
                (
                    self.nodes[best.index()].change,
                    self.nodes[best.index()].leaf.unwrap_or(best),
                )
            });
            let node = &mut self.nodes[queue.index()];
            node.children = children;
            if let Some((change, leaf)) = best {
                (node.change, node.leaf) = (change, Some(leaf));
            }
        }
        let node = &mut self.nodes[queue.index()];
        *node
            .key
            .insert(QueueSortKey::of(ledger, queue, node.change, self.total))
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

    fn deactivate(&mut self, ledger: &Ledger, leaf: QueueId) {
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

/// The sort key of a gang in the list of its queue. The greatest is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RankKey(u128);

impl RankKey {
    pub(crate) fn new(direction: Direction, rank: GangRank) -> RankKey {
        match direction {
            Direction::Serve => RankKey(!rank.0),
            Direction::Evict => RankKey(rank.0),
        }
    }
}

/// Gangs by leaf queue. Each list is sorted so that the next gang is last.
#[derive(Clone, Debug)]
pub(crate) struct GangsByQueue {
    direction: Direction,
    lists: Vec<Vec<(RankKey, GangId)>>,
}

impl GangsByQueue {
    /// Lists these gangs.
    pub(crate) fn build(ledger: &Ledger, direction: Direction, listed: impl Iterator<Item = GangId>) -> GangsByQueue {
        let mut gangs = GangsByQueue::empty(ledger, direction);
        for id in listed {
            let gang = ledger.gang(id);
            if let Some(queue) = gang.queue {
                gangs.add(queue, GangRank::of(gang), id);
            }
        }
        gangs.sort();
        gangs
    }

    pub(crate) fn empty(ledger: &Ledger, direction: Direction) -> GangsByQueue {
        GangsByQueue {
            direction,
            lists: vec![Vec::new(); ledger.queues.len()],
        }
    }

    /// Adds a gang at the end of its list. The caller calls [`GangsByQueue::sort`] afterwards.
    pub(crate) fn add(&mut self, queue: QueueId, rank: GangRank, gang: GangId) {
        self.lists[queue.index()].push((RankKey::new(self.direction, rank), gang));
    }

    pub(crate) fn sort(&mut self) {
        self.lists.iter_mut().for_each(|list| list.sort_unstable());
    }

    /// Keeps only the first `depth` gangs of every leaf.
    pub(crate) fn cap(&mut self, depth: usize) {
        for list in &mut self.lists {
            let excess = list.len().saturating_sub(depth);
            list.drain(..excess);
        }
    }

    /// The gangs of a leaf; the next gang is last.
    pub(crate) fn leaf(&self, queue: QueueId) -> &[(RankKey, GangId)] {
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

    /// Inserts a gang by its present rank.
    pub(crate) fn insert(&mut self, ledger: &Ledger, gang: GangId) {
        let row = ledger.gang(gang);
        let Some(queue) = row.queue else { return };
        let entry = (RankKey::new(self.direction, GangRank::of(row)), gang);
        let list = &mut self.lists[queue.index()];
        if let Err(at) = list.binary_search(&entry) {
            list.insert(at, entry);
        }
    }

    /// Removes a gang that was listed with this rank.
    pub(crate) fn remove(&mut self, ledger: &Ledger, gang: GangId, rank: GangRank) {
        let Some(queue) = ledger.gang(gang).queue else { return };
        let list = &mut self.lists[queue.index()];
        if let Ok(at) = list.binary_search(&(RankKey::new(self.direction, rank), gang)) {
            list.remove(at);
        }
    }
}
