//! The metrics of docs/operations.md, and those of a scrape.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::read;

/// Type and labels of a metric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) kind: String,
    pub(crate) labels: BTreeSet<String>,
    /// Labels that only some series have.
    pub(crate) optional: BTreeSet<String>,
}

pub(crate) type Inventory = BTreeMap<String, Described>;

/// The texts in backticks.
fn quoted(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The rows of the tables: metric, type, labels (those of some series in parentheses).
pub(crate) fn documented() -> Inventory {
    let mut inventory = Inventory::new();
    for row in read("docs/operations.md").lines() {
        let columns: Vec<&str> = row.split(" | ").collect();
        let [name, kind, labels, _, _] = columns[..] else {
            continue;
        };
        let Some(name) = name.strip_prefix("| `").and_then(|name| name.strip_suffix('`')) else {
            continue;
        };
        if !["gauge", "counter", "histogram"].contains(&kind) {
            continue;
        }
        let (labels, optional) = labels.split_once('(').unwrap_or((labels, ""));
        let described = Described {
            kind: kind.to_owned(),
            labels: quoted(labels),
            optional: quoted(optional),
        };
        assert!(
            inventory.insert(name.to_owned(), described).is_none(),
            "{name} is listed twice"
        );
    }
    inventory
}

/// The metrics of a text in the OpenMetrics format, with the names that Prometheus gives them.
pub(crate) fn exported(text: &str) -> Inventory {
    let mut inventory = Inventory::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(described) = line.strip_prefix("# TYPE ") {
            let (name, kind) = described.split_once(' ').unwrap();
            let suffix = if kind == "counter" { "_total" } else { "" };
            current = format!("{name}{suffix}");
            inventory.entry(current.clone()).or_default().kind = kind.to_owned();
        } else if !line.starts_with('#') {
            let labels = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}'));
            for label in labels.map_or(Vec::new(), |(labels, _)| label_names(labels)) {
                // Buckets of a histogram.
                if label != "le" {
                    inventory.get_mut(&current).unwrap().labels.insert(label);
                }
            }
        }
    }
    inventory
}

/// The names in `a="1",b="x,y"`.
fn label_names(labels: &str) -> Vec<String> {
    let (mut names, mut rest) = (Vec::new(), labels);
    while let Some((name, value)) = rest.split_once("=\"") {
        names.push(name.trim_start_matches(',').to_owned());
        let mut escaped = false;
        let end = value.find(|sign| {
            let ends = sign == '"' && !escaped;
            escaped = sign == '\\' && !escaped;
            ends
        });
        rest = end.map_or("", |end| &value[end + 1..]);
    }
    names
}

/// The differences between the page and a scrape, as sentences.
pub(crate) fn differences(documented: &Inventory, exported: &Inventory) -> Vec<String> {
    let mut differences = Vec::new();
    for (name, described) in documented {
        match exported.get(name) {
            None => differences.push(format!("{name} is in docs/operations.md, and no process exports it")),
            Some(found) if found.kind != described.kind => {
                differences.push(format!("{name} is a {}, not a {}", found.kind, described.kind));
            }
            Some(found) => {
                let all = described.labels.union(&described.optional).cloned().collect();
                if !described.labels.is_subset(&found.labels) || !found.labels.is_subset(&all) {
                    differences.push(format!("{name} has the labels {:?}", found.labels));
                }
            }
        }
    }
    let unknown = exported.keys().filter(|name| !documented.contains_key(*name));
    differences.extend(unknown.map(|name| format!("{name} is exported, and not in docs/operations.md")));
    differences
}

/// The names of metrics in an expression: words that look like ours, without the suffixes of histograms.
pub(crate) fn metrics_in(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|sign: char| !sign.is_ascii_alphanumeric() && sign != '_');
    let ours = words.filter(|word| word.starts_with("kai_") || word.starts_with("DCGM_"));
    let plain = |word: &str| {
        let suffixes = ["_bucket", "_sum", "_count"];
        let of_histogram = suffixes.iter().find_map(|suffix| word.strip_suffix(suffix));
        of_histogram.unwrap_or(word).to_owned()
    };
    ours.map(plain).collect()
}

#[test]
fn a_scrape_is_read_with_its_labels() {
    let text = "# HELP a A.\n# TYPE a counter\na_total{x=\"1,y=\\\"2\",z=\"}\"} 3\n# TYPE b histogram\nb_bucket{le=\"+Inf\"} 1\n# EOF\n";
    let found = exported(text);
    assert_eq!(found["a_total"].kind, "counter");
    assert_eq!(found["a_total"].labels, ["x".to_owned(), "z".to_owned()].into());
    assert!(found["b"].labels.is_empty());
    let names = metrics_in("sum(rate(kai_cycle_duration_seconds_bucket[5m])) by (le) > kai_leader{lease=\"kai\"}");
    assert_eq!(
        names,
        ["kai_cycle_duration_seconds".to_owned(), "kai_leader".to_owned()].into()
    );
}
