//! Which file of the directory configures a node: the one that the node's label names, the default, or the one that a fallback strategy
//! finds. The rules and words are those of NVIDIA's config-manager. Pure.

use std::collections::BTreeSet;
use std::str::FromStr;

use kai_api::keys::NODE_DEVICE_PLUGIN_CONFIG;

/// The key that the strategy `named` looks for.
const NAMED_KEY: &str = "default";
/// How many keys a message lists.
const KEYS_LISTED_MAX: usize = 8;
/// Longest key in a message. A key of a ConfigMap may have 253 characters.
const KEY_CHARS_MAX: usize = 63;

/// How to find a file if the node has no label and there is no default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallbackStrategy {
    /// The file named `default`.
    Named,
    /// The only file.
    Single,
    /// No file: the agent's flags alone.
    Empty,
}

impl FromStr for FallbackStrategy {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "named" => Ok(FallbackStrategy::Named),
            "single" => Ok(FallbackStrategy::Single),
            "empty" => Ok(FallbackStrategy::Empty),
            other => Err(format!("{other:?} is no strategy; write named, single or empty")),
        }
    }
}

/// What decides the choice of a file.
#[derive(Debug, Clone, Copy)]
pub struct Choice<'a> {
    /// Value of the node's label.
    pub label: Option<&'a str>,
    /// The key for nodes without the label.
    pub default: Option<&'a str>,
    /// What to try without either, in this order.
    pub fallback: &'a [FallbackStrategy],
}

/// The key of the file to use; `None` means that no file applies. `Err` is what is wrong, with the remedy.
pub fn select<'k>(keys: &'k BTreeSet<String>, choice: Choice) -> Result<Option<&'k str>, String> {
    if keys.is_empty() {
        return Err("it does not exist or has no keys; create it with a key for each configuration".to_owned());
    }
    // An empty label is no choice: config-manager can't tell it from a missing one.
    if let Some(label) = choice.label.filter(|label| !label.is_empty()) {
        let source = format!("the node's label {NODE_DEVICE_PLUGIN_CONFIG}");
        let remedy = "add the key, or change the label";
        return named(keys, label, &source, remedy).map(Some);
    }
    if let Some(default) = choice.default.filter(|default| !default.is_empty()) {
        let remedy = "add the key, or change the default";
        return named(
            keys,
            default,
            "the default (--default-config, chart: nodeAgent.config.default)",
            remedy,
        )
        .map(Some);
    }
    for strategy in choice.fallback {
        match strategy {
            FallbackStrategy::Named => {
                if let Some(key) = keys.get(NAMED_KEY) {
                    return Ok(Some(key));
                }
            }
            FallbackStrategy::Single => {
                if let (1, Some(key)) = (keys.len(), keys.first()) {
                    return Ok(Some(key));
                }
            }
            FallbackStrategy::Empty => return Ok(None),
        }
    }
    Err(format!(
        "no key is chosen: the node has no label {NODE_DEVICE_PLUGIN_CONFIG}, there is no default, and no fallback strategy applies; set the \
         label to one of {}, or set a default",
        listed(keys)
    ))
}

fn named<'k>(keys: &'k BTreeSet<String>, name: &str, source: &str, remedy: &str) -> Result<&'k str, String> {
    keys.get(name).map(String::as_str).ok_or_else(|| {
        format!(
            "{source} names the key {:?}, which does not exist{}; {remedy}; the keys are {}",
            kai_yaml::shortened(name, KEY_CHARS_MAX),
            kai_yaml::suggestion(name, keys.iter().map(String::as_str)),
            listed(keys)
        )
    })
}

fn listed(keys: &BTreeSet<String>) -> String {
    let shown = keys.iter().map(|key| kai_yaml::shortened(key, KEY_CHARS_MAX));
    let mut shown: Vec<String> = shown.take(KEYS_LISTED_MAX).collect();
    if keys.len() > KEYS_LISTED_MAX {
        shown.push(format!("{} more", keys.len() - KEYS_LISTED_MAX));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys, label, default and strategies, each a list of words; `-` is none.
    fn check(keys: &str, label: &str, default: &str, fallback: &str, expect: &str) {
        let words = |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        let keys = words(keys).into_iter().collect();
        let fallback: Vec<FallbackStrategy> = words(fallback).iter().map(|word| word.parse().unwrap()).collect();
        let some = |word: &'static str| Some(word).filter(|word| *word != "-");
        let (label, default) = (label.to_owned().leak(), default.to_owned().leak());
        let chosen = select(
            &keys,
            Choice {
                label: some(label),
                default: some(default),
                fallback: &fallback,
            },
        );
        match chosen {
            Ok(key) => assert_eq!(key.unwrap_or("-"), expect),
            Err(problem) => assert!(expect.len() > 1 && problem.contains(expect), "{problem}"),
        }
    }

    #[test]
    fn the_label_wins_then_the_default_then_the_fallbacks_in_order() {
        check("a b default", "a", "b", "named", "a");
        check("a b default", "-", "b", "named", "b");
        check("a b default", "", "", "named", "default");
        check("a b default", "-", "-", "single named", "default");
        check("a", "-", "-", "named single", "a");
        check("a b", "-", "-", "named single empty", "-");
    }

    #[test]
    fn a_key_that_is_missing_is_named_with_the_keys_that_exist() {
        check(
            "a100 t4",
            "a10",
            "t4",
            "empty",
            "names the key \"a10\", which does not exist; did you mean a100?",
        );
        check("a100 t4", "a10", "t4", "empty", "the keys are a100, t4");
        check("a b", "-", "c", "empty", "the default (--default-config");
        check("a b", "-", "-", "named single", "set the label to one of a, b");
        check("a b", "-", "-", "", "no key is chosen");
        check("", "a", "a", "empty", "does not exist or has no keys");
        check("a b c d e f g h i j", "x", "-", "", "g, h, 2 more");
    }
}
