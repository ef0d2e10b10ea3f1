//! Every scenario of the project has its purpose in the first line.

use std::path::Path;

use kai_simulate::scenario::discover;
use serde::Deserialize;

#[derive(Deserialize)]
struct File {
    purpose: String,
}

#[test]
fn every_scenario_has_a_purpose() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let sources = discover(&[folder], std::io::empty()).unwrap();
    assert!(sources.len() >= 60, "only {} scenarios", sources.len());
    let mut failed = Vec::new();
    for source in sources {
        let name = source.path().display();
        let text = std::fs::read_to_string(source.path()).unwrap();
        let file: File = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        if text.lines().next() != Some(&format!("# {}", file.purpose)) {
            failed.push(format!("{name}: the first line does not say the purpose"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
