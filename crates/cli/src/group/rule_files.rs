//! Files with grouping rules: rules, one per document, or the ConfigMap of an installation.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::simulate::installation::RuleSource;

/// The largest file: a ConfigMap has no more.
const BYTES_MAX: u64 = 1 << 20;

/// The rules of all files, in order.
pub(super) fn read(paths: &[PathBuf]) -> anyhow::Result<RuleSource> {
    let mut rules = RuleSource::default();
    for path in paths {
        let size = std::fs::metadata(path).map_err(|error| unreadable(path, &error))?.len();
        if size > BYTES_MAX {
            anyhow::bail!(
                "{}: has {size} bytes; a file of rules may have {BYTES_MAX}",
                path.display()
            );
        }
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
        add(
            &mut rules,
            &path.file_name().unwrap_or_default().to_string_lossy(),
            &text,
        );
    }
    Ok(rules)
}

fn unreadable(path: &Path, error: &std::io::Error) -> anyhow::Error {
    anyhow::anyhow!("{}: can't be read: {error}", path.display())
}

fn add(rules: &mut RuleSource, name: &str, text: &str) {
    let documents: Vec<Value> = match kai_yaml::from_documents::<Value>(text) {
        Ok(documents) => documents.into_iter().filter(|document| !document.is_null()).collect(),
        // The check of the rules tells the mistake.
        Err(_) => return rules.0.push((name.to_owned(), text.to_owned())),
    };
    let several = documents.len() > 1;
    for (at, document) in documents.into_iter().enumerate() {
        if document["apiVersion"] == "v1" && document["kind"] == "ConfigMap" {
            rules.add_config_map(&document);
            continue;
        }
        let name = if several {
            format!("{name}#{}", at + 1)
        } else {
            name.to_owned()
        };
        // The one document as it was written, so that messages have its lines. JSON is valid YAML.
        let text = if several { document.to_string() } else { text.to_owned() };
        rules.0.push((name, text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_and_config_maps() {
        let mut rules = RuleSource::default();
        add(&mut rules, "one.yaml", "apiVersion: a/v1\nkind: A\n");
        add(
            &mut rules,
            "two.yaml",
            "apiVersion: a/v1\nkind: B\n---\n---\napiVersion: a/v1\nkind: C\n",
        );
        add(
            &mut rules,
            "map.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {d.yaml: 'kind: D', e: 'kind: E'}\n",
        );
        add(&mut rules, "broken.yaml", "a: [\n");
        let names: Vec<&str> = rules.0.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["one.yaml", "two.yaml#1", "two.yaml#2", "d.yaml", "e", "broken.yaml"]
        );
    }
}
