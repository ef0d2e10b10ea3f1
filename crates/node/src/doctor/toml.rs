//! Reads single values out of TOML files of container runtimes. Not a TOML parser: tables and `key = value` lines are enough for what
//! the doctor asks, and a file it does not understand gives no answer instead of an error.

/// The value of `key` in the first table whose path ends with `table` (empty for the top), as written, without quotes.
pub(crate) fn value(text: &str, table: &str, key: &str) -> Option<String> {
    let mut current = String::new();
    for line in text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
    {
        if let Some(header) = line.strip_prefix('[') {
            current = header
                .trim_matches(['[', ']'])
                .replace(['"', '\''], "")
                .trim()
                .to_owned();
            continue;
        }
        let here = if table.is_empty() {
            current.is_empty()
        } else {
            current.ends_with(table)
        };
        if let Some((name, value)) = line.split_once('=').filter(|_| here)
            && name.trim().trim_matches('"') == key
        {
            return Some(value.trim().trim_matches(['"', '\'']).to_owned());
        }
    }
    None
}

/// Whether there is a table whose path ends with `table`.
pub(crate) fn has_table(text: &str, table: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim();
        line.starts_with('[')
            && line
                .trim_matches(['[', ']'])
                .replace(['"', '\''], "")
                .trim()
                .ends_with(table)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_table_and_key() {
        let text = "version = 3 # newest\n[plugins.'io.containerd.cri.v1.runtime']\n  enable_cdi = true\n\
                    [plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.\"nvidia\"]\n  runtime_type = \"x\"\n";
        assert_eq!(value(text, "", "version").as_deref(), Some("3"));
        assert_eq!(
            value(text, "io.containerd.cri.v1.runtime", "enable_cdi").as_deref(),
            Some("true")
        );
        assert_eq!(value(text, "runtimes.nvidia", "runtime_type").as_deref(), Some("x"));
        assert_eq!(value(text, "runtimes.nvidia", "enable_cdi"), None);
        assert!(has_table(text, "runtimes.nvidia") && !has_table(text, "runtimes.kata"));
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
            for (table, key) in [
                ("", "imports"),
                ("io.containerd.cri.v1.runtime", "enable_cdi"),
                ("runtimes.nvidia", ""),
            ] {
                if value(text, table, key).is_some() {
                    assert!(text.contains('='));
                }
                let _ = has_table(text, table);
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
