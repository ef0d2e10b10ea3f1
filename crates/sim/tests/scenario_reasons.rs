//! The project's own scenarios say what they are about, and name parts of the reasons that their pods must have.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use sim::run::Options;
use sim::scenario::{discover, load};

#[derive(Deserialize)]
struct File {
    purpose: String,
    expect: Expect,
}

#[derive(Deserialize)]
struct Expect {
    pods: BTreeMap<String, Pod>,
}

#[derive(Deserialize)]
struct Pod {
    reason: Option<String>,
}

#[test]
fn every_scenario_has_a_purpose_and_the_reasons_it_names() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let sources = discover(&[folder]).unwrap();
    assert!(sources.len() >= 60, "only {} scenarios", sources.len());
    let mut failed = Vec::new();
    for source in sources {
        let name = source.path().display();
        let text = std::fs::read_to_string(source.path()).unwrap();
        let file: File = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        if text.lines().next() != Some(&format!("# {}", file.purpose)) {
            failed.push(format!("{name}: the first line does not say the purpose"));
        }
        let outcome = sim::run::run(load(&source).unwrap(), &Options::default());
        for (pod, expected) in file.expect.pods {
            let Some(expected) = expected.reason else { continue };
            let found = outcome.pods.iter().find(|found| found.name == pod);
            let got = found.and_then(|found| found.reason.as_deref()).unwrap_or_default();
            if !got.contains(&expected) {
                failed.push(format!(
                    "{name}: pod {pod}: expected the reason {expected:?}, got {got:?}"
                ));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
