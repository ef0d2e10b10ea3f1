//! One allocation for equal texts of a view. Thousands of objects have the same namespaces, nodes, queues, labels and reasons.

use kai_api::Text;
use rustc_hash::FxHashSet;

/// The texts of a view in the making.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    known: FxHashSet<Text>,
}

impl Interner {
    /// The text, shared with an equal one that was asked for before.
    pub(crate) fn text(&mut self, text: &str) -> Text {
        if let Some(known) = self.known.get(text) {
            return known.clone();
        }
        let text = Text::from(text);
        self.known.insert(text.clone());
        text
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn equal_texts_are_one() {
        let mut interner = Interner::default();
        let (first, other, again) = (interner.text("a"), interner.text("b"), interner.text("a"));
        assert!(Arc::ptr_eq(&first.shared(), &again.shared()));
        assert_eq!((first, other), ("a".into(), "b".into()));
    }
}
