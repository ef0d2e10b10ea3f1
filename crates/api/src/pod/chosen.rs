//! Deserializes lists of which kai keeps only some elements. It drops the others one by one and never holds the whole list.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};

/// The elements for which `choose` returns a value; none if the list is null or missing.
pub(super) fn chosen<'de, D, T, U>(deserializer: D, choose: fn(T) -> Option<U>) -> Result<Vec<U>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_option(List { choose })
}

struct List<T, U> {
    choose: fn(T) -> Option<U>,
}

impl<'de, T: Deserialize<'de>, U> Visitor<'de> for List<T, U> {
    type Value = Vec<U>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }
    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }
    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut kept = Vec::new();
        while let Some(element) = list.next_element()? {
            if let Some(element) = (self.choose)(element) {
                // Most pods keep exactly one element; `push` alone would allocate four.
                kept.reserve_exact(1);
                kept.push(element);
            }
        }
        Ok(kept)
    }
}
