//! Immutable strings and small string maps of objects. They save memory, since a mirror holds many thousands of objects: no spare capacity,
//! and one allocation for equal strings of many objects.

use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use kai_engine::steps;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::{Serialize, Serializer};

use crate::shared_text::shared;

/// An immutable string. Cheap to clone.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(Arc<str>);

impl Text {
    /// The shared string.
    pub fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }

    /// The string.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A text that other objects may have too: it is interned.
    pub(crate) fn common(text: &str) -> Text {
        Text(shared(text))
    }
}

impl Deref for Text {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Text {
        Text(text.into())
    }
}

impl From<String> for Text {
    fn from(text: String) -> Text {
        Text(text.into())
    }
}

// Equal texts have equal hashes and the order of their strings, as `Borrow` demands.
impl Borrow<str> for Text {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        *self.0 == **other
    }
}

impl PartialEq<String> for Text {
    fn eq(&self, other: &String) -> bool {
        *self.0 == **other
    }
}

impl PartialEq<Text> for str {
    fn eq(&self, other: &Text) -> bool {
        *self == *other.0
    }
}

impl PartialEq<Text> for &str {
    fn eq(&self, other: &Text) -> bool {
        **self == *other.0
    }
}

impl PartialEq<Text> for String {
    fn eq(&self, other: &Text) -> bool {
        **self == *other.0
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

struct TextVisitor {
    unique: bool,
}

impl Visitor<'_> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }
    fn visit_str<E>(self, text: &str) -> Result<Text, E> {
        Ok(if self.unique { text.into() } else { Text::common(text) })
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor { unique: false })
    }
}

struct Unique(Text);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor { unique: true }).map(Unique)
    }
}

/// For `#[serde(deserialize_with)]`: a text that is unique to its object, such as a uid. It is not interned, so that it does not displace
/// others from the cache.
pub(crate) fn unique<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Text>, D::Error> {
    let text = Option::<Unique>::deserialize(deserializer)?;
    Ok(text.map(|Unique(text)| text))
}

/// A small map with string keys: labels, annotations, resource lists. Look-up is linear, since it has few entries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TextMap<V = Text> {
    entries: Box<[(Text, V)]>,
}

impl<V> Default for TextMap<V> {
    fn default() -> Self {
        TextMap::from_entries(Vec::new())
    }
}

impl<V> TextMap<V> {
    /// The value of the key; the last one if it was written twice, as in Kubernetes.
    pub fn get(&self, key: &str) -> Option<&V> {
        steps::count(self.entries.len());
        self.entries
            .iter()
            .rev()
            .find(|(name, _)| &**name == key)
            .map(|(_, value)| value)
    }

    /// Whether the map has the key.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values as written.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        steps::count(self.entries.len());
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    /// A map of these entries.
    pub fn from_entries(entries: Vec<(Text, V)>) -> TextMap<V> {
        TextMap {
            entries: entries.into(),
        }
    }
}

impl TextMap {
    /// The value of the key as `&str`.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key).map(|text| &**text)
    }

    /// The entries as the engine's labels.
    pub fn to_labels(&self) -> kai_engine::model::Labels {
        self.entries
            .iter()
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .collect()
    }
}

impl TextMap<crate::QuantityText> {
    /// The entries as a JSON object.
    pub fn to_resource_list(&self) -> crate::crd::ResourceList {
        self.entries
            .iter()
            .map(|(name, quantity)| (name.to_string(), quantity.clone()))
            .collect()
    }
}

impl<V> FromIterator<(Text, V)> for TextMap<V> {
    fn from_iter<I: IntoIterator<Item = (Text, V)>>(entries: I) -> TextMap<V> {
        TextMap {
            entries: entries.into_iter().collect(),
        }
    }
}

impl<V: Serialize> Serialize for TextMap<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

struct MapVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for MapVisitor<V> {
    type Value = TextMap<V>;

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
        Ok(TextMap::from_entries(entries))
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for TextMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Through `option`, because manifests often have `labels: null`.
        deserializer.deserialize_option(MapVisitor(PhantomData))
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
    fn null_is_an_empty_map_and_the_last_of_two_keys_wins() {
        assert!(serde_json::from_str::<TextMap>("null").unwrap().is_empty());
        let map: TextMap = serde_json::from_str(r#"{"a":"1","a":"2"}"#).unwrap();
        assert_eq!(map.text("a"), Some("2"));
        assert_eq!(map.to_labels().get("a").map(String::as_str), Some("2"));
    }

    #[test]
    fn texts_and_maps_are_written_as_they_are_read() {
        let json = r#"{"b":"1","a":"\"quoted\""}"#;
        let map: TextMap = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&map).unwrap(), json);
        let again: TextMap = map.iter().map(|(key, value)| (key.into(), value.clone())).collect();
        assert_eq!(again, map);
    }

    #[test]
    fn texts_compare_as_their_strings() {
        let text = Text::from("a");
        let owned = "a".to_owned();
        assert!(text == "a" && text == *"a" && text == owned && text != "b");
        assert!("a" == text && *"a" == text && owned == text && "b" != text);
        let known: std::collections::HashSet<Text> = [text].into();
        assert!(known.contains("a") && !known.contains("b"));
    }
}
