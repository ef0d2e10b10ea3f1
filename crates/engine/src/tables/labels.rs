//! The labels of a pod, packed into one text. Nearly every pod has labels of its own (its job's name, its controller's uid), so sharing sets
//! of them gains nothing and would keep those of pods long gone; a map costs several times the text.

use crate::model::Labels;

/// Lines of `key=value`. Kubernetes allows neither character in a key, nor an end of line in a value; what has one is in no selector.
#[derive(Clone, Debug, Default)]
pub(crate) struct PackedLabels(Box<str>);

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

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        let mut pairs = self.0.lines().filter_map(|line| line.split_once('='));
        pairs.find(|(known, _)| *known == key).map(|(_, value)| value)
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
    }
}
