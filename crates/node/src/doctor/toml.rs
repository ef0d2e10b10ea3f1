//! Reads single values out of the TOML files of container runtimes. A malformed file gives no value; `syntax_error` says what is wrong
//! with it.

use toml_edit::{Document, Item, TableLike};

/// Why the text is not valid TOML, with the line number. `None` for valid TOML.
pub(crate) fn syntax_error(text: &str) -> Option<String> {
    let error = Document::parse(text).err()?;
    let message = error.message().lines().collect::<Vec<_>>().join(", ");
    Some(match error.span().and_then(|span| text.get(..span.start)) {
        Some(before) => format!("line {}: {message}", before.matches('\n').count() + 1),
        None => message,
    })
}

/// The value of `key` in the first table whose path ends with `table` (empty for the top level) and that has the key. Numbers and
/// booleans are returned as text.
pub(crate) fn value(text: &str, table: &[&str], key: &str) -> Option<String> {
    find(text, table, |found| scalar(found.get(key)?))
}

/// The strings of the array `key` of the top level.
pub(crate) fn strings(text: &str, key: &str) -> Vec<String> {
    let array = |found: &dyn TableLike| {
        let strings = found.get(key)?.as_array()?.iter().filter_map(|value| value.as_str());
        Some(strings.map(str::to_owned).collect())
    };
    find(text, &[], array).unwrap_or_default()
}

/// Whether there is a table whose path ends with `table`. Parents that have no header of their own do not count.
pub(crate) fn has_table(text: &str, table: &[&str]) -> bool {
    find(text, table, |_| Some(())).is_some()
}

/// The first answer of `ask` among the tables whose path ends with `table`.
fn find<T>(text: &str, table: &[&str], ask: impl Fn(&dyn TableLike) -> Option<T>) -> Option<T> {
    let document = Document::parse(text).ok()?;
    if table.is_empty() {
        return ask(document.as_table());
    }
    search(document.as_table(), &mut Vec::new(), table, &ask)
}

/// Visits a table and the tables in it, in the order of the file. The parser bounds the depth.
fn search<'a, T>(
    current: &'a dyn TableLike,
    path: &mut Vec<&'a str>,
    table: &[&str],
    ask: &impl Fn(&dyn TableLike) -> Option<T>,
) -> Option<T> {
    for (name, item) in current.iter() {
        path.push(name);
        let implicit = item.as_table().is_some_and(toml_edit::Table::is_implicit);
        let wanted = path.ends_with(table) && !implicit;
        for child in tables(item) {
            let found = wanted.then(|| ask(child)).flatten();
            if let Some(found) = found.or_else(|| search(child, path, table, ask)) {
                return Some(found);
            }
        }
        path.pop();
    }
    None
}

/// The tables that an item consists of: one, several for an array of tables, none for a value.
fn tables(item: &Item) -> Vec<&dyn TableLike> {
    match item.as_array_of_tables() {
        Some(array) => array.iter().map(|table| table as &dyn TableLike).collect(),
        None => item.as_table_like().into_iter().collect(),
    }
}

fn scalar(item: &Item) -> Option<String> {
    let text = item.as_str().map(str::to_owned);
    let number = || item.as_integer().map(|number| number.to_string());
    let boolean = || item.as_bool().map(|boolean| boolean.to_string());
    text.or_else(number).or_else(boolean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_table_and_key() {
        let text = "version = 3 # newest\n[plugins.'io.containerd.cri.v1.runtime']\n  enable_cdi = true\n\
                    [plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.\"nvidia\"]\n  runtime_type = \"x\"\n";
        assert_eq!(value(text, &[], "version").as_deref(), Some("3"));
        assert_eq!(
            value(text, &["io.containerd.cri.v1.runtime"], "enable_cdi").as_deref(),
            Some("true")
        );
        assert_eq!(
            value(text, &["runtimes", "nvidia"], "runtime_type").as_deref(),
            Some("x")
        );
        assert_eq!(value(text, &["runtimes", "nvidia"], "enable_cdi"), None);
        assert!(has_table(text, &["runtimes", "nvidia"]) && !has_table(text, &["runtimes", "kata"]));
        assert!(!has_table(text, &["runtimes"]), "it has no header of its own");
        let imports = "imports = [\n  \"/etc/a.toml\",\n  '/etc/b/*.toml', # all\n]\n";
        assert_eq!(strings(imports, "imports"), ["/etc/a.toml", "/etc/b/*.toml"]);
        assert_eq!(syntax_error(text), None);
    }

    #[test]
    fn a_malformed_file_names_its_line_and_has_no_values() {
        let text = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"\nenable_cdi = true\n";
        let error = syntax_error(text).unwrap();
        assert!(error.starts_with("line 2: "), "{error}");
        assert_eq!(value(text, &["io.containerd.grpc.v1.cri"], "enable_cdi"), None);
        assert!(!has_table(text, &["io.containerd.grpc.v1.cri"]));
        assert!(strings(text, "imports").is_empty());
    }

    fn fuzz(fuzz: kai_fuzz::Fuzz) {
        let seeds = [
            "version = 3 # newest\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n[plugins.'io.containerd.cri.v1.runtime']\n  enable_cdi = true\n",
            "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.\"nvidia\"]\n  runtime_type = \"x\"\n[[list]]\nkey = 'a=b'\n",
        ];
        let words = [
            "[",
            "]",
            "[[",
            "'",
            "\"",
            "=",
            "#",
            "\n",
            "enable_cdi",
            "runtimes.nvidia",
            "\u{0}",
        ];
        fuzz.texts(&seeds, &words, |text| {
            let tables: [(&[&str], &str); 3] = [
                (&[], "imports"),
                (&["io.containerd.cri.v1.runtime"], "enable_cdi"),
                (&["runtimes", "nvidia"], ""),
            ];
            for (table, key) in tables {
                let found = value(text, table, key).is_some();
                assert!(!found || text.contains('='));
                let found = found || has_table(text, table) && !table.is_empty();
                assert!(!found || syntax_error(text).is_none());
                let _ = strings(text, key);
            }
        });
    }

    #[test]
    fn mutated_configs_never_panic() {
        fuzz(kai_fuzz::Fuzz::short("TOML"));
    }

    #[test]
    #[ignore = "runs for KAI_FUZZ_SECONDS"]
    fn long_run_of_configs() {
        fuzz(kai_fuzz::Fuzz::long("TOML"));
    }
}
