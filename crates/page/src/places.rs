//! The places of GPUs on a node's tile. A view lists the GPUs of a node in no physical order, and closes the gap when a pod leaves. On the
//! page a cell keeps its place as long as its pod or GPU group has it, so that only what changes moves.
//!
//! The hub has one value for all readers, who see the same places. It remembers a hash for each GPU, also while nobody looks.

use std::hash::BuildHasher as _;

use kai_view::{Gpu, GpuState, Node, Text};
use rustc_hash::{FxBuildHasher, FxHashMap};

/// What a place is kept for. Nobody gains by a name with the same hash: cells of one node would change their places.
type Key = u64;

/// The key of a place without a pod.
const FREE: Key = 0;

/// What was at each place when the places were last made, by node.
#[derive(Debug, Default)]
pub(crate) struct Places {
    keys: FxHashMap<Text, Vec<Key>>,
}

/// The order in which the GPUs of nodes are drawn, as indices of the view's list. Nodes that are drawn in the view's order are left out.
#[derive(Debug, Default)]
pub(crate) struct Order {
    indices: FxHashMap<Text, Box<[u16]>>,
}

impl Order {
    /// The GPUs of a node in the order of their places.
    pub(crate) fn gpus<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = &'a Gpu> {
        let order = self.indices.get(&node.name).map(AsRef::as_ref).unwrap_or_default();
        // A node whose number of GPUs is another one is of another view.
        let order = if order.len() == node.gpus.len() { order } else { &[] };
        let in_order = order.iter().filter_map(|at| node.gpus.get(usize::from(*at)));
        in_order.chain(if order.is_empty() { &node.gpus[..] } else { &[] })
    }
}

impl Places {
    /// The order for the nodes of a newer view. Nodes that are gone are forgotten.
    pub(crate) fn update(&mut self, nodes: &[Node]) -> Order {
        let mut indices = FxHashMap::default();
        let mut keys = FxHashMap::with_capacity_and_hasher(nodes.len(), FxBuildHasher);
        for node in nodes.iter().filter(|node| !node.gpus.is_empty()) {
            let now = keys_of(node);
            let before = self.keys.remove(&node.name).unwrap_or_default();
            let order = arrange(&before, &now);
            keys.insert(
                node.name.clone(),
                order.iter().map(|at| now[usize::from(*at)]).collect(),
            );
            if !order.is_sorted() {
                indices.insert(node.name.clone(), order.into_boxed_slice());
            }
        }
        self.keys = keys;
        Order { indices }
    }
}

/// The keys of a node's GPUs, in the order of the view.
fn keys_of(node: &Node) -> Vec<Key> {
    let mut last: (Key, u64) = (FREE, 0);
    let keys = node.gpus.iter().map(|gpu| {
        let content = match (gpu.state, &gpu.gpu_group, gpu.pods.first()) {
            (GpuState::Shared, Some(gpu_group), _) => hash(("shared", gpu_group.as_str(), "")),
            (GpuState::Whole, _, Some(user)) => hash(("whole", user.namespace.as_str(), user.name.as_str())),
            _ => return FREE,
        };
        // The GPUs of one pod follow each other in the view, and are told apart by their number.
        last = (content, if last.0 == content { last.1 + 1 } else { 0 });
        hash((content, last.1)).max(FREE + 1)
    });
    keys.collect()
}

fn hash(value: impl std::hash::Hash) -> Key {
    FxBuildHasher.hash_one(value)
}

/// The order of GPUs with the keys `now` where those with the keys `before` were shown.
fn arrange(before: &[Key], now: &[Key]) -> Vec<u16> {
    let mut places: Vec<Option<u16>> = vec![None; now.len()];
    let mut old: FxHashMap<Key, usize> = FxHashMap::default();
    for (place, key) in before
        .iter()
        .enumerate()
        .take(now.len())
        .filter(|(_, key)| **key != FREE)
    {
        old.insert(*key, place);
    }
    // GPUs of a node are bounded by the view, far below the range.
    let index = |at: usize| u16::try_from(at).unwrap_or(u16::MAX);
    let mut others = Vec::new();
    for (at, key) in now.iter().enumerate() {
        match old.remove(key) {
            Some(place) => places[place] = Some(index(at)),
            None => others.push(index(at)),
        }
    }
    // New pods first, then what is free: both in the order of the view, into the gaps from the left.
    let mut others = others.into_iter();
    places
        .into_iter()
        .filter_map(|place| place.or_else(|| others.next()))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_cell_keeps_its_place_and_new_ones_fill_the_gaps() {
        let check = |before: &[Key], now: &[Key], expect: &[Key]| {
            let order = arrange(before, now);
            let shown: Vec<Key> = order.iter().map(|at| now[usize::from(*at)]).collect();
            assert_eq!(shown, expect, "{before:?} {now:?}");
        };
        check(&[], &[1, 2, 0, 0], &[1, 2, 0, 0]);
        // The pod 1 leaves: the view closes the gap, the page does not.
        check(&[1, 2, 3, 0], &[2, 3, 0, 0], &[0, 2, 3, 0]);
        // A new pod takes the gap, wherever the view has it.
        check(&[0, 2, 3, 0], &[2, 3, 9, 0], &[9, 2, 3, 0]);
        check(&[0, 2, 3, 0], &[9, 2, 3, 0], &[9, 2, 3, 0]);
        // The node has fewer GPUs, or more.
        check(&[1, 2, 3, 4], &[1, 4], &[1, 4]);
        check(&[0, 2], &[2, 0, 0], &[0, 2, 0]);
    }

    proptest! {
        #[test]
        fn every_gpu_is_drawn_once_and_nothing_moves_without_need(before in vec(0..9_u64, 0..9), now in vec(0..9_u64, 0..9)) {
            // Keys are unique.
            let unique = |keys: Vec<u64>| {
                let mut seen = Vec::new();
                let keys = keys.into_iter().map(|key| if key != 0 && seen.contains(&key) { 0 } else { seen.push(key); key });
                keys.collect::<Vec<u64>>()
            };
            let (before, now) = (unique(before), unique(now));
            let order = arrange(&before, &now);
            let mut all: Vec<usize> = order.iter().map(|at| usize::from(*at)).collect();
            for (place, at) in all.iter().enumerate() {
                let key = now[*at];
                let was = before.iter().position(|old| key != 0 && *old == key);
                prop_assert!(was.is_none_or(|was| was == place || was >= now.len()));
            }
            all.sort_unstable();
            prop_assert_eq!(all, (0..now.len()).collect::<Vec<_>>());
        }
    }
}
