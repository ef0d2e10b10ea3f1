//! Mutations of JSON trees: edge-case values, and parts that are removed, copied elsewhere and repeated.

use serde_json::{Value, json};

use crate::Random;

/// Texts that have a meaning in Kubernetes objects, and invalid ones.
const TEXTS: [&str; 42] = [
    "",
    "0",
    "-1",
    "NaN",
    "inf",
    "-0",
    "1e400",
    "0.5",
    "1",
    "1.5",
    "0.9999999999999",
    "1e-9",
    "9223372036854775807",
    "-9223372036854775808",
    "8Ei",
    "1n",
    "1m",
    "999999999999Gi",
    "\u{0}",
    "\u{1f600}",
    "a/b/c",
    "../../x",
    "ns",
    "gang",
    "team",
    "root",
    "n0",
    "a",
    "Always",
    "True",
    "Failed",
    "Running",
    "2026-01-01T12:00:00Z",
    "9999-12-31T23:59:59Z",
    "-9999-01-01T00:00:00Z",
    "-1s",
    "1h",
    "292277026596y",
    "preemptible",
    "mixed",
    "In",
    "default",
];
/// Mutations add no element to a list of this length.
const ITEMS_MAX: usize = 10;
/// Mutations copy no larger part.
const COPIED_BYTES_MAX: usize = 2_000;

pub(crate) fn mutated(corpus: &[Value], random: &mut Random) -> Value {
    let mut tree = random.pick(corpus).clone();
    for _ in 0..=random.below(8) {
        mutate(&mut tree, random);
    }
    tree
}

fn mutate(tree: &mut Value, random: &mut Random) {
    let mut all = Vec::new();
    pointers(tree, "", &mut all);
    let at = random.pick(&all).clone();
    match random.below(6) {
        0 => remove(tree, &at, random),
        1 => {
            let from: &String = random.pick(&all);
            let value = tree.pointer(from).cloned().unwrap_or_default();
            match tree.pointer_mut(&at) {
                Some(Value::Array(list)) if list.len() < ITEMS_MAX => list.push(value),
                Some(target) if value.to_string().len() < COPIED_BYTES_MAX => *target = value,
                _ => {}
            }
        }
        _ => {
            if let Some(target) = tree.pointer_mut(&at) {
                *target = edge_case(random);
            }
        }
    }
}

fn remove(tree: &mut Value, at: &str, random: &mut Random) {
    let Some((parent, key)) = at.rsplit_once('/') else {
        return;
    };
    match tree.pointer_mut(parent) {
        Some(Value::Object(map)) => drop(map.remove(&key.replace("~1", "/").replace("~0", "~"))),
        Some(Value::Array(list)) if !list.is_empty() => drop(list.remove(random.below(list.len()))),
        _ => {}
    }
}

fn edge_case(random: &mut Random) -> Value {
    match random.below(12) {
        0..=4 => (*random.pick(&TEXTS)).into(),
        5 => (random.number() as i64).into(),
        6 => (random.below(10) as i64 - 5).into(),
        7 => json!(f64::from_bits(random.number())),
        8 => "x".repeat(*random.pick(&[64, 300, 5_000])).into(),
        9 => (*random.pick(&[i64::MAX, i64::MIN, i64::from(i32::MAX), i64::from(u32::MAX)])).into(),
        10 => random.chance(50).into(),
        _ => random
            .pick(&[
                Value::Null,
                json!([]),
                json!({}),
                json!([{}]),
                json!([null]),
                json!({"": null}),
            ])
            .clone(),
    }
}

/// Collects the JSON pointers of all values in the tree.
fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    let escape = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Object(map) => map
            .iter()
            .for_each(|(key, value)| pointers(value, &format!("{at}/{}", escape(key)), all)),
        Value::Array(list) => {
            list.iter()
                .enumerate()
                .for_each(|(index, value)| pointers(value, &format!("{at}/{index}"), all));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
