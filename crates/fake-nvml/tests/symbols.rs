//! The list of exported names. `symbols.txt` holds every NVML function that known clients look up; `src/unsupported.rs` is generated from
//! it for those that are not implemented. Run with `UPDATE_SYMBOLS=1` to regenerate both after an upgrade of the bindings.

// Test code: a failed step should stop right there.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn crate_path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn listed() -> BTreeSet<String> {
    read(&crate_path("symbols.txt")).lines().map(str::to_owned).collect()
}

/// Words after `before` that begin with `nvml` and a capital, up to `after`.
fn names_between(text: &str, before: &str, after: char) -> BTreeSet<String> {
    let starts = text
        .match_indices(before)
        .map(|(place, _)| &text[place + before.len()..]);
    let words = starts.filter_map(|rest| rest.split_once(after)).map(|(word, _)| word);
    let is_name = |word: &&str| {
        let tail = word.strip_prefix("nvml").unwrap_or_default();
        tail.starts_with(|c: char| c.is_ascii_uppercase())
            && tail.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    words.filter(is_name).map(str::to_owned).collect()
}

fn implemented() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(crate_path("src")).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().is_some_and(|name| name != "unsupported.rs") {
            names.extend(names_between(&read(&path), "fn ", '('));
        }
    }
    names
}

/// Names in the bindings that our own driver uses, wherever cargo keeps them.
fn in_bindings() -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        // Without the filter cargo would want to download what other systems need.
        .args(["metadata", "--format-version", "1", "--filter-platform"])
        .arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH))
        .current_dir(crate_path(""))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let bindings = packages
        .iter()
        .find(|package| package["name"] == "nvml-wrapper-sys")
        .unwrap();
    let manifest = Path::new(bindings["manifest_path"].as_str().unwrap()).to_owned();
    names_between(&read(&manifest.parent().unwrap().join("src/bindings.rs")), "pub ", ':')
}

fn generate(listed: &BTreeSet<String>, implemented: &BTreeSet<String>) -> String {
    let mut text = String::from(
        "//! Generated from symbols.txt by tests/symbols.rs: every NVML function that clients look up and we do not implement. A C function may be\n\
         //! called with more arguments than it takes on all our platforms, so one shape serves all; none reads or writes anything.\n\
         #![allow(missing_docs)]\n\n\
         macro_rules! unsupported {\n    ($($name:ident)*) => {\n        $(\n            #[unsafe(no_mangle)]\n            \
         pub(crate) extern \"C\" fn $name() -> u32 {\n                crate::code::NOT_SUPPORTED.0\n            }\n        )*\n    };\n}\n\n\
         unsupported! {\n",
    );
    for name in listed.difference(implemented) {
        text.push_str(&format!("    {name}\n"));
    }
    text.push_str("}\n");
    text
}

#[test]
fn the_list_is_not_stale() {
    let (known, implemented) = (in_bindings(), implemented());
    let wanted: BTreeSet<String> = known.union(&implemented).cloned().chain(listed()).collect();
    if std::env::var_os("UPDATE_SYMBOLS").is_some() {
        let lines: Vec<&str> = wanted.iter().map(String::as_str).collect();
        std::fs::write(crate_path("symbols.txt"), lines.join("\n") + "\n").unwrap();
        std::fs::write(crate_path("src/unsupported.rs"), generate(&wanted, &implemented)).unwrap();
    }
    assert!(known.len() > 300, "the bindings were not understood");
    let listed_now = listed();
    let missing: Vec<&String> = wanted.difference(&listed_now).collect();
    assert!(
        missing.is_empty(),
        "symbols.txt lacks {missing:?}: run with UPDATE_SYMBOLS=1"
    );
    let expected = generate(&listed(), &implemented);
    assert!(
        read(&crate_path("src/unsupported.rs")) == expected,
        "src/unsupported.rs is stale: run with UPDATE_SYMBOLS=1"
    );
}

#[test]
fn every_name_is_exported() {
    let dir = tempfile::tempdir().unwrap();
    let path = kai_fake_nvml::install(dir.path()).unwrap();
    // SAFETY: our own library; loading it runs no initialiser.
    let library = unsafe { libloading::Library::new(path) }.unwrap();
    for name in listed() {
        // SAFETY: the symbol is only looked up here, not called.
        let found = unsafe { library.get::<unsafe extern "C" fn() -> u32>(name.as_bytes()) };
        assert!(found.is_ok(), "{name} is not exported");
    }
}

#[test]
fn what_is_not_implemented_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = kai_fake_nvml::install(dir.path()).unwrap();
    // SAFETY: our own library; loading it runs no initialiser.
    let library = unsafe { libloading::Library::new(path) }.unwrap();
    for name in listed().difference(&implemented()) {
        // SAFETY: these functions take nothing and return a code.
        let code = unsafe { library.get::<unsafe extern "C" fn() -> u32>(name.as_bytes()).unwrap()() };
        assert_eq!(code, 3, "{name}");
    }
}
