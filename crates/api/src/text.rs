//! Strings and string maps that borrow from the input where they can.
//!
//! `Cow<str>` inside `Option` or `Vec` is always owned by serde; with 80,000 pods in one file that is most of the time
//! of loading. These types borrow wherever the format allows it (JSON strings without escapes).

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

/// A string that borrows from the input where it can.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<'a>(pub Cow<'a, str>);

impl Deref for Text<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Text<'a> {
        Text(Cow::Borrowed(text))
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        Text(Cow::Owned(text))
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }
    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Borrowed(text)))
    }
    fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Owned(text.to_owned())))
    }
    fn visit_string<E>(self, text: String) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Owned(text)))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor)
    }
}

/// A small map with string keys: labels, annotations, resource lists. Linear look-up, since it holds a handful.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextMap<'a, V = Text<'a>> {
    entries: Vec<(Text<'a>, V)>,
}

impl<V> Default for TextMap<'_, V> {
    fn default() -> Self {
        TextMap { entries: Vec::new() }
    }
}

impl<'a, V> TextMap<'a, V> {
    /// The value of the key; the last one if it was written twice, as in Kubernetes.
    pub fn get(&self, key: &str) -> Option<&V> {
        self.entries
            .iter()
            .rev()
            .find(|(name, _)| &**name == key)
            .map(|(_, value)| value)
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values as written.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    /// A map of these entries.
    pub fn from_entries(entries: Vec<(Text<'a>, V)>) -> TextMap<'a, V> {
        TextMap { entries }
    }
}

impl TextMap<'_> {
    /// The text of the key.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key).map(|text| &**text)
    }

    /// As the engine keeps labels.
    pub fn to_labels(&self) -> engine::model::Labels {
        self.entries
            .iter()
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .collect()
    }
}

struct MapVisitor<'a, V>(std::marker::PhantomData<(&'a (), V)>);

impl<'de: 'a, 'a, V: Deserialize<'de>> Visitor<'de> for MapVisitor<'a, V> {
    type Value = TextMap<'a, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }
    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(TextMap::default())
    }
    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(TextMap::default())
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(TextMap { entries })
    }
}

impl<'de: 'a, 'a, V: Deserialize<'de>> Deserialize<'de> for TextMap<'a, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Through `option`, because `labels: null` is common in manifests and means none.
        deserializer.deserialize_option(MapVisitor(std::marker::PhantomData))
    }
}

/// For `#[serde(deserialize_with)]`: null means the default, as everywhere in Kubernetes.
pub(crate) fn null_as_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_borrow_unless_escaped() {
        let map: TextMap<'_> = serde_json::from_str(r#"{"a":"x","b":"tab\t"}"#).unwrap();
        assert!(matches!(map.get("a"), Some(Text(Cow::Borrowed("x")))));
        assert!(matches!(map.get("b"), Some(Text(Cow::Owned(_)))));
        let many: Vec<Option<Text<'_>>> = serde_json::from_str(r#"["x",null]"#).unwrap();
        assert!(matches!(many[0], Some(Text(Cow::Borrowed("x")))));
    }

    #[test]
    fn null_is_an_empty_map_and_the_last_of_two_keys_wins() {
        assert!(serde_json::from_str::<TextMap<'_>>("null").unwrap().is_empty());
        let map: TextMap<'_> = serde_json::from_str(r#"{"a":"1","a":"2"}"#).unwrap();
        assert_eq!(map.text("a"), Some("2"));
        assert_eq!(map.to_labels().get("a").map(String::as_str), Some("2"));
    }
}
