//! The labels of a pod as one string, because a map takes several times the memory.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::model::Labels;
use crate::steps;

/// Lines of `key=value`, ordered by key. A label with `=` or a newline in its key, or a newline in its value, is left out: Kubernetes
/// allows neither, and no selector can match such a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PackedLabels(Arc<str>);

impl Default for PackedLabels {
    fn default() -> PackedLabels {
        PackedLabels("".into())
    }
}

impl PackedLabels {
    pub(crate) fn new(labels: &Labels) -> PackedLabels {
        let legal = |(key, value): &(&String, &String)| !key.contains(['=', '\n']) && !value.contains('\n');
        let bytes = labels.iter().map(|(key, value)| key.len() + value.len() + 2).sum();
        let mut text = String::with_capacity(bytes);
        for (key, value) in labels.iter().filter(legal) {
            text.extend([key, "=", value, "\n"]);
        }
        PackedLabels(text.into())
    }

    /// The lines, `key=value` each.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = &str> {
        self.0.lines()
    }

    /// The value of a label, by binary search: a pod may have ten thousand labels, and every selector reads some of them.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        let mut rest = &*self.0;
        while !rest.is_empty() {
            steps::count(1);
            let middle = (0..=rest.len() / 2).rev().find(|at| rest.is_char_boundary(*at))?;
            let start = rest[..middle].rfind('\n').map_or(0, |end| end + 1);
            let end = start + rest[start..].find('\n')?;
            let (known, value) = rest[start..end].split_once('=')?;
            match key.cmp(known) {
                Ordering::Equal => return Some(value),
                Ordering::Less => rest = &rest[..start],
                Ordering::Greater => rest = &rest[end + 1..],
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        let labels = [
            ("app", "train"),
            ("empty", ""),
            ("odd=key", "x"),
            ("z", "a=b"),
            ("line", "a\nb=c"),
        ];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let packed = PackedLabels::new(&Labels::from(labels));
        for (key, expect) in [
            ("app", Some("train")),
            ("empty", Some("")),
            ("z", Some("a=b")),
            ("odd", None),
            ("odd=key", None),
            ("line", None),
            ("b", None),
            ("ap", None),
        ] {
            assert_eq!(packed.get(key), expect, "{key}");
        }
        assert_eq!(PackedLabels::default().get(""), None);
        // `-` and `.` sort before `=`, letters after it: the order is that of the keys, not of the lines.
        let keys: Vec<String> = (0..200)
            .map(|at| format!("key{}", ["", "-x", ".y", "zé"][at % 4].repeat(at)))
            .collect();
        let labels: Labels = keys.iter().map(|key| (key.clone(), format!("of {key}"))).collect();
        let packed = PackedLabels::new(&labels);
        for key in &keys {
            assert_eq!(packed.get(key), labels.get(key).map(String::as_str), "{key}");
        }
    }
}
