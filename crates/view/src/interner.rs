//! One allocation for equal parts of a view. Thousands of objects have the same namespaces, nodes, queues, labels and reasons, and most
//! nodes of a pool have the same labels and conditions.

use std::sync::Arc;

use kai_api::{Text, TextMap};
use rustc_hash::FxHashSet;

use crate::NodeCondition;

/// The parts of a view in the making.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    texts: FxHashSet<Text>,
    labels: FxHashSet<Arc<TextMap>>,
    conditions: FxHashSet<Arc<[NodeCondition]>>,
}

impl Interner {
    /// The text, shared with an equal one that was asked for before.
    pub(crate) fn text(&mut self, text: &str) -> Text {
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        let text = Text::from(text);
        self.texts.insert(text.clone());
        text
    }

    /// Takes in a text of the mirror, so that the view shares its memory.
    pub(crate) fn adopt(&mut self, text: &Text) {
        self.texts.insert(text.clone());
    }

    /// The labels, shared with equal ones.
    pub(crate) fn labels(&mut self, labels: TextMap) -> Arc<TextMap> {
        if let Some(known) = self.labels.get(&labels) {
            return known.clone();
        }
        let labels = Arc::new(labels);
        self.labels.insert(labels.clone());
        labels
    }

    /// The conditions, shared with equal ones.
    pub(crate) fn conditions(&mut self, conditions: Vec<NodeCondition>) -> Arc<[NodeCondition]> {
        if let Some(known) = self.conditions.get(conditions.as_slice()) {
            return known.clone();
        }
        let conditions: Arc<[NodeCondition]> = conditions.into();
        self.conditions.insert(conditions.clone());
        conditions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_parts_are_one() {
        let mut interner = Interner::default();
        let (first, other, again) = (interner.text("a"), interner.text("b"), interner.text("a"));
        assert!(Arc::ptr_eq(&first.shared(), &again.shared()));
        assert_eq!((first, other), ("a".into(), "b".into()));
        let of_the_mirror = Text::from("c");
        interner.adopt(&of_the_mirror);
        assert!(Arc::ptr_eq(&interner.text("c").shared(), &of_the_mirror.shared()));
        let map = |value: &str| TextMap::from_entries(vec![("key".into(), value.into())]);
        let [first, other, again] = ["1", "2", "1"].map(|value| interner.labels(map(value)));
        assert!(Arc::ptr_eq(&first, &again) && first != other);
        let condition = |status: &str| NodeCondition {
            kind: "Ready".into(),
            status: status.into(),
            reason: None,
            message: None,
        };
        let [first, other, again] =
            ["True", "False", "True"].map(|status| interner.conditions(vec![condition(status)]));
        assert!(Arc::ptr_eq(&first, &again) && first != other);
    }
}
