//! Validation of the file of simulated nodes. Each message names the node, the field and the remedy. Pure.

use std::collections::BTreeSet;

use kai_node::allocator::sharing::REPLICAS_MAX;
use serde_json::Value;

use super::node_template::{NodeTemplate, NodesFile};
use crate::server;

/// Nodes per file: the largest cluster that kai is measured with.
const NODES_MAX: u64 = 10_000;
/// The longest delay of a pod's start or stop.
const DELAY_SECONDS_MAX: f64 = 3_600.0;
/// The longest name of a node.
const NAME_CHARS_MAX: usize = 253;
/// The effects of taints.
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Checks the integers before deserialization, whose error names neither the node nor the remedy.
pub(super) fn check_numbers(file: &Value) -> Result<(), String> {
    for (at, node) in file["nodes"].as_array().into_iter().flatten().enumerate() {
        let name = match node["name"].as_str() {
            Some(name) => format!("node {name:?}"),
            None => format!("nodes[{at}]"),
        };
        for (field, most) in [
            ("count", NODES_MAX),
            ("pods", u64::from(u32::MAX)),
            ("replicas", u64::from(REPLICAS_MAX)),
        ] {
            let value = &node[field];
            let whole = value.as_u64().is_some_and(|number| (1..=most).contains(&number));
            if !value.is_null() && !whole {
                return Err(format!(
                    "{name}: {field} is {value}; write a whole number from 1 to {most}"
                ));
            }
        }
    }
    Ok(())
}

/// Checks all other fields.
pub(super) fn check(file: &NodesFile) -> Result<(), String> {
    let delays = [
        ("startSeconds", file.delays.start_seconds),
        ("stopSeconds", file.delays.stop_seconds),
    ];
    for (field, seconds) in delays {
        if !(0.0..=DELAY_SECONDS_MAX).contains(&seconds) {
            return Err(format!(
                "delays.{field} is {seconds}; write seconds from 0 to {DELAY_SECONDS_MAX}"
            ));
        }
    }
    if file.nodes.is_empty() {
        return Err("nodes is empty; write at least one node, such as - { name: a, gpus: h100:8 }".to_owned());
    }
    let count: u64 = file.nodes.iter().map(|node| u64::from(node.count.unwrap_or(1))).sum();
    if count > NODES_MAX {
        return Err(format!(
            "the counts of all nodes are {count}; write {NODES_MAX} at most"
        ));
    }
    let mut names = BTreeSet::new();
    for node in &file.nodes {
        check_node(node).map_err(|problem| format!("node {:?}: {problem}", node.name))?;
        node.gpus("check")?;
        if let Some(twice) = node.names().into_iter().find(|name| !names.insert(name.clone())) {
            return Err(format!(
                "node {twice:?}: name is taken by another node; give each its own"
            ));
        }
    }
    Ok(())
}

fn check_node(node: &NodeTemplate) -> Result<(), String> {
    let part = |part: &str| {
        let outer =
            |letter: Option<char>| letter.is_some_and(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit());
        let inner = |letter: char| outer(Some(letter)) || letter == '-';
        outer(part.chars().next()) && outer(part.chars().last()) && part.chars().all(inner)
    };
    if node.name.len() > NAME_CHARS_MAX || !node.name.split('.').all(part) {
        return Err(format!(
            "name is not a node's name; write lower-case letters, digits, '-' and '.', {NAME_CHARS_MAX} at most, with a letter or \
             digit first and last"
        ));
    }
    for (field, text, example) in [("cpu", &node.cpu, "64"), ("memory", &node.memory, "512Gi")] {
        let amount = kai_api::Quantity::parse(text)
            .map_err(|error| format!("{field} is {text:?}: {error}; write for instance {example}"))?;
        if amount <= kai_api::Quantity::default() {
            return Err(format!(
                "{field} is {text:?}; write more than nothing, for instance {example}"
            ));
        }
    }
    if let Some(driver) = &node.driver {
        let is_number =
            |part: &str| !part.is_empty() && part.len() <= 5 && part.bytes().all(|byte| byte.is_ascii_digit());
        if node.gpus.is_empty() || !driver.split('.').all(is_number) {
            return Err(format!(
                "driver is {driver:?}; write the version of a GPU driver, for instance \"615.71.09\", on a node with gpus"
            ));
        }
    }
    for taint in &node.taints {
        let effect = taint["effect"].as_str().unwrap_or_default();
        let key = taint["key"].as_str().unwrap_or_default();
        if key.is_empty() || !EFFECTS.contains(&effect) {
            return Err(format!(
                "taints has {taint}; write a key and one of the effects {}",
                EFFECTS.join(", ")
            ));
        }
        server::check_label_key(key).map_err(|problem| format!("taints has the key {key:?}: {problem}"))?;
        let value = match &taint["value"] {
            Value::Null => "",
            value => value
                .as_str()
                .ok_or_else(|| format!("taints has the value {value} of {key}; put it in quotes"))?,
        };
        server::check_label_value(value)
            .map_err(|problem| format!("taints has the value {value:?} of {key}: {problem}"))?;
    }
    for (key, value) in &node.labels {
        server::check_label_key(key).map_err(|problem| format!("labels has the key {key:?}: {problem}"))?;
        server::check_label_value(value)
            .map_err(|problem| format!("labels has the value {value:?} of {key}: {problem}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that the message has all of these words.
    fn check_refused(text: &str, words: &[&str]) {
        let problem = NodesFile::parse(text).unwrap_err();
        assert!(words.iter().all(|word| problem.contains(word)), "{text}: {problem}");
    }

    #[test]
    fn delays_are_bounded() {
        for seconds in ["1e300", "-1", "1e18"] {
            let text = format!("nodes: [{{name: a}}]\ndelays: {{startSeconds: {seconds}}}\n");
            check_refused(&text, &["delays.startSeconds", "from 0 to 3600"]);
        }
        // The YAML parser rejects infinity.
        let text = "nodes: [{name: a}]\ndelays: {startSeconds: .inf}\n";
        check_refused(text, &["line 2", ".inf", "not a finite number"]);
        assert!(!NodesFile::parse(text).unwrap_err().contains("policy"));
        check_refused("nodes: [{name: a}]\nnodes: []\n", &["duplicate key: nodes", "line 2"]);
        check_refused(
            "nodes: [{name: a}]\ndelays: {stopSeconds: -0.5}\n",
            &["delays.stopSeconds", "-0.5"],
        );
    }

    #[test]
    fn negative_numbers_name_their_node_and_field() {
        check_refused(
            "nodes: [{name: a, count: -1}]",
            &["node \"a\"", "count is -1", "from 1"],
        );
        check_refused("nodes: [{name: a, count: 0}]", &["node \"a\"", "count is 0"]);
        check_refused("nodes: [{name: a, replicas: -4}]", &["node \"a\"", "replicas is -4"]);
        check_refused("nodes: [{name: a, pods: 1.5}]", &["node \"a\"", "pods is 1.5"]);
        check_refused("nodes: [{name: a, cpu: '-2'}]", &["node \"a\"", "cpu is \"-2\"", "64"]);
        check_refused(
            "nodes: [{name: a, memory: much}]",
            &["node \"a\"", "memory is \"much\"", "512Gi"],
        );
        check_refused(
            "nodes: [{name: a, count: 9999}, {name: b, count: 9999}]",
            &["10000 at most"],
        );
    }

    #[test]
    fn names_are_there_and_differ() {
        check_refused("nodes: []", &["nodes is empty", "at least one"]);
        check_refused("delays: {}", &["nodes is empty"]);
        check_refused("nodes: [{name: ''}]", &["node \"\"", "name"]);
        check_refused("nodes: [{name: Big_One}]", &["node \"Big_One\"", "lower-case"]);
        check_refused("nodes: [{name: a}, {name: a}]", &["node \"a\"", "taken"]);
        check_refused("nodes: [{name: a, count: 2}, {name: a-1}]", &["node \"a-1\"", "taken"]);
    }

    #[test]
    fn taints_are_complete() {
        check_refused(
            "nodes: [{name: a, taints: [{key: k}]}]",
            &["node \"a\"", "taints", "NoSchedule"],
        );
    }

    #[test]
    fn labels_and_taints_have_names_that_the_api_server_takes() {
        check_refused(
            "nodes: [{name: a, labels: {'bad key!': x}}]",
            &["node \"a\"", "labels", "bad key!"],
        );
        check_refused(
            "nodes: [{name: a, labels: {rack: 'a b'}}]",
            &["node \"a\"", "labels", "rack", "a b"],
        );
        check_refused(
            "nodes: [{name: a, taints: [{key: 'no/no/no', effect: NoSchedule}]}]",
            &["node \"a\"", "taints", "no/no/no"],
        );
        check_refused(
            "nodes: [{name: a, taints: [{key: k, value: 5, effect: NoSchedule}]}]",
            &["node \"a\"", "taints", "quotes"],
        );
    }

    #[test]
    fn the_driver_has_a_version_and_gpus() {
        check_refused(
            "nodes: [{name: a, gpus: 'h100:1', driver: new}]",
            &["node \"a\"", "driver", "615.71.09"],
        );
        check_refused(
            "nodes: [{name: a, driver: '615.1'}]",
            &["node \"a\"", "driver", "with gpus"],
        );
        assert!(NodesFile::parse("nodes: [{name: a, gpus: 'h100:1', driver: '615.71.09'}]").is_ok());
    }

    #[test]
    fn gpus_are_counted_and_the_mig_strategy_is_known() {
        check_refused(
            "nodes: [{name: a, migStrategy: foo}]",
            &["node \"a\"", "migStrategy", "foo"],
        );
        check_refused(
            "nodes: [{name: a, gpus: 'h100:0'}]",
            &["node \"a\"", "gpus", "count is 0"],
        );
    }

    #[test]
    fn the_file_of_the_docs_is_fine() {
        let docs = include_str!("../../../../docs/playground.md");
        let file = docs
            .split("```yaml\n")
            .nth(1)
            .and_then(|rest| rest.split("```").next())
            .unwrap();
        NodesFile::parse(file).unwrap();
    }
}
